package events

import (
	"net/netip"

	"github.com/sockwatch/sockwatch/bpf"
)

// Defaults are the settings of a namespace that sockets fall back to
// (net.ipv4.tcp_*).
type Defaults struct {
	KeepaliveTimeMs   uint64
	KeepaliveIntvlMs  uint64
	KeepaliveProbes   uint32
	SynLinearTimeouts uint32
	RTOMaxMs          int64
}

// Config is what a Tracker must know about the kernel.
type Config struct {
	HZ           uint32                // ticks a second
	WallTime     func(uint64) WallTime // CLOCK_MONOTONIC to wall time
	ResetReasons map[int32]string      // enum sk_rst_reason, without its prefix
	DropReasons  map[uint32]string     // enum skb_drop_reason, without its prefix; empty: the kernel gives none
	EdgeSeen     bool                  // RST segments are seen at the namespace's edge
	ByAddress    bool                  // what is seen there names no socket, only addresses
	NoCookies    bool                  // sockets may be without a cookie: make one up
	Emit         func(*Event) error    // takes each event; it must not keep it
}

// A Tracker turns records into events. It keeps, per socket, what a single
// record cannot say. It is not safe for concurrent use.
type Tracker struct {
	cfg        Config
	namespaces map[uint32]*namespace // by inode
	socks      map[uint64]*sock      // by address of the struct sock
	listeners  map[listenKey][]*sock
	tuples     map[tuple]*sock  // by address
	owners     map[uint64]Owner // by socket inode, from /proc
	cookie     uint64           // the last that was made up

	// A RST passes both a tracepoint and the namespace's edge. Whichever
	// comes first waits here for the other.
	held   map[tuple]*heldReset // seen at the edge
	expect map[answer]uint64    // seen by tcp_send_reset, to be passed over at the edge; value: until when

	accepted map[uint64]*heldReset // left their listener, by address of the struct sock

	lone    sock // stands in for the socket that a RST or a request does not have
	free    []*sock
	spare   []*heldReset
	comms   map[[16]uint8]string
	foreign uint64

	ev  Event // reused for every event
	buf struct {
		cpu        int
		tcp        TCP
		segment    Segment
		trigger    Segment
		retransmit Retransmit
		probe      Probe
		state      State
		reset      Reset
		abort      Abort
		recovered  Recovered
		arrival    Arrival
		err        Error
		drop       Drop
		icmp       ICMP
		neighbour  Neighbour
		io         IO
		seen       SegmentSeen
		inventory  Inventory
	}
}

type namespace struct {
	netns    Netns
	defaults Defaults
}

type listenKey struct {
	ns   uint32
	addr [16]uint8
	port uint16
}

// The addresses of a listener on every address, of either family.
var (
	any4 = netip.AddrFrom4([4]byte{}).As16()
	any6 [16]uint8
)

// tuple identifies a connection on the wire.
type tuple struct {
	ns            uint32
	local, remote [16]uint8
	lport, rport  uint16
}

func tupleOf(r *bpf.Record) tuple {
	return tuple{ns: r.NetnsInode, local: r.LocalAddr, remote: r.RemoteAddr, lport: r.LocalPort, rport: r.RemotePort}
}

type sock struct {
	ns     *namespace
	id     Sock
	tuple  tuple
	owner  Owner
	raw    [16]uint8 // owner's comm as the kernel has it
	listen bool
	key    listenKey // where it listens
	closed bool
	ending *bpf.Record // of its move to CLOSE, whose meaning a RST decides
	past   history
	run    run
	state  int    // sk->sk_state as last reported
	made   bool   // its cookie was made up
	sndNxt uint32 // as of the last record
	unsent bool   // data waited to be sent, as of the last record
	sent   uint32 // tp->total_retrans when it was last seen

	noTimeout bool // its Loss episode began without a timeout

	probe struct {
		number uint32
		seq    uint32
		rcvNxt uint32
		zero   bool
	}
	window struct { // the run of zero-window probes it sends
		number uint32
		una    uint32
	}
}

// NewTracker returns a Tracker that knows no namespace.
func NewTracker(cfg Config) *Tracker {
	return &Tracker{
		cfg:        cfg,
		namespaces: make(map[uint32]*namespace),
		socks:      make(map[uint64]*sock),
		listeners:  make(map[listenKey][]*sock),
		tuples:     make(map[tuple]*sock),
		owners:     make(map[uint64]Owner),
		held:       make(map[tuple]*heldReset),
		accepted:   make(map[uint64]*heldReset),
		expect:     make(map[answer]uint64),
		comms:      make(map[[16]uint8]string),
	}
}

