package report

import (
	"fmt"
	"slices"
)

// run is a run of retransmissions, up to the acknowledgement that ends it.
type run struct {
	lines []*line
	rec   *line // nil: it was not answered
}

func (r *run) from() uint64 { return r.lines[0].MonoNS }

// stallNS is how long a run that was answered took. It may have begun before
// the trace.
func (r *run) stallNS() uint64 {
	return max(r.rec.MonoNS-r.from(), r.rec.Recovered.StalledUs*1000)
}

// runsOf divides the retransmissions of an end into runs.
func runsOf(e *end) []run {
	var out []run
	var cur run
	for _, l := range e.lines {
		switch {
		case l.Retransmit != nil:
			if n := len(cur.lines); n > 0 && l.Retransmit.Attempt <= cur.lines[n-1].Retransmit.Attempt {
				out = append(out, cur) // the end of the run before was lost
				cur = run{}
			}
			cur.lines = append(cur.lines, l)
		case l.Recovered != nil && len(cur.lines) > 0:
			cur.rec = l
			out = append(out, cur)
			cur = run{}
		case l.Recovered != nil:
			out = append(out, run{rec: l}) // begun before the trace
		}
	}
	if len(cur.lines) > 0 {
		out = append(out, cur)
	}
	return out
}

// broken reports whether something is told between two times.
func (t *teller) broken(from, to uint64) bool {
	for _, b := range t.breaks {
		if b > from && b <= to {
			return true
		}
	}
	return false
}

// runs tells the retransmissions of an end.
func (t *teller) runs(e *end) {
	t.synAcks(e)
	var chain struct { // from the first retransmission to when all that was outstanding is acknowledged
		active bool
		target uint32
		what   string
		from   uint64
	}
	// reached ends the chain with the acknowledgement that covers it.
	reached := func(ack uint32) string {
		if !chain.active || int32(ack-chain.target) < 0 {
			return ""
		}
		chain.active = false
		return fmt.Sprintf("; with it all that was outstanding at %s is acknowledged: %s", t.at(chain.from), chain.what)
	}
	var quick []run
	flush := func() {
		if len(quick) > 0 {
			t.quick(e, quick, reached)
			quick = nil
		}
	}
	for _, r := range runsOf(e) {
		if len(r.lines) > 0 && r.rec != nil && r.stallNS() < quickNS && !t.broken(r.from(), r.rec.MonoNS-1) {
			if n := len(quick); n > 0 && t.broken(quick[n-1].rec.MonoNS, r.from()) {
				flush()
			}
			quick = append(quick, r)
			continue
		}
		flush()
		if len(r.lines) > 0 {
			if first := r.lines[0]; first.TCP != nil && !chain.active {
				chain.active, chain.target = first.TCP.State != "SYN_SENT", first.TCP.SndNxt
				chain.what, chain.from = amount(first.TCP, first.TCP.State), first.MonoNS
				if !e.before || first.Retransmit.Attempt == 1 {
					t.outstanding(e, first)
				}
			}
			t.parts(e, r.lines, r.rec)
		}
		if r.rec != nil {
			t.recovered(e, r, reached)
		}
	}
	flush()
}

func (t *teller) outstanding(e *end, l *line) {
	if l.TCP.UnackedBytes == 0 {
		return
	}
	s := t.step(KindOutstanding, e, l)
	s.rank = -2
	s.Outstanding = outstanding(l.TCP)
	what := amount(l.TCP, l.TCP.State)
	s.Text = fmt.Sprintf("%s of %s %s sent and not acknowledged", what, t.endOf(e), wasOrWere(what))
	if l.TCP.SinceLastAckUs >= 0 {
		s.Text += fmt.Sprintf("; its last acknowledgement had come %s before", spanUs(uint64(l.TCP.SinceLastAckUs)))
	}
	if l.TCP.UnsentBytes > 0 && l.TCP.State != "SYN_SENT" {
		what := unsent(l.TCP, l.TCP.State)
		s.Text += fmt.Sprintf("; %s %s still waiting to be sent", what, wasOrWere(what))
	}
	t.add(s)
}

