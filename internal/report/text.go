package report

import (
	"fmt"
	"strings"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/sink"
)

// AppendText appends the report for people. No string that comes from a file
// can drive a terminal: every line passes through [sink.AppendPrintable].
func (r *Report) AppendText(b []byte) []byte {
	p := printer{b: b}
	for _, f := range r.Files {
		for _, n := range f.notes() {
			p.line("%s: %s", f.Name, n)
		}
	}
	for _, n := range r.Notes {
		p.line("%s", n)
	}
	if len(p.b) > len(b) {
		p.blank()
	}
	alike := r.alike()
	for i := range r.Stories {
		like, told := alike[i]
		if told && like == nil {
			continue // with the first of its kind
		}
		r.Stories[i].print(&p)
		if n := len(like); n > 0 {
			last := &r.Stories[like[n-1]]
			p.line("  %d more connections of this kind ended like this, each within a second, the last at %s; --sock tells each", n, last.ended())
		}
		p.blank()
	}
	p.line("%s", r.conclusion())
	return p.b
}

// alike finds brief stories of one kind, such as those of a process that tries
// to connect until somebody listens: of three or more, the first is told. It
// returns which others are like a story, and nothing for those.
func (r *Report) alike() map[int][]int {
	out := make(map[int][]int)
	if r.selected {
		return out
	}
	kinds := make(map[string][]int)
	for i := range r.Stories {
		if k := r.Stories[i].brief(); k != "" {
			kinds[k] = append(kinds[k], i)
		}
	}
	for _, is := range kinds {
		if len(is) < 3 {
			continue
		}
		out[is[0]] = is[1:]
		for _, i := range is[1:] {
			out[i] = nil
		}
	}
	return out
}

// brief is of what kind a story is that was over within a second, and in which
// nothing had to be sent again; empty for others. The kind is who had to do
// with whom, and how each end ended.
func (st *Story) brief() string {
	var kind strings.Builder
	from, to := uint64(0), uint64(0)
	for i := range st.Steps {
		s := &st.Steps[i]
		switch s.Kind {
		case KindMark, KindTarget:
			continue
		case KindOpened, KindClosing, KindClosed, KindAborted, KindLate, KindReset:
		default:
			return ""
		}
		if from == 0 {
			from = s.MonoNS
		}
		to = s.MonoNS
		if s.Ended != nil {
			fmt.Fprintf(&kind, "%d %s ", *s.End, s.Ended.Cause)
		}
	}
	if to-from >= quickNS {
		return ""
	}
	for i := range st.Ends {
		e := &st.Ends[i]
		fmt.Fprintf(&kind, "%s %d %t %s %s ", e.Netns.Name, e.Netns.Generation, e.Socket, e.Role, e.Ending)
		if e.Owner != nil {
			kind.WriteString(e.Owner.Comm)
		}
		if e.Role == RoleOpened {
			kind.WriteString(e.Sock.Remote.String())
		}
	}
	return kind.String()
}

// ended is the wall time of the last step.
func (st *Story) ended() events.WallTime {
	last := &st.Steps[len(st.Steps)-1]
	return st.ZeroTime + events.WallTime(last.MonoNS-st.ZeroNS)
}

type printer struct{ b []byte }

func (p *printer) line(format string, args ...any) {
	p.b = append(sink.AppendPrintable(p.b, fmt.Appendf(nil, format, args...)), '\n')
}

func (p *printer) blank() { p.b = append(p.b, '\n') }

// notes are what a reader must know of a file first.
func (f *File) notes() (out []string) {
	out = append(out, f.Damage...)
	for i, s := range f.Sessions {
		which := "the session"
		if len(f.Sessions) > 1 {
			which = "the " + ordinal(uint32(i+1)) + " session"
		}
		switch {
		case !s.Closed && f.Cut && i == len(f.Sessions)-1:
			out = append(out, which+" was cut short: the last line breaks off, and there is no summary")
		case !s.Closed:
			out = append(out, which+" was cut short: there is no summary")
		}
		if s.Verdict == "incomplete" {
			out = append(out, fmt.Sprintf("%s is incomplete: %s", which, strings.Join(s.Reasons, "; ")))
		} else if s.Lost > 0 {
			out = append(out, fmt.Sprintf("%s lost %s", which, count(s.Lost, "record", "records")))
		}
	}
	return out
}

func (st *Story) print(p *printer) {
	p.line("%s", st.title())
	p.line("  times since %s, %s", st.Zero, st.ZeroTime)
	for _, n := range st.Notes {
		p.line("  note: %s", n)
	}
	width := 0
	for _, s := range st.Steps {
		width = max(width, len(at(s.MonoNS, st.ZeroNS)))
	}
	for _, s := range st.Steps {
		p.line("  %*s  %s", width+2, at(s.MonoNS, st.ZeroNS), s.Text)
	}
}

// title names both ends, the one that opened the connection first.
func (st *Story) title() string {
	first := st.Ends[0]
	arrow := map[string]string{RoleOpened: " → ", RoleAccepted: " ← "}[first.Role]
	if arrow == "" {
		arrow = " ↔ "
	}
	other := first.Sock.Remote.String()
	if len(st.Ends) == 2 {
		other = st.Ends[1].who()
	}
	return first.who() + arrow + other
}

func (e *End) who() string {
	var in []string
	if e.Owner != nil {
		in = append(in, fmt.Sprintf("%s %d", e.Owner.Comm, e.Owner.PID))
	}
	if !e.Socket {
		in = []string{"no socket"}
	}
	in = append(in, "in "+nsName(&e.Netns))
	if e.Sock.MPTCP {
		in = append(in, "MPTCP subflow")
	}
	return fmt.Sprintf("%s (%s)", e.Sock.Local, strings.Join(in, ", "))
}

// conclusion counts.
func (r *Report) conclusion() string {
	n := len(r.Files)
	files := count(uint64(n), "file", "files")
	all := count(uint64(r.Connections), "connection", "connections")
	switch {
	case r.Connections == 0:
		return "no connection in " + files
	case r.selected:
		return fmt.Sprintf("%s in %s: %d told as asked, %d had trouble in all", all, files, len(r.Stories), r.Troubled)
	case r.Troubled == 0:
		return fmt.Sprintf("%s in %s, none had trouble", all, files)
	}
	return fmt.Sprintf("%s in %s: %d with trouble, %d without", all, files, r.Troubled, r.Connections-r.Troubled)
}
