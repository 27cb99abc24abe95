package events

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/bpf"
)

const (
	testInode = 4026532301
	testBoot  = 1_790_000_000_000_000_000
	ms        = uint64(1e6)
)

var testReasons = map[int32]string{0: "NOT_SPECIFIED", 1: "NO_SOCKET", 17: "TCP_ABORT_ON_CLOSE", 22: "TCP_KEEPALIVE_TIMEOUT", 25: "TCP_STATE"}

func testConfig(emit func(*Event) error) Config {
	return Config{
		HZ: 250, WallTime: func(mono uint64) WallTime { return WallTime(testBoot + mono) },
		ResetReasons: testReasons, EdgeSeen: true, Emit: emit,
	}
}

// rig is a Tracker with one namespace and what it emitted.
type rig struct {
	*Tracker
	t   *testing.T
	got []Event
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t}
	r.Tracker = NewTracker(testConfig(func(e *Event) error {
		// The Tracker reuses e: keep what stands in the file.
		var kept Event
		if err := json.Unmarshal(e.AppendJSON(nil), &kept); err != nil {
			t.Fatal(err)
		}
		rechecks(t, e)
		r.got = append(r.got, kept)
		return nil
	}))
	r.AddNamespace(Netns{Name: "n", Generation: 1, Inode: testInode, Cookie: 7}, Defaults{KeepaliveTimeMs: 7_200_000, SynLinearTimeouts: 4})
	return r
}

// feed tracks records and returns what they made the tracker emit.
func (r *rig) feed(recs ...bpf.Record) []Event {
	r.t.Helper()
	before := len(r.got)
	for i := range recs {
		if err := r.Track(&recs[i]); err != nil {
			r.t.Fatal(err)
		}
	}
	return r.got[before:]
}

// one is feed for records that make one event of type typ.
func (r *rig) one(typ Type, recs ...bpf.Record) Event {
	r.t.Helper()
	return r.only(typ, r.feed(recs...))
}

func (r *rig) only(typ Type, got []Event) Event {
	r.t.Helper()
	if len(got) != 1 || got[0].Type != typ {
		r.t.Fatalf("emitted %s, want one %s", typesOf(got), typ)
	}
	return got[0]
}

// none is feed for records that make no event.
func (r *rig) none(recs ...bpf.Record) {
	r.t.Helper()
	if got := r.feed(recs...); len(got) != 0 {
		r.t.Fatalf("emitted %s, want nothing", typesOf(got))
	}
}

func (r *rig) tick(now uint64) []Event {
	r.t.Helper()
	before := len(r.got)
	if err := r.Tick(now); err != nil {
		r.t.Fatal(err)
	}
	return r.got[before:]
}

func typesOf(evs []Event) string {
	var s []string
	for _, e := range evs {
		s = append(s, string(e.Type))
	}
	return "[" + strings.Join(s, " ") + "]"
}

// conn makes records of one connection.
type conn struct {
	addr, cookie  uint64
	local, remote netip.AddrPort
	state         uint8
	now           uint64
	base          bpf.Record
}

func newConn(n int) *conn {
	return &conn{
		addr: 0xffff888000000000 + uint64(n)*0x1000, cookie: 100 + uint64(n),
		local:  netip.AddrPortFrom(netip.MustParseAddr("198.18.0.3"), 40_000+uint16(n)),
		remote: netip.MustParseAddrPort("198.18.0.4:50000"),
		state:  stateEstablished, now: 10_000 * ms,
		base: bpf.Record{
			SndUna: 1000, SndNxt: 4000, WriteSeq: 4000, RcvNxt: 500, CopiedSeq: 500, Rto: 51, RttMinUs: 300,
			CaState: caLoss, SndCwnd: 10, RcvWnd: 64_000, SndWnd: 64_000, Lrcvtime: 1, RcvTstamp: 1,
		},
	}
}

// at is a record of kind, after the clock has moved on.
func (c *conn) at(after uint64, kind uint8, change func(*bpf.Record)) bpf.Record {
	c.now += after
	r := c.base
	r.Kind, r.MonoNs, r.Jiffies = kind, c.now, c.now/(4*ms)
	r.NetnsInode, r.NetCookie = testInode, 7
	r.SockAddr, r.SockCookie, r.Family, r.State, r.Flags = c.addr, c.cookie, unix.AF_INET, c.state, bpf.FlagFullSock
	r.LocalAddr, r.LocalPort = c.local.Addr().As16(), c.local.Port()
	r.RemoteAddr, r.RemotePort = c.remote.Addr().As16(), c.remote.Port()
	if change != nil {
		change(&r)
	}
	return r
}

func (c *conn) moves(old, to int, change func(*bpf.Record)) bpf.Record {
	c.state = uint8(old)
	r := c.at(ms, bpf.KindState, func(r *bpf.Record) { r.ArgA, r.ArgB = int32(old), int32(to) })
	if change != nil {
		change(&r)
	}
	c.state = uint8(to)
	return r
}

// retransmits is the timer sending the first segment again; the kernel has
// counted it.
func (c *conn) retransmits(after uint64) bpf.Record {
	c.base.TotalRetrans++
	return c.at(after, bpf.KindRetransmit, func(r *bpf.Record) {
		r.SegSeq, r.SegEndSeq, r.SegSegs, r.SegFlags = r.SndUna, r.SndUna+1000, 1, flagACK
	})
}

// acked is the arrival of an acknowledgement; the snapshot is from before it.
func (c *conn) acked(after uint64, ack uint32) bpf.Record {
	r := c.at(after, bpf.KindReceive, func(r *bpf.Record) {
		r.Why, r.SegAckSeq, r.SegFlags = bpf.ReceiveAcked, ack, flagACK
	})
	c.base.SndUna = ack
	return r
}

// rst is a RST at the edge.
func (c *conn) rst(after uint64, out bool) bpf.Record {
	return c.at(after, bpf.KindWire, func(r *bpf.Record) {
		r.SockAddr, r.SockCookie, r.State = 0, 0, 0
		r.Why, r.Flags = bpf.WireRST, bpf.FlagNoSock
		r.SegSeq, r.SegEndSeq, r.SegFlags, r.SegSegs = 77, 77, flagRST, 1
		if out {
			r.Flags |= bpf.FlagOut
		}
	})
}

func (c *conn) resetSent(after uint64, reason int32) bpf.Record {
	return c.at(after, bpf.KindResetSent, func(r *bpf.Record) { r.ArgB = reason })
}

func (c *conn) resetReceived(after uint64) bpf.Record {
	return c.at(after, bpf.KindResetReceived, nil)
}

func (c *conn) destroyed() bpf.Record {
	return bpf.Record{Kind: bpf.KindDestroy, MonoNs: c.now, NetnsInode: testInode, NetCookie: 7, SockAddr: c.addr}
}

func TestTrackPortsKept(t *testing.T) {
	r := newRig(t)
	c := newConn(1)
	// Before the port is chosen it is zero, and that is what is shown.
	c.state = stateClose
	local := c.local
	c.local = netip.AddrPortFrom(local.Addr(), 0)
	e := r.one(TypeState, c.moves(stateClose, stateSynSent, nil))
	if e.Sock.Local.String() != "198.18.0.3:0" {
		t.Errorf("before the port was chosen: %v", e.Sock.Local)
	}
	c.local = local
	e = r.one(TypeState, c.moves(stateSynSent, stateEstablished, nil))
	if e.Sock.Local != local {
		t.Errorf("after: %v", e.Sock.Local)
	}
	// tcp_done has given the ports away by the time of the events after it.
	gone := func(r *bpf.Record) {
		r.LocalPort, r.RemotePort = 0, 0
		r.LocalAddr, r.RemoteAddr = netip.IPv4Unspecified().As16(), netip.IPv4Unspecified().As16()
	}
	for _, rec := range []bpf.Record{
		c.moves(stateEstablished, stateClose, both(gone, errored(unix.ETIMEDOUT))),
		c.at(ms, bpf.KindError, both(gone, errored(unix.ETIMEDOUT))),
		c.at(ms, bpf.KindResetSent, gone),
	} {
		for _, e := range r.feed(rec) {
			if e.Sock.Local != local || e.Sock.Remote != c.remote {
				t.Errorf("%s: %v %v, want %v %v", e.Type, e.Sock.Local, e.Sock.Remote, local, c.remote)
			}
		}
	}
	// tcp_disconnect clears the address and leaves a port that was bound.
	c = newConn(2)
	r.feed(c.moves(stateSynSent, stateEstablished, nil))
	c.state = stateClose
	e = r.one(TypeReset, c.at(ms, bpf.KindResetSent, func(r *bpf.Record) { r.LocalAddr = netip.IPv4Unspecified().As16() }))
	if e.Sock.Local != c.local {
		t.Errorf("after disconnect: %v, want %v", e.Sock.Local, c.local)
	}
}

