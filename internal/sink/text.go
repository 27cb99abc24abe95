package sink

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/sockwatch/sockwatch/internal/events"
)

// Text writes events for people, one line each: seconds since the session
// began, the target, the connection, what happened and why.
//
// Every byte it writes that is not its own colour or newline has passed
// through AppendPrintable, so that no name in an event can drive the terminal.
type Text struct {
	lines
	colour bool
	begun  bool
	start  uint64 // mono_ns of the session's first line
	line   []byte // the words of one colour, not yet made printable
}

// NewText returns a sink that writes to w, coloured by severity if colour is
// set. It closes w as [NewJSONL] does.
func NewText(w io.Writer, colour bool) *Text {
	return &Text{lines: newLines(w), colour: colour}
}

// The colours, as parameters of the SGR sequence.
const (
	none   = ""
	dim    = "2"
	red    = "31"
	green  = "32"
	yellow = "33"
	cyan   = "36"
)

// Write adds e.
func (t *Text) Write(e *events.Event) error {
	if !t.begun || e.Type == events.TypeSession {
		t.begun, t.start = true, e.MonoNS
	}
	t.line = fmt.Appendf(t.line, "%9s  ", elapsed(int64(e.MonoNS-t.start)))
	t.put(dim)
	if e.Netns != nil {
		t.say(e.Netns.Name)
		if e.Netns.Generation > 1 {
			t.say("/" + strconv.Itoa(e.Netns.Generation))
		}
		t.say("  ")
	}
	if s := e.Sock; s != nil {
		t.line = s.Local.AppendTo(t.line)
		if s.Remote.IsValid() && (s.Remote.Port() != 0 || !s.Remote.Addr().IsUnspecified()) {
			t.say(" → ")
			t.line = s.Remote.AppendTo(t.line)
		}
		t.say("  ")
	}
	t.put(none)
	t.what(e)
	t.put(severity(e))
	if why := why(e); why != "" {
		t.say("  " + why)
	}
	if o := e.Owner; o != nil {
		t.line = fmt.Appendf(t.line, "  [%s %d]", o.Comm, o.PID)
	}
	t.put(dim)
	t.buf = append(t.buf, '\n')
	return t.added()
}

// Close implements [Sink].
func (t *Text) Close() error { return t.close() }

func (t *Text) say(s string)                   { t.line = append(t.line, s...) }
func (t *Text) sayf(format string, arg ...any) { t.line = fmt.Appendf(t.line, format, arg...) }

// put moves the words said so far to the output, printable, in a colour.
func (t *Text) put(colour string) {
	if len(t.line) == 0 {
		return
	}
	wrap := t.colour && colour != none
	if wrap {
		t.buf = append(append(append(t.buf, "\x1b["...), colour...), 'm')
	}
	t.buf = AppendPrintable(t.buf, t.line)
	if wrap {
		t.buf = append(t.buf, "\x1b[0m"...)
	}
	t.line = t.line[:0]
}

func severity(e *events.Event) string {
	if e.Summary != nil {
		switch e.Summary.Verdict.State {
		case "incomplete":
			return red
		case "unprovable":
			return yellow
		}
	}
	if e.Clock != nil && (e.Clock.Stepped || e.Clock.SuspendedNS > 0) {
		return yellow
	}
	switch e.Type {
	case events.TypeAbort, events.TypeReset, events.TypeError, events.TypeDrop, events.TypeLost:
		return red
	case events.TypeRetransmit, events.TypeProbe, events.TypeICMP, events.TypeNeighbour:
		return yellow
	case events.TypeRecovered:
		return green
	case events.TypeMark, events.TypeTarget:
		return cyan
	case events.TypeSession, events.TypeSummary, events.TypeArrival:
		return none
	}
	return dim
}

// why returns the reason worth a reader's time: of what is rare, or undecided.
func why(e *events.Event) string {
	switch {
	case e.Retransmit != nil && e.Retransmit.Cause == "undecided":
		return "(" + e.Retransmit.Why + ")"
	case e.Abort != nil && e.Abort.Why != "":
		return "(" + e.Abort.Why + ")"
	}
	return ""
}

