package target

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/internal/testlab"
)

const (
	// prompt is how soon after its cause a change must be seen.
	prompt = 50 * time.Millisecond
	// loaded is what is allowed where one change is looked at, on a machine
	// that may be busy with other tests.
	loaded = time.Second
)

// during asserts that c was seen after its cause, and how long after.
func during(t *testing.T, c Change, before uint64) time.Duration {
	t.Helper()
	late := time.Duration(c.MonoNS - before)
	if late < 0 {
		t.Errorf("%v is stamped %v before its cause", c.Kind, -late)
	}
	if late > loaded {
		t.Errorf("%v was seen after %v", c.Kind, late)
	}
	return late
}

func TestWatchNamed(t *testing.T) {
	testlab.Privileged(t)
	noLeaks(t)
	for _, prefix := range []string{"", "netns:"} {
		name := uniqueName()
		addNetns(t, name)
		w := watch(t, Options{}, prefix+name)

		var last *Namespace
		for gen := 1; gen <= 3; gen++ {
			if gen > 1 {
				addNetns(t, name)
			}
			added := monoNow()
			c := next(t, w, Attached)
			ns := c.Namespace
			if c.Name != prefix+name || ns.Name != c.Name || ns.Generation != gen || ns.Inode != inodeOf(t, namedPath(name)) || c.Alias {
				t.Fatalf("attached %+v of %+v", c, ns)
			}
			if late := int64(c.MonoNS - added); gen > 1 && late > int64(loaded) {
				t.Errorf("attached %v after it was made", time.Duration(late))
			}
			if last != nil && last.Cookie == ns.Cookie {
				t.Errorf("cookie %d twice", ns.Cookie)
			}
			before := monoNow()
			delNetns(t, name)
			c = next(t, w, Gone)
			during(t, c, before)
			if c.Namespace != ns || c.Final {
				t.Fatalf("gone %+v, want %+v", c, ns)
			}
			ns.Close()
			last = ns
		}
		w.Close()
		end(t, w)
	}
}

