package events

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/bpf"
)

func TestRetransmitCause(t *testing.T) {
	// icsk_pending that no kernel has here, for what must be undecided.
	const timerOther = 9
	for _, tt := range []struct {
		name  string
		state uint8
		flags uint16
		ca    uint8
		timer uint8
		want  string
		why   string
	}{
		{"SYN", stateSynSent, flagSYN, caLoss, timerNone, causeSyn, "SYN"},
		{"SYN while another timer is noted", stateSynSent, flagSYN, caOpen, timerRetrans, causeSyn, "SYN"},
		{"SYN-ACK of a simultaneous open", stateSynRecv, flagSYN | flagACK, caLoss, timerNone, causeSynAck, "SYN-ACK"},

		// tcp_retransmit_timer clears icsk_pending, then tcp_enter_loss.
		{"retransmission timer", stateEstablished, flagACK, caLoss, timerNone, causeRTO, "icsk_pending is none"},
		{"retransmission timer after the peer's FIN", stateCloseWait, flagACK | flagPSH, caLoss, timerNone, causeRTO, "icsk_pending is none"},
		{"retransmission timer, FIN", stateFinWait1, flagACK | flagFIN, caLoss, timerNone, causeRTO, "icsk_pending is none"},

		// tcp_send_loss_probe leaves its own timer noted until it has sent.
		{"loss probe", stateEstablished, flagACK, caOpen, timerLossProbe, causeTLP, "loss-probe"},
		{"loss probe in Disorder", stateEstablished, flagACK, caDisorder, timerLossProbe, causeTLP, "loss-probe"},
		{"loss probe in CWR", stateEstablished, flagACK, caCWR, timerLossProbe, causeTLP, "loss-probe"},

		// tcp_xmit_retransmit_queue on an ACK or the reordering timer.
		{"fast", stateEstablished, flagACK, caRecovery, timerRetrans, causeFast, "Recovery"},
		{"fast, a loss probe was armed", stateEstablished, flagACK, caRecovery, timerLossProbe, causeFast, "Recovery"},
		{"fast, reordering timer", stateEstablished, flagACK, caRecovery, timerReoTimeout, causeFast, "Recovery"},
		{"fast, no timer noted", stateEstablished, flagACK, caRecovery, timerNone, causeFast, "Recovery"},
		{"after a timeout", stateEstablished, flagACK, caLoss, timerRetrans, causeLossRecovery, "after a timeout"},
		{"after a timeout, reordering timer", stateEstablished, flagACK, caLoss, timerReoTimeout, causeLossRecovery, "after a timeout"},
		{"loss probe timer in Loss", stateEstablished, flagACK, caLoss, timerLossProbe, causeLossRecovery, "after a timeout"},

		{"Open, retransmission timer armed", stateEstablished, flagACK, caOpen, timerRetrans, causeUndecided, "ca_state Open with timer retrans"},
		{"Open, no timer", stateEstablished, flagACK, caOpen, timerNone, causeUndecided, "ca_state Open with timer none"},
		{"Disorder, reordering timer", stateEstablished, flagACK, caDisorder, timerReoTimeout, causeUndecided, "ca_state Disorder with timer reo-timeout"},
		{"CWR, window probe timer", stateEstablished, flagACK, caCWR, timerProbe0, causeUndecided, "ca_state CWR with timer zero-window-probe"},
		{"states of a newer kernel", stateEstablished, flagACK, 5, timerOther, causeUndecided, "ca_state CA_5 with timer timer-9"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cause, why := retransmitCause(&bpf.Record{State: tt.state, SegFlags: tt.flags, CaState: tt.ca, Pending: tt.timer}, false)
			if cause != tt.want {
				t.Errorf("cause %s (%s), want %s", cause, why, tt.want)
			}
			if !strings.Contains(why, tt.why) {
				t.Errorf("why %q does not say %q", why, tt.why)
			}
		})
	}
}

