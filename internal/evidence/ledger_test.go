package evidence

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sockwatch/sockwatch/internal/events"
)

const ms = 1_000_000

var (
	opened = events.Reading{StartNS: 1000 * ms, EndNS: 1001 * ms}
	closed = events.Reading{StartNS: 90_000 * ms, EndNS: 90_001 * ms}

	fast = events.Netns{Name: "controlplane", Generation: 1, Inode: 4026532301, Cookie: 8193}
)

// mid is between the readings.
const mid = 30_000 * ms

var here, there = netip.MustParseAddrPort("198.18.0.2:8080"), netip.MustParseAddrPort("198.18.0.1:40000")

func sock() *events.Sock { return &events.Sock{Family: "inet", Local: here, Remote: there} }

func retransmit(at uint64, cause string, change ...func(*events.Event)) events.Event {
	e := events.Event{
		Type: events.TypeRetransmit, MonoNS: at, Netns: &fast, Sock: sock(),
		Retransmit: &events.Retransmit{Cause: cause, Attempt: 1, Segments: 1},
		TCP:        &events.TCP{State: "ESTABLISHED", SndWnd: 64_000, UnackedBytes: 1},
	}
	for _, f := range change {
		f(&e)
	}
	return e
}

func synack(at uint64, attempt uint32, nextMs int64) events.Event {
	return retransmit(at, "synack", func(e *events.Event) {
		e.TCP, e.Retransmit.Attempt, e.Retransmit.NextDueMs = nil, attempt, nextMs
	})
}

func state(at uint64, from, to string) events.Event {
	return events.Event{Type: events.TypeState, MonoNS: at, Netns: &fast, Sock: sock(), State: &events.State{Old: from, New: to}}
}

func abort(at uint64, in, cause string, change ...func(*events.Event)) events.Event {
	e := events.Event{
		Type: events.TypeAbort, MonoNS: at, Netns: &fast, Sock: sock(),
		Abort: &events.Abort{State: in, Cause: cause},
		TCP:   &events.TCP{State: in, SndWnd: 64_000, UnackedBytes: 1, PendingTimer: "retrans"},
	}
	for _, f := range change {
		f(&e)
	}
	return e
}

func reset(at uint64, reason string, change ...func(*events.Event)) events.Event {
	e := events.Event{
		Type: events.TypeReset, MonoNS: at, Netns: &fast, Sock: sock(),
		Reset: &events.Reset{Direction: "sent", Reason: reason, Socket: true, SeenBy: "tcp_send_reset"},
	}
	for _, f := range change {
		f(&e)
	}
	return e
}

func fromEdge(e *events.Event) { e.Reset.SeenBy, e.Reset.Socket = "wire", false }

// tallyOf adds up what happened between opened and closed.
func tallyOf(f Facts, evs ...events.Event) *Tally {
	t := NewTally(f, opened)
	for i := range evs {
		t.Add(&evs[i])
	}
	t.Close(closed)
	return t
}

