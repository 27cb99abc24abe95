package report

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/sockwatch/sockwatch/internal/events"
)

// Collector takes events. The zero value is ready.
type Collector struct {
	files []*FileReader
	order int
}

// FileReader takes the events of one file.
type FileReader struct {
	c        *Collector
	index    int
	name     string
	sessions []*session
	cut      bool
	damage   []string
}

// session is one session of a file.
type session struct {
	file        *FileReader
	header      *events.Session
	summary     *events.Summary
	first, last uint64
	lastTime    events.WallTime
	lines       []*line
	lost        uint64
	losses      []loss
	passed      map[nsKey]bool // namespaces that another session tells
}

// loss is an interval in which records were lost.
type loss struct {
	from uint64
	ln   *line
}

// line is an event with its place.
type line struct {
	*events.Event
	s     *session
	n     int // line of the file
	order int // over all files
}

func (l *line) ref() Line { return Line{File: l.s.file.index, Line: l.n, Seq: l.Seq} }

// nsKey identifies a network namespace over all files.
type nsKey struct {
	boot   string
	cookie uint64
	inode  uint32 // where the kernel has no cookies
}

func (l *line) ns() nsKey {
	k := nsKey{boot: l.s.boot(), cookie: l.Netns.Cookie}
	if k.cookie == 0 {
		k.inode = l.Netns.Inode
	}
	return k
}

func (s *session) boot() string {
	if s.header == nil || s.header.BootID == "" {
		return fmt.Sprintf("unknown-%d-%p", s.file.index, s) // comparable with nothing
	}
	return s.header.BootID
}

// edgeSeen reports whether segments were seen at the edge of its namespaces.
func (s *session) edgeSeen() bool {
	if s.header == nil {
		return false
	}
	for _, p := range s.header.Programs {
		if p.Method == "netfilter" || p.Method == "packet" {
			return true
		}
	}
	return false
}

// File begins the next file. Its index is the number of files before it.
func (c *Collector) File(name string) *FileReader {
	f := &FileReader{c: c, index: len(c.files), name: name}
	c.files = append(c.files, f)
	return f
}

// Add takes the event that stands in a line of the file, from 1. The event and
// its parts are kept.
func (f *FileReader) Add(n int, e *events.Event) {
	if e.Session != nil || len(f.sessions) == 0 {
		s := &session{file: f, header: e.Session, first: e.MonoNS, passed: make(map[nsKey]bool)}
		f.sessions = append(f.sessions, s)
	}
	s := f.sessions[len(f.sessions)-1]
	f.c.order++
	l := &line{Event: e, s: s, n: n, order: f.c.order}
	if e.MonoNS >= s.last {
		s.last, s.lastTime = e.MonoNS, e.Time
	}
	switch {
	case e.Summary != nil:
		s.summary = e.Summary
	case e.Lost != nil:
		from := s.first
		if n := len(s.losses); n > 0 {
			from = s.losses[n-1].ln.MonoNS
		}
		s.losses = append(s.losses, loss{from: from, ln: l})
		s.lost += e.Lost.Count
	}
	s.lines = append(s.lines, l)
}

// Damaged notes what is wrong with the file.
func (f *FileReader) Damaged(what string) { f.damage = append(f.damage, what) }

// Cut notes that the last line breaks off.
func (f *FileReader) Cut() { f.cut = true }

// lostIn returns what was lost between two times.
func (s *session) lostIn(from, to uint64) []loss {
	var out []loss
	for _, l := range s.losses {
		if l.from <= to && l.ln.MonoNS >= from {
			out = append(out, l)
		}
	}
	return out
}

// whole reports whether nothing is missing between two times, as far as the
// session itself knows.
func (s *session) whole(from, to uint64) bool {
	return s.summary != nil && s.summary.Verdict.State != "incomplete" && s.summary.Kernel.Lost == 0 &&
		len(s.file.damage) == 0 && len(s.lostIn(from, to)) == 0
}

// tuple is a connection as one namespace sees it.
type tuple struct{ local, remote netip.AddrPort }

func (t tuple) mirrored() tuple { return tuple{t.remote, t.local} }

// end is one end of a connection: a socket, or the place where there was none.
type end struct {
	ns       nsKey
	netns    events.Netns
	sock     events.Sock
	owner    *events.Owner
	lines    []*line // its events, by time
	loose    []*line // events on its addresses without a socket
	sessions []*session
	noSocket bool

	opener    int    // 1: it connected, 2: it was accepted, 0: not known
	born      uint64 // or first seen
	before    bool   // born before the trace
	closed    uint64 // 0: not seen
	abort     *line
	closing   *line    // its change to CLOSE
	gone      *line    // its namespace ended before
	sent, got sequence // what it sent and received
	heard     sequence // of segments that found no socket: where the first began, where the furthest ended
	trouble   uint64   // when it began; 0: none

	peer      *end
	joinedBy  string
	rivals    []*end // those that could be its peer, if there are several
	host      *end   // without a socket: the end whose segments came here, though its peer is elsewhere
	visitors  []*end // the other way round
	contested bool   // the rivals are of its only match
	misfits   []*end // those with its addresses whose sequence numbers do not fit
	index     int    // in its story
}

