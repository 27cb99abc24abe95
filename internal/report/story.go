package report

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sockwatch/sockwatch/internal/events"
)

// quickNS bounds a stall that is not worth a line of its own.
const quickNS = 1_000_000_000

// marksBefore is how many marks and target changes before the first trouble
// are told.
const marksBefore = 3

// teller makes the story of one connection.
type teller struct {
	ev     *evidence
	ends   []*end
	zero   uint64
	begin  uint64         // first trouble
	over   uint64         // the last that is told
	all    bool           // it was asked for: tell what is no trouble too
	used   map[*line]bool // told by a step of another event
	breaks []uint64       // what happened at these times parts runs
	steps  []Step
}

// name is what an end is called.
func (t *teller) name(e *end) string {
	if len(t.ends) == 2 && t.ends[0].netns.Name == t.ends[1].netns.Name && t.ends[0].netns.Generation == t.ends[1].netns.Generation {
		return e.sock.Local.String()
	}
	return nsName(&e.netns)
}

// nsName is the name of a namespace, and which of that name it is.
func nsName(n *events.Netns) string {
	if n.Generation > 1 {
		return n.Name + "/" + strconv.Itoa(n.Generation)
	}
	return n.Name
}

func (t *teller) endOf(e *end) string { return t.name(e) + "'s end" }

func (t *teller) at(ns uint64) string { return at(ns, t.zero) }

func (t *teller) add(s Step) { t.steps = append(t.steps, s) }

func (t *teller) step(kind string, e *end, ls ...*line) Step {
	s := Step{Kind: kind, Lines: []Line{}}
	if e != nil && e.host == nil {
		s.End = &e.index
	}
	if len(ls) > 0 {
		s.MonoNS = ls[0].MonoNS
		s.Lines = append(s.Lines, ls[0].ref())
		if n := len(ls); n > 1 {
			s.Lines = append(s.Lines, ls[n-1].ref())
			s.UntilNS = ls[n-1].MonoNS
		}
	}
	return s
}

// tell makes the steps.
func (t *teller) tell() {
	t.used = make(map[*line]bool)
	for i, e := range t.ends {
		e.index = i
		for _, ls := range [][]*line{e.lines, e.loose} {
			for _, l := range ls {
				t.over = max(t.over, l.MonoNS)
			}
		}
		if e.gone != nil {
			t.over = max(t.over, e.gone.MonoNS)
		}
		for _, v := range e.visitors {
			t.over = max(t.over, v.closed)
		}
	}
	t.around()
	t.taken()
	for _, e := range t.ends {
		for _, v := range e.visitors {
			t.lateSegments(v)
			t.synAcks(v)
		}
		t.lateSegments(e)
		t.life(e)
	}
	for _, e := range t.ends {
		t.runs(e)
		t.probes(e)
	}
	t.endings()
	slices.SortStableFunc(t.steps, func(a, b Step) int {
		return cmp.Or(cmp.Compare(a.MonoNS, b.MonoNS), cmp.Compare(a.rank, b.rank))
	})
	for i := range t.steps {
		t.steps[i].OffsetUs = int64(t.steps[i].MonoNS-t.zero) / 1000
	}
}

// around tells marks, what happened to the namespaces, and losses.
func (t *teller) around() {
	boot := t.ends[0].ns.boot
	until := t.over
	for _, e := range t.ends {
		// What happens while an end still waits for an answer matters to it.
		if e.closed == 0 && e.gone == nil && stillWaits(e) {
			until = max(until, e.last().last)
		}
	}
	var before []*line
	tell := func(l *line) {
		switch {
		case l.MonoNS > until:
		case l.MonoNS >= t.begin:
			t.around1(l)
		default:
			before = append(before, l)
		}
	}
	var all []*line
	for _, l := range t.ev.marks {
		if l.s.boot() == boot {
			all = append(all, l)
		}
	}
	for _, l := range t.ev.targets {
		for _, e := range t.ends {
			if l.Netns.Name != e.netns.Name && l.ns() != e.ns || l.s.boot() != boot || !slices.Contains(e.sessions, l.s) {
				continue
			}
			if l.Target.Change != "attached" && l.Target.Change != "alias" || (l.ns() != e.ns && l.MonoNS > e.born) {
				all = append(all, l)
				break
			}
		}
	}
	byTime(all)
	for _, l := range all {
		tell(l)
	}
	recent := max(0, len(before)-marksBefore)
	for _, l := range slices.Concat(inForce(before[:recent], before), before[recent:]) {
		t.around1(l)
	}

	told := make(map[*line]bool)
	for _, e := range t.ends {
		for _, s := range e.sessions {
			for _, l := range s.lostIn(e.born, max(t.over, e.until())) {
				if told[l.ln] {
					continue
				}
				told[l.ln] = true
				st := t.step(KindLost, nil, l.ln)
				st.Lost = l.ln.Lost
				st.Text = fmt.Sprintf("%s of %s were lost since %s; what is derived from several of them may be off from here on", count(l.ln.Lost.Count, "record", "records"), s.file.name, t.at(l.from))
				if l.ln.Lost.Count == 1 {
					st.Text = fmt.Sprintf("1 record of %s was lost since %s; what is derived from several of them may be off from here on", s.file.name, t.at(l.from))
				}
				t.add(st)
				t.breaks = append(t.breaks, st.MonoNS)
			}
		}
	}
}

