package session_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/session"
	"github.com/sockwatch/sockwatch/internal/sink"
	"github.com/sockwatch/sockwatch/internal/target"
	"github.com/sockwatch/sockwatch/internal/testlab"
)

func init() { helpers["pidns"] = inPIDNamespace }

// inPIDNamespace observes itself, as process 1 of new namespaces.
func inPIDNamespace() {
	check := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	check(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	check(unix.Mount("proc", "/proc", "proc", 0, ""))
	lo, err := netlink.LinkByName("lo")
	check(err)
	check(netlink.LinkSetUp(lo))
	if _, err := target.Resolve(context.Background(), []target.Spec{{Kind: target.Host}}); !errors.Is(err, target.ErrBadSpec) {
		check(errors.Join(errors.New("host in a pid namespace is not refused"), err))
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0") // born before the session
	check(err)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	out := sink.NewJSONL(os.Stdout)
	_, err = session.Run(ctx, session.Config{
		Targets: []target.Spec{{Kind: target.PID, Name: "1"}},
		Sinks:   []sink.Sink{out},
		OnReady: func() error {
			defer cancel()
			c, err := net.Dial("tcp4", l.Addr().String())
			if err == nil {
				err = c.Close()
			}
			return err
		},
	})
	check(err)
	check(out.Close())
}

// TestPIDNamespace: in a pid namespace the process ids of /proc are not those
// of the kernel's records. One file has one kind, and says what it lacks.
func TestPIDNamespace(t *testing.T) {
	t.Parallel()
	testlab.Privileged(t)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), helperEnv+"=pidns")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, &stderr)
	}
	pid := uint32(cmd.Process.Pid) // in the initial pid namespace, as this test
	connects, born := 0, 0
	for line := range bytes.Lines(stdout.Bytes()) {
		var e events.Event
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		switch {
		case e.Session != nil && !declared(e.Session, "owners from /proc"):
			t.Errorf("the header does not name the blind spot: %q", e.Session.BlindSpots)
		case e.Inventory != nil:
			born++
			if e.Owner != nil {
				t.Errorf("a socket born before has the owner %+v", e.Owner)
			}
		case e.Owner != nil:
			if e.Owner.PID != pid {
				t.Errorf("line %d, a %s: owner %+v, want process %d", e.Seq, e.Type, e.Owner, pid)
			}
			if strings.HasPrefix(e.Owner.Via, "connect") {
				connects++
			}
		case e.Summary != nil && !strings.Contains(strings.Join(e.Summary.BlindSpots, " "), "owners from /proc"):
			t.Errorf("the summary does not name the blind spot: %q", e.Summary.BlindSpots)
		}
	}
	if born != 1 || connects == 0 {
		t.Errorf("%d sockets born before, %d lines of the connect's owner:\n%s", born, connects, &stdout)
	}
}
