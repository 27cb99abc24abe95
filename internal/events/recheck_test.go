package events

import (
	"encoding/json"
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/bpf"
)

// rechecks fails unless the line that e makes is judged again as it was.
func rechecks(t testing.TB, e *Event) {
	t.Helper()
	var saved Event
	line := e.AppendJSON(nil)
	if err := json.Unmarshal(line, &saved); err != nil {
		t.Fatal(err)
	}
	j, ok := Recheck(&saved)
	var want Judgement
	switch {
	case e.Retransmit != nil:
		want = Judgement{Cause: e.Retransmit.Cause, Why: e.Retransmit.Why}
	case e.Abort != nil:
		want = Judgement{By: e.Abort.By, Cause: e.Abort.Cause, Why: e.Abort.Why}
	}
	if ok != (want != Judgement{}) || j != want {
		t.Errorf("judged again %+v (%v), was %+v: %s", j, ok, want, line)
	}
}

// TestRecheckRetransmit goes through all that the cause depends on.
func TestRecheckRetransmit(t *testing.T) {
	seen := make(map[string]bool)
	n := newRig(t)
	for state := 1; state <= 14; state++ {
		for ca := range 7 {
			for timer := range 10 {
				for _, flags := range []uint16{0, flagACK, flagSYN, flagSYN | flagACK, flagFIN | flagACK, flagPSH | flagACK} {
					c := newConn(1)
					c.state = uint8(state)
					r := c.retransmits(1)
					r.State, r.CaState, r.Pending, r.SegFlags = uint8(state), uint8(ca), uint8(timer), flags
					r.UndoMarker = uint32(flags & flagPSH)
					for _, e := range n.feed(r, c.destroyed()) {
						rechecks(t, &e)
						seen[e.Retransmit.Cause] = true
					}
				}
			}
		}
	}
	for _, duplicate := range []uint8{timerNone, timerRetrans} {
		c := newConn(1)
		r := c.at(1, bpf.KindSynAck, func(r *bpf.Record) { r.SegFlags, r.Pending = flagSYN|flagACK, duplicate })
		e := n.one(TypeRetransmit, r)
		rechecks(t, &e)
	}
	for _, cause := range []string{causeSyn, causeSynAck, causeRTO, causeTLP, causeFast, causeLossRecovery, causeMTU, causeUndecided} {
		if !seen[cause] {
			t.Errorf("no retransmission was %s", cause)
		}
	}
}

// TestRecheckAbort draws from all that the cause depends on.
func TestRecheckAbort(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	coin := func() bool { return rng.IntN(2) == 0 }
	few := func() uint32 { return uint32(max(0, rng.IntN(5)-2)) }
	errnos := []unix.Errno{
		0, 0, 0, unix.ETIMEDOUT, unix.ETIMEDOUT, unix.ECONNRESET, unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.EPROTO,
		unix.ECONNABORTED, unix.ENOMEM, unix.EXDEV,
	}
	reasons := []string{"", "TCP_STATE", "TCP_KEEPALIVE_TIMEOUT", "TCP_ABORT_ON_MEMORY", "TCP_ABORT_ON_LINGER", "TCP_ABORT_ON_CLOSE"}
	seen := make(map[string]bool)
	n := newRig(t)
	for range 6_000 {
		r := closed(1+rng.IntN(14), func(r *bpf.Record) {
			r.NetnsInode, r.Family, r.SkErr = testInode, unix.AF_INET, uint32(errnos[rng.IntN(len(errnos))])
			r.SndNxt += few() * 1000
			r.WriteSeq = r.SndNxt + few()*1000
			r.CopiedSeq -= few()
			r.UserTimeoutMs, r.LingerJiffies = few()*1500, uint64(few())
			r.ProbesOut, r.Retransmits = uint8(few()), uint8(few())
			r.Flags |= uint8(rng.IntN(256)) &^ bpf.FlagNoSock
			r.Shutdown, r.SockInode, r.ProbesTstamp = uint8(rng.IntN(4)), uint64(few()), few()*100
			r.Jiffies = 1000
		})
		past := history{resetReceived: rng.IntN(6) == 0, dataAfterEnd: rng.IntN(6) == 0, connectNS: uint64(few()) * 49e9}
		if past.sentReset = coin(); past.sentReset {
			past.resetSent = reasons[rng.IntN(len(reasons))]
		}
		s := &sock{ns: n.namespaces[testInode], past: past}
		s.id.Local, s.id.Remote = newConn(1).local, newConn(1).remote
		before := len(n.got)
		if err := n.abort(s, &r); err != nil {
			t.Fatal(err)
		}
		for _, e := range n.got[before:] {
			rechecks(t, &e)
			seen[e.Abort.Cause] = true
		}
		n.got = n.got[:0]
	}
	for _, cause := range []string{
		abortReset, abortRetries, abortUserTimeout, abortKeepalive, abortRefused, abortUnreachable, abortUnread, abortLinger,
		abortMemory, abortDestroyed, abortDisconnect, abortListener, abortCancelled, causeUndecided,
	} {
		if !seen[cause] {
			t.Errorf("no abort was %s", cause)
		}
	}
}

// TestRecheckDisagrees: a cause that was changed does not follow from its facts.
func TestRecheckDisagrees(t *testing.T) {
	e := exampleOf(t, TypeRetransmit)
	if j, ok := Recheck(e); !ok || j.Cause != e.Retransmit.Cause {
		t.Errorf("the example is %+v", j)
	}
	e.TCP.PendingTimer, e.TCP.SndCwnd = "retrans", 2
	if j, _ := Recheck(e); j.Cause != causeLossRecovery {
		t.Errorf("with another timer %+v", j)
	}
	e = exampleOf(t, TypeAbort)
	if j, ok := Recheck(e); !ok || j.Cause != e.Abort.Cause || j.By != e.Abort.By {
		t.Errorf("the example is %+v", j)
	}
	e.TCP.SkErr = 0
	e.Abort.State = "TIME_WAIT"
	if j, ok := Recheck(e); !ok || j.Cause != "" {
		t.Errorf("an orderly end: %+v", j)
	}
	if _, ok := Recheck(exampleOf(t, TypeState)); ok {
		t.Error("a state was judged")
	}
}
