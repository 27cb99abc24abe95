package testlab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// runNetns is where named namespaces live, as ip-netns(8) has it.
const runNetns = "/run/netns"

var (
	labs      atomic.Uint32
	sweepOnce sync.Once
	labName   = regexp.MustCompile(`^sw-([0-9]+)-[0-9]+-[a-z0-9]+$`)
)

// The main thread cannot be discarded, and /proc/self/ns is its: tests must not
// run on it.
func init() { runtime.LockOSThread() }

// Privileged ends the test unless it may create namespaces and load programs.
// It fails where CI is set, so that a misconfigured runner cannot pass by
// skipping, and skips elsewhere.
func Privileged(t testing.TB) {
	t.Helper()

	missing := missingCapabilities()
	if missing == "" {
		return
	}
	if os.Getenv("CI") != "" {
		t.Fatalf("missing %s: run the tests as root", missing)
	}
	t.Skipf("missing %s: run the tests as root", missing)
}

func missingCapabilities() string {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return "capabilities (" + err.Error() + ")"
	}
	var missing []string
	for _, c := range []struct {
		bit  uint
		name string
	}{
		{unix.CAP_NET_ADMIN, "CAP_NET_ADMIN"},
		{unix.CAP_NET_RAW, "CAP_NET_RAW"},
		{unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN"},
	} {
		if data[c.bit/32].Effective&(1<<(c.bit%32)) == 0 {
			missing = append(missing, c.name)
		}
	}
	return strings.Join(missing, ", ")
}

// Node is one named network namespace, with lo up.
type Node struct {
	// Name as found in /run/netns.
	Name string
	// Link tells how the node is connected; zero for nodes of [NewNodes].
	Link Link

	t       testing.TB
	ns      netns.NsHandle
	mu      sync.Mutex
	deleted bool
	wire    *wire
}

// newNode creates the namespace sw-<pid>-<lab>-<suffix>.
func newNode(t testing.TB, lab uint32, suffix string) *Node {
	t.Helper()

	n := &Node{t: t, ns: netns.None()}
	name := fmt.Sprintf("sw-%d-%d-%s", os.Getpid(), lab, suffix)
	err := onThread(netns.None(), func() error {
		ns, err := netns.NewNamed(name)
		if err != nil {
			return err
		}
		n.ns = ns
		return nil
	})
	if err != nil {
		t.Fatalf("create network namespace %s: %v", name, err)
	}
	n.Name = name
	t.Cleanup(func() {
		n.Delete()
		n.ns.Close()
	})

	if err := n.setup(); err != nil {
		t.Fatalf("set up network namespace %s: %v", name, err)
	}
	return n
}

func (n *Node) setup() error {
	h, err := n.netlink()
	if err != nil {
		return err
	}
	defer h.Close()

	lo, err := h.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	if err := h.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	return nil
}

// reserve returns a number no other lab of this process has, whose names are
// free.
func reserve(t testing.TB) uint32 {
	t.Helper()
	Privileged(t)
	sweepOnce.Do(sweep)

	for {
		lab := labs.Add(1)
		taken, err := filepath.Glob(fmt.Sprintf("%s/sw-%d-%d-*", runNetns, os.Getpid(), lab))
		if err != nil {
			t.Fatalf("list %s: %v", runNetns, err)
		}
		if len(taken) == 0 {
			return lab
		}
	}
}

// sweep removes what test processes that were killed left behind.
func sweep() {
	entries, err := os.ReadDir(runNetns)
	if err != nil {
		return
	}
	for _, e := range entries {
		m := labName.FindStringSubmatch(e.Name())
		if m == nil {
			continue
		}
		if _, err := os.Stat("/proc/" + m[1]); errors.Is(err, os.ErrNotExist) {
			_ = netns.DeleteNamed(e.Name())
		}
	}
}

// NewNodes returns count namespaces that are connected to nothing.
func NewNodes(t testing.TB, count int) []*Node {
	t.Helper()

	lab := reserve(t)
	nodes := make([]*Node, count)
	for i := range nodes {
		nodes[i] = newNode(t, lab, "n"+strconv.Itoa(i))
	}
	return nodes
}

// Path returns the file that names the namespace.
func (n *Node) Path() string { return filepath.Join(runNetns, n.Name) }

// Inode returns the namespace's inode number, as ls -i /run/netns shows it.
func (n *Node) Inode() uint64 {
	n.t.Helper()

	var st unix.Stat_t
	if err := unix.Fstat(int(n.ns), &st); err != nil {
		n.t.Fatalf("stat network namespace %s: %v", n.Name, err)
	}
	return st.Ino
}

