package session_test

import (
	"io"
	"testing"
	"time"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/testlab"
)

// nearMs is how far an event may be from the packet it speaks of.
const nearMs = 1

// seen finds the packet that belongs to an event, and checks their times.
func seen(t *testing.T, c *testlab.Capture, what string, monoNS uint64, match func(testlab.Packet) bool) {
	t.Helper()
	var best *testlab.Packet
	for _, p := range c.Filter(match) {
		if best == nil || apart(p.MonoNS, monoNS) < apart(best.MonoNS, monoNS) {
			best = &p
		}
	}
	switch {
	case best == nil:
		t.Errorf("%s: no such packet in the capture", what)
	case apart(best.MonoNS, monoNS) > testlab.Slack(nearMs*time.Millisecond):
		t.Errorf("%s: event and packet (%v) are %v apart", what, best, apart(best.MonoNS, monoNS))
	}
}

func apart(a, b uint64) time.Duration {
	if a > b {
		a, b = b, a
	}
	return time.Duration(b - a)
}

// TestCut is the experiment that asked for this tool, on real sockets: 3 KB
// are sent into a network that was just cut for 45 s. The receiving end is
// idle; it probes every 15 s and has a user timeout of 20 s, as grpc-go sets
// them.
func TestCut(t *testing.T) {
	t.Parallel()
	lab := testlab.New(t)
	lab.PinNeighbours()
	o := observe(t, lab.A.Name, lab.B.Name)
	capA, capB := lab.A.Capture(testlab.IfName), lab.B.Capture(testlab.IfName)

	l := lab.B.Listen("tcp4", lab.B.Addr(8080).String())
	client, server := lab.A.Connect(lab.B, l)
	if err := testlab.Set(server, testlab.UserTimeout(20*time.Second), testlab.KeepAlive(15*time.Second, 15*time.Second, 9)); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Write([]byte("warm")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(server, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}

	cut := lab.Cut()
	cutNS := testlab.MonoNow()
	if _, err := client.Write(make([]byte, 3000)); err != nil {
		t.Fatal(err)
	}
	onA := func(e *events.Event) bool { return e.Netns != nil && e.Netns.Name == lab.A.Name }
	onB := func(e *events.Event) bool { return e.Netns != nil && e.Netns.Name == lab.B.Name }
	idle := o.until("abort of the idle end", 35*time.Second, func(e *events.Event) bool { return e.Type == events.TypeAbort && onB(e) })
	time.Sleep(45*time.Second - apart(testlab.MonoNow(), cutNS))
	if err := l.Close(); err != nil { // else the listener answers, with its own reason
		t.Fatal(err)
	}
	healNS := testlab.MonoNow()
	cut.Undo()
	sender := o.until("abort of the sender", 15*time.Second, func(e *events.Event) bool { return e.Type == events.TypeAbort && onA(e) })
	evs := o.stop()
	capA.Stop()
	capB.Stop()

	// The idle end goes at the first probe after 20 s without a word, with a RST that says why.
	if a := idle.Abort; a.Cause != "keepalive" || a.By != "local" {
		t.Errorf("the idle end's abort: %+v", a)
	}
	if at := apart(idle.MonoNS, cutNS); at < 29*time.Second || at > 32*time.Second {
		t.Errorf("the idle end gave up %v after the cut, want about 30 s", at)
	}
	probes := pick(evs, events.TypeProbe, onB)
	if len(probes) != 1 || probes[0].Probe.Kind != "keepalive" || probes[0].Probe.Direction != "sent" || probes[0].Probe.Number != 1 {
		t.Errorf("probes of the idle end: %+v", probes)
	}
	for _, e := range probes {
		seen(t, capB, "keepalive probe", e.MonoNS, func(p testlab.Packet) bool { return p.Outgoing && p.Len == 0 && p.Seq == e.Probe.Segment.SeqStart })
	}
	resets := pick(evs, events.TypeReset, onB)
	if len(resets) != 2 {
		t.Fatalf("%d resets from the idle end's namespace, want 2", len(resets))
	}
	gave, late := resets[0].Reset, resets[1].Reset
	if gave.Reason != "TCP_KEEPALIVE_TIMEOUT" || !gave.Socket || gave.Direction != "sent" || gave.Segment == nil {
		t.Errorf("the idle end's reset: %+v", gave)
	}
	if late.Reason != "NO_SOCKET" || late.Socket || late.Direction != "sent" || late.Trigger == nil {
		t.Errorf("the late segment's reset: %+v", late)
	}
	for _, e := range resets {
		seen(t, capB, "reset sent", e.MonoNS, func(p testlab.Packet) bool { return p.Outgoing && p.Flags.Has(testlab.RST) })
	}

	// The sender retransmits until one finds nobody.
	if a := sender.Abort; a.Cause != "reset-received" || a.By != "peer" || sender.MonoNS < healNS {
		t.Errorf("the sender's abort: %+v", a)
	}
	if got := sender.TCP.UnackedBytes; got != 3000 {
		t.Errorf("the sender ended with %d bytes not acknowledged", got)
	}
	got := pick(evs, events.TypeReset, onA)
	if len(got) != 1 || got[0].Reset.Direction != "received" || !got[0].Reset.Socket {
		t.Fatalf("resets at the sender: %+v", got)
	}
	seen(t, capA, "reset received", got[0].MonoNS, func(p testlab.Packet) bool { return !p.Outgoing && p.Flags.Has(testlab.RST) })

	// Every retransmission: numbered, on time, in the capture, and no other.
	retransmits := pick(evs, events.TypeRetransmit, onA)
	first, ok := capA.Find(func(p testlab.Packet) bool { return p.Outgoing && p.Len > 4 })
	if !ok {
		t.Fatal("the data is not in the capture")
	}
	again := capA.Filter(func(p testlab.Packet) bool {
		return p.Outgoing && p.Len > 0 && p.MonoNS > first.MonoNS && int32(p.SeqEnd()-first.SeqEnd()) <= 0
	})
	if len(retransmits) != len(again) || len(again) < 8 {
		t.Fatalf("%d retransmit events, %d retransmissions in the capture", len(retransmits), len(again))
	}
	for i, e := range retransmits {
		r := e.Retransmit
		if r.Attempt != uint32(i+1) || r.SendError != "" {
			t.Errorf("retransmission %d: %+v", i+1, r)
		}
		want := "rto"
		if i == 0 {
			want = "tlp"
		}
		if r.Cause != want {
			t.Errorf("retransmission %d: cause %s, want %s (%s)", i+1, r.Cause, want, r.Why)
		}
		seen(t, capA, "retransmission", e.MonoNS, func(p testlab.Packet) bool {
			return p.Outgoing && p.Seq == r.SeqStart && p.SeqEnd() == r.SeqEnd
		})
		if i+1 == len(retransmits) {
			break
		}
		// The timer wheel rounds up by at most an eighth.
		next := apart(retransmits[i+1].MonoNS, e.MonoNS)
		due := time.Duration(r.NextDueMs) * time.Millisecond
		if next < due-10*time.Millisecond || next > due+due/8+50*time.Millisecond {
			t.Errorf("retransmission %d came after %v, announced for %v", i+2, next, due)
		}
	}
}
