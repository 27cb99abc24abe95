package target

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/sockwatch/sockwatch/internal/testlab"
)

func nsOf(t *testing.T, c *testlab.Container) uint32 {
	t.Helper()
	return inodeOf(t, procPath(c.PID()))
}

// attachedTo asserts that ch attached c as generation gen.
func attachedTo(t *testing.T, ch Change, c *testlab.Container, gen int) {
	t.Helper()
	ns := ch.Namespace
	if ch.Container != c.ID || ns.Container != c.ID || ns.Generation != gen || ns.PID != c.PID() || ns.Inode != nsOf(t, c) {
		t.Fatalf("attached %+v of %+v, want generation %d of container %s, process %d, inode %d", ch, ns, gen, c.ID, c.PID(), nsOf(t, c))
	}
}

func TestDockerLife(t *testing.T) {
	testlab.Privileged(t)
	noLeaks(t)
	d := testlab.NewDocker(t)
	network, prefix := d.Network()
	c := d.StartContainer(testlab.ContainerOptions{Image: d.ImportBinary(testlab.Sleeper), Network: network, IP: prefix + "2"})
	name := c.Name()
	w := watch(t, Options{}, name)
	ch := next(t, w, Attached)
	attachedTo(t, ch, c, 1)
	first := ch.Namespace
	if ch.Name != name || first.Name != name || first.Inode != inodeOf(t, c.Inspect().NetworkSettings.SandboxKey) {
		t.Errorf("attached %+v of %+v", ch, first)
	}

	concerns := func(ch Change, detail string) {
		t.Helper()
		if ch.Namespace != first || ch.Name != name || ch.Container != c.ID || ch.Detail != detail || ch.Final || ch.Alias {
			t.Errorf("%+v, want detail %q", ch, detail)
		}
	}
	before := monoNow()
	c.Pause()
	ch = next(t, w, Paused)
	concerns(ch, "")
	if ch.MonoNS < before {
		t.Error("paused before it was asked for")
	}
	c.Unpause()
	concerns(next(t, w, Unpaused), "")
	// The engine reports each of these twice; once is right.
	c.Disconnect(network)
	concerns(next(t, w, Disconnected), network)
	c.Connect(network, prefix+"2")
	concerns(next(t, w, Connected), network)

	before = monoNow()
	c.Restart()
	ch = next(t, w, Gone)
	if ch.Namespace != first || ch.Final || ch.Container != c.ID || ch.MonoNS < before {
		t.Errorf("restart: %+v", ch)
	}
	first.Close()
	ch = next(t, w, Attached)
	attachedTo(t, ch, c, 2)
	if ch.Namespace.Cookie == first.Cookie {
		t.Error("the restarted container has the old namespace")
	}

	c.Kill()
	ch = next(t, w, Gone)
	if ch.Namespace.Generation != 2 || ch.Final {
		t.Errorf("kill: %+v", ch)
	}
	ch.Namespace.Close()
	c.Start()
	attachedTo(t, next(t, w, Attached), c, 3)
	quiet(t, w, 2*checkEvery)
	w.Close()
	end(t, w)
}

// Another container of the same name is the next generation of the name, and
// the end of an id.
func TestDockerReplaced(t *testing.T) {
	testlab.Privileged(t)
	noLeaks(t)
	d := testlab.NewDocker(t)
	image := d.ImportBinary(testlab.Sleeper)
	first := d.StartContainer(testlab.ContainerOptions{Image: image})
	name := first.Name()
	byName, byID := watch(t, Options{}, "docker:"+name), watch(t, Options{}, "docker:"+first.ID[:12])
	attachedTo(t, next(t, byName, Attached), first, 1)
	attachedTo(t, next(t, byID, Attached), first, 1)
	first.Remove()
	if c := next(t, byName, Gone); c.Final {
		t.Errorf("a name is final: %+v", c)
	}
	if c := next(t, byID, Gone); c.Namespace == nil {
		t.Errorf("removed: %+v", c)
	}
	if c := next(t, byID, Gone); c.Namespace != nil || !c.Final || c.Container != first.ID {
		t.Errorf("removed: %+v", c)
	}
	end(t, byID)
	second := d.StartContainer(testlab.ContainerOptions{Image: image, Name: name})
	attachedTo(t, next(t, byName, Attached), second, 2)
}