// inForce are those of ls that nothing in all took back: a namespace that was
// paused, or taken off a network.
func inForce(ls, all []*line) (out []*line) {
	undo := map[string]string{"paused": "unpaused", "disconnected": "connected"}
	for _, l := range ls {
		if l.Target == nil || undo[l.Target.Change] == "" {
			continue
		}
		undone := slices.ContainsFunc(all, func(u *line) bool {
			return u.Target != nil && u.MonoNS >= l.MonoNS && u.ns() == l.ns() && u.Target.Change == undo[l.Target.Change] && u.Target.Detail == l.Target.Detail
		})
		if !undone {
			out = append(out, l)
		}
	}
	return out
}

func (t *teller) around1(l *line) {
	var s Step
	if l.Mark != nil {
		s = t.step(KindMark, nil, l)
		s.Mark = l.Mark
		s.Text = fmt.Sprintf("mark, %s: %s (by %s)", l.Mark.Kind, l.Mark.Text, l.Mark.By)
	} else {
		s = t.step(KindTarget, nil, l)
		s.Target = l.Target
		s.Text = targetWords(l.Target, l.Netns.Name)
		for _, e := range t.ends {
			if e.gone == l {
				s.End = &e.index
				s.Text += fmt.Sprintf(": what %s did from here on was not seen", t.endOf(e))
				s.Lines = append(s.Lines, e.lines[len(e.lines)-1].ref())
			}
		}
	}
	s.rank = -1
	t.add(s)
	t.breaks = append(t.breaks, l.MonoNS)
}

// stillWaits reports whether the last that was seen of an end is trouble.
func stillWaits(e *end) bool {
	if len(e.lines) == 0 {
		return false
	}
	l := e.lastLine()
	return l.Retransmit != nil || (l.Probe != nil && l.Probe.Direction == "sent")
}

// lateSegments tells what arrived where there was no socket.
func (t *teller) lateSegments(e *end) {
	for _, l := range e.loose {
		r := l.Reset
		if r == nil {
			continue // a SYN-ACK, see runs
		}
		if r.Direction == "received" {
			if t.ev.matched[l] != nil && t.told(t.ev.matched[l]) && (e.noSocket || !e.isOpen(l.MonoNS)) {
				continue // told where it was sent, and it changed nothing
			}
			s := t.step(KindReset, e, l)
			s.Reset = &Reset{Reset: *r, Arrived: ArrivedYes}
			s.Text = fmt.Sprintf("a RST arrived in %s that no socket accepted", t.name(e))
			if !e.noSocket && e.isOpen(l.MonoNS) {
				s.Text += fmt.Sprintf("; %s stays open", t.endOf(e))
			}
			s.rank = 1
			t.add(s)
			t.breaks = append(t.breaks, l.MonoNS)
			continue
		}
		s := t.step(KindLate, e, l)
		s.rank = -2 // the end that it resets comes after
		s.Reset = t.reset(e, l)
		of := "a segment of the peer's"
		peer := e.peer
		if peer == nil {
			peer = e.host
		}
		if again := retransmitted(peer, r.Trigger, l.MonoNS); again != nil {
			t.used[again] = true
			s.Reset.Retransmitted = &Retransmission{again.Retransmit.Attempt, again.Retransmit.Cause, again.MonoNS}
			s.Lines = append(s.Lines, again.ref())
			of = fmt.Sprintf("the %s retransmission (%s) of %s%s", ordinal(again.Retransmit.Attempt), again.Retransmit.Cause, t.endOf(peer), within(bySeen(peer)))
		} else if r.Trigger != nil {
			of = "a " + segmentWords(r.Trigger)
			if peer != nil {
				of += " of " + t.endOf(peer)
			}
		}
		reason := reasonWords(l)
		switch {
		case r.Trigger == nil && t.foreign(l):
			s.Inferred = true
			s.Text = fmt.Sprintf("a RST left %s that its TCP did not send (inferred: its firewall made it, or a program did)", t.name(e))
		case r.Trigger == nil:
			s.Text = fmt.Sprintf("a RST%s left %s that no socket sent", reason, t.name(e))
		case r.Socket && !e.noSocket && e.closed != 0 && e.closed <= l.MonoNS:
			s.Text = fmt.Sprintf("%s reached %s, whose socket had been closed for %s, and which answered with a RST%s", of, t.name(e), span(l.MonoNS-e.closed), reason)
		case r.Socket:
			s.Text = fmt.Sprintf("%s reached %s, which answered with a RST%s", of, t.name(e), reason)
		case l.TCP != nil && l.TCP.State == "LISTEN":
			s.Text = fmt.Sprintf("%s reached %s and found a listener, but no connection: it was answered with a RST%s", of, t.name(e), reason)
		case e.noSocket || e.closed == 0:
			s.Text = fmt.Sprintf("%s reached %s and found no socket: it was answered with a RST%s", of, t.name(e), reason)
		default:
			s.Text = fmt.Sprintf("%s reached %s, whose socket had been gone for %s: it was answered with a RST%s", of, t.name(e), span(l.MonoNS-e.closed), reason)
		}
		s.Text += t.arrival(e, s.Reset)
		t.add(s)
		t.breaks = append(t.breaks, l.MonoNS)
	}
}