// what says what happened.
func (t *Text) what(e *events.Event) {
	switch {
	case e.Type == events.TypeRetransmit && e.Retransmit != nil:
		t.retransmit(e)
	case e.Type == events.TypeProbe && e.Probe != nil:
		t.sayf("probe %s  %s #%d", e.Probe.Direction, e.Probe.Kind, e.Probe.Number)
	case e.Type == events.TypeState && e.State != nil:
		t.sayf("state  %s → %s", e.State.Old, e.State.New)
	case e.Type == events.TypeReset && e.Reset != nil:
		t.reset(e.Reset)
	case e.Type == events.TypeAbort && e.Abort != nil:
		t.abort(e)
	case e.Type == events.TypeRecovered && e.Recovered != nil:
		t.recovered(e.Recovered)
	case e.Type == events.TypeArrival && e.Arrival != nil:
		t.sayf("arrival  %s after %s of silence", number(uint64(e.Arrival.Bytes), "byte"), ms(e.Arrival.SilenceMs))
	case e.Type == events.TypeError && e.Error != nil:
		t.sayf("error  %s reported to the application", e.Error.Name)
	case e.Type == events.TypeDrop && e.Drop != nil:
		t.drop(e)
	case e.Type == events.TypeICMP && e.ICMP != nil:
		t.icmp(e.ICMP)
	case e.Type == events.TypeNeighbour && e.Neighbour != nil:
		t.neighbour(e.Neighbour)
	case e.Type == events.TypeIO && e.IO != nil:
		t.io(e.IO)
	case e.Type == events.TypeSegment && e.Segment != nil:
		t.segment(e.Segment)
	case e.Type == events.TypeInventory && e.Inventory != nil:
		t.say("inventory  existed before the trace")
		if e.TCP != nil {
			t.sayf("  %s  (unacked %s, unread %d)", e.TCP.State, number(uint64(e.TCP.UnackedBytes), "byte"), e.TCP.UnreadBytes)
		}
	case e.Type == events.TypeTarget && e.Target != nil:
		t.target(e.Target)
	case e.Type == events.TypeMark && e.Mark != nil:
		t.sayf("mark  %s  %s  (by %s)", e.Mark.Kind, e.Mark.Text, e.Mark.By)
	case e.Type == events.TypeClock && e.Clock != nil:
		t.clock(e.Clock)
	case e.Type == events.TypeLost && e.Lost != nil:
		t.sayf("lost  %d records, %d in all  (%s)", e.Lost.Count, e.Lost.Total, counts(e.Lost.By))
	case e.Type == events.TypeSession && e.Session != nil:
		t.session(e.Session)
	case e.Type == events.TypeSummary && e.Summary != nil:
		t.summary(e.Summary)
	default:
		t.say(string(e.Type))
	}
}

func (t *Text) retransmit(e *events.Event) {
	r := e.Retransmit
	t.sayf("retransmit  #%d %s  ", r.Attempt, r.Cause)
	if e.TCP != nil {
		t.sayf("seq %+d..%d", int32(r.SeqStart-e.TCP.SndUna), int32(r.SeqEnd-e.TCP.SndUna))
	} else {
		t.sayf("seq %d..%d", r.SeqStart, r.SeqEnd)
	}
	t.sayf(" (%s)", number(uint64(r.Segments), "segment"))
	if r.SendError != "" {
		t.sayf("  not sent: %s", r.SendError)
	}
	if r.NextDueMs >= 0 {
		t.sayf("  next in %s", ms(uint64(r.NextDueMs)))
	}
}

func (t *Text) reset(r *events.Reset) {
	t.sayf("reset %s", r.Direction)
	if r.Reason != "" {
		t.say("  " + r.Reason)
	}
	if !r.Socket {
		t.say("  no socket")
	}
	if s := r.Trigger; s != nil {
		t.sayf("  answering %s seq %d..%d", s.Flags, s.SeqStart, s.SeqEnd)
		if s.Ack != 0 {
			t.sayf(" ack %d", s.Ack)
		}
	}
}

func (t *Text) drop(e *events.Event) {
	d := e.Drop
	t.sayf("drop %s", d.Direction)
	if d.Reason != "" {
		t.say("  " + d.Reason)
	}
	if d.Device != "" {
		t.say("  at " + d.Device)
	}
	switch s := d.Segment; {
	case s == nil:
		t.sayf("  %d bytes with headers", d.SkbLen)
	case d.Direction == "sent" && e.TCP != nil:
		t.sayf("  %s seq %+d..%d", s.Flags, int32(s.SeqStart-e.TCP.SndUna), int32(s.SeqEnd-e.TCP.SndUna))
	default:
		t.sayf("  %s seq %d..%d", s.Flags, s.SeqStart, s.SeqEnd)
	}
}

