package target

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/internal/testlab"
)

func resolveOne(t *testing.T, target string) *Namespace {
	t.Helper()
	all, err := Resolve(t.Context(), parse(t, target))
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 1 {
		t.Fatalf("Resolve(%s) gave %d namespaces", target, len(all))
	}
	t.Cleanup(func() { all[0].Close() })
	return all[0]
}

func TestDo(t *testing.T) {
	testlab.Privileged(t)
	noLeaks(t)
	name := uniqueName()
	addNetns(t, name)
	ns := resolveOne(t, "netns:"+name)

	var inside uint32
	if err := ns.Do(func() error {
		id, _ := fileID("/proc/thread-self/ns/net")
		inside = id.inode
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if inside != ns.Inode || inside != inodeOf(t, namedPath(name)) {
		t.Errorf("Do ran in %d, want %d", inside, ns.Inode)
	}
	if host := inodeOf(t, "/proc/thread-self/ns/net"); ns.Inode == host {
		t.Errorf("namespace is the host's, %d", host)
	}
	if ns.Cookie == 0 {
		t.Error("no cookie")
	}

	want := errors.New("mine")
	if err := ns.Do(func() error { return want }); !errors.Is(err, want) {
		t.Errorf("Do returned %v, want %v", err, want)
	}
	if err := ns.Do(func() error { runtime.Goexit(); return nil }); err == nil {
		t.Error("Do of a function that ends its goroutine returned nil")
	}
}

func TestDoReturnsThreads(t *testing.T) {
	testlab.Privileged(t)
	name := uniqueName()
	addNetns(t, name)
	ns := resolveOne(t, "netns:"+name)

	before := threads(t)
	for range 500 {
		if err := ns.Do(func() error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	if after := threads(t); len(after) > len(before)+20 {
		t.Errorf("%d threads, %d before", len(after), len(before))
	}
	host := inodeOf(t, "/proc/thread-self/ns/net")
	for tid := range threads(t) {
		path := fmt.Sprintf("/proc/self/task/%s/ns/net", tid)
		if id, ok := fileID(path); ok && id.inode != host {
			t.Errorf("thread %s is still in namespace %d", tid, id.inode)
		}
	}
}

// A thread that gave up the right to return must not run anything else.
func TestDoDiscardsThread(t *testing.T) {
	testlab.Privileged(t)
	name := uniqueName()
	addNetns(t, name)
	ns := resolveOne(t, "netns:"+name)

	for range 10 {
		var tid int
		if err := ns.Do(func() error {
			tid = unix.Gettid()
			if tid == os.Getpid() {
				t.Error("f runs on the main thread, which cannot be ended")
			}
			hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			var none [2]unix.CapUserData
			return unix.Capset(&hdr, &none[0]) // of this thread only
		}); err != nil {
			t.Fatal(err)
		}
		testlab.Eventually(t, patience, func() bool {
			_, alive := threads(t)[fmt.Sprint(tid)]
			return !alive
		})
	}
	// What runs now has its privileges.
	if err := ns.Do(func() error { return nil }); err != nil {
		t.Fatal(err)
	}
}

func threads(t *testing.T) map[string]bool {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	tids := make(map[string]bool)
	for _, e := range entries {
		tids[e.Name()] = true
	}
	return tids
}
