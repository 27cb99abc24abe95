package events

import "github.com/sockwatch/sockwatch/bpf"

// heldReset is a RST seen at the edge that waits for the tracepoint of its
// socket.
type heldReset struct {
	rec   bpf.Record
	until uint64
}

// resetWindow is how long one sighting of a RST waits for the other. They are
// microseconds apart, unless a process holds the socket's lock.
const resetWindow = 200_000_000

// answer is a RST that is to be seen at the edge: as the kernel makes it for
// the segment that it answers (tcp_v4_send_reset), or any.
type answer struct {
	tuple
	seq, ack uint32
	any      bool
}

func answerTo(r *bpf.Record, key tuple) answer {
	switch {
	case r.SegSegs == 0:
		return answer{tuple: key, any: true}
	case r.SegFlags&flagACK != 0:
		return answer{tuple: key, seq: r.SegAckSeq}
	}
	return answer{tuple: key, ack: r.SegEndSeq}
}

// is reports whether the RST seen at the edge is this one.
func (a answer) is(r *bpf.Record) bool { return a.any || a.seq == r.SegSeq && a.ack == ackOf(r) }

// ackOf is what a segment at the edge acknowledges: 0 without the flag.
func ackOf(r *bpf.Record) uint32 {
	if r.SegFlags&flagACK == 0 {
		return 0
	}
	return r.SegAckSeq
}

// expected reports whether tcp_send_reset told of the RST before the edge did.
func (t *Tracker) expected(r *bpf.Record, key tuple) bool {
	for _, a := range [...]answer{{tuple: key, seq: r.SegSeq, ack: ackOf(r)}, {tuple: key, any: true}} {
		if until, ok := t.expect[a]; ok {
			delete(t.expect, a)
			if r.MonoNs <= until {
				return true
			}
		}
	}
	return false
}

func (t *Tracker) hold(r *bpf.Record) *heldReset {
	var h *heldReset
	if n := len(t.spare); n > 0 {
		h, t.spare = t.spare[n-1], t.spare[:n-1]
	} else {
		h = new(heldReset)
	}
	h.rec, h.until = *r, r.MonoNs+resetWindow
	return h
}

// loneReset is a RST at the edge that neither tcp_send_reset nor
// tcp_receive_reset knows.
func (t *Tracker) loneReset(r *bpf.Record) error {
	ns := t.namespaces[r.NetnsInode]
	if ns == nil {
		return nil
	}
	s := &t.lone
	*s = sock{ns: ns, id: t.wireID(r)}
	t.begin(TypeReset, r, s)
	t.buf.reset = Reset{Direction: "received", SeenBy: "wire"}
	if r.Flags&bpf.FlagOut != 0 {
		t.buf.reset.Direction = "sent"
	}
	decodeSegment(&t.buf.segment, r)
	t.buf.reset.Segment = &t.buf.segment
	t.ev.Reset = &t.buf.reset
	return t.emit()
}

func (t *Tracker) wireID(r *bpf.Record) Sock {
	return Sock{
		Family: familyName(r.Family),
		Local:  addrPort(r.LocalAddr, r.LocalPort),
		Remote: addrPort(r.RemoteAddr, r.RemotePort),
	}
}

func (t *Tracker) resetSent(ns *namespace, r *bpf.Record) error {
	s := &t.lone
	*s = sock{ns: ns, id: t.wireID(r)}
	socket := r.SockAddr != 0 && r.State != stateListen
	key := tupleOf(r)
	if r.Flags&bpf.FlagFullSock != 0 && socket {
		s = t.sock(ns, r)
		key = s.tuple
	}
	reason := t.cfg.ResetReasons[r.ArgB]
	s.past.sentReset, s.past.resetSent = true, reason
	t.begin(TypeReset, r, s)
	t.buf.reset = Reset{Direction: "sent", Reason: reason, Socket: socket, SeenBy: "tcp_send_reset"}
	// A RST that a socket sends by itself is out before the tracepoint; one
	// that answers a segment follows it, and may do so while another is held.
	a := answerTo(r, key)
	if h := t.held[key]; h != nil && h.rec.Flags&bpf.FlagOut != 0 && a.is(&h.rec) {
		delete(t.held, key)
		t.spare = append(t.spare, h)
		decodeSegment(&t.buf.segment, &h.rec)
		t.buf.reset.Segment = &t.buf.segment
	} else if t.cfg.EdgeSeen {
		t.expect[a] = r.MonoNs + resetWindow
	}
	if r.SegSegs != 0 {
		decodeSegment(&t.buf.trigger, r)
		t.buf.reset.Trigger = &t.buf.trigger
	}
	t.ev.Reset = &t.buf.reset
	if err := t.emit(); err != nil || s.ending == nil {
		return err
	}
	ending := s.ending
	s.ending = nil
	return t.abort(s, ending)
}

func (t *Tracker) resetReceived(ns *namespace, r *bpf.Record) error {
	s := t.sock(ns, r)
	h := t.held[s.tuple]
	if h != nil && h.rec.Flags&bpf.FlagOut != 0 {
		h = nil
	}
	if h == nil && t.cfg.EdgeSeen && r.Flags&bpf.FlagDead != 0 {
		// tcp_reset is also how the kernel ends a socket that nobody has open
		// when data arrives for it.
		s.past.dataAfterEnd = true
		return nil
	}
	s.past.resetReceived = true
	t.begin(TypeReset, r, s)
	t.buf.reset = Reset{Direction: "received", Socket: true, SeenBy: "tcp_receive_reset"}
	if h != nil {
		delete(t.held, s.tuple)
		t.spare = append(t.spare, h)
		decodeSegment(&t.buf.segment, &h.rec)
		t.buf.reset.Segment = &t.buf.segment
	}
	t.ev.Reset = &t.buf.reset
	return t.emit()
}