func TestTrackAddressReused(t *testing.T) {
	r := newRig(t)
	a := newConn(1)
	r.feed(a.retransmits(ms), a.retransmits(ms))
	r.feed(a.destroyed())
	if r.Sockets() != 0 {
		t.Fatalf("%d sockets after the only one was destroyed", r.Sockets())
	}
	// Another socket at the same address, and nothing of the old one in it.
	b := newConn(2)
	b.addr = a.addr
	e := r.one(TypeRetransmit, b.retransmits(ms))
	if e.Retransmit.Attempt != 1 || e.Sock.Cookie != b.cookie || e.Sock.Local != b.local {
		t.Errorf("new socket: %+v %+v", e.Sock, e.Retransmit)
	}

	// The same when the record of its end was lost: the cookie tells.
	c := newConn(3)
	c.addr = a.addr
	c.base.SndUna = b.base.SndUna
	e = r.one(TypeRetransmit, c.retransmits(ms))
	if e.Retransmit.Attempt != 1 || e.Sock.Cookie != c.cookie || e.Sock.Local != c.local {
		t.Errorf("after a lost destroy: %+v %+v", e.Sock, e.Retransmit)
	}
	if r.Sockets() != 1 {
		t.Errorf("%d sockets at one address", r.Sockets())
	}
	// And of a namespace too.
	r.AddNamespace(Netns{Name: "m", Generation: 1, Inode: testInode + 1, Cookie: 8}, Defaults{})
	e = r.one(TypeRetransmit, func() bpf.Record {
		rec := c.retransmits(ms)
		rec.NetnsInode, rec.NetCookie, rec.SockCookie = testInode+1, 8, 0
		return rec
	}())
	if e.Retransmit.Attempt != 1 || e.Netns.Name != "m" || e.Sock.Cookie != 0 {
		t.Errorf("in another namespace: %+v %+v %+v", e.Netns, e.Sock, e.Retransmit)
	}
	// A record without a cookie is the socket's that is known there.
	d := newConn(4)
	r.feed(d.retransmits(ms))
	e = r.one(TypeError, d.at(ms, bpf.KindError, func(r *bpf.Record) { r.SockCookie = 0; r.SkErr = uint32(unix.EPIPE) }))
	if e.Sock.Cookie != d.cookie || e.Error.Name != "EPIPE" {
		t.Errorf("without a cookie: %+v %+v", e.Sock, e.Error)
	}
	// A destroyed socket that was never seen leaves nothing.
	n := r.Sockets()
	r.none(newConn(5).destroyed())
	if r.Sockets() != n {
		t.Errorf("%d sockets, %d before", r.Sockets(), n)
	}
	// An error without errno is a wakeup, not an error.
	r.none(d.at(ms, bpf.KindError, nil))
}

func TestTrackResetReceived(t *testing.T) {
	r := newRig(t)
	c := newConn(1)
	r.feed(c.moves(stateSynSent, stateEstablished, nil))

	// The edge sees it first, then the socket takes it: one event.
	r.none(c.rst(ms, false))
	e := r.one(TypeReset, c.resetReceived(ms/100))
	if x := e.Reset; x.Direction != "received" || !x.Socket || x.SeenBy != "tcp_receive_reset" || x.Segment == nil || x.Segment.SeqStart != 77 {
		t.Errorf("edge, then socket: %+v %+v", x, x.Segment)
	}
	if e.Sock.Cookie != c.cookie {
		t.Errorf("socket: %+v", e.Sock)
	}
	if got := r.tick(c.now + 1000*ms); len(got) != 0 {
		t.Errorf("the segment came again: %s", typesOf(got))
	}
	// Its abort.
	got := r.feed(c.moves(stateEstablished, stateClose, errored(unix.ECONNRESET)))
	if len(got) != 2 || got[1].Abort == nil || got[1].Abort.Cause != abortReset || got[1].Abort.By != byPeer || got[1].Abort.State != "ESTABLISHED" {
		t.Errorf("abort: %s %+v", typesOf(got), got[len(got)-1].Abort)
	}

	// The edge did not see it (its record was lost).
	c = newConn(2)
	e = r.one(TypeReset, c.resetReceived(ms))
	if e.Reset.Segment != nil || !e.Reset.Socket {
		t.Errorf("without the segment: %+v", e.Reset)
	}

	// Nobody takes it: told once it has waited.
	c = newConn(3)
	rec := c.rst(ms, false)
	r.none(rec)
	if got := r.tick(rec.MonoNs + resetWindow); len(got) != 0 {
		t.Errorf("told early: %s", typesOf(got))
	}
	e = r.only(TypeReset, r.tick(rec.MonoNs+resetWindow+1))
	if x := e.Reset; x.Direction != "received" || x.Socket || x.SeenBy != "wire" || x.Segment == nil || x.Segment.Flags != "RST" {
		t.Errorf("alone: %+v", x)
	}
	if e.MonoNS != rec.MonoNs || e.Sock.Cookie != 0 || e.Sock.Local != c.local || e.Sock.Remote != c.remote || e.TCP != nil || e.Owner != nil {
		t.Errorf("alone: %+v %+v", e, e.Sock)
	}

	// A second one on the same connection lets the first go.
	first, second := c.rst(ms, false), c.rst(ms, false)
	r.none(first)
	if e = r.one(TypeReset, second); e.MonoNS != first.MonoNs {
		t.Errorf("the second was told, not the first")
	}
	e = r.only(TypeReset, r.tick(1<<63))
	if e.MonoNS != second.MonoNs {
		t.Errorf("the second is missing")
	}

	// One that goes out is not the one that came in.
	c = newConn(4)
	r.none(c.rst(ms, true))
	e = r.one(TypeReset, c.resetReceived(ms))
	if e.Reset.Segment != nil {
		t.Errorf("merged with the wrong direction: %+v", e.Reset)
	}
	e = r.only(TypeReset, r.tick(1<<63))
	if e.Reset.Direction != "sent" || e.Reset.SeenBy != "wire" {
		t.Errorf("alone, outgoing: %+v", e.Reset)
	}

	// Finish lets everything go.
	r.none(newConn(5).rst(ms, false), newConn(6).rst(ms, true))
	before := len(r.got)
	if err := r.Finish(); err != nil {
		t.Fatal(err)
	}
	if n := len(r.got) - before; n != 2 {
		t.Errorf("%d events at the end, want 2", n)
	}
}

