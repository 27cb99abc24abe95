package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/internal/harness/durable"
	"github.com/sockwatch/sockwatch/internal/harness/node"
)

// netnsNetwork is the network of every lab of namespaces: no other lab and
// nothing of the host can see it.
var netnsNetwork = netip.MustParsePrefix("198.18.0.0/24")

// logFile is what the programs of a node write, in the node's directory.
const logFile = "log.jsonl"

// namespaces is the backend that makes each node of a network namespace and a
// cgroup.
type namespaces struct {
	l       *Lab
	freezer string // the directory of the lab's cgroups
}

func (b *namespaces) mark() string { return markPrefix + b.l.marked }

// switchName is of the namespace with the bridge. It is the first thing that
// is made of a lab and the last to go: who has it has the lab's name.
func (b *namespaces) switchName() string { return "sw-" + b.l.Name + "-switch" }

func (b *namespaces) dir(n *Node) string    { return filepath.Join(b.l.Dir, n.Role) }
func (b *namespaces) cgroup(n *Node) cgroup { return cgroup{filepath.Join(b.freezer, n.Role)} }

func (b *namespaces) target(n *Node) string { return "netns:" + n.Name }

func (b *namespaces) check(context.Context) error { return nil }

func (b *namespaces) make(ctx context.Context) error {
	if err := b.claim(ctx); err != nil {
		return err
	}
	files, err := nodeFiles(b.l)
	if err != nil {
		return err
	}
	for _, n := range b.l.nodes {
		if err := os.Mkdir(b.dir(n), 0o700); err != nil {
			return err
		}
		for name, content := range files[n.Role] {
			if err := durable.WriteFile(filepath.Join(b.dir(n), name), content); err != nil {
				return err
			}
		}
	}
	if err := b.inSwitch(addBridge); err != nil {
		return err
	}
	for _, n := range b.l.nodes {
		if err := b.start(ctx, n); err != nil {
			return fmt.Errorf("start node %s: %w", n.Role, err)
		}
	}
	return nil
}

// claim takes the lab's name on this machine, and removes what a lab of the
// same name has left that is written down nowhere any more.
func (b *namespaces) claim(ctx context.Context) error {
	err := makeNamespace(b.switchName(), b.mark())
	if !errors.Is(err, os.ErrExist) {
		return err
	}
	mark, err := markOf(b.switchName())
	if err != nil {
		return err
	}
	// One with this lab's own mark is left, too: its directory is new.
	if mark != "" && mark != b.mark() && !left(mark) {
		return fmt.Errorf("%w: namespace %s is %s", ErrExists, b.switchName(), mark)
	}
	if err := b.sweep(ctx, mark); err != nil {
		return fmt.Errorf("remove what an earlier lab left: %w", err)
	}
	return makeNamespace(b.switchName(), b.mark())
}

// left says whether a namespace's mark is of a lab that is written down
// nowhere any more.
func left(mark string) bool {
	dir, ok := strings.CutPrefix(mark, markPrefix)
	if !ok {
		return false
	}
	_, err := os.Stat(dir)
	return errors.Is(err, os.ErrNotExist)
}

// leftNamespaces finds the labs of which namespaces are left that are written
// down nowhere any more.
func leftNamespaces() ([]Status, error) {
	entries, err := os.ReadDir(netnsDir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	var all []Status
	for _, e := range entries {
		name, isSwitch := strings.CutSuffix(e.Name(), "-switch")
		name, isLab := strings.CutPrefix(name, "sw-")
		if !isSwitch || !isLab || checkName(name) != nil {
			continue
		}
		mark, err := markOf(e.Name())
		if err != nil {
			return nil, err
		}
		if left(mark) {
			all = append(all, Status{Name: name, Backend: Netns, Phase: Left, Dir: strings.TrimPrefix(mark, markPrefix)})
		}
	}
	return all, nil
}

func (b *namespaces) remove(ctx context.Context) error {
	if b.freezer == "" {
		return nil // its maker did not get as far as to write down what it would make
	}
	return b.sweep(ctx, b.mark())
}

// sweep removes everything that has the lab's names and the mark; the switch
// last.
func (b *namespaces) sweep(ctx context.Context, mark string) error {
	owner, err := markOf(b.switchName())
	if err != nil {
		return err
	}
	if owner != "" && owner != mark {
		return nil // the name is another's, so nothing was made under it
	}
	for _, n := range b.l.nodes {
		if err := b.cgroup(n).remove(ctx); err != nil {
			return err
		}
		if err := b.removeNamespace(n.Name, mark); err != nil {
			return err
		}
	}
	for _, dir := range []string{b.freezer, filepath.Dir(b.freezer)} {
		// The parent stays while there are other labs.
		if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENOTEMPTY) {
			return fmt.Errorf("remove cgroup: %w", err)
		}
	}
	return b.removeNamespace(b.switchName(), mark)
}

// removeNamespace removes a namespace, unless it is another's.
func (b *namespaces) removeNamespace(name, mark string) error {
	found, err := markOf(name)
	if err != nil || found != "" && found != mark {
		return err
	}
	return removeNamespace(name)
}

// inSwitch calls f with the switch's namespace.
func (b *namespaces) inSwitch(f func(sw netns.NsHandle) error) error {
	sw, err := openNamespace(b.switchName())
	if err != nil {
		return err
	}
	defer sw.Close()
	return f(sw)
}

// inBoth calls f with the namespaces of a node and of the switch.
func (b *namespaces) inBoth(n *Node, f func(ns, sw netns.NsHandle) error) error {
	return b.inSwitch(func(sw netns.NsHandle) error {
		ns, err := openNamespace(n.Name)
		if err != nil {
			return err
		}
		defer ns.Close()
		return f(ns, sw)
	})
}

