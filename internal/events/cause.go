package events

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/bpf"
)

// The causes of a retransmission.
const (
	causeSyn          = "syn"
	causeSynAck       = "synack"
	causeRTO          = "rto"
	causeTLP          = "tlp"
	causeFast         = "fast"
	causeLossRecovery = "loss-recovery"
	causeMTU          = "mtu"
	causeUndecided    = "undecided"
)

// retransmitCause decides why a segment was sent again, from what the socket
// looked like when it was.
//
// The retransmission timer's handler clears icsk_pending before it sends, and
// enters Loss; the loss probe's handler runs with its own timer still noted as
// pending; everything sent on an acknowledgement finds another timer armed.
//
// Loss is also where tcp_simple_retransmit puts a socket whose segments are too
// large for their path; noTimeout says that none of its timeouts did.
func retransmitCause(r *bpf.Record, noTimeout bool) (cause, why string) {
	switch {
	case r.SegFlags&flagSYN != 0 && r.State == stateSynSent:
		return causeSyn, "the segment is a SYN"
	case r.SegFlags&flagSYN != 0:
		return causeSynAck, "the segment is a SYN-ACK"
	case r.Pending == timerNone && r.CaState == caLoss:
		return causeRTO, "in the retransmission timer: icsk_pending is none, ca_state Loss"
	case r.Pending == timerLossProbe && r.CaState < caRecovery:
		return causeTLP, "in the loss probe timer: icsk_pending is loss-probe, ca_state before Recovery"
	case r.CaState == caRecovery:
		return causeFast, "on an acknowledgement or the reordering timer: ca_state Recovery"
	case r.CaState == caLoss && r.Pending == timerRetrans && alone(r):
		return causeRTO, "in the retransmission timer's handler, called because an ICMP error shortened its time (RFC 6069): ca_state Loss, nothing in flight, a window of one segment"
	case r.CaState == caLoss && noTimeout:
		return causeMTU, "segments too large for the path were marked lost: ca_state Loss without a timeout, a timer pending"
	case r.CaState == caLoss:
		return causeLossRecovery, "on an acknowledgement after a timeout: ca_state Loss, a timer pending"
	}
	return causeUndecided, fmt.Sprintf("ca_state %s with timer %s fits no known path", caName(r.CaState), timerName(r.Pending))
}

// alone reports whether the first segment is sent again the way only the
// retransmission timer's handler does it: all that is out is lost, and an
// acknowledgement that moved snd_una would have cleared icsk_retransmits.
func alone(r *bpf.Record) bool {
	return r.Retransmits > 0 && r.SegSeq == r.SndUna && r.RetransOut == 0 && r.SndCwnd == 1
}

// synAckWhy says why a connection request was answered again.
func synAckWhy(duplicateSYN bool) string {
	if duplicateSYN {
		return "the peer's SYN came again: the request's timer is armed"
	}
	return "in the request's timer"
}

// probeInterval is what the kernel waits after a retransmission that could not
// even be handed down (TCP_RESOURCE_PROBE_INTERVAL).
const probeIntervalMs = 500

// dueFacts is what the next retransmission depends on beside the record.
type dueFacts struct {
	attempt uint32 // number in its run
	headNow bool   // the first unacknowledged segment is sent again in the same tick
}

// nextDue is when the retransmission timer will fire if nothing is
// acknowledged, in milliseconds from the record; -1 if it cannot be told.
func nextDue(r *bpf.Record, cause string, f dueFacts, hz uint32, d *Defaults) int64 {
	tickMs := 1000 / float64(hz)
	rto := int64(float64(r.Rto) * tickMs)
	switch cause {
	case causeRTO, causeSyn:
		if r.ArgA > 0 {
			return probeIntervalMs
		}
		// The handler doubles rto after it has sent, except for the first
		// SYNs of a connection.
		next := rto
		if cause == causeRTO || f.attempt > d.SynLinearTimeouts {
			next = min(rto*2, d.RTOMaxMs)
		}
		if r.UserTimeoutMs > 0 {
			next = max(min(next, int64(r.UserTimeoutMs)-sinceFirst(r)), int64(tickMs))
		}
		return next
	case causeTLP:
		// A probe that could not be sent leaves the timer to the segment it was for.
		if r.ArgA == 0 {
			return rto
		}
	case causeFast, causeLossRecovery, causeMTU:
		// The timer starts anew with the first segment, once all are sent,
		// unless it stands for the reordering timer.
		left := int64(float64(int64(r.TimerExpires-r.Jiffies)) * tickMs)
		switch {
		case r.ArgA == 0 && f.headNow && (r.Pending != timerReoTimeout || left <= 0):
			return rto
		case r.Pending == timerRetrans:
			return max(0, left)
		}
	}
	return -1
}

