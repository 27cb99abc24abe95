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
	return fmt.Sprintf("%s%d.%03d s", sign, ms/1000, ms%1000)
}

func count(n uint64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

func byteCount(n uint32) string { return count(uint64(n), "byte", "bytes") }

func were(n uint64) string {
	if n == 1 {
		return "was"
	}
	return "were"
}

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
	var what []string
	if state == "SYN_SENT" || state == "SYN_RECV" {
		if n == 1 {
			return "the SYN"
		}
		return "the SYN and " + byteCount(n-1)
	}
	fin := finSent(t, state) && n > 0
	if fin {
		n--
	}
	if n > 0 {
		what = append(what, byteCount(n))
	}
	if fin {
		what = append(what, "the FIN")
	}
	return strings.Join(what, " and ")
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

// abortWords says why an end ended, as the rest of a sentence that begins with
// the end. first says that the other end was still there.
func abortWords(l *line, first bool) string {
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
		case t.UnsentBytes > 0:
			s += fmt.Sprintf("%s to send, the peer's window shut, and %s not answered", byteCount(t.UnsentBytes), count(uint64(t.ProbesOut), "window probe", "window probes"))
		default:
			s += "no answer"
		}
		return s
	case "retries-exhausted":
		s := gaveUp + ": "
		switch {
		case t == nil:
			return s + "it had tried as often as its sysctls allow"
		case t.UnackedBytes == 0 && t.UnsentBytes > 0:
			s += count(uint64(t.ProbesOut), "window probe", "window probes")
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
			return "was closed by its process with " + byteCount(t.UnreadBytes) + " unread"
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
