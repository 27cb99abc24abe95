package evidence

import (
	"net/netip"
	"slices"

	"github.com/sockwatch/sockwatch/internal/events"
)

// counter is one line of the ledger.
type counter uint8

const (
	retransSegs counter = iota
	synRetrans
	timeouts
	lossProbes
	fastRetrans
	slowStartRetrans
	retransFail
	outRsts
	estabResets
	attemptFails
	activeOpens
	passiveOpens
	abortOnTimeout
	abortOnClose
	abortOnData
	abortOnLinger
	abortOnMemory
	keepAlive
	winProbe
	numCounters
)

var counterNames = [numCounters]string{
	retransSegs:      "RetransSegs",
	synRetrans:       "TCPSynRetrans",
	timeouts:         "TCPTimeouts",
	lossProbes:       "TCPLossProbes",
	fastRetrans:      "TCPFastRetrans",
	slowStartRetrans: "TCPSlowStartRetrans",
	retransFail:      "TCPRetransFail",
	outRsts:          "OutRsts",
	estabResets:      "EstabResets",
	attemptFails:     "AttemptFails",
	activeOpens:      "ActiveOpens",
	passiveOpens:     "PassiveOpens",
	abortOnTimeout:   "TCPAbortOnTimeout",
	abortOnClose:     "TCPAbortOnClose",
	abortOnData:      "TCPAbortOnData",
	abortOnLinger:    "TCPAbortOnLinger",
	abortOnMemory:    "TCPAbortOnMemory",
	keepAlive:        "TCPKeepAlive",
	winProbe:         "TCPWinProbe",
}

// Counters beside the ledger, which explain differences.
const (
	embryonicRsts  = "EmbryonicRsts"
	outNoRoutes    = "OutNoRoutes"
	ip6OutNoRoutes = "Ip6OutNoRoutes"
)

// The kernel counts microseconds before or after the hook. Where a process is
// in the call it may lose the processor in between.
const (
	softirqMargin = 1_000_000
	processMargin = 10_000_000
)

// margins are the nanoseconds that may lie between the count and the event.
var margins = func() (m [numCounters]uint64) {
	for c := range m {
		m[c] = softirqMargin
	}
	for _, c := range []counter{activeOpens, outRsts, estabResets, attemptFails, abortOnClose, abortOnData, abortOnLinger} {
		m[c] = processMargin
	}
	return m
}()

// doubt is why an event may or may not have been counted.
type doubt uint8

const (
	certain doubt = iota
	doubtUndecided
	doubtZeroWindow
	doubtMemory
	doubtWireReset
	doubtUnrouted
	doubtCancelled
	doubtLastAck
	doubtSubflow
	numDoubts
)

var doubtReasons = [numDoubts]string{
	doubtUndecided:  "events whose cause is undecided",
	doubtZeroWindow: "timeouts into a closed window after FIN, which count only if no process has the socket open",
	doubtMemory:     "aborts for lack of memory, which count if the retransmission timer found it",
	doubtWireReset:  "resets seen leaving the namespace, which this kernel does not tell from a firewall's",
	doubtUnrouted:   "resets over IPv6, which do not count without a route",
	doubtCancelled:  "connects that were cancelled with a linger time of 0, which count if it was by close",
	doubtSubflow:    "subflows that MPTCP reset for a close with a linger time of 0, which it may not count",
	doubtLastAck:    "connections that ended after both FINs, which count if it was by close with a linger time of 0",
}

// Facts are what a verdict must know of the kernel and the namespace.
type Facts struct {
	NoFailedRetransmits bool // those given up before they left the socket are not shown
	NoResetReasons      bool
	NoLoneResets        bool // resets without a socket are not told from a firewall's
	AfterFirewall       bool // what the packet filter drops on the way out is not seen

	AbortOnOverflow bool // net.ipv4.tcp_abort_on_overflow
	NoSynAckRetries bool // net.ipv4.tcp_synack_retries is 0
}

// The values of cannot_show in the header.
const (
	CannotShowFailedRetransmits = "failed-retransmissions"
	CannotShowResetReasons      = "reset-reasons"
	CannotShowLoneResets        = "resets-without-socket"
	CannotShowBeforeFirewall    = "before-firewall"
)

