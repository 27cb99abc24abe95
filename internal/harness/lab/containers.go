package lab

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"time"

	"github.com/google/nftables"
	"github.com/prometheus/procfs"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/internal/harness/durable"
	"github.com/sockwatch/sockwatch/internal/harness/node"
	"github.com/sockwatch/sockwatch/internal/target"
)

const (
	binaryInImage  = "sockwatch"
	dirInContainer = "node"
)

// containers is the backend that makes each node of a Docker container.
type containers struct {
	l *Lab
}

func (b *containers) network() string      { return "sw-" + b.l.Name }
func (b *containers) image() string        { return "sockwatch-lab/" + b.l.Name }
func (b *containers) dir(n *Node) string   { return filepath.Join(b.l.Dir, n.Role) }
func (b *containers) table(n *Node) string { return "sockwatch-" + b.l.Name + "-" + n.Role }

func (b *containers) target(n *Node) string { return "docker:" + n.Name }

func (b *containers) config(n *Node) (node.Config, error) { return node.ReadConfig(b.dir(n)) }

// with calls f with the engine.
func (b *containers) with(f func(e *engine) error) error {
	e, err := newEngine(b.l)
	if err != nil {
		return err
	}
	defer e.close()
	return f(e)
}

// on calls f with the engine and what it says of a node's container.
func (b *containers) on(ctx context.Context, n *Node, f func(e *engine, c ctr) error) error {
	return b.with(func(e *engine) error {
		c, err := e.inspect(ctx, n.Name, b.network())
		if err != nil {
			return err
		}
		return f(e, c)
	})
}

func (b *containers) check(ctx context.Context) error {
	if err := static(b.l.Binary); err != nil {
		return err
	}
	return b.with(func(e *engine) error { return e.ping(ctx) })
}

func (b *containers) make(ctx context.Context) error {
	return b.with(func(e *engine) error {
		if err := b.claim(ctx, e); err != nil {
			return err
		}
		if err := e.importImage(ctx, b.image(), b.l.Binary); err != nil {
			return fmt.Errorf("import image: %w", err)
		}
		if err := b.makeNetwork(ctx, e); err != nil {
			return fmt.Errorf("make network: %w", err)
		}
		files, err := nodeFiles(b.l)
		if err != nil {
			return err
		}
		for _, n := range b.l.nodes {
			if err := b.makeContainer(ctx, e, n, files[n.Role]); err != nil {
				return fmt.Errorf("make container %s: %w", n.Name, err)
			}
		}
		return b.startAll(ctx, e)
	})
}

// static refuses a binary that cannot run without the libraries of the host.
func static(binary string) error {
	f, err := elf.Open(binary)
	if err != nil {
		return fmt.Errorf("%w: the nodes cannot run %s: %w", ErrUnsupported, binary, err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return fmt.Errorf("%w: %s is linked dynamically and cannot run alone in a container; make build makes one that is not", ErrUnsupported, binary)
		}
	}
	return nil
}

// claim removes what a lab of the same name has left that is written down
// nowhere any more.
func (b *containers) claim(ctx context.Context, e *engine) error {
	owners, err := e.owners(ctx, b.l.Name)
	if err != nil {
		return err
	}
	for _, dir := range owners[b.l.Name] {
		if dir != b.l.marked && !left(markPrefix+dir) {
			return fmt.Errorf("%w: its containers are sockwatch lab %s", ErrExists, dir)
		}
		old := containers{&Lab{Name: b.l.Name, Dir: dir, marked: dir, nodes: b.l.nodes}}
		if err := old.remove(ctx); err != nil {
			return fmt.Errorf("remove what an earlier lab left: %w", err)
		}
	}
	return nil
}