func (e *end) tuple() tuple         { return tuple{e.sock.Local, e.sock.Remote} }
func (e *end) last() *session       { return e.sessions[len(e.sessions)-1] }
func (e *end) lastLine() *line      { return e.lines[len(e.lines)-1] }
func (e *end) isOpen(t uint64) bool { return e.closed == 0 || e.closed > t }

// until is when the end's life was over, as far as the files reach.
func (e *end) until() uint64 {
	switch {
	case e.closed != 0:
		return e.closed
	case e.gone != nil:
		return e.gone.MonoNS
	}
	return e.last().last
}

// sequence is where a direction of a connection begins, and how far it got.
type sequence struct {
	ok    bool
	first uint32 // initial sequence number, or one more
	last  uint32 // the furthest seen
}

func (q *sequence) see(first, last uint32) {
	if !q.ok {
		*q = sequence{true, first, last}
	}
	if int32(last-q.last) > 0 {
		q.last = last
	}
}

// evidence is everything, sorted into ends.
type evidence struct {
	ends    []*end
	marks   []*line
	beside  []*line // what happened beside the sockets: drops, ICMP errors, neighbours, reads and writes
	targets []*line
	resets  map[bootTuple][]*line // sent, in whatever namespace
	matched map[*line]*line       // RST received -> RST sent
	arrived map[*line]*line       // the other way round
	places  map[place][]*watched  // namespaces, by an address that they have
	notes   []string
}

// place is an address on a machine.
type place struct {
	boot string
	addr netip.Addr
}

// watched is a namespace as one session watched it.
type watched struct {
	ns        nsKey
	netns     events.Netns
	s         *session
	from      uint64 // it was attached
	to        uint64 // it was gone; 0: not
	listeners []listener
}

// listener is a socket that listened.
type listener struct {
	local    netip.AddrPort
	cookie   uint64
	from, to uint64 // to is 0: it listened to the end
}

type nsTuple struct {
	ns nsKey
	tuple
}

type bootTuple struct {
	boot string
	tuple
}

type sockKey struct {
	ns     nsKey
	cookie uint64
}

// collect sorts what was added into ends.
func (c *Collector) collect() *evidence {
	ev := &evidence{resets: make(map[bootTuple][]*line), matched: make(map[*line]*line), arrived: make(map[*line]*line)}
	ev.notes = c.passOver()
	socks := make(map[sockKey][]*line)
	var keys []sockKey
	var loose []*line
	type markKey struct {
		boot string
		mono uint64
		mark events.Mark
	}
	marks := make(map[markKey]bool)
	for _, f := range c.files {
		for _, s := range f.sessions {
			for _, l := range s.lines {
				switch {
				case l.Mark != nil:
					// One mark reaches every session that runs.
					if k := (markKey{s.boot(), l.MonoNS, *l.Mark}); !marks[k] {
						marks[k] = true
						ev.marks = append(ev.marks, l)
					}
				case ev.takes(s, l):
				case l.Netns == nil || s.passed[l.ns()]:
				case l.Target != nil:
					ev.targets = append(ev.targets, l)
				case l.Sock == nil:
				case l.Sock.Cookie == 0:
					// Where the kernel gives no cookies, a connection that
					// leaves its listener has none yet.
					if l.Reset != nil || l.Retransmit != nil {
						loose = append(loose, l)
					}
				default:
					k := sockKey{l.ns(), l.Sock.Cookie}
					if socks[k] == nil {
						keys = append(keys, k)
					}
					socks[k] = append(socks[k], l)
				}
				if l.Reset != nil && l.Reset.Direction == "sent" && l.Sock != nil && l.Netns != nil && !s.passed[l.ns()] {
					k := bootTuple{s.boot(), tuple{l.Sock.Local, l.Sock.Remote}}
					ev.resets[k] = append(ev.resets[k], l)
				}
			}
		}
	}
	byTime(ev.marks)
	byTime(ev.targets)
	byTime(ev.beside)
	byTime(loose)
	for _, k := range keys {
		ev.ends = append(ev.ends, lives(k.ns, socks[k])...)
	}
	ev.namespacesGone()
	ev.attach(loose)
	slices.SortStableFunc(ev.ends, func(a, b *end) int {
		return cmp.Or(cmp.Compare(a.first().s.file.index, b.first().s.file.index), cmp.Compare(a.first().order, b.first().order))
	})
	for _, e := range ev.ends {
		e.findTrouble()
	}
	ev.takenTrouble()
	return ev
}