// TestRevertedTimeout: an ICMP error may call the timer's handler, whose timer
// is pending still. What an acknowledgement brings about looks otherwise.
func TestRevertedTimeout(t *testing.T) {
	reverted := bpf.Record{
		State: stateEstablished, SegFlags: flagACK, CaState: caLoss, Pending: timerRetrans,
		SegSeq: 1000, SndUna: 1000, Retransmits: 3, SndCwnd: 1, PacketsOut: 2, LostOut: 2,
	}
	if cause, why := retransmitCause(&reverted, false); cause != causeRTO || !strings.Contains(why, "ICMP") {
		t.Errorf("%s (%s)", cause, why)
	}
	for name, change := range map[string]func(*bpf.Record){
		"snd_una moved":        func(r *bpf.Record) { r.Retransmits = 0 },
		"another segment":      func(r *bpf.Record) { r.SegSeq = 2448 },
		"one in flight":        func(r *bpf.Record) { r.RetransOut = 1 },
		"window opened":        func(r *bpf.Record) { r.SndCwnd = 2 },
		"the reordering timer": func(r *bpf.Record) { r.Pending = timerReoTimeout },
	} {
		r := reverted
		change(&r)
		if cause, why := retransmitCause(&r, false); cause != causeLossRecovery {
			t.Errorf("%s: %s (%s)", name, cause, why)
		}
	}
}

// TestNoTimeout: in Loss without a timeout, segments were too large for their
// path. A timeout is told by its timer.
func TestNoTimeout(t *testing.T) {
	for _, tt := range []struct {
		ca, timer uint8
		want      string
	}{
		{caLoss, timerRetrans, causeMTU},
		{caLoss, timerLossProbe, causeMTU},
		{caLoss, timerNone, causeRTO},
		{caRecovery, timerRetrans, causeFast},
	} {
		if cause, why := retransmitCause(&bpf.Record{State: stateEstablished, SegFlags: flagACK, CaState: tt.ca, Pending: tt.timer}, true); cause != tt.want {
			t.Errorf("ca_state %s, timer %s: %s (%s), want %s", caName(tt.ca), timerName(tt.timer), cause, why, tt.want)
		}
	}
}