// NewFacts takes them from cannot_show of the header and the settings of a
// namespace.
func NewFacts(cannotShow []string, sysctls map[string]string) Facts {
	cannot := func(what string) bool { return slices.Contains(cannotShow, what) }
	return Facts{
		NoFailedRetransmits: cannot(CannotShowFailedRetransmits),
		NoResetReasons:      cannot(CannotShowResetReasons),
		NoLoneResets:        cannot(CannotShowLoneResets),
		AfterFirewall:       cannot(CannotShowBeforeFirewall),
		AbortOnOverflow:     sysctls["tcp_abort_on_overflow"] != "0",
		NoSynAckRetries:     sysctls["tcp_synack_retries"] == "0",
	}
}

// A Tally adds up what the events of one namespace say its counters must have
// grown by. It is made when the counters have been read for the first time,
// takes every event of the namespace whenever it comes, and is told by Close
// of the last reading. It looks at nothing but events, so that a saved file
// gives the same sums.
type Tally struct {
	facts          Facts
	opened, closed events.Reading

	sure   [numCounters]int64
	edge   [numCounters]span // inside a reading: may be before or after it
	unsure [numCounters][numDoubts]int64

	// recent holds what may turn out to be inside the last reading.
	recent []item
	newest uint64

	listens  bool // a listener was seen
	requests map[request]expiry
	silent   []uint64 // when a SYN-ACK timer expired that left no event
}

// span is a range from min to max around 0.
type span struct{ min, max int64 }

func (s *span) add(n int64) {
	if n < 0 {
		s.min += n
	} else {
		s.max += n
	}
}

type item struct {
	mono  uint64
	n     int64
	c     counter
	doubt doubt
}

// request is a connection request that was answered again.
type request struct{ local, remote netip.AddrPort }

// expiry is when the timer of a request is due, and by when it has run.
type expiry struct{ due, late uint64 }

// NewTally begins the tally of a namespace whose counters were read.
func NewTally(f Facts, opened events.Reading) *Tally {
	return &Tally{facts: f, opened: opened, requests: make(map[request]expiry)}
}

// Close sets when the counters were read for the last time. Events that
// happened before may still come.
func (t *Tally) Close(closed events.Reading) {
	t.closed = closed
	for _, i := range t.recent {
		t.place(i)
	}
	t.recent = nil
}

// add takes n towards a counter. certain events count, others may.
func (t *Tally) add(mono uint64, c counter, n int64, d doubt) {
	if n == 0 {
		return
	}
	i := item{mono, n, c, d}
	if t.closed != (events.Reading{}) {
		t.place(i)
		return
	}
	t.newest = max(t.newest, mono)
	if mono+margins[c] < t.newest {
		t.place(i)
		return
	}
	if len(t.recent) == cap(t.recent) {
		t.settle()
	}
	t.recent = append(t.recent, i)
}

// settle places what is too old to be inside a reading yet to come.
func (t *Tally) settle() {
	keep := t.recent[:0]
	for _, i := range t.recent {
		if i.mono+margins[i.c] < t.newest {
			t.place(i)
		} else {
			keep = append(keep, i)
		}
	}
	t.recent = keep
	if 2*len(keep) >= cap(keep) {
		t.recent = slices.Grow(keep, max(64, len(keep)))
	}
}

// place puts an item where its time belongs.
func (t *Tally) place(i item) {
	switch in := t.position(i.mono, margins[i.c]); {
	case in == outside:
	case in == within && i.doubt == certain:
		t.sure[i.c] += i.n
	case in == within:
		t.unsure[i.c][i.doubt] += i.n
	default:
		t.edge[i.c].add(i.n)
	}
}

type position uint8

const (
	outside position = iota
	within
	onEdge
)

func (t *Tally) position(mono, margin uint64) position {
	after := func(at uint64) bool { return mono > at && mono-at > margin }
	before := func(at uint64) bool { return mono < at && at-mono > margin }
	switch {
	case before(t.opened.StartNS):
		return outside
	case !after(t.opened.EndNS):
		return onEdge
	case t.closed == (events.Reading{}), before(t.closed.StartNS):
		return within
	case after(t.closed.EndNS):
		return outside
	}
	return onEdge
}

// Add takes an event of the namespace. It does not keep it.
func (t *Tally) Add(e *events.Event) {
	switch {
	case e.Retransmit != nil:
		t.retransmit(e)
	case e.State != nil:
		t.state(e)
	case e.Abort != nil:
		t.abort(e)
	case e.Reset != nil:
		t.reset(e)
	case e.Probe != nil:
		switch {
		case e.Probe.Direction != "sent":
		case e.Probe.Kind == "keepalive":
			t.add(e.MonoNS, keepAlive, 1, certain)
		case e.Probe.Kind == "zero-window":
			t.add(e.MonoNS, winProbe, 1, certain)
		}
	case e.Inventory != nil:
		t.listens = t.listens || e.TCP != nil && e.TCP.State == "LISTEN"
	}
}