func (t *Text) icmp(i *events.ICMP) {
	t.sayf("icmp  %s %s from %s about seq %d", i.Type, i.Code, i.From, i.SeqStart)
	if i.MTU != 0 {
		t.sayf("  mtu %d", i.MTU)
	}
}

func (t *Text) neighbour(n *events.Neighbour) {
	t.sayf("neighbour %s  %s at %s", n.Change, n.Address, n.Device)
	if n.Old != "" {
		t.sayf("  %s → %s", n.Old, n.New)
	} else {
		t.say("  → " + n.New)
	}
	switch {
	case n.OldLladdr != n.NewLladdr && n.OldLladdr != "":
		t.sayf("  %s → %s", n.OldLladdr, n.NewLladdr)
	case n.NewLladdr != "":
		t.say("  " + n.NewLladdr)
	}
	t.sayf("  peer of %s", number(n.Sockets, "socket"))
	if n.PID != 0 {
		t.sayf("  [%s %d]", n.Comm, n.PID)
	}
}

func (t *Text) io(i *events.IO) {
	op := i.Op
	if i.Peek {
		op = "peek"
	}
	t.sayf("io %s  %s", op, number(uint64(i.Bytes), "byte"))
	if i.Frozen == "yes" {
		t.say("  frozen")
	}
}

func (t *Text) segment(s *events.SegmentSeen) {
	t.sayf("segment %s  %s seq %d..%d", s.Direction, s.Flags, s.SeqStart, s.SeqEnd)
	if s.Ack != 0 {
		t.sayf(" ack %d", s.Ack)
	}
	t.sayf(" win %d  %s", s.Window, number(uint64(s.Bytes), "byte"))
}

func (t *Text) abort(e *events.Event) {
	t.sayf("abort  by %s: %s", e.Abort.By, e.Abort.Cause)
	if e.TCP == nil {
		return
	}
	if e.TCP.SinceLastAckUs >= 0 {
		t.sayf(" %s after the last ack", us(uint64(e.TCP.SinceLastAckUs)))
	}
	if e.TCP.UnackedBytes > 0 {
		t.sayf(" (unacked %s)", unacked(e.TCP, e.Abort.State))
	}
}

// unacked names what was sent and not acknowledged: a SYN and a FIN take a
// sequence number and are no byte.
func unacked(t *events.TCP, state string) string {
	n, what := t.UnackedBytes, ""
	switch state {
	case "SYN_SENT", "SYN_RECV":
		n, what = n-1, "SYN"
	case "FIN_WAIT1", "CLOSING", "LAST_ACK":
		if t.SndNxt == t.WriteSeq {
			n, what = n-1, "FIN"
		}
	}
	switch {
	case what == "":
		return number(uint64(n), "byte")
	case n == 0:
		return what
	}
	return number(uint64(n), "byte") + " and " + what
}

func (t *Text) recovered(r *events.Recovered) {
	at := ""
	if !r.Exact {
		at = "at most "
	}
	t.sayf("recovered  after %s%s, %s", at, us(r.StalledUs), number(uint64(r.Retransmits), "retransmission"))
	if r.Answered != 0 {
		t.sayf(", answered #%d", r.Answered)
	}
	if r.Original {
		t.say(", none was needed")
	}
}

func (t *Text) target(g *events.Target) {
	t.sayf("target  %s", g.Change)
	if g.Alias != "" {
		t.say("  " + g.Alias)
	}
	if g.Formerly != nil {
		t.say("  from " + g.Formerly.Name)
	}
	if g.Detail != "" {
		t.say("  " + g.Detail)
	}
	if g.Container != "" {
		t.sayf("  container %.12s", g.Container)
	}
	if g.BlindNS != 0 {
		t.sayf("  blind for %s", ns(g.BlindNS))
	}
	if g.Sockets != 0 {
		t.sayf("  %s known", number(g.Sockets, "socket"))
	}
}

func (t *Text) clock(c *events.Clock) {
	t.sayf("clock  wall time %s against the kernel's clock (±%s)", signed(c.StepNS), ns(c.ErrorNS))
	if c.SuspendedNS > 0 {
		t.sayf("  the machine was suspended for %s", ns(c.SuspendedNS))
	}
	if c.Stepped {
		t.say("  wall time was set")
	}
}