// parts tells a run, parted where something else happened.
func (t *teller) parts(e *end, ls []*line, rec *line) {
	ls = slices.DeleteFunc(slices.Clone(ls), func(l *line) bool { return t.used[l] })
	for len(ls) > 0 {
		n := 1
		for n < len(ls) && !t.broken(ls[n-1].MonoNS, ls[n].MonoNS) {
			n++
		}
		t.part(e, ls[:n], rec != nil && n == len(ls))
		ls = ls[n:]
	}
}

// collectRuns sums up retransmissions.
func collectRuns(ls []*line) *Retransmissions {
	first, last := ls[0].Retransmit, ls[len(ls)-1].Retransmit
	r := &Retransmissions{
		Count: len(ls), Runs: 1, Causes: make(map[string]int), SendErrors: make(map[string]int),
		FirstAttempt: first.Attempt, LastAttempt: last.Attempt, NextDueMs: last.NextDueMs,
	}
	for _, l := range ls {
		r.Segments += uint64(l.Retransmit.Segments)
		r.Causes[l.Retransmit.Cause]++
		if l.Retransmit.SendError != "" {
			r.SendErrors[l.Retransmit.SendError]++
		}
	}
	return r
}

func (t *teller) part(e *end, ls []*line, answered bool) {
	s := t.step(KindRetransmissions, e, ls...)
	r := collectRuns(ls)
	s.Retransmissions = r
	r.Answered = answered
	p := e.peer
	r.PeerGone = p != nil && !p.noSocket && p.closed != 0 && p.closed < ls[0].MonoNS

	switch {
	case r.FirstAttempt > 1 && r.Count == 1:
		s.Text = fmt.Sprintf("%s retransmitted for the %s time (%s)", t.endOf(e), ordinal(r.FirstAttempt), causes(r.Causes))
	case r.FirstAttempt > 1:
		s.Text = fmt.Sprintf("%s retransmitted %d more times until %s, for the %s to the %s time (%s)", t.endOf(e), r.Count, t.at(s.UntilNS), ordinal(r.FirstAttempt), ordinal(r.LastAttempt), causes(r.Causes))
	case r.Count == 1:
		s.Text = fmt.Sprintf("%s retransmitted once (%s)", t.endOf(e), causes(r.Causes))
	default:
		s.Text = fmt.Sprintf("%s retransmitted %d times until %s (%s)", t.endOf(e), r.Count, t.at(s.UntilNS), causes(r.Causes))
	}
	s.Text += sendErrors(r) + bySeen(e) + t.took(e, ls[0])
	if r.PeerGone {
		s.Text += fmt.Sprintf(", though %s was gone", t.endOf(p))
	}
	if !answered {
		if t.lossless() {
			s.Text += "; no acknowledgement"
		}
		if r.NextDueMs >= 0 {
			s.Text += nextDue(r)
		}
	}
	t.add(s)
}

func nextDue(r *Retransmissions) string {
	after := "later"
	if r.Count > 1 {
		after = "after the last"
	}
	return fmt.Sprintf("; the next was due %s %s", spanMs(uint64(r.NextDueMs)), after)
}

func sendErrors(r *Retransmissions) string {
	if len(r.SendErrors) == 0 {
		return ""
	}
	n := 0
	for _, c := range r.SendErrors {
		n += c
	}
	if n == r.Count {
		return fmt.Sprintf(", which could not be sent (%s)", causes(r.SendErrors))
	}
	return fmt.Sprintf(", %d of which could not be sent (%s)", n, causes(r.SendErrors))
}

