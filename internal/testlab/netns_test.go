package testlab

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// homeInode is the namespace the tests were started in.
var homeInode uint64

func TestMain(m *testing.M) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/net", &st); err != nil {
		panic(err)
	}
	homeInode = st.Ino
	code := m.Run()
	left, err := filepath.Glob(fmt.Sprintf("%s/sw-%d-*", runNetns, os.Getpid()))
	if err != nil || len(left) > 0 {
		fmt.Fprintf(os.Stderr, "namespaces left behind: %v %v\n", left, err)
		code = 1
	}
	os.Exit(code)
}

// exchange sends data both ways.
func exchange(t *testing.T, a, b net.Conn) {
	t.Helper()

	for _, c := range [][2]net.Conn{{a, b}, {b, a}} {
		if _, err := c[0].Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 5)
		if err := c[1].SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c[1], buf); err != nil {
			t.Fatal(err)
		}
		if string(buf) != "hello" {
			t.Fatalf("got %q", buf)
		}
	}
}

func TestNewJoinsBothFamilies(t *testing.T) {
	p := New(t)
	for _, n := range []*Node{p.A, p.B} {
		if _, err := os.Stat(n.Path()); err != nil {
			t.Error(err)
		}
	}
	for _, e := range [][2]*Node{{p.A, p.B}, {p.B, p.A}} {
		from, to := e[0], e[1]
		for _, addr := range []string{to.Addr(0).String(), to.AddrV6(0).String()} {
			client, server := from.Connect(to, to.Listen("tcp", addr))
			exchange(t, client, server)
		}
		// Loopback inside one namespace.
		client, server := from.Connect(from, from.Listen("tcp", "127.0.0.1:0"))
		exchange(t, client, server)
		client, server = from.Connect(from, from.Listen("tcp", "[::1]:0"))
		exchange(t, client, server)
	}
}

func TestNewLeavesNothing(t *testing.T) {
	var names []string
	t.Run("lab", func(t *testing.T) {
		p := New(t)
		names = append(names, p.A.Path(), p.B.Path())
		p.A.Connect(p.B, p.B.Listen("tcp", ":0"))
	})
	for _, name := range names {
		if _, err := os.Stat(name); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there (%v)", name, err)
		}
	}
}

func TestNewManyAtOnce(t *testing.T) {
	var mu sync.Mutex
	seen := make(map[string]bool)
	for range 8 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			p := New(t)
			client, server := p.A.Connect(p.B, p.B.Listen("tcp", ":7000"))
			exchange(t, client, server)

			mu.Lock()
			defer mu.Unlock()
			for _, n := range []*Node{p.A, p.B} {
				if seen[n.Name] {
					t.Errorf("%s was given out twice", n.Name)
				}
				seen[n.Name] = true
			}
		})
	}
}

func TestNewTwinUsesSameAddresses(t *testing.T) {
	p := New(t)
	twin := NewTwin(t, p)
	if p.A.Link.Addr4 != twin.A.Link.Addr4 || p.B.Link.Addr6 != twin.B.Link.Addr6 {
		t.Fatalf("addresses differ: %+v, %+v", p.A.Link, twin.A.Link)
	}
	for i, pair := range []*Pair{p, twin} {
		client, server := pair.A.Connect(pair.B, pair.B.Listen("tcp", ":7000"))
		exchange(t, client, server)
		if _, err := client.Write([]byte{byte(i)}); err != nil {
			t.Fatal(err)
		}
		var got [1]byte
		if _, err := io.ReadFull(server, got[:]); err != nil || got[0] != byte(i) {
			t.Errorf("pair %d received %d, %v", i, got[0], err)
		}
	}
}

func TestNewNodes500(t *testing.T) {
	nodes := NewNodes(t, 500)
	inodes := make(map[uint64]bool)
	for _, n := range nodes {
		inodes[n.Inode()] = true
	}
	if len(inodes) != 500 {
		t.Fatalf("%d different namespaces, want 500", len(inodes))
	}
	for _, n := range []*Node{nodes[0], nodes[499]} {
		client, server := n.Connect(n, n.Listen("tcp", "127.0.0.1:7000"))
		exchange(t, client, server)
	}
}

func TestNewBridge(t *testing.T) {
	b := NewBridge(t, 3)
	for i, from := range b.Nodes {
		to := b.Nodes[(i+1)%3]
		client, server := from.Connect(to, to.Listen("tcp", to.Addr(0).String()))
		exchange(t, client, server)
		client, server = from.Connect(to, to.Listen("tcp", to.AddrV6(0).String()))
		exchange(t, client, server)
	}
}

