package evidence

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/sockwatch/sockwatch/internal/events"
)

func TestSocketOwners(t *testing.T) {
	ln, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	// A duplicate, as given to the children: the same socket twice in one
	// process.
	file, err := ln.File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	inode := inodeOf(t, file)

	self := uint32(os.Getpid())
	expectOwner(t, inode, self, comm(t, self))

	// A child that inherited it does not become the owner,
	child, grandchild, stop := startHolders(t, file)
	expectOwner(t, inode, self, comm(t, self))

	// until it is the only family left that has it; and then it, not the
	// grandchild.
	ln.Close()
	file.Close()
	expectOwner(t, inode, child, comm(t, child))
	if grandchild <= 1 || grandchild == child {
		t.Fatalf("grandchild %d of %d", grandchild, child)
	}

	stop()
	owners, err := SocketOwners(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if o, ok := owners[inode]; ok {
		t.Errorf("socket %d still has owner %+v", inode, o)
	}
}

func TestSocketOwnersCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := SocketOwners(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
}

// Processes that come and go while /proc is read are not an error.
func TestSocketOwnersRace(t *testing.T) {
	stop := make(chan struct{})
	done := make(chan error)
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			if err := exec.Command("/bin/true").Run(); err != nil {
				done <- err
				return
			}
		}
	}()
	for range 50 {
		if _, err := SocketOwners(t.Context()); err != nil {
			t.Error(err)
			break
		}
	}
	close(stop)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func expectOwner(t *testing.T, inode uint64, pid uint32, comm string) {
	t.Helper()
	owners, err := SocketOwners(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got, want := owners[inode], (events.Owner{PID: pid, Comm: comm, Via: "proc"}); got != want {
		t.Errorf("owner of socket %d: %+v, want %+v", inode, got, want)
	}
}

func inodeOf(t *testing.T, f *os.File) uint64 {
	t.Helper()
	fi, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return fi.Sys().(*syscall.Stat_t).Ino
}

func comm(t *testing.T, pid uint32) string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(string(b), "\n")
}

const grandchildEnv = "SOCKWATCH_EVIDENCE_GRANDCHILD"

// startHolders starts a child and a grandchild that hold f open until stop.
func startHolders(t *testing.T, f *os.File) (child, grandchild uint32, stop func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"=hold", grandchildEnv+"=1")
	cmd.ExtraFiles = []*os.File{f}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("holder: %v", err)
		}
	}
	t.Cleanup(stop)

	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.ParseUint(strings.TrimSpace(line), 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(cmd.Process.Pid), uint32(pid), stop
}

// childHold prints the pid of the last process in the line when all hold
// descriptor 3, and holds it until its standard input ends.
func childHold() error {
	last := os.Getpid()
	if os.Getenv(grandchildEnv) != "" {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), grandchildEnv+"=")
		cmd.ExtraFiles = []*os.File{os.NewFile(3, "socket")}
		in, err := cmd.StdinPipe()
		if err != nil {
			return err
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			return err
		}
		if err := cmd.Start(); err != nil {
			return err
		}
		defer func() {
			in.Close()
			cmd.Wait()
		}()
		if _, err := fmt.Fscan(out, &last); err != nil {
			return err
		}
	}
	fmt.Println(last)
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

func TestPickOwner(t *testing.T) {
	tests := []struct {
		name string
		hs   []*holder
		want uint32
	}{
		{"alone", []*holder{{pid: 9, ppid: 1, start: 5}}, 9},
		{"parent before child", []*holder{{pid: 12, ppid: 9, start: 6}, {pid: 9, ppid: 1, start: 5}}, 9},
		{"pids wrapped", []*holder{{pid: 9, ppid: 32000, start: 6}, {pid: 32000, ppid: 1, start: 5}}, 32000},
		{"orphans: the older", []*holder{{pid: 9, ppid: 1, start: 6}, {pid: 12, ppid: 1, start: 5}}, 12},
		{"same tick: the lower pid", []*holder{{pid: 12, ppid: 2, start: 5}, {pid: 9, ppid: 2, start: 5}}, 9},
		{"socket activation", []*holder{{pid: 1, ppid: 0, start: 0}, {pid: 9, ppid: 1, start: 6}}, 9},
		{"socket activation, forked on", []*holder{{pid: 1, ppid: 0, start: 0}, {pid: 9, ppid: 1, start: 6}, {pid: 10, ppid: 9, start: 7}}, 9},
		{"only init", []*holder{{pid: 1, ppid: 0, start: 0}}, 1},
		{"middle one closed it", []*holder{{pid: 11, ppid: 10, start: 7}, {pid: 9, ppid: 1, start: 5}}, 9},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := pickOwner(tt.hs).pid; got != tt.want {
				t.Errorf("owner %d, want %d", got, tt.want)
			}
		})
	}
}

func TestSocketInode(t *testing.T) {
	tests := []struct {
		link string
		want uint64
		ok   bool
	}{
		{"socket:[1]", 1, true},
		{"socket:[4026532000]", 4026532000, true},
		{"socket:[]", 0, false},
		{"socket:[12", 0, false},
		{"socket:[1x]", 0, false},
		{"pipe:[12]", 0, false},
		{"/tmp/socket:[12]", 0, false},
		{"", 0, false},
	}
	for _, tt := range tests {
		if got, ok := socketInode([]byte(tt.link)); got != tt.want || ok != tt.ok {
			t.Errorf("%q: %d %t, want %d %t", tt.link, got, ok, tt.want, tt.ok)
		}
	}
}

func TestParseStat(t *testing.T) {
	const rest = " S 77 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242 999 888\n"
	for _, comm := range []string{"sh", "a b", "x) R (y", "()", ""} {
		var h holder
		if !h.parseStat([]byte("123 (" + comm + ")" + rest)) {
			t.Errorf("%q: refused", comm)
			continue
		}
		if h.comm != comm || h.ppid != 77 || h.start != 4242 {
			t.Errorf("%q: got %+v", comm, h)
		}
	}
	for _, bad := range []string{"", "123", "123 (sh", ")(", "123 (sh) S 77", "123 (sh) S x 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242"} {
		if new(holder).parseStat([]byte(bad)) {
			t.Errorf("%q: accepted", bad)
		}
	}
}

func BenchmarkSocketOwners(b *testing.B) {
	for b.Loop() {
		if _, err := SocketOwners(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