// foreign reports whether a RST that was seen at the edge of a namespace is not
// one that its TCP sent, where this kernel tells them apart. Of several that
// left at once the edge may have seen another.
func (t *teller) foreign(l *line) bool {
	if l.Reset.SeenBy != "wire" || l.s.header == nil || slices.Contains(l.s.header.CannotShow, "resets-without-socket") || len(l.s.losses) > 0 {
		return false
	}
	return !slices.ContainsFunc(t.ev.resets[bootTuple{l.s.boot(), tuple{l.Sock.Local, l.Sock.Remote}}], func(o *line) bool {
		return o != l && max(o.MonoNS, l.MonoNS)-min(o.MonoNS, l.MonoNS) < slackNS
	})
}

// told reports whether a reset stands in this story.
func (t *teller) told(l *line) bool {
	for _, e := range t.ends {
		if slices.Contains(e.lines, l) || slices.Contains(e.loose, l) || slices.ContainsFunc(e.visitors, func(v *end) bool { return slices.Contains(v.loose, l) }) {
			return true
		}
	}
	return false
}

func segmentWords(s *events.Segment) string {
	n := s.SeqEnd - s.SeqStart
	switch {
	case s.Has("SYN"):
		return s.Flags
	case s.Has("FIN") && n > 0:
		n--
	}
	if n == 0 {
		return "segment (" + s.Flags + ", without data)"
	}
	return fmt.Sprintf("segment (%s, %s)", s.Flags, byteCount(n))
}

// retransmitted finds the retransmission of an end that a segment is.
func retransmitted(e *end, s *events.Segment, mono uint64) *line {
	if e == nil || s == nil {
		return nil
	}
	var best *line
	for _, l := range e.lines {
		if r := l.Retransmit; r != nil && l.MonoNS <= mono+slackNS && r.SeqStart == s.SeqStart && r.SeqEnd == s.SeqEnd {
			best = l
		}
	}
	return best
}

// reset says what became of a RST that an end sent.
func (t *teller) reset(e *end, l *line) *Reset {
	r := &Reset{Reset: *l.Reset, Arrived: ArrivedUnknown}
	switch {
	case l.Reset.Direction == "received", t.ev.arrived[l] != nil:
		r.Arrived = ArrivedYes
	case e.peer != nil && t.watched(e.peer, l.MonoNS):
		r.Arrived = ArrivedNotSeen
	}
	return r
}

// watched reports whether the namespace of an end was seen without loss from a
// time on until the story is over.
func (t *teller) watched(e *end, from uint64) bool {
	if e.gone != nil && e.gone.MonoNS <= from+slackNS {
		return false
	}
	s := e.last()
	return s.edgeSeen() && s.first <= from && s.last >= from && s.whole(from, t.over)
}

// arrival is the end of a sentence about a RST that was sent.
func (t *teller) arrival(e *end, r *Reset) string {
	if r.Arrived == ArrivedNotSeen {
		return fmt.Sprintf("; it was not seen to arrive in %s", t.name(e.peer))
	}
	return ""
}