func TestDockerRenamed(t *testing.T) {
	testlab.Privileged(t)
	noLeaks(t)
	d := testlab.NewDocker(t)
	image := d.ImportBinary(testlab.Sleeper)
	first := d.StartContainer(testlab.ContainerOptions{Image: image})
	name, other := first.Name(), d.UniqueName()
	w := watch(t, Options{}, "docker:"+name)
	attachedTo(t, next(t, w, Attached), first, 1)
	first.Rename(other)
	quiet(t, w, 2*checkEvery)
	first.Pause()
	if c := next(t, w, Paused); !strings.Contains(c.Detail, other) {
		t.Errorf("paused: %+v, want the new name in it", c)
	}
	first.Unpause()
	next(t, w, Unpaused)
	first.Restart()
	next(t, w, Gone)
	attachedTo(t, next(t, w, Attached), first, 2)
	// The name goes to whoever takes it.
	second := d.StartContainer(testlab.ContainerOptions{Image: image, Name: name})
	if c := next(t, w, Gone); !strings.Contains(c.Detail, second.ID) || c.Container != first.ID {
		t.Errorf("name taken: %+v", c)
	}
	attachedTo(t, next(t, w, Attached), second, 3)
	// And back, by renaming a container that runs.
	second.Remove()
	next(t, w, Gone)
	first.Rename(name)
	attachedTo(t, next(t, w, Attached), first, 4)
}

func TestDockerShared(t *testing.T) {
	testlab.Privileged(t)
	noLeaks(t)
	d := testlab.NewDocker(t)
	image := d.ImportBinary(testlab.Sleeper)
	owner := d.StartContainer(testlab.ContainerOptions{Image: image})
	guest := d.StartContainer(testlab.ContainerOptions{Image: image, Network: "container:" + owner.Name()})
	heir := d.StartContainer(testlab.ContainerOptions{Image: image, Network: "container:" + owner.Name()})
	hosted := d.StartContainer(testlab.ContainerOptions{Image: image, Network: "host"})
	w := watch(t, Options{}, owner.Name(), guest.Name(), "docker:"+heir.Name(), hosted.Name())
	attachedTo(t, next(t, w, Attached), owner, 1)
	if c := next(t, w, Attached); !c.Alias || c.Container != guest.ID || c.Namespace.Container != owner.ID || c.Namespace.Inode != nsOf(t, guest) {
		t.Errorf("guest: %+v", c)
	}
	next(t, w, Attached)
	if c := next(t, w, Attached); c.Alias || c.Namespace.Inode != inodeOf(t, "/proc/thread-self/ns/net") {
		t.Errorf("hosted: %+v", c)
	}
	guest.Kill()
	if c := next(t, w, Gone); !c.Alias || c.Container != guest.ID {
		t.Errorf("guest killed: %+v", c)
	}
	owner.Kill()
	if c := next(t, w, Renamed); c.Name != owner.Name() || c.Container != owner.ID || c.Heir != (Heir{"docker:" + heir.Name(), 1, heir.ID}) {
		t.Errorf("owner killed: %+v", c)
	}
	heir.Pause()
	if c := next(t, w, Paused); c.Alias || c.Name != "docker:"+heir.Name() || c.Namespace.Inode != nsOf(t, heir) {
		t.Errorf("heir paused: %+v", c)
	}
	heir.Unpause()
	next(t, w, Unpaused)
	heir.Kill()
	if c := next(t, w, Gone); c.Alias || c.Container != heir.ID {
		t.Errorf("heir killed: %+v", c)
	}
}

func TestDockerErrors(t *testing.T) {
	testlab.Privileged(t)
	noLeaks(t)
	d := testlab.NewDocker(t)
	image := d.ImportBinary(testlab.Sleeper)
	stopped := d.CreateContainer(testlab.ContainerOptions{Image: image})
	both := uniqueName()
	addNetns(t, both)
	d.StartContainer(testlab.ContainerOptions{Image: image, Name: both})

	name := stopped.Name()
	for _, c := range []struct {
		target string
		is     error
		hints  []string
	}{
		{name, ErrGone, []string{"created, not running", "--wait"}},
		{"docker:" + name, ErrGone, []string{"created, not running", "--wait"}},
		{name + "x", ErrNotFound, []string{"did you mean " + name, "/run/netns", "Docker engine"}},
		{"docker:" + name + "x", ErrNotFound, []string{"did you mean " + name}},
		{both, ErrAmbiguous, []string{"netns:" + both, "docker:" + both}},
		// A bare name is not taken for the beginning of an id.
		{stopped.ID[:4], ErrNotFound, nil},
	} {
		for _, o := range []Options{{}, {Wait: true}} {
			w, err := Watch(t.Context(), parse(t, c.target), o)
			if err == nil {
				w.Close()
			}
			if o.Wait && !errors.Is(c.is, ErrAmbiguous) {
				if err != nil {
					t.Errorf("waiting for %s: %v", c.target, err)
				}
				continue
			}
			if !errors.Is(err, c.is) {
				t.Errorf("%s: %v, want %v", c.target, err, c.is)
				continue
			}
			for _, h := range c.hints {
				if !strings.Contains(err.Error(), h) {
					t.Errorf("%s: %q, want %q in it", c.target, err, h)
				}
			}
			t.Log(err)
		}
	}
	for _, target := range []string{"netns:" + both, "docker:" + both} {
		ns := resolveOne(t, target)
		if (ns.Container != "") != strings.HasPrefix(target, "docker:") {
			t.Errorf("Resolve(%s) = %+v", target, ns)
		}
		ns.Close()
	}
}

