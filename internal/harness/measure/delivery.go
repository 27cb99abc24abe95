package measure

import (
	"fmt"
	"slices"
	"time"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/evidence"
	"github.com/sockwatch/sockwatch/internal/harness/plan"
)

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
	at := read
	for _, ev := range x.took.events {
		if ev.Arrival != nil && ev.MonoNS >= x.Sent && (at == 0 || ev.MonoNS < at) {
			at = ev.MonoNS
		}
	}
	switch {
	case at != 0 && at < x.Sent+uint64(time.Second):
		x.out.DeliveredBy, x.out.DeliveredNS = firstTransmission, at
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

// cancellation is what the sending end wrote when the client had ended, as
// sequence numbers; false where the evidence does not have it.
func (x *explainer) cancellation() (write *events.Event, from, to uint32, ok bool) {
	const before = uint64(50 * time.Millisecond) // that the client has ended is learned a little later
	for _, ev := range x.sent.events {
		if ev.IO != nil && ev.IO.Op == "write" && ev.TCP != nil && ev.MonoNS+before >= x.Ended {
			return ev, ev.TCP.WriteSeq - ev.IO.Bytes, ev.TCP.WriteSeq, true
		}
	}
	return nil, 0, 0, false
}

// together tells how the worker's process came to read the end of the request
// and its cancellation.
func (x *explainer) together() string {
	write, from, to, ok := x.cancellation()
	if !ok {
		return ""
	}
	var request *events.Event // the read that took the last of it
	for _, ev := range x.took.events {
		if ev.IO == nil || ev.IO.Op != "read" || ev.IO.Peek || ev.TCP == nil || ev.MonoNS < x.Sent {
			continue
		}
		if request == nil && int32(ev.TCP.CopiedSeq-from) >= 0 {
			request = ev
		}
		if request == nil || int32(ev.TCP.CopiedSeq-to) < 0 {
			continue
		}
		what := fmt.Sprintf("its cancellation (%d bytes, written %s after the send)", to-from, x.since(write.MonoNS))
		if ev == request {
			return fmt.Sprintf("; the worker's process read in one call the end of the request and %s%s", what, x.overtook())
		}
		return fmt.Sprintf("; %.1f ms after the end of the request the worker's process read %s%s", float64(ev.MonoNS-request.MonoNS)/1e6, what, x.overtook())
	}
	return ""
}

// overtook tells whether what had never been sent went out before the rest of
// the request, after the first answer to a timeout: TCP looks in this way
// whether the timeout was spurious (F-RTO).
func (x *explainer) overtook() string {
	var timeout *events.Event // the last one
	for _, r := range x.retransmits(x.sent) {
		switch {
		case r.TCP == nil:
		case r.Retransmit.Cause == "rto":
			timeout = r
		case timeout != nil && int32(r.Retransmit.SeqStart-timeout.TCP.SndNxt) < 0 && int32(r.TCP.SndNxt-timeout.TCP.SndNxt) > 0:
			return ", which had been sent before the rest of the request"
		}
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
