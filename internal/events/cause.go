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
	causeUndecided    = "undecided"
)

// retransmitCause decides why a segment was sent again, from what the socket
// looked like when it was.
//
// The retransmission timer's handler clears icsk_pending before it sends, and
// enters Loss; the loss probe's handler runs with its own timer still noted as
// pending; everything sent on an acknowledgement finds another timer armed.
func retransmitCause(r *bpf.Record) (cause, why string) {
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
	case r.CaState == caLoss:
		return causeLossRecovery, "on an acknowledgement after a timeout: ca_state Loss, a timer pending"
	}
	return causeUndecided, fmt.Sprintf("ca_state %s with timer %s fits no known path", caName(r.CaState), timerName(r.Pending))
}

// probeInterval is what the kernel waits after a retransmission that could not
// even be handed down (TCP_RESOURCE_PROBE_INTERVAL).
const probeIntervalMs = 500

// nextDue is when the retransmission timer will fire if nothing is
// acknowledged, in milliseconds from the record; -1 if it cannot be told.
// elapsedMs is the time since the first retransmission of the run.
func nextDue(r *bpf.Record, cause string, attempt uint32, elapsedMs int64, hz uint32, d *Defaults) int64 {
	tickMs := 1000 / float64(hz)
	rto := int64(float64(r.Rto) * tickMs)
	switch cause {
	case causeRTO, causeSyn:
		if r.ArgA > 0 {
			return min(rto, probeIntervalMs)
		}
		// The handler doubles rto after it has sent, except for the first
		// SYNs of a connection.
		next := rto
		if cause == causeRTO || attempt > d.SynLinearTimeouts {
			next = min(rto*2, d.RTOMaxMs)
		}
		if r.UserTimeoutMs > 0 {
			left := int64(r.UserTimeoutMs) - elapsedMs
			next = max(min(next, left), int64(tickMs))
		}
		return next
	case causeTLP:
		return rto
	case causeFast, causeLossRecovery:
		if r.SegSeq == r.SndUna {
			return rto
		}
		if r.Pending != timerNone {
			return max(0, int64(float64(int64(r.TimerExpires-r.Jiffies))*tickMs))
		}
	}
	return -1
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
	abortNamespace   = "namespace-gone"
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
}

// abortCause decides why a socket that moved to CLOSE ended, from the record
// of that change. ok is false if it ended in an orderly way.
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
	case old == stateSynSent && user:
		return byLocal, abortCancelled, "a process closed the socket while it was connecting", true
	case user && unread > 0:
		return byLocal, abortUnread, fmt.Sprintf("a process closed the socket with %d bytes unread", unread), true
	case user && r.Flags&bpf.FlagLinger != 0 && r.LingerJiffies == 0 && old != stateFinWait1 && old != stateFinWait2 && old != stateClosing && old != stateLastAck:
		return byLocal, abortLinger, "a process closed the socket with SO_LINGER on and a time of 0", true
	case h.sentReset && h.resetSent == "TCP_ABORT_ON_MEMORY":
		return byLocal, abortMemory, "the socket sent a RST with reason TCP_ABORT_ON_MEMORY", true
	case old == stateFinWait1 || old == stateFinWait2 || old == stateClosing || old == stateLastAck:
		return "", "", "", false
	case user:
		return byUndecided, causeUndecided, "a process ended the connection without FIN, with nothing unread and without SO_LINGER: disconnected by connect(AF_UNSPEC)", true
	case old == stateSynRecv:
		return byLocal, causeUndecided, "the handshake was not completed", true
	}
	return byUndecided, causeUndecided, "no error, no RST and no process in the socket: its listener was closed before it was accepted", true
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
		if r.UserTimeoutMs > 0 {
			return byLocal, abortUserTimeout, fmt.Sprintf("sk_err ETIMEDOUT in the SYN timer after %d retransmissions, user_timeout_ms %d", r.Retransmits, r.UserTimeoutMs), true
		}
		return byLocal, abortRetries, fmt.Sprintf("sk_err ETIMEDOUT in the SYN timer after %d retransmissions", r.Retransmits), true
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
