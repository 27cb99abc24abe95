package measure

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/harness/lab"
	"github.com/sockwatch/sockwatch/internal/harness/node"
	"github.com/sockwatch/sockwatch/internal/harness/plan"
)

// Facts are what is known of a capture beside its events: what was done, and
// what the nodes' programs wrote. Times are CLOCK_MONOTONIC, nanoseconds; 0:
// it did not happen. They are kept with the evidence, so that the explanation
// can be derived again.
type Facts struct {
	Route  plan.Route            `json:"route"`
	Sent   uint64                `json:"sent_ns"`
	Ended  uint64                `json:"ended_ns"`  // the client
	Healed uint64                `json:"healed_ns"` // the last fault
	Closed uint64                `json:"closed_ns"` // the last reading
	Roles  map[string]string     `json:"roles"`     // of the namespaces, by name
	Addrs  map[string]netip.Addr `json:"addrs"`     // by role
	Pinned *Conn                 `json:"pinned"`    // the proxy's warm connection; null: there was none

	Applied    uint64     `json:"applied_ns"`  // by the daemon
	ProxyCall  *node.Line `json:"proxy_call"`  // of the request, in the log of the control plane's proxy
	WorkerCall *node.Line `json:"worker_call"` // and of the worker's
}

// Conn is a connection to the worker, seen from the end that opened it.
type Conn struct {
	Local  netip.AddrPort `json:"local"`
	Remote netip.AddrPort `json:"remote"`
}

func (c Conn) String() string { return c.Local.String() + ">" + c.Remote.String() }

// Explanation is why a request landed, or did not.
type Explanation struct {
	Connection  *Conn
	DeliveredBy string // empty: it was not, or it is not known
	DeliveredNS uint64
	WorkerEnd   string
	OtherEnd    string
	Decided     bool
	Text        string
}

// Explain says from the evidence what became of the request. It is a pure
// function: from the same files it says the same.
func Explain(evs []events.Event, f Facts) Explanation {
	x := &explainer{Facts: f}
	for i := range evs {
		e := &evs[i]
		if e.Sock != nil && e.Netns != nil {
			x.events = append(x.events, e)
		}
		if e.Summary != nil {
			x.namespaces = e.Summary.Namespaces
		}
	}
	slices.SortStableFunc(x.events, func(a, b *events.Event) int { return cmp.Compare(a.MonoNS, b.MonoNS) })
	x.explain()
	return x.out
}

type explainer struct {
	Facts
	events     []*events.Event
	namespaces []events.NamespaceCounts
	out        Explanation

	sent *end // the end that sent the request
	took *end // the worker's
}

// end is one end of a connection: its events.
type end struct {
	events []*events.Event
}

// since is a time after the send, in words.
func (f *Facts) since(ns uint64) string {
	return fmt.Sprintf("%.1f s", f.after(ns))
}

// after is a time in seconds after the send.
func (f *Facts) after(ns uint64) float64 { return float64(int64(ns)-int64(f.Sent)) / 1e9 }

func (x *explainer) role(e *events.Event) string { return x.Roles[e.Netns.Name] }

// port of the worker's proxy.
func (x *explainer) worker() netip.AddrPort {
	return netip.AddrPortFrom(x.Addrs[lab.Worker], node.Port)
}

// socket collects the events of a socket, by its addresses.
func (x *explainer) socket(role string, local, remote netip.AddrPort) *end {
	e := new(end)
	for _, ev := range x.events {
		if x.role(ev) == role && ev.Sock.Local == local && ev.Sock.Remote == remote {
			e.events = append(e.events, ev)
		}
	}
	return e
}

// dials are the connections that role began to open to remote after the send,
// and before the client ended.
func (x *explainer) dials(role string, remote netip.AddrPort) (out []Conn) {
	index := make(map[uint64]int) // by cookie: a socket has no port until it has its address
	for _, ev := range x.events {
		if x.role(ev) != role || ev.Sock.Remote != remote || ev.Sock.Cookie == 0 {
			continue
		}
		i, known := index[ev.Sock.Cookie]
		switch {
		case known && ev.Sock.Local.Port() != 0 && out[i].Remote.IsValid():
			out[i].Local = ev.Sock.Local
		case !known && ev.MonoNS >= x.Sent && ev.MonoNS <= x.Ended:
			index[ev.Sock.Cookie] = len(out)
			out = append(out, Conn{ev.Sock.Local, ev.Sock.Remote})
		case !known:
			index[ev.Sock.Cookie] = len(out)
			out = append(out, Conn{}) // not one of them
		}
	}
	return slices.DeleteFunc(out, func(c Conn) bool {
		return !c.Remote.IsValid() || c.Local.Port() == 0 || x.Pinned != nil && c == *x.Pinned
	})
}

func (x *explainer) explain() {
	sender := lab.Controlplane
	if x.Route == plan.Direct {
		sender = lab.Client
	}
	var dials []Conn
	switch {
	case x.Pinned != nil:
		x.out.Connection = x.Pinned
	default:
		dials = x.dials(sender, x.worker())
		for _, c := range dials {
			if x.socket(sender, c.Local, c.Remote).established() {
				x.out.Connection = &c
			}
		}
	}
	if c := x.out.Connection; c != nil {
		x.sent = x.socket(sender, c.Local, c.Remote)
		x.took = x.socket(lab.Worker, c.Remote, c.Local)
		x.delivery()
		x.out.OtherEnd = x.fate(x.sent)
		x.out.WorkerEnd = x.fate(x.took)
	}
	x.out.Text, x.out.Decided = x.words(sender, dials)
}

func (x *explainer) fateAbort(e *end) *events.Event {
	for _, ev := range e.events {
		if ev.Abort != nil {
			return ev
		}
	}
	return nil
}