func TestNextDue(t *testing.T) {
	const hz = 250 // one tick: 4 ms
	defaults := Defaults{SynLinearTimeouts: 4, RTOMaxMs: 120_000}
	ms := func(n uint32) uint32 { return n * hz / 1000 }
	const head, later = 1000, 2448
	for _, tt := range []struct {
		name  string
		cause string
		rec   bpf.Record
		facts dueFacts
		want  int64
	}{
		// The handler sends, then doubles: rto_us of the record is the one that ran out.
		{"timeout doubles", causeRTO, bpf.Record{Rto: ms(204)}, dueFacts{attempt: 1}, 408},
		{"timeout doubles up to the maximum", causeRTO, bpf.Record{Rto: ms(100_000)}, dueFacts{attempt: 9}, 120_000},
		{"timeout at the maximum", causeRTO, bpf.Record{Rto: ms(120_000)}, dueFacts{attempt: 12}, 120_000},
		{"failed with an errno: as if it had been sent", causeRTO, bpf.Record{Rto: ms(204), ArgA: -int32(unix.EHOSTUNREACH)}, dueFacts{attempt: 1}, 408},
		{"refused by the queue: a timer of its own", causeRTO, bpf.Record{Rto: ms(204), ArgA: 1}, dueFacts{attempt: 1}, 500},
		{"refused by the queue, long rto", causeRTO, bpf.Record{Rto: ms(8000), ArgA: 1}, dueFacts{attempt: 4}, 500},

		{"user timeout further away", causeRTO, bpf.Record{Rto: ms(204), UserTimeoutMs: 20_000, MonoNs: 10_000e6, RetransStamp: 9600}, dueFacts{attempt: 2}, 408},
		{"user timeout next", causeRTO, bpf.Record{Rto: ms(816), UserTimeoutMs: 2500, MonoNs: 10_000e6, RetransStamp: 8745}, dueFacts{attempt: 4}, 1245},
		{"user timeout over: the next tick", causeRTO, bpf.Record{Rto: ms(816), UserTimeoutMs: 2500, MonoNs: 10_000e6, RetransStamp: 7400}, dueFacts{attempt: 4}, 4},
		{"user timeout, the first timeout of an episode", causeRTO, bpf.Record{Rto: ms(816), UserTimeoutMs: 1000, MonoNs: 10_000e6}, dueFacts{attempt: 1}, 1000},
		{"user timeout across a wrap of 32 bits", causeRTO, bpf.Record{Rto: ms(816), UserTimeoutMs: 2500, MonoNs: (1<<32 + 255) * 1e6, RetransStamp: 1<<32 - 1000}, dueFacts{attempt: 4}, 1245},
		{"mtu, a later segment: the timer runs on", causeMTU, bpf.Record{Rto: ms(204), Pending: timerRetrans, Jiffies: 5000, TimerExpires: 5020, SegSeq: later, SndUna: head}, dueFacts{attempt: 3}, 80},

		// tcp_syn_linear_timeouts, then doubling.
		{"first SYN", causeSyn, bpf.Record{Rto: ms(1000)}, dueFacts{attempt: 1}, 1000},
		{"last linear SYN", causeSyn, bpf.Record{Rto: ms(1000)}, dueFacts{attempt: 4}, 1000},
		{"first SYN that doubles", causeSyn, bpf.Record{Rto: ms(1000)}, dueFacts{attempt: 5}, 2000},
		{"SYN with user timeout", causeSyn, bpf.Record{Rto: ms(1000), UserTimeoutMs: 2500, MonoNs: 10_000e6, RetransStamp: 7951}, dueFacts{attempt: 2}, 451},
		{"SYN refused by the queue", causeSyn, bpf.Record{Rto: ms(1000), ArgA: 1}, dueFacts{attempt: 1}, 500},

		{"loss probe: a full rto from now", causeTLP, bpf.Record{Rto: ms(204), Pending: timerLossProbe}, dueFacts{attempt: 1}, 204},
		{"loss probe that failed", causeTLP, bpf.Record{Rto: ms(204), Pending: timerLossProbe, ArgA: -int32(unix.EBUSY)}, dueFacts{attempt: 1}, -1},

		{
			"fast, first segment: the timer starts anew", causeFast,
			bpf.Record{Rto: ms(204), Pending: timerRetrans, Jiffies: 5000, TimerExpires: 5020, SegSeq: head, SndUna: head},
			dueFacts{attempt: 1, headNow: true},
			204,
		},
		{
			"fast, second segment in the same tick", causeFast,
			bpf.Record{Rto: ms(204), Pending: timerRetrans, Jiffies: 5000, TimerExpires: 5020, SegSeq: later, SndUna: head},
			dueFacts{attempt: 2, headNow: true},
			204,
		},
		{
			"loss recovery, a later segment: the timer runs on", causeLossRecovery,
			bpf.Record{Rto: ms(204), Pending: timerRetrans, Jiffies: 5000, TimerExpires: 5020, SegSeq: later, SndUna: head},
			dueFacts{attempt: 3},
			80,
		},
		{
			"the timer is overdue", causeLossRecovery,
			bpf.Record{Rto: ms(204), Pending: timerRetrans, Jiffies: 5000, TimerExpires: 4990, SegSeq: later, SndUna: head},
			dueFacts{attempt: 3},
			0,
		},
		{
			"the timer across a wrap of 32 bits", causeLossRecovery,
			bpf.Record{Rto: ms(204), Pending: timerRetrans, Jiffies: 1<<32 - 5, TimerExpires: 1<<32 + 20, SegSeq: later, SndUna: head},
			dueFacts{attempt: 3},
			100,
		},
		{
			"the reordering timer stands in its place", causeFast,
			bpf.Record{Rto: ms(204), Pending: timerReoTimeout, Jiffies: 5000, TimerExpires: 5002, SegSeq: head, SndUna: head},
			dueFacts{attempt: 1, headNow: true},
			-1,
		},
		{
			"in the reordering timer", causeFast,
			bpf.Record{Rto: ms(204), Pending: timerReoTimeout, Jiffies: 5000, TimerExpires: 5000, SegSeq: head, SndUna: head},
			dueFacts{attempt: 1, headNow: true},
			204,
		},
		{
			"the loss probe timer is no retransmission timer", causeFast,
			bpf.Record{Rto: ms(204), Pending: timerLossProbe, Jiffies: 5000, TimerExpires: 5002, SegSeq: later, SndUna: head},
			dueFacts{attempt: 1},
			-1,
		},
		{
			"failed: the timer is left alone", causeFast,
			bpf.Record{Rto: ms(204), Pending: timerRetrans, Jiffies: 5000, TimerExpires: 5020, SegSeq: head, SndUna: head, ArgA: -int32(unix.EBUSY)},
			dueFacts{attempt: 1, headNow: true},
			80,
		},
		{"SYN-ACK of a simultaneous open", causeSynAck, bpf.Record{Rto: ms(1000)}, dueFacts{attempt: 1}, -1},
		{"undecided", causeUndecided, bpf.Record{Rto: ms(204), Pending: timerRetrans}, dueFacts{attempt: 1}, -1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := nextDue(&tt.rec, tt.cause, tt.facts, hz, &defaults); got != tt.want {
				t.Errorf("due in %d ms, want %d", got, tt.want)
			}
		})
	}
}