func (t *Tally) retransmit(e *events.Event) {
	r, at := e.Retransmit, e.MonoNS
	segments, failed := int64(r.Segments), r.SendError != ""
	t.add(at, retransSegs, segments, certain)
	if failed && r.SendError != "EBUSY" {
		t.add(at, retransFail, segments, certain)
	}
	switch r.Cause {
	case "syn":
		t.add(at, synRetrans, min(segments, 1), certain)
		t.add(at, timeouts, 1, certain)
	case "synack":
		t.add(at, synRetrans, min(segments, 1), certain)
		if !r.DuplicateSYN {
			t.add(at, timeouts, 1, certain)
		}
		if e.TCP == nil && e.Sock != nil {
			t.answeredAgain(e)
		}
	case "rto":
		// Into a closed window the timer probes and does not count.
		switch {
		case e.TCP == nil || e.TCP.SndWnd != 0:
			t.add(at, timeouts, 1, certain)
		case finSent(e.TCP.State):
			t.add(at, timeouts, 1, doubtZeroWindow)
		}
	case "tlp":
		if !failed {
			t.add(at, lossProbes, 1, certain)
		}
	case "fast":
		if !failed {
			t.add(at, fastRetrans, segments, certain)
		}
	case "loss-recovery", "mtu":
		if !failed {
			t.add(at, slowStartRetrans, segments, certain)
		}
	default:
		for _, c := range []counter{timeouts, lossProbes} {
			t.add(at, c, 1, doubtUndecided)
		}
		for _, c := range []counter{fastRetrans, slowStartRetrans} {
			t.add(at, c, segments, doubtUndecided)
		}
	}
}

func finSent(state string) bool {
	return state == "FIN_WAIT1" || state == "FIN_WAIT2" || state == "CLOSING" || state == "LAST_ACK"
}

// answeredAgain notes when the timer of a request is due: the last expiry
// gives up and leaves no event.
func (t *Tally) answeredAgain(e *events.Event) {
	t.listens = true
	key := request{e.Sock.Local, e.Sock.Remote}
	if old, ok := t.requests[key]; ok && e.Retransmit.Attempt == 1 && old.due < e.MonoNS {
		t.silent = append(t.silent, old.due) // another request with these addresses
	}
	if e.Retransmit.NextDueMs < 0 {
		return
	}
	if len(t.requests) >= 1024 && len(t.requests)&(len(t.requests)-1) == 0 {
		t.expire(e.MonoNS)
	}
	wait := uint64(e.Retransmit.NextDueMs) * 1_000_000
	due := e.MonoNS + wait
	// The timer wheel rounds up by at most an eighth.
	t.requests[key] = expiry{due: due, late: due + wait/8 + processMargin}
}

// expire gives up the requests whose timer has run long ago.
func (t *Tally) expire(now uint64) {
	for key, x := range t.requests {
		if x.late+1_000_000_000 < now {
			t.silent = append(t.silent, x.due)
			delete(t.requests, key)
		}
	}
}

func (t *Tally) state(e *events.Event) {
	at, from, to := e.MonoNS, e.State.Old, e.State.New
	switch {
	case to == "SYN_SENT":
		t.add(at, activeOpens, 1, certain)
	case to == "LISTEN":
		t.listens = true
	case from == "LISTEN" && to == "SYN_RECV":
		t.add(at, passiveOpens, 1, certain)
		if e.Sock != nil && len(t.requests) > 0 {
			delete(t.requests, request{e.Sock.Local, e.Sock.Remote})
		}
	case to != "CLOSE":
	case from == "ESTABLISHED" || from == "CLOSE_WAIT":
		t.add(at, estabResets, 1, certain)
	case from == "SYN_RECV":
		t.add(at, attemptFails, 1, certain)
	case from == "LAST_ACK" || from == "CLOSING":
		t.add(at, abortOnData, 1, doubtLastAck)
	case from == "LISTEN" && e.Sock != nil:
		// What it was asked for ends with it, at the next expiry, uncounted.
		for key, x := range t.requests {
			if key.local.Port() == e.Sock.Local.Port() && x.due > at {
				delete(t.requests, key)
			}
		}
	}
}