func TestTrackResetSent(t *testing.T) {
	r := newRig(t)
	// By itself: the segment is out before the tracepoint.
	c := newConn(1)
	r.none(c.rst(ms, true))
	e := r.one(TypeReset, c.resetSent(ms/100, 22))
	if x := e.Reset; x.Direction != "sent" || !x.Socket || x.Reason != "TCP_KEEPALIVE_TIMEOUT" || x.SeenBy != "tcp_send_reset" || x.Segment == nil || x.Trigger != nil {
		t.Errorf("edge, then tracepoint: %+v", x)
	}
	if got := r.tick(1 << 62); len(got) != 0 {
		t.Errorf("came again: %s", typesOf(got))
	}

	// In answer: the tracepoint is first, the edge sees what is known.
	answer := func(c *conn, flags uint8, sock uint64, state uint8) bpf.Record {
		return c.at(ms, bpf.KindResetSent, func(r *bpf.Record) {
			r.SockAddr, r.State, r.Flags, r.ArgB = sock, state, flags, 1
			r.SegSeq, r.SegEndSeq, r.SegAckSeq, r.SegFlags, r.SegSegs = 9000, 10_000, 5, flagACK|flagPSH, 1
		})
	}
	answered := func(c *conn, d uint64) bpf.Record { // as the edge sees it
		rec := c.rst(d, true)
		rec.SegSeq, rec.SegEndSeq, rec.SegAckSeq, rec.SegFlags = 5, 5, 0, flagRST
		return rec
	}
	for _, tt := range []struct {
		name   string
		flags  uint8
		sock   uint64
		state  uint8
		socket bool
	}{
		{"no socket", bpf.FlagNoSock, 0, 0, false},
		{"listener, for a connection it does not have", bpf.FlagNoSock | bpf.FlagFullSock, 0xffff888000ff0000, stateListen, false},
		{"time-wait", 0, 0xffff888000ff1000, stateTimeWait, true},
		{"request", 0, 0xffff888000ff2000, stateNewSynRecv, true},
		{"connection", bpf.FlagFullSock, 0xffff888000ff3000, stateSynSent, true},
	} {
		c := newConn(10)
		sockets := r.Sockets()
		e := r.one(TypeReset, answer(c, tt.flags, tt.sock, tt.state))
		x := e.Reset
		if x.Socket != tt.socket || x.Direction != "sent" || x.Reason != "NO_SOCKET" || x.Segment != nil || x.Trigger == nil || x.Trigger.SeqStart != 9000 || x.Trigger.Flags != "PSH,ACK" {
			t.Errorf("%s: %+v %+v", tt.name, x, x.Trigger)
		}
		if e.Sock.Local != c.local || e.Sock.Remote != c.remote {
			t.Errorf("%s: %+v", tt.name, e.Sock)
		}
		if n := r.Sockets(); n != sockets && tt.name != "connection" {
			t.Errorf("%s: %d sockets, %d before", tt.name, n, sockets)
		}
		r.none(answered(c, ms/100)) // the same
		if got := r.tick(1 << 61); len(got) != 0 {
			t.Errorf("%s: told twice: %s", tt.name, typesOf(got))
		}
	}

	// It is the one RST that is passed over, not what follows it.
	c = newConn(20)
	r.one(TypeReset, answer(c, bpf.FlagNoSock, 0, 0))
	r.none(answered(c, ms), answered(c, ms))
	r.only(TypeReset, r.tick(1<<60))

	// And for a while only, Tick or no Tick.
	c = newConn(21)
	r.one(TypeReset, answer(c, bpf.FlagNoSock, 0, 0))
	r.none(answered(c, resetWindow+ms))
	r.only(TypeReset, r.tick(1<<60))
	r.one(TypeReset, answer(c, bpf.FlagNoSock, 0, 0))
	if got := r.tick(c.now + resetWindow + 1); len(got) != 0 {
		t.Errorf("an expectation made an event: %s", typesOf(got))
	}
	r.none(answered(c, ms))
	r.only(TypeReset, r.tick(1<<60))

	// A socket's own leaves while another segment is answered: each is told
	// with its segment, whichever tracepoint comes first.
	c = newConn(23)
	own := c.rst(ms, true)
	own.SegSeq, own.SegAckSeq, own.SegFlags = 700, 800, flagRST|flagACK
	r.none(own)
	if e := r.one(TypeReset, answer(c, bpf.FlagNoSock, 0, 0)); e.Reset.Segment != nil {
		t.Errorf("an answer took another's segment: %+v", e.Reset.Segment)
	}
	r.none(answered(c, ms/100))
	if e := r.one(TypeReset, c.resetSent(ms/100, 22)); e.Reset.Segment == nil || e.Reset.Segment.Ack != 800 {
		t.Errorf("its own: %+v", e.Reset)
	}
	if got := r.tick(1 << 60); len(got) != 0 {
		t.Errorf("told twice: %s", typesOf(got))
	}

	// What answers a segment without ACK acknowledges it.
	c = newConn(24)
	syn := answer(c, bpf.FlagNoSock, 0, 0)
	syn.SegFlags, syn.SegAckSeq = flagSYN, 0
	r.one(TypeReset, syn)
	rst := c.rst(ms, true)
	rst.SegSeq, rst.SegAckSeq, rst.SegFlags = 0, 10_000, flagRST|flagACK
	r.none(rst)
	if got := r.tick(1 << 60); len(got) != 0 {
		t.Errorf("answer to a SYN told twice: %s", typesOf(got))
	}

	// Without an edge nothing is expected there.
	cfg := testConfig(r.cfg.Emit)
	cfg.EdgeSeen = false
	r.Tracker = NewTracker(cfg)
	r.AddNamespace(Netns{Name: "n", Inode: testInode, Cookie: 7}, Defaults{})
	c = newConn(22)
	r.one(TypeReset, c.resetSent(ms, 25))
	if len(r.expect) != 0 {
		t.Error("something is expected at an edge that is not there")
	}
}

func TestTrackDataAfterClose(t *testing.T) {
	r := newRig(t)
	c := newConn(1)
	r.feed(c.moves(stateEstablished, stateFinWait1, flagged(bpf.FlagUser)), c.moves(stateFinWait1, stateFinWait2, nil))
	// The kernel ends it through tcp_reset, without any RST having come in.
	r.none(c.at(ms, bpf.KindResetReceived, flagged(bpf.FlagDead)))
	got := r.feed(c.moves(stateFinWait2, stateClose, both(errored(unix.ECONNRESET), flagged(bpf.FlagDead))))
	if len(got) != 2 || got[1].Abort.Cause != abortUnread || got[1].Abort.By != byLocal {
		t.Errorf("data after close: %s", typesOf(got))
	}
	// With a RST at the edge it is one.
	c = newConn(2)
	r.none(c.rst(ms, false))
	r.one(TypeReset, c.at(ms, bpf.KindResetReceived, flagged(bpf.FlagDead)))
	got = r.feed(c.moves(stateFinWait2, stateClose, errored(unix.ECONNRESET)))
	if len(got) != 2 || got[1].Abort.Cause != abortReset {
		t.Errorf("RST after close: %s", typesOf(got))
	}
}

func TestTrackRuns(t *testing.T) {
	r := newRig(t)
	c := newConn(1)
	r.feed(c.moves(stateSynSent, stateEstablished, nil))
	first := c.now + 200*ms
	for i, after := range []uint64{200 * ms, 400 * ms, 800 * ms} {
		e := r.one(TypeRetransmit, c.retransmits(after))
		if e.Retransmit.Attempt != uint32(i+1) || e.Retransmit.Segments != 1 || e.Retransmit.SendError != "" {
			t.Errorf("retransmission %d: %+v", i+1, e.Retransmit)
		}
	}
	// GSO: several segments in one call.
	rec := c.retransmits(1600 * ms)
	rec.SegSegs = 3
	if e := r.one(TypeRetransmit, rec); e.Retransmit.Segments != 3 || e.Retransmit.Attempt != 4 {
		t.Errorf("three segments: %+v", e.Retransmit)
	}
	e := r.one(TypeRecovered, c.acked(5*ms, 2000))
	x := e.Recovered
	if !x.Exact || x.Retransmits != 4 || x.Answered != 4 || x.SinceLastUs != 5000 || x.StalledUs != (c.now-first)/1000 || x.Ack != 2000 || x.AckedBytes != 1000 {
		t.Errorf("recovered: %+v", x)
	}
	// The run is over: numbers begin anew, and nothing recovers twice.
	r.none(c.acked(ms, 2500))
	if e := r.one(TypeRetransmit, c.retransmits(200*ms)); e.Retransmit.Attempt != 1 {
		t.Errorf("next run: %+v", e.Retransmit)
	}

	// The acknowledgement was not seen: the next retransmission shows that snd_una moved.
	c.base.SndUna = 3000
	got := r.feed(c.retransmits(100 * ms))
	if len(got) != 2 || got[0].Type != TypeRecovered || got[1].Retransmit.Attempt != 1 {
		t.Fatalf("inexact: %s", typesOf(got))
	}
	if x := got[0].Recovered; x.Exact || x.Answered != 0 || x.Ack != 3000 || x.AckedBytes != 500 || x.StalledUs != 100_000 || x.Retransmits != 1 {
		t.Errorf("inexact: %+v", x)
	}

	// A change of state shows it too, as does the edge where tcp_probe does not look.
	c.base.SndUna = 3500
	got = r.feed(c.moves(stateFinWait1, stateFinWait2, nil))
	if len(got) != 2 || got[0].Type != TypeRecovered || !got[0].Recovered.Exact || got[0].Recovered.AckedBytes != 500 {
		t.Fatalf("by a change of state: %s", typesOf(got))
	}
	r.feed(c.retransmits(200 * ms))
	e = r.one(TypeRecovered, c.at(ms, bpf.KindWire, func(r *bpf.Record) {
		r.Why, r.SegAckSeq, r.SegFlags = bpf.WireAcked, 3600, flagACK
	}))
	if !e.Recovered.Exact || e.Recovered.AckedBytes != 100 {
		t.Errorf("at the edge: %+v", e.Recovered)
	}

	// The end of a socket is no recovery.
	c.base.SndUna = 3600
	r.feed(c.retransmits(200 * ms))
	c.base.SndUna = 3700
	for _, e := range r.feed(c.moves(stateFinWait1, stateClose, errored(unix.ETIMEDOUT))) {
		if e.Type == TypeRecovered {
			t.Errorf("recovered by its end: %+v", e.Recovered)
		}
	}
}

func TestTrackSendErrors(t *testing.T) {
	r := newRig(t)
	c := newConn(1)
	for _, tt := range []struct {
		err      int32
		counted  bool
		segments uint32
		name     string
	}{
		{0, true, 1, ""},
		{-int32(unix.EHOSTUNREACH), true, 1, "EHOSTUNREACH"},
		{-int32(unix.EBUSY), false, 0, "EBUSY"}, // still in the host's queue: given up before it was handed down
		{1, true, 1, "NET_XMIT 1"},
		{2, true, 1, "NET_XMIT 2"},
		{1 << 20, true, 1, "NET_XMIT ?"},
		{-1 << 31, true, 1, "errno 2147483648"},
	} {
		rec := c.retransmits(10 * ms)
		rec.ArgA = tt.err
		if !tt.counted {
			c.base.TotalRetrans--
			rec.TotalRetrans--
		}
		e := r.one(TypeRetransmit, rec)
		if e.Retransmit.SendError != tt.name || e.Retransmit.Segments != tt.segments {
			t.Errorf("error %d: %+v, want %d segments and %q", tt.err, e.Retransmit, tt.segments, tt.name)
		}
	}
}

