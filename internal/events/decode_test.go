package events

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/bpf"
)

func TestNames(t *testing.T) {
	for i, want := range map[int]string{
		0: "STATE_0", 1: "ESTABLISHED", 2: "SYN_SENT", 3: "SYN_RECV", 4: "FIN_WAIT1", 5: "FIN_WAIT2", 6: "TIME_WAIT",
		7: "CLOSE", 8: "CLOSE_WAIT", 9: "LAST_ACK", 10: "LISTEN", 11: "CLOSING", 12: "NEW_SYN_RECV", 13: "STATE_13", 255: "STATE_255",
	} {
		if got := stateName(i); got != want {
			t.Errorf("state %d is %s, want %s", i, got, want)
		}
	}
	for i, want := range map[uint8]string{0: "Open", 1: "Disorder", 2: "CWR", 3: "Recovery", 4: "Loss", 5: "CA_5", 255: "CA_255"} {
		if got := caName(i); got != want {
			t.Errorf("congestion state %d is %s, want %s", i, got, want)
		}
	}
	for i, want := range map[uint8]string{
		0: "none", 1: "retrans", 2: "timer-2", 3: "zero-window-probe", 4: "timer-4", 5: "loss-probe", 6: "reo-timeout", 7: "timer-7",
	} {
		if got := timerName(i); got != want {
			t.Errorf("timer %d is %s, want %s", i, got, want)
		}
	}
	for f, want := range map[uint16]string{
		0: "", 0x01: "FIN", 0x02: "SYN", 0x04: "RST", 0x08: "PSH", 0x10: "ACK", 0x20: "URG", 0x40: "ECE", 0x80: "CWR",
		0x12: "SYN,ACK", 0x14: "RST,ACK", 0x19: "FIN,PSH,ACK", 0xff: "FIN,SYN,RST,PSH,ACK,URG,ECE,CWR",
	} {
		var s Segment
		decodeSegment(&s, &bpf.Record{SegFlags: f})
		if s.Flags != want {
			t.Errorf("flags %#x are %q, want %q", f, s.Flags, want)
		}
	}
	for v, want := range map[uint8]string{
		bpf.ViaConnect: "connect", bpf.ViaListen: "listen", bpf.ViaRecv: "recv", bpf.ViaClose: "close", bpf.ViaCall: "call", 99: "call",
	} {
		if got := viaName(v); got != want {
			t.Errorf("via %d is %s, want %s", v, got, want)
		}
	}
	for e, want := range map[uint32]string{
		uint32(unix.ECONNRESET): "ECONNRESET", uint32(unix.ETIMEDOUT): "ETIMEDOUT", uint32(unix.EHOSTUNREACH): "EHOSTUNREACH",
		uint32(unix.EPIPE): "EPIPE", uint32(unix.EAGAIN): "EAGAIN", uint32(unix.EOPNOTSUPP): "EOPNOTSUPP", 133: "EHWPOISON",
		0: "errno 0", 41: "errno 41", 134: "errno 134", 512: "errno 512", 1<<32 - 1: "errno 4294967295",
	} {
		if got := errnoName(e); got != want {
			t.Errorf("errno %d is %s, want %s", e, got, want)
		}
	}
	for f, want := range map[uint16]string{unix.AF_INET: "inet", unix.AF_INET6: "inet6"} {
		if got := familyName(f); got != want {
			t.Errorf("family %d is %s", f, got)
		}
	}
	for raw, want := range map[[16]uint8]string{
		{}:            "",
		{'a', 'p'}:    "ap",
		{'a', 0, 'b'}: "a",
		{'0', '1', '2', '3', '4', '5', '6', '7', '8', '9', '0', '1', '2', '3', '4', '5'}: "0123456789012345",
	} {
		if got := cString(raw[:]); got != want {
			t.Errorf("command %q is %q, want %q", raw, got, want)
		}
	}
}

func TestAddresses(t *testing.T) {
	for _, tt := range []struct {
		addr netip.Addr
		port uint16
		want string
	}{
		{netip.MustParseAddr("198.18.0.3"), 41532, "198.18.0.3:41532"}, // as the record has it: mapped
		{netip.MustParseAddr("::ffff:198.18.0.3"), 1, "198.18.0.3:1"},
		{netip.MustParseAddr("0.0.0.0"), 0, "0.0.0.0:0"},
		{netip.MustParseAddr("::"), 80, "[::]:80"},
		{netip.MustParseAddr("2001:db8::1"), 65535, "[2001:db8::1]:65535"},
		{netip.MustParseAddr("::198.18.0.3"), 1, "[::c612:3]:1"}, // compatible, not mapped
	} {
		if got := addrPort(tt.addr.As16(), tt.port).String(); got != tt.want {
			t.Errorf("%s and %d are %s, want %s", tt.addr, tt.port, got, tt.want)
		}
	}
}

func TestSegmentAck(t *testing.T) {
	r := bpf.Record{SegSeq: 1<<32 - 10, SegEndSeq: 5, SegAckSeq: 77, SegFlags: flagRST}
	var s Segment
	decodeSegment(&s, &r)
	if want := (Segment{SeqStart: 1<<32 - 10, SeqEnd: 5, Flags: "RST"}); s != want {
		t.Errorf("without the ACK flag: %+v, want %+v", s, want)
	}
	r.SegFlags |= flagACK
	decodeSegment(&s, &r)
	if s.Ack != 77 {
		t.Errorf("with the ACK flag: %+v", s)
	}
}