// TestTallyAdds: which counters each event moves, and which it may.
func TestTallyAdds(t *testing.T) {
	set := func(change func(*events.Event)) func(*events.Event) { return change }
	failed := func(name string) func(*events.Event) {
		return func(e *events.Event) { e.Retransmit.SendError = name }
	}
	for _, tt := range []struct {
		name  string
		event events.Event
		facts Facts
		sure  string // "counter n", in the order of the ledger
		may   string
	}{
		{name: "SYN again", event: retransmit(mid, "syn"), sure: "RetransSegs 1, TCPSynRetrans 1, TCPTimeouts 1"},
		{name: "SYN-ACK by its timer", event: synack(mid, 1, 2000), sure: "RetransSegs 1, TCPSynRetrans 1, TCPTimeouts 1"},
		{name: "SYN-ACK for a SYN that came again", event: retransmit(mid, "synack", set(func(e *events.Event) {
			e.TCP, e.Retransmit.DuplicateSYN = nil, true
		})), sure: "RetransSegs 1, TCPSynRetrans 1"},
		{name: "timeout", event: retransmit(mid, "rto"), sure: "RetransSegs 1, TCPTimeouts 1"},
		{name: "timeout into a closed window", event: retransmit(mid, "rto", set(func(e *events.Event) { e.TCP.SndWnd = 0 })), sure: "RetransSegs 1"},
		{name: "timeout into a closed window after FIN", event: retransmit(mid, "rto", set(func(e *events.Event) {
			e.TCP.SndWnd, e.TCP.State = 0, "FIN_WAIT1"
		})), sure: "RetransSegs 1", may: "TCPTimeouts 1"},
		{name: "timeout that could not send", event: retransmit(mid, "rto", failed("EHOSTUNREACH"), set(func(e *events.Event) {
			e.Retransmit.Segments = 0
		})), sure: "TCPTimeouts 1"},
		{name: "timeout that failed after it was counted", event: retransmit(mid, "rto", failed("EPERM")), sure: "RetransSegs 1, TCPTimeouts 1, TCPRetransFail 1"},
		{name: "timeout whose first copy is still queued", event: retransmit(mid, "rto", failed("EBUSY")), sure: "RetransSegs 1, TCPTimeouts 1"},
		{name: "loss probe", event: retransmit(mid, "tlp"), sure: "RetransSegs 1, TCPLossProbes 1"},
		{name: "loss probe that failed", event: retransmit(mid, "tlp", failed("EPERM")), sure: "RetransSegs 1, TCPRetransFail 1"},
		{name: "fast, three segments", event: retransmit(mid, "fast", set(func(e *events.Event) { e.Retransmit.Segments = 3 })), sure: "RetransSegs 3, TCPFastRetrans 3"},
		{name: "fast that failed", event: retransmit(mid, "fast", failed("NET_XMIT 1")), sure: "RetransSegs 1, TCPRetransFail 1"},
		{name: "loss recovery", event: retransmit(mid, "loss-recovery"), sure: "RetransSegs 1, TCPSlowStartRetrans 1"},
		{name: "segments too large", event: retransmit(mid, "mtu"), sure: "RetransSegs 1, TCPSlowStartRetrans 1"},
		{
			name: "undecided retransmission", event: retransmit(mid, "undecided"), sure: "RetransSegs 1",
			may: "TCPTimeouts 1, TCPLossProbes 1, TCPFastRetrans 1, TCPSlowStartRetrans 1",
		},

		{name: "connect", event: state(mid, "CLOSE", "SYN_SENT"), sure: "ActiveOpens 1"},
		{name: "accepted", event: state(mid, "LISTEN", "SYN_RECV"), sure: "PassiveOpens 1"},
		{name: "both connect", event: state(mid, "SYN_SENT", "SYN_RECV")},
		{name: "ends established", event: state(mid, "ESTABLISHED", "CLOSE"), sure: "EstabResets 1"},
		{name: "ends half-closed", event: state(mid, "CLOSE_WAIT", "CLOSE"), sure: "EstabResets 1"},
		{name: "handshake fails", event: state(mid, "SYN_RECV", "CLOSE"), sure: "AttemptFails 1"},
		{name: "orderly end", event: state(mid, "FIN_WAIT2", "CLOSE")},
		{name: "orderly end, passive", event: state(mid, "LAST_ACK", "CLOSE"), may: "TCPAbortOnData 1"},

		{name: "refused", event: abort(mid, "SYN_SENT", "refused"), sure: "AttemptFails 1"},
		{name: "refused by ICMP at the timer", event: abort(mid, "SYN_SENT", "refused", set(func(e *events.Event) {
			e.TCP.PendingTimer = "none"
		})), sure: "TCPTimeouts 1, AttemptFails 1, TCPAbortOnTimeout 1"},
		{name: "cancelled", event: abort(mid, "SYN_SENT", "connect-cancelled")},
		{name: "cancelled, linger 0", event: abort(mid, "SYN_SENT", "connect-cancelled", set(func(e *events.Event) {
			e.Abort.Facts.Linger = true
		})), may: "TCPAbortOnData 1"},
		{name: "no port to connect from", event: abort(mid, "SYN_SENT", "connect-cancelled", set(func(e *events.Event) {
			e.TCP.UnackedBytes = 0
		})), sure: "ActiveOpens -1"},
		{name: "SYN timeout", event: abort(mid, "SYN_SENT", "retries-exhausted"), sure: "TCPTimeouts 1, AttemptFails 1, TCPAbortOnTimeout 1"},
		{name: "retries exhausted", event: abort(mid, "ESTABLISHED", "retries-exhausted"), sure: "TCPTimeouts 1, TCPAbortOnTimeout 1"},
		{name: "user timeout in the probe timer", event: abort(mid, "ESTABLISHED", "user-timeout", set(func(e *events.Event) {
			e.TCP.UnackedBytes, e.TCP.SndWnd = 0, 0
		})), sure: "TCPAbortOnTimeout 1"},
		{name: "user timeout into a closed window", event: abort(mid, "ESTABLISHED", "user-timeout", set(func(e *events.Event) {
			e.TCP.SndWnd = 0
		})), sure: "TCPAbortOnTimeout 1"},
		{name: "the same of a dead socket", event: abort(mid, "FIN_WAIT1", "user-timeout", set(func(e *events.Event) {
			e.TCP.SndWnd, e.Abort.Facts.Dead = 0, true
		})), sure: "TCPTimeouts 1, TCPAbortOnTimeout 1"},
		{name: "keepalive", event: abort(mid, "ESTABLISHED", "keepalive"), sure: "TCPAbortOnTimeout 1"},
		{name: "unreachable, established", event: abort(mid, "ESTABLISHED", "unreachable"), sure: "TCPTimeouts 1, TCPAbortOnTimeout 1"},
		{name: "unreachable at once", event: abort(mid, "SYN_SENT", "unreachable"), sure: "AttemptFails 1"},
		{name: "unread data", event: abort(mid, "ESTABLISHED", "close-with-unread-data", set(func(e *events.Event) {
			e.TCP.UnreadBytes = 7
		})), sure: "TCPAbortOnClose 1"},
		{name: "data after close", event: abort(mid, "FIN_WAIT2", "close-with-unread-data")},
		{name: "data after close, old kernel", event: abort(mid, "FIN_WAIT2", "close-with-unread-data"), facts: Facts{NoResetReasons: true}, sure: "TCPAbortOnData 1"},
		{name: "linger 0", event: abort(mid, "ESTABLISHED", "linger-zero"), sure: "TCPAbortOnData 1"},
		{name: "linger 0 of a subflow", event: abort(mid, "ESTABLISHED", "linger-zero", set(func(e *events.Event) {
			e.Sock.MPTCP = true
		})), may: "TCPAbortOnData 1"},
		{name: "reset", event: abort(mid, "ESTABLISHED", "reset-received")},
		{
			name: "undecided abort", event: abort(mid, "SYN_SENT", "undecided"),
			may: "TCPTimeouts 1, AttemptFails 1, TCPAbortOnTimeout 1, TCPAbortOnClose 1, TCPAbortOnData 1, TCPAbortOnLinger 1, TCPAbortOnMemory 1",
		},

		{name: "reset sent", event: reset(mid, "TCP_STATE"), sure: "OutRsts 1"},
		{name: "reset for data after close", event: reset(mid, "TCP_ABORT_ON_DATA"), sure: "OutRsts 1, TCPAbortOnData 1"},
		{name: "reset by TCP_LINGER2", event: reset(mid, "TCP_ABORT_ON_LINGER"), sure: "OutRsts 1, TCPAbortOnData -1, TCPAbortOnLinger 1"},
		{name: "reset without memory", event: reset(mid, "TCP_ABORT_ON_MEMORY"), sure: "OutRsts 1, TCPAbortOnMemory 1", may: "TCPTimeouts 1"},
		{name: "answer over IPv6", event: reset(mid, "NO_SOCKET", set(func(e *events.Event) {
			e.Sock.Remote, e.Reset.Trigger = netip.MustParseAddrPort("[2001:db8::1]:1"), &events.Segment{}
		})), sure: "OutRsts 1", may: "OutRsts -1"},
		{name: "reset of a firewall", event: reset(mid, "", fromEdge)},
		{name: "reset at the edge of an old kernel", event: reset(mid, "", fromEdge), facts: Facts{NoLoneResets: true}, may: "OutRsts 1"},
		{name: "reset received", event: reset(mid, "", set(func(e *events.Event) { e.Reset.Direction = "received" }))},

		{name: "keepalive probe", event: events.Event{Type: events.TypeProbe, MonoNS: mid, Probe: &events.Probe{Kind: "keepalive", Direction: "sent"}}, sure: "TCPKeepAlive 1"},
		{name: "keepalive probe received", event: events.Event{Type: events.TypeProbe, MonoNS: mid, Probe: &events.Probe{Kind: "keepalive", Direction: "received"}}},
		{name: "window probe", event: events.Event{Type: events.TypeProbe, MonoNS: mid, Probe: &events.Probe{Kind: "zero-window", Direction: "sent"}}, sure: "TCPWinProbe 1"},
		{name: "mark", event: events.Event{Type: events.TypeMark, MonoNS: mid, Mark: &events.Mark{}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tally := tallyOf(tt.facts, tt.event)
			var sure, may []string
			for c, n := range tally.sure {
				if n != 0 {
					sure = append(sure, fmt.Sprint(counterNames[c], " ", n))
				}
				sum := int64(0)
				for _, n := range tally.unsure[c] {
					sum += n
				}
				if sum != 0 {
					may = append(may, fmt.Sprint(counterNames[c], " ", sum))
				}
			}
			if got := strings.Join(sure, ", "); got != tt.sure {
				t.Errorf("sure %q, want %q", got, tt.sure)
			}
			if got := strings.Join(may, ", "); got != tt.may {
				t.Errorf("may %q, want %q", got, tt.may)
			}
			for c, s := range tally.edge {
				if s != (span{}) {
					t.Errorf("%s has %+v inside a reading", counterNames[c], s)
				}
			}
		})
	}
}

