package evidence

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/sockwatch/sockwatch/internal/events"
)

// The states of a verdict and the results of a line, from good to bad.
const (
	Complete   = "complete"
	Balanced   = "balanced"
	Unprovable = "unprovable"
	Incomplete = "incomplete"
)

// Account is all that is known of one generation of a target when its verdict
// is due.
type Account struct {
	Tally  *Tally
	Before Counters // the first reading
	After  Counters // the last
	Err    error    // why there is no reading, if there is none
}

// Settle draws up the ledger of a generation and judges it by itself; see
// [Conclude] for what holds of the whole session.
func (a *Account) Settle() (events.Ledger, events.Verdict) {
	if a.Err != nil {
		return events.Ledger{}, unprovable("the counters could not be read: " + a.Err.Error())
	}
	grown := make(map[string]uint64)
	for name, after := range a.After.Values {
		before, ok := a.Before.Values[name]
		if !ok {
			continue
		}
		if after < before {
			return events.Ledger{Opened: a.Before.Reading, Closed: a.After.Reading},
				unprovable(fmt.Sprintf("%s fell from %d to %d: the counters were reset", name, before, after))
		}
		grown[name] = after - before
	}
	return a.Tally.judge(grown)
}

func unprovable(reason string) events.Verdict {
	return events.Verdict{State: Unprovable, Reasons: []string{reason}}
}

// judge holds the tally against what the counters grew by.
func (t *Tally) judge(grown map[string]uint64) (events.Ledger, events.Verdict) {
	led := events.Ledger{Opened: t.opened, Closed: t.closed, Beside: make(map[string]uint64)}
	for _, name := range []string{embryonicRsts, outNoRoutes, ip6OutNoRoutes} {
		if n, ok := grown[name]; ok {
			led.Beside[name] = n
		}
	}
	verdict := events.Verdict{State: Complete}
	results := make(map[counter]string, numCounters)
	var missing, untold []string
	for c := range numCounters {
		kernel, ok := grown[counterNames[c]]
		if !ok {
			continue
		}
		line, by := t.line(c, kernel, grown, results)
		results[c] = line.Result
		led.Lines = append(led.Lines, line)
		reason := fmt.Sprintf("%s: the kernel counted %d, %d are in the events: %s", line.Counter, line.Kernel, line.Events, line.Why)
		switch line.Result {
		case Incomplete:
			missing = append(missing, reason)
			verdict.By = max(verdict.By, by)
		case Unprovable:
			untold = append(untold, reason)
		}
	}
	switch {
	case len(led.Lines) == 0:
		return led, unprovable("this kernel has none of the counters")
	case len(missing) > 0:
		verdict.State = Incomplete
	case len(untold) > 0:
		verdict.State = Unprovable
	}
	verdict.Reasons = append(missing, untold...)
	return led, verdict
}

// explanation is a part of a difference that is no missing event.
type explanation struct {
	min, max int64 // how much it may be; equal when it is known
	words    string
}

// unlimited is more than any difference.
const unlimited = math.MaxInt32

// line judges one counter. by is how far the kernel's count is from all that
// could be.
func (t *Tally) line(c counter, kernel uint64, grown map[string]uint64, results map[counter]string) (l events.LedgerLine, by uint64) {
	l = events.LedgerLine{
		Counter:    counterNames[c],
		Kernel:     kernel,
		Events:     t.sure[c],
		Difference: int64(kernel) - t.sure[c],
		Result:     Balanced,
	}
	known, unknown := t.explain(c, l.Difference, grown, results)
	edge := t.edge[c]

	var why []string
	low, high := edge.min, edge.max
	for _, x := range known {
		low, high = low+x.min, high+x.max
		if x.max != 0 {
			why = append(why, x.words)
		}
	}
	if low <= l.Difference && l.Difference <= high {
		if l.Explained = l.Difference; l.Difference == 0 {
			return l, 0
		}
		if edge != (span{}) {
			why = append(why, fmt.Sprintf("%d within %d ms of a reading of the counters", edge.max-edge.min, margins[c]/1_000_000))
		}
		l.Why = strings.Join(why, "; ")
		return l, 0
	}

	// What is certain does not do; does what is possible?
	short := l.Difference < low
	for _, x := range unknown {
		low, high = low+x.min, high+x.max
	}
	if low <= l.Difference && l.Difference <= high {
		if l.Difference == 0 {
			return l, 0
		}
		l.Result = Unprovable
		why = why[:0]
		for _, x := range unknown {
			if short && x.min < 0 || !short && x.max > 0 {
				why = append(why, x.words)
			}
		}
		l.Why = "it may be " + strings.Join(why, "; or ")
		return l, 0
	}
	l.Result = Incomplete
	if l.Difference > high {
		by = uint64(l.Difference - high)
		l.Why = fmt.Sprintf("%d are not in the events", by)
	} else {
		by = uint64(low - l.Difference)
		l.Why = fmt.Sprintf("%d in the events were not counted", by)
	}
	l.Explained = min(max(l.Difference, low), high)
	if l.Explained != 0 && len(why) > 0 {
		l.Why += "; " + strings.Join(why, "; ")
	}
	return l, by
}