func TestDockerWait(t *testing.T) {
	testlab.Privileged(t)
	noLeaks(t)
	d := testlab.NewDocker(t)
	image := d.ImportBinary(testlab.Sleeper)
	created := d.CreateContainer(testlab.ContainerOptions{Image: image})
	bare, named := d.UniqueName(), d.UniqueName()
	w := watch(t, Options{Wait: true}, created.Name(), bare, "docker:"+named)
	if c := next(t, w, Waiting); !strings.Contains(c.Detail, "not running") {
		t.Errorf("waiting: %+v", c)
	}
	next(t, w, Waiting)
	next(t, w, Waiting)
	created.Start()
	attachedTo(t, next(t, w, Attached), created, 1)
	for _, name := range []string{bare, named} {
		c := d.StartContainer(testlab.ContainerOptions{Image: image, Name: name})
		attachedTo(t, next(t, w, Attached), c, 1)
	}
}

// proxy stands between the watcher and the engine, to take the engine away
// without harm to others.
type proxy struct {
	t        *testing.T
	sock, to string

	mu    sync.Mutex
	l     net.Listener
	conns []net.Conn
}

func newProxy(t *testing.T) *proxy {
	to := strings.TrimPrefix(os.Getenv("DOCKER_HOST"), "unix://")
	if to == "" {
		to = "/var/run/docker.sock"
	}
	p := &proxy{t: t, sock: filepath.Join(t.TempDir(), "docker.sock"), to: to}
	t.Setenv("DOCKER_HOST", "unix://"+p.sock)
	t.Cleanup(p.stop)
	return p
}

func (p *proxy) start() {
	p.t.Helper()
	l, err := net.Listen("unix", p.sock)
	if err != nil {
		p.t.Fatal(err)
	}
	p.mu.Lock()
	p.l = l
	p.mu.Unlock()
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("unix", p.to)
			if err != nil {
				in.Close()
				continue
			}
			p.mu.Lock()
			p.conns = append(p.conns, in, out)
			p.mu.Unlock()
			go copyClose(in, out)
			go copyClose(out, in)
		}
	}()
}

func copyClose(to, from net.Conn) {
	io.Copy(to, from)
	to.Close()
	from.Close()
}

func (p *proxy) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.l != nil {
		p.l.Close()
		p.l = nil
	}
	for _, c := range p.conns {
		c.Close()
	}
	p.conns = nil
}

// What happens while the engine's stream is broken is not missed: the engine
// repeats what it kept, and the state is compared.
func TestDockerStreamLost(t *testing.T) {
	testlab.Privileged(t)
	noLeaks(t)
	d := testlab.NewDocker(t)
	network, prefix := d.Network()
	image := d.ImportBinary(testlab.Sleeper)
	c := d.StartContainer(testlab.ContainerOptions{Image: image, Network: network, IP: prefix + "2"})
	late := d.UniqueName()

	p := newProxy(t)
	w := watch(t, Options{Wait: true}, "docker:"+c.Name(), "docker:"+late)
	if ch := next(t, w, Waiting); ch.Name != "docker:"+c.Name() || !strings.Contains(ch.Detail, "not running") {
		t.Errorf("engine down: %+v", ch)
	}
	next(t, w, Waiting)
	p.start()
	attachedTo(t, next(t, w, Attached), c, 1)

	p.stop()
	before := monoNow()
	c.Disconnect(network)
	c.Pause()
	paused := monoNow()
	l := d.StartContainer(testlab.ContainerOptions{Image: image, Name: late})
	p.start()
	if ch := next(t, w, Disconnected); ch.MonoNS < before || ch.MonoNS > paused || !strings.HasPrefix(ch.Detail, network) {
		t.Errorf("repeated: %+v, want it between %d and %d", ch, before, paused)
	}
	if ch := next(t, w, Paused); ch.MonoNS < before || ch.MonoNS > paused {
		t.Errorf("repeated: %+v, want it between %d and %d", ch, before, paused)
	}
	attachedTo(t, next(t, w, Attached), l, 1)

	// The end of a process needs no engine.
	p.stop()
	l.Kill()
	if ch := next(t, w, Gone); ch.Container != l.ID {
		t.Errorf("killed: %+v", ch)
	}
	l.Start()
	c.Unpause()
	c.Restart()
	next(t, w, Gone)
	p.start()
	seen := map[string]int{}
	for range 2 {
		ch := next(t, w, Attached)
		seen[ch.Container] = ch.Namespace.Generation
	}
	if seen[c.ID] != 2 || seen[l.ID] != 2 {
		t.Errorf("generations %v, want 2 of %s and %s", seen, c.ID, l.ID)
	}
}