// lineOf is the ledger's line of a counter.
func lineOf(t *testing.T, l events.Ledger, name string) events.LedgerLine {
	t.Helper()
	for _, line := range l.Lines {
		if line.Counter == name {
			return line
		}
	}
	t.Fatalf("no line of %s", name)
	return events.LedgerLine{}
}

// TestBrackets puts one event at every place around the readings.
func TestBrackets(t *testing.T) {
	const margin = softirqMargin
	for _, tt := range []struct {
		name   string
		at     uint64
		fits   []uint64 // what the kernel may have counted
		events int64
	}{
		{"long before", 1, []uint64{0}, 0},
		{"just before the margin", opened.StartNS - margin - 1, []uint64{0}, 0},
		{"in the margin before", opened.StartNS - margin, []uint64{0, 1}, 0},
		{"while they are read", opened.StartNS + 1, []uint64{0, 1}, 0},
		{"in the margin after", opened.EndNS + margin, []uint64{0, 1}, 0},
		{"just after the margin", opened.EndNS + margin + 1, []uint64{1}, 1},
		{"between", mid, []uint64{1}, 1},
		{"just before the last margin", closed.StartNS - margin - 1, []uint64{1}, 1},
		{"in the last margin", closed.StartNS - margin, []uint64{0, 1}, 0},
		{"while they are read again", closed.EndNS, []uint64{0, 1}, 0},
		{"in the very last margin", closed.EndNS + margin, []uint64{0, 1}, 0},
		{"after all", closed.EndNS + margin + 1, []uint64{0}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for kernel := range uint64(3) {
				e := retransmit(tt.at, "fast")
				led, verdict := tallyOf(Facts{}, e).judge(map[string]uint64{"RetransSegs": kernel, "TCPFastRetrans": kernel})
				line := lineOf(t, led, "RetransSegs")
				if line.Events != tt.events || line.Difference != int64(kernel)-tt.events {
					t.Errorf("kernel %d: %+v", kernel, line)
				}
				if slices.Contains(tt.fits, kernel) {
					if line.Result != Balanced || verdict.State != Complete || line.Explained != line.Difference {
						t.Errorf("kernel %d: %+v %+v", kernel, line, verdict)
					}
					if (line.Why == "") != (line.Difference == 0) {
						t.Errorf("kernel %d: difference %d because of %q", kernel, line.Difference, line.Why)
					}
					continue
				}
				far := min(dist(kernel, tt.fits[0]), dist(kernel, tt.fits[len(tt.fits)-1]))
				if line.Result != Incomplete || verdict.State != Incomplete || verdict.By != far || line.Why == "" {
					t.Errorf("kernel %d: %+v %+v, want incomplete by %d", kernel, line, verdict, far)
				}
			}
		})
	}
}

