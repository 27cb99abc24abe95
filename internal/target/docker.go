package target

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/client"
)

// Everything that needs the Docker client is in this file: the module has a
// successor, and this is what there is to port.

// inspectTimeout bounds one question about a container, which the engine
// answers only after a start in progress: seconds on a loaded machine.
const inspectTimeout = 20 * time.Second

// engine is a Docker engine, where DOCKER_HOST or the default says.
type engine struct {
	cli *client.Client
}

// errNoContainer is returned for a reference that the engine does not know.
var errNoContainer = errors.New("no such container")

// ctr is what the engine says of a container.
type ctr struct {
	id, name string
	status   string // created, running, paused, exited, ...
	pid      int    // 0 unless running
	started  int64  // the engine's clock, nanoseconds
	sandbox  string // file of its namespace, as the engine names it
	paused   bool
	networks map[string]string // id -> name
}

func (c ctr) running() bool { return c.pid > 0 }

// engineEvent is one event of the engine's stream that matters here.
type engineEvent struct {
	action    string // start, die, pause, unpause, rename, destroy, connect, disconnect
	id        string // container
	name      string // container; its new name for rename
	networkID string
	network   string
	exitCode  string
	nano      int64  // the engine's clock
	mono      uint64 // CLOCK_MONOTONIC on receipt
}

func newEngine() (*engine, error) {
	cli, err := client.NewClientWithOpts(client.FromEnv, client.WithAPIVersionNegotiation())
	if err != nil {
		return nil, fmt.Errorf("docker engine at DOCKER_HOST=%s: %w", os.Getenv("DOCKER_HOST"), err)
	}
	return &engine{cli}, nil
}

func (e *engine) close() { e.cli.Close() }

// fail says in one line which engine did not answer and why.
func (e *engine) fail(err error) error {
	host := e.cli.DaemonHost()
	why := "set by DOCKER_HOST"
	if os.Getenv("DOCKER_HOST") == "" {
		why = "the default; DOCKER_HOST names another"
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("docker engine at %s (%s) did not answer in time", host, why)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("docker engine at %s (%s) may not be asked by this user: %w", host, why, fs.ErrPermission)
	case client.IsErrConnectionFailed(err):
		return fmt.Errorf("docker engine at %s (%s) is not running", host, why)
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	return fmt.Errorf("docker engine at %s (%s): %w", host, why, err)
}

// list gives the containers by name, running or not.
func (e *engine) list(ctx context.Context) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second) // waits for nothing
	defer cancel()
	all, err := e.cli.ContainerList(ctx, container.ListOptions{All: true})
	if err != nil {
		return nil, e.fail(err)
	}
	ids := make(map[string]string, len(all))
	for _, c := range all {
		for _, n := range c.Names {
			// Links give further names, of the form /other/alias.
			if n = strings.TrimPrefix(n, "/"); !strings.Contains(n, "/") {
				ids[n] = c.ID
			}
		}
	}
	return ids, nil
}

// inspect asks for a container by name or id, as the engine resolves it.
func (e *engine) inspect(ctx context.Context, ref string) (ctr, error) {
	ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	r, err := e.cli.ContainerInspect(ctx, ref)
	if errdefs.IsNotFound(err) {
		return ctr{}, errNoContainer
	}
	if err != nil {
		return ctr{}, e.fail(err)
	}
	if r.ContainerJSONBase == nil || r.State == nil || r.NetworkSettings == nil {
		return ctr{}, fmt.Errorf("docker engine at %s told nothing of the state of container %s", e.cli.DaemonHost(), ref)
	}
	c := ctr{
		id: r.ID, name: strings.TrimPrefix(r.Name, "/"), status: r.State.Status,
		sandbox: r.NetworkSettings.SandboxKey, paused: r.State.Paused,
		networks: make(map[string]string),
	}
	if at, err := time.Parse(time.RFC3339Nano, r.State.StartedAt); err == nil {
		c.started = at.UnixNano()
	}
	if r.State.Running {
		c.pid = r.State.Pid
	}
	for name, n := range r.NetworkSettings.Networks {
		if n != nil && n.NetworkID != "" {
			c.networks[n.NetworkID] = name
		}
	}
	return c, nil
}

// errNotRunning is returned for a container without a process.
type errNotRunning struct{ c ctr }

func (e errNotRunning) Error() string {
	return fmt.Sprintf("container %s is %s, not running", e.c.name, e.c.status)
}