// Delete removes the name, as ip netns delete does. The namespace goes with
// the last socket, process and descriptor that uses it: this one's is closed
// when the test ends, or by [Node.Release]. Deleting twice does nothing.
func (n *Node) Delete() {
	n.t.Helper()

	n.mu.Lock()
	defer n.mu.Unlock()
	if n.deleted {
		return
	}
	n.deleted = true
	if err := netns.DeleteNamed(n.Name); err != nil {
		n.t.Errorf("delete network namespace %s: %v", n.Name, err)
	}
}

// Release deletes the name and closes this test's own descriptor, so that the
// namespace ends as soon as its last socket and process do. The node cannot be
// used after.
func (n *Node) Release() {
	n.t.Helper()

	n.Delete()
	if w := n.takeWire(); w != nil {
		w.close()
	}
	n.ns.Close()
}

// Do runs fn on a thread inside the namespace and returns its error. Sockets
// and processes that fn creates stay in the namespace. fn must not start
// goroutines that create sockets: they run on other threads.
func (n *Node) Do(fn func() error) error {
	if !n.ns.IsOpen() {
		return fmt.Errorf("enter network namespace %s: it was released", n.Name)
	}
	return onThread(n.ns, fn)
}

// onThread runs fn on a locked thread, inside ns if that is open. The thread
// returns to its namespace afterwards; one that cannot ends, because a
// goroutine that exits while locked takes its thread along.
func onThread(ns netns.NsHandle, fn func() error) error {
	var (
		err      error
		returned bool
		done     = make(chan struct{})
	)
	go func() {
		defer close(done)

		runtime.LockOSThread()
		home, e := netns.Get()
		if e != nil {
			err, returned = fmt.Errorf("open this thread's network namespace: %w", e), true
			runtime.UnlockOSThread()
			return
		}
		defer func() {
			if netns.Set(home) == nil {
				runtime.UnlockOSThread()
			}
			home.Close()
		}()

		if ns.IsOpen() {
			if e := netns.Set(ns); e != nil {
				err, returned = fmt.Errorf("enter network namespace: %w", e), true
				return
			}
		}
		err = fn()
		returned = true
	}()
	<-done
	if !returned {
		// fn called FailNow or SkipNow, which end only their own goroutine.
		runtime.Goexit()
	}
	return err
}

// Sysctl sets a value of the namespace, such as "net.ipv4.tcp_retries2".
func (n *Node) Sysctl(name, value string) {
	n.t.Helper()

	err := n.Do(func() error { return os.WriteFile(sysctlPath(name), []byte(value), 0) })
	if err != nil {
		n.t.Fatalf("set %s in %s: %v", name, n.Name, err)
	}
}

// SysctlValue returns a value of the namespace.
func (n *Node) SysctlValue(name string) string {
	n.t.Helper()

	var value []byte
	err := n.Do(func() (err error) {
		value, err = os.ReadFile(sysctlPath(name))
		return err
	})
	if err != nil {
		n.t.Fatalf("read %s in %s: %v", name, n.Name, err)
	}
	return strings.TrimSpace(string(value))
}

func sysctlPath(name string) string {
	return "/proc/sys/" + strings.ReplaceAll(name, ".", "/")
}

// Cmd is an [exec.Cmd] whose process starts inside a namespace.
type Cmd struct {
	*exec.Cmd
	node *Node
}

// Command prepares a process that runs in the namespace. One that still runs
// when the test ends is killed.
func (n *Node) Command(name string, args ...string) *Cmd {
	return &Cmd{exec.Command(name, args...), n}
}

// Start is [exec.Cmd.Start] inside the namespace.
func (c *Cmd) Start() error {
	if err := c.node.Do(c.Cmd.Start); err != nil {
		return err
	}
	c.node.t.Cleanup(func() {
		if c.ProcessState == nil {
			_ = c.Process.Kill()
			_ = c.Wait()
		}
	})
	return nil
}

// Run is [exec.Cmd.Run] inside the namespace.
func (c *Cmd) Run() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}

// Output is [exec.Cmd.Output] inside the namespace.
func (c *Cmd) Output() (out []byte, err error) {
	err = c.node.Do(func() error {
		out, err = c.Cmd.Output()
		return err
	})
	return out, err
}

// CombinedOutput is [exec.Cmd.CombinedOutput] inside the namespace.
func (c *Cmd) CombinedOutput() (out []byte, err error) {
	err = c.node.Do(func() error {
		out, err = c.Cmd.CombinedOutput()
		return err
	})
	return out, err
}
