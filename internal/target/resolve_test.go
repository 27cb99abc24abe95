package target

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"

	"github.com/sockwatch/sockwatch/internal/testlab"
)

func TestResolve(t *testing.T) {
	testlab.Privileged(t)
	noLeaks(t)
	name := uniqueName()
	addNetns(t, name)
	child := sleepIn(t, name)
	file := filepath.Join(t.TempDir(), "ns")
	if err := os.Symlink(namedPath(name), file); err != nil {
		t.Fatal(err)
	}
	want := inodeOf(t, namedPath(name))

	for _, target := range []string{name, "netns:" + name, "pid:" + child, "path:" + file, "path:/proc/" + child + "/ns/net"} {
		ns := resolveOne(t, target)
		if ns.Inode != want || ns.Name != target || ns.Generation != 1 || ns.Cookie == 0 {
			t.Errorf("Resolve(%s) = %+v, want inode %d", target, ns, want)
		}
		ns.Close()
	}
	host := resolveOne(t, "host")
	if host.Inode != inodeOf(t, hostPath()) || host.Inode == want {
		t.Errorf("host is %d", host.Inode)
	}
	host.Close()

	all, err := Resolve(t.Context(), parse(t, name, "pid:"+child, "host", "netns:"+name))
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 2 || all[0].Name != name || all[1].Name != "host" {
		t.Errorf("four names of two namespaces give %+v", all)
	}
	for _, ns := range all {
		ns.Close()
	}
}

// sleepIn starts a process in a named namespace and returns its pid.
func sleepIn(t *testing.T, name string) string {
	t.Helper()
	cmd := exec.Command("nsenter", "--net="+namedPath(name), "sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	pid := strconv.Itoa(cmd.Process.Pid)
	testlab.Eventually(t, patience, func() bool {
		comm, _ := os.ReadFile("/proc/" + pid + "/comm")
		return string(comm) == "sleep\n"
	})
	return pid
}

func TestResolveErrors(t *testing.T) {
	testlab.Privileged(t)
	noLeaks(t)
	name := uniqueName()
	addNetns(t, name)
	t.Setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
	dir := t.TempDir()
	plain, fifo := filepath.Join(dir, "plain"), filepath.Join(dir, "fifo")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}

	// What lies in /run/netns need not be a network namespace.
	file, folder, pipe, link, other := uniqueName(), uniqueName(), uniqueName(), uniqueName(), uniqueName()
	for name, make := range map[string]func(string) error{
		file:   func(p string) error { return os.WriteFile(p, nil, 0o400) },
		folder: func(p string) error { return os.Mkdir(p, 0o700) },
		pipe:   func(p string) error { return unix.Mkfifo(p, 0o600) },
		link:   func(p string) error { return os.Symlink("/nonexistent", p) },
		other: func(p string) error {
			return errors.Join(os.WriteFile(p, nil, 0o400), unix.Mount("/proc/self/ns/uts", p, "", unix.MS_BIND, ""))
		},
	} {
		p := namedPath(name)
		if err := make(p); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			unix.Unmount(p, unix.MNT_DETACH)
			if err := os.Remove(p); err != nil {
				t.Error(err)
			}
		})
	}

	for _, c := range []struct {
		target string
		is     error
		hints  []string
	}{
		{"netns:" + name + "x", ErrNotFound, []string{"did you mean " + name, "/run/netns"}},
		{name[1:], ErrNotFound, []string{name, "/run/netns", "unix:///nonexistent/docker.sock", "not running"}},
		{"docker:web", ErrEngine, []string{"unix:///nonexistent/docker.sock", "DOCKER_HOST", "not running"}},
		{"pid:" + strconv.Itoa(gone.Process.Pid), ErrNotFound, []string{"no such process"}},
		{"path:" + plain, ErrNotFound, []string{"not a namespace file"}},
		{"path:" + fifo, ErrNotFound, []string{"not a namespace file"}},
		{"path:" + dir + "/nothing", ErrNotFound, []string{"no such file"}},
		{"path:" + plain + "/below", ErrNotFound, []string{"no such file"}},
		{"path:/proc/self/ns/mnt", ErrBadSpec, []string{"a mount namespace, not a network namespace"}},
		{"path:/proc/self/ns/user", ErrBadSpec, []string{"a user namespace, not a network namespace"}},
		{"netns:" + other, ErrBadSpec, []string{namedPath(other), "a uts namespace, not a network namespace"}},
		{other, ErrBadSpec, []string{"a uts namespace"}},
		{file, ErrNotFound, []string{namedPath(file), "no namespace is mounted on it"}},
		{"netns:" + file, ErrNotFound, []string{"no namespace is mounted on it"}},
		{folder, ErrNotFound, []string{namedPath(folder) + " is a directory, not a namespace"}},
		{pipe, ErrNotFound, []string{namedPath(pipe) + " is a special file, not a namespace"}},
		{link, ErrNotFound, []string{namedPath(link) + " is a link that leads to no namespace"}},
		{file + "x", ErrNotFound, []string{"no such namespace or container"}},
	} {
		all, err := Resolve(t.Context(), parse(t, "netns:"+name, c.target))
		if err == nil {
			t.Errorf("Resolve(%s) = %+v", c.target, all)
			continue
		}
		if c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("Resolve(%s): %v, want %v", c.target, err, c.is)
		}
		var e *Error
		if c.is != nil && (!errors.As(err, &e) || e.Target != c.target) {
			t.Errorf("Resolve(%s): %#v, want an *Error of it", c.target, err)
		}
		for _, h := range c.hints {
			if !strings.Contains(err.Error(), h) {
				t.Errorf("Resolve(%s): %q, want %q in it", c.target, err, h)
			}
		}
		if strings.Contains(err.Error(), "did you mean "+file) {
			t.Errorf("Resolve(%s): %q suggests what is no namespace", c.target, err)
		}
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("Resolve(%s): more than a line: %q", c.target, err)
		}
		t.Log(err)
		if w, err := Watch(t.Context(), parse(t, "netns:"+name, c.target), Options{}); err == nil {
			w.Close()
			t.Errorf("Watch(%s) did not fail", c.target)
		}
	}
	// A named namespace needs no engine.
	resolveOne(t, name).Close()

	t.Setenv("DOCKER_HOST", "nonsense")
	if _, err := Resolve(t.Context(), parse(t, "docker:web")); !errors.Is(err, ErrEngine) || !strings.Contains(err.Error(), "DOCKER_HOST=nonsense") {
		t.Errorf("bad DOCKER_HOST: %v", err)
	}
}