func (b *namespaces) start(ctx context.Context, n *Node) error {
	mark, err := markOf(n.Name)
	if err != nil {
		return err
	}
	if mark != "" && mark != b.mark() {
		return fmt.Errorf("%w: namespace %s is %s", ErrExists, n.Name, mark)
	}
	c, err := b.condition(ctx, n)
	if err != nil || c.Alive {
		return err
	}
	if err := b.kill(ctx, n); err != nil { // the rest of it
		return err
	}
	if err := b.cgroup(n).make(); err != nil {
		return err
	}
	if err := makeNamespace(n.Name, b.mark()); err != nil {
		return err
	}
	if err := b.plug(ctx, n, PlugOptions{}); err != nil {
		return err
	}
	return b.run(ctx, n)
}

// run starts the node's first process, which belongs to nobody, and waits until
// it is in the node.
func (b *namespaces) run(ctx context.Context, n *Node) error {
	out, err := os.OpenFile(filepath.Join(b.dir(n), logFile), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := exec.Command(b.l.Binary, n.execArgs(b.l.Binary, []string{"node", "run", b.dir(n)})...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start its programs: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		cmd.Wait() //nolint:errcheck // its log says how it ended
	}()
	err = await(ctx, func() (bool, error) {
		select {
		case <-ended:
			return true, nil
		default:
		}
		return b.running(ctx, n)
	})
	if err != nil {
		// It may not be where it would be found.
		if e := cmd.Process.Kill(); e != nil && !errors.Is(e, os.ErrProcessDone) {
			return errors.Join(err, e)
		}
		<-ended
	}
	return err
}

func (b *namespaces) kill(ctx context.Context, n *Node) error {
	if err := b.cgroup(n).kill(ctx); err != nil {
		return err
	}
	// The interface goes at once; the namespace may live on for who watches it.
	err := b.inSwitch(func(sw netns.NsHandle) error { return delPort(sw, n.Role) })
	if err != nil {
		return err
	}
	return b.removeNamespace(n.Name, b.mark())
}

func (b *namespaces) freeze(ctx context.Context, n *Node, frozen bool) error {
	g := b.cgroup(n)
	if !g.exists() {
		if !frozen {
			return nil
		}
		return fmt.Errorf("it has no processes")
	}
	return g.freeze(ctx, frozen)
}

func (b *namespaces) plug(ctx context.Context, n *Node, o PlugOptions) error {
	return b.inBoth(n, func(ns, sw netns.NsHandle) error {
		up, err := plugged(ns, sw, n.Role)
		if err != nil || up {
			return err
		}
		// What an earlier attempt left.
		if err := delPort(sw, n.Role); err != nil {
			return err
		}
		mac := macOf(n)
		if o.NewMAC {
			mac = newMAC()
		}
		return addVeth(ctx, n, ns, sw, mac)
	})
}

func (b *namespaces) unplug(_ context.Context, n *Node) error {
	return b.inSwitch(func(sw netns.NsHandle) error { return delPort(sw, n.Role) })
}

func (b *namespaces) setPort(_ context.Context, n *Node, up bool) error {
	return b.inSwitch(func(sw netns.NsHandle) error { return setPort(sw, n.Role, up) })
}

func (b *namespaces) dropOnBridge(_ context.Context, n *Node, d Direction) error {
	return b.inSwitch(func(sw netns.NsHandle) error { return dropOnBridge(sw, bridgeTable(n.Role), n.Role, d) })
}

func (b *namespaces) dropOutput(_ context.Context, n *Node, drop bool) error {
	ns, err := openNamespace(n.Name)
	if !drop && errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer ns.Close()
	return dropOutput(ns, drop)
}

func (b *namespaces) condition(_ context.Context, n *Node) (Condition, error) {
	var c Condition
	err := b.inSwitch(func(sw netns.NsHandle) error {
		d, err := droppedBy(sw, nftables.TableFamilyBridge, bridgeTable(n.Role))
		if err != nil {
			return err
		}
		c.Dropped, c.DroppedPackets = d.direction, d.packets
		return readPort(sw, n.Role, &c)
	})
	if err != nil {
		return c, err
	}
	if g := b.cgroup(n); g.exists() {
		if c.Frozen, err = g.frozen(); err != nil {
			return c, err
		}
	}
	ns, err := openNamespace(n.Name)
	if errors.Is(err, os.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return c, err
	}
	defer ns.Close()
	return c, readInside(ns, n, &c)
}

func (b *namespaces) log(_ context.Context, n *Node) ([]byte, error) {
	content, err := os.ReadFile(filepath.Join(b.dir(n), logFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return content, err
}

func (b *namespaces) running(_ context.Context, n *Node) (bool, error) {
	pids, err := b.cgroup(n).procs()
	return len(pids) > 0, err
}

// enter makes this thread, and the process's cgroup, the node's.
func (b *namespaces) enter(_ context.Context, n *Node) error {
	ns, err := openNamespace(n.Name)
	if err != nil {
		return err
	}
	defer ns.Close()
	g := b.cgroup(n)
	if frozen, err := g.frozen(); err != nil || frozen {
		return errors.Join(err, errFrozen)
	}
	if err := g.join(); err != nil {
		return err
	}
	return netns.Set(ns)
}

// config is what the node's programs know.
func (b *namespaces) config(n *Node) (node.Config, error) { return node.ReadConfig(b.dir(n)) }
