package report

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sockwatch/sockwatch/internal/events"
)

// span prints a duration in nanoseconds with three digits or so.
func span(ns uint64) string {
	switch {
	case ns < 1e3:
		return fmt.Sprintf("%d ns", ns)
	case ns < 1e6:
		return fmt.Sprintf("%d µs", ns/1e3)
	case ns < 1e9:
		return fmt.Sprintf("%d ms", ns/1e6)
	case ns < 1e10:
		return trim(fmt.Sprintf("%.2f", float64(ns)/1e9)) + " s"
	case ns < 1e12:
		return trim(fmt.Sprintf("%.1f", float64(ns)/1e9)) + " s"
	}
	return fmt.Sprintf("%d s", ns/1e9)
}

func trim(s string) string {
	if strings.Contains(s, ".") {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	return s
}

func spanUs(us uint64) string { return span(min(us, 1<<53) * 1e3) }
func spanMs(ms uint64) string { return span(min(ms, 1<<43) * 1e6) }

// at prints a time relative to zero.
func at(ns, zero uint64) string {
	sign, d := "+", ns-zero
	if ns < zero {
		sign, d = "-", zero-ns
	}
	ms := d / 1e6
	if ms == 0 {
		sign = "+" // less than what is printed apart
	}
	return fmt.Sprintf("%s%d.%03d s", sign, ms/1000, ms%1000)
}

func count(n uint64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

func byteCount(n uint32) string { return count(uint64(n), "byte", "bytes") }

func ordinal(n uint32) string {
	suffix := "th"
	if n%100 < 11 || n%100 > 13 {
		switch n % 10 {
		case 1:
			suffix = "st"
		case 2:
			suffix = "nd"
		case 3:
			suffix = "rd"
		}
	}
	return fmt.Sprintf("%d%s", n, suffix)
}

// tally prints a map, largest first.
func tally(m map[string]int) string {
	keys := slices.SortedFunc(maps.Keys(m), func(a, b string) int {
		if m[a] != m[b] {
			return m[b] - m[a]
		}
		return strings.Compare(a, b)
	})
	for i, k := range keys {
		keys[i] = fmt.Sprintf("%d %s", m[k], k)
	}
	return strings.Join(keys, ", ")
}

// causes prints what caused retransmissions: the name alone if it is one.
func causes(m map[string]int) string {
	if len(m) == 1 {
		for k := range m {
			return k
		}
	}
	return tally(m)
}

// finSent reports whether the last byte of what was sent is a FIN.
func finSent(t *events.TCP, state string) bool {
	switch state {
	case "FIN_WAIT1", "CLOSING", "LAST_ACK":
		return t.SndNxt == t.WriteSeq
	}
	return false
}

// amount says what n sequence numbers from snd_una are: bytes, and the SYN or
// FIN among them.
func amount(t *events.TCP, state string) string {
	n := t.UnackedBytes
	if state == "SYN_SENT" || state == "SYN_RECV" {
		if n == 1 {
			return "the SYN"
		}
		return "the SYN and " + byteCount(n-1)
	}
	return withFIN(n, finSent(t, state))
}

// withFIN names n sequence numbers, the last of which may be a FIN.
func withFIN(n uint32, fin bool) string {
	switch {
	case !fin || n == 0:
		return byteCount(n)
	case n == 1:
		return "the FIN"
	}
	return byteCount(n-1) + " and the FIN"
}

// unsent says what waits to be sent: once a FIN does, it is the last.
func unsent(t *events.TCP, state string) string {
	switch state {
	case "FIN_WAIT1", "CLOSING", "LAST_ACK":
		return withFIN(t.UnsentBytes, true)
	}
	return byteCount(t.UnsentBytes)
}

// unread says what was received and not read: the kernel counts the peer's FIN
// until the process has read up to it.
func unread(t *events.TCP, state string) string {
	switch state {
	case "CLOSE_WAIT", "CLOSING", "LAST_ACK":
		return withFIN(t.UnreadBytes, true)
	}
	return byteCount(t.UnreadBytes)
}

// acked says what an acknowledgement covers that was sent before l.
func acked(l *line, n uint32) string {
	return withFIN(n, l.TCP != nil && finSent(l.TCP, l.TCP.State) && l.Recovered.Ack == l.TCP.SndNxt)
}

// plural reports whether amount is more than one thing.
func plural(s string) bool {
	return strings.Contains(s, " and ") || (!strings.HasPrefix(s, "the ") && !strings.HasPrefix(s, "1 "))
}

func wasOrWere(s string) string {
	if plural(s) {
		return "were"
	}
	return "was"
}

// stuck reports whether what an end has to send did not leave its host: nothing
// is in flight, though the peer's window has room. A window may be too small
// for a segment, and is probed then.
func stuck(t *events.TCP, probes int) bool {
	return t.UnackedBytes == 0 && t.UnsentBytes > 0 && (t.SndWnd >= t.UnsentBytes || t.SndWnd > 0 && probes == 0)
}

func stuckWords(t *events.TCP) string {
	return fmt.Sprintf("not leave its host, though the peer's window was open (%s): %s", byteCount(t.SndWnd), count(uint64(t.ProbesOut), "try of the probe timer", "tries of the probe timer"))
}

// probed says what became of the probes of a window.
func probed(t *events.TCP, probes int, allowed string) string {
	n := count(uint64(t.ProbesOut), "window probe", "window probes") + allowed
	switch {
	case probes == 0 && t.ProbesOut == 1:
		return n + " was not seen to leave its host"
	case probes == 0:
		return "none of " + n + " was seen to leave its host"
	case t.ProbesOut == 1:
		return n + " was not answered"
	}
	return n + " were not answered"
}

// abortWords says why an end ended, as the rest of a sentence that begins with
// the end. first says that the other end was still there; probes is how many of
// its probes of a shut window were seen to leave at last; -1: not known.
func abortWords(l *line, first bool, probes int) string {
	a, t := l.Abort, l.TCP
	gaveUp := "gave up"
	if first {
		gaveUp = "gave up first"
	}
	if a.By == "peer" {
		switch a.Cause {
		case "reset-received":
			return "was reset: it accepted a RST"
		case "refused":
			if strings.Contains(a.Why, "ICMP") {
				return "was refused: " + a.Why
			}
			return "was refused: a RST answered its SYN"
		}
		return "was ended by its peer: " + a.Cause + " (" + a.Why + ")"
	}
	switch a.Cause {
	case "user-timeout":
		s := gaveUp + ": TCP_USER_TIMEOUT"
		if t == nil {
			return s
		}
		s += " (" + spanMs(uint64(t.UserTimeoutMs)) + ") had passed with "
		switch {
		case t.UnackedBytes > 0:
			s += amount(t, a.State) + " not acknowledged"
		case stuck(t, probes):
			s += unsent(t, a.State) + " that did " + stuckWords(t) + " failed"
		case t.UnsentBytes > 0 && t.SndWnd == 0:
			s += unsent(t, a.State) + " to send, the peer's window shut: " + probed(t, probes, "")
		case t.UnsentBytes > 0:
			s += fmt.Sprintf("%s to send, the peer's window %s: %s", unsent(t, a.State), byteCount(t.SndWnd), probed(t, probes, ""))
		default:
			s += "no answer"
		}
		return s
	case "retries-exhausted":
		s := gaveUp + ": "
		switch {
		case t == nil:
			return s + "it had tried as often as its sysctls allow"
		case stuck(t, probes):
			return s + unsent(t, a.State) + " did " + stuckWords(t) + ", as many as its settings allow, failed"
		case t.UnackedBytes == 0 && t.UnsentBytes > 0:
			return s + probed(t, probes, ", as many as its settings allow,")
		case a.State == "SYN_SENT":
			s += fmt.Sprintf("its SYN and %s", count(uint64(t.Retransmits), "retransmission of it", "retransmissions of it"))
		default:
			s += fmt.Sprintf("%s that a timeout had caused", count(uint64(t.Retransmits), "retransmission", "retransmissions"))
		}
		return s + ", as many as its settings allow, were not answered"
	case "keepalive":
		if t == nil {
			return gaveUp + ", by keepalive"
		}
		s := gaveUp + ", by keepalive: "
		if heard := heardUs(t); heard >= 0 {
			s += "nothing had come for " + spanUs(uint64(heard)) + ", "
		}
		s += count(uint64(t.ProbesOut), "probe was", "probes were") + " not answered"
		if t.UserTimeoutMs > 0 {
			return s + ", and TCP_USER_TIMEOUT is " + spanMs(uint64(t.UserTimeoutMs))
		}
		return s + fmt.Sprintf(", and its setting is %d", t.Keepalive.Probes)
	case "unreachable":
		return gaveUp + ": the network reported its peer unreachable (" + a.Why + ")"
	case "close-with-unread-data":
		if a.Facts.DataAfterEnd {
			return "ended because data arrived after its process had closed it"
		}
		if t != nil {
			return "was closed by its process with " + unread(t, a.State) + " unread"
		}
		return "was closed by its process with data unread"
	case "linger-zero":
		if strings.Contains(a.Why, "TCP_LINGER2") {
			return "ended at once after its FIN, because TCP_LINGER2 is negative"
		}
		return "was closed by its process with SO_LINGER on and a time of 0, which discards the connection"
	case "out-of-memory":
		return "was ended by its kernel: out of memory for TCP (" + a.Why + ")"
	case "destroyed":
		return "was destroyed from outside, through SOCK_DESTROY (ss -K)"
	case "disconnected":
		return "was disconnected by its process, which kept the socket (connect with AF_UNSPEC)"
	case "listener-closed":
		return "was waiting to be accepted when its listener was closed"
	case "connect-cancelled":
		if t != nil && t.UnackedBytes == 0 {
			return "was not connected: connect failed before its SYN was sent"
		}
		return "was closed by its process while it was connecting"
	}
	return "ended, and why is not decided: " + a.Why
}

// heardUs is how long ago anything was received; -1 if never.
func heardUs(t *events.TCP) int64 {
	switch {
	case t.SinceLastAckUs < 0:
		return t.SinceLastRcvUs
	case t.SinceLastRcvUs < 0:
		return t.SinceLastAckUs
	}
	return min(t.SinceLastAckUs, t.SinceLastRcvUs)
}

func targetWords(t *events.Target, name string) string {
	detail := ""
	if t.Detail != "" {
		detail = " (" + t.Detail + ")"
	}
	switch t.Change {
	case "gone":
		return name + " was no longer watched" + detail
	case "attached":
		s := name + " came back as another namespace" + detail
		if t.BlindNS != 0 {
			s += "; nothing was seen of it for " + span(t.BlindNS)
		}
		return s
	case "renamed":
		if t.Formerly != nil {
			return t.Formerly.Name + " was no longer there" + detail + "; its namespace was watched on as " + name
		}
	case "alias-gone":
		return t.Alias + ", another name of " + name + ", was no longer there" + detail
	case "waiting":
		return name + " does not exist" + detail
	case "paused", "unpaused":
		return name + " was " + t.Change + detail
	case "connected":
		return name + " was connected to a network" + detail
	case "disconnected":
		return name + " was disconnected from a network" + detail
	}
	return name + ": " + t.Change + detail
}
