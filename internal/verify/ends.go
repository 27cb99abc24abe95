package verify

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/sockwatch/sockwatch/internal/events"
)

const (
	maxSnaps  = 256 // of one end; then every second is dropped
	maxResets = 256 // without a socket, of one pair of addresses
	maxPairs  = 1 << 20

	// How long after one end something must hold at the other: hooks stamp a
	// line at their beginning, on processors whose clocks are one.
	margin = uint64(100 * time.Microsecond)

	// How far apart the two sightings of one reset may be stamped: the line of
	// the one who sends waits for a process that holds the socket's lock.
	resetSlack = uint64(500 * time.Millisecond)
)

// ways are the addresses of a connection as one end has them.
type ways struct{ local, remote netip.AddrPort }

func (w ways) mirrored() ways { return ways{w.remote, w.local} }

type loneKey struct {
	boot string
	ways
}

// ends are the ends of all connections, by their addresses, and the resets that
// no end of one sent or took.
type ends struct {
	by   map[ways][]*end
	lone map[loneKey][]resetSeen
}

func newEnds() *ends { return &ends{make(map[ways][]*end), make(map[loneKey][]resetSeen)} }

// end is one end of one connection.
type end struct {
	s                *session
	ns               *namespace
	cookie           uint64
	from, to         uint64 // mono_ns between which it is known to have been
	closed           uint64 // 0: it did not while it was watched
	sndBase, rcvBase uint32
	snaps            []snap
	every, skipped   int
	resets           []resetSeen
}

// snap is a snapshot of an end: how far it got.
type snap struct {
	mono            uint64
	acked, received uint64
	ahead           uint32 // write_seq - snd_una
	line            int
	seq             uint64
}

// resetSeen is a reset line.
type resetSeen struct {
	ns       *namespace
	mono     uint64
	line     int
	seq      uint64
	received bool
	reset    *events.Reset
}

func (s *session) resetSeen(e *events.Event) resetSeen {
	return resetSeen{s.namespaces[*e.Netns], e.MonoNS, s.out.LastLine, e.Seq, e.Reset.Direction == "received", e.Reset}
}

// meets reports whether one of two lines is of a reset that was sent, the other
// of the same one when it arrived. Where only their times say so, both must be
// of the namespaces of one connection.
func (r *resetSeen) meets(o *resetSeen, peer *namespace) bool {
	if o.received == r.received || o.mono > r.mono+resetSlack || r.mono > o.mono+resetSlack {
		return false
	}
	sent, received := r.reset, o.reset
	if r.received {
		sent, received = received, sent
	}
	same, known := events.SameReset(sent, received)
	return same && (known || o.ns == peer)
}

// snap keeps how far a socket got, for the other end.
func (s *session) snap(k *sock, e *events.Event) {
	if k.end == nil {
		if s.header == nil || s.header.BootID == "" || e.Sock.Local.Port() == 0 || e.Sock.Remote.Port() == 0 {
			return
		}
		k.end = &end{
			s: s, ns: s.namespaces[*e.Netns], cookie: e.Sock.Cookie, from: cmp.Or(k.connectNS, s.first.MonoNS),
			sndBase: k.sndBase, rcvBase: k.rcvBase, every: 1,
		}
		if e.State != nil && e.State.Old == "SYN_RECV" {
			k.end.from = e.MonoNS
		}
		if k.closed {
			k.end.closed = e.MonoNS
		}
		w := ways{e.Sock.Local, e.Sock.Remote}
		s.f.v.ends.by[w] = append(s.f.v.ends.by[w], k.end)
		s.open = append(s.open, k.end)
	}
	d := k.end
	if d.skipped++; d.skipped < d.every {
		return
	}
	d.skipped = 0
	if len(d.snaps) == maxSnaps {
		for i := range maxSnaps / 2 {
			d.snaps[i] = d.snaps[2*i]
		}
		d.snaps, d.every = d.snaps[:maxSnaps/2], d.every*2
	}
	t := e.TCP
	d.snaps = append(d.snaps, snap{e.MonoNS, t.BytesAcked, t.BytesReceived, t.WriteSeq - t.SndUna, s.out.LastLine, e.Seq})
}

