package report

import (
	"fmt"
	"slices"

	"github.com/sockwatch/sockwatch/internal/events"
)

// Drops are segments that were dropped alike.
type Drops struct {
	Reason    string          `json:"reason"`
	Direction string          `json:"direction"`
	Device    string          `json:"device"`
	Netns     string          `json:"netns"` // where
	Count     int             `json:"count"`
	Had       bool            `json:"had"`                     // the receiver had them already
	First     *events.Segment `json:"first_segment,omitempty"` // where it is known
}

// Calls are reads or writes of one process, one after the other.
type Calls struct {
	Op     string `json:"op"`
	Count  int    `json:"count"`
	Bytes  uint64 `json:"bytes"`
	Frozen bool   `json:"frozen"` // the process was, or was being, in one of them
}

// takes takes a line about what happened beside the sockets. It is false for
// any other.
func (ev *evidence) takes(s *session, l *line) bool {
	switch {
	case l.Segment != nil: // every segment: the story is in the others
	case l.Drop == nil && l.ICMP == nil && l.Neighbour == nil && l.IO == nil:
		return false
	case l.Netns != nil && (l.Sock != nil || l.Neighbour != nil) && !s.passed[l.ns()]:
		ev.beside = append(ev.beside, l)
	}
	return true
}

// had reports whether a segment was dropped because all of it was there.
func had(d *events.Drop) bool {
	return slices.Contains([]string{"TCP_OLD_DATA", "TCP_OLD_SEQUENCE", "TCP_OFOMERGE", "TCP_OFO_DROP"}, d.Reason)
}

// takenTrouble finds the ends whose trouble a drop or an ICMP error began.
func (ev *evidence) takenTrouble() {
	for _, l := range ev.beside {
		if (l.Drop == nil || had(l.Drop)) && l.ICMP == nil {
			continue
		}
		for _, e := range ev.ends {
			if l.ns() == e.ns && ofEnd(e, l) && e.born <= l.MonoNS && e.isOpen(l.MonoNS) && (e.trouble == 0 || l.MonoNS < e.trouble) {
				e.trouble = l.MonoNS
			}
		}
	}
}

// ofEnd reports whether a line of an end's namespace is about the end.
func ofEnd(e *end, l *line) bool {
	if l.Sock.Cookie != 0 || e.sock.Cookie == 0 {
		return l.Sock.Cookie == e.sock.Cookie
	}
	return tuple{l.Sock.Local, l.Sock.Remote} == e.tuple()
}

// concerns reports whether a line beside the sockets is about the connection:
// it names one of its sockets, or its addresses in a namespace on the way.
func (t *teller) concerns(l *line) bool {
	if l.Sock == nil || l.s.boot() != t.ends[0].ns.boot || l.MonoNS > t.over+slackNS {
		return false
	}
	for _, e := range t.ends {
		if l.ns() == e.ns {
			return ofEnd(e, l) && e.born <= l.MonoNS+slackNS
		}
	}
	from := t.sender(l)
	if l.Sock.Cookie != 0 || from == nil || l.Drop == nil || l.Drop.Segment == nil {
		return false
	}
	// Other namespaces may use the same addresses.
	seq := l.Drop.Segment.SeqStart
	return from.sent.ok && int32(seq-from.sent.first) >= -1 && int32(from.sent.last-seq) >= 0
}

// sender is the end whose segment a line is about; nil if that is not told.
func (t *teller) sender(l *line) *end {
	way := tuple{l.Sock.Local, l.Sock.Remote}
	if l.Drop != nil && l.Drop.Direction == "received" {
		way = way.mirrored()
	}
	for _, e := range t.ends {
		if e.tuple() == way {
			return e
		}
	}
	return nil
}

