package verify

import (
	"hash/maphash"

	"github.com/sockwatch/sockwatch/internal/events"
)

// sockKey is a socket of a session. Its cookie is unique, as long as its
// namespace is watched.
type sockKey struct {
	ns     *namespace
	cookie uint64
}

// sock is what the lines of one socket said so far.
type sock struct {
	id    events.Sock // once known
	known bool

	state  string // it is in; "" before the first state line
	closed bool   // it moved to CLOSE, and did not connect again
	ending *closing

	run struct {
		active bool
		count  uint32
		una    uint32
		first  uint64 // mono_ns
	}

	// What an abort says of the past, which the lines said too.
	connectNS     uint64
	resetReceived bool
	resetSent     bool
	resetReason   string

	lastNS   uint64 // of the last line that was written under the socket's lock
	lastLine int

	// snd_una and bytes_acked move together, rcv_nxt and bytes_received too.
	based            bool
	sndBase, rcvBase uint32
	acked, received  uint64
	end              *end
}

// closing is a move to CLOSE, until its abort.
type closing struct {
	sock *sock
	line int
	seq  uint64
	mono uint64
	old  string
	tcp  uint64 // hash of the snapshot; 0: there was none
}

var seed = maphash.MakeSeed()

func hashTCP(t *events.TCP) uint64 {
	if t == nil {
		return 0
	}
	return maphash.Comparable(seed, *t)
}

// socket holds a line against those of its socket before.
func (s *session) socket(e *events.Event) {
	before := s.before
	s.before = lineBefore{}
	if c := s.expect; c != nil && (e.Abort == nil || e.Sock == nil || s.sockOf(e) != c.sock) {
		s.find(Contradiction, CheckSockets, c.line, c.seq, "the connection ended in %s, which is an abort, but no abort line follows", c.old)
	}
	s.expect = nil
	if e.TCP != nil {
		s.snapshot(e)
	}
	s.byItself(e)
	s.beside(e)
	if e.Sock == nil || e.Netns == nil {
		return
	}
	k := s.sockOf(e)
	if k == nil {
		s.withoutSocket(e)
		return
	}
	s.identity(k, e)
	switch {
	case e.State != nil:
		s.stateLine(k, e)
	case e.Retransmit != nil:
		s.retransmitLine(k, e)
	case e.Recovered != nil:
		s.recoveredLine(k, e)
	case e.Inventory != nil:
		s.inventoryLine(k, e)
	case e.Reset != nil:
		s.resetLine(k, e)
	case e.Abort != nil:
		s.abortLine(k, e, before)
	}
	if underLock(e) {
		s.underLock(k, e)
	}
}

// sockOf returns the socket of a line, nil if it has no cookie.
func (s *session) sockOf(e *events.Event) *sock {
	if e.Netns == nil || e.Sock.Cookie == 0 {
		return nil
	}
	key := sockKey{s.namespaces[*e.Netns], e.Sock.Cookie}
	k := s.socks[key]
	if k == nil {
		k = new(sock)
		s.socks[key] = k
	}
	return k
}

// snapshot checks what the socket's state says twice.
func (s *session) snapshot(e *events.Event) {
	t := e.TCP
	for _, d := range []struct {
		name, from string
		says, is   uint32
	}{
		{"unacked_bytes", "snd_nxt - snd_una", t.UnackedBytes, t.SndNxt - t.SndUna},
		{"unsent_bytes", "write_seq - snd_nxt", t.UnsentBytes, t.WriteSeq - t.SndNxt},
		{"unread_bytes", "rcv_nxt - copied_seq", t.UnreadBytes, t.RcvNxt - t.CopiedSeq},
	} {
		if d.says != d.is {
			s.contradicts(CheckSockets, e, "tcp.%s is %d, %s is %d", d.name, d.says, d.from, d.is)
		}
	}
}