// explain says what a counter counts that is no event: known is there by other
// numbers, unknown cannot be told from a missing event.
func (t *Tally) explain(c counter, difference int64, grown map[string]uint64, results map[counter]string) (known, unknown []explanation) {
	for d := doubtUndecided; d < numDoubts; d++ {
		if n := t.unsure[c][d]; n != 0 {
			unknown = append(unknown, explanation{min(n, 0), max(n, 0), fmt.Sprintf("%d %s", max(n, -n), doubtReasons[d])})
		}
	}
	if t.facts.NoFailedRetransmits {
		failed := int64(grown[counterNames[retransFail]])
		switch c {
		case retransSegs, retransFail:
			known = append(known, explanation{failed, failed, fmt.Sprintf("%d retransmissions failed locally, which this kernel shows only as TCPRetransFail", failed)})
		case synRetrans:
			unknown = append(unknown, explanation{0, failed, fmt.Sprintf("%d retransmissions that failed locally, which this kernel shows only as TCPRetransFail", failed)})
		case timeouts:
			unknown = append(unknown, explanation{0, unlimited, "retransmissions that could not be sent, which this kernel does not show"})
		}
	}
	switch c {
	case timeouts:
		sure, edge := t.silentExpiries()
		if sure+edge > 0 {
			words := fmt.Sprintf("%d timers of connection requests expired for the last time, which is no event", sure+edge)
			known = append(known, explanation{sure, sure + edge, words})
			unknown = append(unknown, explanation{-sure, 0, "connection requests that ended before their timer was due"})
		}
		if t.listens {
			words := "timers of connection requests that expired and sent nothing: requests older than the trace, without a route, or of a listener with TCP_DEFER_ACCEPT"
			if t.facts.NoSynAckRetries {
				words = "timers of connection requests: tcp_synack_retries is 0, so that none is answered again"
			}
			unknown = append(unknown, explanation{0, unlimited, words})
		}
	case lossProbes:
		// A retransmission that is missing would be missing in RetransSegs too.
		if difference > 0 && results[retransSegs] == Balanced {
			known = append(known, explanation{difference, difference, fmt.Sprintf("%d loss probes carried new data: as RetransSegs balances, no retransmission is missing", difference)})
		} else {
			unknown = append(unknown, explanation{0, unlimited, "loss probes that carried new data"})
		}
	case attemptFails:
		n := int64(grown[embryonicRsts])
		x := explanation{n, n, fmt.Sprintf("%d connection requests ended by a RST or SYN of the peer, which is no event (EmbryonicRsts)", n)}
		switch {
		case n == 0:
		case t.facts.AbortOnOverflow:
			x.min = 0
			unknown = append(unknown, x)
		default:
			known = append(known, x)
		}
	case outRsts:
		if t.facts.NoLoneResets {
			// All of those at the edge, or none: a firewall that sends resets
			// beside TCP's own cannot be told.
			if n := t.unsure[c][doubtWireReset]; n != 0 && difference >= n+t.edge[c].min && difference <= n+t.edge[c].max {
				known = append(known, explanation{n, n, fmt.Sprintf("%d resets without a socket were seen leaving the namespace", n)})
			}
			if t.facts.AfterFirewall {
				unknown = append(unknown, explanation{0, unlimited, "resets without a socket that the namespace's packet filter dropped"})
			}
		}
	case abortOnData:
		if t.facts.NoResetReasons {
			unknown = append(unknown, explanation{0, unlimited, "data for a connection that was closed, which this kernel does not tell apart"})
		}
	case abortOnLinger:
		if t.facts.NoResetReasons {
			unknown = append(unknown, explanation{0, unlimited, "closes with a negative TCP_LINGER2, which this kernel does not tell apart"})
		}
	case abortOnMemory:
		unknown = append(unknown, explanation{0, unlimited, "sockets ended for lack of memory without a reset"})
	case keepAlive, winProbe:
		if n := int64(grown[outNoRoutes] + grown[ip6OutNoRoutes]); n > 0 {
			unknown = append(unknown, explanation{0, n, fmt.Sprintf("probes that found no route: %d packets did not (OutNoRoutes)", n)})
		}
		if t.facts.AfterFirewall {
			unknown = append(unknown, explanation{0, unlimited, "probes that the namespace's packet filter dropped"})
		}
	}
	return known, unknown
}