func (t *Text) session(s *events.Session) {
	t.sayf("session  sockwatch %s on %s, kernel %s %s, watching %s", s.Version, s.Hostname, s.Kernel, s.Machine, strings.Join(s.Targets, ", "))
	var off []string
	for _, p := range s.Programs {
		if p.Method == "none" {
			off = append(off, p.Name)
		}
	}
	if len(off) > 0 {
		t.sayf("  not attached: %s", strings.Join(off, ", "))
	}
	switch st := s.SelfTest; {
	case st == nil:
	case st.Passed:
		t.say("  self-test passed")
	default:
		t.sayf("  self-test failed: %s", strings.Join(st.Missing, "; "))
	}
}

// ended is what ended a session, where its name alone does not read as that.
func ended(reason string) string {
	switch reason {
	case "duration":
		return "ended by --duration"
	case "targets-gone":
		return "ended with its targets"
	case "output-failed":
		return "ended by its output"
	case "self-test-failed":
		return "ended by its self-test"
	}
	return reason
}

func (t *Text) summary(s *events.Summary) {
	t.sayf("summary  %s after %s, %s: %s", ended(s.Reason), ns(s.DurationNS), number(s.Lines, "line"), counts(s.Events))
	if s.Kernel.Lost != 0 {
		t.sayf("  %s lost", number(s.Kernel.Lost, "record"))
	}
	if s.Kernel.Unaccounted != 0 {
		t.sayf("  %d unaccounted for", s.Kernel.Unaccounted)
	}
	switch v := s.Verdict; v.State {
	case "":
		return
	case "incomplete":
		t.sayf("  verdict: incomplete by %d", v.By)
	default:
		t.say("  verdict: " + v.State)
	}
	if len(s.Verdict.Reasons) > 0 {
		t.say(": " + strings.Join(s.Verdict.Reasons, "; "))
	}
}

// AppendPrintable appends s with everything escaped that a terminal might obey
// or hide: control characters (C0, C1), invalid UTF-8, format characters
// (bidirectional controls, zero width), spaces other than U+0020, and the
// letters and marks that show nothing.
func AppendPrintable(b, s []byte) []byte {
	for len(s) > 0 {
		r, size := utf8.DecodeRune(s)
		switch {
		case r == utf8.RuneError && size == 1:
			b = fmt.Appendf(b, `\x%02x`, s[0])
		case printable(r):
			b = append(b, s[:size]...)
		case r < 0x20 || r == 0x7f:
			b = fmt.Appendf(b, `\x%02x`, r)
		case r <= 0xffff:
			b = fmt.Appendf(b, `\u%04x`, r)
		default:
			b = fmt.Appendf(b, `\U%08x`, r)
		}
		s = s[size:]
	}
	return b
}

func printable(r rune) bool {
	if r < utf8.RuneSelf {
		return r >= ' ' && r != 0x7f
	}
	return unicode.IsPrint(r) && !unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector) && r != '\u2800'
}

// elapsed prints nanoseconds as seconds with milliseconds.
func elapsed(ns int64) string {
	sign := ""
	if ns < 0 {
		sign, ns = "-", -ns
	}
	ms := uint64(ns) / 1e6
	return fmt.Sprintf("%s%d.%03d", sign, ms/1000, ms%1000)
}

// ns prints a duration with three digits or fewer before the unit changes.
func ns(v uint64) string {
	switch {
	case v < 1e3:
		return fmt.Sprintf("%d ns", v)
	case v < 1e6:
		return fmt.Sprintf("%d µs", v/1e3)
	case v < 1e9:
		return fmt.Sprintf("%d ms", v/1e6)
	}
	return fmt.Sprintf("%.1f s", float64(v)/1e9)
}

func us(v uint64) string { return ns(min(v, 1<<53) * 1000) }
func ms(v uint64) string { return ns(min(v, 1<<43) * 1_000_000) }

func signed(v int64) string {
	if v < 0 {
		return "-" + ns(uint64(-v))
	}
	return "+" + ns(uint64(v))
}

func number(n uint64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// counts prints a map in a stable order, largest first.
func counts(m map[string]uint64) string {
	keys := slices.SortedFunc(maps.Keys(m), func(a, b string) int {
		if m[a] != m[b] {
			if m[a] > m[b] {
				return -1
			}
			return 1
		}
		return strings.Compare(a, b)
	})
	for i, k := range keys {
		keys[i] = fmt.Sprintf("%d %s", m[k], k)
	}
	return strings.Join(keys, ", ")
}
