// Kernels runs sockwatch's tests on other kernels, in virtual machines.
//
//	go run ./hack/kernels                      every kernel of the matrix
//	go run ./hack/kernels -kernels 5.10,6.12   some of it
//	go run ./hack/kernels -kernels 6.18+lockdown -tests session -run TestSynAck
//
// A kernel is a series of Debian's cloud kernels, of which the newest release
// is taken, or "newest" for the newest series; "+lockdown" boots it locked down
// for confidentiality. Kernels are fetched through apt with a configuration of
// its own, and kept in the cache directory. It needs apt, dpkg-deb, xz,
// debian-archive-keyring and qemu-system-x86, and installs none of them.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sockwatch/sockwatch/internal/kernelstest"
)

// matrix is what a release is held to.
const matrix = "5.10,6.1,6.12,6.18,newest,6.18+lockdown"

// lockdown is the suffix of a kernel that is to be locked down.
const lockdown = "+lockdown"

// suite is a package whose tests run in the machine.
type suite struct {
	name string
	skip string // tests that take minutes, or need what a machine has not
}

var suites = []suite{
	{name: "bpf"},
	{name: "internal/loader"},
	{name: "internal/session", skip: "^(TestCut|TestDocker|TestLedgerUnderLoad|TestLedgerInTraffic|TestStoppedReader)"},
}

// modules are what the tests use that Debian does not build in.
var modules = []string{
	"veth", "bridge", "dummy", "tun", "inet_diag", "tcp_diag", "sch_netem", "sch_ingress", "cls_bpf", "act_bpf",
	"nfnetlink", "nf_tables", "nft_chain_nat", "nft_reject", "nft_reject_inet", "nft_reject_ipv4", "nft_reject_ipv6",
	"nft_ct", "nft_counter", "nft_limit", "nf_conntrack", "nf_reject_ipv4", "nf_reject_ipv6", "tcp_bbr",
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "kernels:", err)
		stop()
		os.Exit(1)
	}
}

type options struct {
	cache, run string
	limit      time.Duration
	suites     []suite
	tests      []kernelstest.Test
	archive    *kernelstest.Archive
	common     func() (*kernelstest.Initramfs, error)
}

func run(ctx context.Context) error {
	var o options
	kernels := flag.String("kernels", matrix, "kernels to boot, comma separated")
	tests := flag.String("tests", "", "names of packages to test, comma separated; empty: all")
	jobs := flag.Int("jobs", 1, "machines at a time; each uses two processors")
	flag.StringVar(&o.cache, "cache", defaultCache(), "directory for kernels and logs")
	flag.StringVar(&o.run, "run", "", "run only the tests that match, as go test -run does")
	flag.DurationVar(&o.limit, "limit", 15*time.Minute, "time limit for each machine")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	if o.suites = suites; *tests != "" {
		o.suites = nil
		for name := range strings.SplitSeq(*tests, ",") {
			i := slices.IndexFunc(suites, func(s suite) bool { return filepath.Base(s.name) == name })
			if i < 0 {
				return fmt.Errorf("-tests: no package is named %q", name)
			}
			o.suites = append(o.suites, suites[i])
		}
	}
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil {
		return fmt.Errorf("%w: apt-get install qemu-system-x86", err)
	}
	var err error
	if o.archive, err = kernelstest.OpenArchive(o.cache, kernelstest.HostMirrors("/etc/apt"), os.Stderr); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "sockwatch-kernels-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := o.build(ctx, work); err != nil {
		return err
	}

	names := strings.Split(*kernels, ",")
	results := make([]result, len(names))
	slots := make(chan struct{}, max(1, *jobs))
	var wg sync.WaitGroup
	for i, name := range names {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			results[i] = o.boot(ctx, work, name)
			fmt.Println(results[i].line())
		})
	}
	wg.Wait()
	return summarise(results)
}

