package session_test

import (
	"os"
	"testing"
	"time"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/session"
	"github.com/sockwatch/sockwatch/internal/testlab"
)

// TestOutOfMemory closes sockets whose peer is gone while the kernel allows no
// orphans. The limit is the whole machine's: only in one made for tests.
func TestOutOfMemory(t *testing.T) {
	if !testlab.Emulated() {
		t.Skip("sets net.ipv4.tcp_max_orphans, which is the whole machine's: only in a machine made for tests")
	}
	const limit = "/proc/sys/net/ipv4/tcp_max_orphans"
	before, err := os.ReadFile(limit)
	if err != nil {
		t.Fatal(err)
	}
	s := stage(t, session.Config{})
	l := s.listen()
	standClear()
	clients := make([]interface{ Close() error }, 100) // kernels count them in batches
	for i := range clients {
		clients[i], _ = s.A.Connect(s.B, l)
	}
	s.Cut()
	if err := os.WriteFile(limit, []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(limit, before, 0); err != nil {
			t.Error(err)
		}
	})
	for _, c := range clients {
		c.Close()
	}
	e := s.until("abort", 10*time.Second, an("abort", s.A))
	testlab.Eventually(t, testlab.Slack(20*time.Second), func() bool {
		return len(pick(s.events(), events.TypeAbort, in(s.A))) == len(clients)
	})
	evs := s.ledgers()
	if e.Abort.By != "local" || e.Abort.Cause != "out-of-memory" || e.Abort.State != "FIN_WAIT1" {
		t.Errorf("%+v", e.Abort)
	}
	for _, e := range pick(evs, events.TypeAbort, in(s.A)) {
		if e.Abort.Cause != "out-of-memory" {
			t.Errorf("line %d: %+v", e.Seq, e.Abort)
		}
	}
	counted := line(t, generation(t, evs[len(evs)-1].Summary, s.A.Name), "TCPAbortOnMemory")
	if counted.Kernel != uint64(len(clients)) || counted.Result == "incomplete" {
		t.Errorf("%+v", counted)
	}
}