func (t *Tally) abort(e *events.Event) {
	a, at := e.Abort, e.MonoNS
	opening := a.State == "SYN_SENT" || a.State == "SYN_RECV"
	if a.State == "SYN_SENT" {
		switch {
		case a.Cause == "connect-cancelled":
			if e.TCP != nil && e.TCP.UnackedBytes == 0 {
				t.add(at, activeOpens, -1, certain) // failed before its SYN was sent
			}
			if a.Facts.Linger && a.Facts.LingerMs == 0 {
				t.add(at, abortOnData, 1, doubtCancelled)
			}
		case a.Cause == "undecided":
			t.add(at, attemptFails, 1, doubtUndecided)
		default:
			t.add(at, attemptFails, 1, certain)
		}
	}
	switch a.Cause {
	case "user-timeout", "retries-exhausted":
		t.timedOut(e, opening)
	case "keepalive":
		t.add(at, abortOnTimeout, 1, certain)
	case "unreachable", "refused":
		// An ICMP error ends a connection attempt at once, and waits in
		// sk_err_soft for the timer otherwise. No timer is pending in a
		// timer's own handler.
		if !opening || e.TCP != nil && e.TCP.PendingTimer == "none" {
			t.timedOut(e, opening)
		}
	case "close-with-unread-data":
		switch {
		case e.TCP != nil && e.TCP.UnreadBytes > 0:
			t.add(at, abortOnClose, 1, certain)
		case t.facts.NoResetReasons:
			t.add(at, abortOnData, 1, certain) // else the reset says so
		}
	case "linger-zero":
		d := certain
		if e.Sock != nil && e.Sock.MPTCP {
			d = doubtSubflow
		}
		t.add(at, abortOnData, 1, d)
	case "undecided":
		for _, c := range []counter{timeouts, abortOnTimeout, abortOnClose, abortOnData, abortOnLinger, abortOnMemory} {
			t.add(at, c, 1, doubtUndecided)
		}
	}
}

// timedOut is an abort through tcp_write_err, by the retransmission timer or
// by the zero-window probe's, which does not count as a timeout.
func (t *Tally) timedOut(e *events.Event, opening bool) {
	t.add(e.MonoNS, abortOnTimeout, 1, certain)
	switch {
	case opening:
		t.add(e.MonoNS, timeouts, 1, certain)
	case e.TCP == nil || e.TCP.UnackedBytes == 0:
	case e.TCP.SndWnd > 0:
		t.add(e.MonoNS, timeouts, 1, certain)
	case e.Abort.Facts.Dead: // into a closed window it only probes for a process
		t.add(e.MonoNS, timeouts, 1, certain)
	}
}

func (t *Tally) reset(e *events.Event) {
	r, at := e.Reset, e.MonoNS
	switch {
	case r.Direction == "received":
		if !r.Socket && e.Sock != nil && len(t.requests) > 0 {
			delete(t.requests, request{e.Sock.Local, e.Sock.Remote})
		}
		return
	case r.SeenBy == "wire":
		// Made by a firewall, which does not count, unless this kernel does not
		// show those that TCP sends without a socket.
		if t.facts.NoLoneResets {
			t.add(at, outRsts, 1, doubtWireReset)
		}
		return
	}
	t.add(at, outRsts, 1, certain)
	if r.Trigger != nil && e.Sock != nil && e.Sock.Remote.Addr().Is6() {
		t.add(at, outRsts, -1, doubtUnrouted)
	}
	switch r.Reason {
	case "TCP_ABORT_ON_DATA":
		t.add(at, abortOnData, 1, certain)
	case "TCP_ABORT_ON_LINGER":
		// Its abort is linger-zero, which is the other counter elsewhere.
		t.add(at, abortOnLinger, 1, certain)
		t.add(at, abortOnData, -1, certain)
	case "TCP_ABORT_ON_MEMORY":
		t.add(at, abortOnMemory, 1, certain)
		t.add(at, timeouts, 1, doubtMemory)
	}
}

// silentExpiries are the expiries of SYN-ACK timers that sent nothing, between
// the readings and inside one.
func (t *Tally) silentExpiries() (sure, edge int64) {
	for _, at := range t.silent {
		switch t.position(at, processMargin) {
		case within:
			sure++
		case onEdge:
			edge++
		}
	}
	for _, x := range t.requests {
		switch {
		case x.late+softirqMargin < t.closed.StartNS:
			switch t.position(x.due, processMargin) {
			case within:
				sure++
			case onEdge:
				edge++
			}
		case x.due <= t.closed.EndNS:
			edge++
		}
	}
	return sure, edge
}
