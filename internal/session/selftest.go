package session

import (
	"context"
	"fmt"
	"strings"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/evidence"
	"github.com/sockwatch/sockwatch/internal/scratch"
	"github.com/sockwatch/sockwatch/internal/target"
)

// SelfTestError says that this machine does not show what was made to happen.
type SelfTestError struct{ Missing []string }

func (e *SelfTestError) Error() string {
	return "the self-test failed: " + strings.Join(e.Missing, "; ")
}

// selfTestRuns is how often the self-test is tried. Nothing is lost by chance,
// but on kernels that run no program of ours over process 1.
const selfTestRuns = 3

// SelfTest forces a retransmission, a reset and aborts in namespaces of its
// own, and says whether the programs showed them. Nothing else is watched.
func SelfTest(ctx context.Context) (*events.SelfTest, error) {
	s := newSession(Config{})
	if _, _, err := s.begin(); err != nil {
		return nil, err
	}
	if err := s.load(); err != nil {
		return nil, err
	}
	defer s.obs.Close()
	return s.selfTest(ctx)
}

// selfTest runs before anything else is watched, by the same programs and the
// same tracker. What they show of it is judged, and not written.
func (s *session) selfTest(ctx context.Context) (*events.SelfTest, error) {
	t := &events.SelfTest{Seen: []string{}, Missing: []string{}}
	for t.Runs < selfTestRuns && !t.Passed {
		t.Runs++
		t.Seen, t.Missing = t.Seen[:0], t.Missing[:0]
		begun, err := evidence.MonoNow()
		if err != nil {
			return nil, err
		}
		if err := s.control(ctx, t); err != nil {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			t.Missing = append(t.Missing, "it could not be run: "+err.Error())
		}
		t.Passed = len(t.Missing) == 0
		ended, err := evidence.MonoNow()
		if err != nil {
			return nil, err
		}
		t.DurationNS = ended - begun
	}
	return t, nil
}

// control is one run of the self-test. An error says that it could not be run.
func (s *session) control(ctx context.Context, t *events.SelfTest) error {
	pair, err := scratch.New(ctx)
	if err != nil {
		return err
	}
	defer pair.Close()
	var seen []events.Event
	s.divert = func(e *events.Event) {
		// The tracker uses what it points to again.
		own := events.Event{Type: e.Type, MonoNS: e.MonoNS}
		own.Netns, own.Sock = clone(e.Netns), clone(e.Sock)
		own.Retransmit, own.Reset, own.Abort = clone(e.Retransmit), clone(e.Reset), clone(e.Abort)
		seen = append(seen, own)
	}
	defer func() { s.divert = nil }()

	var all []*watched
	defer func() {
		for _, w := range all {
			w.w.Close()
			s.tracker.RemoveNamespace(w.netns.Inode)
			delete(s.watch, w.netns.Inode)
		}
	}()
	for _, ns := range []*target.Namespace{pair.Client, pair.Server} {
		w, _, err := s.watchNamespace(ns)
		if err != nil {
			return err
		}
		all = append(all, w)
		s.watch[ns.Inode] = w
	}
	done, err := pair.Provoke(ctx)
	if err != nil {
		return err
	}
	for _, w := range all {
		w.close()
	}
	if err := s.drainNow(); err != nil {
		return err
	}
	if err := s.tracker.Finish(); err != nil {
		return err
	}
	judge(t, done, pair.Client.Name, pair.Server.Name, seen)
	for _, w := range all {
		if n := w.settle(); n.Verdict.State != evidence.Complete {
			t.Missing = append(t.Missing, fmt.Sprintf("the kernel's counters: %s is %s: %s", n.Netns.Name, n.Verdict.State, strings.Join(n.Verdict.Reasons, ", ")))
		}
	}
	return nil
}

func clone[T any](p *T) *T {
	if p == nil {
		return nil
	}
	v := *p
	return &v
}

// judge holds what was seen against what was done.
func judge(t *events.SelfTest, done scratch.Provoked, client, server string, seen []events.Event) {
	count := func(name string, f func(*events.Event) bool) (n uint32) {
		for i := range seen {
			e := &seen[i]
			local, remote := done.Client, done.Server
			if name == server {
				local, remote = remote, local
			}
			if e.Netns != nil && e.Netns.Name == name && e.Sock != nil && e.Sock.Local == local && e.Sock.Remote == remote && f(e) {
				n++
			}
		}
		return n
	}
	for _, want := range []struct {
		what string
		n    uint32
		got  uint32
	}{
		{"retransmission", done.Retransmits, count(client, func(e *events.Event) bool { return e.Retransmit != nil })},
		{"reset sent", 1, count(server, func(e *events.Event) bool {
			return e.Reset != nil && e.Reset.Direction == "sent" && e.Reset.Socket
		})},
		{"abort by linger-zero", 1, count(server, func(e *events.Event) bool {
			return e.Abort != nil && e.Abort.Cause == "linger-zero" && e.Abort.By == "local"
		})},
		{"reset received", 1, count(client, func(e *events.Event) bool {
			return e.Reset != nil && e.Reset.Direction == "received" && e.Reset.Socket
		})},
		{"abort by reset-received", 1, count(client, func(e *events.Event) bool {
			return e.Abort != nil && e.Abort.Cause == "reset-received" && e.Abort.By == "peer"
		})},
	} {
		if want.got == want.n {
			t.Seen = append(t.Seen, want.what)
		} else {
			t.Missing = append(t.Missing, fmt.Sprintf("%s: %d happened, %d seen", want.what, want.n, want.got))
		}
	}
}