// byItself checks what a line says twice.
func (s *session) byItself(e *events.Event) {
	switch {
	case e.State != nil:
		if e.TCP != nil && e.TCP.State != e.State.Old {
			s.contradicts(CheckSockets, e, "state.old is %s, tcp.state is %s", e.State.Old, e.TCP.State)
		}
	case e.Error != nil:
		if name := events.ErrnoName(e.Error.Errno); e.Error.Name != name {
			s.contradicts(CheckSockets, e, "error.name is %q, %d is %q", e.Error.Name, e.Error.Errno, name)
		}
		if e.TCP != nil && e.TCP.SkErr != e.Error.Errno {
			s.contradicts(CheckSockets, e, "error.errno is %d, tcp.sk_err is %d", e.Error.Errno, e.TCP.SkErr)
		}
	case e.Arrival != nil:
		a := e.Arrival
		n := a.Segment.SeqEnd - a.Segment.SeqStart
		if a.Segment.Has("FIN") {
			n--
		}
		if a.Bytes != n {
			s.contradicts(CheckSockets, e, "arrival.bytes is %d, its segment has %d", a.Bytes, n)
		}
	case e.Reset != nil:
		if g := e.Reset.Segment; g != nil && !g.Has("RST") {
			s.contradicts(CheckSockets, e, "the segment of the reset is none: its flags are %q", g.Flags)
		}
	}
}

// identity: a socket keeps its addresses from when it has them until it
// connects again.
func (s *session) identity(k *sock, e *events.Event) {
	if e.State != nil && e.State.New == "SYN_SENT" {
		k.known = false // the kernel chooses the port after this
		return
	}
	switch {
	case e.Sock.Local.Port() == 0:
	case !k.known:
		k.id, k.known = *e.Sock, true
	case k.id.Family != e.Sock.Family || k.id.Local != e.Sock.Local || k.id.Remote != e.Sock.Remote:
		s.doubts(CheckSockets, e, "socket %d is from %s to %s, it was from %s to %s", e.Sock.Cookie, e.Sock.Local, e.Sock.Remote, k.id.Local, k.id.Remote)
	}
}

func (s *session) stateLine(k *sock, e *events.Event) {
	if k.state != "" && e.State.Old != k.state {
		s.doubts(CheckSockets, e, "socket %d leaves %s, it was in %s", e.Sock.Cookie, e.State.Old, k.state)
	}
	k.state = intern(e.State.New)
	switch {
	case e.State.New == "SYN_SENT":
		if k.end != nil {
			k.end.finish(s)
		}
		*k = sock{state: k.state, connectNS: e.MonoNS, lastNS: k.lastNS, lastLine: k.lastLine}
	case e.State.New == "CLOSE" && !k.closed:
		k.closed = true
		if k.end != nil {
			k.end.closed = e.MonoNS
		}
		old := e.State.Old
		if old == "LISTEN" || old == "CLOSE" || old == "TIME_WAIT" {
			return
		}
		k.ending = &closing{k, s.out.LastLine, e.Seq, e.MonoNS, intern(old), hashTCP(e.TCP)}
		// Once FIN was sent it is an abort only if something went wrong.
		if !finSent(old) || k.resetReceived || e.TCP != nil && e.TCP.SkErr != 0 {
			s.expect = k.ending
		}
		s.before = lineBefore{sock: k}
	}
}

func finSent(state string) bool {
	return state == "FIN_WAIT1" || state == "FIN_WAIT2" || state == "CLOSING" || state == "LAST_ACK"
}

func (s *session) retransmitLine(k *sock, e *events.Event) {
	r := e.Retransmit
	var una uint32
	if t := e.TCP; t != nil {
		una = t.SndUna
		switch {
		case int32(r.SeqStart-t.SndUna) < 0 || int32(t.SndNxt-r.SeqEnd) < 0:
			s.contradicts(CheckSockets, e, "%d to %d was sent again, but only %d to %d can be", r.SeqStart, r.SeqEnd, t.SndUna, t.SndNxt)
		case (r.Cause == "rto" || r.Cause == "syn") && r.SeqStart != t.SndUna:
			s.contradicts(CheckSockets, e, "the timer sent %d again, the first that is not acknowledged is %d", r.SeqStart, t.SndUna)
		}
	}
	if k.run.active && una != k.run.una {
		s.contradicts(CheckSockets, e, "snd_una moved on from %d, where the run began, but no recovered line ends it", k.run.una)
		k.run.active, k.run.count = false, 0
	}
	if !k.run.active {
		k.run.active, k.run.una, k.run.first = true, una, e.MonoNS
	}
	k.run.count++
	if r.Attempt != k.run.count {
		s.contradicts(CheckSockets, e, "retransmit.attempt is %d, it is number %d of its run", r.Attempt, k.run.count)
		k.run.count = r.Attempt
	}
}

