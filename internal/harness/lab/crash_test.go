package lab

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/internal/harness/node"
)

// seed of the instants at which something is killed; the failure names it.
var seed = uint64(time.Now().UnixNano())

func instants(t *testing.T) *rand.Rand {
	t.Helper()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// killed runs sockwatch lab VERB and kills it after a while, with nothing else.
func killed(t *testing.T, s Spec, verb string, after time.Duration) {
	t.Helper()
	cmd := exec.Command(binary, "lab", verb, "--name", s.Name, "--state-dir", s.StateDir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(after) // it is the instant that is tested
	cmd.Process.Kill()
	cmd.Wait()
}

// took is how long it takes undisturbed.
func took(t *testing.T, s Spec, verb string) time.Duration {
	t.Helper()
	begin := time.Now()
	if out, err := exec.Command(binary, "lab", verb, "--name", s.Name, "--state-dir", s.StateDir).CombinedOutput(); err != nil {
		t.Fatalf("lab %s: %v: %s", verb, err, out)
	}
	return time.Since(begin)
}

// What is half made can be taken away, or made again.
func TestKilledWhileUp(t *testing.T) {
	s := newSpec(t, Netns)
	whole := took(t, s, "up")
	took(t, s, "down")
	r := instants(t)
	for i := range 20 {
		after := time.Duration(r.Int64N(int64(whole)))
		killed(t, s, "up", after)
		if i%2 == 0 {
			l, err := Up(t.Context(), s)
			if errors.Is(err, ErrExists) { // it had come up by then
				l, err = Open(s.StateDir, s.Name)
			}
			if err != nil {
				t.Fatalf("up again after %v of %v: %v", after, whole, err)
			}
			mustRead(t, l, node.Proxied)
		}
		if err := Remove(t.Context(), s.StateDir, s.Name); err != nil && !errors.Is(err, ErrNotFound) {
			t.Fatalf("remove after %v of %v: %v", after, whole, err)
		}
		// A process of the lab that had not arrived in its node finds it gone.
		gone(t, s)
		nothingLeft(t, s)
		if t.Failed() {
			t.Fatalf("killed after %v of %v", after, whole)
		}
	}
}

// gone waits for the processes of a lab to end.
func gone(t *testing.T, s Spec) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := await(ctx, func() (bool, error) { return len(processesOf(t, s)) == 0, nil }); err != nil {
		t.Errorf("processes stay: %v", processesOf(t, s))
	}
}

func TestKilledWhileDown(t *testing.T) {
	s := newSpec(t, Netns)
	took(t, s, "up")
	whole := took(t, s, "down")
	r := instants(t)
	for range 10 {
		newLabOf(t, s)
		after := time.Duration(r.Int64N(int64(whole)))
		killed(t, s, "down", after)
		all, err := List(s.StateDir)
		if err != nil {
			t.Fatal(err)
		}
		for _, status := range all {
			if status.Name == s.Name && status.Phase == Left {
				t.Errorf("killed after %v: nothing is written down, but something is left", after)
			}
		}
		if err := Remove(t.Context(), s.StateDir, s.Name); err != nil && !errors.Is(err, ErrNotFound) {
			t.Fatalf("remove after %v of %v: %v", after, whole, err)
		}
		nothingLeft(t, s)
	}
}

// With its directory gone, a lab is found by the mark of its namespaces.
func TestLeft(t *testing.T) {
	s := newSpec(t, Netns)
	l := newLabOf(t, s)
	if err := nodeOf(t, l, Worker).Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	forget := func() {
		t.Helper()
		if err := os.RemoveAll(l.Dir); err != nil {
			t.Fatal(err)
		}
	}
	forget()
	all, err := List(s.StateDir)
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, status := range all {
		found = found || status.Name == s.Name && status.Phase == Left && status.Dir == l.Dir
	}
	if !found {
		t.Errorf("%s is not listed: %+v", s.Name, all)
	}
	if err := Remove(t.Context(), s.StateDir, s.Name); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(s.StateDir); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, s)

	// Another lab of the name takes its place.
	l = newLabOf(t, s)
	forget()
	l = newLabOf(t, s)
	mustRead(t, l, node.Proxied)
	// Also one that is written down elsewhere.
	forget()
	other := s
	other.StateDir = filepath.Join(t.TempDir(), "labs")
	l = newLabOf(t, other)
	mustRead(t, l, node.Proxied)
	if err := l.Down(t.Context()); err != nil {
		t.Fatal(err)
	}
	os.Remove(s.StateDir)
}