// taken tells what became of segments on their way, what was said about it, and
// what the processes did.
func (t *teller) taken() {
	var group []*line
	flush := func() {
		switch {
		case len(group) == 0:
		case group[0].Drop != nil:
			t.drops(group)
		case group[0].ICMP != nil:
			t.icmps(group)
		default:
			t.calls(group)
		}
		group = nil
	}
	failed := make(map[string]bool)
	for _, l := range t.ev.beside {
		switch {
		case l.Neighbour != nil:
			t.neighbour(l, failed)
			continue
		case !t.concerns(l), t.answered(l), l.IO != nil && !t.all && !t.inTrouble(l.MonoNS):
			continue
		}
		if len(group) > 0 && (!alike(group[0], l) || t.broken(group[len(group)-1].MonoNS, l.MonoNS)) {
			flush()
		}
		group = append(group, l)
	}
	flush()
}

// answered reports whether a segment that was dropped is told as what a RST
// answered.
func (t *teller) answered(l *line) bool {
	if l.Drop == nil || l.Drop.Segment == nil {
		return false
	}
	for _, e := range t.ends {
		all := [][]*line{e.lines, e.loose}
		for _, v := range e.visitors {
			all = append(all, v.loose)
		}
		for _, ls := range all {
			for _, r := range ls {
				if r.Reset != nil && r.Reset.Trigger != nil && r.Reset.Trigger.SeqStart == l.Drop.Segment.SeqStart && max(r.MonoNS, l.MonoNS)-min(r.MonoNS, l.MonoNS) < slackNS {
					return true
				}
			}
		}
	}
	return false
}

// alike reports whether two lines are told in one.
func alike(a, b *line) bool {
	if a.ns() != b.ns() || a.Sock.Local != b.Sock.Local {
		return false
	}
	switch {
	case a.Drop != nil && b.Drop != nil:
		return a.Drop.Reason == b.Drop.Reason && a.Drop.Direction == b.Drop.Direction && a.Drop.Device == b.Drop.Device
	case a.ICMP != nil && b.ICMP != nil:
		return a.ICMP.Type == b.ICMP.Type && a.ICMP.Code == b.ICMP.Code && a.ICMP.From == b.ICMP.From
	case a.IO != nil && b.IO != nil:
		return a.IO.Op == b.IO.Op && a.Owner != nil && b.Owner != nil && a.Owner.PID == b.Owner.PID
	}
	return false
}

func (t *teller) drops(ls []*line) {
	first := ls[0].Drop
	from := t.sender(ls[0])
	s := t.step(KindDropped, from, ls...)
	s.Drops = &Drops{
		Reason: first.Reason, Direction: first.Direction, Device: first.Device, Netns: nsName(ls[0].Netns),
		Count: len(ls), Had: had(first), First: first.Segment,
	}
	whose := "the peer's"
	if from != nil {
		whose = "of " + t.endOf(from)
	}
	what := "a segment " + whose
	if g := first.Segment; g != nil && len(ls) == 1 {
		what = "a " + segmentWords(g) + " " + whose
		if again := retransmitted(from, g, ls[0].MonoNS); again != nil && again.MonoNS+slackNS >= ls[0].MonoNS {
			what = fmt.Sprintf("the %s retransmission (%s) %s", ordinal(again.Retransmit.Attempt), again.Retransmit.Cause, whose)
			s.Lines = append(s.Lines, again.ref())
		}
	}
	until := ""
	if len(ls) > 1 {
		what, until = fmt.Sprintf("%d segments %s", len(ls), whose), " until "+t.at(s.UntilNS)
	}
	why := first.Reason
	if why == "" {
		why = "this kernel gives no reason"
	}
	if first.Device != "" {
		why += ", at " + first.Device
	}
	switch {
	case s.Drops.Had && len(ls) == 1:
		s.Text = fmt.Sprintf("%s reached %s, which had it already (%s)", what, s.Drops.Netns, why)
	case s.Drops.Had:
		s.Text = fmt.Sprintf("%s reached %s%s, which had them already (%s)", what, s.Drops.Netns, until, why)
	default:
		way := "on the way in"
		if first.Direction == "sent" {
			way = "on the way out"
		}
		was := "was"
		if len(ls) > 1 {
			was = "were"
		}
		s.Text = fmt.Sprintf("%s %s dropped in %s%s, %s (%s)", what, was, s.Drops.Netns, until, way, why)
	}
	s.rank = -1
	t.add(s)
}