// closed is a record of a move to CLOSE.
func closed(old int, change func(*bpf.Record)) bpf.Record {
	r := bpf.Record{
		Kind: bpf.KindState, ArgA: int32(old), ArgB: stateClose, State: uint8(old), MonoNs: 100e9, Flags: bpf.FlagFullSock,
		SndUna: 1000, SndNxt: 1000, WriteSeq: 1000, RcvNxt: 5000, CopiedSeq: 5000,
	}
	if change != nil {
		change(&r)
	}
	return r
}

func errored(errno unix.Errno) func(*bpf.Record) {
	return func(r *bpf.Record) { r.SkErr = uint32(errno) }
}

func flagged(flags uint8) func(*bpf.Record) {
	return func(r *bpf.Record) { r.Flags |= flags }
}

func shut(how uint8) func(*bpf.Record) {
	return func(r *bpf.Record) { r.Shutdown = how }
}

func both(fs ...func(*bpf.Record)) func(*bpf.Record) {
	return func(r *bpf.Record) {
		for _, f := range fs {
			f(r)
		}
	}
}

func TestAbortCause(t *testing.T) {
	unread := func(n uint32) func(*bpf.Record) { return func(r *bpf.Record) { r.CopiedSeq = r.RcvNxt - n } }
	outstanding := func(r *bpf.Record) { r.SndNxt += 3000; r.WriteSeq = r.SndNxt; r.Retransmits = 7 }
	unsent := func(r *bpf.Record) { r.WriteSeq += 3000; r.ProbesOut = 5 }
	probed := func(r *bpf.Record) { r.ProbesOut = 9; r.Flags |= bpf.FlagKeepOpen }
	userTimeout := func(ms uint32) func(*bpf.Record) { return func(r *bpf.Record) { r.UserTimeoutMs = ms } }
	lingers := func(jiffies uint64) func(*bpf.Record) {
		return func(r *bpf.Record) { r.Flags |= bpf.FlagLinger; r.LingerJiffies = jiffies }
	}
	user := flagged(bpf.FlagUser)
	orderly := ""

	for _, tt := range []struct {
		name      string
		old       int
		change    func(*bpf.Record)
		past      history
		by, cause string
		why       string
	}{
		{"listener closed", stateListen, user, history{}, "", orderly, ""},
		{"never connected", stateClose, user, history{}, "", orderly, ""},
		{"time-wait over", stateTimeWait, nil, history{}, "", orderly, ""},
		{"both sent FIN, acknowledged", stateLastAck, nil, history{}, "", orderly, ""},
		{"FIN received in FIN_WAIT2", stateFinWait2, nil, history{}, "", orderly, ""},
		{"crossing FINs", stateClosing, nil, history{}, "", orderly, ""},
		{"FIN and its acknowledgement at once", stateFinWait1, nil, history{}, "", orderly, ""},

		{"RST answers the SYN", stateSynSent, errored(unix.ECONNREFUSED), history{resetReceived: true}, byPeer, abortRefused, "RST answered the SYN"},
		{"RST", stateEstablished, errored(unix.ECONNRESET), history{resetReceived: true}, byPeer, abortReset, "RST was received"},
		{"RST after the peer's FIN", stateCloseWait, errored(unix.EPIPE), history{resetReceived: true}, byPeer, abortReset, "RST was received"},
		{"RST after FIN", stateFinWait1, nil, history{resetReceived: true}, byPeer, abortReset, "RST was received"},
		{"RST that the kernel does not show", stateEstablished, errored(unix.ECONNRESET), history{}, byUndecided, causeUndecided, "ECONNRESET"},
		{"data after close", stateFinWait2, errored(unix.ECONNRESET), history{dataAfterEnd: true}, byLocal, abortUnread, "data arrived after"},

		// tcp_write_err: sk_err is the soft error, else ETIMEDOUT.
		{"retries", stateEstablished, both(errored(unix.ETIMEDOUT), outstanding), history{}, byLocal, abortRetries, "7 retransmissions"},
		{"retries of a FIN", stateFinWait1, both(errored(unix.ETIMEDOUT), outstanding), history{}, byLocal, abortRetries, "retransmission timer"},
		{"user timeout", stateEstablished, both(errored(unix.ETIMEDOUT), outstanding, userTimeout(20_000)), history{}, byLocal, abortUserTimeout, "user_timeout_ms 20000"},
		{"probes of a closed window", stateEstablished, both(errored(unix.ETIMEDOUT), unsent), history{}, byLocal, abortRetries, "zero-window probe timer, 5 probes"},
		{"closed window with user timeout", stateEstablished, both(errored(unix.ETIMEDOUT), unsent, userTimeout(9000)), history{}, byLocal, abortUserTimeout, "zero-window probe timer, user_timeout_ms 9000"},
		{"closed window before the user timeout", stateEstablished, both(errored(unix.ETIMEDOUT), unsent, userTimeout(60_000)), history{probingMs: 3000}, byLocal, abortRetries, "user_timeout_ms 60000 not reached after 3000 ms"},
		{"closed window at the user timeout", stateEstablished, both(errored(unix.ETIMEDOUT), unsent, userTimeout(9000)), history{probingMs: 9000}, byLocal, abortUserTimeout, "user_timeout_ms 9000"},
		{"SYN retries", stateSynSent, both(errored(unix.ETIMEDOUT), outstanding), history{}, byLocal, abortRetries, "SYN timer after 7"},
		{"SYN retries of a simultaneous open", stateSynRecv, both(errored(unix.ETIMEDOUT), outstanding), history{}, byLocal, abortRetries, "SYN timer"},
		{"SYN with user timeout", stateSynSent, both(errored(unix.ETIMEDOUT), outstanding, userTimeout(2500)), history{connectNS: 97.5e9}, byLocal, abortUserTimeout, "user_timeout_ms 2500"},
		{"SYN with user timeout, the kernel's milliseconds", stateSynSent, both(errored(unix.ETIMEDOUT), outstanding, userTimeout(2500)), history{connectNS: 97.501e9}, byLocal, abortUserTimeout, ""},
		{"SYN retries before the user timeout", stateSynSent, both(errored(unix.ETIMEDOUT), outstanding, userTimeout(60_000)), history{connectNS: 93e9}, byLocal, abortRetries, "user_timeout_ms 60000 not reached after 7000 ms"},
		{"SYN with user timeout, born before the trace", stateSynSent, both(errored(unix.ETIMEDOUT), outstanding, userTimeout(2500)), history{}, byLocal, causeUndecided, "not known when"},
		{"keepalive, reason of the RST", stateEstablished, both(errored(unix.ETIMEDOUT), probed), history{sentReset: true, resetSent: "TCP_KEEPALIVE_TIMEOUT"}, byLocal, abortKeepalive, "RST with reason TCP_KEEPALIVE_TIMEOUT was sent; 9 probes"},
		{"keepalive with user timeout", stateEstablished, both(errored(unix.ETIMEDOUT), probed, userTimeout(20_000)), history{sentReset: true, resetSent: "TCP_KEEPALIVE_TIMEOUT"}, byLocal, abortKeepalive, "user_timeout_ms 20000"},
		{"keepalive without reasons (before 6.10)", stateEstablished, both(errored(unix.ETIMEDOUT), probed), history{sentReset: true}, byLocal, abortKeepalive, "nothing was outstanding"},
		{"ETIMEDOUT with nothing to wait for", stateEstablished, errored(unix.ETIMEDOUT), history{}, byLocal, causeUndecided, "nothing outstanding"},
		{"unanswered probes, but keepalive is off", stateEstablished, both(errored(unix.ETIMEDOUT), func(r *bpf.Record) { r.ProbesOut = 2 }), history{}, byLocal, causeUndecided, "nothing outstanding"},

		{"host unreachable", stateEstablished, both(errored(unix.EHOSTUNREACH), outstanding), history{}, byLocal, abortUnreachable, "EHOSTUNREACH"},
		{"net unreachable", stateSynSent, errored(unix.ENETUNREACH), history{}, byLocal, abortUnreachable, "ENETUNREACH"},
		{"host down", stateSynSent, errored(unix.EHOSTDOWN), history{}, byLocal, abortUnreachable, "EHOSTDOWN"},
		{"network unknown", stateSynSent, errored(unix.ENONET), history{}, byLocal, abortUnreachable, "ENONET"},
		{"ICMP parameter problem", stateSynSent, errored(unix.EPROTO), history{}, byLocal, abortUnreachable, "EPROTO"},
		{"ICMP protocol unreachable", stateSynSent, errored(unix.ENOPROTOOPT), history{}, byLocal, abortUnreachable, "ENOPROTOOPT"},
		{"ICMPv6 prohibited", stateSynSent, errored(unix.EACCES), history{}, byLocal, abortUnreachable, "EACCES"},
		{"ICMP source route failed", stateSynSent, errored(unix.EOPNOTSUPP), history{}, byLocal, abortUnreachable, "EOPNOTSUPP"},
		{"ICMP port unreachable", stateSynSent, errored(unix.ECONNREFUSED), history{}, byPeer, abortRefused, "ICMP"},
		{"ss --kill", stateEstablished, errored(unix.ECONNABORTED), history{sentReset: true, resetSent: "TCP_STATE"}, byLocal, abortDestroyed, "SOCK_DESTROY"},
		{"no memory", stateEstablished, errored(unix.ENOMEM), history{}, byLocal, abortMemory, "ENOMEM"},
		{"an errno nobody expects", stateEstablished, errored(unix.EXDEV), history{}, byUndecided, causeUndecided, "EXDEV fits no known path"},

		{"closed while connecting", stateSynSent, both(user, outstanding), history{}, byLocal, abortCancelled, "while it was connecting"},
		{"no port to connect from", stateSynSent, user, history{}, byLocal, abortCancelled, "before its SYN was sent"},
		{"closed with data unread", stateEstablished, both(user, unread(42)), history{}, byLocal, abortUnread, "42 bytes unread"},
		{"unread wins over linger", stateEstablished, both(user, unread(42), lingers(0)), history{}, byLocal, abortUnread, "42 bytes unread"},
		{"closed with data and FIN unread", stateCloseWait, both(user, unread(43)), history{}, byLocal, abortUnread, "42 bytes unread"},
		{"closed with only the FIN unread, linger", stateCloseWait, both(user, unread(1), lingers(0)), history{}, byLocal, abortLinger, "SO_LINGER"},
		{"linger zero", stateEstablished, both(user, lingers(0)), history{}, byLocal, abortLinger, "time of 0"},
		{"linger with a time", stateEstablished, both(user, lingers(250)), history{}, byUndecided, causeUndecided, "without SO_LINGER"},
		{"a process, without a reason", stateEstablished, user, history{}, byUndecided, causeUndecided, "without FIN"},
		{"subflow closed at once", stateEstablished, user, history{disconnected: true, multipath: true}, byLocal, causeUndecided, "Multipath"},
		{"subflow closed with linger zero", stateEstablished, both(user, lingers(0)), history{disconnected: true, multipath: true}, byLocal, abortLinger, "Multipath"},
		{"disconnected", stateEstablished, user, history{disconnected: true}, byLocal, abortDisconnect, "AF_UNSPEC"},
		{"disconnected with data unread", stateEstablished, both(user, unread(42)), history{disconnected: true}, byLocal, abortDisconnect, "AF_UNSPEC"},
		{"disconnected with linger zero", stateCloseWait, both(user, lingers(0)), history{disconnected: true}, byLocal, abortDisconnect, "AF_UNSPEC"},
		{"orphan, no memory", stateFinWait1, nil, history{sentReset: true, resetSent: "TCP_ABORT_ON_MEMORY"}, byLocal, abortMemory, "TCP_ABORT_ON_MEMORY"},
		{"handshake not completed", stateSynRecv, nil, history{}, byLocal, causeUndecided, "handshake"},
		{"listener closed before accept", stateEstablished, nil, history{unaccepted: true}, byLocal, abortListener, "listener"},
		{"listener closed before accept, the peer had sent FIN", stateCloseWait, nil, history{unaccepted: true}, byLocal, abortListener, "listener"},
		{"nobody and nothing", stateEstablished, nil, history{}, byUndecided, causeUndecided, "no process"},

		// After FIN was sent the lock of a process says nothing; a RST does.
		{"reads on after FIN, FIN processed under its lock", stateFinWait2, both(user, unread(1001)), history{}, "", orderly, ""},
		{"the same with linger zero", stateFinWait2, both(user, lingers(0)), history{}, "", orderly, ""},
		{"both FINs, data unread, last ACK under its lock", stateLastAck, both(user, unread(10)), history{}, "", orderly, ""},
		{"half-closed, then closed with data unread", stateFinWait2, both(user, unread(10)), history{sentReset: true, resetSent: "TCP_ABORT_ON_CLOSE"}, byLocal, abortUnread, "10 bytes unread"},
		{"half-closed, then closed with data unread (before 6.10)", stateFinWait1, both(user, unread(10)), history{sentReset: true}, byLocal, abortUnread, "10 bytes unread"},
		{"half-closed, then linger zero", stateFinWait2, both(user, lingers(0)), history{sentReset: true, resetSent: "TCP_STATE"}, byLocal, abortLinger, "SO_LINGER"},
		{"half-closed, then disconnected with data unread", stateFinWait2, both(user, unread(10)), history{sentReset: true, resetSent: "TCP_STATE"}, byUndecided, causeUndecided, "without FIN"},
		{"half-closed, then disconnected", stateFinWait2, both(user, unread(10)), history{sentReset: true, resetSent: "TCP_STATE", disconnected: true}, byLocal, abortDisconnect, "AF_UNSPEC"},
		{"half-closed, not read, FIN processed under its lock", stateFinWait2, both(user, unread(10)), history{disconnected: true}, "", orderly, ""},
		{"negative TCP_LINGER2", stateFinWait2, user, history{sentReset: true, resetSent: "TCP_ABORT_ON_LINGER"}, byLocal, abortLinger, "TCP_LINGER2"},
		{"orphan, no memory (before 6.10)", stateFinWait1, flagged(bpf.FlagDead), history{sentReset: true}, byLocal, abortMemory, "too many"},
		{"orphan, its FIN acknowledged (before 6.10)", stateFinWait2, flagged(bpf.FlagDead), history{sentReset: true}, byLocal, causeUndecided, "after its FIN"},
		{"no memory at close", stateFinWait1, user, history{sentReset: true, resetSent: "TCP_ABORT_ON_MEMORY"}, byLocal, abortMemory, "TCP_ABORT_ON_MEMORY"},
		{"a RST by the kernel itself after FIN", stateFinWait2, nil, history{sentReset: true, resetSent: "TCP_STATE"}, byLocal, causeUndecided, "reason TCP_STATE after its FIN"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := closed(tt.old, tt.change)
			by, cause, why, ok := abortCause(&r, &tt.past)
			if ok != (tt.cause != orderly) {
				t.Fatalf("abort: %v (%s %s: %s), want %v", ok, by, cause, why, !ok)
			}
			if by != tt.by || cause != tt.cause {
				t.Errorf("%s by %s (%s), want %s by %s", cause, by, why, tt.cause, tt.by)
			}
			if !strings.Contains(why, tt.why) {
				t.Errorf("why %q does not say %q", why, tt.why)
			}
			if ok && why == "" {
				t.Error("an abort without a reason")
			}
		})
	}
}

