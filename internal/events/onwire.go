package events

import "strings"

// OnWire is the RST as it was sent or as it arrived: as the kernel makes it for
// the segment that it answers (tcp_v4_send_reset), else as it was seen. It is
// nil where neither is known. What was seen of an answer may be another RST
// that left at the same time.
func (r *Reset) OnWire() *Segment {
	switch t := r.Trigger; {
	case t == nil:
		return r.Segment
	case t.Has("ACK"):
		return &Segment{SeqStart: t.Ack, SeqEnd: t.Ack, Flags: "RST"}
	default:
		return &Segment{Ack: t.SeqEnd, Flags: "RST,ACK"}
	}
}

// Has reports whether a flag is set, by its name.
func (s *Segment) Has(flag string) bool {
	for f := range strings.SplitSeq(s.Flags, ",") {
		if f == flag {
			return true
		}
	}
	return false
}

// SameReset reports whether a RST that was sent and one that was received can
// be one segment. known is false where that cannot be seen.
func SameReset(sent, received *Reset) (same, known bool) {
	s, r := sent.OnWire(), received.OnWire()
	if s == nil || r == nil || received.Segment == nil {
		return true, false
	}
	return s.SeqStart == r.SeqStart && s.Ack == r.Ack && s.Flags == r.Flags, true
}