// life tells how an end began and ended, what it was told, and what arrived.
func (t *teller) life(e *end) {
	if e.noSocket {
		return
	}
	first := e.lines[0]
	switch {
	case e.before:
		s := t.step(KindBornBefore, e, first)
		s.rank = -3
		s.Text = t.endOf(e) + " is older than the trace"
		// What happens while sockets are listed may be told before they are.
		if !slices.ContainsFunc(e.lines, func(l *line) bool { return l.Inventory != nil }) {
			s.Text = t.endOf(e) + " is seen here for the first time, how it began was not"
		}
		if first.TCP != nil {
			s.Outstanding = outstanding(first.TCP)
			s.Text += ": " + first.TCP.State
			if first.TCP.UnackedBytes > 0 {
				s.Text += fmt.Sprintf(", %s not acknowledged", amount(first.TCP, first.TCP.State))
			}
			if first.Inventory != nil && first.TCP.Retransmits > 0 {
				s.Text += fmt.Sprintf(", %s before", count(uint64(first.TCP.Retransmits), "timeout", "timeouts"))
			}
		}
		t.add(s)
	case e.opener == 1:
		s := t.step(KindOpened, e, first)
		s.rank = -3
		s.Text = t.endOf(e) + " began to connect"
		t.add(s)
	case e.peer == nil || e.peer.opener != 1 || e.peer.before:
		s := t.step(KindOpened, e, first)
		s.rank = -3
		s.Text = t.endOf(e) + " was accepted by its listener"
		t.add(s)
	}
	session := first.s
	connecting := e.opener == 1 && !e.before
	for _, l := range e.lines {
		if l.s != session {
			s := t.step(KindWatchedAgain, e, l)
			s.Text = fmt.Sprintf("%s is watched again, by %s; it was not since %s", t.endOf(e), l.s.file.name, t.at(session.last))
			t.add(s)
			t.breaks = append(t.breaks, l.MonoNS)
			session = l.s
		}
		switch {
		case l.State != nil:
			if connecting && l.State.New == "ESTABLISHED" {
				connecting = false
				if t.synTrouble(l.MonoNS) || t.all {
					s := t.step(KindOpened, e, l)
					s.rank = 2
					s.Text = t.endOf(e) + " is connected"
					t.add(s)
					t.breaks = append(t.breaks, l.MonoNS)
				}
				continue
			}
			t.closing(e, l)
		case l.Abort != nil && l == e.abort:
			t.aborted(e, l)
		case l.Reset != nil && !t.used[l]:
			t.ownReset(e, l)
		case l.Error != nil && l.Error.Errno != 0 && !t.nearAbort(e, l):
			s := t.step(KindError, e, l)
			s.Error = l.Error
			s.Text = fmt.Sprintf("%s was given the error %s", t.endOf(e), l.Error.Name)
			t.add(s)
		case l.Arrival != nil && (t.all || t.inTrouble(l.MonoNS)):
			s := t.step(KindArrival, e, l)
			s.Arrival = l.Arrival
			s.Text = fmt.Sprintf("%s arrived at %s, after %s without data", byteCount(l.Arrival.Bytes), t.endOf(e), spanMs(l.Arrival.SilenceMs))
			t.add(s)
		}
	}
}

// synTrouble reports whether the handshake took more than one try.
func (t *teller) synTrouble(until uint64) bool {
	for _, e := range t.ends {
		for _, ls := range [][]*line{e.lines, e.loose} {
			for _, l := range ls {
				if l.Retransmit != nil && l.MonoNS <= until && (l.Retransmit.Cause == "syn" || l.Retransmit.Cause == "synack") {
					return true
				}
			}
		}
	}
	return false
}

// inTrouble reports whether an end has a run of retransmissions or probes open
// at a time, or is gone.
func (t *teller) inTrouble(mono uint64) bool {
	for _, e := range t.ends {
		if e.abort != nil && e.abort.MonoNS <= mono {
			return true
		}
		open := uint64(0)
		for _, l := range e.lines {
			if l.MonoNS > mono {
				// The answer may be seen before the hook of what it answers.
				if open == 0 && l.Retransmit != nil && l.MonoNS <= mono+slackNS/10 {
					return true
				}
				break
			}
			switch {
			case l.Retransmit != nil && open == 0:
				open = l.MonoNS
			case l.Inventory != nil && l.TCP != nil && l.TCP.Retransmits > 0:
				open = l.MonoNS
			case l.Recovered != nil:
				open = 0
			}
		}
		if open != 0 {
			return true
		}
	}
	return false
}

