package verify

import (
	"strings"
	"testing"

	"github.com/sockwatch/sockwatch/internal/events"
)

// TestBeside: lines about segments, reads and neighbours hold, and each number
// of theirs that is changed is found.
func TestBeside(t *testing.T) {
	lines := recorded(t, "client")
	i := at(t, lines, 0, func(e *events.Event) bool { return e.State != nil && e.State.New == "ESTABLISHED" })
	of := decode(t, lines[i])
	line := func(typ events.Type, change func(*events.Event)) string {
		e := &events.Event{Type: typ, MonoNS: of.MonoNS, Time: of.Time, Netns: of.Netns, Sock: of.Sock, CPU: of.CPU}
		change(e)
		return encode(e)
	}
	added := []string{
		line("segment", func(e *events.Event) {
			e.Segment = &events.SegmentSeen{Direction: "sent", SeqStart: 1, SeqEnd: 103, Flags: "SYN,FIN", Bytes: 100}
		}),
		line("io", func(e *events.Event) { e.IO = &events.IO{Op: "read", Bytes: 5, Peek: true, Frozen: "no"} }),
		line("neighbour", func(e *events.Event) {
			e.Sock = nil
			e.Neighbour = &events.Neighbour{Change: "moved", Address: "198.18.0.1", Device: "eth0", New: "STALE", OldLladdr: "02:00:00:00:00:01", NewLladdr: "02:00:00:00:00:02"}
		}),
		line("neighbour", func(e *events.Event) {
			e.Sock = nil
			e.Neighbour = &events.Neighbour{Change: "failed", Address: "198.18.0.1", Device: "eth0", Old: "INCOMPLETE", New: "FAILED"}
		}),
		line("drop", func(e *events.Event) { e.Drop = &events.Drop{Reason: "NETFILTER_DROP", Direction: "sent"} }),
		line("icmp", func(e *events.Event) {
			e.ICMP = &events.ICMP{Type: "DEST_UNREACH", Code: "HOST_UNREACH", From: "198.18.0.1"}
		}),
	}
	whole := append(append(append([]string{}, lines[:i+1]...), added...), lines[i+1:]...)
	edit(t, whole, 0, func(e *events.Event) { e.Session.With = []string{"io", "segment"} })
	forge(t, whole)
	if r := verifyTexts(t, joined(whole)); levelsOf(r)[Contradiction] != 0 {
		t.Fatalf("untouched:\n%s", wholeText(r))
	}
	for _, tt := range []struct {
		want string
		nth  int
		edit func(*events.Event)
	}{
		{"segment.bytes is 99, from seq_start to seq_end it is 100", 1, func(e *events.Event) { e.Segment.Bytes = 99 }},
		{"a write that leaves its bytes to be read", 2, func(e *events.Event) { e.IO.Op = "write" }},
		{`the neighbour moved from "02:00:00:00:00:02" to the same address`, 3, func(e *events.Event) { e.Neighbour.OldLladdr = e.Neighbour.NewLladdr }},
		{`neighbour.change is "failed", its state is "PROBE"`, 4, func(e *events.Event) { e.Neighbour.New = "PROBE" }},
		{"no io lines were asked for", -i, func(e *events.Event) { e.Session.With = []string{"segment"} }},
	} {
		edited := append([]string{}, whole...)
		edit(t, edited, i+tt.nth, tt.edit)
		if r := verifyTexts(t, joined(edited)); levelsOf(r)[Contradiction] != 1 || !strings.Contains(wholeText(r), tt.want) {
			t.Errorf("want %q, and nothing else:\n%s", tt.want, wholeText(r))
		}
	}
}
