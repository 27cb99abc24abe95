package events

import (
	"slices"
	"strconv"
	"strings"

	"github.com/sockwatch/sockwatch/bpf"
)

// A Judgement is what the facts in an event say of its cause. An abort whose
// facts say that the connection ended in an orderly way has no Cause.
type Judgement struct {
	By    string // of an abort: local, peer or undecided
	Cause string
	Why   string
}

// Recheck decides the cause of a retransmission or an abort again, from
// nothing but the facts in the event, by the functions that decided it when
// it was written. ok is false for an event of another type.
func Recheck(e *Event) (j Judgement, ok bool) {
	switch {
	case e.Retransmit != nil:
		j.Cause, j.Why = recheckRetransmit(e)
		return j, true
	case e.Abort != nil:
		r, h := recordOfAbort(e)
		j.By, j.Cause, j.Why, _ = abortCause(&r, &h)
		return j, true
	}
	return Judgement{}, false
}

func recheckRetransmit(e *Event) (cause, why string) {
	flags := flagsOf(e.Retransmit.Flags)
	if e.TCP == nil && flags&flagSYN != 0 {
		return causeSynAck, synAckWhy(e.Retransmit.DuplicateSYN)
	}
	r := bpf.Record{SegFlags: flags, SegSeq: e.Retransmit.SeqStart}
	if t := e.TCP; t != nil {
		r.State, r.CaState, r.Pending = uint8(stateOf(t.State)), caOf(t.CaState), timerOf(t.PendingTimer)
		r.SndUna, r.Retransmits, r.RetransOut, r.SndCwnd = t.SndUna, t.Retransmits, t.RetransOut, t.SndCwnd
	}
	return retransmitCause(&r, e.Retransmit.NoTimeout)
}

// recordOfAbort rebuilds what abortCause looks at.
func recordOfAbort(e *Event) (bpf.Record, history) {
	a, f := e.Abort, &e.Abort.Facts
	r := bpf.Record{MonoNs: e.MonoNS, ArgA: int32(stateOf(a.State)), LingerJiffies: f.LingerMs}
	if f.User {
		r.Flags |= bpf.FlagUser
	}
	if f.Linger {
		r.Flags |= bpf.FlagLinger
	}
	if f.Dead {
		r.Flags |= bpf.FlagDead
	}
	if t := e.TCP; t != nil {
		r.SndUna, r.SndNxt, r.WriteSeq, r.RcvNxt, r.CopiedSeq = t.SndUna, t.SndNxt, t.WriteSeq, t.RcvNxt, t.CopiedSeq
		r.SkErr, r.UserTimeoutMs, r.Retransmits, r.ProbesOut = t.SkErr, t.UserTimeoutMs, t.Retransmits, t.ProbesOut
		if t.Keepalive.On {
			r.Flags |= bpf.FlagKeepOpen
		}
	}
	return r, history{
		resetReceived: f.ResetReceived, dataAfterEnd: f.DataAfterEnd,
		sentReset: f.ResetSent, resetSent: f.ResetReason, connectNS: f.ConnectNS,
		disconnected: f.Disconnected, unaccepted: f.Unaccepted, multipath: f.Multipath, probingMs: f.ProbingMs,
	}
}

// abortFacts are the facts that decide an abort and are not in its snapshot.
func abortFacts(r *bpf.Record, h *history, hz uint32) AbortFacts {
	f := AbortFacts{
		User:          r.Flags&bpf.FlagUser != 0,
		Dead:          r.Flags&bpf.FlagDead != 0,
		Linger:        r.Flags&bpf.FlagLinger != 0,
		ResetReceived: h.resetReceived,
		DataAfterEnd:  h.dataAfterEnd,
		ResetSent:     h.sentReset,
		ResetReason:   h.resetSent,
		ConnectNS:     h.connectNS,
		Disconnected:  h.disconnected,
		Unaccepted:    h.unaccepted,
		Multipath:     h.multipath,
		ProbingMs:     h.probingMs,
	}
	if f.Linger {
		// Up, so that only 0 is 0. The kernel has a largest value for "for ever".
		f.LingerMs = (min(r.LingerJiffies, 1<<40)*1000 + uint64(hz) - 1) / uint64(hz)
	}
	return f
}

// ErrnoName is the name that an event gives an error number.
func ErrnoName(errno uint32) string { return errnoName(errno) }

// stateOf is the number of a state's name; 0: there is no such state.
func stateOf(name string) int {
	if n := slices.Index(stateNames[:], name); n > 0 {
		return n
	}
	return numberAfter(name, "STATE_")
}

func caOf(name string) uint8 {
	if n := slices.Index(caNames[:], name); n >= 0 {
		return uint8(n)
	}
	return uint8(numberAfter(name, "CA_"))
}

func timerOf(name string) uint8 {
	for _, t := range [...]uint8{timerNone, timerRetrans, timerProbe0, timerLossProbe, timerReoTimeout} {
		if timerName(t) == name {
			return t
		}
	}
	return uint8(numberAfter(name, "timer-"))
}

// numberAfter is the number that stands in for a name that a newer kernel added.
func numberAfter(name, prefix string) int {
	n, _ := strconv.ParseUint(strings.TrimPrefix(name, prefix), 10, 8)
	return int(n)
}

func flagsOf(names string) (flags uint16) {
	for name := range strings.SplitSeq(names, ",") {
		for bit := range 8 {
			if name == flagNames[1<<bit] {
				flags |= 1 << bit
			}
		}
	}
	return flags
}
