package evidence

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"
)

// What changes the process for good runs in a child: the test binary again,
// told what to do by the environment.
const childEnv = "SOCKWATCH_EVIDENCE_CHILD"

func TestMain(m *testing.M) {
	child := map[string]func() error{
		"caps":   childCaps,
		"limits": childLimits,
		"hold":   childHold,
	}[os.Getenv(childEnv)]
	if child == nil {
		os.Exit(m.Run())
	}
	if err := child(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func runChild(t *testing.T, name string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+name)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

func TestDropCapabilities(t *testing.T) {
	requireRoot(t)
	runChild(t, "caps")
}

func childCaps() error {
	if unix.Access("/proc/1/environ", unix.R_OK) != nil {
		return errors.New("cannot read /proc/1/environ even before")
	}

	// Threads that exist before the drop have to lose them too.
	const threads = 4
	started, done := make(chan int), make(chan struct{})
	for range threads {
		go func() {
			runtime.LockOSThread()
			started <- unix.Gettid()
			<-done
		}()
	}
	for range threads {
		<-started
	}
	defer close(done)

	if err := DropCapabilities(cap.NET_ADMIN, cap.SYS_PTRACE); err != nil {
		return err
	}

	want := uint64(1)<<cap.NET_ADMIN | uint64(1)<<cap.SYS_PTRACE
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	if len(tasks) < threads {
		return fmt.Errorf("%d threads", len(tasks))
	}
	for _, task := range tasks {
		st, err := status("/proc/self/task/" + task.Name() + "/status")
		if err != nil {
			return err
		}
		for key, want := range map[string]uint64{"CapPrm": want, "CapEff": want, "CapBnd": want, "CapInh": 0, "CapAmb": 0, "NoNewPrivs": 1} {
			if got := st[key]; got != want {
				return fmt.Errorf("thread %s: %s is %#x, want %#x", task.Name(), key, got, want)
			}
		}
	}

	// And it works: no CAP_SYS_ADMIN, no new namespace; no way back.
	if err := unix.Unshare(unix.CLONE_NEWNET); !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("unshare after the drop is not refused: %w", err)
	}
	out, err := exec.Command("/bin/grep", "CapEff", "/proc/self/status").Output()
	if err != nil {
		return err
	}
	var eff uint64
	if _, err := fmt.Sscanf(string(out), "CapEff:\t%x", &eff); err != nil {
		return err
	}
	if eff&^want != 0 {
		return fmt.Errorf("a program executed by root got %#x back", eff&^want)
	}

	// A second drop may only take away; what is gone is not an error.
	if err := DropCapabilities(cap.SYS_PTRACE, cap.SYS_ADMIN); err != nil {
		return err
	}
	st, err := status("/proc/self/status")
	if err != nil {
		return err
	}
	if got := st["CapEff"]; got != 1<<cap.SYS_PTRACE {
		return fmt.Errorf("after the second drop CapEff is %#x", got)
	}
	return nil
}

// status reads the numbers of a /proc status file that are in hexadecimal.
func status(path string) (map[string]uint64, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	m := make(map[string]uint64)
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		key, value, _ := strings.Cut(sc.Text(), ":")
		var n uint64
		if strings.HasPrefix(key, "Cap") || key == "NoNewPrivs" {
			if _, err := fmt.Sscanf(value, "%x", &n); err != nil {
				return nil, fmt.Errorf("%s: %w", sc.Text(), err)
			}
			m[key] = n
		}
	}
	return m, sc.Err()
}

func TestRaiseLimits(t *testing.T) {
	requireRoot(t)
	runChild(t, "limits")
}

func childLimits() error {
	low := unix.Rlimit{Cur: 64, Max: 128}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
		return err
	}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: 4096, Max: 8192}); err != nil {
		return err
	}

	// Without the privilege: up to the hard limit, no error, never down.
	set := cap.GetProc()
	privileged, err := set.GetFlag(cap.Permitted, cap.SYS_RESOURCE)
	if err != nil {
		return err
	}
	raise := func(on bool) error {
		if err := set.SetFlag(cap.Effective, on, cap.SYS_RESOURCE); err != nil {
			return err
		}
		return set.SetProc()
	}
	if err := raise(false); err != nil {
		return err
	}
	for _, files := range []uint64{100, 4096, 50} {
		want := Limits{Files: 128, Memlock: 8192}
		if files == 100 {
			want.Files = 100
		}
		if err := check(want, files); err != nil {
			return fmt.Errorf("without CAP_SYS_RESOURCE, RaiseLimits(%d): %w", files, err)
		}
	}
	if !privileged {
		return nil // root of a container or of a trimmed machine
	}

	// With it: beyond, up to what the kernel has.
	if err := raise(true); err != nil {
		return err
	}
	for _, files := range []uint64{4096, 256} {
		if err := check(Limits{Files: 4096, Memlock: unix.RLIM_INFINITY}, files); err != nil {
			return fmt.Errorf("RaiseLimits(%d): %w", files, err)
		}
	}
	return check(Limits{Files: maxFiles(), Memlock: unix.RLIM_INFINITY}, 1<<40)
}

func check(want Limits, files uint64) error {
	got, err := RaiseLimits(files)
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("returned %+v, want %+v", got, want)
	}
	var nofile, memlock unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &nofile); err != nil {
		return err
	}
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &memlock); err != nil {
		return err
	}
	if in := (Limits{Files: nofile.Cur, Memlock: memlock.Cur}); in != want {
		return fmt.Errorf("in force %+v, want %+v", in, want)
	}
	return nil
}
