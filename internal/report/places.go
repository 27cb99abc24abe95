package report

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/sockwatch/sockwatch/internal/events"
)

// findPlaces finds which namespaces have which addresses, by what the sockets
// there are bound to, and what listened in them.
func (c *Collector) findPlaces(ev *evidence) {
	ev.places = make(map[place][]*watched)
	for _, f := range c.files {
		for _, s := range f.sessions {
			spaces := make(map[nsKey]*watched)
			for _, l := range s.lines {
				if l.Netns == nil || s.passed[l.ns()] {
					continue
				}
				w := spaces[l.ns()]
				if w == nil {
					w = &watched{ns: l.ns(), netns: *l.Netns, s: s, from: l.MonoNS}
					spaces[w.ns] = w
				}
				w.see(l)
				if l.Sock == nil || l.Sock.Local.Port() == 0 {
					continue
				}
				a := l.Sock.Local.Addr().Unmap()
				if k := (place{s.boot(), a}); !a.IsUnspecified() && !a.IsLoopback() && !slices.Contains(ev.places[k], w) {
					ev.places[k] = append(ev.places[k], w)
				}
			}
		}
	}
}

// see takes a line of the namespace.
func (w *watched) see(l *line) {
	switch {
	case l.Target != nil && l.Target.Change == "gone":
		w.to = l.MonoNS
	case l.Sock == nil || l.Sock.Cookie == 0:
	case l.Inventory != nil && l.TCP != nil && l.TCP.State == "LISTEN", l.State != nil && l.State.New == "LISTEN":
		w.listeners = append(w.listeners, listener{local: l.Sock.Local, cookie: l.Sock.Cookie, from: l.MonoNS})
	case l.State != nil && l.State.Old == "LISTEN" && l.State.New == "CLOSE":
		for i := range w.listeners {
			if k := &w.listeners[i]; k.cookie == l.Sock.Cookie && k.to == 0 {
				k.to = l.MonoNS
			}
		}
	}
}

// listened reports whether a socket listened on an address between two times.
func (w *watched) listened(on netip.AddrPort, from, to uint64) bool {
	return slices.ContainsFunc(w.listeners, func(k listener) bool {
		a := k.local.Addr().Unmap()
		return k.local.Port() == on.Port() && (a == on.Addr().Unmap() || a.IsUnspecified()) && k.from <= to && (k.to == 0 || k.to > from)
	})
}

// absent says what is known of the other end of a connection that no socket in
// the files is.
func (t *teller) absent(e *end) string {
	remote := e.sock.Remote
	there := t.ev.places[place{e.ns.boot, remote.Addr().Unmap()}]
	names := make(map[nsKey]*watched)
	for _, w := range there {
		if best := names[w.ns]; best == nil || (!best.throughout(e) && w.throughout(e)) {
			names[w.ns] = w
		}
	}
	none := fmt.Sprintf("the other end, %s, is not in these files: ", remote)
	if len(names) != 1 || names[e.ns] != nil {
		return none + "what it did is not known"
	}
	for _, w := range names {
		if !w.throughout(e) {
			return none + fmt.Sprintf("%s has that address, but was not watched all the while, or something is missing", nsName(&w.netns))
		}
		text := fmt.Sprintf("the other end, %s, was no socket: %s has that address and was watched all the while, and no socket there took part in this connection", remote, nsName(&w.netns))
		if w.listened(remote, e.born, e.until()) {
			text += ", though one listened on that port"
		}
		dropped := slices.ContainsFunc(t.ev.beside, func(l *line) bool { return l.Drop != nil && l.ns() == w.ns && t.concerns(l) })
		if e.opener == 1 && entered(e, "ESTABLISHED") == nil && !dropped {
			text += " (a SYN that arrived and was not answered would not show)"
		}
		return text
	}
	return ""
}

// throughout reports whether the namespace was watched while an end lived, and
// nothing is missing.
func (w *watched) throughout(e *end) bool {
	s := w.s
	return s.edgeSeen() && w.from <= e.born && s.last+slackNS >= e.until() && (w.to == 0 || w.to >= e.until()) &&
		s.whole(e.born, e.until()) && w.verdict() != "incomplete"
}

// verdict is what the summary says of the namespace.
func (w *watched) verdict() string {
	if i := slices.IndexFunc(w.s.summary.Namespaces, func(n events.NamespaceCounts) bool { return n.Is(w.netns) }); i >= 0 {
		return w.s.summary.Namespaces[i].Verdict.State
	}
	return ""
}