func (e *end) first() *line {
	if len(e.lines) > 0 {
		return e.lines[0]
	}
	return e.loose[0]
}

func byTime(ls []*line) {
	slices.SortStableFunc(ls, func(a, b *line) int {
		return cmp.Or(cmp.Compare(a.MonoNS, b.MonoNS), cmp.Compare(a.order, b.order))
	})
}

// passOver sees to it that no namespace is told by two sessions that ran at
// the same time: the file that was given first tells it.
func (c *Collector) passOver() (notes []string) {
	tellers := make(map[nsKey][]*session)
	for _, f := range c.files {
		for _, s := range f.sessions {
			seen := make(map[nsKey]string)
			var names []nsKey
			for _, l := range s.lines {
				if l.Netns != nil {
					k := l.ns()
					if _, ok := seen[k]; !ok {
						seen[k] = l.Netns.Name
						names = append(names, k)
					}
				}
			}
			for _, k := range names {
				var other *session
				for _, t := range tellers[k] {
					if t.first <= s.last && s.first <= t.last {
						other = t
					}
				}
				if other == nil {
					tellers[k] = append(tellers[k], s)
					continue
				}
				s.passed[k] = true
				notes = append(notes, fmt.Sprintf("%s and %s watched %s at the same time: it is told from %s", other.file.name, f.name, seen[k], other.file.name))
			}
		}
	}
	return notes
}

// lives makes ends of the events of one socket. It may connect again after it
// was closed.
func lives(ns nsKey, ls []*line) []*end {
	byTime(ls)
	var out []*end
	var e *end
	for _, l := range ls {
		if e == nil || (e.closed != 0 && l.State != nil && l.State.New == "SYN_SENT") {
			e = &end{ns: ns}
			out = append(out, e)
		}
		e.add(l)
	}
	return slices.DeleteFunc(out, func(e *end) bool {
		return e.sock.Remote.Port() == 0 && (!e.sock.Remote.IsValid() || e.sock.Remote.Addr().IsUnspecified()) // a listener
	})
}

func (e *end) add(l *line) {
	if n := len(e.sessions); n == 0 || e.sessions[n-1] != l.s {
		e.sessions = append(e.sessions, l.s)
	}
	if len(e.lines) == 0 {
		e.born = l.MonoNS
		e.before = l.Inventory != nil || l.State == nil || (l.State.Old != "CLOSE" && l.State.Old != "LISTEN" && l.State.Old != "SYN_RECV")
		if l.State != nil && l.State.Old == "SYN_RECV" {
			e.opener = 2
		}
	}
	e.lines = append(e.lines, l)
	e.netns = *l.Netns
	// The kernel chooses the local port after the move to SYN_SENT.
	if e.sock.Local.Port() == 0 || l.Sock.Local.Port() != 0 {
		e.sock = *l.Sock
	}
	if l.Owner != nil {
		e.owner = l.Owner
		switch {
		case e.opener != 0:
		case l.Owner.Via == "connect":
			e.opener = 1
		case l.Owner.Via == "listener":
			e.opener = 2
		}
	}
	switch {
	case l.State != nil:
		switch l.State.New {
		case "SYN_SENT":
			e.opener = 1
		case "SYN_RECV":
			// A SYN that crossed its own comes to a socket that connects.
			if l.State.Old == "LISTEN" {
				e.opener = 2
			}
		case "CLOSE":
			if e.closed == 0 {
				e.closed, e.closing = l.MonoNS, l
			}
		}
	case l.Abort != nil && e.abort == nil:
		e.abort = l
		if e.closed == 0 {
			e.closed = l.MonoNS
		}
	}
	e.sight(l)
}

// sight keeps what the snapshot says of sequence numbers. The kernel counts
// bytes from where the sequences begin, perhaps with the SYN.
func (e *end) sight(l *line) {
	t := l.TCP
	if t == nil || t.State == "LISTEN" || t.State == "CLOSE" || t.State == "NEW_SYN_RECV" {
		return
	}
	e.sent.see(t.SndUna-uint32(t.BytesAcked), t.SndNxt)
	if t.State != "SYN_SENT" || (l.State != nil && l.State.New == "ESTABLISHED") {
		e.got.see(t.RcvNxt-uint32(t.BytesReceived), t.RcvNxt)
	}
}

// namespacesGone finds the ends whose namespace ended before them.
func (ev *evidence) namespacesGone() {
	for _, t := range ev.targets {
		if t.Target.Change != "gone" {
			continue
		}
		for _, e := range ev.ends {
			if e.ns == t.ns() && e.closed == 0 && e.gone == nil && e.born <= t.MonoNS {
				e.gone = t
			}
		}
	}
}

