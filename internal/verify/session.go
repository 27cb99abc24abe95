package verify

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/evidence"
)

// maxLike is how many contradictions are kept of one check in a session, and
// few how many findings of another level.
const (
	maxLike = 20
	few     = 5
)

// most is how many findings of a level are kept.
func most(l Level) int {
	if l == Contradiction {
		return maxLike
	}
	return few
}

// The sessions that ended in order: everything that could be read was.
var orderly = []string{"stopped", "duration", "targets-gone"}

// session is one session while its lines pass by.
type session struct {
	f   *fileCheck
	out *Session
	nth int // of the file, from 1

	header *events.Session // nil if its line is missing
	first  events.Event    // only the common part
	audit  *evidence.Audit // nil without header or summary

	summary     *events.Summary // once its line has passed
	summaryLine int
	summarySeq  uint64

	want  uint64 // the next seq
	other uint64 // what it is too if the line before had one wrong number
	after uint64 // the seq after that of the line before

	latest     uint64 // mono_ns
	latestLine int
	latestSeq  uint64

	lost       uint64
	anonymous  bool // a socket had no cookie when it mattered
	clock      clock
	namespaces map[events.Netns]*namespace
	socks      map[sockKey]*sock
	expect     *closing // the next line has to be its abort
	before     lineBefore
	open       []*end

	kept map[like]int // findings so far

	// What contradicts the rest only if no record was lost.
	doubtful []Finding
}

// like is what findings have in common that are not all told.
type like struct {
	Level
	Check
}

type namespace struct {
	netns    events.Netns
	attached uint64 // mono_ns of the first attached line; 0: none
	gone     uint64
	told     bool // that nothing says it was attached
	events   map[string]uint64
}

// lineBefore is what the line before was about.
type lineBefore struct {
	sock *sock
	sent bool // a reset that the socket sent
}

func newSession(f *fileCheck, e *events.Event, line int, sum *events.Summary) *session {
	s := &session{
		f: f, nth: len(f.out.Sessions) + 1, header: e.Session, want: 1,
		namespaces: make(map[events.Netns]*namespace), socks: make(map[sockKey]*sock),
		kept: make(map[like]int),
	}
	s.first = events.Event{Seq: e.Seq, Type: e.Type, MonoNS: e.MonoNS, Time: e.Time}
	s.out = &Session{
		Session: s.nth, FirstLine: line, Began: e.Time, MonoNS: [2]uint64{e.MonoNS, e.MonoNS},
		Targets: []string{}, Events: make(map[string]uint64), Omitted: make(map[Check]uint64),
	}
	switch {
	case s.header == nil:
		s.want = e.Seq
	default:
		s.out.BootID, s.out.Version = s.header.BootID, s.header.Version+" "+s.header.Commit
		s.out.Targets = append(s.out.Targets, s.header.Targets...)
		s.selfTest(s.header.SelfTest)
		if sum != nil {
			s.audit = evidence.NewAudit(s.header, sum)
		}
	}
	return s
}

func (s *session) file() string { return s.f.out.File }

func (s *session) finding(l Level, c Check, line int, seq uint64, format string, args ...any) Finding {
	return Finding{Level: l, Check: c, File: s.file(), Session: s.nth, Line: line, Seq: seq, Text: fmt.Sprintf(format, args...)}
}

func (s *session) find(l Level, c Check, line int, seq uint64, format string, args ...any) {
	s.keep(s.finding(l, c, line, seq, format, args...))
}

func (s *session) keep(f Finding) {
	kind := like{f.Level, f.Check}
	if s.kept[kind]++; s.kept[kind] > most(f.Level) {
		s.out.Omitted[f.Check]++
		return
	}
	s.f.out.Findings = append(s.f.out.Findings, f)
}

// contradicts is for what cannot be, whatever was lost.
func (s *session) contradicts(c Check, e *events.Event, format string, args ...any) {
	s.find(Contradiction, c, s.out.LastLine, e.Seq, format, args...)
}