// Conclude judges a whole session from what the programs produced and from its
// generations, whose own verdicts it puts in doubt where records were lost: it
// is not known of which namespace.
func Conclude(k events.Counts, generations []events.NamespaceCounts) events.Verdict {
	var gone []string
	var by uint64
	if k.Lost > 0 {
		gone = append(gone, fmt.Sprintf("%d of %d records were lost", k.Lost, k.Produced))
	}
	if k.Missed > 0 {
		gone = append(gone, fmt.Sprintf("hooks fired %d times while their program was running already", k.Missed))
	}
	if k.Unaccounted != 0 {
		gone = append(gone, fmt.Sprintf("%d records are unaccounted for", k.Unaccounted))
	}
	by = k.Lost + k.Missed + uint64(max(k.Unaccounted, -k.Unaccounted))

	verdict := events.Verdict{State: Complete}
	var missing, untold []string
	var counted uint64
	for i := range generations {
		v := &generations[i].Verdict
		if len(gone) > 0 && v.State == Complete {
			*v = unprovable("records of this or another namespace are missing: " + strings.Join(gone, "; "))
		} else if v.State != Complete {
			into := &untold
			if v.State == Incomplete {
				into, counted = &missing, counted+v.By
			}
			n := generations[i].Netns
			for _, reason := range v.Reasons {
				name := n.Name
				if n.Generation > 1 {
					name = fmt.Sprintf("%s/%d", name, n.Generation)
				}
				*into = append(*into, name+": "+reason)
			}
		}
	}
	if k.Foreign > 0 {
		untold = append(untold, fmt.Sprintf("%d records belonged to no watched namespace", k.Foreign))
	}
	if len(generations) == 0 {
		untold = append(untold, "no namespace was watched")
	}
	switch {
	case len(gone)+len(missing) > 0:
		// A record that was lost may be missing in the counters too.
		verdict.State, verdict.By = Incomplete, max(by, counted)
	case len(untold) > 0:
		verdict.State = Unprovable
	}
	verdict.Reasons = append(append(gone, missing...), untold...)
	return verdict
}

// ErrNoFooter is returned for a session that was cut short: nothing says what
// the kernel counted.
var ErrNoFooter = errors.New("the session has no summary: it was cut short, and what the kernel counted is not known")

// Judge judges the events of one session again, from its header to its
// summary: it adds up the events anew and holds them against the counters that
// the summary recorded. It returns what the summary should say of each
// generation, and the verdict.
func Judge(evs []events.Event) ([]events.NamespaceCounts, events.Verdict, error) {
	if len(evs) == 0 || evs[0].Session == nil {
		return nil, events.Verdict{}, errors.New("the session has no header")
	}
	sum := evs[len(evs)-1].Summary
	if sum == nil {
		return nil, events.Verdict{}, ErrNoFooter
	}
	a := NewAudit(evs[0].Session, sum)
	for i := range evs {
		a.Add(&evs[i])
	}
	generations, verdict := a.Settle()
	return generations, verdict, nil
}