func TestSince(t *testing.T) {
	const tick = 4000 // µs at 250 Hz
	for _, tt := range []struct {
		name    string
		jiffies uint64
		stamp   uint32
		want    int64
	}{
		{"never", 5000, 0, -1},
		{"never, however long the machine is up", 1<<40 + 5000, 0, -1},
		{"now", 5000, 5000, 0},
		{"one tick", 5000, 4999, tick},
		{"four hours", 3_600_000 + 5000, 5000, 4 * 3600 * 1e6},
		{"across the wrap of 32 bits", 1<<32 + 10, 1<<32 - 15, 25 * tick},
		{"jiffies begin five minutes before a wrap", 1<<32 - 300*250 + 50, 1<<32 - 300*250, 50 * tick},
		{"after many wraps", 7<<32 + 100, 60, 40 * tick},
		{"longer than half the range", 3<<30 + 1000, 1000, 3 << 30 * tick},
		{"stamped on another processor meanwhile", 5000, 5001, 0},
		{"the same across the wrap", 1<<32 - 1, 1, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := since(tt.jiffies, tt.stamp, tick); got != tt.want {
				t.Errorf("%d µs, want %d", got, tt.want)
			}
		})
	}
}

// TestDecodeTCP sets every field of a record that the snapshot shows to a
// value of its own.
func TestDecodeTCP(t *testing.T) {
	r := bpf.Record{
		State: stateCloseWait, Flags: bpf.FlagFullSock | bpf.FlagKeepOpen, Jiffies: 10_000,
		SndUna: 1000, SndNxt: 4000, WriteSeq: 9000, RcvNxt: 500, CopiedSeq: 1<<32 - 100,
		BytesAcked: 1 << 40, BytesReceived: 1<<40 + 1, Rto: 51, SrttUs: 412, RttvarUs: 157,
		Retransmits: 3, Backoff: 2, ProbesOut: 1, CaState: caLoss, Pending: timerRetrans, TimerExpires: 10_051,
		SndCwnd: 10, Ssthresh: 7, SndWnd: 64_256, RcvWnd: 65_535, PacketsOut: 3, RetransOut: 1, LostOut: 2, SackedOut: 4,
		SkErr: 110, UserTimeoutMs: 20_000, KeepaliveTime: 15 * 250, KeepaliveIntvl: 250, KeepaliveProbes: 9,
		RcvTstamp: 9_900, Lrcvtime: 9_000,
	}
	defaults := Defaults{KeepaliveTimeMs: 7_200_000, KeepaliveIntvlMs: 75_000, KeepaliveProbes: 8}
	want := TCP{
		State: "CLOSE_WAIT", SndUna: 1000, SndNxt: 4000, WriteSeq: 9000, RcvNxt: 500, CopiedSeq: 1<<32 - 100,
		UnackedBytes: 3000, UnsentBytes: 5000, UnreadBytes: 600, // across the wrap of sequence numbers
		BytesAcked: 1 << 40, BytesReceived: 1<<40 + 1, RTOUs: 204_000, SrttUs: 412, RttvarUs: 157,
		Retransmits: 3, Backoff: 2, ProbesOut: 1, CaState: "Loss", PendingTimer: "retrans", TimeoutMsLeft: 204,
		SndCwnd: 10, Ssthresh: 7, SndWnd: 64_256, RcvWnd: 65_535, PacketsOut: 3, RetransOut: 1, LostOut: 2, SackedOut: 4,
		SkErr: 110, UserTimeoutMs: 20_000,
		Keepalive:      Keepalive{On: true, TimeMs: 15_000, IntvMs: 1000, Probes: 9},
		SinceLastAckUs: 400_000, SinceLastRcvUs: 4_000_000,
	}
	var got TCP
	check := func(what string, hz uint32) {
		t.Helper()
		decodeTCP(&got, &r, hz, &defaults)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	check("everything set", 250)

	r.TimerExpires, want.TimeoutMsLeft = 9_990, -40
	check("timer overdue", 250)
	r.Jiffies, r.TimerExpires = 1<<32+10_000, 1<<32+9_990
	check("timer overdue, jiffies of more than 32 bits", 250)
	r.Pending, want.PendingTimer, want.TimeoutMsLeft = timerNone, "none", 0
	check("no timer: what it was set to means nothing", 250)

	r.KeepaliveTime, r.KeepaliveIntvl, r.KeepaliveProbes = 0, 0, 0
	r.Flags &^= bpf.FlagKeepOpen
	want.Keepalive = Keepalive{TimeMs: 7_200_000, IntvMs: 75_000, Probes: 8}
	check("keepalive of the namespace", 250)
	r.RcvTstamp, r.Lrcvtime, want.SinceLastAckUs, want.SinceLastRcvUs = 0, 0, -1, -1
	check("nothing heard yet", 250)

	for hz, rto := range map[uint32]uint32{100: 510_000, 300: 169_983, 1000: 51_000} {
		want.RTOUs = rto
		check(fmt.Sprintf("%d ticks a second", hz), hz)
	}
}

// TestDecodeKeepsNothing: the snapshot is reused, so each decode writes all of it.
func TestDecodeKeepsNothing(t *testing.T) {
	dirty := TCP{Keepalive: Keepalive{On: true}, TimeoutMsLeft: 1, SkErr: 1, State: "x", CaState: "x", PendingTimer: "x"}
	var clean TCP
	decodeTCP(&dirty, &bpf.Record{}, 250, &Defaults{})
	decodeTCP(&clean, &bpf.Record{}, 250, &Defaults{})
	if dirty != clean {
		t.Errorf("left over from the snapshot before: %s", cmp.Diff(clean, dirty))
	}
	if !strings.HasPrefix(clean.State, "STATE_") || clean.CaState != "Open" || clean.PendingTimer != "none" {
		t.Errorf("an empty record is %+v", clean)
	}
}
