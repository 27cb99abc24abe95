package report

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/sockwatch/sockwatch/internal/events"
)

// Options choose what is told.
type Options struct {
	Sock  string // address, address and port, or cookie; empty: every connection that had trouble
	Since string // text or kind of a mark, or number of a line of the first file; empty: the first trouble of each
}

// The errors of [Collector.Report].
var (
	ErrNoMatch = errors.New("no connection matches")
	ErrNoSince = errors.New("no such mark or line")
)

// selector is a parsed Options.Sock.
type selector struct {
	cookie uint64
	addr   netip.Addr
	port   uint16
}

func parseSelector(s string) (selector, error) {
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return selector{addr: ap.Addr().Unmap(), port: ap.Port()}, nil
	}
	if a, err := netip.ParseAddr(s); err == nil {
		return selector{addr: a.Unmap()}, nil
	}
	if n, err := strconv.ParseUint(s, 10, 64); err == nil && n > 0 {
		return selector{cookie: n}, nil
	}
	return selector{}, fmt.Errorf("%q is neither an address, with or without a port, nor a socket cookie", s)
}

// CheckSock says what is wrong with a value of Options.Sock, if anything.
func CheckSock(s string) error {
	_, err := parseSelector(s)
	return err
}

func (s selector) matches(e *end) bool {
	if s.cookie != 0 {
		return e.sock.Cookie == s.cookie
	}
	for _, ap := range []netip.AddrPort{e.sock.Local, e.sock.Remote} {
		if ap.Addr().Unmap() == s.addr && (s.port == 0 || s.port == ap.Port()) {
			return true
		}
	}
	return false
}

// Report tells the stories. Errors wrap ErrNoMatch or ErrNoSince, or concern
// Options.Sock.
func (c *Collector) Report(o Options) (*Report, error) {
	var sel *selector
	if o.Sock != "" {
		s, err := parseSelector(o.Sock)
		if err != nil {
			return nil, err
		}
		sel = &s
	}
	ev := c.collect()
	c.findPlaces(ev)
	ev.join()
	ev.matchResets()
	r := &Report{Files: c.fileInfo(), Notes: ev.notes, Stories: []Story{}, selected: sel != nil}
	if r.Notes == nil {
		r.Notes = []string{}
	}
	if o.Since != "" {
		since, err := c.since(ev, o.Since)
		if err != nil {
			return nil, err
		}
		r.Since = since
	}
	done := make(map[*end]bool)
	for _, e := range ev.ends {
		if done[e] || e.host != nil {
			continue
		}
		ends := []*end{e}
		if e.peer != nil {
			ends = append(ends, e.peer)
		}
		trouble := uint64(0)
		matches := sel == nil
		for _, e := range ends {
			done[e] = true
			matches = matches || sel.matches(e)
			if e.trouble != 0 && (trouble == 0 || e.trouble < trouble) {
				trouble = e.trouble
			}
		}
		r.Connections++
		if trouble != 0 {
			r.Troubled++
		}
		if !matches || (trouble == 0 && sel == nil) {
			continue
		}
		r.Stories = append(r.Stories, ev.story(ends, trouble, sel != nil, r.Since))
	}
	if sel != nil && len(r.Stories) == 0 {
		return nil, fmt.Errorf("%w %s", ErrNoMatch, o.Sock)
	}
	slices.SortStableFunc(r.Stories, func(a, b Story) int {
		return cmp.Or(cmp.Compare(a.boot, b.boot), cmp.Compare(a.order, b.order))
	})
	return r, nil
}

func (c *Collector) fileInfo() []File {
	out := make([]File, 0, len(c.files))
	for _, f := range c.files {
		info := File{Name: f.name, Cut: f.cut, Damage: f.damage, Sessions: []SessionInfo{}}
		if info.Damage == nil {
			info.Damage = []string{}
		}
		for _, s := range f.sessions {
			i := SessionInfo{FirstNS: s.first, LastNS: s.last, Closed: s.summary != nil, Lost: s.lost, Targets: []string{}, Reasons: []string{}}
			if s.header != nil {
				i.BootID, i.Targets = s.header.BootID, append(i.Targets, s.header.Targets...)
			}
			if s.summary != nil {
				i.Verdict, i.Reasons = s.summary.Verdict.State, append(i.Reasons, s.summary.Verdict.Reasons...)
				i.Lost = max(i.Lost, s.summary.Kernel.Lost)
			}
			info.Sessions = append(info.Sessions, i)
		}
		out = append(out, info)
	}
	return out
}