// finish notes until when the end is known.
func (d *end) finish(s *session) {
	if d.to != 0 {
		return
	}
	d.to = cmp.Or(d.closed, d.ns.gone, s.latest)
	slices.SortStableFunc(d.snaps, func(a, b snap) int { return cmp.Compare(a.mono, b.mono) })
}

// together holds the sessions of one boot against each other.
func (v *verifier) together() {
	boots := make(map[string][]*session)
	for _, s := range v.sessions {
		if s.header != nil && s.header.BootID != "" {
			boots[s.header.BootID] = append(boots[s.header.BootID], s)
		}
	}
	for _, list := range boots {
		v.boot(list)
	}
	var keys []ways
	for w := range v.ends.by {
		if c := w.local.Compare(w.remote); c < 0 && len(v.ends.by[w.mirrored()]) > 0 {
			keys = append(keys, w)
		}
	}
	slices.SortFunc(keys, func(a, b ways) int {
		return cmp.Or(a.local.Compare(b.local), a.remote.Compare(b.remote))
	})
	pairs := 0
	for _, w := range keys {
		for _, a := range v.ends.by[w] {
			for _, b := range v.ends.by[w.mirrored()] {
				if pairs++; pairs > maxPairs {
					v.between(Undecided, a.s, 0, 0, "there are more pairs of ends than are compared")
					return
				}
				v.pair(w, a, b)
			}
		}
	}
}

// boot checks what does not change until the machine is booted again.
func (v *verifier) boot(list []*session) {
	first := list[0]
	for _, s := range list[1:] {
		a, b := first.header, s.header
		if a.Kernel != b.Kernel || a.Machine != b.Machine || a.BTF != b.BTF || a.HZ != b.HZ {
			v.between(Contradiction, s, s.out.FirstLine, s.first.Seq, "the boot is that of %s, but kernel, machine, BTF or HZ are not", place(first.file(), first.out.FirstLine))
		}
	}
	// CLOCK_BOOTTIME never loses on CLOCK_MONOTONIC.
	type reading struct {
		pair
		s *session
	}
	var all []reading
	for _, s := range list {
		if p := s.clock.pairs; len(p) > 0 {
			all = append(all, reading{p[0], s}, reading{s.clock.last(), s})
		}
	}
	slices.SortStableFunc(all, func(a, b reading) int { return cmp.Compare(a.mono, b.mono) })
	for i := 1; i < len(all); i++ {
		a, b := all[i-1], all[i]
		if a.s != b.s && b.asleep-a.asleep < -(a.errorNS+b.errorNS) {
			v.between(Contradiction, b.s, b.line, 0, "boot_ns lost %s on mono_ns since %s, which it cannot", time.Duration(a.asleep-b.asleep), place(a.s.file(), a.line))
		}
	}
}

// between keeps a finding that concerns two sessions.
func (v *verifier) between(l Level, s *session, line int, seq uint64, format string, args ...any) {
	if count(v.report.Findings, l) < most(l) {
		v.report.Findings = append(v.report.Findings, s.finding(l, CheckEnds, line, seq, format, args...))
	} else {
		s.out.Omitted[CheckEnds]++
	}
}

// pair holds two ends against each other whose addresses are mirrored. They
// are one connection if both directions begin at the same sequence number.
func (v *verifier) pair(w ways, a, b *end) {
	if a.s.header.BootID != b.s.header.BootID || a.from > b.to || b.from > a.to {
		return
	}
	ab, ba := near(a.sndBase, b.rcvBase), near(b.sndBase, a.rcvBase)
	switch {
	case !ab && !ba:
		v.report.Ends.Unmatched++
		return
	case ab != ba:
		v.report.Ends.Unmatched++
		v.between(Undecided, a.s, a.line(), a.seq(), "%s to %s: only one direction has the sequence numbers of %s: something between them changed the other's, or a line was edited",
			w.local, w.remote, place(b.s.file(), b.line()))
		return
	}
	v.report.Ends.Connections++
	v.oneWay(w, a, b)
	v.oneWay(w.mirrored(), b, a)
	v.resets(w, a, b)
	v.resets(w.mirrored(), b, a)
}