// recovered tells the end of a stall.
func (t *teller) recovered(e *end, r run, reached func(uint32) string) {
	s := t.step(KindRecovered, e, r.rec)
	s.rank = 1
	rec := r.rec.Recovered
	s.Recovered = rec
	switch {
	case !rec.Exact:
		s.Text = fmt.Sprintf("the stall of %s was over: an acknowledgement had come some time before", t.endOf(e))
	case rec.Answered != 0 && rec.Answered == rec.Retransmits:
		s.Text = fmt.Sprintf("the %s retransmission of %s%s was answered, %s after it was sent", ordinal(rec.Answered), t.endOf(e), within(bySeen(e)), spanUs(rec.SinceLastUs))
	case rec.Answered != 0:
		s.Text = fmt.Sprintf("the %s retransmission of %s%s was answered", ordinal(rec.Answered), t.endOf(e), within(bySeen(e)))
	case rec.Original:
		s.Text = fmt.Sprintf("what %s had sent first was acknowledged: sending it again was not needed", t.endOf(e))
	default:
		s.Text = fmt.Sprintf("an acknowledgement reached %s; which of its transmissions it answers is not known", t.endOf(e))
	}
	if syn := r.rec.TCP != nil && r.rec.TCP.State == "SYN_SENT"; syn {
		s.Text += ": its SYN is acknowledged"
	} else {
		s.Text += ": it acknowledges " + acked(r.rec, rec.AckedBytes)
	}
	atMost := ""
	if !rec.Exact {
		atMost = "at most "
	}
	of := "the retransmission"
	if rec.Retransmits != 1 {
		of = fmt.Sprintf("the first of %d retransmissions", rec.Retransmits)
	}
	s.Text += fmt.Sprintf(", %s%s after %s", atMost, spanUs(rec.StalledUs), of)
	s.Text += reached(rec.Ack)
	t.add(s)
}

// quick tells runs that were answered within a second.
func (t *teller) quick(e *end, rs []run, reached func(uint32) string) {
	var ls []*line
	var sum, stall uint64
	for _, r := range rs {
		ls = append(ls, r.lines...)
		sum += uint64(r.rec.Recovered.AckedBytes)
		stall = max(stall, r.rec.Recovered.StalledUs)
	}
	last := rs[len(rs)-1].rec
	s := t.step(KindRetransmissions, e, append(slices.Clone(ls), last)...)
	r := collectRuns(ls)
	r.Runs, r.Answered, r.AckedBytes, r.StalledUs, r.NextDueMs = len(rs), true, sum, stall, -1
	s.Retransmissions = r
	times := count(uint64(r.Count), "time", "times")
	if r.Count == 1 {
		times = "once"
	}
	if len(rs) == 1 {
		s.Text = fmt.Sprintf("%s retransmitted %s (%s)%s, answered within %s: %s acknowledged", t.endOf(e), times, causes(r.Causes), sendErrors(r)+bySeen(e), span(last.MonoNS-rs[0].from()), acked(last, last.Recovered.AckedBytes))
		if last.TCP != nil && last.TCP.State == "SYN_SENT" {
			s.Text = fmt.Sprintf("%s retransmitted its SYN %s, answered within %s", t.endOf(e), times, span(last.MonoNS-rs[0].from()))
		}
	} else {
		s.Text = fmt.Sprintf("%s retransmitted %s in %d runs until %s (%s)%s, each answered within %s", t.endOf(e), times, len(rs), t.at(last.MonoNS), causes(r.Causes), sendErrors(r)+bySeen(e), spanUs(stall))
	}
	s.Text += t.took(e, ls[0]) + reached(last.Recovered.Ack)
	t.add(s)
}

// synAcks tells the retransmissions of SYN-ACKs, which have no socket yet.
func (t *teller) synAcks(e *end) {
	var ls []*line
	for _, l := range e.loose {
		if l.Retransmit != nil {
			ls = append(ls, l)
		}
	}
	for len(ls) > 0 {
		n := 1
		for n < len(ls) && !t.broken(ls[n-1].MonoNS, ls[n].MonoNS) {
			n++
		}
		s := t.step(KindRetransmissions, e, ls[:n]...)
		r := collectRuns(ls[:n])
		s.Retransmissions = r
		again := 0
		for _, l := range ls[:n] {
			if l.Retransmit.DuplicateSYN {
				again++
			}
		}
		r.Answered = !e.noSocket && n == len(ls)
		s.Text = fmt.Sprintf("%s retransmitted its SYN-ACK", t.name(e))
		if n > 1 {
			s.Text += fmt.Sprintf(" %d times until %s", n, t.at(s.UntilNS))
		} else if r.FirstAttempt > 1 {
			s.Text += fmt.Sprintf(" for the %s time", ordinal(r.FirstAttempt))
		}
		switch {
		case again == n && n == 1:
			s.Text += ", because the SYN came again"
		case again > 0:
			s.Text += fmt.Sprintf(", %d of them because the SYN came again", again)
		}
		if !r.Answered && r.NextDueMs >= 0 {
			s.Text += nextDue(r)
		}
		if e.noSocket && n == len(ls) && t.lossless() {
			s.Text += "; no connection came of it"
		}
		t.add(s)
		ls = ls[n:]
	}
}

