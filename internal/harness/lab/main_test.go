package lab

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sockwatch/sockwatch/internal/harness/node"
	"github.com/sockwatch/sockwatch/internal/testlab"
)

// binary is the sockwatch that the labs of the tests run.
var binary string

func TestMain(m *testing.M) {
	status, err := withBinary(m.Run)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = 1
	}
	os.Exit(status)
}

func withBinary(run func() int) (int, error) {
	dir, err := os.MkdirTemp("", "sockwatch-lab-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "sockwatch")
	build := exec.Command("go", "build", "-o", binary, "../../../cmd/sockwatch")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("build sockwatch: %w\n%s", err, out)
	}
	return run(), nil
}

var names atomic.Uint32

// newSpec is for a lab that no other test has, and that is gone when the test
// ends.
func newSpec(t *testing.T, backend string) Spec {
	t.Helper()
	testlab.Privileged(t)
	if backend == Docker {
		testlab.NewDocker(t) // fails or skips without an engine
	}
	s := Spec{
		Name:     fmt.Sprintf("t%d-%d", os.Getpid(), names.Add(1)),
		Backend:  backend,
		StateDir: filepath.Join(t.TempDir(), "labs"),
		Binary:   binary,
	}
	t.Cleanup(func() {
		if l, err := Open(s.StateDir, s.Name); err == nil {
			if err := l.Down(context.Background()); err != nil {
				t.Errorf("take the lab away: %v", err)
			}
		}
		nothingLeft(t, s)
	})
	return s
}

func newLabOf(t *testing.T, s Spec) *Lab {
	t.Helper()
	l, err := Up(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// nothingLeft asserts that nothing of a lab is there any more.
func nothingLeft(t *testing.T, s Spec) {
	t.Helper()
	for _, pattern := range []string{
		s.StateDir,
		filepath.Join(netnsDir, "sw-"+s.Name+"-*"),
		"/sys/fs/cgroup/" + cgroupParent + "/" + s.Name,
		"/sys/fs/cgroup/*/" + cgroupParent + "/" + s.Name,
	} {
		left, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		if len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
	if s.Backend == Docker {
		for _, left := range leftContainers() {
			if left.Name == s.Name {
				t.Errorf("left behind: %+v", left)
			}
		}
	}
	for _, p := range processesOf(t, s) {
		t.Errorf("left behind: process %s", p)
	}
}

// processesOf finds the processes whose arguments name the lab's directory. A
// process that has just been killed may still be on its way out.
func processesOf(t *testing.T, s Spec) []string {
	t.Helper()
	var found []string
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range all {
		b, err := os.ReadFile(file)
		if line := strings.ReplaceAll(string(b), "\x00", " "); err == nil && strings.Contains(line, s.StateDir) {
			found = append(found, file+": "+line)
		}
	}
	return found
}

// nodeOf finds a node of the lab as another process would: opened anew.
func nodeOf(t *testing.T, l *Lab, role string) *Node {
	t.Helper()
	l, err := Open(filepath.Dir(l.Dir), l.Name)
	if err != nil {
		t.Fatal(err)
	}
	n, err := l.Node(role)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func conditionOf(t *testing.T, n *Node) Condition {
	t.Helper()
	c, err := n.Condition(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// read asks for the version within a time that is much longer than a lab
// needs for it and much shorter than what it waits for by itself.
func read(t *testing.T, l *Lab, route node.Route) (node.Reading, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	return l.ReadVersion(ctx, route)
}

func mustRead(t *testing.T, l *Lab, route node.Route) node.Reading {
	t.Helper()
	r, err := read(t, l, route)
	if err != nil {
		t.Fatalf("read the version, %s: %v", route, err)
	}
	return r
}

// applyOn runs the client's program and returns what it wrote.
func applyOn(t *testing.T, l *Lab, route node.Route, label string) ([]byte, error) {
	t.Helper()
	artifact, err := node.Artifact(label)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "artifact.yaml")
	if err := os.WriteFile(file, artifact, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := l.nodes[0].Command(t.Context(), l.Binary, "node", "apply", "--route", string(route), file)
	return cmd.Output()
}