// AddNamespace tells the tracker about a namespace, before its first record.
func (t *Tracker) AddNamespace(ns Netns, d Defaults) {
	if d.RTOMaxMs == 0 {
		d.RTOMaxMs = 120_000
	}
	t.namespaces[ns.Inode] = &namespace{netns: ns, defaults: d}
}

// RenameNamespace gives a namespace another name: it goes on as it is.
func (t *Tracker) RenameNamespace(ns Netns) {
	if n := t.namespaces[ns.Inode]; n != nil {
		n.netns = ns
	}
}

// RemoveNamespace forgets a namespace and its sockets, and says how many
// sockets were still known.
func (t *Tracker) RemoveNamespace(inode uint32) (sockets uint64) {
	ns := t.namespaces[inode]
	if ns == nil {
		return 0
	}
	for addr, s := range t.socks {
		if s.ns == ns {
			t.forget(addr, s)
			sockets++
		}
	}
	for addr, h := range t.accepted {
		if h.rec.NetnsInode == inode {
			delete(t.accepted, addr)
		}
	}
	delete(t.namespaces, inode)
	return sockets
}

// Foreign is the number of records that belonged to no known namespace.
func (t *Tracker) Foreign() uint64 { return t.foreign }

// Sockets is the number of sockets known now.
func (t *Tracker) Sockets() int { return len(t.socks) }

// Track takes one record and emits the events that it completes.
func (t *Tracker) Track(r *bpf.Record) error {
	ns := t.namespaces[r.NetnsInode]
	if ns == nil || (r.NetCookie != 0 && ns.netns.Cookie != 0 && r.NetCookie != ns.netns.Cookie) {
		t.foreign++
		return nil
	}
	if len(t.accepted) > 0 {
		if err := t.introduce(ns, r); err != nil {
			return err
		}
	}
	switch r.Kind {
	case bpf.KindState:
		if int(r.ArgA) == stateListen && int(r.ArgB) == stateSynRecv && r.RemotePort == 0 {
			return t.accept(r)
		}
	case bpf.KindWire:
		return t.wire(ns, r)
	case bpf.KindSynAck:
		return t.synAck(ns, r)
	case bpf.KindResetSent:
		return t.resetSent(ns, r)
	case bpf.KindResetReceived:
		return t.resetReceived(ns, r)
	case bpf.KindDrop:
		return t.drop(ns, r)
	case bpf.KindNeighbour:
		return t.neighbour(ns, r)
	}
	s := t.sock(ns, r)
	switch r.Kind {
	case bpf.KindRetransmit:
		return t.retransmit(s, r)
	case bpf.KindState:
		return t.state(s, r)
	case bpf.KindReceive:
		return t.receive(s, r)
	case bpf.KindError:
		if r.SkErr == 0 {
			return nil // tcp_disconnect wakes the application without an error
		}
		t.begin(TypeError, r, s)
		t.buf.err = Error{Errno: r.SkErr, Name: errnoName(r.SkErr)}
		t.ev.Error = &t.buf.err
		return t.emit()
	case bpf.KindIO:
		return t.io(s, r)
	case bpf.KindInventory:
		return t.inventory(s, r)
	case bpf.KindDestroy:
		t.forget(r.SockAddr, s)
	}
	return nil
}

// accept takes the record of a connection that leaves its listener. Before
// about 6.14 it is a copy of its listener then, addresses and cookie included:
// the line waits for the next record, which has its own.
func (t *Tracker) accept(r *bpf.Record) error {
	if s := t.socks[r.SockAddr]; s != nil {
		t.forget(r.SockAddr, s) // another socket had this address; its end was lost
	}
	t.accepted[r.SockAddr] = t.hold(r)
	return nil
}

// introduce writes the line that accept holds back for the socket of a record.
func (t *Tracker) introduce(ns *namespace, r *bpf.Record) error {
	h := t.accepted[r.SockAddr]
	if h == nil {
		return nil
	}
	delete(t.accepted, r.SockAddr)
	t.spare = append(t.spare, h)
	if r.RemotePort == 0 {
		return t.accepts(h, nil)
	}
	return t.accepts(h, t.sock(ns, r))
}

// accepts writes the line; without the socket it has its listener's addresses.
func (t *Tracker) accepts(h *heldReset, s *sock) error {
	if s == nil {
		ns := t.namespaces[h.rec.NetnsInode]
		if ns == nil {
			return nil
		}
		s = &sock{ns: ns, id: t.wireID(&h.rec)}
	}
	t.begin(TypeState, &h.rec, s)
	t.ev.TCP = nil // its listener's
	id := s.id
	id.MPTCP = false // as on other kernels: that is settled later
	t.ev.Sock = &id
	t.buf.state = State{Old: stateName(stateListen), New: stateName(stateSynRecv)}
	t.ev.State = &t.buf.state
	return t.emit()
}