// probes tells the probes of an end.
func (t *teller) probes(e *end) {
	var ls []*line
	for _, l := range e.lines {
		if l.Probe != nil && (l.MonoNS >= t.begin || t.all) && !(l.Probe.Direction == "received" && t.sentProbe(e, l)) {
			ls = append(ls, l)
		}
	}
	for len(ls) > 0 {
		p := ls[0].Probe
		n := 1
		for n < len(ls) && ls[n].Probe.Kind == p.Kind && ls[n].Probe.Direction == p.Direction && !t.broken(ls[n-1].MonoNS, ls[n].MonoNS) {
			n++
		}
		t.probeGroup(e, ls[:n])
		ls = ls[n:]
	}
}

// sentProbe reports whether the peer's line of a probe is there.
func (t *teller) sentProbe(e *end, l *line) bool {
	if e.peer == nil {
		return false
	}
	return slices.ContainsFunc(e.peer.lines, func(s *line) bool { return s.Probe != nil && s.Probe.Direction == "sent" && sameProbe(s, l) })
}

func sameProbe(sent, got *line) bool {
	return sent.Probe.Segment.SeqStart == got.Probe.Segment.SeqStart && got.MonoNS+slackNS >= sent.MonoNS && got.MonoNS < sent.MonoNS+quickNS
}

func (t *teller) probeGroup(e *end, ls []*line) {
	s := t.step(KindProbes, e, ls...)
	first, last := ls[0].Probe, ls[len(ls)-1].Probe
	p := &Probes{Kind: first.Kind, Direction: first.Direction, Count: len(ls), FirstNumber: first.Number, LastNumber: last.Number, Arrived: -1}
	s.Probes = p
	what := p.Kind + " probe"
	if p.Kind == "zero-window" {
		what = "probe of a window that is shut"
	}
	numbers := fmt.Sprintf(", number %d", p.FirstNumber)
	if p.Count > 1 {
		what = p.Kind + " probes"
		if p.Kind == "zero-window" {
			what = "probes of a window that is shut"
		}
		numbers = fmt.Sprintf(" until %s, numbers %d to %d", t.at(s.UntilNS), p.FirstNumber, p.LastNumber)
		if p.FirstNumber == p.LastNumber {
			numbers = fmt.Sprintf(" until %s, each number %d of its run", t.at(s.UntilNS), p.FirstNumber)
		}
		what = fmt.Sprintf("%d %s", p.Count, what)
	} else {
		what = "a " + what
	}
	if p.Direction == "received" {
		s.Text = fmt.Sprintf("%s received %s%s", t.endOf(e), what, numbers)
	} else {
		s.Text = fmt.Sprintf("%s sent %s%s", t.endOf(e), what, numbers)
		t.probesArrived(e, ls, &s)
	}
	t.add(s)
}

func (t *teller) probesArrived(e *end, ls []*line, s *Step) {
	if e.peer == nil || e.peer.noSocket || !t.watched(e.peer, ls[0].MonoNS) || (e.peer.closed != 0 && e.peer.closed < ls[len(ls)-1].MonoNS) {
		return
	}
	n := 0
	for _, l := range ls {
		if slices.ContainsFunc(e.peer.lines, func(g *line) bool {
			return g.Probe != nil && g.Probe.Direction == "received" && sameProbe(l, g)
		}) {
			n++
		}
	}
	s.Probes.Arrived = n
	switch {
	case n == 0 && len(ls) == 1:
		s.Text += fmt.Sprintf("; it was not seen to arrive in %s", t.name(e.peer))
	case n == 0:
		s.Text += fmt.Sprintf("; none was seen to arrive in %s", t.name(e.peer))
	case n < len(ls):
		s.Text += fmt.Sprintf("; %d of them were seen to arrive in %s", n, t.name(e.peer))
	case n == 1:
		s.Text += fmt.Sprintf("; it arrived in %s", t.name(e.peer))
	default:
		s.Text += fmt.Sprintf("; all of them arrived in %s", t.name(e.peer))
	}
}