// closing tells an orderly end.
func (t *teller) closing(e *end, l *line) {
	st := l.State
	if st.New == "CLOSE" {
		if l != e.closing || e.abort != nil {
			return
		}
		s := t.step(KindClosed, e, l)
		s.rank = 3
		closed := t.endOf(e) + " closed"
		if t.folds(e, entered(e, "FIN_WAIT1")) && t.closedFirst(e) {
			closed += " first,"
		}
		switch st.Old {
		case "LAST_ACK", "CLOSING":
			s.Text = closed + " in order: FINs went both ways, and its own was acknowledged"
		case "FIN_WAIT2":
			s.Text = closed + " in order: its FIN was acknowledged"
		case "FIN_WAIT1":
			s.Text = closed + " after its FIN; that it was acknowledged was not seen"
		default:
			s.Text = fmt.Sprintf("%s went from %s to CLOSE, and no line says why", t.endOf(e), st.Old)
			if l.s.summary == nil {
				s.Text += fmt.Sprintf(": %s breaks off before that", l.s.file.name)
			}
		}
		t.add(s)
		t.breaks = append(t.breaks, l.MonoNS)
		return
	}
	if t.folds(e, l) {
		return
	}
	var text string
	switch st.New {
	case "FIN_WAIT1":
		first := ""
		if t.closedFirst(e) {
			first = " first"
		}
		text = fmt.Sprintf("%s was closed%s, at least for sending, by its process: a FIN follows what it has to send", t.endOf(e), first)
	case "CLOSE_WAIT":
		text = fmt.Sprintf("the peer's FIN arrived at %s", t.endOf(e))
	case "LAST_ACK":
		text = fmt.Sprintf("%s was closed by its process too", t.endOf(e))
		switch fin := entered(e, "CLOSE_WAIT"); {
		case fin == nil:
			text = fmt.Sprintf("%s was closed by its process, after the peer's FIN", t.endOf(e))
		default:
			text += fmt.Sprintf(", %s after the peer's FIN", span(l.MonoNS-fin.MonoNS))
		}
	case "CLOSING":
		text = fmt.Sprintf("the peer's FIN arrived at %s, whose own is not acknowledged yet", t.endOf(e))
	default:
		return
	}
	s := t.step(KindClosing, e, l)
	s.Text = text
	if l.TCP != nil && (l.TCP.UnackedBytes > 0 || l.TCP.UnsentBytes > 0) && st.New != "CLOSE_WAIT" {
		s.Outstanding = outstanding(l.TCP)
		var has []string
		if l.TCP.UnackedBytes > 0 {
			has = append(has, amount(l.TCP, l.TCP.State)+" not acknowledged")
		}
		if l.TCP.UnsentBytes > 0 {
			has = append(has, unsent(l.TCP, l.TCP.State)+" not sent")
		}
		s.Text += ", with " + strings.Join(has, " and ") + " yet"
	}
	t.add(s)
}

// folds reports whether a state on the way to an orderly end is not told: where
// both ends close within a second, that is told once of each.
func (t *teller) folds(e *end, l *line) bool {
	return l != nil && closes(e) && (e.peer == nil || closes(e.peer)) && e.closed-l.MonoNS < quickNS && !t.all
}

// closes reports whether an end closed in order.
func closes(e *end) bool {
	return e.abort == nil && e.closing != nil && orderly(e.closing.State.Old)
}

// entered finds where an end entered a state.
func entered(e *end, state string) *line {
	for _, l := range e.lines {
		if l.State != nil && l.State.New == state {
			return l
		}
	}
	return nil
}

// closedFirst reports whether the other end is known to have sent no FIN before
// this one did.
func (t *teller) closedFirst(e *end) bool {
	fin := entered(e, "FIN_WAIT1")
	if fin == nil || e.peer == nil || e.peer.noSocket {
		return false
	}
	if own := entered(e.peer, "FIN_WAIT1"); own != nil {
		return fin.MonoNS < own.MonoNS
	}
	return entered(e.peer, "CLOSE_WAIT") != nil || t.watched(e.peer, fin.MonoNS) && e.peer.isOpen(fin.MonoNS)
}

func outstanding(t *events.TCP) *Outstanding {
	return &Outstanding{UnackedBytes: t.UnackedBytes, UnsentBytes: t.UnsentBytes, UnreadBytes: t.UnreadBytes, SinceLastAckUs: t.SinceLastAckUs}
}

func (t *teller) nearAbort(e *end, l *line) bool {
	return e.abort != nil && l.MonoNS+slackNS >= e.abort.MonoNS && l.MonoNS <= e.abort.MonoNS+slackNS
}

// abortReset finds the RST that an end sent as it gave up, or that ended it.
func (t *teller) abortReset(e *end) *line {
	want := "sent"
	if e.abort.Abort.By == "peer" {
		want = "received"
	}
	var best *line
	for _, l := range e.lines {
		if l.Reset != nil && l.Reset.Direction == want && !t.used[l] && l.MonoNS+slackNS >= e.abort.MonoNS && l.MonoNS <= e.abort.MonoNS+quickNS {
			best = l
		}
	}
	return best
}

