package lab

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sockwatch/sockwatch/internal/harness/node"
)

func TestUp(t *testing.T) {
	for _, backend := range []string{Netns, Docker} {
		t.Run(backend, func(t *testing.T) { testUp(t, newSpec(t, backend)) })
	}
}

func testUp(t *testing.T, s Spec) {
	l := newLabOf(t, s)

	if status, err := l.Status(); err != nil || status.Phase != Ready {
		t.Errorf("status %+v, %v", status, err)
	}
	addresses := make(map[string]bool)
	for _, n := range l.Nodes() {
		c := conditionOf(t, n)
		want := Condition{Alive: true, Plugged: true, PortUp: true, MAC: macOf(n).String(), Netns: c.Netns}
		if c != want || c.Netns == 0 {
			t.Errorf("%s: %+v, want %+v", n.Role, c, want)
		}
		addresses[n.Addr.String()] = true
	}
	if len(addresses) != 3 {
		t.Errorf("addresses %v are not three", addresses)
	}

	// Both routes, and what they leave in the logs.
	for i, route := range node.Routes {
		before := mustRead(t, l, route)
		if before.Version != 1+i {
			t.Errorf("version %d over route %s, want %d", before.Version, route, 1+i)
		}
		out, err := applyOn(t, l, route, "up-"+string(route))
		if err != nil {
			t.Fatalf("apply, %s: %v: %s", route, err, out)
		}
		var begin, end node.Outcome
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		if len(lines) != 2 || json.Unmarshal([]byte(lines[0]), &begin) != nil || json.Unmarshal([]byte(lines[1]), &end) != nil {
			t.Fatalf("the client wrote %q, want two lines of JSON", out)
		}
		if begin.Event != "begin" || end.Event != "end" || end.Code != "OK" || end.MonoNS <= begin.MonoNS {
			t.Errorf("outcome %+v, %+v", begin, end)
		}
		after := mustRead(t, l, route)
		if after.Version != before.Version+1 || after.Label != "up-"+string(route) || after.BootNS != before.BootNS {
			t.Errorf("%+v after %+v", after, before)
		}
		if after.Updated.Nanosecond() != 0 || time.Since(after.Updated) > time.Minute {
			t.Errorf("updated at %v", after.Updated)
		}
	}
	applied, forwarded := 0, 0
	for _, line := range logOf(t, nodeOf(t, l, Worker)) {
		if line.Msg == node.MsgApplied && line.Program == "machined" && !line.CallerGone {
			applied++
		}
		if line.Msg == node.MsgCall && line.ProxyFrom != "" && strings.HasPrefix(line.Peer, nodeOf(t, l, Controlplane).Addr.String()) {
			forwarded++
		}
	}
	// Two reads and one apply came through the controlplane.
	if applied != 2 || forwarded != 3 {
		t.Errorf("%d applied, %d forwarded, want 2 and 3", applied, forwarded)
	}

	if err := l.Down(t.Context()); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, s)
	if err := l.Down(t.Context()); err != nil {
		t.Errorf("taken down twice: %v", err)
	}
	if _, err := Open(s.StateDir, s.Name); !errors.Is(err, ErrNotFound) {
		t.Errorf("open what is gone: %v", err)
	}
}