// The name vanishes without unlink when only the mount goes.
func TestWatchNamedUnmounted(t *testing.T) {
	testlab.Privileged(t)
	noLeaks(t)
	name := uniqueName()
	addNetns(t, name)
	w := watch(t, Options{}, name)
	next(t, w, Attached)
	before := monoNow()
	if err := unix.Unmount(namedPath(name), unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	during(t, next(t, w, Gone), before)
}

// However fast names change, each generation ends before the next begins, none
// is numbered twice, and what is attached at the end is what is there.
func TestWatchRapid(t *testing.T) {
	testlab.Privileged(t)
	noLeaks(t)
	name := uniqueName()
	addNetns(t, name)
	w := watch(t, Options{}, name)
	cur := next(t, w, Attached).Namespace
	const cycles = 50
	made := make(chan uint32)
	go func() {
		defer close(made)
		for range cycles {
			delNetns(t, name)
			addNetns(t, name)
		}
	}()
	gen := 1
	for done := false; !done || cur == nil || cur.Inode != inodeOf(t, namedPath(name)); {
		select {
		case <-made:
			made, done = nil, true
		case c := <-w.Changes():
			switch {
			case c.Kind == Gone && cur == c.Namespace:
				cur.Close()
				cur = nil
			case c.Kind == Attached && cur == nil && c.Namespace.Generation == gen+1:
				cur = c.Namespace
				gen++
			default:
				t.Fatalf("%+v %+v after generation %d", c, c.Namespace, gen)
			}
		case <-time.After(patience):
			t.Fatalf("attached %+v, want inode %d", cur, inodeOf(t, namedPath(name)))
		}
	}
	t.Logf("saw %d of %d generations", gen, cycles+1)
	if gen > cycles+1 {
		t.Errorf("%d generations of %d namespaces", gen, cycles+1)
	}
	quiet(t, w, 2*checkEvery)
	delNetns(t, name)
	if c := next(t, w, Gone); c.Namespace != cur {
		t.Errorf("gone %+v, want %+v", c.Namespace, cur)
	}
	cur.Close()
}

// A receiver that does not read for a while loses nothing.
func TestWatchSlowReceiver(t *testing.T) {
	testlab.Privileged(t)
	noLeaks(t)
	name := uniqueName()
	addNetns(t, name)
	w := watch(t, Options{}, name)
	first := next(t, w, Attached).Namespace
	delNetns(t, name)
	// The source is unread; the file is free for the next once it is unlinked.
	addNetns(t, name)
	testlab.Eventually(t, patience, func() bool {
		n := openFDs(t)["namespace"]
		return n >= 2 // the watcher has opened the successor by itself
	})
	if c := next(t, w, Gone); c.Namespace != first {
		t.Errorf("gone %+v", c)
	}
	first.Close()
	if c := next(t, w, Attached); c.Namespace.Generation != 2 {
		t.Errorf("attached %+v", c.Namespace)
	}
}

// What was attached but never received is closed by the Watcher.
func TestWatchUnread(t *testing.T) {
	testlab.Privileged(t)
	noLeaks(t)
	name := uniqueName()
	addNetns(t, name)
	watch(t, Options{}, name, "host").Close()
}

func TestWatchMany(t *testing.T) {
	testlab.Privileged(t)
	noLeaks(t)
	const count = 500
	var specs []string
	for range count {
		name := uniqueName()
		addNetns(t, name)
		specs = append(specs, "netns:"+name)
	}
	inotify := openFDs(t)["anon_inode:inotify"]
	start := time.Now()
	w := watch(t, Options{}, specs...)
	for i := range count {
		if c := next(t, w, Attached); c.Name != specs[i] {
			t.Fatalf("attached %s, want %s", c.Name, specs[i])
		}
	}
	took := time.Since(start)
	t.Logf("%d namespaces in %v", count, took)
	if took > 2*time.Second {
		t.Errorf("%d namespaces took %v", count, took)
	}
	if n := openFDs(t)["anon_inode:inotify"] - inotify; n > 1 {
		t.Errorf("%d inotify instances", n)
	}
	var late []time.Duration
	for i, s := range specs {
		before := monoNow()
		delNetns(t, strings.TrimPrefix(s, "netns:"))
		c := next(t, w, Gone)
		if c.Name != specs[i] {
			t.Fatalf("gone %s, want %s", c.Name, specs[i])
		}
		late = append(late, during(t, c, before))
		c.Namespace.Close()
	}
	slices.Sort(late)
	median, most := late[count/2], late[count*95/100]
	t.Logf("gone seen after %v (median), %v (95 of 100)", median, most)
	if most > prompt {
		t.Errorf("gone seen after %v (median), %v (95 of 100), want at most %v", median, most, prompt)
	}
}

func TestWatchAlias(t *testing.T) {
	testlab.Privileged(t)
	noLeaks(t)
	name := uniqueName()
	addNetns(t, name)
	pid := sleepIn(t, name)
	w := watch(t, Options{}, name, "pid:"+pid)
	first, second := next(t, w, Attached), next(t, w, Attached)
	if first.Alias || !second.Alias || second.Namespace != first.Namespace || second.Name != "pid:"+pid || !strings.Contains(second.Detail, name) {
		t.Fatalf("attached %+v and %+v", first, second)
	}
	// It was called by the name, and goes on under the process.
	delNetns(t, name)
	if c := next(t, w, Renamed); c.Name != name || c.Namespace != first.Namespace || c.Heir != (Heir{Name: "pid:" + pid, Generation: 1}) || c.Final {
		t.Fatalf("name gone: %+v", c)
	}
	kill(t, pid)
	if c := next(t, w, Gone); c.Alias || c.Name != "pid:"+pid || c.Namespace != first.Namespace || !c.Final {
		t.Fatalf("process gone: %+v", c)
	}
}

// A namespace goes on under a name that lives, not under one that ended by the
// same cause.
func TestWatchAliasHeir(t *testing.T) {
	testlab.Privileged(t)
	noLeaks(t)
	name, other := uniqueName(), uniqueName()
	addNetns(t, name)
	if err := os.WriteFile(namedPath(other), nil, 0o400); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		unix.Unmount(namedPath(other), unix.MNT_DETACH)
		os.Remove(namedPath(other))
	})
	again := func() {
		if err := unix.Mount(namedPath(name), namedPath(other), "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
	}
	again()
	pid := sleepIn(t, name)
	w := watch(t, Options{}, name, "netns:"+name, other, "pid:"+pid)
	ns := next(t, w, Attached).Namespace
	for range 3 {
		if c := next(t, w, Attached); !c.Alias || c.Namespace != ns {
			t.Fatalf("attached %+v", c)
		}
	}
	// The other spelling of the name does not inherit.
	delNetns(t, name)
	if c := next(t, w, Gone); !c.Alias || c.Name != "netns:"+name {
		t.Errorf("gone %+v", c)
	}
	if c := next(t, w, Renamed); c.Name != name || c.Heir != (Heir{Name: other, Generation: 1}) {
		t.Errorf("renamed %+v", c)
	}
	// Nor is a further name a reason to rename.
	kill(t, pid)
	if c := next(t, w, Gone); !c.Alias || c.Name != "pid:"+pid || !c.Final {
		t.Errorf("gone %+v", c)
	}
	delNetns(t, other)
	if c := next(t, w, Gone); c.Alias || c.Name != other || c.Namespace != ns {
		t.Errorf("gone %+v", c)
	}
	ns.Close()
	// A name that comes back is its next generation, whichever was first.
	addNetns(t, name)
	a, b := next(t, w, Attached), next(t, w, Attached)
	if a.Name != name || a.Alias || a.Namespace.Generation != 2 || b.Name != "netns:"+name || !b.Alias {
		t.Errorf("attached %+v and %+v", a, b)
	}
}