// Tick lets what has waited long enough go: a RST at the edge that no socket
// took. now is CLOCK_MONOTONIC.
func (t *Tracker) Tick(now uint64) error {
	for key, until := range t.expect {
		if now > until {
			delete(t.expect, key)
		}
	}
	for addr, h := range t.accepted {
		if now <= h.until {
			continue
		}
		delete(t.accepted, addr)
		t.spare = append(t.spare, h)
		if err := t.accepts(h, nil); err != nil {
			return err
		}
	}
	for key, h := range t.held {
		if now <= h.until {
			continue
		}
		delete(t.held, key)
		t.spare = append(t.spare, h)
		if err := t.loneReset(&h.rec); err != nil {
			return err
		}
	}
	return nil
}

// Finish lets everything that waits go.
func (t *Tracker) Finish() error { return t.Tick(1<<64 - 1) }

// sock finds the socket of a record and brings what is known of it up to date.
func (t *Tracker) sock(ns *namespace, r *bpf.Record) *sock {
	s := t.socks[r.SockAddr]
	if s != nil && (s.ns != ns || (s.id.Cookie != 0 && !s.made && r.SockCookie != 0 && s.id.Cookie != r.SockCookie)) {
		t.forget(r.SockAddr, s) // another socket had this address; its end was lost
		s = nil
	}
	if s == nil {
		if n := len(t.free); n > 0 {
			s, t.free = t.free[n-1], t.free[:n-1]
		} else {
			s = new(sock)
		}
		*s = sock{ns: ns}
		s.id.Family = familyName(r.Family)
		t.socks[r.SockAddr] = s
	}
	cookie := r.SockCookie
	// A connection that is being accepted has its listener's addresses, and
	// cookie if there is one, still.
	accepted := r.Kind == bpf.KindState && r.ArgA == stateListen && r.ArgB == stateSynRecv
	if accepted && t.cfg.NoCookies {
		cookie = 0
	}
	if cookie != 0 && !s.made {
		s.id.Cookie = cookie
	}
	if s.id.Cookie == 0 && t.cfg.NoCookies && !accepted {
		s.id.Cookie, s.made = t.makeCookie(r.MonoNs), true
	}
	if r.Kind != bpf.KindRetransmit && r.Flags&bpf.FlagFullSock != 0 {
		s.sent = r.TotalRetrans
	}
	if r.Flags&bpf.FlagFullSock != 0 {
		s.state, s.sndNxt, s.unsent = int(r.State), r.SndNxt, r.WriteSeq != r.SndNxt
		if r.Kind == bpf.KindState {
			s.state = int(r.ArgB)
		}
	}
	// Its listener may speak MPTCP and the client not.
	s.id.MPTCP = r.Flags&bpf.FlagMPTCP != 0 && !accepted
	t.place(s, r)
	t.own(s, r)
	return s
}

// place takes the addresses of a socket from its record.
func (t *Tracker) place(s *sock, r *bpf.Record) {
	old := s.tuple
	// The kernel clears ports and addresses when a socket closes: keep the last that were set.
	if r.RemotePort != 0 || !s.id.Remote.IsValid() {
		s.id.Remote = addrPort(r.RemoteAddr, r.RemotePort)
		s.tuple.remote, s.tuple.rport = r.RemoteAddr, r.RemotePort
	}
	// tcp_disconnect clears the address and leaves the port.
	if !s.id.Local.IsValid() || (r.LocalPort != 0 && !(r.State == stateClose && s.tuple.lport == r.LocalPort)) {
		s.id.Local = addrPort(r.LocalAddr, r.LocalPort)
		s.tuple.local, s.tuple.lport = r.LocalAddr, r.LocalPort
	}
	s.tuple.ns = r.NetnsInode
	if s.tuple != old {
		if t.tuples[old] == s {
			delete(t.tuples, old)
		}
		t.tuples[s.tuple] = s
	}
}

// madeUp is where made-up cookies begin: no kernel counts that far, and what
// reads numbers as floating point still tells them apart.
const madeUp = 1 << 52

// makeCookie makes a cookie that no other socket of this boot has.
func (t *Tracker) makeCookie(monoNS uint64) uint64 {
	t.cookie = max(t.cookie+1, madeUp+monoNS/1000)
	return t.cookie
}

func (t *Tracker) forget(addr uint64, s *sock) {
	t.listensNot(s)
	delete(t.socks, addr)
	if t.tuples[s.tuple] == s {
		delete(t.tuples, s.tuple)
	}
	t.free = append(t.free, s)
}