// TestTrackAnswered: which retransmission an acknowledgement answers follows
// from the round trip.
// TestTrackEchoed: the time stamp that an acknowledgement echoes says what it
// answers.
func TestTrackEchoed(t *testing.T) {
	const original, first, second, third = 1_000, 1_200, 1_600, 2_400 // ms
	for _, tt := range []struct {
		name     string
		echo     uint32
		at       uint64 // µs
		failed   int
		answered uint32
		original bool
	}{
		{"the last", third, 2_401_000, 0, 3, false},
		{"the one before, late", second, 2_401_000, 0, 2, false},
		{"the first, later still", first, 2_900_000, 0, 1, false},
		{"what was sent first", original, 2_401_000, 0, 0, true},
		{"the last, sooner than a round trip", third, 2_400_200, 0, 3, false},
		{"the first, sooner than a round trip", first, 1_200_200, 2, 0, false},
		{"the first did not leave", original, 2_401_000, 1, 0, false},
		{"something younger, sent after", third + 5, 2_410_000, 0, 3, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			c := newConn(1)
			c.base.RttMinUs = 300
			c.now = original * ms
			r.feed(c.moves(stateSynSent, stateEstablished, nil))
			for i, at := range []uint64{first, second, third} {
				if at*1000 > tt.at {
					break
				}
				rec := c.retransmits(at*ms - c.now)
				if i+1 == tt.failed {
					rec.ArgA = -int32(unix.EBUSY)
				}
				r.one(TypeRetransmit, rec)
			}
			rec := c.acked(tt.at*1000-c.now, 2000)
			rec.ArgA, rec.ArgB = int32(tt.echo), 1
			x := r.one(TypeRecovered, rec).Recovered
			if x.Answered != tt.answered || x.Original != tt.original {
				t.Errorf("answered %d, original %t; want %d and %t", x.Answered, x.Original, tt.answered, tt.original)
			}
		})
	}
}

func TestTrackAnswered(t *testing.T) {
	for _, tt := range []struct {
		name     string
		after    []uint64 // time from one retransmission to the next, then to the acknowledgement
		failed   int      // number of one that never left
		rttUs    uint32
		answered uint32
		since    uint64 // µs
	}{
		{"the only one", []uint64{0, 10 * ms}, 0, 300, 1, 10_000},
		{"too soon for it: not known", []uint64{0, ms / 10}, 0, 300, 0, 100},
		{"too soon for the last", []uint64{0, 200 * ms, ms / 10}, 0, 300, 1, 100},
		{"at just the round trip", []uint64{0, 200 * ms, 300_000}, 0, 300, 2, 300},
		{"round trip never measured", []uint64{0, 200 * ms, 10 * ms}, 0, 0, 0, 10_000},
		{"round trip not measured yet", []uint64{0, 200 * ms, 10 * ms}, 0, 1<<32 - 1, 0, 10_000},
		{"the last did not leave", []uint64{0, 200 * ms, 10 * ms}, 2, 300, 1, 210_000},
		{"more than are remembered, the last", []uint64{0, ms, ms, ms, ms, ms, ms, ms, ms, ms, ms, ms}, 0, 300, 11, 1000},
		{"more than are remembered, an old one", []uint64{0, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, ms / 10}, 0, 300, 0, 100},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			c := newConn(1)
			c.base.RttMinUs = tt.rttUs
			r.feed(c.moves(stateSynSent, stateEstablished, nil))
			for i, after := range tt.after[:len(tt.after)-1] {
				rec := c.retransmits(after)
				if i+1 == tt.failed {
					rec.ArgA = -int32(unix.EBUSY)
					c.base.TotalRetrans--
					rec.TotalRetrans--
				}
				r.one(TypeRetransmit, rec)
			}
			x := r.one(TypeRecovered, c.acked(tt.after[len(tt.after)-1], 2000)).Recovered
			if x.Answered != tt.answered || x.SinceLastUs != tt.since {
				t.Errorf("answered %d, %d µs since the last; want %d and %d", x.Answered, x.SinceLastUs, tt.answered, tt.since)
			}
		})
	}
}

// TestTrackInventoryRun: a run that began before the trace goes on, and what
// was not seen of it is not made up.
func TestTrackInventoryRun(t *testing.T) {
	r := newRig(t)
	c := newConn(1)
	c.base.Retransmits = 5
	e := r.one(TypeInventory, c.at(0, bpf.KindInventory, func(r *bpf.Record) { r.SockInode = 61234; r.UserTimeoutMs = 20_000 }))
	if e.Inventory.Inode != 61234 || e.TCP == nil || e.TCP.Retransmits != 5 {
		t.Errorf("inventory: %+v", e.Inventory)
	}
	rec := c.retransmits(100 * ms)
	rec.UserTimeoutMs = 20_000
	rec.CaState, rec.Pending = caLoss, timerNone
	rec.RetransStamp = uint32(c.now/ms) - 19_900
	e = r.one(TypeRetransmit, rec)
	if e.Retransmit.Attempt != 6 || e.Retransmit.NextDueMs != 100 {
		t.Errorf("first one seen: %+v, want attempt 6, due in 100 ms", e.Retransmit)
	}
	x := r.one(TypeRecovered, c.acked(ms/10, 2000)).Recovered
	if x.Retransmits != 6 || x.Answered != 0 || x.SinceLastUs != 100 {
		t.Errorf("recovered: %+v", x)
	}

	// Answered before another is sent: nothing is known of the last.
	c = newConn(2)
	c.base.Retransmits = 2
	r.feed(c.at(0, bpf.KindInventory, nil))
	x = r.one(TypeRecovered, c.acked(30*ms, 2000)).Recovered
	if x.SinceLastUs != 30_000 || x.StalledUs != 30_000 || x.Answered != 0 || x.Retransmits != 2 {
		t.Errorf("recovered without one seen: %+v", x)
	}
}

func TestTrackUserTimeoutDue(t *testing.T) {
	r := newRig(t)
	c := newConn(1)
	c.base.UserTimeoutMs = 1000
	r.feed(c.moves(stateSynSent, stateEstablished, nil))
	probe := c.retransmits(74 * ms)
	probe.CaState, probe.Pending = caOpen, timerLossProbe
	if e := r.one(TypeRetransmit, probe); e.Retransmit.Cause != causeTLP || e.Retransmit.NextDueMs != 204 {
		t.Errorf("loss probe: %+v", e.Retransmit)
	}
	// tp->retrans_stamp is of the first timeout, not of the probe.
	if e := r.one(TypeRetransmit, c.retransmits(204*ms)); e.Retransmit.Cause != causeRTO || e.Retransmit.NextDueMs != 408 {
		t.Errorf("first timeout: %+v", e.Retransmit)
	}
	c.base.Rto = 102
	c.base.RetransStamp = uint32(c.now / ms)
	if e := r.one(TypeRetransmit, c.retransmits(408*ms)); e.Retransmit.NextDueMs != 592 {
		t.Errorf("second timeout: %+v, want the user timeout at 592", e.Retransmit)
	}
	// An acknowledgement ends the run, and not the episode: the stamp stays.
	r.feed(c.acked(100*ms, c.base.SndUna+500))
	if e := r.one(TypeRetransmit, c.retransmits(308*ms)); e.Retransmit.Attempt != 1 || e.Retransmit.NextDueMs != 1000-816 {
		t.Errorf("first timeout of the second run: %+v, want the user timeout at 184", e.Retransmit)
	}

	// A SYN counts from connect.
	c = newConn(2)
	c.base.UserTimeoutMs, c.base.Rto = 2500, 250
	syn := func(after uint64) bpf.Record {
		rec := c.retransmits(after)
		rec.SegFlags, rec.SegEndSeq = flagSYN, rec.SegSeq+1
		return rec
	}
	r.feed(c.moves(stateClose, stateSynSent, flagged(bpf.FlagUser)))
	c.base.RetransStamp = uint32(c.now / ms)
	if e := r.one(TypeRetransmit, syn(1024*ms)); e.Retransmit.Cause != causeSyn || e.Retransmit.NextDueMs != 1000 {
		t.Errorf("first SYN again: %+v", e.Retransmit)
	}
	if e := r.one(TypeRetransmit, syn(1024*ms)); e.Retransmit.NextDueMs != 2500-2048 {
		t.Errorf("second SYN again: %+v", e.Retransmit)
	}
	got := r.feed(c.moves(stateSynSent, stateClose, errored(unix.ETIMEDOUT)))
	if len(got) != 2 || got[1].Abort.Cause != abortRetries {
		t.Errorf("before the user timeout: %+v", got[len(got)-1].Abort)
	}
}