// doubts is for what cannot be unless records were lost.
func (s *session) doubts(c Check, e *events.Event, format string, args ...any) {
	if len(s.doubtful) == maxLike {
		s.out.Omitted[c]++
		return
	}
	s.doubtful = append(s.doubtful, s.finding(Contradiction, c, s.out.LastLine, e.Seq, format, args...))
}

// twin tells a session that is there twice.
func (s *session) twin(all []*session) {
	for _, o := range all {
		if o == s || o.header == nil || o.first.MonoNS != s.first.MonoNS || o.header.BootID != s.header.BootID || o.header.PID != s.header.PID {
			continue
		}
		if o.f == s.f {
			s.find(Contradiction, CheckNumbering, s.out.FirstLine, s.first.Seq, "the session of line %d begins again", o.out.FirstLine)
		} else {
			s.find(Note, CheckNumbering, s.out.FirstLine, s.first.Seq, "the same session is in %s", o.file())
		}
		return
	}
}

// selfTest holds the result of a self-test against what it lists.
func (s *session) selfTest(t *events.SelfTest) {
	switch {
	case t == nil:
	case t.Passed != (len(t.Missing) == 0):
		s.find(Contradiction, CheckCounts, s.out.FirstLine, s.first.Seq, "self_test.passed is %t, and self_test.missing lists %d", t.Passed, len(t.Missing))
	case !t.Passed:
		s.find(Incomplete, CheckCounts, s.out.FirstLine, s.first.Seq, "the self-test failed, so that nothing follows from what is not here: %s", strings.Join(t.Missing, "; "))
	}
}

// unreadable counts a line that is no event: it had a number all the same.
func (s *session) unreadable() {
	s.out.Lines++
	s.other, s.want, s.after = s.want, s.want+1, 0
	s.expect = nil
	s.before = lineBefore{}
}

// add takes the next event.
func (s *session) add(e *events.Event, line int) {
	s.out.LastLine, s.out.LastSeq = line, e.Seq
	s.number(e)
	s.out.Lines++
	s.out.Events[string(e.Type)]++
	s.when(e)
	s.where(e)
	if s.audit != nil {
		s.audit.Add(e)
	}
	s.causes(e)
	s.socket(e)
	switch {
	case e.Clock != nil:
		s.clockPair(e)
	case e.Lost != nil:
		s.lostLine(e)
	case e.Summary != nil:
		sum := *e.Summary
		s.summary, s.summaryLine, s.summarySeq = &sum, line, e.Seq
	}
}

// number holds seq against the line before.
func (s *session) number(e *events.Event) {
	got, want := e.Seq, s.want
	follows := got == s.after
	s.after = got + 1
	switch {
	case got == want, got == s.other:
		s.want, s.other = got+1, 0
	case follows: // the line before, which was said to be wrong here
		s.want, s.other = max(want, got+1), 0
	case got > want:
		n := got - want
		s.contradicts(CheckNumbering, e, "seq is %d where %d has to follow: %s missing, or moved", got, want, plural(n, "line is", "lines are"))
		s.want, s.other = got+1, want+1
	default:
		s.contradicts(CheckNumbering, e, "seq is %d where %d has to follow: a line was put in, copied, moved or its number changed", got, want)
		s.other = want + 1
	}
}

