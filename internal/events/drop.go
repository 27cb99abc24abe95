package events

import (
	"strconv"

	"github.com/sockwatch/sockwatch/bpf"
)

// drop takes a segment that was dropped.
func (t *Tracker) drop(ns *namespace, r *bpf.Record) error {
	t.begin(TypeDrop, r, t.hurt(ns, r))
	d := &t.buf.drop
	*d = Drop{Direction: "received", Device: t.commName(&r.OwnerComm), SkbLen: uint32(r.ArgA)}
	if r.Flags&bpf.FlagOut != 0 {
		d.Direction = "sent"
	}
	if len(t.cfg.DropReasons) > 0 {
		name, ok := t.cfg.DropReasons[uint32(r.ArgB)]
		if !ok { // a module's own
			name = "REASON_" + strconv.FormatUint(uint64(uint32(r.ArgB)), 10)
		}
		d.Reason = name
	}
	if r.SegFlags != 0 {
		decodeSegment(&t.buf.segment, r)
		d.Segment = &t.buf.segment
	}
	t.ev.Drop = d
	return t.emit()
}

// hurt is the socket that a record of something beside it concerns. It may be
// over already, so that nothing about it is to be kept.
func (t *Tracker) hurt(ns *namespace, r *bpf.Record) *sock {
	if r.Flags&bpf.FlagNoSock != 0 {
		if s := t.tuples[tupleOf(r)]; s != nil {
			return s
		}
	} else if s := t.socks[r.SockAddr]; s != nil && s.ns == ns && (s.made || r.SockCookie == 0 || s.id.Cookie == r.SockCookie) {
		t.place(s, r) // a SYN may be dropped before anything else tells its port
		return s
	}
	s := &t.lone
	*s = sock{ns: ns, id: t.wireID(r)}
	if r.Flags&bpf.FlagNoSock == 0 {
		s.id.Cookie = r.SockCookie
	}
	return s
}
