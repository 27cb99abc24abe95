package events

import "github.com/sockwatch/sockwatch/bpf"

// run is a run of retransmissions: it lasts until the peer acknowledges
// something new.
type run struct {
	active  bool
	count   uint32
	una     uint32 // snd_una when it began
	firstNS uint64
	times   [8]uint64 // of the last retransmissions, by count modulo 8

	firstSent uint64 // when the first was handed down; never: not known

	headTick uint64 // jiffies when the first unacknowledged segment was last sent again
}

func (r *run) reset() { *r = run{} }

// never stands for the time of a retransmission that did not leave the socket.
const never = 1<<64 - 1

func (t *Tracker) retransmit(s *sock, r *bpf.Record) error {
	if s.run.active && s.run.una != r.SndUna {
		if err := t.recovered(s, r, r.SndUna, false); err != nil {
			return err
		}
	}
	if !s.run.active {
		s.run = run{active: true, una: r.SndUna, firstNS: r.MonoNs, count: s.run.count}
	}
	s.run.count++
	// The kernel counts the segments of a retransmission before it hands them
	// down; one that was given up before that moves nothing.
	segments := max(1, uint32(r.SegSegs))
	if r.ArgA != 0 && r.TotalRetrans == s.sent {
		segments = 0
	}
	s.sent = r.TotalRetrans
	// The hook runs after the segment was handed down, on a short path even
	// after it has arrived.
	sent := r.MonoNs
	if r.SentNs != 0 {
		sent = min(sent, r.SentNs)
	}
	if r.ArgA != 0 {
		sent = never
	}
	s.run.times[s.run.count%8] = sent
	if s.run.count == 1 {
		s.run.firstSent = sent
	}
	// Whatever is sent again sets the stamp, but for a loss probe: without one
	// this is the first of its loss episode.
	if r.RetransStamp == 0 || r.UndoMarker != 0 || r.CaState != caLoss {
		s.noTimeout = r.CaState == caLoss && r.UndoMarker == 0 && r.Pending != timerNone
	}
	cause, why := retransmitCause(r, s.noTimeout)
	due := dueFacts{attempt: s.run.count}
	if r.SegSeq == r.SndUna && r.ArgA == 0 {
		s.run.headTick = r.Jiffies
	}
	due.headNow = s.run.headTick == r.Jiffies
	t.begin(TypeRetransmit, r, s)
	t.buf.retransmit = Retransmit{
		Cause:     cause,
		Attempt:   s.run.count,
		SeqStart:  r.SegSeq,
		SeqEnd:    r.SegEndSeq,
		Flags:     flagNames[r.SegFlags&0xff],
		Segments:  segments,
		NextDueMs: nextDue(r, cause, due, t.cfg.HZ, &s.ns.defaults),
		Why:       why,
		NoTimeout: s.noTimeout,
	}
	switch {
	case r.ArgA < 0:
		t.buf.retransmit.SendError = errnoName(uint32(-r.ArgA))
	case r.ArgA > 0:
		t.buf.retransmit.SendError = "NET_XMIT " + itoa(r.ArgA)
	}
	t.ev.Retransmit = &t.buf.retransmit
	return t.emit()
}

// recovered ends a run: ack is the first acknowledgement past its start.
func (t *Tracker) recovered(s *sock, r *bpf.Record, ack uint32, exact bool) error {
	run := s.run
	s.run.reset()
	t.begin(TypeRecovered, r, s)
	last := run.firstNS
	for n := run.count; n > 0 && n+8 > run.count; n-- {
		if sent := run.times[n%8]; sent != never {
			last = sent
			break
		}
	}
	t.buf.recovered = Recovered{
		StalledUs:   (r.MonoNs - run.firstNS) / 1000,
		Retransmits: run.count,
		SinceLastUs: (r.MonoNs - last) / 1000,
		Exact:       exact,
		Ack:         ack,
		AckedBytes:  ack - run.una,
	}
	if exact {
		t.buf.recovered.Answered, t.buf.recovered.Original = answered(&run, r)
	}
	t.ev.Recovered = &t.buf.recovered
	return t.emit()
}

// answered is the number of the retransmission that an acknowledgement answers,
// by the time stamp that it echoes, if it has one; 0 if it is not known.
// original says that it answers what was sent before.
func answered(run *run, r *bpf.Record) (n uint32, original bool) {
	if r.Kind == bpf.KindState || r.ArgB == 0 {
		return byRoundTrip(run, r), false
	}
	// Both are whole milliseconds, rounded down: of two that were sent within one,
	// the round trip tells.
	echo, least := uint32(r.ArgA), uint64(0)
	if r.RttMinUs != 1<<32-1 {
		least = uint64(r.RttMinUs) * 1000
	}
	for i := run.count; i > 0 && i+8 > run.count; i-- {
		sent := run.times[i%8]
		switch {
		case sent == never || int32(echo-uint32(sent/1e6)) < 0:
		case n != 0 && sent/1e6 != run.times[n%8]/1e6:
			return n, false
		case r.MonoNs-sent >= least:
			return i, false
		default:
			n = i
		}
	}
	// Too soon for the first: what was sent before it may be as old.
	return 0, n == 0 && run.firstSent != never && int32(echo-uint32(run.firstSent/1e6)) < 0
}

// byRoundTrip is the number of the last retransmission that was sent at least a
// minimum round trip before the acknowledgement arrived; 0 if none was, or if
// the round trip was never measured.
func byRoundTrip(run *run, r *bpf.Record) uint32 {
	if r.RttMinUs == 0 || r.RttMinUs == 1<<32-1 {
		return 0
	}
	least := uint64(r.RttMinUs) * 1000
	if r.Kind == bpf.KindState && r.ArgA == stateSynSent {
		// Measured by the timestamps of this very handshake, whole milliseconds
		// and never none.
		least -= min(least, 2_000_000)
	}
	for n := run.count; n > 0 && n+8 > run.count; n-- {
		if sent := run.times[n%8]; sent != never && r.MonoNs-sent >= least {
			return n
		}
	}
	return 0
}

func (t *Tracker) synAck(ns *namespace, r *bpf.Record) error {
	s := &t.lone
	*s = sock{ns: ns, id: t.wireID(r)}
	tuple := tupleOf(r)
	s.owner = t.listenerOwner(&tuple)
	timeout := int64(1000)
	if r.Rto != 0 {
		timeout = int64(r.Rto) * 1000 / int64(t.cfg.HZ)
	}
	// The timer counts its expiry after it has sent, and is armed anew for
	// twice as long; a SYN that comes again arms it for as long as before.
	expiries, duplicate := uint(r.Backoff)+1, r.Pending != timerNone
	if duplicate {
		expiries = uint(r.Backoff)
	}
	t.begin(TypeRetransmit, r, s)
	t.ev.TCP = nil // the snapshot is the listener's
	t.buf.retransmit = Retransmit{
		Cause:        causeSynAck,
		Attempt:      uint32(r.Retransmits) + 1,
		SeqStart:     r.SegSeq,
		SeqEnd:       r.SegEndSeq,
		Flags:        flagNames[r.SegFlags&0xff],
		Segments:     1,
		NextDueMs:    min(timeout<<min(expiries, 16), ns.defaults.RTOMaxMs),
		Why:          synAckWhy(duplicate),
		DuplicateSYN: duplicate,
	}
	t.ev.Retransmit = &t.buf.retransmit
	return t.emit()
}
