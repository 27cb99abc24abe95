package measure

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/sockwatch/sockwatch/internal/harness/lab"
	"github.com/sockwatch/sockwatch/internal/harness/node"
	"github.com/sockwatch/sockwatch/internal/harness/plan"
)

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
		text += x.together()
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