// TestTrackMTU: a loss episode that no timeout began, until one comes.
func TestTrackMTU(t *testing.T) {
	r := newRig(t)
	c := newConn(1)
	r.feed(c.moves(stateSynSent, stateEstablished, nil))
	next := func(stamp, undo uint32, timer uint8) *Retransmit {
		c.base.RetransStamp, c.base.UndoMarker, c.base.Pending, c.base.CaState = stamp, undo, timer, caLoss
		e := r.one(TypeRetransmit, c.retransmits(ms))
		rechecks(t, &e)
		return e.Retransmit
	}
	for i, want := range []struct {
		stamp, undo uint32
		timer       uint8
		cause       string
	}{
		{0, 0, timerRetrans, causeMTU},
		{5, 0, timerRetrans, causeMTU},
		{5, 0, timerNone, causeRTO},
		{5, 7, timerNone, causeRTO}, // tcp_enter_loss
		{5, 7, timerRetrans, causeLossRecovery},
		{5, 0, timerRetrans, causeLossRecovery}, // undone
		{0, 0, timerNone, causeRTO},             // of a window reduced before: no undo_marker
		{5, 0, timerRetrans, causeLossRecovery},
	} {
		if got := next(want.stamp, want.undo, want.timer); got.Cause != want.cause {
			t.Errorf("retransmission %d: %s (%s), want %s", i+1, got.Cause, got.Why, want.cause)
		}
	}
}

func TestTrackSynAck(t *testing.T) {
	r := newRig(t)
	l := newConn(1)
	r.feed(l.moves(stateClose, stateListen, func(r *bpf.Record) {
		r.RemotePort, r.RemoteAddr = 0, netip.IPv4Unspecified().As16()
		r.OwnerPid, r.OwnerVia = 42, bpf.ViaListen
		copy(r.OwnerComm[:], "server")
	}))
	for _, tt := range []struct {
		retrans, timeouts uint8
		rto               uint32
		attempt           uint32
		due               int64
	}{
		{0, 0, 250, 1, 2000},
		{1, 1, 250, 2, 4000},
		{4, 4, 250, 5, 32_000},
		{5, 5, 0, 6, 64_000}, // no request->timeout before 5.16: 1 s
		{6, 7, 250, 7, 120_000},
		{200, 127, 250, 201, 120_000},
	} {
		e := r.one(TypeRetransmit, l.at(ms, bpf.KindSynAck, func(r *bpf.Record) {
			r.State = stateNewSynRecv
			r.Retransmits, r.Backoff, r.Rto = tt.retrans, tt.timeouts, tt.rto
			r.SegSeq, r.SegEndSeq, r.SegFlags, r.SegSegs = 9, 10, flagSYN|flagACK, 1
		}))
		x := e.Retransmit
		if x.Cause != causeSynAck || x.Attempt != tt.attempt || x.NextDueMs != tt.due || x.SeqStart != 9 || x.SeqEnd != 10 || x.Segments != 1 {
			t.Errorf("after %d: %+v, want attempt %d, due %d", tt.retrans, x, tt.attempt, tt.due)
		}
		if e.TCP != nil || e.Sock.Cookie != 0 || e.Owner == nil || e.Owner.PID != 42 || e.Owner.Via != "listener" {
			t.Errorf("the listener's snapshot or no owner: %+v %+v %+v", e.TCP, e.Sock, e.Owner)
		}
	}
	// A SYN that came again is answered outside the timer, which is armed as before.
	e := r.one(TypeRetransmit, l.at(ms, bpf.KindSynAck, func(r *bpf.Record) {
		r.State, r.Retransmits, r.Backoff, r.Rto, r.Pending = stateNewSynRecv, 2, 1, 250, timerRetrans
		r.SegFlags = flagSYN | flagACK
	}))
	if x := e.Retransmit; !x.DuplicateSYN || x.Attempt != 3 || x.NextDueMs != 2000 {
		t.Errorf("after a SYN that came again: %+v", x)
	}
	if r.Sockets() != 1 {
		t.Errorf("%d sockets", r.Sockets())
	}
}

func TestTrackOwner(t *testing.T) {
	owner := func(pid uint32, comm string, via uint8) func(*bpf.Record) {
		return func(r *bpf.Record) {
			r.OwnerPid, r.OwnerVia, r.OwnerComm = pid, via, [16]uint8{}
			copy(r.OwnerComm[:], comm)
		}
	}
	listener := func(n int, addr netip.Addr) *conn {
		l := newConn(n)
		l.local, l.remote = netip.AddrPortFrom(addr, 80), netip.AddrPortFrom(addr, 0)
		l.state = stateListen
		return l
	}
	accepted := func(n int, local string) *conn {
		c := newConn(n)
		c.local = netip.MustParseAddrPort(local)
		return c
	}
	any4, any6 := netip.IPv4Unspecified(), netip.IPv6Unspecified()

	want := func(t *testing.T, e Event, pid uint32, comm, via string) {
		t.Helper()
		switch {
		case pid == 0 && e.Owner != nil:
			t.Errorf("owner %+v, want none", *e.Owner)
		case pid == 0:
		case e.Owner == nil:
			t.Errorf("no owner, want %d %s via %s", pid, comm, via)
		case *e.Owner != Owner{pid, comm, via}:
			t.Errorf("owner %+v, want %d %s via %s", *e.Owner, pid, comm, via)
		}
	}

	t.Run("the kernel's note stays", func(t *testing.T) {
		r := newRig(t)
		c := newConn(1)
		want(t, r.one(TypeState, c.moves(stateClose, stateSynSent, owner(7, "client", bpf.ViaConnect))), 7, "client", "connect")
		want(t, r.one(TypeRetransmit, c.retransmits(ms)), 7, "client", "connect") // a timer: no note with it
		want(t, r.one(TypeState, c.moves(stateSynSent, stateEstablished, owner(7, "client", bpf.ViaConnect))), 7, "client", "connect")
		// It was handed to another process, or that has a new name.
		r.none(c.at(ms, bpf.KindOwner, owner(9, "worker", bpf.ViaRecv)))
		want(t, r.one(TypeRetransmit, c.retransmits(ms)), 9, "worker", "recv")
		r.none(c.at(ms, bpf.KindOwner, owner(9, "renamed", bpf.ViaRecv)))
		want(t, r.one(TypeRetransmit, c.retransmits(ms)), 9, "renamed", "recv")
	})
	t.Run("listener until it is read from", func(t *testing.T) {
		r := newRig(t)
		r.feed(listener(1, any4).moves(stateClose, stateListen, owner(5, "server", bpf.ViaListen)))
		c := accepted(2, "198.18.0.3:80")
		want(t, r.one(TypeState, c.moves(stateSynRecv, stateEstablished, nil)), 5, "server", "listener")
		r.none(c.at(ms, bpf.KindOwner, owner(6, "worker", bpf.ViaRecv)))
		want(t, r.one(TypeState, c.moves(stateEstablished, stateCloseWait, nil)), 6, "worker", "recv")
	})
	t.Run("listeners by address", func(t *testing.T) {
		r := newRig(t)
		r.feed(
			listener(1, netip.MustParseAddr("198.18.0.3")).moves(stateClose, stateListen, owner(1, "exact", bpf.ViaListen)),
			listener(2, any4).moves(stateClose, stateListen, owner(2, "any4", bpf.ViaListen)),
			listener(3, any6).moves(stateClose, stateListen, owner(3, "any6", bpf.ViaListen)),
		)
		want(t, r.one(TypeRetransmit, accepted(4, "198.18.0.3:80").retransmits(ms)), 1, "exact", "listener")
		want(t, r.one(TypeRetransmit, accepted(5, "198.18.0.9:80").retransmits(ms)), 2, "any4", "listener")
		want(t, r.one(TypeRetransmit, accepted(6, "[2001:db8::1]:80").retransmits(ms)), 3, "any6", "listener")
		want(t, r.one(TypeRetransmit, accepted(7, "198.18.0.3:81").retransmits(ms)), 0, "", "")
	})
	t.Run("mapped", func(t *testing.T) {
		r := newRig(t)
		r.feed(listener(1, any6).moves(stateClose, stateListen, owner(3, "dual", bpf.ViaListen)))
		want(t, r.one(TypeRetransmit, accepted(2, "198.18.0.3:80").retransmits(ms)), 3, "dual", "listener")
	})
	t.Run("a shared port", func(t *testing.T) {
		r := newRig(t)
		a, b := listener(1, any4), listener(2, any4)
		r.feed(a.moves(stateClose, stateListen, owner(1, "a", bpf.ViaListen)), b.moves(stateClose, stateListen, owner(1, "a", bpf.ViaListen)))
		want(t, r.one(TypeRetransmit, accepted(3, "198.18.0.3:80").retransmits(ms)), 1, "a", "listener")
		c := listener(4, any4)
		r.feed(c.moves(stateClose, stateListen, owner(2, "b", bpf.ViaListen)))
		x := accepted(5, "198.18.0.3:80")
		want(t, r.one(TypeRetransmit, x.retransmits(ms)), 0, "", "") // either could be it
		r.feed(c.moves(stateListen, stateClose, nil))
		want(t, r.one(TypeRetransmit, x.retransmits(ms)), 1, "a", "listener")
	})
	t.Run("a listener that closed", func(t *testing.T) {
		r := newRig(t)
		l := listener(1, any4)
		r.feed(l.moves(stateClose, stateListen, owner(5, "old", bpf.ViaListen)))
		child := accepted(2, "198.18.0.3:80")
		want(t, r.one(TypeRetransmit, child.retransmits(ms)), 5, "old", "listener")
		got := r.feed(l.moves(stateListen, stateClose, owner(5, "old", bpf.ViaListen)))
		if len(got) != 1 || got[0].State == nil {
			t.Errorf("closing a listener: %s", typesOf(got))
		}
		want(t, r.one(TypeRetransmit, accepted(3, "198.18.0.3:80").retransmits(ms)), 0, "", "")
		want(t, r.one(TypeRetransmit, child.retransmits(ms)), 5, "old", "listener")
		// Another takes its port; the old one's end does not take it away.
		r.feed(listener(4, any4).moves(stateClose, stateListen, owner(6, "new", bpf.ViaListen)))
		r.none(l.destroyed())
		want(t, r.one(TypeRetransmit, accepted(5, "198.18.0.3:80").retransmits(ms)), 6, "new", "listener")
		if len(r.listeners) != 1 {
			t.Errorf("%d listening addresses", len(r.listeners))
		}
	})
	t.Run("a listener whose end was lost", func(t *testing.T) {
		r := newRig(t)
		l := listener(1, any4)
		r.feed(l.moves(stateClose, stateListen, owner(5, "old", bpf.ViaListen)))
		c := newConn(2)
		c.addr = l.addr
		r.one(TypeRetransmit, c.retransmits(ms))
		want(t, r.one(TypeRetransmit, accepted(3, "198.18.0.3:80").retransmits(ms)), 0, "", "")
	})
	t.Run("proc", func(t *testing.T) {
		r := newRig(t)
		r.AddOwners(map[uint64]Owner{61: {PID: 3, Comm: "born-before", Via: "proc"}, 62: {PID: 4, Comm: "listens", Via: "proc"}})
		l := listener(1, any4)
		want(t, r.one(TypeInventory, l.at(0, bpf.KindInventory, func(r *bpf.Record) { r.SockInode = 62 })), 4, "listens", "proc")
		// Of its own, rather than the listener's.
		c := accepted(2, "198.18.0.3:80")
		want(t, r.one(TypeInventory, c.at(0, bpf.KindInventory, func(r *bpf.Record) { r.SockInode = 61 })), 3, "born-before", "proc")
		// Not in /proc: accepted by nobody yet.
		c = accepted(3, "198.18.0.3:80")
		want(t, r.one(TypeInventory, c.at(0, bpf.KindInventory, nil)), 4, "listens", "listener")
		// The kernel's own note is better than either.
		r.none(c.at(ms, bpf.KindOwner, owner(9, "worker", bpf.ViaRecv)))
		want(t, r.one(TypeRetransmit, c.retransmits(ms)), 9, "worker", "recv")
		c.base.SockInode = 61
		want(t, r.one(TypeRetransmit, c.retransmits(ms)), 9, "worker", "recv")
	})
	t.Run("found in proc later", func(t *testing.T) {
		r := newRig(t)
		c := newConn(1)
		c.base.SockInode = 61
		want(t, r.one(TypeInventory, c.at(0, bpf.KindInventory, nil)), 0, "", "")
		r.AddOwners(map[uint64]Owner{61: {PID: 3, Comm: "late", Via: "proc"}})
		want(t, r.one(TypeRetransmit, c.retransmits(ms)), 3, "late", "proc")
	})
}