func defaultCache() string {
	if dir := os.Getenv("XDG_CACHE_HOME"); dir != "" {
		return filepath.Join(dir, "sockwatch-kernels")
	}
	if dir, err := os.UserCacheDir(); err == nil && os.Geteuid() != 0 {
		return filepath.Join(dir, "sockwatch-kernels")
	}
	return "/var/cache/sockwatch-kernels"
}

// build compiles the tests and the guest, without cgo so that nothing else has
// to be in the machine, and sets the parts of the initramfs that all share.
func (o *options) build(ctx context.Context, work string) error {
	compile := func(out string, args ...string) error {
		cmd := exec.CommandContext(ctx, "go", append(args[:len(args)-1:len(args)-1], "-ldflags=-s -w", "-o", out, args[len(args)-1])...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
		if text, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, text)
		}
		return nil
	}
	guest := filepath.Join(work, "init")
	if err := compile(guest, "build", "./internal/kernelstest/guest"); err != nil {
		return err
	}
	for _, s := range o.suites {
		name := strings.ReplaceAll(s.name, "/", "-")
		if err := compile(filepath.Join(work, name), "test", "-c", "./"+s.name); err != nil {
			return err
		}
		t := kernelstest.Test{Name: name, Args: []string{"-test.v", "-test.parallel=2", "-test.timeout=" + (o.limit - 30*time.Second).String()}}
		if o.run != "" {
			t.Args = append(t.Args, "-test.run="+o.run)
		}
		if s.skip != "" {
			t.Args = append(t.Args, "-test.skip="+s.skip)
		}
		o.tests = append(o.tests, t)
	}
	busybox, err := o.archive.Busybox()
	if err != nil {
		return err
	}
	o.common = func() (*kernelstest.Initramfs, error) {
		var r kernelstest.Initramfs
		if err := r.AddFile("/init", guest, 0o755); err != nil {
			return nil, err
		}
		if err := r.AddFile("/bin/busybox", busybox, 0o755); err != nil {
			return nil, err
		}
		for _, tool := range []string{"sh", "sleep", "true", "false", "readlink", "cat", "echo"} {
			r.Link("/bin/"+tool, "busybox")
		}
		for _, dir := range []string{"/root", "/etc", "/var/log"} {
			r.Dir(dir)
		}
		for i, t := range o.tests {
			if err := r.AddFile("/tests/"+t.Name+"/test", filepath.Join(work, t.Name), 0o755); err != nil {
				return nil, err
			}
			if err := addTree(&r, "/tests/"+t.Name, o.suites[i].name); err != nil {
				return nil, err
			}
		}
		return &r, nil
	}
	return nil
}

