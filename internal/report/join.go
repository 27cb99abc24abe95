package report

import (
	"slices"

	"github.com/sockwatch/sockwatch/internal/events"
)

// slackNS allows for hooks that run a little apart: the segment of a reset may
// arrive before its sender's hook has run.
const slackNS = 10_000_000

// join finds the other end of each connection. Two ends belong together if
// their addresses mirror each other, they lived at the same time on the same
// machine, and what each has of the other's bytes fits. Where several would
// do, none is taken.
func (ev *evidence) join() {
	byTuple := make(map[bootTuple][]*end)
	for _, e := range ev.ends {
		if k := (bootTuple{e.ns.boot, e.tuple()}); k.local.Port() != 0 {
			byTuple[k] = append(byTuple[k], e)
		}
	}
	matches := make(map[*end][]*end)
	sure := make(map[[2]*end]bool)
	for _, a := range ev.ends {
		for _, b := range byTuple[bootTuple{a.ns.boot, a.tuple().mirrored()}] {
			if a == b || a.noSocket && b.noSocket || !together(a, b) {
				continue
			}
			switch fits, known := sequences(a, b); {
			case !fits:
				a.misfits = append(a.misfits, b)
			default:
				matches[a] = append(matches[a], b)
				sure[[2]*end{a, b}] = known
			}
		}
	}
	// Where there is a socket, a place without one is not its rival.
	sockets := func(a *end) []*end {
		real := slices.DeleteFunc(slices.Clone(matches[a]), func(b *end) bool { return b.noSocket })
		if len(real) > 0 {
			return real
		}
		return matches[a]
	}
	for _, a := range ev.ends {
		found := sockets(a)
		if len(found) == 1 && slices.Equal(sockets(found[0]), []*end{a}) {
			a.peer = found[0]
			a.joinedBy = "addresses, time"
			if sure[[2]*end{a, found[0]}] {
				a.joinedBy = "addresses, time, sequence numbers"
			}
			continue
		}
		a.rivals = found
		if len(found) == 1 {
			// It is the other that could belong to several.
			a.rivals, a.contested = sockets(found[0]), true
		}
	}
	for _, a := range ev.ends {
		if found := matches[a]; a.noSocket && a.peer == nil && len(found) == 1 && found[0].peer != nil && !found[0].peer.noSocket {
			a.host = found[0]
			a.host.visitors = append(a.host.visitors, a)
		}
	}
}

// together reports whether two ends lived at the same time.
func together(a, b *end) bool {
	from := max(a.born, b.born)
	// One that is older than the trace was there before it was seen.
	if a.before {
		from = b.born
	}
	if b.before {
		from = a.born
	}
	if a.before && b.before {
		from = 0
	}
	return from <= min(a.until(), b.until())+slackNS
}

// near reports whether two initial sequence numbers are the same, but for a SYN
// that is counted or not.
func near(a, b uint32) bool {
	d := int32(a - b)
	return d >= -2 && d <= 2
}

// sequences reports whether the bytes that two ends speak of can be the same:
// whether what one sends begins where what the other receives does. known is
// false if nothing could be compared.
func sequences(a, b *end) (fits, known bool) {
	fits = true
	for _, d := range [][2]*end{{a, b}, {b, a}} {
		from, to := d[0], d[1]
		if from.sent.ok && to.got.ok {
			known = true
			fits = fits && near(from.sent.first, to.got.first)
		}
		if from.sent.ok && to.heard.ok {
			known = true
			fits = fits && int32(to.heard.first-from.sent.first) >= -2 && int32(from.sent.last-to.heard.last) >= 0
		}
	}
	return fits, known
}

// matchResets finds where each RST came from that arrived.
func (ev *evidence) matchResets() {
	for _, e := range ev.ends {
		var got []*line
		for _, ls := range [][]*line{e.lines, e.loose} {
			for _, l := range ls {
				if l.Reset != nil && l.Reset.Direction == "received" {
					got = append(got, l)
				}
			}
		}
		byTime(got)
		for _, r := range got {
			if sent := ev.sender(e, r); sent != nil {
				ev.matched[r], ev.arrived[sent] = sent, r
			}
		}
	}
}

// sender finds the RST that arrived as r at e: the last before it that looks
// the same. Where they are from several namespaces, it has to be the peer's.
func (ev *evidence) sender(e *end, r *line) (best *line) {
	several := false
	for _, s := range ev.resets[bootTuple{e.ns.boot, e.tuple().mirrored()}] {
		if ev.arrived[s] != nil || s.MonoNS > r.MonoNS+slackNS || !sameReset(s, r) {
			continue
		}
		several = several || (best != nil && best.ns() != s.ns())
		if best == nil || s.MonoNS > best.MonoNS {
			best = s
		}
	}
	if several && (e.peer == nil || best.ns() != e.peer.ns) {
		return nil
	}
	return best
}

// sameReset reports whether a RST that was sent can be the one received.
func sameReset(sent, got *line) bool {
	same, known := events.SameReset(sent.Reset, got.Reset)
	if !known {
		return got.MonoNS+slackNS-sent.MonoNS < quickNS
	}
	return same
}