func TestTrackNamespaces(t *testing.T) {
	r := newRig(t)
	c := newConn(1)

	// Neither an unknown inode nor one that was reused.
	for _, change := range []func(*bpf.Record){
		func(r *bpf.Record) { r.NetnsInode++ },
		func(r *bpf.Record) { r.NetCookie = 8 },
	} {
		rec := c.retransmits(ms)
		change(&rec)
		r.none(rec)
	}
	if r.Foreign() != 2 || r.Sockets() != 0 {
		t.Errorf("%d foreign records and %d sockets, want 2 and 0", r.Foreign(), r.Sockets())
	}
	// A kernel without cookies is believed.
	rec := c.retransmits(ms)
	rec.NetCookie = 0
	r.one(TypeRetransmit, rec)

	r.AddNamespace(Netns{Name: "m", Generation: 3, Inode: testInode + 1, Cookie: 9}, Defaults{KeepaliveTimeMs: 1})
	other := newConn(2)
	rec = other.retransmits(ms)
	rec.NetnsInode, rec.NetCookie = testInode+1, 9
	e := r.one(TypeRetransmit, rec)
	if *e.Netns != (Netns{Name: "m", Generation: 3, Inode: testInode + 1, Cookie: 9}) || e.TCP.Keepalive.TimeMs != 1 {
		t.Errorf("%+v, keepalive after %d ms", e.Netns, e.TCP.Keepalive.TimeMs)
	}
	l := newConn(3)
	r.feed(l.moves(stateClose, stateListen, nil))

	if n := r.RemoveNamespace(testInode); n != 2 {
		t.Errorf("%d sockets went with the namespace, want 2", n)
	}
	if n := r.RemoveNamespace(testInode); n != 0 {
		t.Errorf("%d sockets went with a namespace that is not there", n)
	}
	if r.Sockets() != 1 || len(r.listeners) != 0 {
		t.Errorf("%d sockets, %d listening addresses left", r.Sockets(), len(r.listeners))
	}
	r.none(c.retransmits(ms))
	if r.Foreign() != 3 {
		t.Errorf("%d foreign records", r.Foreign())
	}
	// The next generation knows nothing of the one before.
	r.AddNamespace(Netns{Name: "n", Generation: 2, Inode: testInode, Cookie: 10}, Defaults{})
	rec = c.retransmits(ms)
	rec.NetCookie = 10
	if e := r.one(TypeRetransmit, rec); e.Retransmit.Attempt != 1 || e.Netns.Generation != 2 {
		t.Errorf("generation 2: %+v %+v", e.Netns, e.Retransmit)
	}
}

// TestTrackRemovedNamespaceReset: a RST that waits when its namespace goes
// has nobody to be told of, unless Finish came first.
func TestTrackRemovedNamespaceReset(t *testing.T) {
	r := newRig(t)
	r.none(newConn(1).rst(ms, false))
	r.RemoveNamespace(testInode)
	if got := r.tick(1 << 62); len(got) != 0 {
		t.Errorf("told of a namespace that is gone: %s", typesOf(got))
	}
}

func TestTrackReceive(t *testing.T) {
	r := newRig(t)
	c := newConn(1)
	arrives := func(flags uint16) bpf.Record {
		return c.at(ms, bpf.KindReceive, func(r *bpf.Record) {
			r.Why = bpf.ReceiveArrival
			r.Jiffies, r.Lrcvtime = 1<<32+750, 1<<32-250
			r.SegSeq, r.SegEndSeq, r.SegAckSeq, r.SegFlags = 500, 1500, 1000, flagACK|flags
		})
	}
	e := r.one(TypeArrival, arrives(flagPSH))
	if x := e.Arrival; x.SilenceMs != 4000 || x.Bytes != 1000 || x.Segment.SeqStart != 500 || x.Segment.Flags != "PSH,ACK" {
		t.Errorf("arrival: %+v", x)
	}
	if x := r.one(TypeArrival, arrives(flagFIN)).Arrival; x.Bytes != 999 {
		t.Errorf("arrival with FIN: %+v", x)
	}

	// All at once: an acknowledgement, after a silence.
	r.feed(c.retransmits(ms))
	rec := arrives(0)
	rec.Why |= bpf.ReceiveAcked
	rec.SegAckSeq = 2000
	if got := r.feed(rec); typesOf(got) != "[recovered arrival]" || got[0].Recovered.Ack != 2000 {
		t.Errorf("acknowledgement and data: %s", typesOf(got))
	}

	// Probes are numbered until something else happens.
	probe := func(seq uint32, window uint32) bpf.Record {
		return c.at(ms, bpf.KindReceive, func(r *bpf.Record) {
			r.Why, r.SegSeq, r.SegEndSeq, r.SegFlags, r.RcvNxt, r.RcvWnd = bpf.ReceiveProbe, seq, seq, flagACK, seq+1, window
		})
	}
	for i, tt := range []struct {
		rec    bpf.Record
		kind   string
		number uint32
	}{
		{probe(499, 64_000), "keepalive", 1},
		{probe(499, 64_000), "keepalive", 2},
		{probe(699, 0), "zero-window", 1},
		{probe(699, 0), "zero-window", 2},
		{probe(699, 64_000), "zero-window", 3}, // opened, and the peer has not heard of it
		{probe(799, 64_000), "keepalive", 1},
	} {
		x := r.one(TypeProbe, tt.rec).Probe
		if x.Kind != tt.kind || x.Number != tt.number || x.Direction != "received" || x.Segment.Flags != "ACK" {
			t.Errorf("probe %d: %+v, want %s %d", i, x, tt.kind, tt.number)
		}
	}
}

