package measure

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/evidence"
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
	if len(x.sent.events) == 0 || x.Route == plan.Proxied && x.ProxyCall == nil && x.WorkerCall == nil {
		return // the connection is not in the evidence, or the request was never sent on it
	}
	// When the worker's proxy had the headers; a frozen one reads later than the
	// kernel receives.
	var read uint64
	if x.WorkerCall != nil {
		read = x.WorkerCall.StartedNS
	}
	again := x.retransmits(x.sent)
	if len(again) == 0 {
		x.firstDelivers(read)
		return
	}
	at := read
	for _, ev := range x.sent.events {
		if ev.Recovered != nil && ev.MonoNS >= again[0].MonoNS && (at == 0 || ev.MonoNS < at) {
			at = ev.MonoNS
		}
	}
	switch {
	case at == 0:
	case at < again[0].MonoNS:
		x.out.DeliveredBy, x.out.DeliveredNS = firstTransmission, at
	default:
		x.out.DeliveredBy, x.out.DeliveredNS = x.lastBefore(again, at), at
	}
}

const firstTransmission = "first transmission"

// firstDelivers: nothing was sent again. If it was read at once, it had come at
// once. Else that nothing was due to be sent again says so, if no event of it
// is missing.
func (x *explainer) firstDelivers(read uint64) {
	switch {
	case read != 0 && read < x.Sent+uint64(time.Second):
		x.out.DeliveredBy, x.out.DeliveredNS = firstTransmission, read
	case x.fateAbort(x.sent) != nil, !x.sound(x.sent):
	default:
		x.out.DeliveredBy = firstTransmission
	}
}

// sound reports whether the namespace of an end is one whose evidence the
// kernel's counters do not contradict.
func (x *explainer) sound(e *end) bool {
	n := *e.events[0].Netns
	for _, c := range x.namespaces {
		if c.Netns == n {
			return c.Verdict.State != evidence.Incomplete
		}
	}
	return false
}

// lastBefore names the retransmission that was the last one before a time: the
// last timeout, if there was any, because what follows its answer is the rest of
// the same.
func (x *explainer) lastBefore(again []*events.Event, at uint64) string {
	n := 0
	var last *events.Event
	for _, r := range again {
		if r.MonoNS > at {
			break
		}
		last = r
		if r.Retransmit.Cause == "rto" {
			n++
		}
		n = max(n, timeouts(r))
	}
	// An event that was lost must not make an earlier one of it: the socket
	// counts its timeouts, and forgets them only after the answer.
	answer := slices.IndexFunc(x.sent.events, func(ev *events.Event) bool { return ev.Recovered != nil && ev.MonoNS >= again[0].MonoNS })
	if answer >= 0 && !slices.ContainsFunc(again, func(r *events.Event) bool {
		return r.MonoNS > at && r.MonoNS <= x.sent.events[answer].MonoNS
	}) {
		n = max(n, timeouts(x.sent.events[answer]))
	}
	if n == 0 {
		return fmt.Sprintf("retransmission %d of its run (%s)", last.Retransmit.Attempt, last.Retransmit.Cause)
	}
	return fmt.Sprintf("%s retransmission by timeout", ordinal(n))
}

func timeouts(ev *events.Event) int {
	if ev.TCP == nil {
		return 0
	}
	return int(ev.TCP.Retransmits)
}

// later tells of what was written after the request and sent with it: in the
// answer to a timeout, or even before the rest of the request, because TCP looks
// in this way whether the timeout was spurious (F-RTO).
func (x *explainer) later() string {
	var timeout *events.Event // the last one
	for _, ev := range x.sent.events {
		if ev.TCP == nil || ev.MonoNS < x.Sent {
			continue
		}
		if ev.Retransmit != nil && ev.Retransmit.Cause == "rto" {
			timeout = ev
			continue
		}
		if timeout == nil || int32(ev.TCP.SndNxt-timeout.TCP.SndNxt) <= 0 {
			continue
		}
		text := fmt.Sprintf("; %d bytes, written after the request, had been sent", ev.TCP.SndNxt-timeout.TCP.SndNxt)
		if r := ev.Retransmit; r != nil && int32(r.SeqStart-timeout.TCP.SndNxt) < 0 {
			text += " before the rest of it,"
		}
		if before := float64(int64(x.WorkerCall.StartedNS)-int64(ev.MonoNS)) / 1e6; before >= 0 {
			text += fmt.Sprintf(" %.1f ms before the proxy took it up", before)
		}
		return strings.TrimSuffix(text, ",")
	}
	return ""
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
		text += x.later()
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