// Without an event, the comparison alone finds the difference.
func TestDockerCompare(t *testing.T) {
	testlab.Privileged(t)
	noLeaks(t)
	d := testlab.NewDocker(t)
	network, prefix := d.Network()
	c := d.StartContainer(testlab.ContainerOptions{Image: d.ImportBinary(testlab.Sleeper), Network: network, IP: prefix + "2"})

	got, reports := (*report)(nil), []report{}
	eng, err := newEngine()
	if err != nil {
		t.Fatal(err)
	}
	defer eng.close()
	follow := &containers{eng: eng, report: func(r report) {
		reports = append(reports, r)
		got = &reports[len(reports)-1]
	}}
	f := follow.add(&target{spec: Spec{Docker, c.Name()}})
	compare := func(kind ChangeKind, detail string) {
		t.Helper()
		got = nil
		follow.compare(t.Context(), "seen late")
		if got == nil || got.kind != kind || !strings.Contains(got.detail, detail) || !strings.Contains(got.detail, "seen late") {
			t.Fatalf("%+v, want %v with %q", got, kind, detail)
		}
		if kind == Attached {
			t.Cleanup(func() {
				for _, r := range reports {
					if r.kind == Attached {
						r.token.Close()
						r.pidfd.Close()
					}
				}
				reports = nil
			})
		}
		now := len(reports)
		if follow.compare(t.Context(), ""); len(reports) != now {
			t.Fatalf("compared twice: %+v", got)
		}
	}
	compare(Attached, c.Name())
	c.Pause()
	compare(Paused, "")
	c.Unpause()
	compare(Unpaused, "")
	c.Disconnect(network)
	compare(Disconnected, network)
	c.Connect(network, "")
	compare(Connected, network)
	token := f.cur
	c.Restart()
	compare(Attached, c.Name())
	if gone := reports[len(reports)-2]; gone.kind != Gone || gone.token != token {
		t.Errorf("restart: %+v, want the end of the generation before", gone)
	}
	c.Kill()
	compare(Gone, "ended")
	c.Remove()
	follow.compare(t.Context(), "")
}

// A start that is in progress makes the engine slow to answer; nothing else
// waits for it.
func TestDockerDoesNotDelayOthers(t *testing.T) {
	testlab.Privileged(t)
	noLeaks(t)
	d := testlab.NewDocker(t)
	c := d.StartContainer(testlab.ContainerOptions{Image: d.ImportBinary(testlab.Sleeper)})
	name := uniqueName()
	addNetns(t, name)
	p := newProxy(t)
	p.start()
	w := watch(t, Options{}, name, "docker:"+c.Name())
	next(t, w, Attached)
	next(t, w, Attached)
	// An engine that hangs.
	p.stop()
	os.Remove(p.sock)
	l, err := net.Listen("unix", p.sock)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan struct{})
	go func() {
		conn, err := l.Accept()
		if err == nil {
			close(accepted)
			io.Copy(io.Discard, conn) // until the watcher gives up
			conn.Close()
		}
	}()
	<-accepted
	before := monoNow()
	delNetns(t, name)
	during(t, next(t, w, Gone), before)
	w.Close()
}

// A process of the same number that is not the container's: the engine's pid
// is of another machine.
func TestDockerElsewhere(t *testing.T) {
	testlab.Privileged(t)
	noLeaks(t)
	d := testlab.NewDocker(t)
	c := d.StartContainer(testlab.ContainerOptions{Image: d.ImportBinary(testlab.Sleeper)})
	eng, err := newEngine()
	if err != nil {
		t.Fatal(err)
	}
	defer eng.close()
	is, err := eng.inspect(t.Context(), c.ID)
	if err != nil {
		t.Fatal(err)
	}
	ns, pidfd, err := eng.openPID(is)
	if err != nil {
		t.Fatal(err)
	}
	ns.Close()
	pidfd.Close()
	is.pid = os.Getpid()
	if _, _, err := eng.openPID(is); err == nil || !strings.Contains(err.Error(), "not on this machine") {
		t.Errorf("process of another: %v", err)
	}
}