func dist(a, b uint64) uint64 { return max(a, b) - min(a, b) }

// A process that opens a connection may lose the processor before it counts.
func TestBracketOfAProcess(t *testing.T) {
	e := state(opened.StartNS-5*ms, "CLOSE", "SYN_SENT")
	for kernel := range uint64(2) {
		if _, v := tallyOf(Facts{}, e).judge(map[string]uint64{"ActiveOpens": kernel}); v.State != Complete {
			t.Errorf("kernel %d: %+v", kernel, v)
		}
	}
}

func TestJudgeLines(t *testing.T) {
	type grown = map[string]uint64
	listening := events.Event{Type: events.TypeInventory, MonoNS: 1, Inventory: &events.Inventory{}, TCP: &events.TCP{State: "LISTEN"}}
	probe := events.Event{Type: events.TypeProbe, MonoNS: mid, Probe: &events.Probe{Kind: "keepalive", Direction: "sent"}}
	for _, tt := range []struct {
		name    string
		facts   Facts
		events  []events.Event
		grown   grown
		counter string
		result  string
		by      uint64
		why     string // part of it
	}{
		{name: "nothing happened", grown: grown{"RetransSegs": 0}, counter: "RetransSegs", result: Balanced},
		{name: "one is missing", events: []events.Event{retransmit(mid, "rto")}, grown: grown{"RetransSegs": 2}, counter: "RetransSegs", result: Incomplete, by: 1, why: "1 are not in the events"},
		{name: "one too many", events: []events.Event{retransmit(mid, "rto")}, grown: grown{"RetransSegs": 0}, counter: "RetransSegs", result: Incomplete, by: 1, why: "1 in the events were not counted"},

		{name: "loss probe with new data", events: []events.Event{retransmit(mid, "tlp")}, grown: grown{"RetransSegs": 1, "TCPLossProbes": 3}, counter: "TCPLossProbes", result: Balanced, why: "2 loss probes carried new data"},
		{name: "loss probe that may be missing", events: []events.Event{retransmit(mid, "tlp")}, grown: grown{"RetransSegs": 2, "TCPLossProbes": 2}, counter: "TCPLossProbes", result: Unprovable, why: "loss probes that carried new data"},
		{name: "loss probe that is not counted", events: []events.Event{retransmit(mid, "tlp")}, grown: grown{"RetransSegs": 1, "TCPLossProbes": 0}, counter: "TCPLossProbes", result: Incomplete, by: 1},

		{name: "requests ended by RST", grown: grown{"AttemptFails": 2, "EmbryonicRsts": 2}, counter: "AttemptFails", result: Balanced, why: "2 connection requests"},
		{name: "one more than that", grown: grown{"AttemptFails": 3, "EmbryonicRsts": 2}, counter: "AttemptFails", result: Incomplete, by: 1},
		{name: "fewer than that", grown: grown{"AttemptFails": 1, "EmbryonicRsts": 2}, counter: "AttemptFails", result: Incomplete, by: 1},
		{name: "or by overflow", facts: Facts{AbortOnOverflow: true}, grown: grown{"AttemptFails": 1, "EmbryonicRsts": 2}, counter: "AttemptFails", result: Unprovable, why: "EmbryonicRsts"},
		{name: "no difference, no doubt", facts: Facts{AbortOnOverflow: true}, grown: grown{"AttemptFails": 0, "EmbryonicRsts": 2}, counter: "AttemptFails", result: Balanced},

		{name: "timeout without a listener", grown: grown{"TCPTimeouts": 1}, counter: "TCPTimeouts", result: Incomplete, by: 1},
		{name: "timeout beside a listener", events: []events.Event{listening}, grown: grown{"TCPTimeouts": 1}, counter: "TCPTimeouts", result: Unprovable, why: "older than the trace"},
		{name: "no SYN-ACK is sent again", facts: Facts{NoSynAckRetries: true}, events: []events.Event{listening}, grown: grown{"TCPTimeouts": 1}, counter: "TCPTimeouts", result: Unprovable, why: "tcp_synack_retries is 0"},
		{name: "request given up", events: []events.Event{synack(mid, 1, 2000), synack(mid+2000*ms, 2, 4000)}, grown: grown{"TCPTimeouts": 3}, counter: "TCPTimeouts", result: Balanced, why: "1 timers of connection requests"},
		{name: "request answered", events: []events.Event{synack(mid, 1, 2000), state(mid+1*ms, "LISTEN", "SYN_RECV")}, grown: grown{"TCPTimeouts": 1}, counter: "TCPTimeouts", result: Balanced},
		{name: "request answered, one is missing", events: []events.Event{synack(mid, 1, 2000), state(mid+1*ms, "LISTEN", "SYN_RECV")}, grown: grown{"TCPTimeouts": 2}, counter: "TCPTimeouts", result: Unprovable},
		{name: "request reset", events: []events.Event{synack(mid, 1, 2000), reset(mid+1*ms, "", fromEdge, func(e *events.Event) { e.Reset.Direction = "received" })}, grown: grown{"TCPTimeouts": 1}, counter: "TCPTimeouts", result: Balanced},
		{name: "listener closed", events: []events.Event{synack(mid, 1, 2000), state(mid+1*ms, "LISTEN", "CLOSE")}, grown: grown{"TCPTimeouts": 1}, counter: "TCPTimeouts", result: Balanced},
		{name: "request ended by ICMP", events: []events.Event{synack(mid, 1, 2000)}, grown: grown{"TCPTimeouts": 1}, counter: "TCPTimeouts", result: Balanced},
		{name: "one of two requests ended by ICMP", events: []events.Event{synack(mid, 1, 2000), synack(mid+8000*ms, 1, 2000)}, grown: grown{"TCPTimeouts": 3}, counter: "TCPTimeouts", result: Unprovable, why: "ended before their timer was due"},
		{name: "request still waits", events: []events.Event{synack(closed.StartNS-100*ms, 1, 2000)}, grown: grown{"TCPTimeouts": 1}, counter: "TCPTimeouts", result: Balanced},
		{name: "request due about now", events: []events.Event{synack(closed.StartNS-2100*ms, 1, 2000)}, grown: grown{"TCPTimeouts": 1}, counter: "TCPTimeouts", result: Balanced},
		{name: "request due about now, expired", events: []events.Event{synack(closed.StartNS-2100*ms, 1, 2000)}, grown: grown{"TCPTimeouts": 2}, counter: "TCPTimeouts", result: Balanced},
		{name: "the same addresses again", events: []events.Event{synack(mid, 1, 2000), synack(mid+8000*ms, 1, 2000), state(mid+8001*ms, "LISTEN", "SYN_RECV")}, grown: grown{"TCPTimeouts": 3}, counter: "TCPTimeouts", result: Balanced},

		{name: "old kernel, failed", facts: Facts{NoFailedRetransmits: true}, grown: grown{"RetransSegs": 2, "TCPRetransFail": 2}, counter: "RetransSegs", result: Balanced, why: "TCPRetransFail"},
		{name: "old kernel, failed itself", facts: Facts{NoFailedRetransmits: true}, grown: grown{"RetransSegs": 2, "TCPRetransFail": 2}, counter: "TCPRetransFail", result: Balanced},
		{name: "old kernel, more than failed", facts: Facts{NoFailedRetransmits: true}, grown: grown{"RetransSegs": 3, "TCPRetransFail": 2}, counter: "RetransSegs", result: Incomplete, by: 1},
		{name: "old kernel, timeouts", facts: Facts{NoFailedRetransmits: true}, grown: grown{"TCPTimeouts": 1}, counter: "TCPTimeouts", result: Unprovable, why: "could not be sent"},
		{name: "old kernel, SYNs", facts: Facts{NoFailedRetransmits: true}, grown: grown{"TCPSynRetrans": 2, "RetransSegs": 1, "TCPRetransFail": 1}, counter: "TCPSynRetrans", result: Incomplete, by: 1},
		{name: "new kernel, failed", grown: grown{"RetransSegs": 2, "TCPRetransFail": 2}, counter: "RetransSegs", result: Incomplete, by: 2},

		{name: "firewall beside TCP", events: []events.Event{reset(mid, ""), reset(mid, "", fromEdge)}, grown: grown{"OutRsts": 1}, counter: "OutRsts", result: Balanced},
		{name: "old kernel, no socket", facts: Facts{NoLoneResets: true}, events: []events.Event{reset(mid, "", fromEdge), reset(mid, "", fromEdge)}, grown: grown{"OutRsts": 2}, counter: "OutRsts", result: Balanced, why: "2 resets without a socket"},
		{name: "old kernel, firewall", facts: Facts{NoLoneResets: true}, events: []events.Event{reset(mid, "", fromEdge), reset(mid, "", fromEdge)}, grown: grown{"OutRsts": 0}, counter: "OutRsts", result: Balanced},
		{name: "old kernel, both", facts: Facts{NoLoneResets: true}, events: []events.Event{reset(mid, "", fromEdge), reset(mid, "", fromEdge)}, grown: grown{"OutRsts": 1}, counter: "OutRsts", result: Unprovable, why: "firewall"},
		{name: "old kernel, missing", facts: Facts{NoLoneResets: true}, events: []events.Event{reset(mid, "", fromEdge)}, grown: grown{"OutRsts": 3}, counter: "OutRsts", result: Incomplete, by: 2},
		{name: "behind a firewall", facts: Facts{NoLoneResets: true, AfterFirewall: true}, grown: grown{"OutRsts": 3}, counter: "OutRsts", result: Unprovable, why: "packet filter"},

		{name: "probes", events: []events.Event{probe}, grown: grown{"TCPKeepAlive": 1, "OutNoRoutes": 5}, counter: "TCPKeepAlive", result: Balanced},
		{name: "probe is missing", events: []events.Event{probe}, grown: grown{"TCPKeepAlive": 2}, counter: "TCPKeepAlive", result: Incomplete, by: 1},
		{name: "probe without a route", events: []events.Event{probe}, grown: grown{"TCPKeepAlive": 2, "Ip6OutNoRoutes": 1}, counter: "TCPKeepAlive", result: Unprovable, why: "OutNoRoutes"},
		{name: "probe missing all the same", events: []events.Event{probe}, grown: grown{"TCPKeepAlive": 3, "OutNoRoutes": 1}, counter: "TCPKeepAlive", result: Incomplete, by: 1},

		{name: "undecided, one way", events: []events.Event{retransmit(mid, "undecided")}, grown: grown{"TCPFastRetrans": 1}, counter: "TCPFastRetrans", result: Unprovable, why: "undecided"},
		{name: "undecided, the other", events: []events.Event{retransmit(mid, "undecided")}, grown: grown{"TCPFastRetrans": 0}, counter: "TCPFastRetrans", result: Balanced},
		{name: "undecided and missing", events: []events.Event{retransmit(mid, "undecided")}, grown: grown{"TCPFastRetrans": 2}, counter: "TCPFastRetrans", result: Incomplete, by: 1},
		{name: "passive end with linger 0", events: []events.Event{state(mid, "LAST_ACK", "CLOSE")}, grown: grown{"TCPAbortOnData": 1}, counter: "TCPAbortOnData", result: Unprovable, why: "after both FINs"},
		{name: "out of memory without a RST", grown: grown{"TCPAbortOnMemory": 1}, counter: "TCPAbortOnMemory", result: Unprovable, why: "without a reset"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			led, verdict := tallyOf(tt.facts, tt.events...).judge(tt.grown)
			line := lineOf(t, led, tt.counter)
			if line.Result != tt.result || !strings.Contains(line.Why, tt.why) {
				t.Fatalf("%+v, want %s because of %q", line, tt.result, tt.why)
			}
			if line.Difference != int64(line.Kernel)-line.Events {
				t.Errorf("the difference does not add up: %+v", line)
			}
			switch tt.result {
			case Balanced:
				if line.Explained != line.Difference {
					t.Errorf("balanced, and not explained: %+v", line)
				}
			case Unprovable:
				if line.Difference == 0 || line.Why == "" {
					t.Errorf("nothing to doubt: %+v", line)
				}
			case Incomplete:
				rest := line.Difference - line.Explained
				if verdict.State != Incomplete || verdict.By < tt.by || uint64(max(rest, -rest)) != tt.by {
					t.Errorf("%+v %+v, want incomplete by %d", line, verdict, tt.by)
				}
			}
			if tt.result != Balanced && !slices.ContainsFunc(verdict.Reasons, func(s string) bool { return strings.HasPrefix(s, tt.counter+": ") }) {
				t.Errorf("the verdict does not name %s: %q", tt.counter, verdict.Reasons)
			}
			if (verdict.State == Complete) != (len(verdict.Reasons) == 0) {
				t.Errorf("%+v", verdict)
			}
		})
	}
}