// aborted tells the end of an end.
func (t *teller) aborted(e *end, l *line) {
	s := t.step(KindAborted, e, l)
	t.breaks = append(t.breaks, l.MonoNS)
	a := *l.Abort
	first := e.peer != nil && !e.peer.noSocket && e.peer.isOpen(l.MonoNS) && (e.peer.gone == nil || e.peer.gone.MonoNS > l.MonoNS) && a.By != "peer"
	s.Ended = &Ended{Abort: a, First: first, PeerReceived: -1}
	s.Text = t.endOf(e) + " " + abortWords(l, first, t.probesLeft(e, l))
	for _, x := range e.lines {
		if x.Error != nil && x.Error.Errno != 0 && t.nearAbort(e, x) {
			s.Ended.Reported = x.Error.Name
			s.Lines = append(s.Lines, x.ref())
		}
	}
	rst := t.abortReset(e)
	if rst != nil {
		t.used[rst] = true
		s.Ended.Reset = t.reset(e, rst)
		s.Lines = append(s.Lines, rst.ref())
	}
	switch {
	case rst != nil && a.By == "peer":
		from := t.origin(e, rst, &s)
		if a.Cause == "refused" && from != "" {
			s.Text += ","
		}
		s.Text += from
	case rst != nil:
		s.Text += "; it sent a RST" + reasonWords(rst)
		if first && s.Ended.Reset.Arrived == ArrivedNotSeen && endedToo(e.peer, l) {
			s.Text += ", which was not seen to arrive in " + t.name(e.peer)
		}
	}
	if l.TCP != nil {
		s.Ended.Outstanding = outstanding(l.TCP)
		s.Text += t.left(e, l, s.Ended)
	}
	if s.Ended.Reported != "" && !ownDoing(&a) {
		s.Text += fmt.Sprintf("; its process is told %s", s.Ended.Reported)
	}
	t.add(s)
	if first {
		t.unaware(e, l, rst, s.Ended.Reset)
	}
}

// ownDoing reports whether the process ended the connection itself: the error
// is left in the socket then, and nobody waits for it.
func ownDoing(a *events.Abort) bool {
	switch a.Cause {
	case "close-with-unread-data", "linger-zero", "disconnected", "connect-cancelled", "listener-closed":
		return true
	}
	return false
}

// probesLeft is how many probes of a shut window were seen to leave since an
// end last heard something new; -1 if that cannot be seen.
func (t *teller) probesLeft(e *end, l *line) (n int) {
	if l.TCP == nil || l.TCP.ProbesOut == 0 || !l.s.edgeSeen() || !l.s.whole(e.born, l.MonoNS) {
		return -1
	}
	for _, p := range e.lines {
		if p.Probe != nil && p.Probe.Direction == "sent" && p.Probe.Kind == "zero-window" && p.MonoNS <= l.MonoNS {
			if p.Probe.Number == 1 {
				n = 0
			}
			n++
		}
	}
	return min(n, int(l.TCP.ProbesOut))
}

// left says what an end leaves behind.
func (t *teller) left(e *end, l *line, ended *Ended) string {
	text := ""
	tcp := l.TCP
	if tcp.UnackedBytes > 0 && (l.Abort.State != "SYN_SENT" || tcp.UnackedBytes > 1) {
		what := amount(tcp, l.Abort.State)
		if l.Abort.Cause != "user-timeout" {
			text += fmt.Sprintf("; %s %s never acknowledged", what, wasOrWere(what))
		}
		if n, ok := t.peerHas(e, l); ok && l.Abort.State != "SYN_SENT" {
			ended.PeerReceived = int64(n)
			switch peer := t.endOf(e.peer); {
			case n == 0:
				text += fmt.Sprintf(", and %s had received none of that in order", peer)
			case n >= tcp.UnackedBytes:
				text += fmt.Sprintf(", though %s had received all of that", peer)
			default:
				text += fmt.Sprintf(", though %s had received the first %s of that", peer, byteCount(n))
			}
		}
	}
	told := tcp.UnackedBytes == 0 && l.Abort.By == "local" && (l.Abort.Cause == "user-timeout" || l.Abort.Cause == "retries-exhausted")
	if tcp.UnsentBytes > 0 && l.Abort.State != "SYN_SENT" && !told {
		what := unsent(tcp, l.Abort.State)
		text += fmt.Sprintf("; %s %s never sent", what, wasOrWere(what))
	}
	// A process that has closed its end reads nothing more.
	closed := l.Abort.State == "LAST_ACK" || l.Abort.State == "CLOSING" || l.Abort.Facts.Dead
	if tcp.UnreadBytes > 0 && l.Abort.Cause != "close-with-unread-data" && !closed {
		what := unread(tcp, l.Abort.State)
		text += fmt.Sprintf("; %s it had received %s not read yet", what, wasOrWere(what))
	}
	return text
}

