package measure

import (
	"fmt"
	"slices"
	"strings"
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