// begin starts an event about a socket. The caller adds the part named like
// the type and emits.
func (t *Tracker) begin(typ Type, r *bpf.Record, s *sock) {
	t.ev = Event{Type: typ, MonoNS: r.MonoNs, Time: t.cfg.WallTime(r.MonoNs)}
	t.buf.cpu = int(r.Cpu)
	t.ev.CPU = &t.buf.cpu
	t.ev.Netns = &s.ns.netns
	t.ev.Sock = &s.id
	if s.owner.PID != 0 {
		t.ev.Owner = &s.owner
	}
	if r.Flags&bpf.FlagFullSock != 0 {
		decodeTCP(&t.buf.tcp, r, t.cfg.HZ, &s.ns.defaults)
		t.ev.TCP = &t.buf.tcp
	}
}

func (t *Tracker) emit() error { return t.cfg.Emit(&t.ev) }

func (t *Tracker) state(s *sock, r *bpf.Record) error {
	oldState, newState := int(uint32(r.ArgA)), int(uint32(r.ArgB))
	switch newState {
	case stateListen:
		t.listens(s)
	case stateEstablished:
		// A RST that answered a segment of an earlier connection ended nothing.
		s.past.sentReset, s.past.resetSent = false, ""
	case stateSynSent:
		// A socket may connect again after it was closed.
		s.past, s.closed, s.ending, s.run = history{connectNS: r.MonoNs}, false, nil, run{}
	}
	if oldState == stateListen {
		t.listensNot(s)
	}
	if s.run.active && r.SndUna != s.run.una && newState != stateClose {
		if err := t.recovered(s, r, r.SndUna, true); err != nil {
			return err
		}
	}
	t.begin(TypeState, r, s)
	t.buf.state = State{Old: stateName(oldState), New: stateName(newState)}
	t.ev.State = &t.buf.state
	if err := t.emit(); err != nil {
		return err
	}
	if newState != stateClose || s.closed {
		return nil
	}
	s.closed = true
	if hangsOnReset(r, &s.past) {
		ending := *r
		s.ending = &ending
		return nil
	}
	return t.abort(s, r)
}

// abort says why a socket ended, unless it did in an orderly way. r is the
// record of its move to CLOSE.
func (t *Tracker) abort(s *sock, r *bpf.Record) error {
	s.past.ends(r, t.cfg.HZ)
	by, cause, why, ok := abortCause(r, &s.past)
	if !ok {
		return nil
	}
	t.begin(TypeAbort, r, s)
	t.buf.abort = Abort{By: by, Cause: cause, Why: why, State: stateName(int(uint32(r.ArgA))), Facts: abortFacts(r, &s.past, t.cfg.HZ)}
	t.ev.Abort = &t.buf.abort
	return t.emit()
}

func (t *Tracker) receive(s *sock, r *bpf.Record) error {
	if r.Why&bpf.ReceiveAcked != 0 && s.run.active {
		if err := t.recovered(s, r, r.SegAckSeq, true); err != nil {
			return err
		}
	}
	if r.Why&bpf.ReceiveFrozen != 0 {
		if err := t.arrive(s, r); err != nil {
			return err
		}
	}
	if r.Why&bpf.ReceiveProbe != 0 {
		if err := t.probeReceived(s, r); err != nil {
			return err
		}
	}
	if r.Why&bpf.ReceiveArrival != 0 && r.Flags&bpf.FlagFullSock != 0 {
		t.begin(TypeArrival, r, s)
		t.buf.arrival = Arrival{
			SilenceMs: uint64(uint32(r.Jiffies)-r.Lrcvtime) * 1000 / uint64(t.cfg.HZ),
			Bytes:     r.SegEndSeq - r.SegSeq - uint32(r.SegFlags&flagFIN),
		}
		decodeSegment(&t.buf.arrival.Segment, r)
		t.ev.Arrival = &t.buf.arrival
		return t.emit()
	}
	return nil
}

func (t *Tracker) probeReceived(s *sock, r *bpf.Record) error {
	p := &s.probe
	if p.seq != r.SegSeq || p.rcvNxt != r.RcvNxt {
		p.number, p.seq, p.rcvNxt, p.zero = 0, r.SegSeq, r.RcvNxt, false
	}
	p.number++
	// The window opened since the first probe of the run: the peer has not heard of it.
	p.zero = p.zero || r.RcvWnd == 0
	kind := "keepalive"
	if p.zero {
		kind = "zero-window"
	}
	return t.probe(s, r, kind, "received", p.number)
}