func (t *teller) icmps(ls []*line) {
	i := ls[0].ICMP
	from := t.sender(ls[0])
	s := t.step(KindICMP, from, ls...)
	s.ICMP = i
	who := i.From
	if from != nil && i.From == from.sock.Local.Addr().String() {
		who = "its own kernel"
	}
	s.Text = fmt.Sprintf("%s was told by %s that a segment was not delivered (ICMP %s %s)", nsName(ls[0].Netns), who, i.Type, i.Code)
	if len(ls) > 1 {
		s.Text += fmt.Sprintf(", %d times until %s", len(ls), t.at(s.UntilNS))
	}
	t.add(s)
}

// neighbour tells what happened to the neighbour that an end talks to.
func (t *teller) neighbour(l *line, failed map[string]bool) {
	n := l.Neighbour
	for _, e := range t.ends {
		if l.ns() != e.ns || n.Address != e.sock.Remote.Addr().Unmap().String() || l.MonoNS < e.born || l.MonoNS > t.over+quickNS {
			continue
		}
		s := t.step(KindNeighbour, e, l)
		s.Neighbour = n
		switch {
		case n.Change == "failed" && n.PID != 0:
			s.Text = fmt.Sprintf("%s's entry for the neighbour %s was deleted by %s %d", t.name(e), n.Address, n.Comm, n.PID)
		case n.Change == "failed":
			s.Text = fmt.Sprintf("nobody answers for the address %s at %s of %s", n.Address, n.Device, t.name(e))
		case n.Change == "moved":
			s.Text = fmt.Sprintf("%s is now at another hardware address of %s: %s, before %s", n.Address, t.name(e), n.NewLladdr, n.OldLladdr)
		case !failed[n.Address]:
			return // the first time
		default:
			s.Text = fmt.Sprintf("%s answers for the address %s at %s of %s", n.NewLladdr, n.Address, n.Device, t.name(e))
		}
		failed[n.Address] = n.Change == "failed"
		t.add(s)
		return
	}
}

func (t *teller) calls(ls []*line) {
	e := t.sender(ls[0])
	s := t.step(KindIO, e, ls...)
	c := &Calls{Op: ls[0].IO.Op, Count: len(ls)}
	for _, l := range ls {
		if !l.IO.Peek {
			c.Bytes += uint64(l.IO.Bytes)
		}
		c.Frozen = c.Frozen || l.IO.Frozen == "yes"
	}
	s.Calls = c
	did := "read"
	in := "calls"
	switch c.Op {
	case "write":
		did = "wrote"
	case "arrive":
		in = "segments"
	}
	s.Text = fmt.Sprintf("the process of %s %s %s", t.endOf(e), did, count(c.Bytes, "byte", "bytes"))
	if c.Op == "arrive" {
		s.Text = fmt.Sprintf("%s arrived at %s while its process was frozen", count(c.Bytes, "byte", "bytes"), t.endOf(e))
	}
	if len(ls) > 1 {
		s.Text += fmt.Sprintf(" in %d %s until %s", len(ls), in, t.at(s.UntilNS))
	}
	if c.Frozen && c.Op != "arrive" {
		s.Text += ", as it was being frozen"
	}
	t.add(s)
}

// took says what became of the segment that a run of retransmissions repeats.
func (t *teller) took(e *end, first *line) string {
	r := first.Retransmit
	if r.Attempt != 1 {
		return ""
	}
	var best *line
	for _, l := range t.ev.beside {
		if l.Drop == nil || l.Drop.Segment == nil || had(l.Drop) || l.MonoNS >= first.MonoNS || t.sender(l) != e || !t.concerns(l) {
			continue
		}
		if g := l.Drop.Segment; int32(g.SeqStart-r.SeqStart) <= 0 && int32(g.SeqEnd-r.SeqStart) > 0 {
			best = l
		}
	}
	if best == nil {
		return ""
	}
	reason := ""
	if best.Drop.Reason != "" {
		reason = " (" + best.Drop.Reason + ")"
	}
	return fmt.Sprintf("; what it repeats had been dropped in %s%s, %s before", nsName(best.Netns), reason, span(first.MonoNS-best.MonoNS))
}