func logOf(t *testing.T, n *Node) []node.Line {
	t.Helper()
	b, err := n.Log(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return node.ParseLog(b)
}

// The controlplane keeps one connection to the worker, and uses it again.
func TestOneConnection(t *testing.T) {
	l := newLabOf(t, newSpec(t, Netns))
	for range 3 {
		mustRead(t, l, node.Proxied)
	}
	if _, err := applyOn(t, l, node.Proxied, "one"); err != nil {
		t.Fatal(err)
	}
	peers := make(map[string]int)
	for _, line := range logOf(t, nodeOf(t, l, Worker)) {
		if line.ProxyFrom != "" {
			peers[line.Peer]++
		}
	}
	if len(peers) != 1 {
		t.Errorf("the worker was called from %v, want one address and port", peers)
	}
	// A read over the worker's own endpoint is none of them.
	mustRead(t, l, node.Direct)
	for _, line := range logOf(t, nodeOf(t, l, Worker)) {
		if line.Msg == node.MsgCall && line.ProxyFrom == "" && strings.HasPrefix(line.Peer, nodeOf(t, l, Controlplane).Addr.String()) {
			t.Errorf("a direct call came from the controlplane: %+v", line)
		}
	}
}

// Labs have the same addresses and do not know of each other.
func TestTwoLabs(t *testing.T) {
	one, two := newLabOf(t, newSpec(t, Netns)), newLabOf(t, newSpec(t, Netns))
	if nodeOf(t, one, Worker).Addr != nodeOf(t, two, Worker).Addr {
		t.Error("two labs have different addresses")
	}
	if _, err := applyOn(t, one, node.Proxied, "one"); err != nil {
		t.Fatal(err)
	}
	if a, b := mustRead(t, one, node.Direct), mustRead(t, two, node.Direct); a.Label != "one" || b.Label != "" {
		t.Errorf("labels %q and %q", a.Label, b.Label)
	}
	if err := nodeOf(t, one, Worker).Unplug(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustRead(t, two, node.Proxied)
	if err := one.Down(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustRead(t, two, node.Proxied)
}

func TestNames(t *testing.T) {
	for _, name := range []string{"", "A", "a/b", "..", "1a", "-a", "a-", "a b", strings.Repeat("a", 33)} {
		if _, err := Up(t.Context(), Spec{Name: name, StateDir: t.TempDir()}); !errors.Is(err, ErrName) {
			t.Errorf("name %q: %v", name, err)
		}
		if _, err := Open(t.TempDir(), name); !errors.Is(err, ErrName) {
			t.Errorf("name %q: %v", name, err)
		}
	}
	if _, err := Up(t.Context(), Spec{Name: "a", Backend: "vm", StateDir: t.TempDir()}); !errors.Is(err, ErrBackend) {
		t.Errorf("backend vm: %v", err)
	}
	dir := t.TempDir()
	if all, err := List(filepath.Join(dir, "none")); err != nil || len(all) != 0 {
		t.Errorf("list of no directory: %v, %v", all, err)
	}
	if _, err := Open(dir, "a"); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "there is none") {
		t.Errorf("open: %v", err)
	}
}

func TestExists(t *testing.T) {
	s := newSpec(t, Netns)
	l := newLabOf(t, s)
	if _, err := Up(t.Context(), s); !errors.Is(err, ErrExists) {
		t.Errorf("a second lab of the name: %v", err)
	}
	// Written down elsewhere, it is still the same namespaces.
	other := s
	other.StateDir = filepath.Join(t.TempDir(), "labs")
	if _, err := Up(t.Context(), other); !errors.Is(err, ErrExists) {
		t.Errorf("a second lab of the name, elsewhere: %v", err)
	}
	if _, err := os.Stat(other.StateDir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it left %s: %v", other.StateDir, err)
	}
	mustRead(t, l, node.Proxied)
	if _, err := l.Node("router"); !errors.Is(err, ErrNode) || !strings.Contains(err.Error(), "client, controlplane, worker") {
		t.Errorf("no such node: %v", err)
	}
	all, err := List(s.StateDir)
	if err != nil || len(all) != 1 || all[0].Name != s.Name || all[0].Phase != Ready {
		t.Errorf("list: %+v, %v", all, err)
	}
}

// A process of a node is where the node is, and ends with it.
func TestCommand(t *testing.T) {
	l := newLabOf(t, newSpec(t, Netns))
	n := nodeOf(t, l, Worker)
	out, err := n.Command(t.Context(), "readlink", "/proc/self/ns/net").Output()
	if err != nil {
		t.Fatal(err)
	}
	inside := ""
	if err := n.Do(func() (err error) {
		inside, err = os.Readlink("/proc/thread-self/ns/net")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if strings.TrimSpace(string(out)) != inside {
		t.Errorf("a process runs in %s, want %s", out, inside)
	}

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
	if out, err := n.Command(t.Context(), "true").CombinedOutput(); err == nil || !strings.Contains(string(out), "it is frozen") {
		t.Errorf("a command on a frozen node: %v: %s", err, out)
	}
	if err := n.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := sleeper.Wait(); err == nil || err.Error() != "signal: killed" {
		t.Errorf("the process ended with %v", err)
	}
	if out, err := n.Command(t.Context(), "true").CombinedOutput(); err == nil || !strings.Contains(string(out), "enter node") {
		t.Errorf("a command on a node that is not there: %v: %s", err, out)
	}
}

// Of several that make the same lab at the same time one does; others make
// theirs meanwhile.
func TestUpAtOnce(t *testing.T) {
	same := newSpec(t, Netns)
	specs := []Spec{same, same, same, same, newSpec(t, Netns), newSpec(t, Netns)}
	errs := make([]error, len(specs))
	var wait sync.WaitGroup
	for i, s := range specs {
		wait.Go(func() { _, errs[i] = Up(t.Context(), s) })
	}
	wait.Wait()
	made := 0
	for i, err := range errs {
		switch {
		case err == nil && specs[i] == same:
			made++
		case err != nil && specs[i] != same:
			t.Errorf("another lab: %v", err)
		case err != nil && !errors.Is(err, ErrExists):
			t.Errorf("the same lab: %v", err)
		}
	}
	if made != 1 {
		t.Errorf("the lab was made %d times", made)
	}
	for _, s := range specs {
		l, err := Open(s.StateDir, s.Name)
		if err != nil {
			t.Fatal(err)
		}
		mustRead(t, l, node.Proxied)
	}
}