// peerHas is how many of the bytes that an end leaves unacknowledged the other
// end had received in order, if that end was over by then.
func (t *teller) peerHas(e *end, l *line) (n uint32, ok bool) {
	p := e.peer
	if p == nil || p.noSocket || p.closed == 0 || p.closed > l.MonoNS || !t.lossless() {
		return 0, false
	}
	last := p.abort
	if last == nil {
		last = p.closing
	}
	if last.TCP == nil {
		return 0, false
	}
	return uint32(max(int32(last.TCP.RcvNxt-l.TCP.SndUna), 0)), true
}

// resent are the counters that know of retransmissions.
var resent = []string{
	"RetransSegs", "TCPSynRetrans", "TCPTimeouts", "TCPLossProbes", "TCPFastRetrans", "TCPSlowStartRetrans", "TCPRetransFail",
}

// counted reports whether every retransmission of an end is there, as far as
// its sessions know: none that the kernel counted is missing, and no record was
// lost.
func counted(e *end) bool {
	for _, s := range e.sessions {
		if len(s.file.damage) > 0 || len(s.lostIn(e.born, e.until())) > 0 {
			return false
		}
		if s.summary == nil {
			continue
		}
		for i := range s.summary.Namespaces {
			n := &s.summary.Namespaces[i]
			if !n.Is(e.netns) {
				continue
			}
			for _, c := range n.Ledger.Lines {
				if c.Result == "incomplete" && c.Difference > 0 && slices.Contains(resent, c.Counter) {
					return false
				}
			}
		}
	}
	return true
}

// bySeen qualifies how many retransmissions there were, or which one it was,
// where one may be missing.
func bySeen(e *end) string {
	if counted(e) {
		return ""
	}
	return ", by what was seen"
}

// within closes a qualification in the middle of a sentence.
func within(s string) string {
	if s == "" {
		return ""
	}
	return s + ","
}

// lossless reports whether nothing of the story can be missing.
func (t *teller) lossless() bool {
	for _, e := range t.ends {
		for _, s := range e.sessions {
			if !s.whole(e.born, t.over) {
				return false
			}
		}
	}
	return true
}

// origin says where the RST came from that ended an end.
func (t *teller) origin(e *end, rst *line, s *Step) string {
	sent := t.ev.matched[rst]
	switch {
	case sent == nil:
		return t.guess(e, rst, s)
	case e.peer != nil && slices.Contains(e.peer.loose, sent):
		return fmt.Sprintf(" sent by %s%s", t.name(e.peer), reasonWords(sent))
	case e.peer != nil && slices.Contains(e.peer.lines, sent):
		return fmt.Sprintf(" sent by %s%s", t.endOf(e.peer), reasonWords(sent))
	}
	s.Lines = append(s.Lines, sent.ref())
	text := " sent by " + nsName(sent.Netns)
	if sent.Sock.Cookie != 0 {
		text = fmt.Sprintf(" sent by another socket of %s with the same addresses", nsName(sent.Netns))
	}
	return text + reasonWords(sent)
}

// reasonWords is the kernel's reason for a RST, where it gives one.
func reasonWords(l *line) string {
	if l.Reset.Reason == "" {
		return ""
	}
	return " (" + l.Reset.Reason + ")"
}

// guess says what a RST of unknown origin looks like.
func (t *teller) guess(e *end, rst *line, s *Step) string {
	g := rst.Reset.Segment
	if g == nil || g.Has("ACK") || rst.TCP == nil || g.SeqStart != rst.TCP.RcvNxt {
		return ""
	}
	// A kernel without the connection answers a segment with a RST that has no
	// ACK and the sequence number which that segment acknowledged.
	var last *line
	for _, l := range e.lines {
		if l.Retransmit != nil && l.MonoNS <= rst.MonoNS+slackNS/10 {
			last = l
		}
	}
	if last == nil || (last.MonoNS < rst.MonoNS && rst.MonoNS-last.MonoNS > quickNS) {
		return ""
	}
	s.Inferred = true
	apart := uint64(0)
	if last.MonoNS < rst.MonoNS {
		apart = rst.MonoNS - last.MonoNS
	}
	return fmt.Sprintf(" %s after its %s retransmission%s (inferred: in answer to that, from where the connection was not known any more)", span(apart), ordinal(last.Retransmit.Attempt), bySeen(e))
}

// ownReset tells a RST that did not end the end.
func (t *teller) ownReset(e *end, l *line) {
	// Those that an abort tells come before or after it.
	if e.abort != nil && t.abortReset(e) == l {
		return
	}
	s := t.step(KindReset, e, l)
	s.Reset = t.reset(e, l)
	if l.Reset.Direction == "received" {
		s.Text = t.endOf(e) + " received a RST"
	} else {
		s.Text = t.endOf(e) + " sent a RST" + reasonWords(l)
		if l.Reset.Trigger != nil {
			s.Text += " in answer to a " + segmentWords(l.Reset.Trigger)
		}
		s.Text += t.arrival(e, s.Reset)
		if got := t.ev.arrived[l]; got != nil && !t.told(got) {
			s.Lines = append(s.Lines, got.ref())
			s.Text += fmt.Sprintf("; it arrived in %s at another socket with the same addresses", nsName(got.Netns))
		}
	}
	s.rank = 1
	t.add(s)
	t.breaks = append(t.breaks, l.MonoNS)
}

