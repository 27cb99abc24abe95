package events

import (
	"github.com/sockwatch/sockwatch/bpf"
)

// io takes what a process wrote or read.
func (t *Tracker) io(s *sock, r *bpf.Record) error {
	const msgPeek = 2
	t.begin(TypeIO, r, s)
	t.buf.io = IO{Op: "read", Bytes: uint32(r.ArgA), Frozen: "unknown"}
	if r.Flags&bpf.FlagOut != 0 {
		t.buf.io.Op = "write"
	} else {
		t.buf.io.Peek = r.ArgB&msgPeek != 0
	}
	switch {
	case r.Why&bpf.IOFrozen != 0:
		t.buf.io.Frozen = "yes"
	case r.Why&bpf.IOFrozenKnown != 0:
		t.buf.io.Frozen = "no"
	}
	t.ev.IO = &t.buf.io
	return t.emit()
}

// arrive takes data that came for a process that was frozen.
func (t *Tracker) arrive(s *sock, r *bpf.Record) error {
	t.begin(TypeIO, r, s)
	t.buf.io = IO{Op: "arrive", Bytes: r.SegEndSeq - r.SegSeq - uint32(r.SegFlags&flagFIN), Frozen: "yes"}
	t.ev.IO = &t.buf.io
	return t.emit()
}

// seen takes a segment at the edge because all are asked for.
func (t *Tracker) seen(ns *namespace, r *bpf.Record) error {
	t.begin(TypeSegment, r, t.hurt(ns, r))
	t.ev.TCP = nil // there only where something else was of interest
	s := &t.buf.seen
	*s = SegmentSeen{Direction: "received", SeqStart: r.SegSeq, SeqEnd: r.SegEndSeq, Flags: flagNames[r.SegFlags&0xff], Window: uint32(r.ArgA)}
	if r.Flags&bpf.FlagOut != 0 {
		s.Direction = "sent"
	}
	s.Bytes = r.SegEndSeq - r.SegSeq
	if r.SegFlags&flagSYN != 0 {
		s.Bytes--
	}
	if r.SegFlags&flagFIN != 0 {
		s.Bytes--
	}
	if r.SegFlags&flagACK != 0 {
		s.Ack = r.SegAckSeq
	}
	t.ev.Segment = s
	return t.emit()
}