// What is not a lab's is neither used nor removed.
func TestForeignNamespace(t *testing.T) {
	for _, role := range []string{"switch", Worker} {
		s := newSpec(t, Netns)
		name := "sw-" + s.Name + "-" + role
		if err := makeNamespace(name, "mine"); err != nil {
			t.Fatal(err)
		}
		_, err := Up(t.Context(), s)
		if !errors.Is(err, ErrExists) || !strings.Contains(err.Error(), name) {
			t.Errorf("up: %v", err)
		}
		if err := Remove(t.Context(), s.StateDir, s.Name); !errors.Is(err, ErrNotFound) {
			t.Errorf("remove: %v", err)
		}
		if mark, err := markOf(name); err != nil || mark != notALab {
			t.Errorf("namespace %s: %q, %v", name, mark, err)
		}
		if err := removeNamespace(name); err != nil {
			t.Fatal(err)
		}
		nothingLeft(t, s)
	}
}

// A lab that does not come up says why, in one line, and leaves nothing.
func TestNotReady(t *testing.T) {
	script := func(text string) string {
		t.Helper()
		file := filepath.Join(t.TempDir(), "sockwatch")
		if err := os.WriteFile(file, []byte("#!/bin/sh\n"+text), 0o700); err != nil {
			t.Fatal(err)
		}
		return file
	}
	for _, c := range []struct {
		name, binary, want string
		is                 error
	}{
		{"ends", script("echo it is broken\nexit 3\n"), "node controlplane: its programs have ended; they said: it is broken", ErrNotReady},
		{"hangs", script("sleep 1000\n"), "deadline exceeded", context.DeadlineExceeded},
		{"missing", "/nonexistent/sockwatch", "/nonexistent/sockwatch: no such file", os.ErrNotExist},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSpec(t, Netns)
			s.Binary = c.binary
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			_, err := Up(ctx, s)
			if err == nil || !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q, want %q", err, c.want)
			}
			gone(t, s)
			nothingLeft(t, s)
		})
	}
}

// A node whose program dies is seen to be dead, and can be started again.
func TestProgramDies(t *testing.T) {
	l := newLabOf(t, newSpec(t, Netns))
	n := nodeOf(t, l, Worker)
	pids, err := l.backend.(*namespaces).cgroup(n).procs()
	if err != nil || len(pids) != 2 {
		t.Fatalf("processes %v, %v, want machined and apid", pids, err)
	}
	for _, pid := range pids {
		line, err := os.ReadFile("/proc/" + itoa(pid) + "/cmdline")
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(line), "\x00apid\x00") {
			continue
		}
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	if err := await(t.Context(), func() (bool, error) {
		c, err := n.Condition(t.Context())
		return !c.Alive, err
	}); err != nil {
		t.Fatal(err)
	}
	// The other program ends because of it, and says so.
	if err := await(t.Context(), func() (bool, error) {
		running, err := n.lab.backend.running(t.Context(), n)
		return !running, err
	}); err != nil {
		t.Fatal(err)
	}
	// Another process of the node does not make it alive.
	guest := n.Command(t.Context(), "sleep", "1000")
	if err := guest.Start(); err != nil {
		t.Fatal(err)
	}
	if err := await(t.Context(), func() (bool, error) { return n.lab.backend.running(t.Context(), n) }); err != nil {
		t.Fatal(err)
	}
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := guest.Wait(); err == nil {
		t.Error("the other process outlived the cold start")
	}
	mustRead(t, l, node.Proxied)
	last := ""
	for _, line := range logOf(t, n) {
		if line.Program == "" {
			last = line.Msg
		}
	}
	if !strings.Contains(last, "apid ended: signal: killed") {
		t.Errorf("the log says %q", last)
	}
}