func kill(t *testing.T, pid string) {
	t.Helper()
	n, err := strconv.Atoi(pid)
	if err == nil {
		err = unix.Kill(n, unix.SIGKILL)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestWatchPID(t *testing.T) {
	testlab.Privileged(t)
	noLeaks(t)
	name := uniqueName()
	addNetns(t, name)
	pid := sleepIn(t, name)
	w := watch(t, Options{}, "pid:"+pid)
	c := next(t, w, Attached)
	if c.Namespace.Inode != inodeOf(t, namedPath(name)) || strconv.Itoa(c.Namespace.PID) != pid {
		t.Errorf("attached %+v", c.Namespace)
	}
	before := monoNow()
	kill(t, pid)
	c = next(t, w, Gone)
	during(t, c, before)
	if !c.Final {
		t.Error("a process that ended is not final")
	}
	end(t, w)
}

// A process may change its namespace and live on.
func TestWatchPIDMoves(t *testing.T) {
	testlab.Privileged(t)
	noLeaks(t)
	cmd := exec.Command("sh", "-c", "read x; exec unshare --net sleep 1000")
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	w := watch(t, Options{}, "pid:"+strconv.Itoa(cmd.Process.Pid))
	first := next(t, w, Attached).Namespace
	in.Write([]byte("\n"))
	if c := next(t, w, Gone); c.Namespace != first || c.Final {
		t.Errorf("moved: %+v", c)
	}
	if c := next(t, w, Attached); c.Namespace.Generation != 2 || c.Namespace.Inode == first.Inode {
		t.Errorf("attached %+v after %+v", c.Namespace, first)
	}
	cmd.Process.Kill()
	if c := next(t, w, Gone); !c.Final {
		t.Errorf("ended: %+v", c)
	}
	end(t, w)
}

func TestWatchPath(t *testing.T) {
	testlab.Privileged(t)
	noLeaks(t)
	name := uniqueName()
	addNetns(t, name)
	dir := t.TempDir()
	mounted, link := filepath.Join(dir, "mounted"), filepath.Join(dir, "link")
	bind(t, name, mounted)
	if err := os.Symlink(namedPath(name), link); err != nil {
		t.Fatal(err)
	}
	w := watch(t, Options{}, "path:"+mounted, "path:"+link)
	next(t, w, Attached)
	next(t, w, Attached)
	before := monoNow()
	if err := unix.Unmount(mounted, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	c := next(t, w, Renamed)
	during(t, c, before)
	if !c.Final || c.Heir.Name != "path:"+link || c.Name != "path:"+mounted {
		t.Errorf("unmounted: %+v", c)
	}
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	if c := next(t, w, Gone); !c.Final || c.Alias || c.Name != "path:"+link {
		t.Errorf("removed: %+v", c)
	}
	end(t, w)
}

func bind(t *testing.T, name, file string) {
	t.Helper()
	err := os.WriteFile(file, nil, 0o600)
	if err == nil {
		err = unix.Mount(namedPath(name), file, "", unix.MS_BIND, "")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(file, unix.MNT_DETACH) })
}

func TestWatchWait(t *testing.T) {
	testlab.Privileged(t)
	noLeaks(t)
	t.Setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
	other := uniqueName()
	addNetns(t, other)
	named, bare := uniqueName(), uniqueName()
	file := filepath.Join(t.TempDir(), "ns")
	pid := freePID(t)

	w := watch(t, Options{Wait: true}, "netns:"+named, bare, "path:"+file, "pid:"+pid)
	for range 4 {
		if c := next(t, w, Waiting); c.Detail == "" || c.Namespace != nil {
			t.Errorf("waiting: %+v", c)
		}
	}
	addNetns(t, named)
	if c := next(t, w, Attached); c.Name != "netns:"+named || c.Namespace.Generation != 1 {
		t.Errorf("attached %+v", c)
	}
	// What is not a namespace yet must not end the wait.
	if err := os.WriteFile(namedPath(bare), nil, 0o400); err != nil {
		t.Fatal(err)
	}
	quiet(t, w, 2*checkEvery)
	os.Remove(namedPath(bare))
	addNetns(t, bare)
	if c := next(t, w, Attached); c.Name != bare {
		t.Errorf("attached %+v", c)
	}
	bind(t, other, file)
	if c := next(t, w, Attached); c.Name != "path:"+file || c.Namespace.Inode != inodeOf(t, file) {
		t.Errorf("attached %+v", c)
	}
	startAs(t, pid, other)
	if c := next(t, w, Attached); c.Name != "pid:"+pid {
		t.Errorf("attached %+v", c)
	}
}

// Without a free descriptor the Watcher says so once, and attaches when there
// is one.
func TestWatchTooManyFiles(t *testing.T) {
	testlab.Privileged(t)
	noLeaks(t)
	other, name := uniqueName(), uniqueName()
	addNetns(t, other)
	if err := os.WriteFile(namedPath(name), nil, 0o400); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		unix.Unmount(namedPath(name), unix.MNT_DETACH)
		os.Remove(namedPath(name))
	})
	w := watch(t, Options{Wait: true}, "netns:"+name)
	next(t, w, Waiting)

	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		t.Fatal(err)
	}
	low := unix.Rlimit{Cur: 256, Max: lim.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	var fds []int
	free := func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
		fds = nil
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(free)
	for {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			break
		}
		fds = append(fds, fd)
	}
	if err := unix.Mount(namedPath(other), namedPath(name), "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	if c := next(t, w, Waiting); !strings.Contains(c.Detail, "ulimit -n") {
		t.Errorf("waiting: %+v", c)
	}
	quiet(t, w, 3*checkEvery)
	free()
	if c := next(t, w, Attached); c.Namespace.Generation != 1 {
		t.Errorf("attached %+v", c.Namespace)
	}
}