func TestTrackWire(t *testing.T) {
	r := newRig(t)
	c := newConn(1)
	c.base.SndUna, c.base.SndNxt, c.base.WriteSeq = 4000, 4000, 4000
	sent := func(change func(*bpf.Record)) bpf.Record {
		return c.at(ms, bpf.KindWire, both(func(r *bpf.Record) {
			r.Why, r.Flags = bpf.WireProbe, bpf.FlagFullSock|bpf.FlagOut
			r.SegSeq, r.SegEndSeq, r.SegFlags, r.SegSegs = 3999, 3999, flagACK, 1
		}, change))
	}
	e := r.one(TypeProbe, sent(func(r *bpf.Record) { r.ProbesOut = 2 }))
	if x := e.Probe; x.Kind != "keepalive" || x.Direction != "sent" || x.Number != 3 {
		t.Errorf("keepalive: %+v", x)
	}
	if e.Sock.Cookie != c.cookie || e.TCP == nil {
		t.Errorf("socket: %+v", e.Sock)
	}
	if x := r.one(TypeProbe, sent(func(r *bpf.Record) { r.WriteSeq = 9000 })).Probe; x.Kind != "zero-window" || x.Number != 1 {
		t.Errorf("window probe: %+v", x)
	}
	// In states tcp_probe does not look at, the edge shows those that come in.
	in := c.at(ms, bpf.KindWire, func(r *bpf.Record) {
		r.Why, r.State, r.SegSeq, r.SegEndSeq, r.SegFlags = bpf.WireProbe, stateFinWait2, 499, 499, flagACK
	})
	if x := r.one(TypeProbe, in).Probe; x.Direction != "received" || x.Number != 1 || x.Kind != "keepalive" {
		t.Errorf("received at the edge: %+v", x)
	}
	// A packet socket sees segments, not sockets: nothing is told of what may be a probe.
	r.none(sent(func(r *bpf.Record) { r.Flags = bpf.FlagNoSock | bpf.FlagOut; r.SockAddr = 0 }))
	r.none(c.at(ms, bpf.KindWire, func(r *bpf.Record) { r.Why = 0 }))
}

// TestTrackPacket: a packet socket sees segments, not sockets. Addresses say
// whose they are, and its window what the peer's last was.
func TestTrackPacket(t *testing.T) {
	r := newRig(t)
	r.cfg.ByAddress = true
	c := newConn(1)
	c.base.SndUna, c.base.SndNxt, c.base.WriteSeq = 4000, 4000, 4000
	seen := func(why, flags uint8, seq, window uint32) bpf.Record {
		return c.at(ms, bpf.KindWire, func(r *bpf.Record) {
			*r = bpf.Record{
				Kind: r.Kind, MonoNs: r.MonoNs, NetnsInode: r.NetnsInode, NetCookie: r.NetCookie, Family: r.Family,
				LocalAddr: r.LocalAddr, LocalPort: r.LocalPort, RemoteAddr: r.RemoteAddr, RemotePort: r.RemotePort,
				Why: why, Flags: bpf.FlagNoSock | flags, SegSeq: seq, SegEndSeq: seq, SegAckSeq: 5000, SegFlags: flagACK, SegSegs: 1, SndWnd: window,
			}
		})
	}
	// Of no connection that is known.
	r.none(seen(bpf.WireProbe, bpf.FlagOut, 3999, 64_000))
	r.feed(c.moves(stateSynSent, stateEstablished, nil), c.at(ms, bpf.KindOwner, nil))

	out := func(what, kind string, number uint32, rec bpf.Record) {
		t.Helper()
		e := r.one(TypeProbe, rec)
		if x := e.Probe; x.Kind != kind || x.Direction != "sent" || x.Number != number || e.Sock.Cookie != c.cookie || e.TCP != nil {
			t.Errorf("%s: %+v of %+v, want %s %d", what, x, e.Sock, kind, number)
		}
	}
	out("keepalive", "keepalive", 1, seen(bpf.WireProbe, bpf.FlagOut, 3999, 64_000))
	out("window shut", "zero-window", 1, seen(bpf.WireProbe, bpf.FlagOut, 3999, 0))
	out("again", "zero-window", 2, seen(bpf.WireProbe, bpf.FlagOut, 3999, 0))
	out("after more was sent", "zero-window", 1, seen(bpf.WireProbe, bpf.FlagOut, 4999, 0))
	// What may be an acknowledgement is one, unless it repeats the last byte sent.
	r.none(seen(bpf.WireProbe|bpf.WireUnsure, bpf.FlagOut, 4000, 64_000))
	out("unsure, the last byte", "keepalive", 1, seen(bpf.WireProbe|bpf.WireUnsure, bpf.FlagOut, 3999, 64_000))
	// In ESTABLISHED tcp_probe sees what comes in; later nothing else does.
	r.none(seen(bpf.WireProbe, 0, 499, 0))
	r.none(seen(bpf.WireAcked, 0, 499, 0))
	r.feed(c.moves(stateEstablished, stateFinWait1, nil))
	if x := r.one(TypeProbe, seen(bpf.WireProbe, 0, 499, 0)).Probe; x.Direction != "received" || x.Number != 1 {
		t.Errorf("received: %+v", x)
	}
	r.none(seen(bpf.WireProbe|bpf.WireUnsure, 0, 499, 0))
	r.feed(c.retransmits(200 * ms))
	if x := r.one(TypeRecovered, seen(bpf.WireAcked, 0, 500, 0)).Recovered; !x.Exact || x.AckedBytes != 1000 || x.Ack != 5000 {
		t.Errorf("recovered: %+v", x)
	}
	// Nothing is told of a socket that has ended.
	r.feed(c.moves(stateFinWait1, stateClose, nil))
	r.none(seen(bpf.WireProbe, bpf.FlagOut, 3999, 0))
	r.none(c.destroyed(), seen(bpf.WireProbe, bpf.FlagOut, 3999, 0))
	if len(r.tuples) != 0 {
		t.Errorf("%d connections of no socket", len(r.tuples))
	}
	// The ports are used again before the old socket is destroyed.
	c.state = stateEstablished
	r.feed(c.at(ms, bpf.KindOwner, nil))
	again := newConn(2)
	again.local, again.remote = c.local, c.remote
	r.feed(again.at(ms, bpf.KindOwner, nil), c.destroyed())
	if e := r.one(TypeProbe, seen(bpf.WireProbe, bpf.FlagOut, 3999, 64_000)); e.Sock.Cookie != again.cookie {
		t.Errorf("a probe of socket %d, want %d", e.Sock.Cookie, again.cookie)
	}
}

// TestTrackMadeCookies: where the kernel gives sockets none, each has one of
// its own all the same, for as long as it lives.
func TestTrackMadeCookies(t *testing.T) {
	r := newRig(t)
	r.cfg.NoCookies = true
	bare := func(c *conn) *conn { c.cookie = 0; return c }
	a, b := bare(newConn(1)), bare(newConn(2))
	first := r.one(TypeState, a.moves(stateClose, stateSynSent, nil)).Sock.Cookie
	second := r.one(TypeState, b.moves(stateClose, stateSynSent, nil)).Sock.Cookie
	if first == second || first <= madeUp || second <= madeUp {
		t.Errorf("cookies %d and %d", first, second)
	}
	// It stays, even if somebody asks the kernel for one meanwhile.
	a.cookie = 77
	if e := r.one(TypeState, a.moves(stateSynSent, stateEstablished, nil)); e.Sock.Cookie != first {
		t.Errorf("cookie %d, was %d", e.Sock.Cookie, first)
	}
	// The next socket at its address has another.
	r.none(a.destroyed())
	a.cookie = 0
	if e := r.one(TypeState, a.moves(stateClose, stateSynSent, nil)); e.Sock.Cookie == first || e.Sock.Cookie == second {
		t.Errorf("cookie %d was used before", e.Sock.Cookie)
	}
	// One that somebody had asked for is the kernel's.
	d := newConn(4)
	if e := r.one(TypeRetransmit, d.retransmits(ms)); e.Sock.Cookie != d.cookie {
		t.Errorf("cookie %d, the kernel's is %d", e.Sock.Cookie, d.cookie)
	}
}