func TestConclude(t *testing.T) {
	gen := func(state string, by uint64, reasons ...string) events.NamespaceCounts {
		return events.NamespaceCounts{Netns: fast, Verdict: events.Verdict{State: state, By: by, Reasons: reasons}}
	}
	second := gen(Incomplete, 2, "RetransSegs: ...")
	second.Netns.Generation = 2
	for _, tt := range []struct {
		name string
		k    events.Counts
		gens []events.NamespaceCounts
		want events.Verdict
		each string
	}{
		{"all well", events.Counts{Produced: 9, Read: 9}, []events.NamespaceCounts{gen(Complete, 0)}, events.Verdict{State: Complete}, "complete"},
		{"nothing watched", events.Counts{}, nil, events.Verdict{State: Unprovable, Reasons: []string{"no namespace was watched"}}, ""},
		{
			"records lost",
			events.Counts{Produced: 9, Read: 6, Lost: 3},
			[]events.NamespaceCounts{gen(Complete, 0)},
			events.Verdict{State: Incomplete, By: 3, Reasons: []string{"3 of 9 records were lost"}},
			"unprovable",
		},
		{
			"lost and counted",
			events.Counts{Produced: 9, Read: 6, Lost: 3},
			[]events.NamespaceCounts{gen(Incomplete, 5, "RetransSegs: five")},
			events.Verdict{State: Incomplete, By: 5, Reasons: []string{"3 of 9 records were lost", "controlplane: RetransSegs: five"}},
			"incomplete",
		},
		{
			"missed",
			events.Counts{Missed: 2},
			[]events.NamespaceCounts{gen(Complete, 0)},
			events.Verdict{State: Incomplete, By: 2, Reasons: []string{"hooks fired 2 times while their program was running already"}},
			"unprovable",
		},
		{
			"unaccounted for",
			events.Counts{Unaccounted: -1},
			[]events.NamespaceCounts{gen(Complete, 0)},
			events.Verdict{State: Incomplete, By: 1, Reasons: []string{"-1 records are unaccounted for"}},
			"unprovable",
		},
		{
			"two generations",
			events.Counts{},
			[]events.NamespaceCounts{gen(Incomplete, 1, "OutRsts: ..."), second},
			events.Verdict{State: Incomplete, By: 3, Reasons: []string{"controlplane: OutRsts: ...", "controlplane/2: RetransSegs: ..."}},
			"incomplete incomplete",
		},
		{
			"foreign",
			events.Counts{Foreign: 4},
			[]events.NamespaceCounts{gen(Complete, 0)},
			events.Verdict{State: Unprovable, Reasons: []string{"4 records belonged to no watched namespace"}},
			"complete",
		},
		{
			"one cannot be told",
			events.Counts{},
			[]events.NamespaceCounts{gen(Complete, 0), gen(Unprovable, 0, "why")},
			events.Verdict{State: Unprovable, Reasons: []string{"controlplane: why"}},
			"complete unprovable",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := Conclude(tt.k, tt.gens)
			if d := cmp.Diff(tt.want, got, cmpopts.EquateEmpty()); d != "" {
				t.Error(d)
			}
			var each []string
			for _, g := range tt.gens {
				each = append(each, g.Verdict.State)
			}
			if strings.Join(each, " ") != tt.each {
				t.Errorf("generations are %v, want %q", each, tt.each)
			}
		})
	}
}