// open finds container ref and opens its namespace. It returns what the
// engine said after the open, and the pidfd of the container's process.
func (e *engine) open(ctx context.Context, ref string) (ctr, *Namespace, *os.File, error) {
	c, err := e.inspect(ctx, ref)
	for stale := 0; err == nil && c.running(); {
		ns, pidfd, oerr := e.openPID(c)
		if oerr != nil && !errors.Is(oerr, errExited) {
			return ctr{}, nil, nil, oerr
		}
		// A pid may have been given to another process between the answer and
		// the open. The engine tells of a restart; the pidfd proves that the
		// process lived throughout.
		before := c
		c, err = e.inspect(ctx, c.id)
		same := err == nil && c.pid == before.pid && c.started == before.started
		if oerr == nil {
			if same && !exited(pidfd) {
				ns.Container = c.id
				return c, ns, pidfd, nil
			}
			ns.Close()
			pidfd.Close()
		}
		if !same {
			continue
		}
		// The engine has yet to learn of the end of a process that is gone, or
		// means one that was never here.
		if stale++; stale > 20 {
			return ctr{}, nil, nil, e.elsewhere(c)
		}
		select {
		case <-ctx.Done():
			return ctr{}, nil, nil, e.fail(ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
		c, err = e.inspect(ctx, c.id)
	}
	if err != nil {
		return ctr{}, nil, nil, err
	}
	return ctr{}, nil, nil, errNotRunning{c}
}

func (e *engine) elsewhere(c ctr) error {
	return fmt.Errorf("container %s of the docker engine at %s is not on this machine, or hidden by a pid namespace: its process %d is not here", c.name, e.cli.DaemonHost(), c.pid)
}

// openPID opens the namespace of c through its process.
func (e *engine) openPID(c ctr) (*Namespace, *os.File, error) {
	ns, pidfd, err := openPID(c.pid)
	if err != nil {
		return nil, nil, err
	}
	id, known := fileID(c.sandbox)
	if known && id == ns.id() {
		return ns, pidfd, nil
	}
	// Not the engine's sandbox: the container shares another's namespace, its
	// process moved to another, or the process is not the container's at all
	// because the engine runs on another machine.
	group, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", c.pid))
	if !strings.Contains(string(group), c.id) {
		ns.Close()
		pidfd.Close()
		return nil, nil, e.elsewhere(c)
	}
	if !known {
		return ns, pidfd, nil
	}
	ns.Close()
	if ns, err = openNamespace(c.sandbox); err != nil {
		pidfd.Close()
		return nil, nil, err
	}
	ns.PID = c.pid
	return ns, pidfd, nil
}

// events subscribes to the engine. The stream begins with what happened after
// since (the engine's clock, nanoseconds) and ends with one error.
func (e *engine) events(ctx context.Context, since int64) (<-chan engineEvent, <-chan error) {
	// The clocks as the stream began: what is older is stamped by difference.
	mono, real := monoNow(), time.Now().UnixNano()
	args := filters.NewArgs(filters.Arg("type", string(events.ContainerEventType)), filters.Arg("type", string(events.NetworkEventType)))
	for _, a := range []events.Action{
		events.ActionStart, events.ActionDie, events.ActionPause, events.ActionUnPause, events.ActionRename,
		events.ActionDestroy, events.ActionConnect, events.ActionDisconnect,
	} {
		args.Add("event", string(a))
	}
	in, errs := e.cli.Events(ctx, events.ListOptions{
		Since:   fmt.Sprintf("%d.%09d", since/1e9, since%1e9),
		Filters: args,
	})
	out, failed := make(chan engineEvent, 256), make(chan error, 1)
	go func() {
		for {
			select {
			case m := <-in:
				ev := convert(m)
				ev.mono = monoNow()
				if m.TimeNano < real && uint64(real-m.TimeNano) < mono {
					ev.mono = mono - uint64(real-m.TimeNano)
				}
				select {
				case out <- ev:
				case <-ctx.Done():
					failed <- ctx.Err()
					return
				}
			case err := <-errs:
				if err == nil {
					err = errors.New("the event stream ended")
				}
				failed <- e.fail(err)
				return
			}
		}
	}()
	return out, failed
}

func convert(m events.Message) engineEvent {
	a := m.Actor.Attributes
	ev := engineEvent{action: string(m.Action), nano: m.TimeNano}
	if m.Type == events.NetworkEventType {
		ev.id, ev.network, ev.networkID = a["container"], a["name"], m.Actor.ID
		return ev
	}
	ev.id, ev.name, ev.exitCode = m.Actor.ID, strings.TrimPrefix(a["name"], "/"), a["exitCode"]
	return ev
}
