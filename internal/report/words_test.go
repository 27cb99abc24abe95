package report

import (
	"testing"

	"github.com/sockwatch/sockwatch/internal/events"
)

// Every cause has words of its own, and none claims what it cannot know.
func TestAbortWords(t *testing.T) {
	data := events.TCP{State: "ESTABLISHED", SndUna: 1, SndNxt: 6, WriteSeq: 6, UnackedBytes: 5, Retransmits: 15, SinceLastAckUs: -1, SinceLastRcvUs: -1}
	timeout := data
	timeout.UserTimeoutMs = 20_000
	shut := events.TCP{UnsentBytes: 10, ProbesOut: 3, UserTimeoutMs: 1500}
	idle := events.TCP{ProbesOut: 9, SinceLastAckUs: 120_000_000, SinceLastRcvUs: 130_000_000, Keepalive: events.Keepalive{On: true, Probes: 9}}
	unread := events.TCP{UnreadBytes: 1}
	for _, tt := range []struct {
		abort events.Abort
		tcp   *events.TCP
		first bool
		want  string
	}{
		{events.Abort{By: "peer", Cause: "reset-received"}, &data, false, "was reset: it accepted a RST"},
		{events.Abort{By: "peer", Cause: "refused"}, nil, false, "was refused: a RST answered its SYN"},
		{events.Abort{By: "peer", Cause: "refused", Why: "sk_err ECONNREFUSED without a RST: ICMP"}, nil, false, "was refused: sk_err ECONNREFUSED without a RST: ICMP"},
		{events.Abort{By: "peer", Cause: "new", Why: "why"}, nil, false, "was ended by its peer: new (why)"},
		{events.Abort{By: "local", Cause: "user-timeout", State: "ESTABLISHED"}, &timeout, true, "gave up first: TCP_USER_TIMEOUT (20 s) had passed with 5 bytes not acknowledged"},
		{events.Abort{By: "local", Cause: "user-timeout", State: "FIN_WAIT1"}, &timeout, false, "gave up: TCP_USER_TIMEOUT (20 s) had passed with 4 bytes and the FIN not acknowledged"},
		{events.Abort{By: "local", Cause: "user-timeout", State: "ESTABLISHED"}, &shut, false, "gave up: TCP_USER_TIMEOUT (1.5 s) had passed with 10 bytes to send, the peer's window shut, and 3 window probes not answered"},
		{events.Abort{By: "local", Cause: "user-timeout"}, nil, false, "gave up: TCP_USER_TIMEOUT"},
		{events.Abort{By: "local", Cause: "retries-exhausted", State: "ESTABLISHED"}, &data, false, "gave up: 15 retransmissions that a timeout had caused, as many as its settings allow, were not answered"},
		{events.Abort{By: "local", Cause: "retries-exhausted", State: "SYN_SENT"}, &data, false, "gave up: its SYN and 15 retransmissions of it, as many as its settings allow, were not answered"},
		{events.Abort{By: "local", Cause: "retries-exhausted", State: "ESTABLISHED"}, &shut, false, "gave up: 3 window probes, as many as its settings allow, were not answered"},
		{events.Abort{By: "local", Cause: "keepalive"}, &idle, false, "gave up, by keepalive: nothing had come for 120 s, 9 probes were not answered, and its setting is 9"},
		{events.Abort{By: "local", Cause: "unreachable", Why: "sk_err EHOSTUNREACH from the network, no RST received"}, nil, false, "gave up: the network reported its peer unreachable (sk_err EHOSTUNREACH from the network, no RST received)"},
		{events.Abort{By: "local", Cause: "close-with-unread-data"}, &unread, false, "was closed by its process with 1 byte unread"},
		{events.Abort{By: "local", Cause: "close-with-unread-data", Facts: events.AbortFacts{DataAfterEnd: true}}, &unread, false, "ended because data arrived after its process had closed it"},
		{events.Abort{By: "local", Cause: "linger-zero"}, nil, false, "was closed by its process with SO_LINGER on and a time of 0, which discards the connection"},
		{events.Abort{By: "local", Cause: "linger-zero", Why: "TCP_LINGER2 is negative"}, nil, false, "ended at once after its FIN, because TCP_LINGER2 is negative"},
		{events.Abort{By: "local", Cause: "out-of-memory", Why: "sk_err ENOMEM"}, nil, false, "was ended by its kernel: out of memory for TCP (sk_err ENOMEM)"},
		{events.Abort{By: "local", Cause: "destroyed"}, nil, false, "was destroyed from outside, through SOCK_DESTROY (ss -K)"},
		{events.Abort{By: "local", Cause: "disconnected"}, nil, false, "was disconnected by its process, which kept the socket (connect with AF_UNSPEC)"},
		{events.Abort{By: "local", Cause: "listener-closed"}, nil, false, "was waiting to be accepted when its listener was closed"},
		{events.Abort{By: "local", Cause: "connect-cancelled"}, nil, false, "was closed by its process while it was connecting"},
		{events.Abort{By: "undecided", Cause: "undecided", Why: "nobody knows"}, nil, false, "ended, and why is not decided: nobody knows"},
	} {
		l := &line{Event: &events.Event{Abort: &tt.abort, TCP: tt.tcp}}
		if got := abortWords(l, tt.first); got != tt.want {
			t.Errorf("%s in %s:\n got %s\nwant %s", tt.abort.Cause, tt.abort.State, got, tt.want)
		}
	}
}

func TestNumbers(t *testing.T) {
	for _, tt := range []struct{ got, want string }{
		{span(999), "999 ns"},
		{span(85_400), "85 µs"},
		{span(204e6), "204 ms"},
		{span(3_264e6), "3.26 s"},
		{span(20e9), "20 s"},
		{span(30_116e6), "30.1 s"},
		{span(7_200e9), "7200 s"},
		{at(1_500_000_000, 1e9), "+0.500 s"},
		{at(1e9, 1_500_000_000), "-0.500 s"},
		{ordinal(1), "1st"},
		{ordinal(2), "2nd"},
		{ordinal(3), "3rd"},
		{ordinal(4), "4th"},
		{ordinal(11), "11th"},
		{ordinal(12), "12th"},
		{ordinal(113), "113th"},
		{ordinal(122), "122nd"},
		{tally(map[string]int{"tlp": 1, "rto": 7, "fast": 1}), "7 rto, 1 fast, 1 tlp"},
		{causes(map[string]int{"rto": 7}), "rto"},
	} {
		if tt.got != tt.want {
			t.Errorf("got %q, want %q", tt.got, tt.want)
		}
	}
}

func TestOnWire(t *testing.T) {
	for _, tt := range []struct {
		trigger events.Segment
		want    events.Segment
	}{
		{events.Segment{SeqStart: 10, SeqEnd: 20, Ack: 7, Flags: "PSH,ACK"}, events.Segment{SeqStart: 7, SeqEnd: 7, Flags: "RST"}},
		{events.Segment{SeqStart: 10, SeqEnd: 11, Flags: "SYN"}, events.Segment{Ack: 11, Flags: "RST,ACK"}},
	} {
		if got := onWire(&events.Reset{Trigger: &tt.trigger}); *got != tt.want {
			t.Errorf("answer to %+v: %+v, want %+v", tt.trigger, *got, tt.want)
		}
	}
}
