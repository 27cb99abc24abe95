package verify

import (
	"fmt"
	"strings"
	"time"

	"github.com/sockwatch/sockwatch/internal/events"
)

// Text tells the report to people, in lines: by file and session, first what
// holds and then what does not. Names stand in it as they are in the files,
// whatever bytes they have.
func (r *Report) Text() []string {
	var t text
	for _, f := range r.Files {
		t.add("%s: %s", f.File, words(f.Result, f.Findings))
		for _, s := range f.Sessions {
			t.session(s, f)
		}
		t.findings("  ", f.Findings, 0)
	}
	if e := r.Ends; e.Connections+e.Unmatched > 0 || len(r.Findings) > 0 {
		line := fmt.Sprintf("both ends: %s, %s compared, %s sent by one and received by the other",
			plural(e.Connections, "connection", "connections"), plural(e.Compared, "snapshot", "snapshots"), plural(e.Resets, "reset", "resets"))
		if e.Unmatched > 0 {
			line += fmt.Sprintf("; %s of ends with mirrored addresses that are not one connection", plural(e.Unmatched, "pair", "pairs"))
		}
		t.add("%s", line)
		for i := range r.Findings {
			f := &r.Findings[i]
			t.add("  %s  %s (seq %d): %s", f.Level, place(f.File, f.Line), f.Seq, f.Text)
		}
	}
	if len(r.Files) > 1 {
		t.add("together: %s", words(r.Result, r.all()))
	}
	return t.lines
}

func words(r Result, list []Finding) string {
	switch {
	case r == ResultHolds:
		return "everything holds"
	case r == ResultIncomplete:
		return "incomplete, but what is there holds"
	case disputed(list):
		return "it contradicts itself: edited or damaged, or judged otherwise by the version that wrote it"
	}
	return "it contradicts itself: edited or damaged"
}

type text struct{ lines []string }

func (t *text) add(format string, args ...any) {
	t.lines = append(t.lines, fmt.Sprintf(format, args...))
}

func (t *text) session(s *Session, f *File) {
	targets := strings.Join(s.Targets, ", ")
	if targets == "" {
		targets = "targets unknown"
	}
	head := fmt.Sprintf("  session %d, lines %d to %d: %s from %s", s.Session, s.FirstLine, s.LastLine, targets, shortTime(s.Began))
	if s.MonoNS[1] > s.MonoNS[0] {
		head += " for " + time.Duration(clamp(s.MonoNS[1]-s.MonoNS[0])).Round(time.Millisecond).String()
	}
	if s.Summary {
		head += ", " + s.Reason
	}
	t.add("%s", head)
	if holds := s.holds(f); len(holds) > 0 {
		t.add("    holds: %s", strings.Join(holds, "; "))
	}
	t.findings("    ", f.Findings, s.Session)
	for _, c := range []Check{CheckSchema, CheckNumbering, CheckCounts, CheckCauses, CheckSockets, CheckClock, CheckLedger, CheckEnds} {
		if n := s.Omitted[c]; n > 0 {
			t.add("    and %d more like these (%s)", n, c)
		}
	}
}

// holds says what was checked and holds.
func (s *Session) holds(f *File) []string {
	bad := make(map[Check]bool)
	for i := range f.Findings {
		if g := &f.Findings[i]; g.Session == s.Session && g.Level == Contradiction {
			bad[g.Check] = true
		}
	}
	var holds []string
	say := func(c Check, format string, args ...any) {
		if !bad[c] {
			holds = append(holds, fmt.Sprintf(format, args...))
		}
	}
	say(CheckSchema, "%s valid", plural(s.Lines, "line", "lines"))
	say(CheckNumbering, "numbered to %d without a gap", s.LastSeq)
	if s.Summary {
		say(CheckCounts, "as many as the summary says")
	}
	say(CheckClock, "times in order")
	if s.Sockets > 0 {
		say(CheckSockets, "%s consistent", plural(s.Sockets, "socket", "sockets"))
	}
	if s.Causes > 0 {
		say(CheckCauses, "%s by the facts", plural(s.Causes, "cause", "causes"))
	}
	if s.Verdict != nil && s.Counters > 0 {
		say(CheckLedger, "%s added up again: %s", plural(s.Counters, "counter", "counters"), verdictOf(*s.Verdict))
	}
	return holds
}

// findings are those of one session of a file; 0: of none.
func (t *text) findings(indent string, list []Finding, session int) {
	for i := range list {
		f := &list[i]
		switch {
		case f.Session != session:
		case f.Seq != 0:
			t.add("%s%s  line %d (seq %d): %s", indent, f.Level, f.Line, f.Seq, f.Text)
		case f.Line != 0:
			t.add("%s%s  line %d: %s", indent, f.Level, f.Line, f.Text)
		default:
			t.add("%s%s: %s", indent, f.Level, f.Text)
		}
	}
}

func shortTime(t events.WallTime) string {
	return time.Unix(0, int64(t)).UTC().Format("2006-01-02T15:04:05.000Z")
}