const lastPID = "/proc/sys/kernel/ns_last_pid"

// freePID is a process id that is unused and not given out soon.
func freePID(t *testing.T) string {
	t.Helper()
	limit, err := os.ReadFile("/proc/sys/kernel/pid_max")
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(limit)))
	if err != nil {
		t.Fatal(err)
	}
	last, err := os.ReadFile(lastPID)
	if err != nil {
		t.Fatal(err)
	}
	from, err := strconv.Atoi(strings.TrimSpace(string(last)))
	if err != nil {
		t.Fatal(err)
	}
	// Halfway round from what is given out now.
	for i := range n {
		pid := 1000 + (from+n/2+i)%(n-1000)
		if unix.Kill(pid, 0) == unix.ESRCH {
			return strconv.Itoa(pid)
		}
	}
	t.Fatal("every pid is used")
	return ""
}

// startAs starts a process with the given pid.
func startAs(t *testing.T, pid, _ string) {
	t.Helper()
	n, _ := strconv.Atoi(pid)
	was, err := os.ReadFile(lastPID)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.WriteFile(lastPID, was, 0) })
	// Others start processes too, so it may take some attempts.
	testlab.Eventually(t, patience, func() bool {
		if err := os.WriteFile(lastPID, []byte(strconv.Itoa(n-1)), 0); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("sleep", "1000")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if cmd.Process.Pid == n {
			t.Cleanup(func() {
				cmd.Process.Kill()
				cmd.Wait()
			})
			return true
		}
		cmd.Process.Kill()
		cmd.Wait()
		return false
	})
}

func TestWatchHost(t *testing.T) {
	testlab.Privileged(t)
	noLeaks(t)
	ctx, cancel := context.WithCancel(t.Context())
	w, err := Watch(ctx, parse(t, "host"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	c := next(t, w, Attached)
	if c.Namespace.Inode != inodeOf(t, hostPath()) {
		t.Errorf("host is %+v", c.Namespace)
	}
	quiet(t, w, 2*checkEvery)
	cancel()
	end(t, w)
	w.Close()
	w.Close() // again does nothing
}
