package verify

import (
	"slices"

	"github.com/sockwatch/sockwatch/internal/events"
)

// beside checks what a line says twice about what happened beside the sockets.
func (s *session) beside(e *events.Event) {
	switch {
	case e.Segment != nil:
		g := e.Segment
		s.asked(e)
		n := g.SeqEnd - g.SeqStart
		for _, flag := range []string{"SYN", "FIN"} {
			if (&events.Segment{Flags: g.Flags}).Has(flag) {
				n--
			}
		}
		if g.Bytes != n {
			s.contradicts(CheckSockets, e, "segment.bytes is %d, from seq_start to seq_end it is %d", g.Bytes, n)
		}
	case e.IO != nil:
		s.asked(e)
		if e.IO.Peek && e.IO.Op != "read" {
			s.contradicts(CheckSockets, e, "a write that leaves its bytes to be read")
		}
	case e.Neighbour != nil:
		n := e.Neighbour
		switch {
		case (n.Change == "failed") != (n.New == "FAILED"):
			s.contradicts(CheckSockets, e, "neighbour.change is %q, its state is %q", n.Change, n.New)
		case n.Change == "moved" && n.OldLladdr == n.NewLladdr:
			s.contradicts(CheckSockets, e, "the neighbour moved from %q to the same address", n.OldLladdr)
		}
	}
}

// asked: some types are written only on request, which the header says.
func (s *session) asked(e *events.Event) {
	if s.header != nil && !slices.Contains(s.header.With, string(e.Type)) {
		s.contradicts(CheckSockets, e, "no %s lines were asked for", e.Type)
	}
}