func (s *session) recoveredLine(k *sock, e *events.Event) {
	r, run := e.Recovered, k.run
	k.run.active, k.run.count = false, 0
	if !run.active {
		s.contradicts(CheckSockets, e, "nothing was sent again that could be acknowledged")
		return
	}
	if r.Retransmits != run.count {
		s.contradicts(CheckSockets, e, "recovered.retransmits is %d, the run has %d", r.Retransmits, run.count)
	}
	if r.Answered > r.Retransmits {
		s.contradicts(CheckSockets, e, "retransmission %d was answered, of %d", r.Answered, r.Retransmits)
	}
	if us := (e.MonoNS - run.first) / 1000; r.StalledUs != us {
		s.contradicts(CheckSockets, e, "recovered.stalled_us is %d, since the run began it is %d", r.StalledUs, us)
	}
	if r.AckedBytes != r.Ack-run.una {
		s.contradicts(CheckSockets, e, "recovered.acked_bytes is %d, from snd_una %d to ack %d it is %d", r.AckedBytes, run.una, r.Ack, r.Ack-run.una)
	}
}

func (s *session) inventoryLine(k *sock, e *events.Event) {
	if e.TCP != nil && e.TCP.Retransmits > 0 && !k.run.active {
		k.run.active, k.run.una, k.run.first, k.run.count = true, e.TCP.SndUna, e.MonoNS, uint32(e.TCP.Retransmits)
	}
}

func (s *session) resetLine(k *sock, e *events.Event) {
	switch r := e.Reset; {
	case r.Direction == "received":
		k.resetReceived = true
	default:
		k.resetSent, k.resetReason = true, r.Reason
		s.before = lineBefore{sock: k, sent: true}
	}
	if k.end != nil {
		k.end.resets = append(k.end.resets, s.resetSeen(e))
	} else {
		s.loneReset(e) // it is no end yet: it connects
	}
}

// withoutSocket takes a line about addresses that no socket has, or a socket
// without a cookie.
func (s *session) withoutSocket(e *events.Event) {
	if e.Reset == nil {
		return
	}
	if e.Reset.Socket && e.Reset.Direction == "received" {
		s.anonymous = true
	}
	s.loneReset(e)
}

func (s *session) loneReset(e *events.Event) {
	if s.header == nil || s.header.BootID == "" {
		return
	}
	key := loneKey{s.header.BootID, ways{e.Sock.Local, e.Sock.Remote}}
	if list := s.f.v.ends.lone[key]; len(list) < maxResets {
		s.f.v.ends.lone[key] = append(list, s.resetSeen(e))
	}
}

