package measure

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

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
		if e := &evs[i]; e.Sock != nil && e.Netns != nil {
			x.events = append(x.events, e)
		}
	}
	slices.SortStableFunc(x.events, func(a, b *events.Event) int { return cmp.Compare(a.MonoNS, b.MonoNS) })
	x.explain()
	return x.out
}

type explainer struct {
	Facts
	events []*events.Event
	out    Explanation

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

func (e *end) established() bool {
	return slices.ContainsFunc(e.events, func(ev *events.Event) bool {
		return ev.State != nil && ev.State.New == "ESTABLISHED"
	})
}

// retransmits of the end after the send.
func (x *explainer) retransmits(e *end) (out []*events.Event) {
	for _, ev := range e.events {
		if ev.Retransmit != nil && ev.MonoNS >= x.Sent {
			out = append(out, ev)
		}
	}
	return out
}

// delivery decides which transmission brought the request to the worker's
// kernel.
func (x *explainer) delivery() {
	if x.Route == plan.Proxied && x.ProxyCall == nil && x.WorkerCall == nil {
		return // it was never sent on this connection
	}
	again := x.retransmits(x.sent)
	// The worker's proxy had the headers: what was sent last before that
	// brought them. A frozen proxy reads later than the kernel receives.
	var read uint64
	if x.WorkerCall != nil {
		read = x.WorkerCall.StartedNS
	}
	if len(again) == 0 {
		if a := x.fateAbort(x.sent); a != nil && a.TCP != nil && a.TCP.UnackedBytes > 0 {
			return
		}
		// Nothing was due to be sent again: it was acknowledged at once. When
		// exactly is known if it was read at once, too.
		x.out.DeliveredBy = "first transmission"
		if read < x.Sent+uint64(time.Second) {
			x.out.DeliveredNS = read
		}
		return
	}
	if read != 0 && read < again[0].MonoNS {
		x.out.DeliveredBy, x.out.DeliveredNS = "first transmission", read
		return
	}
	for _, ev := range x.sent.events {
		if ev.Recovered == nil || ev.MonoNS < again[0].MonoNS {
			continue
		}
		at := ev.MonoNS
		if read != 0 && read < at {
			at = read
		}
		if r, name := x.answered(again, ev); r != nil {
			x.out.DeliveredBy, x.out.DeliveredNS = name, at
		} else {
			x.out.DeliveredBy, x.out.DeliveredNS = "a retransmission", at
		}
		return
	}
	if read != 0 {
		last := again[0]
		for _, r := range again {
			if r.MonoNS <= read {
				last = r
			}
		}
		x.out.DeliveredBy, x.out.DeliveredNS = x.name(again, last), read
	}
}

// overtook is how many bytes that had never been sent went out, after the first
// answer to a timeout, before what was to be sent again: TCP looks in this way
// whether the timeout was spurious (F-RTO).
func (x *explainer) overtook() uint32 {
	var before *events.Event // the last timeout
	for _, r := range x.retransmits(x.sent) {
		switch {
		case r.TCP == nil:
		case r.Retransmit.Cause == "rto":
			before = r
		case before != nil && int32(r.Retransmit.SeqStart-before.TCP.SndNxt) < 0:
			return r.TCP.SndNxt - before.TCP.SndNxt
		}
	}
	return 0
}

// answered finds the retransmission that a recovery answered.
func (x *explainer) answered(again []*events.Event, recovered *events.Event) (*events.Event, string) {
	for _, r := range again {
		if r.Retransmit.Attempt == recovered.Recovered.Answered && r.MonoNS <= recovered.MonoNS {
			return r, x.name(again, r)
		}
	}
	return nil, ""
}

// name says which retransmission r is.
func (x *explainer) name(again []*events.Event, r *events.Event) string {
	n := 0
	for _, o := range again {
		if o.Retransmit.Cause == "rto" && o.MonoNS <= r.MonoNS {
			n++
		}
	}
	// An event that was lost must not make an earlier one of it: the socket
	// counts its timeouts too.
	if r.TCP != nil && r.Retransmit.Cause == "rto" {
		n = max(n, int(r.TCP.Retransmits))
	}
	if r.Retransmit.Cause != "rto" {
		return fmt.Sprintf("retransmission %d of its run (%s)", r.Retransmit.Attempt, r.Retransmit.Cause)
	}
	return fmt.Sprintf("%s retransmission by timeout", ordinal(n))
}

func ordinal(n int) string {
	suffix := "th"
	switch {
	case n%100 >= 11 && n%100 <= 13:
	case n%10 == 1:
		suffix = "st"
	case n%10 == 2:
		suffix = "nd"
	case n%10 == 3:
		suffix = "rd"
	}
	return fmt.Sprintf("%d%s", n, suffix)
}

func (x *explainer) fateAbort(e *end) *events.Event {
	for _, ev := range e.events {
		if ev.Abort != nil {
			return ev
		}
	}
	return nil
}

// fate of an end, in words.
func (x *explainer) fate(e *end) string {
	if a := x.fateAbort(e); a != nil {
		by := "ended by its own side"
		if a.Abort.By == "peer" {
			by = "ended by the other side"
		}
		return fmt.Sprintf("gone %s after the send, %s: %s", x.since(a.MonoNS), by, a.Abort.Cause)
	}
	for _, ev := range e.events {
		if ev.State != nil && ev.State.New == "CLOSE" && ev.MonoNS >= x.Sent {
			return fmt.Sprintf("closed %s after the send", x.since(ev.MonoNS))
		}
	}
	if len(e.events) == 0 {
		return "not in the evidence"
	}
	return "alive at the end"
}

// words put it together, and say whether the evidence decides it.
func (x *explainer) words(sender string, dials []Conn) (string, bool) {
	delivered := x.out.DeliveredBy
	if delivered != "" && x.out.DeliveredNS != 0 {
		delivered += fmt.Sprintf(", %s after the send", x.since(x.out.DeliveredNS))
	}
	switch {
	case x.Applied != 0 && delivered != "":
		return fmt.Sprintf("delivered by the %s; applied %.3f s after the send", delivered, x.after(x.Applied)), true
	case x.Applied != 0:
		return fmt.Sprintf("applied %.3f s after the send; which transmission delivered it is not in the evidence", x.after(x.Applied)), false
	}
	if x.Route == plan.Proxied && x.ProxyCall == nil && x.WorkerCall == nil {
		return x.neverLeft()
	}
	if x.out.Connection == nil {
		return x.neverConnected(sender, dials)
	}
	if delivered != "" {
		if x.WorkerCall == nil {
			return fmt.Sprintf("delivered by the %s; the worker's proxy shows no such call", delivered), false
		}
		text := fmt.Sprintf("delivered by the %s; the worker's proxy took it up %s and ended it as %s %s after the send, before the daemon had it: its cancellation came first",
			delivered, x.since(x.WorkerCall.StartedNS), x.WorkerCall.Code, x.since(x.WorkerCall.MonoNS))
		if n := x.overtook(); n > 0 {
			text += fmt.Sprintf(" (%d bytes that were written later were sent before the rest of the request)", n)
		}
		return text, true
	}
	gone, other := x.fateAbort(x.took), x.fateAbort(x.sent)
	switch again := x.retransmits(x.sent); {
	case gone != nil && other != nil:
		return fmt.Sprintf("not delivered: the worker's end was gone %s after the send (%s), the other %s (%s), after %d retransmissions",
			x.since(gone.MonoNS), gone.Abort.Cause, x.since(other.MonoNS), other.Abort.Cause, len(again)), true
	case other != nil:
		return fmt.Sprintf("not delivered: the sending end was gone %s after the send (%s), after %d retransmissions", x.since(other.MonoNS), other.Abort.Cause, len(again)), true
	case gone != nil:
		return fmt.Sprintf("not delivered: the worker's end was gone %s after the send (%s); the other end still sends", x.since(gone.MonoNS), gone.Abort.Cause), true
	}
	return "not applied, and the evidence does not say why", false
}

// neverLeft: the proxy has no call of it.
func (x *explainer) neverLeft() (string, bool) {
	to := netip.AddrPortFrom(x.Addrs[lab.Controlplane], node.Port)
	var how []string
	for _, c := range x.dials(lab.Client, to) {
		e := x.socket(lab.Client, c.Local, to)
		what := "did not open"
		if e.established() {
			what = "opened, but no call was taken up on it"
		}
		if a := x.fateAbort(e); a != nil {
			what += fmt.Sprintf(", and ended %s after the send (%s)", x.since(a.MonoNS), a.Abort.Cause)
		}
		how = append(how, "its connection to the proxy "+what)
	}
	if len(how) == 0 {
		return "the proxy took up no call, and no connection of the client to it is in the evidence", false
	}
	return "the request never left the client: " + strings.Join(how, "; "), true
}

// neverConnected: nothing opened a connection that it could have taken.
func (x *explainer) neverConnected(sender string, dials []Conn) (string, bool) {
	var how []string
	for _, c := range dials {
		e := x.socket(sender, c.Local, c.Remote)
		what := "was not answered"
		if a := x.fateAbort(e); a != nil {
			what = fmt.Sprintf("ended %s after the send (%s)", x.since(a.MonoNS), a.Abort.Cause)
		}
		for _, ev := range e.events {
			if ev.Error != nil {
				what += ", " + ev.Error.Name
			}
		}
		how = append(how, "a dial "+what)
	}
	if len(how) == 0 {
		return "no connection to the worker was open, and no dial is in the evidence", false
	}
	return "not sent, no connection opened: " + strings.Join(how, "; "), true
}