func TestSettle(t *testing.T) {
	read := func(r events.Reading, v uint64) Counters {
		return Counters{Reading: r, Values: map[string]uint64{"RetransSegs": v}}
	}
	a := Account{Before: read(opened, 7), After: read(closed, 9), Tally: tallyOf(Facts{}, retransmit(mid, "fast"), retransmit(mid, "fast"))}
	led, v := a.Settle()
	if line := lineOf(t, led, "RetransSegs"); v.State != Complete || line.Kernel != 2 || led.Opened != opened || led.Closed != closed {
		t.Errorf("%+v %+v", led, v)
	}
	a.After = read(closed, 3)
	if _, v := a.Settle(); v.State != Unprovable || !strings.Contains(v.Reasons[0], "reset") {
		t.Errorf("counters that fell: %+v", v)
	}
	a.Err = ErrNoFooter
	if led, v := a.Settle(); v.State != Unprovable || len(led.Lines) != 0 {
		t.Errorf("counters that could not be read: %+v", v)
	}
}

// randomEvents are of every kind that counts, in the order in which a session
// would write them: nearly by time.
func randomEvents(r *rand.Rand, n int) []events.Event {
	evs := make([]events.Event, n)
	at := opened.StartNS - 100*ms
	for i := range evs {
		at += r.Uint64N(2 * (closed.EndNS - opened.StartNS) / uint64(n))
		mono := at - r.Uint64N(200*ms)
		switch r.IntN(6) {
		case 0:
			evs[i] = state(mono, "CLOSE", "SYN_SENT")
		case 1:
			evs[i] = abort(mono, "ESTABLISHED", []string{"user-timeout", "linger-zero", "undecided"}[r.IntN(3)])
		case 2:
			evs[i] = reset(mono, []string{"", "TCP_ABORT_ON_LINGER", "TCP_ABORT_ON_DATA"}[r.IntN(3)])
		case 3:
			evs[i] = synack(mono, 1+r.Uint32N(3), 1000<<r.IntN(4))
		default:
			evs[i] = retransmit(mono, []string{"rto", "tlp", "fast", "undecided"}[r.IntN(4)])
		}
	}
	return evs
}