// endedToo reports whether the other end ended soon after this one.
func endedToo(p *end, l *line) bool { return p.closed != 0 && p.closed-l.MonoNS < slackNS }

// unaware tells that the other end does not learn that this one is gone.
func (t *teller) unaware(e *end, l, rst *line, r *Reset) {
	p := e.peer
	got := t.ev.arrived[rst]
	if (got != nil && got.Reset.Socket) || endedToo(p, l) {
		return
	}
	s := t.step(KindUnaware, p, l)
	s.rank = 1
	reached := ""
	switch {
	case rst == nil:
		reached = "no RST was seen to be sent"
	case got != nil:
		s.Lines = append(s.Lines, got.ref())
		reached = fmt.Sprintf("the RST arrived in %s, but no socket accepted it", t.name(p))
	case r.Arrived == ArrivedNotSeen:
		reached = fmt.Sprintf("the RST was not seen to arrive in %s", t.name(p))
	default:
		reached = "whether the RST arrived is not known"
	}
	until := "it was still open when the session ended"
	switch {
	case p.closed != 0:
		s.UntilNS = p.closed
		until = fmt.Sprintf("it stayed open for %s more, until %s", span(p.closed-l.MonoNS), t.at(p.closed))
	case p.gone != nil:
		until = fmt.Sprintf("it was still open when %s was no longer watched", t.name(p))
	}
	s.Text = fmt.Sprintf("%s did not learn of it: %s, and %s", t.endOf(p), reached, until)
	if r != nil && r.Arrived == ArrivedUnknown {
		s.Text = fmt.Sprintf("whether %s learned of it is not known; %s", t.endOf(p), until)
	}
	switch {
	case p.abort != nil:
		s.Lines = append(s.Lines, p.abort.ref())
	case p.closing != nil:
		s.Lines = append(s.Lines, p.closing.ref())
	default:
		s.Lines = append(s.Lines, p.lastLine().ref())
	}
	t.add(s)
}

// endings tells what became of ends whose end is not there.
func (t *teller) endings() {
	var open []Step
	for _, e := range t.ends {
		if e.noSocket || e.closed != 0 || e.gone != nil {
			continue
		}
		last, se := e.lastLine(), e.last()
		s := t.step(KindEnd, e, last)
		s.MonoNS, s.rank = se.last, 9
		state := t.lastState(last, &s)
		switch {
		case se.summary == nil:
			s.Text = fmt.Sprintf("what became of %s is not known: %s breaks off here, without a summary; when last seen it was %s", t.endOf(e), se.file.name, state)
		case len(se.lostIn(last.MonoNS, se.last)) > 0:
			s.Text = fmt.Sprintf("whether %s was still open when the session ended is not known: records were lost; when last seen it was %s", t.endOf(e), state)
		default:
			s.Text = fmt.Sprintf("%s was still open when the session ended; when last seen it was %s", t.endOf(e), state)
			open = append(open, s)
			continue
		}
		t.add(s)
	}
	if len(open) == 2 && open[0].MonoNS == open[1].MonoNS && open[0].Text[len(t.endOf(t.ends[0])):] == open[1].Text[len(t.endOf(t.ends[1])):] {
		both := open[0]
		both.End, both.Text = nil, "both ends"+strings.Replace(strings.Replace(both.Text[len(t.endOf(t.ends[0])):], " was still", " were still", 1), "it was", "they were", 1)
		both.Lines = append(both.Lines, open[1].Lines...)
		open = []Step{both}
	}
	t.steps = append(t.steps, open...)
}

// lastState is the state an end was left in, and what it had outstanding.
func (t *teller) lastState(last *line, s *Step) string {
	if last.TCP == nil {
		return "in a state that is not known"
	}
	state := last.TCP.State
	if last.State != nil {
		state = last.State.New
	}
	left := *last.TCP
	if last.Recovered != nil {
		left.UnackedBytes = left.SndNxt - last.Recovered.Ack
	}
	if left.UnackedBytes == 0 {
		return state
	}
	s.Outstanding = outstanding(&left)
	if last.Recovered != nil {
		return fmt.Sprintf("%s with %s not acknowledged yet (an acknowledgement that ends no stall is no event)", state, amount(&left, state))
	}
	return fmt.Sprintf("%s with %s not acknowledged", state, amount(&left, state))
}