// TestEnds: what the record of a move to CLOSE says beside the snapshot.
func TestEnds(t *testing.T) {
	file := func(r *bpf.Record) { r.SockInode = 7 }
	user := flagged(bpf.FlagUser)
	for _, tt := range []struct {
		name   string
		old    int
		change func(*bpf.Record)
		want   history
	}{
		{"closed", stateEstablished, both(user, file, shut(3)), history{}},
		{"disconnected", stateEstablished, both(user, file), history{disconnected: true}},
		{"disconnected, receiving shut down", stateEstablished, both(user, file, shut(1)), history{disconnected: true}},
		{"disconnected after the peer's FIN", stateCloseWait, both(user, file, shut(1)), history{disconnected: true}},
		{"half-closed, then disconnected", stateFinWait1, both(user, file, shut(2)), history{disconnected: true}},
		{"half-closed, then closed", stateFinWait2, both(user, file, shut(3)), history{}},
		{"connecting", stateSynSent, both(user, file), history{}},
		{"by a timer", stateEstablished, file, history{}},
		{"waiting to be accepted", stateEstablished, nil, history{unaccepted: true}},
		{"an orphan", stateEstablished, flagged(bpf.FlagDead), history{}},
		{"probing", stateEstablished, both(file, func(r *bpf.Record) { r.Jiffies, r.ProbesTstamp = 1<<32+5, 1<<32-245 }), history{probingMs: 1000}},
	} {
		r := closed(tt.old, tt.change)
		got := history{disconnected: true, unaccepted: true, probingMs: 9}
		if got.ends(&r, 250); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

func TestHangsOnReset(t *testing.T) {
	for old := range stateNames {
		after := old == stateFinWait1 || old == stateFinWait2 || old == stateClosing || old == stateLastAck
		r := closed(old, flagged(bpf.FlagUser))
		if got := hangsOnReset(&r, &history{}); got != after {
			t.Errorf("%s, in a process: %v", stateName(old), got)
		}
		r = closed(old, nil)
		if hangsOnReset(&r, &history{}) {
			t.Errorf("%s, not in a process: waits", stateName(old))
		}
		r = closed(old, both(flagged(bpf.FlagUser), errored(unix.ETIMEDOUT)))
		if hangsOnReset(&r, &history{}) {
			t.Errorf("%s, with an error: waits", stateName(old))
		}
		r = closed(old, flagged(bpf.FlagUser))
		if hangsOnReset(&r, &history{resetReceived: true}) || hangsOnReset(&r, &history{dataAfterEnd: true}) {
			t.Errorf("%s, decided before: waits", stateName(old))
		}
	}
}