// since finds the event that times are to be relative to: a mark by its text,
// else by its kind, else a line of the first file by its number.
func (c *Collector) since(ev *evidence, what string) (*Since, error) {
	find := func(match func(*line) bool) (found []*line) {
		for _, l := range ev.marks {
			if match(l) {
				found = append(found, l)
			}
		}
		return found
	}
	found := find(func(l *line) bool { return l.Mark.Text == what })
	if len(found) == 0 {
		found = find(func(l *line) bool { return l.Mark.Kind == what })
	}
	if len(found) > 0 {
		l := found[0]
		s := &Since{Line: l.ref(), MonoNS: l.MonoNS, Time: l.Time, boot: l.s.boot()}
		s.What = fmt.Sprintf("the mark %q (%s)", l.Mark.Text, l.Mark.Kind)
		if n := len(found); n > 1 {
			s.What += fmt.Sprintf(", the first of %d that match", n)
		}
		return s, nil
	}
	if n, err := strconv.ParseUint(what, 10, 64); err == nil && len(c.files) > 0 {
		for _, s := range c.files[0].sessions {
			for _, l := range s.lines {
				if l.Seq == n {
					return &Since{Line: l.ref(), MonoNS: l.MonoNS, Time: l.Time, What: fmt.Sprintf("line %d of %s (%s)", n, c.files[0].name, l.Type), boot: s.boot()}, nil
				}
			}
		}
	}
	var marks []string
	for _, l := range ev.marks {
		if m := strconv.Quote(l.Mark.Text) + " (" + l.Mark.Kind + ")"; !slices.Contains(marks, m) && len(marks) < 5 {
			marks = append(marks, m)
		}
	}
	if len(marks) == 0 {
		return nil, fmt.Errorf("%w: %s; there are no marks", ErrNoSince, what)
	}
	return nil, fmt.Errorf("%w: %s; there are the marks %s", ErrNoSince, what, strings.Join(marks, ", "))
}

// story tells of one connection.
func (ev *evidence) story(ends []*end, trouble uint64, all bool, since *Since) Story {
	// The one that opened it comes first.
	if len(ends) == 2 && (ends[1].opener == 1 || ends[0].opener == 2) && ends[0].opener != 1 {
		ends[0], ends[1] = ends[1], ends[0]
	}
	t := &teller{ev: ev, ends: ends, begin: trouble, all: all}
	st := Story{Trouble: trouble != 0, First: -1, Notes: []string{}, Ends: []End{}}
	st.JoinedBy = ends[0].joinedBy
	// Where times begin.
	st.ZeroNS, st.Zero = trouble, "the first trouble"
	if trouble == 0 {
		st.ZeroNS, st.Zero = ends[0].first().MonoNS, "the first that was seen of it"
		for _, e := range ends {
			st.ZeroNS = min(st.ZeroNS, e.born)
		}
		t.begin = st.ZeroNS
	}
	if since != nil {
		if since.boot == ends[0].ns.boot {
			st.ZeroNS, st.Zero, st.ZeroTime = since.MonoNS, since.What, since.Time
		} else {
			st.Notes = append(st.Notes, fmt.Sprintf("%s was on another machine, or before a reboot: times are relative to %s", since.What, st.Zero))
		}
	}
	if st.ZeroTime == 0 {
		st.ZeroTime = wallTime(ends, st.ZeroNS)
	}
	t.zero = st.ZeroNS
	st.order, st.boot = t.begin, ends[0].first().s.file.index
	t.tell()
	st.Steps = t.steps
	for i, e := range ends {
		st.Ends = append(st.Ends, t.info(e))
		for _, n := range t.notes(e) {
			if !slices.Contains(st.Notes, n) {
				st.Notes = append(st.Notes, n)
			}
		}
		if e.abort != nil {
			for _, s := range st.Steps {
				if s.Ended != nil && s.Ended.First && *s.End == i {
					st.First = i
				}
			}
		}
	}
	if st.JoinedBy == "addresses, time" && !ends[0].noSocket && !ends[1].noSocket {
		st.Notes = append(st.Notes, "the two ends are taken for one connection because of their addresses and times; no sequence numbers confirm it")
	}
	return st
}