// addTree adds a package's testdata.
func addTree(r *kernelstest.Initramfs, to, pkg string) error {
	err := filepath.WalkDir(filepath.Join(pkg, "testdata"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(pkg, path)
		if err != nil {
			return err
		}
		return r.AddFile(filepath.Join(to, rel), path, 0o644)
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// result is how one machine went.
type result struct {
	name, release string
	log           string
	took          time.Duration
	tests         []string // a line each
	skips         []string
	again         []string // failed once, and ran again
	err           error
}

func (r *result) line() string {
	verdict := "ok  "
	if r.err != nil {
		verdict = "FAIL"
	}
	return fmt.Sprintf("%s %-14s %-18s %5.1fs  %s", verdict, r.name, r.release, r.took.Seconds(), strings.Join(r.tests, ", "))
}

func (o *options) boot(ctx context.Context, work, name string) (r result) {
	start := time.Now()
	r.name = name
	defer func() { r.took = time.Since(start) }()
	if r.err = ctx.Err(); r.err != nil {
		return r
	}

	series, locked := strings.CutSuffix(name, lockdown)
	if series == "newest" {
		series = ""
	}
	var kernel kernelstest.Kernel
	if r.release, r.err = o.archive.Newest(series); r.err != nil {
		return r
	}
	if kernel, r.err = o.archive.Kernel(r.release); r.err != nil {
		return r
	}
	mods, _, err := kernelstest.LoadModules(kernel.Modules, modules)
	if err != nil {
		r.err = err
		return r
	}
	initramfs, err := o.common()
	if err != nil {
		r.err = err
		return r
	}
	if r.err = initramfs.SetPlan(kernelstest.Plan{Tests: o.tests, Lockdown: locked}, mods); r.err != nil {
		return r
	}
	image := filepath.Join(work, name+".cpio")
	if r.err = os.WriteFile(image, initramfs.Bytes(), 0o600); r.err != nil {
		return r
	}
	defer os.Remove(image)

	logs := filepath.Join(o.cache, "logs")
	if r.err = os.MkdirAll(logs, 0o755); r.err != nil {
		return r
	}
	m := kernelstest.Machine{
		Kernel: kernel.Image, Initramfs: image,
		Console: filepath.Join(logs, name+".console"), Memory: 1536, Limit: o.limit,
	}
	if locked {
		m.Cmdline = "lockdown=confidentiality"
	}
	r.log = filepath.Join(logs, name+".log")
	var out bytes.Buffer
	start = time.Now()
	status, err := m.Run(ctx, &out)
	if werr := os.WriteFile(r.log, out.Bytes(), 0o644); werr != nil && err == nil {
		err = werr
	}
	switch {
	case err != nil:
		r.err = fmt.Errorf("%w\nlast messages of the kernel:\n%s", err, m.ConsoleTail(20))
	case status != 0:
		r.err = fmt.Errorf("exit status %d", status)
	}
	r.read(&out, len(o.tests))
	return r
}

// read takes the guest's report apart.
func (r *result) read(report io.Reader, want int) {
	var passed, failed, skipped int
	text, _ := io.ReadAll(report)
	for line := range strings.Lines(string(text)) {
		trimmed := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(trimmed, "kernelstest: test "):
			passed, failed, skipped = 0, 0, 0
		case strings.HasPrefix(trimmed, "kernelstest: again "):
			f := strings.Fields(trimmed)[2:]
			r.again = append(r.again, f...)
			failed -= len(f)
		case strings.HasPrefix(line, "--- PASS"):
			passed++
		case strings.HasPrefix(line, "--- FAIL"):
			failed++
		case strings.HasPrefix(trimmed, "--- SKIP"):
			skipped++
			r.skips = append(r.skips, trimmed)
		case strings.HasPrefix(trimmed, "kernelstest: done "):
			f := strings.Fields(trimmed) // kernelstest: done NAME STATUS TIME
			r.tests = append(r.tests, fmt.Sprintf("%s %d/%d in %s", f[2], passed, passed+failed, f[4]))
			if passed+failed == 0 && r.err == nil && skipped == 0 {
				r.err = fmt.Errorf("%s ran no test", f[2])
			}
		}
	}
	if r.err == nil && len(r.tests) != want {
		r.err = fmt.Errorf("%d of %d packages were tested", len(r.tests), want)
	}
	// A test that cannot hold here says which feature the kernel lacks, and
	// what is said about it instead; any other skip hides something.
	for _, s := range r.skips {
		if r.err == nil && !strings.Contains(s, "blind spot") {
			r.err = fmt.Errorf("skipped without a blind spot: %s", s)
		}
	}
}

func summarise(results []result) error {
	var failed []string
	fmt.Println()
	for _, r := range results {
		fmt.Println(r.line())
		for _, s := range r.skips {
			fmt.Println("       ", s)
		}
		if r.again != nil {
			fmt.Println("        failed at first:", strings.Join(r.again, ", "))
		}
		if r.err != nil {
			failed = append(failed, r.name)
			fmt.Printf("        %v\n", strings.ReplaceAll(r.err.Error(), "\n", "\n        "))
			if r.log != "" {
				fmt.Printf("        see %s\n", r.log)
			}
		}
	}
	if failed != nil {
		return fmt.Errorf("failed on %s", strings.Join(failed, ", "))
	}
	return nil
}