// TestAccepted: on older kernels a connection that leaves its listener is a
// copy of it in the first record, and is itself in the next.
func TestAccepted(t *testing.T) {
	copied := func(r *bpf.Record) {
		r.SockCookie, r.RemoteAddr, r.RemotePort = 55, [16]uint8{10: 0xff, 11: 0xff}, 0
	}
	for _, noCookies := range []bool{false, true} {
		r := newRig(t)
		r.cfg.NoCookies = noCookies
		c := newConn(1)
		if noCookies {
			c.cookie = 0
		}
		first := c.moves(stateListen, stateSynRecv, copied)
		r.none(first)
		got := r.feed(c.moves(stateSynRecv, stateEstablished, nil))
		if len(got) != 2 {
			t.Fatalf("emitted %s", typesOf(got))
		}
		for i, want := range []State{{"LISTEN", "SYN_RECV"}, {"SYN_RECV", "ESTABLISHED"}} {
			e := got[i]
			if *e.State != want || e.Sock.Remote != c.remote || e.Sock.Cookie != got[1].Sock.Cookie || e.Sock.Cookie == 0 || e.Sock.Cookie == 55 {
				t.Errorf("%+v of %+v, want %+v", e.State, e.Sock, want)
			}
		}
		if got[0].MonoNS != first.MonoNs || got[0].TCP != nil || got[1].TCP == nil {
			t.Errorf("at %d with %+v, then with %+v", got[0].MonoNS, got[0].TCP, got[1].TCP)
		}

		// One that says nothing more has its listener's addresses, and no cookie.
		r.none(c.destroyed())
		r.none(c.moves(stateListen, stateSynRecv, copied))
		if e := r.only(TypeState, r.feed(c.destroyed())); e.Sock.Cookie != 0 || e.Sock.Remote.Port() != 0 || e.Sock.Local != c.local {
			t.Errorf("destroyed: %+v", e.Sock)
		}
		r.none(c.moves(stateListen, stateSynRecv, copied))
		r.none()
		if got := r.tick(c.now + resetWindow); len(got) != 0 {
			t.Errorf("emitted %s early", typesOf(got))
		}
		if e := r.only(TypeState, r.tick(c.now+resetWindow+1)); e.Sock.Cookie != 0 || e.State.New != "SYN_RECV" {
			t.Errorf("after a while: %+v of %+v", e.State, e.Sock)
		}
	}
}

// TestTrackNames: names can be made up without end; memory has one.
func TestTrackNames(t *testing.T) {
	r := newRig(t)
	c := newConn(1)
	for i := range 10_000 {
		name := fmt.Sprintf("w%d", i)
		r.none(c.at(ms, bpf.KindOwner, func(r *bpf.Record) { r.OwnerPid = 9; copy(r.OwnerComm[:], name) }))
		if i%1000 == 0 {
			if e := r.one(TypeRetransmit, c.retransmits(ms)); e.Owner.Comm != name {
				t.Errorf("owner %+v, want %s", e.Owner, name)
			}
		}
	}
	if len(r.comms) > 4096 {
		t.Errorf("%d names are kept", len(r.comms))
	}
}

func TestTrackStates(t *testing.T) {
	r := newRig(t)
	c := newConn(1)
	e := r.one(TypeState, c.moves(stateEstablished, stateFinWait1, nil))
	if *e.State != (State{"ESTABLISHED", "FIN_WAIT1"}) || *e.CPU != 0 || e.MonoNS != c.now || e.Time != WallTime(testBoot+c.now) {
		t.Errorf("%+v %+v", e, e.State)
	}
	if e.TCP.State != "ESTABLISHED" {
		t.Errorf("the snapshot is of %s, want the state being left", e.TCP.State)
	}
	r.one(TypeState, c.moves(stateFinWait1, stateClose, nil))
	// Closed twice, aborted once.
	if got := r.feed(c.moves(stateEstablished, stateClose, errored(unix.ETIMEDOUT))); typesOf(got) != "[state]" {
		t.Errorf("second close: %s", typesOf(got))
	}
	// The same socket connects again: what was is past.
	c = newConn(2)
	r.none(c.rst(ms, false))
	r.feed(c.moves(stateClose, stateSynSent, nil), c.resetReceived(ms))
	if got := r.feed(c.moves(stateSynSent, stateClose, errored(unix.ECONNREFUSED))); typesOf(got) != "[state abort]" || got[1].Abort.Cause != abortRefused {
		t.Errorf("refused: %s", typesOf(got))
	}
	r.feed(c.moves(stateClose, stateSynSent, nil))
	if got := r.feed(c.moves(stateSynSent, stateClose, flagged(bpf.FlagUser))); typesOf(got) != "[state abort]" || got[1].Abort.Cause != abortCancelled {
		t.Errorf("again, cancelled: %s", typesOf(got))
	}
	// Subflows are marked.
	rec := newConn(3).retransmits(ms)
	rec.Flags |= bpf.FlagMPTCP
	rec.Family = unix.AF_INET6
	if e := r.one(TypeRetransmit, rec); !e.Sock.MPTCP || e.Sock.Family != "inet6" {
		t.Errorf("subflow: %+v", e.Sock)
	}
}

// TestTrackHalfClosed: a process that has sent FIN and reads on holds the
// socket's lock when the peer's FIN is processed; only a RST makes it an abort.
func TestTrackHalfClosed(t *testing.T) {
	r := newRig(t)
	halfClosed := func(n int) *conn {
		c := newConn(n)
		c.base.CopiedSeq = c.base.RcvNxt - 1001
		r.feed(c.moves(stateEstablished, stateFinWait1, flagged(bpf.FlagUser)), c.moves(stateFinWait1, stateFinWait2, nil))
		return c
	}
	c := halfClosed(1)
	if got := r.feed(c.moves(stateFinWait2, stateClose, flagged(bpf.FlagUser)), c.destroyed()); typesOf(got) != "[state]" {
		t.Errorf("read to the end: %s", typesOf(got))
	}
	c = halfClosed(2)
	end := c.moves(stateFinWait2, stateClose, both(flagged(bpf.FlagUser), shut(3)))
	r.one(TypeState, end)
	got := r.feed(c.rst(ms, true), c.resetSent(ms/100, 17))
	if typesOf(got) != "[reset abort]" {
		t.Fatalf("closed with data unread: %s", typesOf(got))
	}
	if x := got[1]; x.Abort.Cause != abortUnread || x.MonoNS != end.MonoNs || x.Abort.State != "FIN_WAIT2" || x.TCP.UnreadBytes != 1001 {
		t.Errorf("closed with data unread: %+v at %d", x.Abort, x.MonoNS)
	}
	// Once.
	if got := r.feed(c.resetSent(ms, 17)); typesOf(got) != "[reset]" {
		t.Errorf("a second RST: %s", typesOf(got))
	}
}

// TestTrackEmitFails: an output that fails ends the session; no record is
// tracked past it.
func TestTrackEmitFails(t *testing.T) {
	full := errors.New("disk full")
	c := newConn(1)
	retransmit, acked := c.retransmits(ms), c.acked(ms, 2000)
	unseen := c.retransmits(ms)
	ends := c.moves(stateEstablished, stateClose, errored(unix.ETIMEDOUT))
	in, out := newConn(2), newConn(3)
	for i, recs := range [][]bpf.Record{
		{retransmit},
		{retransmit, acked},
		{retransmit, unseen},
		{retransmit, acked, ends},
		{in.rst(ms, false), in.rst(ms, false)},
		{in.rst(ms, false), in.resetReceived(ms)},
		{out.resetSent(ms, 1)},
		{in.at(ms, bpf.KindSynAck, nil)},
		{in.at(ms, bpf.KindInventory, nil)},
		{in.at(ms, bpf.KindError, errored(unix.EPIPE))},
		{in.at(ms, bpf.KindReceive, func(r *bpf.Record) { r.Why = bpf.ReceiveProbe })},
		{in.at(ms, bpf.KindReceive, func(r *bpf.Record) { r.Why = bpf.ReceiveArrival })},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			fail := false
			tr := NewTracker(testConfig(func(*Event) error {
				if fail {
					return full
				}
				return nil
			}))
			tr.AddNamespace(Netns{Inode: testInode}, Defaults{})
			for j := range recs {
				fail = j == len(recs)-1
				if err := tr.Track(&recs[j]); fail && !errors.Is(err, full) || !fail && err != nil {
					t.Errorf("record %d: %v", j, err)
				}
			}
		})
	}
	tr := NewTracker(testConfig(func(*Event) error { return full }))
	tr.AddNamespace(Netns{Inode: testInode}, Defaults{})
	rec := in.rst(ms, false)
	if err := tr.Track(&rec); err != nil {
		t.Fatal(err)
	}
	if err := tr.Finish(); !errors.Is(err, full) {
		t.Errorf("finish: %v", err)
	}
}