// Two processes that change a node at the same time do so one after the other.
func TestConcurrentChanges(t *testing.T) {
	l := newLabOf(t, newSpec(t, Netns))
	errs := make(chan error)
	const each = 10
	for _, f := range []func(n *Node) error{
		func(n *Node) error { return n.Unplug(t.Context()) },
		func(n *Node) error { return n.Plug(t.Context(), PlugOptions{}) },
		func(n *Node) error { return n.Freeze(t.Context()) },
		func(n *Node) error { return n.Thaw(t.Context()) },
		func(n *Node) error { return n.DropOnBridge(t.Context(), Both) },
		func(n *Node) error { return n.UndropOnBridge(t.Context()) },
	} {
		n := nodeOf(t, l, Worker)
		go func() {
			for range each {
				if err := f(n); err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	for range 6 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	n := nodeOf(t, l, Worker)
	for _, err := range []error{n.Plug(t.Context(), PlugOptions{}), n.Thaw(t.Context()), n.UndropOnBridge(t.Context())} {
		if err != nil {
			t.Fatal(err)
		}
	}
	mustRead(t, l, node.Direct)
}

// The same with containers, which the engine goes on making for a while.
func TestDockerCrash(t *testing.T) {
	s := newSpec(t, Docker)
	whole := took(t, s, "up")
	took(t, s, "down")
	r := instants(t)
	for i := range 5 {
		after := time.Duration(r.Int64N(int64(whole)))
		killed(t, s, "up", after)
		if i%2 == 0 {
			l, err := Up(t.Context(), s)
			if errors.Is(err, ErrExists) { // it had come up by then
				l, err = Open(s.StateDir, s.Name)
			}
			if err != nil {
				t.Fatalf("up again after %v of %v: %v", after, whole, err)
			}
			mustRead(t, l, node.Proxied)
		}
		if err := Remove(t.Context(), s.StateDir, s.Name); err != nil && !errors.Is(err, ErrNotFound) {
			t.Fatalf("remove after %v of %v: %v", after, whole, err)
		}
		nothingLeft(t, s)
		if t.Failed() {
			t.Fatalf("killed after %v of %v", after, whole)
		}
	}

	// With its directory gone, it is found by its label.
	l := newLabOf(t, s)
	if err := nodeOf(t, l, Worker).DropOnBridge(t.Context(), Both); err != nil {
		t.Fatal(err)
	}
	if err := nodeOf(t, l, Worker).Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(l.Dir); err != nil {
		t.Fatal(err)
	}
	all, err := List(s.StateDir)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(all, func(f Status) bool { return f.Name == s.Name && f.Phase == Left && f.Backend == Docker }) {
		t.Errorf("%s is not listed: %+v", s.Name, all)
	}
	other := s
	other.StateDir = filepath.Join(t.TempDir(), "labs")
	l = newLabOf(t, other)
	if c := conditionOf(t, nodeOf(t, l, Worker)); !c.Alive || c.Frozen || c.Dropped != None {
		t.Errorf("the next lab has %+v", c)
	}
	if _, err := Up(t.Context(), s); !errors.Is(err, ErrExists) {
		t.Errorf("a second lab of the name, elsewhere: %v", err)
	}
	mustRead(t, l, node.Proxied)
	if err := l.Down(t.Context()); err != nil {
		t.Fatal(err)
	}
	os.Remove(s.StateDir)
}

// A process that joined a container is frozen with it and ends with it.
func TestDockerCommand(t *testing.T) {
	l := newLabOf(t, newSpec(t, Docker))
	n := nodeOf(t, l, Worker)
	sleeper := n.Command(t.Context(), "sleep", "1000")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	if err := await(t.Context(), func() (bool, error) {
		b, err := os.ReadFile("/proc/" + itoa(sleeper.Process.Pid) + "/comm")
		return string(b) == "sleep\n", err
	}); err != nil {
		t.Fatal(err)
	}
	if err := n.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	g, err := cgroupOf(sleeper.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if frozen, err := g.frozen(); err != nil || !frozen {
		t.Errorf("its cgroup %s is frozen: %t, %v", g.dir, frozen, err)
	}
	if out, err := n.Command(t.Context(), "true").CombinedOutput(); err == nil || !strings.Contains(string(out), "it is frozen") {
		t.Errorf("a command on a frozen node: %v: %s", err, out)
	}
	if err := n.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := sleeper.Wait(); err == nil || err.Error() != "signal: killed" {
		t.Errorf("the process ended with %v", err)
	}
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustRead(t, l, node.Proxied)
}

// A binary that needs the host's libraries is refused before anything is made.
func TestDockerDynamic(t *testing.T) {
	s := newSpec(t, Docker)
	s.Binary = "/bin/sh"
	if _, err := Up(t.Context(), s); !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "linked dynamically") {
		t.Errorf("up: %v", err)
	}
}

// A lab is the same by whatever path it is found.
func TestOtherPath(t *testing.T) {
	for _, path := range []func(dir string) string{
		func(dir string) string {
			link := filepath.Join(t.TempDir(), "link")
			if err := os.Symlink(dir, link); err != nil {
				t.Fatal(err)
			}
			return link
		},
		func(dir string) string {
			t.Chdir(filepath.Dir(dir))
			return filepath.Base(dir)
		},
	} {
		s := newSpec(t, Netns)
		newLabOf(t, s)
		other := path(s.StateDir)
		l, err := Open(other, s.Name)
		if err != nil {
			t.Fatal(err)
		}
		if out, err := nodeOf(t, l, Worker).Command(t.Context(), "true").CombinedOutput(); err != nil {
			t.Errorf("command by way of %s: %v: %s", other, err, out)
		}
		if err := Remove(t.Context(), other, s.Name); err != nil {
			t.Errorf("remove by way of %s: %v", other, err)
		}
		os.Remove(s.StateDir) // which a link to it does not do
		nothingLeft(t, s)
	}
}

// A full disk: nothing is made, or what was made can be taken away.
func TestFullDisk(t *testing.T) {
	s := newSpec(t, Netns)
	if err := os.MkdirAll(s.StateDir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", s.StateDir, "tmpfs", 0, "size=1m,mode=755"); err != nil {
		t.Fatal(err)
	}
	unmount := func() {
		if err := unix.Unmount(s.StateDir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
		os.RemoveAll(s.StateDir)
	}
	fill := func() {
		t.Helper()
		f, err := os.Create(filepath.Join(s.StateDir, "fill"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for err == nil {
			_, err = f.Write(make([]byte, 4096))
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
	}
	defer unmount() // before the lab's own end of test, which wants nothing left

	fill()
	if _, err := Up(t.Context(), s); !errors.Is(err, unix.ENOSPC) || strings.Contains(err.Error(), "\n") {
		t.Errorf("up on a full disk: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(netnsDir, "sw-"+s.Name+"-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if err := os.Remove(filepath.Join(s.StateDir, "fill")); err != nil {
		t.Fatal(err)
	}
	l := newLabOf(t, s)
	fill()
	if err := nodeOf(t, l, Worker).Unplug(t.Context()); err != nil {
		t.Error(err)
	}
	if err := l.Down(t.Context()); err != nil {
		t.Errorf("down on a full disk: %v", err)
	}
}