// makeNetwork makes the lab's network in a range that is free, and gives the
// nodes their addresses.
func (b *containers) makeNetwork(ctx context.Context, e *engine) error {
	h := fnv.New32a()
	h.Write([]byte(b.l.Name))
	first := h.Sum32()
	for i := range uint32(512) {
		at := (first + i) % 512
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18 + byte(at>>8), byte(at), 0}), 24)
		free, err := e.createNetwork(ctx, b.network(), p)
		if err != nil {
			return err
		}
		if !free {
			continue
		}
		s, err := readState(b.l.Dir)
		if err != nil {
			return err
		}
		s.Network = p
		for _, n := range b.l.nodes {
			n.Addr = addr(p, n.Role)
		}
		return s.write(b.l.Dir)
	}
	return errors.New("no range in 198.18.0.0/15 is free")
}

func (b *containers) makeContainer(ctx context.Context, e *engine, n *Node, files map[string][]byte) error {
	// The files are the client's programs', too, which run on the host.
	if err := os.Mkdir(b.dir(n), 0o700); err != nil {
		return err
	}
	inside := make(map[string][]byte)
	for name, content := range files {
		if err := durable.WriteFile(filepath.Join(b.dir(n), name), content); err != nil {
			return err
		}
		inside[path.Join(dirInContainer, name)] = content
	}
	args := []string{"node", "run", "/" + dirInContainer}
	if err := e.createContainer(ctx, n.Name, b.image(), b.network(), n.Addr, macOf(n).String(), args); err != nil {
		return err
	}
	return e.copyFiles(ctx, n.Name, inside)
}

// startAll starts the containers, at the same time: each takes the engine most
// of a second.
func (b *containers) startAll(ctx context.Context, e *engine) error {
	errs := make(chan error)
	for _, n := range b.l.nodes {
		go func() {
			err := e.start(ctx, n.Name)
			if err != nil {
				err = fmt.Errorf("start container %s: %w", n.Name, err)
			}
			errs <- err
		}()
	}
	var first error
	for range b.l.nodes {
		if err := <-errs; first == nil {
			first = err
		}
	}
	return first
}

// settle is how long the engine may go on with what it was asked to make by a
// process that was killed meanwhile.
const settle = time.Second

func (b *containers) remove(ctx context.Context) error {
	err := b.removeNow(ctx)
	s, e := readState(b.l.Dir)
	if err != nil || e != nil || s.Phase != Making {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(settle):
		return b.removeNow(ctx)
	}
}

func (b *containers) removeNow(ctx context.Context) error {
	return b.with(func(e *engine) error {
		for _, n := range b.l.nodes {
			c, err := e.inspect(ctx, n.Name, b.network())
			if err != nil {
				return err
			}
			if err := b.killGuests(c); err != nil {
				return err
			}
			if err := b.inHost(func(host netns.NsHandle) error { return dropOnBridge(host, b.table(n), "", None) }); err != nil {
				return err
			}
		}
		return e.removeOurs(ctx)
	})
}

// leftContainers finds the labs of which something is left in the engine that
// are written down nowhere any more. Without an engine there is nothing to
// find.
func leftContainers() []Status {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	e, err := newEngine(&Lab{})
	if err != nil {
		return nil
	}
	defer e.close()
	owners, err := e.owners(ctx, "")
	if err != nil {
		return nil
	}
	var all []Status
	for name, dirs := range owners {
		for _, dir := range dirs {
			if left(markPrefix + dir) {
				all = append(all, Status{Name: name, Backend: Docker, Phase: Left, Dir: dir})
			}
		}
	}
	return all
}

func (b *containers) start(ctx context.Context, n *Node) error {
	return b.on(ctx, n, func(e *engine, c ctr) error {
		if !c.exists {
			return errors.New("its container is gone")
		}
		if !c.connected {
			if err := e.connect(ctx, b.network(), n.Name, n.Addr, macOf(n).String()); err != nil {
				return err
			}
		}
		if c.pid != 0 {
			return nil
		}
		return e.start(ctx, n.Name)
	})
}

func (b *containers) kill(ctx context.Context, n *Node) error {
	return b.on(ctx, n, func(e *engine, c ctr) error {
		if err := b.killGuests(c); err != nil || c.pid == 0 {
			return err
		}
		return e.kill(ctx, n.Name)
	})
}

