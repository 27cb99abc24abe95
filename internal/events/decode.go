package events

import (
	"bytes"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/bpf"
)

// The kernel's TCP states (include/net/tcp_states.h).
const (
	stateEstablished = 1
	stateSynSent     = 2
	stateSynRecv     = 3
	stateFinWait1    = 4
	stateFinWait2    = 5
	stateTimeWait    = 6
	stateClose       = 7
	stateCloseWait   = 8
	stateLastAck     = 9
	stateListen      = 10
	stateClosing     = 11
	stateNewSynRecv  = 12
)

var stateNames = [...]string{
	stateEstablished: "ESTABLISHED",
	stateSynSent:     "SYN_SENT",
	stateSynRecv:     "SYN_RECV",
	stateFinWait1:    "FIN_WAIT1",
	stateFinWait2:    "FIN_WAIT2",
	stateTimeWait:    "TIME_WAIT",
	stateClose:       "CLOSE",
	stateCloseWait:   "CLOSE_WAIT",
	stateLastAck:     "LAST_ACK",
	stateListen:      "LISTEN",
	stateClosing:     "CLOSING",
	stateNewSynRecv:  "NEW_SYN_RECV",
}

func stateName(s int) string {
	if s > 0 && s < len(stateNames) {
		return stateNames[s]
	}
	return "STATE_" + strconv.Itoa(s)
}

// Congestion states (enum tcp_ca_state).
const (
	caOpen     = 0
	caDisorder = 1
	caCWR      = 2
	caRecovery = 3
	caLoss     = 4
)

var caNames = [...]string{caOpen: "Open", caDisorder: "Disorder", caCWR: "CWR", caRecovery: "Recovery", caLoss: "Loss"}

func caName(s uint8) string {
	if int(s) < len(caNames) {
		return caNames[s]
	}
	return "CA_" + strconv.Itoa(int(s))
}

// Timers that icsk_pending names (include/net/inet_connection_sock.h).
const (
	timerNone       = 0
	timerRetrans    = 1
	timerProbe0     = 3
	timerLossProbe  = 5
	timerReoTimeout = 6
)

func timerName(t uint8) string {
	switch t {
	case timerNone:
		return "none"
	case timerRetrans:
		return "retrans"
	case timerProbe0:
		return "zero-window-probe"
	case timerLossProbe:
		return "loss-probe"
	case timerReoTimeout:
		return "reo-timeout"
	}
	return "timer-" + strconv.Itoa(int(t))
}

// TCP flags as they stand in the header.
const (
	flagFIN = 0x01
	flagSYN = 0x02
	flagRST = 0x04
	flagPSH = 0x08
	flagACK = 0x10
)

// flagNames holds every combination, so that naming one allocates nothing.
var flagNames = func() (names [256]string) {
	for f := range names {
		s := ""
		for i, name := range [...]string{"FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"} {
			if f&(1<<i) == 0 {
				continue
			}
			if s != "" {
				s += ","
			}
			s += name
		}
		names[f] = s
	}
	return names
}()

func viaName(v uint8) string {
	switch v {
	case bpf.ViaConnect:
		return "connect"
	case bpf.ViaListen:
		return "listen"
	case bpf.ViaRecv:
		return "recv"
	case bpf.ViaSend:
		return "send"
	case bpf.ViaClose:
		return "close"
	}
	return "call"
}

func familyName(f uint16) string {
	if f == unix.AF_INET6 {
		return "inet6"
	}
	return "inet"
}

func addrPort(a [16]uint8, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(a).Unmap(), port)
}

func cString(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}

// errnoNames caches names: unix.ErrnoName searches a table.
var errnoNames = func() (names [134]string) {
	for i := range names {
		names[i] = unix.ErrnoName(unix.Errno(i))
	}
	names[unix.EOPNOTSUPP] = "EOPNOTSUPP" // not the libc's ENOTSUP
	return names
}()

func errnoName(e uint32) string {
	if int(e) < len(errnoNames) && errnoNames[e] != "" {
		return errnoNames[e]
	}
	return "errno " + strconv.FormatUint(uint64(e), 10)
}

// decodeTCP fills the snapshot from a record of a full socket.
func decodeTCP(t *TCP, r *bpf.Record, hz uint32, d *Defaults) {
	tickUs := 1_000_000 / uint64(hz)
	*t = TCP{
		State:         stateName(int(r.State)),
		SndUna:        r.SndUna,
		SndNxt:        r.SndNxt,
		WriteSeq:      r.WriteSeq,
		RcvNxt:        r.RcvNxt,
		CopiedSeq:     r.CopiedSeq,
		UnackedBytes:  r.SndNxt - r.SndUna,
		UnsentBytes:   r.WriteSeq - r.SndNxt,
		UnreadBytes:   r.RcvNxt - r.CopiedSeq,
		BytesAcked:    r.BytesAcked,
		BytesReceived: r.BytesReceived,
		RTOUs:         uint32(uint64(r.Rto) * tickUs),
		SrttUs:        r.SrttUs,
		RttvarUs:      r.RttvarUs,
		Retransmits:   r.Retransmits,
		Backoff:       r.Backoff,
		ProbesOut:     r.ProbesOut,
		CaState:       caName(r.CaState),
		PendingTimer:  timerName(r.Pending),
		SndCwnd:       r.SndCwnd,
		Ssthresh:      r.Ssthresh,
		SndWnd:        r.SndWnd,
		RcvWnd:        r.RcvWnd,
		PacketsOut:    r.PacketsOut,
		RetransOut:    r.RetransOut,
		LostOut:       r.LostOut,
		SackedOut:     r.SackedOut,
		SkErr:         r.SkErr,
		UserTimeoutMs: r.UserTimeoutMs,
	}
	if r.Pending != timerNone {
		t.TimeoutMsLeft = int64(r.TimerExpires-r.Jiffies) * int64(tickUs) / 1000
	}
	t.Keepalive = Keepalive{
		On:     r.Flags&bpf.FlagKeepOpen != 0,
		TimeMs: uint64(r.KeepaliveTime) * tickUs / 1000,
		IntvMs: uint64(r.KeepaliveIntvl) * tickUs / 1000,
		Probes: uint32(r.KeepaliveProbes),
	}
	if r.KeepaliveTime == 0 {
		t.Keepalive.TimeMs = d.KeepaliveTimeMs
	}
	if r.KeepaliveIntvl == 0 {
		t.Keepalive.IntvMs = d.KeepaliveIntvlMs
	}
	if r.KeepaliveProbes == 0 {
		t.Keepalive.Probes = d.KeepaliveProbes
	}
	t.SinceLastAckUs = since(r.Jiffies, r.RcvTstamp, tickUs)
	t.SinceLastRcvUs = since(r.Jiffies, r.Lrcvtime, tickUs)
}

// since is the age of a 32-bit jiffies stamp in microseconds, -1 if it was never set.
func since(jiffies uint64, stamp uint32, tickUs uint64) int64 {
	if stamp == 0 {
		return -1
	}
	if stamp-uint32(jiffies) < 100 {
		return 0 // stamped on another processor while the record was filled
	}
	return int64(uint64(uint32(jiffies)-stamp) * tickUs)
}

func decodeSegment(s *Segment, r *bpf.Record) {
	*s = Segment{SeqStart: r.SegSeq, SeqEnd: r.SegEndSeq, Flags: flagNames[r.SegFlags&0xff]}
	if r.SegFlags&flagACK != 0 {
		s.Ack = r.SegAckSeq
	}
}
