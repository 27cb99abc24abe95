package session_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/session"
	"github.com/sockwatch/sockwatch/internal/testlab"
)

var forced = []string{"retransmission", "reset sent", "abort by linger-zero", "reset received", "abort by reset-received"}

// TestSelfTest: what is forced is seen, and nothing is left of it. Not
// parallel: it counts what the process holds.
func TestSelfTest(t *testing.T) {
	testlab.Privileged(t)
	if _, err := session.SelfTest(t.Context()); err != nil { // makes what is made once
		t.Fatal(err)
	}
	fds, goroutines := holdings(t)
	got, err := session.SelfTest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !got.Passed || !slices.Equal(got.Seen, forced) || len(got.Missing) != 0 || got.Runs < 1 || got.DurationNS > uint64(testlab.Slack(5*time.Second)) {
		t.Errorf("%+v", got)
	}
	same(t, fds, goroutines)
}

// TestSelfTestFails: with a program that does nothing the self-test fails, and
// with it the session, before anything is watched. Not parallel: it takes the
// program of whatever session there is.
func TestSelfTestFails(t *testing.T) {
	for _, tt := range []struct{ program, missing string }{
		{"tcp_retransmit_skb", "retransmission: "},
		{"tcp_receive_reset", "abort by reset-received: 1 happened, 0 seen"},
		{"inet_sock_set_state", "abort by linger-zero: 1 happened, 0 seen"},
	} {
		t.Run(tt.program, func(t *testing.T) {
			lab := testlab.NewNodes(t, 1)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				for ctx.Err() == nil && !detachProgram(t, tt.program, nil) {
					time.Sleep(100 * time.Microsecond)
				}
			}()
			mem := &memory{}
			res, err := run(t, session.Config{SelfTest: true}, mem, lab[0].Name)
			cancel()
			<-done
			var failed *session.SelfTestError
			if !errors.As(err, &failed) || res.Reason != session.ReasonSelfTest {
				t.Fatalf("%v, %+v", err, res)
			}
			if !strings.Contains(err.Error(), tt.missing) {
				t.Errorf("%v: does not say %q", err, tt.missing)
			}
			header := mem.all[0].Session
			if header.SelfTest == nil || header.SelfTest.Passed || header.SelfTest.Runs != 3 || !slices.Equal(header.SelfTest.Missing, failed.Missing) {
				t.Errorf("header: %+v", header.SelfTest)
			}
			if last := mem.all[len(mem.all)-1]; last.Summary == nil || last.Summary.Verdict.State != "unprovable" {
				t.Errorf("last line: %+v", last)
			}
			none(t, mem.all, nil, events.TypeTarget, events.TypeState, events.TypeRetransmit, events.TypeReset, events.TypeAbort)
		})
	}
}

// TestSelfTestInSession: a session that tested itself says so, and has nothing
// of the test in its lines and counts.
func TestSelfTestInSession(t *testing.T) {
	t.Parallel()
	lab := testlab.New(t)
	lab.PinNeighbours()
	s := stageIn(t, session.Config{SelfTest: true}, lab)
	standClear()
	exchange(t, s, s.listen())
	evs := s.ledgers()
	if st := evs[0].Session.SelfTest; st == nil || !st.Passed || !slices.Equal(st.Seen, forced) || st.DurationNS == 0 {
		t.Errorf("header: %+v", st)
	}
	sum := evs[len(evs)-1].Summary
	if sum.Verdict.State != "complete" || len(sum.Namespaces) != 2 || sum.Kernel.Foreign != 0 {
		t.Errorf("summary: %+v", sum)
	}
	for _, e := range evs {
		if e.Netns != nil && e.Netns.Name != lab.A.Name && e.Netns.Name != lab.B.Name {
			t.Errorf("line %d is of %s", e.Seq, e.Netns.Name)
		}
	}
}