func (t *Tracker) probe(s *sock, r *bpf.Record, kind, direction string, number uint32) error {
	t.begin(TypeProbe, r, s)
	t.buf.probe = Probe{Kind: kind, Direction: direction, Number: number}
	decodeSegment(&t.buf.probe.Segment, r)
	t.ev.Probe = &t.buf.probe
	return t.emit()
}

func (t *Tracker) inventory(s *sock, r *bpf.Record) error {
	if r.State == stateListen {
		t.listens(s)
	}
	if r.Retransmits > 0 && !s.run.active {
		s.run = run{active: true, una: r.SndUna, firstNS: r.MonoNs, count: uint32(r.Retransmits)}
		for i := range s.run.times {
			s.run.times[i] = never // before the trace
		}
		s.run.firstSent = never
	}
	t.begin(TypeInventory, r, s)
	t.buf.inventory = Inventory{Inode: r.SockInode}
	t.ev.Inventory = &t.buf.inventory
	return t.emit()
}

// wire takes a segment seen at the namespace's edge.
func (t *Tracker) wire(ns *namespace, r *bpf.Record) error {
	if r.Why&bpf.WireICMP != 0 {
		return t.icmp(ns, r)
	}
	if r.Why&bpf.WireSeen != 0 {
		if err := t.seen(ns, r); err != nil || r.Why == bpf.WireSeen {
			return err
		}
	}
	if r.Why&bpf.WireRST != 0 {
		key := tupleOf(r)
		if r.Flags&bpf.FlagOut != 0 {
			if t.expected(r, key) {
				return nil
			}
		}
		old := t.held[key]
		t.held[key] = t.hold(r)
		if old != nil {
			t.spare = append(t.spare, old)
			return t.loneReset(&old.rec)
		}
		return nil
	}
	if r.Flags&bpf.FlagNoSock != 0 {
		if !t.cfg.ByAddress {
			return nil
		}
		return t.packet(r)
	}
	s := t.sock(ns, r)
	if r.Why&bpf.WireAcked != 0 && s.run.active {
		if err := t.recovered(s, r, r.SegAckSeq, true); err != nil {
			return err
		}
	}
	if r.Why&bpf.WireProbe == 0 {
		return nil
	}
	if r.Flags&bpf.FlagOut == 0 {
		return t.probeReceived(s, r)
	}
	// A keepalive is sent only when there is nothing to send.
	if r.WriteSeq == r.SndNxt {
		return t.probe(s, r, "keepalive", "sent", uint32(r.ProbesOut)+1)
	}
	// An answer clears icsk_probes_out even if the window stays shut, and
	// icsk_backoff only when it opens.
	w := &s.window
	if w.number == 0 || w.una != r.SndUna || r.Backoff == 0 {
		w.number, w.una = uint32(r.Backoff), r.SndUna
	}
	w.number++
	return t.probe(s, r, "zero-window", "sent", w.number)
}

// packet takes a segment that was seen at the edge without its socket.
func (t *Tracker) packet(r *bpf.Record) error {
	s := t.tuples[tupleOf(r)]
	if s == nil {
		return nil
	}
	// In ESTABLISHED tcp_probe looks at what comes in.
	closing := s.state == stateFinWait1 || s.state == stateFinWait2 || s.state == stateCloseWait ||
		s.state == stateClosing || s.state == stateLastAck
	if r.Why&bpf.WireAcked != 0 && s.run.active && closing {
		if err := t.recovered(s, r, r.SegAckSeq, true); err != nil {
			return err
		}
	}
	if r.Why&bpf.WireProbe == 0 || !(closing || s.state == stateEstablished) {
		return nil
	}
	if r.Flags&bpf.FlagOut == 0 {
		if !closing || r.Why&bpf.WireUnsure != 0 {
			return nil
		}
		return t.probeReceived(s, r)
	}
	if r.Why&bpf.WireUnsure != 0 && r.SegSeq != s.sndNxt-1 {
		return nil // an acknowledgement
	}
	// What is left to send is not in a packet; the peer's window is, once one
	// has come in.
	if r.SndWnd != 0 && !(s.unsent && r.Why&bpf.WireUnsure != 0) {
		return t.probe(s, r, "keepalive", "sent", uint32(r.ProbesOut)+1)
	}
	w := &s.window
	if w.una != r.SegSeq+1 {
		w.number, w.una = 0, r.SegSeq+1
	}
	w.number++
	return t.probe(s, r, "zero-window", "sent", w.number)
}

func itoa(n int32) string {
	if n >= 0 && n < 10 {
		return "0123456789"[n : n+1]
	}
	return "?"
}