func TestDo(t *testing.T) {
	n := NewNodes(t, 1)[0]

	want := n.Inode()
	err := n.Do(func() error {
		var st unix.Stat_t
		if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
			return err
		}
		if st.Ino != want {
			t.Errorf("inside namespace %d, want %d", st.Ino, want)
		}
		return os.ErrPermission
	})
	if !errors.Is(err, os.ErrPermission) {
		t.Errorf("got error %v", err)
	}

	t.Run("Goexit", func(t *testing.T) {
		ended := make(chan bool)
		go func() {
			defer close(ended)
			_ = n.Do(func() error {
				runtime.Goexit() // as FailNow does
				return nil
			})
			ended <- true
		}()
		if <-ended {
			t.Error("Do returned after its function ended the goroutine")
		}
	})
	outside(t)
}

// A thread that cannot go home must not run anything else.
func TestDoDiscardsLostThreads(t *testing.T) {
	n := NewNodes(t, 1)[0]
	for range 20 {
		err := onThread(n.ns, func() error {
			// Takes away what the thread would go home with.
			var st unix.Stat_t
			dir, err := os.ReadDir("/proc/self/fd")
			if err != nil {
				return err
			}
			for _, e := range dir {
				path := "/proc/self/fd/" + e.Name()
				link, err := os.Readlink(path)
				if err != nil || !strings.HasPrefix(link, "net:[") {
					continue
				}
				if unix.Stat(path, &st) == nil && st.Ino == homeInode {
					fd, err := strconv.Atoi(e.Name())
					if err != nil {
						return err
					}
					null, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
					if err != nil {
						return err
					}
					if err := unix.Dup3(null, fd, unix.O_CLOEXEC); err != nil {
						return err
					}
					if err := unix.Close(null); err != nil {
						return err
					}
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	outside(t)
}

// outside checks that no thread of the process is left in a namespace.
func outside(t *testing.T) {
	t.Helper()

	// The thread that is ending may still be listed.
	Eventually(t, 5*time.Second, func() bool {
		tasks, err := filepath.Glob("/proc/self/task/*/ns/net")
		if err != nil {
			t.Fatal(err)
		}
		for _, task := range tasks {
			var st unix.Stat_t
			if unix.Stat(task, &st) == nil && st.Ino != homeInode {
				return false
			}
		}
		return true
	})
}

func TestSysctl(t *testing.T) {
	nodes := NewNodes(t, 2)
	nodes[0].Sysctl("net.ipv4.tcp_retries2", "3")
	if got := nodes[0].SysctlValue("net.ipv4.tcp_retries2"); got != "3" {
		t.Errorf("tcp_retries2 is %s, want 3", got)
	}
	if got := nodes[1].SysctlValue("net.ipv4.tcp_retries2"); got == "3" {
		t.Error("the other namespace has it too")
	}
}

func TestCommand(t *testing.T) {
	n := NewNodes(t, 1)[0]
	want := fmt.Sprintf("net:[%d]\n", n.Inode())
	for _, run := range []func(*Cmd) ([]byte, error){(*Cmd).Output, (*Cmd).CombinedOutput} {
		out, err := run(n.Command("readlink", "/proc/self/ns/net"))
		if err != nil || string(out) != want {
			t.Errorf("got %q, %v; want %q", out, err, want)
		}
	}
	if err := n.Command("false").Run(); err == nil {
		t.Error("false succeeded")
	}

	var pid int
	t.Run("killed at the end", func(t *testing.T) {
		cmd := NewNodes(t, 1)[0].Command("sleep", "1000")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		pid = cmd.Process.Pid
	})
	if err := unix.Kill(pid, 0); !errors.Is(err, unix.ESRCH) {
		t.Errorf("process %d: %v, want none", pid, err)
	}
}

func TestDeleteWhileUsed(t *testing.T) {
	p := New(t)
	client, server := p.A.Connect(p.B, p.B.Listen("tcp", ":0"))
	p.B.Delete()
	if _, err := os.Stat(p.B.Path()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the name is still there: %v", err)
	}
	exchange(t, client, server)
}

// With the last socket gone the namespace goes, and takes the veth pair along.
func TestRelease(t *testing.T) {
	p := New(t)
	p.B.Lose(Loss{Bare: true, Nth: []int{1}})
	p.B.Release()
	if err := p.B.Do(func() error { return nil }); err == nil {
		t.Error("a released node can be entered")
	}
	Eventually(t, 10*time.Second, func() bool {
		return p.A.Do(func() error {
			_, err := net.InterfaceByName(IfName)
			return err
		}) != nil
	})
}

func TestPrivileged(t *testing.T) {
	Privileged(t)
	if missing := missingCapabilities(); missing != "" {
		t.Errorf("passed without %s", missing)
	}
}

func TestSweep(t *testing.T) {
	Privileged(t)
	// No process has an id beyond the kernel's limit.
	const name = "sw-99999999-1-a"
	err := onThread(netns.None(), func() error {
		ns, err := netns.NewNamed(name)
		if err != nil {
			return err
		}
		return ns.Close()
	})
	if err != nil {
		t.Fatal(err)
	}
	alive := NewNodes(t, 1)[0]
	sweep()
	if _, err := os.Stat(filepath.Join(runNetns, name)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there (%v)", name, err)
	}
	if _, err := os.Stat(alive.Path()); err != nil {
		t.Error(err)
	}
}