// sinceFirst is what TCP_USER_TIMEOUT counts, in milliseconds: from the first
// retransmission of a loss episode, or from the SYN. The stamp is set after
// the hook of the first.
func sinceFirst(r *bpf.Record) int64 {
	if r.RetransStamp == 0 {
		return 0
	}
	return int64(int32(uint32(r.MonoNs/1e6) - r.RetransStamp))
}

// The causes of an abort.
const (
	abortReset       = "reset-received"
	abortRetries     = "retries-exhausted"
	abortUserTimeout = "user-timeout"
	abortKeepalive   = "keepalive"
	abortRefused     = "refused"
	abortUnreachable = "unreachable"
	abortUnread      = "close-with-unread-data"
	abortLinger      = "linger-zero"
	abortMemory      = "out-of-memory"
	abortDestroyed   = "destroyed"
	abortDisconnect  = "disconnected"
	abortListener    = "listener-closed"
	abortCancelled   = "connect-cancelled"
)

// The ends that abort.
const (
	byLocal     = "local"
	byPeer      = "peer"
	byUndecided = "undecided"
)

// history is what the tracker knows of a socket when it closes.
type history struct {
	resetReceived bool   // a RST was accepted
	dataAfterEnd  bool   // data arrived for a socket no process had open
	resetSent     string // reason of a RST the socket sent before it closed, or ""
	sentReset     bool
	connectNS     uint64 // when it began to connect; 0: not known

	// Of the record of its move to CLOSE.
	disconnected bool   // a process ended it, and had not closed it
	unaccepted   bool   // no process ever had it open
	multipath    bool   // a subflow of Multipath TCP
	probingMs    uint64 // since the first zero-window probe; 0: not known
}

// ends takes what decides from the record of a move to CLOSE.
func (h *history) ends(r *bpf.Record, hz uint32) {
	old, user := int(r.ArgA), r.Flags&bpf.FlagUser != 0
	// close shuts both directions down before it ends anything.
	switch {
	case old == stateEstablished || old == stateCloseWait:
		h.disconnected = user && r.Shutdown&shutdownSend == 0
	case old == stateFinWait1 || old == stateFinWait2:
		h.disconnected = user && r.Shutdown&shutdownReceive == 0
	default:
		h.disconnected = false
	}
	h.multipath = r.Flags&bpf.FlagMPTCP != 0
	h.unaccepted = !user && r.SockInode == 0 && r.Flags&bpf.FlagDead == 0
	h.probingMs = 0
	if r.ProbesTstamp != 0 {
		h.probingMs = uint64(uint32(r.Jiffies)-r.ProbesTstamp) * 1000 / uint64(hz)
	}
}

// sk->sk_shutdown.
const (
	shutdownReceive = 1
	shutdownSend    = 2
)

// hangsOnReset reports whether a move to CLOSE is an abort only if the socket
// sends a RST next. Once FIN was sent, a process may hold the socket's lock
// because it closes it, or because it reads, and the peer's FIN that came
// meanwhile is processed as it lets go.
func hangsOnReset(r *bpf.Record, h *history) bool {
	return r.Flags&bpf.FlagUser != 0 && r.SkErr == 0 && finSent(int(r.ArgA)) && !h.resetReceived && !h.dataAfterEnd
}

func finSent(state int) bool {
	return state == stateFinWait1 || state == stateFinWait2 || state == stateClosing || state == stateLastAck
}