func (d *end) line() int   { return d.snaps[0].line }
func (d *end) seq() uint64 { return d.snaps[0].seq }

// near: the one who connects counts its SYN as acknowledged, the other does not.
func near(snd, rcv uint32) bool { return snd-rcv+1 <= 2 }

// oneWay checks the direction from a to b. What a knows to be acknowledged, b
// has received by then; what b has received, a has written by then.
func (v *verifier) oneWay(w ways, a, b *end) {
	shift := int64(int32(b.rcvBase - a.sndBase))
	acked := func(p *snap) int64 { return clamp(p.acked) - shift }
	written := func(p *snap) int64 { return clamp(min(p.acked, math.MaxInt64/2)) - shift + int64(p.ahead) }

	i := 0
	var most *snap
	for j := range b.snaps {
		at := &b.snaps[j]
		for ; i < len(a.snaps) && a.snaps[i].mono+margin <= at.mono; i++ {
			if most == nil || acked(&a.snaps[i]) > acked(most) {
				most = &a.snaps[i]
			}
		}
		if most == nil {
			continue
		}
		v.report.Ends.Compared++
		if acked(most) > clamp(at.received) {
			v.between(Contradiction, b.s, at.line, at.seq, "%s to %s: %d bytes were received, but in %s, %s before, %d were acknowledged",
				w.local, w.remote, at.received, place(a.s.file(), most.line), time.Duration(at.mono-most.mono), acked(most))
			return
		}
	}
	i, most = 0, nil
	for j := range a.snaps {
		at := &a.snaps[j]
		for ; i < len(b.snaps) && b.snaps[i].mono+margin <= at.mono; i++ {
			if most == nil || b.snaps[i].received > most.received {
				most = &b.snaps[i]
			}
		}
		if most == nil {
			continue
		}
		v.report.Ends.Compared++
		if clamp(most.received) > written(at) {
			v.between(Contradiction, a.s, at.line, at.seq, "%s to %s: %d bytes were written, but in %s, %s before, %d were received",
				w.local, w.remote, written(at), place(b.s.file(), most.line), time.Duration(at.mono-most.mono), most.received)
			return
		}
	}
}

// resets checks that each reset that one end received was sent by the other,
// and that each it sent was received. Both can fail without anything being
// wrong: something between them may send a reset, or lose one.
func (v *verifier) resets(w ways, a, b *end) {
	for i := range a.resets {
		r := &a.resets[i]
		watched := r.mono <= b.s.latest && (b.ns.gone == 0 || r.mono <= b.ns.gone)
		switch {
		case v.met(w, a, b, r):
			if r.received {
				v.report.Ends.Resets++
			}
		case r.received:
			why := "something between them sent it"
			switch lossy := b.s.lossy(); {
			case !watched:
				why = "the other end was not watched any more"
			case lossy != "":
				why += ", or " + lossy + " there"
			}
			v.between(Undecided, a.s, r.line, r.seq, "%s to %s: a reset was received that the other end did not send, in %s: %s, or its line was taken out",
				w.local, w.remote, b.s.file(), why)
		case watched && (b.closed == 0 || b.closed > r.mono+margin):
			v.between(Undecided, a.s, r.line, r.seq, "%s to %s: a reset was sent that the other end did not receive, in %s: it was lost on the way or not accepted, or its line was taken out",
				w.local, w.remote, b.s.file())
		}
	}
}

// met reports whether a reset of a was seen at the other side too: at b, where
// no socket had it any more, or in what took the place of b, such as its
// container once that was started again.
func (v *verifier) met(w ways, a, b *end, r *resetSeen) bool {
	meets := func(o resetSeen) bool { return r.meets(&o, b.ns) }
	boot, m := a.s.header.BootID, w.mirrored()
	if slices.ContainsFunc(b.resets, meets) || slices.ContainsFunc(v.ends.lone[loneKey{boot, m}], meets) {
		return true
	}
	return slices.ContainsFunc(v.ends.by[m], func(o *end) bool {
		return o != b && o.s.header.BootID == boot && slices.ContainsFunc(o.resets, meets)
	})
}
