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
		{events.Abort{By: "local", Cause: "user-timeout", State: "ESTABLISHED"}, &shut, false, "gave up: TCP_USER_TIMEOUT (1.5 s) had passed with 10 bytes to send, the peer's window shut: 3 window probes were not answered"},
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
		{events.Abort{By: "local", Cause: "connect-cancelled"}, &events.TCP{}, false, "was not connected: connect failed before its SYN was sent"},
		{events.Abort{By: "undecided", Cause: "undecided", Why: "nobody knows"}, nil, false, "ended, and why is not decided: nobody knows"},
	} {
		l := &line{Event: &events.Event{Abort: &tt.abort, TCP: tt.tcp}}
		if got := abortWords(l, tt.first, -1); got != tt.want {
			t.Errorf("%s in %s:\n got %s\nwant %s", tt.abort.Cause, tt.abort.State, got, tt.want)
		}
	}
}

// What is waiting to be sent waits for the peer's window, or for its own host.
func TestHeldBack(t *testing.T) {
	shut := events.TCP{UnsentBytes: 10, ProbesOut: 3, UserTimeoutMs: 1500}
	small, open, wide := shut, shut, shut
	small.SndWnd, open.SndWnd = 9, 10
	wide.SndWnd, wide.UnsentBytes, wide.ProbesOut = 65_536, 100_000, 1
	const timeout, tries = "gave up: TCP_USER_TIMEOUT (1.5 s) had passed with ", "gave up: "
	for _, tt := range []struct {
		cause, state string
		tcp          events.TCP
		probes       int
		want         string
	}{
		{"user-timeout", "ESTABLISHED", shut, 3, timeout + "10 bytes to send, the peer's window shut: 3 window probes were not answered"},
		{"user-timeout", "ESTABLISHED", shut, -1, timeout + "10 bytes to send, the peer's window shut: 3 window probes were not answered"},
		{"user-timeout", "LAST_ACK", shut, 0, timeout + "9 bytes and the FIN to send, the peer's window shut: none of 3 window probes was seen to leave its host"},
		{"user-timeout", "ESTABLISHED", small, 3, timeout + "10 bytes to send, the peer's window 9 bytes: 3 window probes were not answered"},
		{"user-timeout", "ESTABLISHED", small, 0, timeout + "10 bytes that did not leave its host, though the peer's window was open (9 bytes): 3 tries of the probe timer failed"},
		{"user-timeout", "ESTABLISHED", open, -1, timeout + "10 bytes that did not leave its host, though the peer's window was open (10 bytes): 3 tries of the probe timer failed"},
		{"user-timeout", "ESTABLISHED", wide, 0, timeout + "100000 bytes that did not leave its host, though the peer's window was open (65536 bytes): 1 try of the probe timer failed"},
		{"retries-exhausted", "ESTABLISHED", shut, 3, tries + "3 window probes, as many as its settings allow, were not answered"},
		{"retries-exhausted", "ESTABLISHED", shut, 0, tries + "none of 3 window probes, as many as its settings allow, was seen to leave its host"},
		{"retries-exhausted", "FIN_WAIT1", wide, 0, tries + "99999 bytes and the FIN did not leave its host, though the peer's window was open (65536 bytes): 1 try of the probe timer, as many as its settings allow, failed"},
	} {
		l := &line{Event: &events.Event{Abort: &events.Abort{By: "local", Cause: tt.cause, State: tt.state}, TCP: &tt.tcp}}
		if got := abortWords(l, false, tt.probes); got != tt.want {
			t.Errorf("%s, window %d, %d probes seen:\n got %s\nwant %s", tt.cause, tt.tcp.SndWnd, tt.probes, got, tt.want)
		}
	}
}

// A FIN takes a sequence number and is no byte.
func TestFIN(t *testing.T) {
	one := events.TCP{SndUna: 1, SndNxt: 2, WriteSeq: 2, UnackedBytes: 1, UnsentBytes: 1, UnreadBytes: 1}
	ack := &line{Event: &events.Event{TCP: &events.TCP{State: "LAST_ACK", SndNxt: 9, WriteSeq: 9}, Recovered: &events.Recovered{Ack: 9}}}
	for _, tt := range []struct{ got, want string }{
		{amount(&one, "ESTABLISHED"), "1 byte"},
		{amount(&one, "FIN_WAIT1"), "the FIN"},
		{unsent(&one, "ESTABLISHED"), "1 byte"},
		{unsent(&one, "LAST_ACK"), "the FIN"},
		{unread(&one, "ESTABLISHED"), "1 byte"},
		{unread(&one, "FIN_WAIT1"), "1 byte"},
		{unread(&one, "CLOSE_WAIT"), "the FIN"},
		{unread(&events.TCP{UnreadBytes: 16}, "CLOSE_WAIT"), "15 bytes and the FIN"},
		{acked(ack, 1), "the FIN"},
		{acked(ack, 3), "2 bytes and the FIN"},
	} {
		if tt.got != tt.want {
			t.Errorf("got %q, want %q", tt.got, tt.want)
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
		{at(1e9, 1_000_200_000), "+0.000 s"},
		{at(1e9, 1_001_200_000), "-0.001 s"},
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
