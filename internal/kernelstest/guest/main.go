// The guest is the first and only process of a test machine: it mounts what
// tests need, loads modules, runs the tests one after the other, reports on the
// second serial port and switches the machine off.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/internal/kernelstest"
)

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "the guest is the init of a test machine; see the package kernelstest")
		os.Exit(2)
	}
	status, err := run()
	if err != nil {
		status = 1
	}
	if report != nil {
		if err != nil {
			fmt.Fprintln(report, "guest:", err)
		}
		fmt.Fprintf(report, "%s%d\n", kernelstest.ExitLine, status)
		// Gone from the port before the machine is.
		_ = unix.IoctlSetInt(int(report.Fd()), unix.TCSBRK, 1)
	} else {
		fmt.Println("guest:", err)
	}
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	select {}
}

// report is the second serial port.
var report *os.File

func run() (int, error) {
	for _, m := range []struct {
		fstype, dir string
		optional    bool
	}{
		{"devtmpfs", "/dev", false},
		{"proc", "/proc", false},
		{"sysfs", "/sys", false},
		{"tmpfs", "/tmp", false},
		{"tmpfs", "/run", false},
		{"bpf", "/sys/fs/bpf", false},
		{"cgroup2", "/sys/fs/cgroup", false},
		{"securityfs", "/sys/kernel/security", true},
	} {
		if err := os.MkdirAll(m.dir, 0o755); err != nil {
			return 0, err
		}
		if err := unix.Mount(m.fstype, m.dir, m.fstype, 0, ""); err != nil && !m.optional {
			return 0, fmt.Errorf("mount %s: %w", m.dir, err)
		}
	}
	if err := openReport(); err != nil {
		return 0, err
	}
	text, err := os.ReadFile("/plan.json")
	if err != nil {
		return 0, err
	}
	var plan kernelstest.Plan
	if err := json.Unmarshal(text, &plan); err != nil {
		return 0, fmt.Errorf("plan: %w", err)
	}
	for _, name := range plan.Modules {
		if err := loadModule(name); err != nil {
			return 0, err
		}
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return 0, fmt.Errorf("find lo: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return 0, fmt.Errorf("set lo up: %w", err)
	}
	if plan.Lockdown {
		state, err := os.ReadFile("/sys/kernel/security/lockdown")
		if err != nil || !bytes.Contains(state, []byte("[confidentiality]")) {
			return 0, fmt.Errorf("the machine is not locked down for confidentiality: %q %w", state, err)
		}
	}
	status := 0
	for _, t := range plan.Tests {
		if code := runTest(t); code != 0 {
			status = 1
		}
	}
	return status, nil
}

// openReport opens the port raw: lines are passed on as they are.
func openReport() error {
	f, err := os.OpenFile("/dev/ttyS1", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	t, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		return fmt.Errorf("ttyS1: %w", err)
	}
	t.Oflag &^= unix.OPOST
	t.Lflag &^= unix.ECHO | unix.ICANON | unix.ISIG
	if err := unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, t); err != nil {
		return fmt.Errorf("ttyS1: %w", err)
	}
	report = f
	return nil
}

func loadModule(name string) error {
	f, err := os.Open("/modules/" + name)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && err != unix.EEXIST {
		return fmt.Errorf("load module %s: %w", name, err)
	}
	return nil
}

// runTest runs one binary. All of its output is reported when it fails; when
// it passes only the verdicts of its tests, and why some were skipped.
//
// Emulation can make a test miss its own deadlines. What failed runs once more,
// by itself, and that counts: a difference of the kernel shows both times.
func runTest(t kernelstest.Test) (code int) {
	start := time.Now()
	fmt.Fprintf(report, "kernelstest: test %s\n", t.Name)
	code, failed := runBinary(t.Name, t.Args)
	if code != 0 && len(failed) > 0 {
		fmt.Fprintf(report, "kernelstest: again %s\n", strings.Join(failed, " "))
		again := "^(" + strings.Join(failed, "|") + ")$"
		code, _ = runBinary(t.Name, append(slices.Clone(t.Args), "-test.parallel=1", "-test.run="+again))
	}
	fmt.Fprintf(report, "kernelstest: done %s %d %.1fs\n", t.Name, code, time.Since(start).Seconds())
	return code
}

// runBinary returns the exit status, and the tests that failed.
func runBinary(name string, args []string) (code int, failed []string) {
	dir := "/tests/" + name
	cmd := exec.Command(dir+"/test", args...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=/bin", "HOME=/root", "CI=1", "TMPDIR=/tmp", "SOCKWATCH_EMULATED=1"}
	var out bytes.Buffer
	cmd.Stdout = io.MultiWriter(&out, progress{})
	cmd.Stderr = cmd.Stdout
	err := cmd.Run()
	w := bufio.NewWriter(report)
	defer w.Flush()
	if err == nil {
		verdicts(w, out.String())
		return 0, nil
	}
	for line := range strings.Lines(out.String()) {
		if f := strings.Fields(line); strings.HasPrefix(line, "--- FAIL: ") && len(f) == 4 {
			failed = append(failed, f[2])
		}
	}
	fmt.Fprintf(w, "%s: %v\n", name, err)
	_, _ = w.Write(out.Bytes()) // the serial port; what is lost shows as a missing line
	fmt.Fprintln(w)
	code = 1
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() > 0 {
		code = exit.ExitCode()
	}
	return code, failed
}

// progress writes the names of tests as they begin and end to the console, so
// that it says where a machine got stuck.
type progress struct{}

func (progress) Write(p []byte) (int, error) {
	for line := range bytes.Lines(p) {
		if bytes.HasPrefix(line, []byte("=== RUN")) || bytes.HasPrefix(line, []byte("--- ")) {
			_, _ = os.Stdout.Write(line) // the console
		}
	}
	return len(p), nil
}

// verdicts copies the line that each test ended with, and adds to a skip what
// the test said last.
func verdicts(w io.Writer, out string) {
	said := make(map[string]string)
	var name string
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		switch {
		case len(f) == 3 && f[0] == "===":
			name = f[2]
		case len(f) == 4 && f[0] == "---" && f[1] == "SKIP:":
			fmt.Fprintf(w, "%s: %s\n", strings.TrimRight(line, "\n"), said[f[2]])
		case len(f) == 4 && f[0] == "---":
			fmt.Fprint(w, line)
		default:
			said[name] = strings.TrimSpace(line)
		}
	}
}
