package target

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/internal/testlab"
)

// patience is how long a test waits for what must come.
const patience = 30 * time.Second

var names atomic.Uint32

// uniqueName is a name for a namespace that no other test uses.
func uniqueName() string {
	return fmt.Sprintf("sw-%d-%d-target", os.Getpid(), 1000+names.Add(1))
}

// addNetns makes a named namespace, as ip netns add does.
func addNetns(t testing.TB, name string) {
	t.Helper()
	if err := onThread(func() error {
		h, err := netns.NewNamed(name)
		if err != nil {
			return err
		}
		return h.Close()
	}); err != nil {
		t.Fatalf("add namespace %s: %v", name, err)
	}
	t.Cleanup(func() {
		// Not there any more in many a test.
		unix.Unmount(namedPath(name), unix.MNT_DETACH)
		os.Remove(namedPath(name))
	})
}

func delNetns(t testing.TB, name string) {
	t.Helper()
	if err := netns.DeleteNamed(name); err != nil {
		t.Fatalf("delete namespace %s: %v", name, err)
	}
}

// onThread runs f, which may change the namespace of its thread.
func onThread(f func() error) error {
	errc := make(chan error)
	go func() {
		runtime.LockOSThread()
		orig, err := netns.Get()
		if err != nil {
			errc <- err
			return
		}
		defer orig.Close()
		err = f()
		if netns.Set(orig) == nil {
			runtime.UnlockOSThread()
		}
		errc <- err
	}()
	return <-errc
}

// openFDs counts the descriptors of this process by what they refer to; those
// of namespaces other than the host's are one kind, "namespace".
func openFDs(t testing.TB) map[string]int {
	t.Helper()
	links, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	kinds := make(map[string]int)
	host := inodeOf(t, "/proc/thread-self/ns/net")
	for _, l := range links {
		to, err := os.Readlink(l)
		if err != nil {
			continue
		}
		if id, ok := fileID(l); ok && id.inode != host {
			to = "namespace"
		}
		kinds[to]++
	}
	return kinds
}

// noLeaks fails the test if it leaves goroutines of this package, open
// namespaces or pidfds. Call it before anything else is cleaned up.
func noLeaks(t *testing.T) {
	t.Helper()
	before := openFDs(t)
	t.Cleanup(func() {
		var left string
		ok := testlab.Until(deadline(t, 5*time.Second), func() bool {
			left = ""
			buf := make([]byte, 1<<20)
			for g := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
				if strings.Contains(g, "/internal/target.") && !strings.Contains(g, "testing.tRunner(") && !strings.Contains(g, "target.Test") {
					left += g + "\n"
				}
			}
			for kind, n := range openFDs(t) {
				switch kind {
				case "namespace", "anon_inode:[pidfd]", fmt.Sprintf("/proc/%d/mountinfo", os.Getpid()):
					if n > before[kind] {
						left += fmt.Sprintf("%d open %s, %d before\n", n, kind, before[kind])
					}
				}
			}
			return left == ""
		}) == nil
		if !ok {
			t.Errorf("left behind:\n%s", left)
		}
	})
}

func deadline(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// watch follows targets until the test ends.
func watch(t *testing.T, o Options, targets ...string) *Watcher {
	t.Helper()
	w, err := Watch(t.Context(), parse(t, targets...), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

func parse(t testing.TB, targets ...string) []Spec {
	t.Helper()
	var specs []Spec
	for _, s := range targets {
		spec, err := ParseSpec(s)
		if err != nil {
			t.Fatal(err)
		}
		specs = append(specs, spec)
	}
	return specs
}

// next is the next change, which must be of kind. An attached namespace is
// closed when the test ends, at the latest.
func next(t *testing.T, w *Watcher, kind ChangeKind) Change {
	t.Helper()
	select {
	case c, ok := <-w.Changes():
		if !ok {
			t.Fatalf("no more changes, want %v", kind)
		}
		if c.Kind != kind {
			t.Fatalf("%v (%+v), want %v", c.Kind, c, kind)
		}
		if c.Kind == Attached && !c.Alias {
			t.Cleanup(func() { c.Namespace.Close() })
		}
		return c
	case <-time.After(patience):
		t.Fatalf("no change, want %v", kind)
	}
	panic("unreachable")
}

// end waits for the channel to close without another change.
func end(t *testing.T, w *Watcher) {
	t.Helper()
	select {
	case c, ok := <-w.Changes():
		if ok {
			t.Fatalf("%v (%+v), want no more", c.Kind, c)
		}
	case <-time.After(patience):
		t.Fatal("changes do not end")
	}
}

// quiet asserts that nothing is reported although a check of everything runs
// meanwhile.
func quiet(t *testing.T, w *Watcher, d time.Duration) {
	t.Helper()
	select {
	case c := <-w.Changes():
		t.Fatalf("%v (%+v), want nothing", c.Kind, c)
	case <-time.After(d):
	}
}

// inodeOf is the inode of the namespace at path.
func inodeOf(t testing.TB, path string) uint32 {
	t.Helper()
	id, ok := fileID(path)
	if !ok {
		t.Fatalf("%s is no namespace", path)
	}
	return id.inode
}