// abortCause decides why a socket that moved to CLOSE ended, from the record
// of that change. ok is false if it ended in an orderly way. Where
// hangsOnReset, it is asked when the RST was sent.
func abortCause(r *bpf.Record, h *history) (by, cause, why string, ok bool) {
	old := int(r.ArgA)
	user := r.Flags&bpf.FlagUser != 0
	unread := r.RcvNxt - r.CopiedSeq
	if unread > 0 && (old == stateCloseWait || old == stateLastAck || old == stateClosing) {
		unread-- // the FIN
	}
	switch {
	case old == stateListen || old == stateClose || old == stateTimeWait:
		return "", "", "", false
	case h.resetReceived && old == stateSynSent:
		return byPeer, abortRefused, "a RST answered the SYN", true
	case h.resetReceived:
		return byPeer, abortReset, "a RST was received and accepted", true
	case h.dataAfterEnd:
		return byLocal, abortUnread, "data arrived after the socket was closed", true
	}

	switch unix.Errno(r.SkErr) {
	case unix.ETIMEDOUT:
		return timeoutCause(r, h, old)
	case unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EHOSTDOWN, unix.ENONET, unix.EPROTO, unix.ENOPROTOOPT, unix.EACCES, unix.EOPNOTSUPP:
		return byLocal, abortUnreachable, "sk_err " + errnoName(r.SkErr) + " from the network, no RST received", true
	case unix.ECONNREFUSED:
		return byPeer, abortRefused, "sk_err ECONNREFUSED without a RST: ICMP", true
	case unix.ECONNABORTED:
		return byLocal, abortDestroyed, "sk_err ECONNABORTED: the socket was destroyed through SOCK_DESTROY", true
	case unix.ENOMEM:
		return byLocal, abortMemory, "sk_err ENOMEM", true
	case 0:
	default:
		return byUndecided, causeUndecided, "sk_err " + errnoName(r.SkErr) + " fits no known path", true
	}

	switch {
	case old == stateSynSent && user && r.SndNxt == r.SndUna:
		return byLocal, abortCancelled, "connect failed before its SYN was sent", true
	case old == stateSynSent && user:
		return byLocal, abortCancelled, "a process closed the socket while it was connecting", true
	case finSent(old) && !h.sentReset:
		return "", "", "", false
	case user && h.multipath && !finSent(old):
		// The connection's own queue and state are not the subflow's.
		if r.Flags&bpf.FlagLinger != 0 && r.LingerJiffies == 0 {
			return byLocal, abortLinger, "a process closed the Multipath TCP connection with SO_LINGER on and a time of 0", true
		}
		return byLocal, causeUndecided, "a process ended the Multipath TCP connection at once: by closing it with data unread, or by disconnecting it", true
	case old == stateFinWait1 && r.Flags&bpf.FlagDead != 0 && h.resetSent == "":
		return byLocal, abortMemory, "the socket sent a RST, without an error, when its process had closed it: out of memory, or too many such sockets", true
	case user && h.disconnected:
		return byLocal, abortDisconnect, "a process ended the connection and kept the socket: connect with the family AF_UNSPEC", true
	case user && unread > 0 && !(finSent(old) && h.resetSent == "TCP_STATE"):
		return byLocal, abortUnread, fmt.Sprintf("a process closed the socket with %d bytes unread", unread), true
	case user && r.Flags&bpf.FlagLinger != 0 && r.LingerJiffies == 0:
		return byLocal, abortLinger, "a process closed the socket with SO_LINGER on and a time of 0", true
	case h.sentReset && h.resetSent == "TCP_ABORT_ON_MEMORY":
		return byLocal, abortMemory, "the socket sent a RST with reason TCP_ABORT_ON_MEMORY", true
	case finSent(old) && h.resetSent == "TCP_ABORT_ON_LINGER":
		return byLocal, abortLinger, "the socket sent a RST with reason TCP_ABORT_ON_LINGER: TCP_LINGER2 is negative", true
	case finSent(old) && !user:
		return byLocal, causeUndecided, "the socket sent a RST with reason " + h.resetSent + " after its FIN", true
	case user:
		return byUndecided, causeUndecided, "a process ended the connection without FIN, with nothing unread and without SO_LINGER, as in TCP_REPAIR", true
	case h.unaccepted && (old == stateEstablished || old == stateCloseWait):
		return byLocal, abortListener, "the connection waited to be accepted, and its listener was closed", true
	case old == stateSynRecv:
		return byLocal, causeUndecided, "the handshake was not completed", true
	}
	return byUndecided, causeUndecided, "no error, no RST and no process in the socket", true
}