// abortLine: an abort follows the move to CLOSE, or the reset that made an
// abort of it, and repeats what the lines before said.
func (s *session) abortLine(k *sock, e *events.Event, before lineBefore) {
	a, c := e.Abort, k.ending
	k.ending = nil
	switch {
	case c == nil:
		s.contradicts(CheckSockets, e, "there is an abort, but no state line by which socket %d moved to CLOSE", e.Sock.Cookie)
		return
	case before.sock != k:
		s.contradicts(CheckSockets, e, "the abort does not follow the line that decided it: the state line %d, or a reset", c.line)
	}
	if a.State != c.old {
		s.contradicts(CheckSockets, e, "abort.state is %s, in line %d it left %s", a.State, c.line, c.old)
	}
	if e.MonoNS != c.mono || hashTCP(e.TCP) != c.tcp {
		s.contradicts(CheckSockets, e, "mono_ns or tcp of the abort are not those of its state line %d", c.line)
	}
	f := &a.Facts
	fact := func(name string, says, is any) {
		if says != is {
			text := "abort.facts.%s is %v, by the lines before it is %v"
			if s.anonymous {
				s.doubts(CheckSockets, e, text, name, says, is)
			} else {
				s.contradicts(CheckSockets, e, text, name, says, is)
			}
		}
	}
	fact("reset_received", f.ResetReceived, k.resetReceived)
	fact("reset_sent", f.ResetSent, k.resetSent)
	fact("reset_reason", f.ResetReason, k.resetReason)
	fact("connect_ns", f.ConnectNS, k.connectNS)
}

// underLock reports whether a line was written while the socket was locked, so
// that the order of such lines is the order in which things happened, and a
// snapshot is of one moment. An abort repeats an older one.
func underLock(e *events.Event) bool {
	switch {
	case e.State != nil, e.Retransmit != nil, e.Arrival != nil, e.Inventory != nil:
		return true
	}
	return false
}

// numbered reports whether the sequence numbers of a snapshot are those of a
// connection.
func numbered(e *events.Event) bool {
	switch e.TCP.State {
	case "ESTABLISHED", "FIN_WAIT1", "FIN_WAIT2", "CLOSE_WAIT", "LAST_ACK", "CLOSING":
		return true
	}
	return e.State != nil && e.State.New == "ESTABLISHED"
}

func (s *session) underLock(k *sock, e *events.Event) {
	if e.MonoNS < k.lastNS && (e.State != nil || e.Retransmit != nil) {
		s.contradicts(CheckSockets, e, "socket %d: mono_ns is before that of line %d", e.Sock.Cookie, k.lastLine)
	}
	if e.State != nil || e.Retransmit != nil {
		k.lastNS, k.lastLine = e.MonoNS, s.out.LastLine
	}
	t := e.TCP
	if t == nil || !numbered(e) {
		return
	}
	snd, rcv := t.SndUna-uint32(t.BytesAcked), t.RcvNxt-uint32(t.BytesReceived)
	switch {
	case !k.based:
		k.based, k.sndBase, k.rcvBase = true, snd, rcv
	case snd != k.sndBase:
		s.doubts(CheckSockets, e, "socket %d: snd_una and bytes_acked do not move together: %d with %d does not fit the lines before", e.Sock.Cookie, t.SndUna, t.BytesAcked)
	case rcv != k.rcvBase:
		s.doubts(CheckSockets, e, "socket %d: rcv_nxt and bytes_received do not move together: %d with %d does not fit the lines before", e.Sock.Cookie, t.RcvNxt, t.BytesReceived)
	case t.BytesAcked < k.acked:
		s.doubts(CheckSockets, e, "socket %d: bytes_acked fell from %d to %d", e.Sock.Cookie, k.acked, t.BytesAcked)
	case t.BytesReceived < k.received:
		s.doubts(CheckSockets, e, "socket %d: bytes_received fell from %d to %d", e.Sock.Cookie, k.received, t.BytesReceived)
	}
	k.acked, k.received = t.BytesAcked, t.BytesReceived
	if snd == k.sndBase && rcv == k.rcvBase {
		s.snap(k, e)
	}
}

// states keeps one string of each state, so that a socket does not hold on to
// the line it was read from.
var states = func() map[string]string {
	m := make(map[string]string)
	for _, n := range []string{
		"ESTABLISHED", "SYN_SENT", "SYN_RECV", "FIN_WAIT1", "FIN_WAIT2", "TIME_WAIT", "CLOSE", "CLOSE_WAIT", "LAST_ACK", "LISTEN", "CLOSING", "NEW_SYN_RECV",
	} {
		m[n] = n
	}
	return m
}()

func intern(s string) string {
	if n, ok := states[s]; ok {
		return n
	}
	return s
}