func plural(n uint64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// where notes namespaces, and counts their lines.
func (s *session) where(e *events.Event) {
	if e.Netns == nil {
		return
	}
	n := s.namespaces[*e.Netns]
	if t := e.Target; n == nil && t != nil && t.Formerly != nil && s.namespaces[*t.Formerly] != nil {
		// It goes on under another name.
		n = s.namespaces[*t.Formerly]
		n.netns = *e.Netns
		s.namespaces[n.netns] = n
	}
	if n == nil {
		n = &namespace{netns: *e.Netns, events: make(map[string]uint64)}
		s.namespaces[n.netns] = n
	}
	n.events[string(e.Type)]++
	if t := e.Target; t != nil {
		switch {
		case t.Change == "attached" && n.attached == 0:
			n.attached = e.MonoNS
		case t.Change == "gone":
			n.gone = e.MonoNS
		}
	}
	if e.Sock != nil && n.attached == 0 && s.header != nil && !n.told {
		n.told = true
		s.contradicts(CheckSockets, e, "no line before says that %s was attached", nameOf(n.netns))
	}
}

func nameOf(n events.Netns) string {
	if n.Generation > 1 {
		return fmt.Sprintf("%s/%d", n.Name, n.Generation)
	}
	return n.Name
}

// causes decides the cause again.
func (s *session) causes(e *events.Event) {
	j, ok := events.Recheck(e)
	if !ok {
		return
	}
	s.out.Causes++
	switch {
	case e.Retransmit != nil:
		if r := e.Retransmit; r.Cause != j.Cause {
			s.contradicts(CheckCauses, e, "retransmit.cause is %q, by its facts it is %q: %s%s", r.Cause, j.Cause, j.Why, s.otherBuild())
		}
	case j.Cause == "":
		s.contradicts(CheckCauses, e, "abort.cause is %q, by its facts the connection ended in an orderly way%s", e.Abort.Cause, s.otherBuild())
	default:
		if a := e.Abort; a.Cause != j.Cause || a.By != j.By {
			s.contradicts(CheckCauses, e, "abort is %q by %s, by its facts it is %q by %s: %s%s", a.Cause, a.By, j.Cause, j.By, j.Why, s.otherBuild())
		}
	}
}

// otherBuild is what to consider when a judgement differs.
func (s *session) otherBuild() string {
	if s.header == nil || s.f.v.opt.Build == "" || s.out.Version == s.f.v.opt.Build {
		return ""
	}
	return fmt.Sprintf(" (written by %s, judged by %s%s", s.out.Version, s.f.v.opt.Build, judgedOtherwise)
}

// judgedOtherwise ends the text of a finding that may be due to that.
const judgedOtherwise = ": another version may judge otherwise)"

// lostLine adds up what was lost.
func (s *session) lostLine(e *events.Event) {
	l := e.Lost
	s.lost += l.Count
	if s.lost != l.Total && s.header != nil {
		s.contradicts(CheckCounts, e, "lost.total is %d, the lost lines up to here add up to %d", l.Total, s.lost)
		s.lost = l.Total
	}
	if n := total(l.By); n != l.Count {
		s.contradicts(CheckCounts, e, "lost.count is %d, lost.by adds up to %d", l.Count, n)
	}
	if n := total(l.PerCPU); n > l.Count {
		s.contradicts(CheckCounts, e, "lost.count is %d, lost.per_cpu adds up to %d", l.Count, n)
	}
}

func total(m map[string]uint64) (n uint64) {
	for _, v := range m {
		n += v
	}
	return n
}

// over ends the session: no line of it follows.
func (s *session) over() {
	s.out.MonoNS[1] = s.latest
	s.out.Summary = s.summary != nil
	s.out.Sockets = uint64(len(s.socks))
	for _, e := range s.open {
		e.finish(s)
	}
	if s.summary != nil {
		s.out.Reason, s.out.Verdict = s.summary.Reason, &s.summary.Verdict
		s.counts()
		s.ledger()
	} else {
		s.find(Incomplete, CheckNumbering, s.out.LastLine, s.out.LastSeq,
			"the session was cut short, it has no summary: its whole lines hold up to seq %d at %s; what was lost in its last second, what the kernel counted and the verdict are not known",
			s.out.LastSeq, s.wall(s.latest))
	}
	lossy := s.lossy()
	for _, f := range s.doubtful {
		if lossy != "" {
			f.Level = Undecided
			f.Text += ", or it was: " + lossy
		}
		s.keep(f)
	}
	s.doubtful, s.socks = nil, nil
}

// wall is the wall time of mono_ns, by the last pair.
func (s *session) wall(mono uint64) events.WallTime {
	if len(s.clock.pairs) == 0 {
		return s.first.Time + events.WallTime(mono-s.first.MonoNS)
	}
	return events.WallTime(int64(mono) + s.clock.last().offset)
}

// lossy says why records may be missing, or "".
func (s *session) lossy() string {
	switch {
	case s.summary == nil:
		return "the session was cut short, and what was lost at its end is not known"
	case s.lost > 0 || s.summary.Kernel.Lost+s.summary.Kernel.Missed > 0 || s.summary.Kernel.Unaccounted != 0:
		return "records were lost"
	case s.anonymous:
		return "a socket had no cookie"
	}
	return ""
}

// atSummary is for what the summary says and the lines do not.
func (s *session) atSummary(c Check, format string, args ...any) {
	s.find(Contradiction, c, s.summaryLine, s.summarySeq, format, args...)
}

// counts holds the summary against the lines.
func (s *session) counts() {
	sum, k := s.summary, &s.summary.Kernel
	if s.header == nil {
		return // what is missing was said
	}
	if sum.Lines != s.out.Lines {
		s.atSummary(CheckCounts, "summary.lines is %d, the session has %d", sum.Lines, s.out.Lines)
	}
	s.countsOf("summary.events", sum.Events, s.out.Events)
	listed := make(map[events.Netns]int)
	for i := range sum.Namespaces {
		n := &sum.Namespaces[i]
		listed[n.Netns]++
		seen := s.namespaces[n.Netns]
		if seen == nil || seen.attached == 0 {
			s.atSummary(CheckCounts, "the summary counts for %s, which no line says was attached", nameOf(n.Netns))
			continue
		}
		s.countsOf("the events of "+nameOf(n.Netns), n.Events, seen.events)
	}
	for _, n := range s.namespaces {
		switch {
		case n.attached == 0 || !slices.Contains(orderly, sum.Reason):
		case listed[n.netns] == 0:
			s.atSummary(CheckCounts, "the summary does not count for %s, which was attached", nameOf(n.netns))
		case listed[n.netns] > 1:
			s.atSummary(CheckCounts, "the summary counts for %s %d times", nameOf(n.netns), listed[n.netns])
		}
	}
	if rest := int64(k.Produced - k.Lost - k.Read); rest != k.Unaccounted {
		s.atSummary(CheckCounts, "kernel.produced - lost - read is %d, unaccounted says %d", rest, k.Unaccounted)
	}
	if n := total(k.ByProgram); n != k.Produced {
		s.atSummary(CheckCounts, "kernel.produced is %d, by_program adds up to %d", k.Produced, n)
	}
	if n := k.Lost + k.Missed; n != s.lost {
		s.atSummary(CheckCounts, "kernel.lost and missed are %d together, the lost lines add up to %d", n, s.lost)
	}
	if k.Unaccounted != 0 {
		s.find(Incomplete, CheckCounts, s.summaryLine, s.summarySeq, "%d records are unaccounted for", k.Unaccounted)
	}
	if d := s.latestMono() - s.first.MonoNS; sum.DurationNS != d {
		s.atSummary(CheckCounts, "duration_ns is %d, from the session line to the summary it is %d", sum.DurationNS, d)
	}
}

// latestMono is mono_ns of the summary.
func (s *session) latestMono() uint64 { return s.clock.summary }

// countsOf compares two counts by type.
func (s *session) countsOf(what string, says, are map[string]uint64) {
	types := slices.Concat(slices.Collect(maps.Keys(says)), slices.Collect(maps.Keys(are)))
	slices.Sort(types)
	for _, t := range slices.Compact(types) {
		if says[t] != are[t] {
			s.atSummary(CheckCounts, "%s: %d of type %s, there are %d", what, says[t], t, are[t])
		}
	}
}

// ledger judges the session again.
func (s *session) ledger() {
	v := s.summary.Verdict
	switch v.State {
	case evidence.Incomplete:
		s.find(Incomplete, CheckLedger, s.summaryLine, s.summarySeq, "the verdict is incomplete by %d: %s", v.By, strings.Join(v.Reasons, "; "))
	case evidence.Unprovable:
		s.find(Note, CheckLedger, s.summaryLine, s.summarySeq, "the verdict is unprovable: %s", strings.Join(v.Reasons, "; "))
	}
	if s.audit == nil {
		return
	}
	again, verdict := s.audit.Settle()
	for i := range again {
		if i >= len(s.summary.Namespaces) {
			break // it is another summary than scan found
		}
		s.ledgerOf(&s.summary.Namespaces[i], &again[i])
	}
	if verdict.State != v.State || verdict.By != v.By {
		s.atSummary(CheckLedger, "the verdict is %s, added up again it is %s%s", verdictOf(v), verdictOf(verdict), s.otherBuild())
	}
}

func verdictOf(v events.Verdict) string {
	if v.State == evidence.Incomplete {
		return fmt.Sprintf("incomplete by %d", v.By)
	}
	return v.State
}

// ledgerOf compares the ledger of one namespace.
func (s *session) ledgerOf(says, again *events.NamespaceCounts) {
	name := nameOf(says.Netns)
	for i := range says.Ledger.Lines {
		l := &says.Ledger.Lines[i]
		s.out.Counters++
		at := slices.IndexFunc(again.Ledger.Lines, func(o events.LedgerLine) bool { return o.Counter == l.Counter })
		if at < 0 {
			s.atSummary(CheckLedger, "%s: this sockwatch knows no counter %s%s", name, l.Counter, s.otherBuild())
			continue
		}
		o := &again.Ledger.Lines[at]
		switch {
		case l.Events != o.Events:
			s.atSummary(CheckLedger, "%s: %s: the ledger says that %d are in the events, there are %d%s", name, l.Counter, l.Events, o.Events, s.otherBuild())
		case l.Difference != o.Difference || l.Explained != o.Explained || l.Result != o.Result:
			s.atSummary(CheckLedger, "%s: %s: the ledger says %s (difference %d, explained %d), added up again it is %s (%d, %d)%s",
				name, l.Counter, l.Result, l.Difference, l.Explained, o.Result, o.Difference, o.Explained, s.otherBuild())
		}
	}
	if says.Verdict.State != again.Verdict.State || says.Verdict.By != again.Verdict.By {
		s.atSummary(CheckLedger, "%s: the verdict is %s, added up again it is %s%s", name, verdictOf(says.Verdict), verdictOf(again.Verdict), s.otherBuild())
	}
	o, c := says.Ledger.Opened, says.Ledger.Closed
	if len(says.Ledger.Lines) == 0 {
		return
	}
	if o.StartNS > o.EndNS || o.EndNS > c.StartNS || c.StartNS > c.EndNS || o.StartNS < s.first.MonoNS || c.EndNS > s.latestMono() {
		s.atSummary(CheckLedger, "%s: the counters cannot have been read from %d to %d and from %d to %d in a session from %d to %d",
			name, o.StartNS, o.EndNS, c.StartNS, c.EndNS, s.first.MonoNS, s.latestMono())
	}
	if n := s.namespaces[says.Netns]; n != nil && n.attached != 0 && o.EndNS > n.attached {
		s.atSummary(CheckLedger, "%s: the counters were read at %d, after the line at %d says that it was attached", name, o.EndNS, n.attached)
	}
}

// clock is what is known of the clocks.
type clock struct {
	pairs   []pair // the first, and the last two
	summary uint64 // mono_ns of the summary
}

// pair is one clock line.
type pair struct {
	line    int
	mono    uint64
	offset  int64 // real - mono
	asleep  int64 // boot - mono
	errorNS int64
}

func (c *clock) last() pair {
	if len(c.pairs) == 0 {
		return pair{}
	}
	return c.pairs[len(c.pairs)-1]
}

// when holds the times of a line against the rest.
func (s *session) when(e *events.Event) {
	if e.MonoNS < s.first.MonoNS && e.Mark == nil && s.header != nil {
		s.contradicts(CheckClock, e, "mono_ns is %s before the session began", time.Duration(clamp(s.first.MonoNS-e.MonoNS)))
	}
	if e.MonoNS > s.latest {
		s.latest, s.latestLine, s.latestSeq = e.MonoNS, s.out.LastLine, e.Seq
	}
	if e.Summary != nil {
		s.clock.summary = e.MonoNS
		if s.latest > e.MonoNS {
			s.find(Contradiction, CheckClock, s.latestLine, s.latestSeq, "mono_ns is %s after the summary's", time.Duration(clamp(s.latest-e.MonoNS)))
		}
	}
	offset := int64(e.Time) - int64(e.MonoNS)
	p := s.clock.pairs
	switch {
	case e.Clock != nil || len(p) == 0:
	case offset == p[len(p)-1].offset, len(p) > 1 && offset == p[len(p)-2].offset:
	default:
		s.contradicts(CheckClock, e, "time is not mono_ns by a clock line near it: it is %s off", time.Duration(offset-p[len(p)-1].offset))
	}
}

func clamp(n uint64) int64 { return int64(min(n, math.MaxInt64)) }

// clockPair takes a clock line.
func (s *session) clockPair(e *events.Event) {
	c := e.Clock
	p := pair{
		line: s.out.LastLine, mono: e.MonoNS, offset: int64(c.RealNS - e.MonoNS), asleep: int64(c.BootNS - e.MonoNS), errorNS: clamp(c.ErrorNS),
	}
	if int64(e.Time) != int64(c.RealNS) {
		s.contradicts(CheckClock, e, "time is not real_ns")
	}
	if len(s.clock.pairs) == 0 {
		if s.header != nil && int64(s.first.Time)-int64(s.first.MonoNS) != p.offset && s.out.LastLine == s.out.FirstLine+1 {
			s.find(Contradiction, CheckClock, s.out.FirstLine, s.first.Seq, "time is not mono_ns by the clock line that follows")
		}
		if c.StepNS != 0 && s.header != nil {
			s.contradicts(CheckClock, e, "step_ns is %d in the first pair", c.StepNS)
		}
		s.clock.pairs = append(s.clock.pairs, p)
		return
	}
	last := s.clock.last()
	moved := p.reading().Since(last.reading())
	if c.StepNS != moved.StepNS {
		s.contradicts(CheckClock, e, "step_ns is %d, real_ns gained %d on mono_ns since line %d", c.StepNS, moved.StepNS, last.line)
	}
	var asleep uint64
	if moved.Suspended {
		asleep = uint64(moved.AsleepNS)
	}
	switch {
	case e.MonoNS <= last.mono:
		s.contradicts(CheckClock, e, "the clocks were read at or before line %d", last.line)
	case moved.AsleepNS < -last.errorNS-p.errorNS:
		s.contradicts(CheckClock, e, "boot_ns lost %s on mono_ns since line %d, which it cannot", time.Duration(-moved.AsleepNS), last.line)
	case c.SuspendedNS != asleep:
		s.contradicts(CheckClock, e, "suspended_ns is %d, by boot_ns it is %d since line %d", c.SuspendedNS, asleep, last.line)
	case moved.Suspended:
		s.notes(CheckClock, e, "the machine was suspended for %s since line %d", time.Duration(asleep), last.line)
	}
	switch {
	case c.Stepped != moved.Stepped:
		s.contradicts(CheckClock, e, "stepped is %t, by real_ns it is %t since line %d", c.Stepped, moved.Stepped, last.line)
	case moved.Stepped:
		s.notes(CheckClock, e, "wall time was stepped by %s since line %d: compare mono_ns across it, not time", time.Duration(moved.StepNS-int64(asleep)), last.line)
	}
	if len(s.clock.pairs) == 3 {
		s.clock.pairs[1] = s.clock.pairs[2]
		s.clock.pairs = s.clock.pairs[:2]
	}
	s.clock.pairs = append(s.clock.pairs, p)
}

func (p *pair) reading() evidence.Pair {
	return evidence.Pair{MonoNS: p.mono, RealNS: p.mono + uint64(p.offset), BootNS: p.mono + uint64(p.asleep), ErrorNS: uint64(p.errorNS)}
}

// notes is for what is true, and should be known.
func (s *session) notes(c Check, e *events.Event, format string, args ...any) {
	s.find(Note, c, s.out.LastLine, e.Seq, format, args...)
}