func timeoutCause(r *bpf.Record, h *history, old int) (by, cause, why string, ok bool) {
	outstanding := r.SndNxt != r.SndUna
	unsent := r.WriteSeq != r.SndNxt
	switch {
	case h.sentReset && h.resetSent == "TCP_KEEPALIVE_TIMEOUT":
		return byLocal, abortKeepalive, keepaliveWhy(r, "a RST with reason TCP_KEEPALIVE_TIMEOUT was sent"), true
	case !outstanding && !unsent && r.ProbesOut > 0 && r.Flags&bpf.FlagKeepOpen != 0:
		return byLocal, abortKeepalive, keepaliveWhy(r, "nothing was outstanding"), true
	case old == stateSynSent || old == stateSynRecv:
		// The SYN timer obeys both limits.
		if r.UserTimeoutMs > 0 {
			why := fmt.Sprintf("sk_err ETIMEDOUT in the SYN timer after %d retransmissions, user_timeout_ms %d", r.Retransmits, r.UserTimeoutMs)
			switch elapsed := (r.MonoNs - h.connectNS) / 1e6; {
			case h.connectNS == 0:
				return byLocal, causeUndecided, why + ": it is not known when the first was sent", true
			case elapsed+2 < uint64(r.UserTimeoutMs): // the kernel counts whole milliseconds
				return byLocal, abortRetries, fmt.Sprintf("%s not reached after %d ms", why, elapsed), true
			}
			return byLocal, abortUserTimeout, why, true
		}
		return byLocal, abortRetries, fmt.Sprintf("sk_err ETIMEDOUT in the SYN timer after %d retransmissions", r.Retransmits), true
	case !outstanding && unsent && r.UserTimeoutMs > 0 && h.probingMs > 0 && h.probingMs < uint64(r.UserTimeoutMs):
		return byLocal, abortRetries, fmt.Sprintf("sk_err ETIMEDOUT in the zero-window probe timer, %d probes unanswered, user_timeout_ms %d not reached after %d ms", r.ProbesOut, r.UserTimeoutMs, h.probingMs), true
	case !outstanding && unsent && r.UserTimeoutMs > 0:
		return byLocal, abortUserTimeout, fmt.Sprintf("sk_err ETIMEDOUT in the zero-window probe timer, user_timeout_ms %d, %d probes unanswered", r.UserTimeoutMs, r.ProbesOut), true
	case !outstanding && unsent:
		return byLocal, abortRetries, fmt.Sprintf("sk_err ETIMEDOUT in the zero-window probe timer, %d probes unanswered", r.ProbesOut), true
	case outstanding && r.UserTimeoutMs > 0:
		// With a user timeout the kernel does not count retries at all.
		return byLocal, abortUserTimeout, fmt.Sprintf("sk_err ETIMEDOUT in the retransmission timer, user_timeout_ms %d, %d retransmissions", r.UserTimeoutMs, r.Retransmits), true
	case outstanding:
		return byLocal, abortRetries, fmt.Sprintf("sk_err ETIMEDOUT in the retransmission timer, %d retransmissions", r.Retransmits), true
	}
	return byLocal, causeUndecided, "sk_err ETIMEDOUT with nothing outstanding and no probe unanswered", true
}

func keepaliveWhy(r *bpf.Record, fact string) string {
	if r.UserTimeoutMs > 0 {
		return fmt.Sprintf("%s; %d probes unanswered, user_timeout_ms %d", fact, r.ProbesOut, r.UserTimeoutMs)
	}
	return fmt.Sprintf("%s; %d probes unanswered", fact, r.ProbesOut)
}