// killGuests kills the processes that joined a container from outside: the
// engine does not know of them.
func (b *containers) killGuests(c ctr) error {
	if c.pid == 0 {
		return nil
	}
	own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", c.pid))
	if err != nil {
		return nil // it has ended meanwhile
	}
	g, err := cgroupOf(c.pid)
	if err != nil {
		return err
	}
	pids, err := g.procs()
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid)); err != nil || ns == own {
			continue
		}
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("kill process %d: %w", pid, err)
		}
	}
	return nil
}

// cgroupOf finds the cgroup that the engine freezes, by a process in it.
func cgroupOf(pid int) (cgroup, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return cgroup{}, err
	}
	groups, err := p.Cgroups()
	if err != nil {
		return cgroup{}, err
	}
	mounts, err := procfs.GetMounts()
	if err != nil {
		return cgroup{}, err
	}
	unified := ""
	for _, g := range groups {
		for _, m := range mounts {
			_, isFreezer := m.SuperOptions["freezer"]
			switch {
			case len(g.Controllers) == 1 && g.Controllers[0] == "freezer" && m.FSType == "cgroup" && isFreezer:
				return cgroup{filepath.Join(m.MountPoint, g.Path)}, nil
			case g.HierarchyID == 0 && m.FSType == "cgroup2":
				unified = filepath.Join(m.MountPoint, g.Path)
			}
		}
	}
	if unified == "" {
		return cgroup{}, fmt.Errorf("%w: the cgroup of process %d is not to be found", ErrUnsupported, pid)
	}
	return cgroup{unified}, nil
}

func (b *containers) freeze(ctx context.Context, n *Node, frozen bool) error {
	return b.on(ctx, n, func(e *engine, c ctr) error {
		switch {
		case c.paused == frozen:
			return nil
		case frozen:
			return e.pause(ctx, n.Name)
		}
		return e.unpause(ctx, n.Name)
	})
}

func (b *containers) plug(ctx context.Context, n *Node, o PlugOptions) error {
	return b.on(ctx, n, func(e *engine, c ctr) error {
		if o.NewMAC && !e.choosesMAC(ctx) {
			return fmt.Errorf("%w: this Docker engine makes the hardware address of the IP address", ErrUnsupported)
		}
		if c.connected {
			return nil
		}
		mac := macOf(n)
		if o.NewMAC {
			mac = newMAC()
		}
		return e.connect(ctx, b.network(), n.Name, n.Addr, mac.String())
	})
}

func (b *containers) unplug(ctx context.Context, n *Node) error {
	return b.on(ctx, n, func(e *engine, c ctr) error {
		if !c.connected {
			return nil
		}
		return e.disconnect(ctx, b.network(), n.Name)
	})
}