// TestTallyOrder: a session adds while it runs and learns of the last reading
// at the end; a saved file is added up with both readings known.
func TestTallyOrder(t *testing.T) {
	for seed := range uint64(50) {
		evs := randomEvents(rand.New(rand.NewPCG(seed, 1)), 2000)
		last := slices.IndexFunc(evs, func(e events.Event) bool { return e.MonoNS > closed.EndNS })
		known, live := NewTally(Facts{}, opened), NewTally(Facts{}, opened)
		known.Close(closed)
		for i := range evs {
			if i == last {
				live.Close(closed)
			}
			live.Add(&evs[i])
			known.Add(&evs[i])
		}
		if last < 0 {
			live.Close(closed)
		}
		if live.sure != known.sure || live.edge != known.edge || live.unsure != known.unsure {
			t.Fatalf("seed %d: sums differ:\n%v %v\n%v %v", seed, live.sure, live.edge, known.sure, known.edge)
		}
		a, b := live.silentExpiries()
		if c, d := known.silentExpiries(); a != c || b != d {
			t.Fatalf("seed %d: silent expiries %d %d and %d %d", seed, a, b, c, d)
		}
	}
}

// The tally is on the path of every event.
func TestTallyAllocates(t *testing.T) {
	tally := NewTally(Facts{}, opened)
	e := retransmit(mid, "rto")
	step := func() {
		for range 100 {
			e.MonoNS += 100_000
			tally.Add(&e)
		}
	}
	for range 20 {
		step()
	}
	if n := testing.AllocsPerRun(100, step); n > 0 {
		t.Errorf("%v allocations for 100 events", n)
	}
	if n := len(tally.recent); n > 1000 {
		t.Errorf("%d items wait, of a margin of %d events", n, softirqMargin/100_000)
	}
}