// attach gives events without a socket to the end on whose addresses they
// happened, or makes an end without a socket of them.
func (ev *evidence) attach(loose []*line) {
	byTuple := make(map[nsTuple][]*end)
	for _, e := range ev.ends {
		k := nsTuple{e.ns, e.tuple()}
		byTuple[k] = append(byTuple[k], e)
	}
	type nobody struct {
		nsTuple
		id  string
		seq uint32
	}
	nobodies := make(map[nobody]*end)
	for _, l := range loose {
		k := nsTuple{l.ns(), tuple{l.Sock.Local, l.Sock.Remote}}
		if e := belongs(byTuple[k], l); e != nil {
			e.loose = append(e.loose, l)
			continue
		}
		n := nobody{nsTuple: k}
		switch {
		case l.Retransmit != nil:
			n.id, n.seq = "synack", l.Retransmit.SeqStart
		case l.Reset != nil && l.Reset.Trigger != nil && l.Reset.Trigger.Flags == "SYN":
			n.id, n.seq = "syn", l.Reset.Trigger.SeqStart
		}
		e := nobodies[n]
		if e == nil {
			e = &end{ns: k.ns, noSocket: true, born: l.MonoNS, netns: *l.Netns, sock: *l.Sock, owner: l.Owner}
			if n.id != "" {
				e.opener = 2
			}
			nobodies[n] = e
			ev.ends = append(ev.ends, e)
		}
		if m := len(e.sessions); m == 0 || e.sessions[m-1] != l.s {
			e.sessions = append(e.sessions, l.s)
		}
		e.loose = append(e.loose, l)
		e.closed = l.MonoNS
		switch {
		case l.Retransmit != nil:
			e.sent.see(l.Retransmit.SeqStart, l.Retransmit.SeqEnd)
		case l.Reset != nil && l.Reset.Trigger != nil:
			e.heard.see(l.Reset.Trigger.SeqStart, l.Reset.Trigger.SeqEnd)
		}
	}
}

// belongs finds the end that an event without a socket concerns.
func belongs(ends []*end, l *line) *end {
	if l.Retransmit != nil { // a SYN-ACK, of the socket that its answer made
		for _, e := range ends {
			if e.opener == 2 && e.born >= l.MonoNS && e.sent.ok && near(e.sent.first, l.Retransmit.SeqEnd) {
				return e
			}
		}
		return nil
	}
	if r := l.Reset; r != nil && r.Trigger != nil && r.Trigger.Flags == "SYN" {
		return nil // another connection
	}
	var best *end
	for _, e := range ends {
		if e.born <= l.MonoNS && (best == nil || e.born > best.born) {
			best = e
		}
	}
	return best
}

// findTrouble finds when the trouble of an end began.
func (e *end) findTrouble() {
	began := func(t uint64) {
		if e.trouble == 0 || t < e.trouble {
			e.trouble = t
		}
	}
	for _, l := range e.loose {
		began(l.MonoNS)
	}
	if e.gone != nil {
		began(e.gone.MonoNS)
	}
	if e.before && e.lines[0].TCP != nil && (e.lines[0].TCP.Retransmits > 0 || e.lines[0].TCP.Backoff > 0) && e.lines[0].TCP.UnackedBytes > 0 {
		began(e.lines[0].MonoNS)
	}
	var alone uint64 // the first of the last run of keepalive probes
	for _, l := range e.lines {
		switch {
		case l.Retransmit != nil, l.Recovered != nil, l.Reset != nil:
			began(l.MonoNS)
		case l.Error != nil && l.Error.Errno != 0 && (e.abort != nil || e.closed == 0 || l.MonoNS < e.closed):
			began(l.MonoNS)
		case l.Abort != nil:
			began(l.MonoNS)
			if l.Abort.Cause == "keepalive" && alone != 0 {
				began(alone)
			}
		case l.Probe != nil && l.Probe.Kind == "zero-window":
			began(l.MonoNS)
		case l.Probe != nil && l.Probe.Direction == "sent":
			// Only who sends them knows whether they are answered.
			if l.Probe.Number == 1 || alone == 0 {
				alone = l.MonoNS
			}
			if l.Probe.Number > 1 {
				began(alone)
			}
		}
	}
	if e.closing != nil && e.abort == nil && !orderly(e.closing.State.Old) {
		began(e.closed)
	}
}

// orderly reports whether a connection in this state may end without an abort.
func orderly(state string) bool {
	switch state {
	case "FIN_WAIT1", "FIN_WAIT2", "CLOSING", "LAST_ACK", "TIME_WAIT", "CLOSE", "LISTEN":
		return true
	}
	return false
}