// wallTime is the wall time of a line at a time.
func wallTime(ends []*end, mono uint64) (best events.WallTime) {
	apart := ^uint64(0)
	for _, e := range ends {
		lines := append(slices.Clone(e.lines), e.loose...)
		if e.gone != nil {
			lines = append(lines, e.gone)
		}
		for _, l := range lines {
			d := max(l.MonoNS, mono) - min(l.MonoNS, mono)
			if d < apart {
				apart, best = d, l.Time+events.WallTime(mono-l.MonoNS)
			}
		}
	}
	return best
}

// info is what is said of an end beside its steps.
func (t *teller) info(e *end) End {
	i := End{
		Label: t.name(e), File: e.first().s.file.index, Netns: e.netns, Sock: e.sock, Owner: e.owner, Socket: !e.noSocket,
		BornBefore: e.before, OpenedNS: e.born, EndedNS: e.closed,
		Totals: Totals{Causes: make(map[string]int)},
	}
	i.Role = t.role(e)
	switch {
	case e.noSocket:
		i.Ending, i.OpenedNS, i.EndedNS = EndingNoSocket, 0, 0
	case e.abort != nil:
		i.Ending = EndingAbort
	case e.closed != 0 && orderly(e.closing.State.Old):
		i.Ending = EndingFIN
	case e.closed != 0:
		i.Ending = EndingUnmatched
	case e.gone != nil:
		i.Ending, i.EndedNS = EndingGone, e.gone.MonoNS
	case e.last().summary == nil, len(e.last().lostIn(e.lastLine().MonoNS, e.last().last)) > 0:
		i.Ending = EndingUnknown
	default:
		i.Ending = EndingOpen
	}
	for _, ls := range [][]*line{e.lines, e.loose} {
		for _, l := range ls {
			switch {
			case l.Retransmit != nil:
				i.Totals.Retransmissions++
				i.Totals.Segments += uint64(l.Retransmit.Segments)
				i.Totals.Causes[l.Retransmit.Cause]++
			case l.Probe != nil && l.Probe.Direction == "sent":
				i.Totals.Probes++
			case l.Recovered != nil:
				i.Totals.StalledUs = max(i.Totals.StalledUs, l.Recovered.StalledUs)
			}
		}
	}
	return i
}

// role says whether an end opened the connection. What is known of the other
// end decides too.
func (t *teller) role(e *end) string {
	opener := e.opener
	if opener == 0 && e.peer != nil && e.peer.opener != 0 {
		opener = 3 - e.peer.opener
	}
	return [...]string{RoleUnknown, RoleOpened, RoleAccepted}[opener]
}

// notes are what a reader must know of an end before the story.
func (t *teller) notes(e *end) (out []string) {
	if e.sock.MPTCP && e.index == 0 {
		out = append(out, "this is a subflow of a Multipath TCP connection, which may have others: what ends or stalls here need not end or stall there")
	}
	peer := e.sock.Remote.String()
	switch {
	case e.peer != nil:
	case len(e.rivals) > 0:
		var names []string
		for _, r := range e.rivals {
			names = append(names, fmt.Sprintf("%s in %s", r.sock.Local, nsName(&r.netns)))
		}
		if e.contested {
			out = append(out, fmt.Sprintf("the other end is not joined: %s could be the other end of several (%s)", peer, strings.Join(names, ", ")))
		} else {
			out = append(out, fmt.Sprintf("the other end is not joined: it could be any of %d (%s)", len(names), strings.Join(names, ", ")))
		}
	case len(e.misfits) > 0:
		var names []string
		for _, r := range e.misfits {
			if n := nsName(&r.netns); !slices.Contains(names, n) {
				names = append(names, n)
			}
		}
		out = append(out, fmt.Sprintf("the other end, %s, is not in these files: %s has a socket with these addresses, but what it sent and received does not fit", peer, strings.Join(names, ", ")))
	default:
		out = append(out, t.absent(e))
	}
	for _, s := range e.sessions {
		if len(s.file.damage) > 0 {
			out = append(out, s.file.name+" is damaged: what stood there may be missing from this story")
		}
		if s.summary != nil && s.summary.Verdict.State == "incomplete" {
			out = append(out, s.file.name+" says itself that it is incomplete: what it misses may be missing from this story")
		}
	}
	return out
}