// without takes capabilities away from this process until the test ends.
func without(t *testing.T, caps ...cap.Value) {
	t.Helper()
	had := cap.GetProc()
	less, err := had.Dup()
	if err == nil {
		err = less.SetFlag(cap.Effective, false, caps...)
	}
	if err == nil {
		err = less.SetProc()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := had.SetProc(); err != nil {
			t.Fatal(err)
		}
	})
}

// An engine that runs and may not be asked is not one that does not run.
func TestResolveEngineForbidden(t *testing.T) {
	testlab.Privileged(t)
	noLeaks(t)
	sock := filepath.Join(t.TempDir(), "docker.sock")
	l, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.Chmod(sock, 0); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DOCKER_HOST", "unix://"+sock)
	without(t, cap.DAC_OVERRIDE)
	for _, target := range []string{"docker:web", "sw-nothing"} {
		_, err = Resolve(t.Context(), parse(t, target))
		if err == nil || !strings.Contains(err.Error(), "may not be asked by this user: permission denied") || strings.Contains(err.Error(), "running") || strings.Contains(err.Error(), "start it") {
			t.Errorf("%s: %v", target, err)
		}
	}
}

// The error says which capability is missing, and not to become root to root.
func TestResolveForbidden(t *testing.T) {
	testlab.Privileged(t)
	noLeaks(t)
	name := uniqueName()
	addNetns(t, name)
	pid := sleepIn(t, name)
	without(t, cap.SYS_PTRACE)
	for _, target := range []string{"pid:" + pid, "path:/proc/" + pid + "/ns/net"} {
		_, err := Resolve(t.Context(), parse(t, target))
		if !errors.Is(err, fs.ErrPermission) || !strings.HasSuffix(err.Error(), "this root has no CAP_SYS_PTRACE") {
			t.Errorf("%s: %v", target, err)
		}
	}
}

// An engine that accepts and never answers must not hold up forever.
func TestResolveEngineSilent(t *testing.T) {
	sock := filepath.Join(t.TempDir(), "docker.sock")
	l, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	t.Setenv("DOCKER_HOST", "unix://"+sock)
	_, err = Resolve(t.Context(), parse(t, "docker:web"))
	if !errors.Is(err, ErrEngine) || !strings.Contains(err.Error(), "did not answer in time") {
		t.Errorf("silent engine: %v", err)
	}
}

func TestResolveThread(t *testing.T) {
	for tid := range threads(t) {
		if tid == strconv.Itoa(os.Getpid()) {
			continue
		}
		_, err := Resolve(t.Context(), parse(t, "pid:"+tid))
		if err == nil || !strings.Contains(err.Error(), "is a thread") && !errors.Is(err, ErrNotFound) {
			t.Errorf("thread %s: %v", tid, err)
		}
		return
	}
}

func TestResolveTooManyFiles(t *testing.T) {
	testlab.Privileged(t)
	noLeaks(t)
	var specs []string
	for range 40 {
		name := uniqueName()
		addNetns(t, name)
		specs = append(specs, "netns:"+name)
	}
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		t.Fatal(err)
	}
	open := 0
	for _, n := range openFDs(t) {
		open += n
	}
	low := unix.Rlimit{Cur: uint64(open + 20), Max: lim.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	_, err := Resolve(t.Context(), parse(t, specs...))
	_, werr := Watch(t.Context(), parse(t, specs...), Options{Wait: true})
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{err, werr} {
		if !errors.Is(err, unix.EMFILE) || !strings.Contains(err.Error(), "ulimit -n") {
			t.Errorf("with %d files allowed: %v", low.Cur, err)
		}
	}
}