// open opens the namespace of a running container.
func (b *containers) open(ctx context.Context, n *Node) (*target.Namespace, error) {
	all, err := target.Resolve(ctx, []target.Spec{{Kind: target.Docker, Name: n.Name}})
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

// inside calls f with the namespace of a running container.
func (b *containers) inside(ctx context.Context, n *Node, f func(ns netns.NsHandle) error) error {
	ns, err := b.open(ctx, n)
	if err != nil {
		return err
	}
	defer ns.Close()
	return f(netns.NsHandle(ns.File().Fd()))
}

// inHost calls f with the namespace of this process, where the bridges of the
// engine are.
func (b *containers) inHost(f func(host netns.NsHandle) error) error {
	return onThread(func() error {
		host, err := netns.Get()
		if err != nil {
			return err
		}
		defer host.Close()
		return f(host)
	})
}

// port finds the engine's end of a container's interface; empty if there is
// none.
func (b *containers) port(ns netns.NsHandle) (string, error) {
	h, err := netlinkAt(ns)
	if err != nil {
		return "", err
	}
	defer h.Close()
	links, err := h.LinkList()
	if err != nil {
		return "", fmt.Errorf("list interfaces: %w", err)
	}
	for _, l := range links {
		if l.Type() != "veth" {
			continue
		}
		peer, err := netlink.LinkByIndex(l.Attrs().ParentIndex)
		if err != nil || peer.Type() != "veth" || peer.Attrs().ParentIndex != l.Attrs().Index {
			return "", fmt.Errorf("%w: the bridges of the Docker engine are in another network namespace", ErrUnsupported)
		}
		return peer.Attrs().Name, nil
	}
	return "", nil
}

func (b *containers) setPort(ctx context.Context, n *Node, up bool) error {
	return b.inside(ctx, n, func(ns netns.NsHandle) error {
		port, err := b.port(ns)
		if err != nil {
			return err
		}
		return b.inHost(func(host netns.NsHandle) error { return setPort(host, port, up) })
	})
}

func (b *containers) dropOnBridge(ctx context.Context, n *Node, d Direction) error {
	if d == None {
		return b.inHost(func(host netns.NsHandle) error { return dropOnBridge(host, b.table(n), "", None) })
	}
	return b.inside(ctx, n, func(ns netns.NsHandle) error {
		port, err := b.port(ns)
		if err != nil {
			return err
		}
		if port == "" {
			return errors.New("it is not plugged in")
		}
		return b.inHost(func(host netns.NsHandle) error { return dropOnBridge(host, b.table(n), port, d) })
	})
}

func (b *containers) dropOutput(ctx context.Context, n *Node, drop bool) error {
	err := b.inside(ctx, n, func(ns netns.NsHandle) error { return dropOutput(ns, drop) })
	if !drop && errors.Is(err, target.ErrGone) {
		return nil // it went with the namespace
	}
	return err
}

func (b *containers) condition(ctx context.Context, n *Node) (Condition, error) {
	var c Condition
	err := b.inHost(func(host netns.NsHandle) error {
		d, err := droppedBy(host, nftables.TableFamilyBridge, b.table(n))
		c.Dropped, c.DroppedPackets = d.direction, d.packets
		return err
	})
	if err != nil {
		return c, err
	}
	var now ctr
	err = b.on(ctx, n, func(_ *engine, found ctr) error {
		now = found
		return nil
	})
	if err != nil || now.pid == 0 {
		return c, err
	}
	if c.Frozen = now.paused; c.Frozen {
		g, err := cgroupOf(now.pid)
		if err != nil {
			return c, err
		}
		if c.Frozen, err = g.frozen(); err != nil {
			return c, err
		}
	}
	err = b.inside(ctx, n, func(ns netns.NsHandle) error {
		if err := readInside(ns, n, &c); err != nil {
			return err
		}
		port, err := b.port(ns)
		if err != nil || port == "" {
			return err
		}
		return b.inHost(func(host netns.NsHandle) error { return readPort(host, port, &c) })
	})
	if errors.Is(err, target.ErrGone) {
		err = nil // it has just ended
	}
	return c, err
}

func (b *containers) log(ctx context.Context, n *Node) (content []byte, err error) {
	err = b.with(func(e *engine) error {
		content, err = e.logs(ctx, n.Name)
		return err
	})
	return content, err
}

func (b *containers) running(ctx context.Context, n *Node) (running bool, err error) {
	err = b.on(ctx, n, func(_ *engine, c ctr) error {
		running = c.pid != 0
		return nil
	})
	return running, err
}

// enter makes this thread, and the process's cgroup, the container's.
func (b *containers) enter(ctx context.Context, n *Node) error {
	ns, err := b.open(ctx, n)
	if err != nil {
		return err
	}
	defer ns.Close()
	g, err := cgroupOf(ns.PID)
	if err != nil {
		return err
	}
	if frozen, err := g.frozen(); err != nil || frozen {
		return errors.Join(err, errFrozen)
	}
	if err := g.join(); err != nil {
		return err
	}
	return netns.Set(netns.NsHandle(ns.File().Fd()))
}
