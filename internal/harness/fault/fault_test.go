package fault_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/internal/harness/fault"
)

// The test binary is the watchdog, too, and the process that it guards.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) == 6 && os.Args[1] == "watchdog":
		owner, err := fault.ParseProcess(os.Args[5])
		if err == nil {
			err = fault.Watch(os.Args[3], owner, os.Stdin, os.Stdout, func(s string) { fmt.Fprintln(os.Stderr, s) })
		}
		exit(err)
	case os.Getenv("FAULT_TEST_OWNER") != "":
		exit(own(os.Getenv("FAULT_TEST_OWNER")))
	}
	status := m.Run()
	fault.RemoveBinary()
	os.Exit(status)
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// own journals a lab that does not exist and waits for its end.
func own(dir string) error {
	g, err := fault.StartGuard(os.Args[0], filepath.Join(dir, "journal"), os.Stderr)
	if err != nil {
		return err
	}
	if _, err := g.Own(filepath.Join(dir, "labs"), "nowhere"); err != nil {
		return err
	}
	fmt.Println("owned", g.PID())
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func entries(t *testing.T, dir string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "journal", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// startOwner starts a process that owns something, and returns its watchdog.
func startOwner(t *testing.T, dir string) (*exec.Cmd, io.Closer, int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "FAULT_TEST_OWNER="+dir)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var watchdog int
	if _, err := fmt.Fscanf(out, "owned %d\n", &watchdog); err != nil {
		t.Fatal(err)
	}
	if n := entries(t, dir); len(n) != 1 {
		t.Fatalf("journal has %v, want one entry", n)
	}
	return cmd, in, watchdog
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not after 5 s: %s", what)
		}
	}
}

// gone also counts a process that its new parent has not waited for yet.
func gone(pid int) func() bool {
	return func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(b), ") Z ")
	}
}

// Whatever ends the owner, the watchdog empties the journal and ends.
func TestWatchdog(t *testing.T) {
	for name, end := range map[string]func(*exec.Cmd, io.Closer){
		"killed": func(c *exec.Cmd, _ io.Closer) { c.Process.Kill() },
		"group killed": func(c *exec.Cmd, _ io.Closer) {
			// As a terminal's Ctrl-\ does: everything in the owner's group.
			unix.Kill(-c.Process.Pid, unix.SIGQUIT)
			c.Process.Kill()
		},
		"ended": func(_ *exec.Cmd, in io.Closer) { in.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			cmd, in, watchdog := startOwner(t, dir)
			if gone(watchdog)() {
				t.Fatal("the watchdog has ended before its owner")
			}
			end(cmd, in)
			cmd.Wait()
			eventually(t, "the journal is empty", func() bool { return len(entries(t, dir)) == 0 })
			eventually(t, "the watchdog ends", gone(watchdog))
		})
	}
}

// An owner without a watchdog is told so, and what both leave is swept; what
// has an owner is left alone.
func TestSweep(t *testing.T) {
	dir := t.TempDir()
	cmd, _, watchdog := startOwner(t, dir)
	unix.Kill(watchdog, unix.SIGKILL)

	var said []string
	say := func(s string) { said = append(said, s) }
	if err := fault.Sweep(t.Context(), filepath.Join(dir, "journal"), say); err != nil || len(entries(t, dir)) != 1 {
		t.Fatalf("swept what has an owner: %v, %v", said, err)
	}
	cmd.Process.Kill()
	cmd.Wait()
	if err := fault.Sweep(t.Context(), filepath.Join(dir, "journal"), say); err != nil {
		t.Fatal(err)
	}
	if n := entries(t, dir); len(n) != 0 || strings.Join(said, "") != "undone: lab nowhere" {
		t.Errorf("left %v, said %q", n, said)
	}
}

func TestGuardGone(t *testing.T) {
	dir := t.TempDir()
	g, err := fault.StartGuard(os.Args[0], filepath.Join(dir, "journal"), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	release, err := g.Own(filepath.Join(dir, "labs"), "nowhere")
	if err != nil {
		t.Fatal(err)
	}
	if len(entries(t, dir)) != 1 {
		t.Error("nothing is journalled")
	}
	if err := release(); err != nil || len(entries(t, dir)) != 0 {
		t.Errorf("released: %v, left %v", err, entries(t, dir))
	}
	unix.Kill(g.PID(), unix.SIGKILL)
	select {
	case <-g.Gone():
	case <-time.After(5 * time.Second):
		t.Fatal("not told of the watchdog's end")
	}
	if _, err := g.Own(filepath.Join(dir, "labs"), "nowhere"); err == nil || !strings.Contains(err.Error(), "no watchdog") {
		t.Errorf("owned without a watchdog: %v", err)
	}
	if n := entries(t, dir); len(n) != 0 {
		t.Errorf("journal has %v", n)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}

	if _, err := fault.StartGuard("/bin/false", dir, os.Stderr); err == nil {
		t.Error("a watchdog that does not start is no error")
	}
	if err := fault.Sweep(context.Background(), filepath.Join(dir, "none"), nil); err != nil {
		t.Errorf("no journal: %v", err)
	}
}

func TestProcess(t *testing.T) {
	p, err := fault.Self()
	if err != nil || !p.Alive() {
		t.Fatalf("%v: %v", p, err)
	}
	q, err := fault.ParseProcess(p.String())
	if err != nil || q != p {
		t.Errorf("%q is read as %v: %v", p, q, err)
	}
	q.Start++
	if q.Alive() {
		t.Error("a later process of the same number is taken for it")
	}
	if _, err := fault.ParseProcess("12"); err == nil {
		t.Error("a process without a start is taken")
	}
}