// Requests that never end must not be kept for ever.
func TestTallyForgetsRequests(t *testing.T) {
	tally := NewTally(Facts{}, opened)
	const n = 20_000
	for i := range n {
		e := synack(opened.EndNS+2*processMargin+uint64(i)*4*ms, 1, 1000)
		e.Sock.Remote = netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}), 1)
		tally.Add(&e)
	}
	if len(tally.requests) > 4096 {
		t.Errorf("%d requests are kept", len(tally.requests))
	}
	tally.Close(closed)
	if sure, edge := tally.silentExpiries(); sure+edge != n {
		t.Errorf("%d and %d expired of %d", sure, edge, n)
	}
}

// file is a session as it would be read from disk.
func file(evs ...events.Event) []events.Event {
	all := []events.Event{
		{Seq: 1, Type: events.TypeSession, Session: &events.Session{Schema: events.SchemaVersion}},
		{Type: events.TypeTarget, Netns: &fast, MonoNS: opened.EndNS, Target: &events.Target{
			Change: "attached", Sysctls: map[string]string{"tcp_abort_on_overflow": "0", "tcp_synack_retries": "5"},
		}},
	}
	all = append(all, evs...)
	tally := tallyOf(NewFacts(nil, all[1].Target.Sysctls), evs...)
	grown := make(map[string]uint64)
	for c := range numCounters {
		grown[counterNames[c]] = uint64(max(0, tally.sure[c]))
	}
	n := events.NamespaceCounts{Netns: fast, Events: map[string]uint64{"target": 1}}
	for _, e := range evs {
		n.Events[string(e.Type)]++
	}
	n.Ledger, n.Verdict = tally.judge(grown)
	sum := &events.Summary{Namespaces: []events.NamespaceCounts{n}}
	sum.Verdict = Conclude(sum.Kernel, sum.Namespaces)
	return append(all, events.Event{Type: events.TypeSummary, Summary: sum})
}

func TestJudge(t *testing.T) {
	whole := file(
		retransmit(mid, "tlp"), retransmit(mid+1, "rto"), retransmit(mid+2, "fast"), retransmit(mid+3, "loss-recovery"), retransmit(mid+4, "syn"), synack(mid+5, 1, 2000),
		state(mid+6, "LISTEN", "SYN_RECV"), state(mid+7, "CLOSE", "SYN_SENT"), state(mid+8, "ESTABLISHED", "CLOSE"),
		abort(mid+9, "ESTABLISHED", "user-timeout"), abort(mid+10, "ESTABLISHED", "linger-zero"), abort(mid+11, "SYN_SENT", "refused"),
		abort(mid+12, "ESTABLISHED", "close-with-unread-data", func(e *events.Event) { e.TCP.UnreadBytes = 1 }),
		reset(mid+13, "TCP_STATE"), reset(mid+14, "TCP_ABORT_ON_MEMORY"),
		events.Event{Type: events.TypeProbe, MonoNS: mid + 15, Netns: &fast, Probe: &events.Probe{Kind: "keepalive", Direction: "sent"}},
	)
	gens, verdict, err := Judge(whole)
	if err != nil {
		t.Fatal(err)
	}
	sum := whole[len(whole)-1].Summary
	if d := cmp.Diff(sum.Namespaces, gens, cmpopts.EquateEmpty()); d != "" {
		t.Errorf("generations: %s", d)
	}
	if verdict.State != Complete {
		t.Fatalf("%+v", verdict)
	}

	// Whichever event is taken out, it is missed.
	for i := 2; i < len(whole)-1; i++ {
		cut := slices.Delete(slices.Clone(whole), i, i+1)
		_, verdict, err := Judge(cut)
		if err != nil {
			t.Fatal(err)
		}
		if verdict.State != Incomplete || verdict.By != 1 {
			t.Errorf("without %s %+v%+v%+v: %+v", whole[i].Type, whole[i].Retransmit, whole[i].State, whole[i].Abort, verdict)
		}
	}

	if _, _, err := Judge(whole[:len(whole)-1]); !errors.Is(err, ErrNoFooter) {
		t.Errorf("cut short: %v", err)
	}
	if _, _, err := Judge(whole[1:]); err == nil {
		t.Error("without a header: no error")
	}
	if _, _, err := Judge(nil); err == nil {
		t.Error("empty: no error")
	}
}

// Every counter has a name, and every doubt its words.
func TestLedgerTables(t *testing.T) {
	seen := make(map[string]bool)
	for c, name := range counterNames {
		if name == "" || seen[name] {
			t.Errorf("counter %d is named %q", c, name)
		}
		seen[name] = true
	}
	for d := certain + 1; d < numDoubts; d++ {
		if doubtReasons[d] == "" {
			t.Errorf("doubt %d has no words", d)
		}
	}
	all := slices.Collect(maps.Keys(seen))
	if len(all) != int(numCounters) {
		t.Errorf("%d names of %d counters", len(all), numCounters)
	}
}
