package sink

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/sockwatch/sockwatch/internal/events"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// textEvents are the golden lines in the order of their times, and the
// variants of them that read differently.
func textEvents(t testing.TB) []*events.Event {
	t.Helper()
	all := examples(t)
	of := func(typ events.Type, change func(*events.Event)) {
		for _, e := range examples(t) {
			if e.Type == typ {
				e.MonoNS += 60e9
				change(e)
				all = append(all, e)
			}
		}
	}
	of(events.TypeRetransmit, func(e *events.Event) {
		e.Retransmit.Cause, e.Retransmit.Why, e.Retransmit.NextDueMs = "undecided", "ca_state Open with timer retrans fits no known path", -1
		e.Retransmit.Segments = 3
	})
	of(events.TypeRetransmit, func(e *events.Event) {
		e.Retransmit.Cause, e.Retransmit.SendError, e.TCP = "synack", "ENOBUFS", nil
	})
	of(events.TypeReset, func(e *events.Event) {
		e.Reset.Direction, e.Reset.Reason, e.Reset.Socket, e.Reset.Trigger = "received", "", true, nil
	})
	of(events.TypeAbort, func(e *events.Event) {
		e.Abort = &events.Abort{By: "peer", Cause: "reset-received", Why: "a RST was received and accepted"}
		e.TCP.UnackedBytes, e.TCP.SinceLastAckUs = 0, -1
	})
	of(events.TypeRecovered, func(e *events.Event) {
		e.Recovered.Exact, e.Recovered.Answered, e.Recovered.Retransmits = false, 0, 1
	})
	of(events.TypeInventory, func(e *events.Event) {
		e.Sock.Family, e.Sock.Local, e.Sock.Remote = "inet6", addr("[::]:443"), addr("[::]:0")
		e.TCP.State, e.Owner.Comm = "LISTEN", "evil\x1b[31m\n\u202ename"
	})
	of(events.TypeMark, func(e *events.Event) {
		e.Mark.Kind, e.Mark.Text = "note", "two\nlines \x1b]0;title\a and \u200bnothing"
	})
	of(events.TypeTarget, func(e *events.Event) {
		e.Target = &events.Target{Change: "gone", Detail: "namespace deleted", Sockets: 1}
	})
	of(events.TypeSession, func(e *events.Event) {
		e.Session.Programs[1].Method = "none"
		e.MonoNS -= 60e9
	})
	return all
}

func TestTextGolden(t *testing.T) {
	for _, tt := range []struct {
		path   string
		colour bool
	}{
		{"testdata/text.golden", false},
		{"testdata/text-colour.golden", true},
	} {
		var b bytes.Buffer
		s := NewText(&b, tt.colour)
		for _, e := range textEvents(t) {
			if err := s.Write(e); err != nil {
				t.Fatal(err)
			}
		}
		if b.Len() != 0 {
			t.Error("written before it was flushed")
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if *update {
			if err := os.WriteFile(tt.path, b.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(tt.path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(b.Bytes(), want) {
			t.Errorf("%s differs (run with -update if it was meant to change)\n got:\n%s\nwant:\n%s", tt.path, b.Bytes(), want)
		}
	}
}

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"talosctl → apid é 漢 ±": "talosctl → apid é 漢 ±",
		"\x1b[2J\a\r\n\t\x00":   `\x1b[2J\x07\x0d\x0a\x09\x00`,
		"\x7f\u0080\u009b31m":   `\x7f\u0080\u009b31m`,
		"\x9b31m\xff":           `\x9b31m\xff`,
		"\u202e\u2066\u200e":    `\u202e\u2066\u200e`,
		"a\u200bb\u200d\ufeff":  `a\u200bb\u200d\ufeff`,
		"\u00a0\u2028\u3000":    `\u00a0\u2028\u3000`,
		"\u3164\u115f\ufe0f":    `\u3164\u115f\ufe0f`,
		"\U000e0041\U000e0100":  `\U000e0041\U000e0100`,
		"\ufffd\ue000\u0378":    "\ufffd" + `\ue000\u0378`,
	} {
		if got := string(AppendPrintable(nil, []byte(in))); got != want {
			t.Errorf("AppendPrintable(%q) = %q, want %q", in, got, want)
		}
	}
}

var colourCode = regexp.MustCompile(`\x1b\[(2|31|32|33|36|0)m`)

// FuzzTextHarmless: whatever an event says, it makes one line that a terminal
// shows as it is.
func FuzzTextHarmless(f *testing.F) {
	seeds := 0
	for _, e := range textEvents(f) {
		f.Add(e.AppendJSON(nil), "\x1b[31m\u202e\u200b\n\xff")
		seeds++
	}
	if seeds < 20 {
		f.Fatalf("only %d seeds", seeds)
	}
	f.Fuzz(func(t *testing.T, line []byte, evil string) {
		var e events.Event
		if json.Unmarshal(line, &e) != nil {
			return
		}
		infect(&e, evil)
		for _, colour := range []bool{false, true} {
			var b bytes.Buffer
			s := NewText(&b, colour)
			for range 2 {
				if err := s.Write(&e); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			out := b.String()
			if colour {
				if strings.Count(out, "\x1b[0m")*2 != strings.Count(out, "\x1b[") {
					t.Fatalf("colours do not pair: %q", out)
				}
				out = colourCode.ReplaceAllString(out, "")
			}
			if strings.Count(out, "\n") != 2 || !strings.HasSuffix(out, "\n") {
				t.Fatalf("not one line: %q", out)
			}
			if !utf8.ValidString(out) {
				t.Fatalf("invalid UTF-8: %q", out)
			}
			for _, r := range out {
				if r != '\n' && !unicode.IsPrint(r) {
					t.Fatalf("%U in %q", r, out)
				}
			}
		}
	})
}

// TestTextOfClocksAndSelfTest: what is rare is said.
func TestTextOfClocksAndSelfTest(t *testing.T) {
	for want, e := range map[string]events.Event{
		"clock  wall time +2.0 s against the kernel's clock (±90 ns)  wall time was set": {
			Type: events.TypeClock, Clock: &events.Clock{StepNS: 2e9, ErrorNS: 90, Stepped: true},
		},
		"clock  wall time +60.0 s against the kernel's clock (±90 ns)  the machine was suspended for 60.0 s": {
			Type: events.TypeClock, Clock: &events.Clock{StepNS: 60e9, ErrorNS: 90, SuspendedNS: 60e9},
		},
		"watching host  self-test passed": {
			Type: events.TypeSession, Session: &events.Session{Targets: []string{"host"}, SelfTest: &events.SelfTest{Passed: true}},
		},
		"watching host  self-test failed: reset sent: 1 happened, 0 seen": {
			Type: events.TypeSession, Session: &events.Session{Targets: []string{"host"}, SelfTest: &events.SelfTest{Missing: []string{"reset sent: 1 happened, 0 seen"}}},
		},
	} {
		var b bytes.Buffer
		s := NewText(&b, false)
		if err := errors.Join(s.Write(&e), s.Close()); err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(b.String(), want+"\n") {
			t.Errorf("%q does not end in %q", b.String(), want)
		}
	}
}

// TestTextOfNumbers: one is one, and a SYN and a FIN are no bytes.
func TestTextOfNumbers(t *testing.T) {
	abort := func(state string, tcp events.TCP) *events.Event {
		tcp.SinceLastAckUs = -1
		return &events.Event{Type: events.TypeAbort, Abort: &events.Abort{By: "peer", Cause: "refused", State: state}, TCP: &tcp}
	}
	for want, e := range map[string]*events.Event{
		"refused (unacked SYN)":                    abort("SYN_SENT", events.TCP{SndNxt: 1, WriteSeq: 1, UnackedBytes: 1}),
		"refused (unacked 1 byte)":                 abort("ESTABLISHED", events.TCP{SndNxt: 1, WriteSeq: 1, UnackedBytes: 1}),
		"refused (unacked 13 bytes and FIN)":       abort("LAST_ACK", events.TCP{SndNxt: 14, WriteSeq: 14, UnackedBytes: 14}),
		"refused (unacked 14 bytes)":               abort("LAST_ACK", events.TCP{SndNxt: 14, WriteSeq: 15, UnackedBytes: 14}),
		"arrival  1 byte after 2.0 s of silence":   {Type: events.TypeArrival, Arrival: &events.Arrival{Bytes: 1, SilenceMs: 2000}},
		"summary  ended by --duration after 3.2 s": {Type: events.TypeSummary, Summary: &events.Summary{Reason: "duration", DurationNS: 3.2e9}},
	} {
		var b bytes.Buffer
		s := NewText(&b, false)
		if err := errors.Join(s.Write(e), s.Close()); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in %q", want, b.String())
		}
	}
}

// infect puts s wherever a name can come from outside.
func infect(e *events.Event, s string) {
	if e.Netns != nil {
		e.Netns.Name += s
	}
	if e.Owner != nil {
		e.Owner.Comm += s
	}
	if e.Mark != nil {
		e.Mark.Text, e.Mark.By = e.Mark.Text+s, e.Mark.By+s
	}
	if e.Target != nil {
		e.Target.Detail, e.Target.Container = e.Target.Detail+s, s+e.Target.Container
	}
	if e.Session != nil {
		e.Session.Hostname += s
		e.Session.Targets = append(e.Session.Targets, s)
		e.Session.SelfTest = &events.SelfTest{Missing: []string{s}}
	}
	if e.Lost != nil {
		e.Lost.By = map[string]uint64{s: 1}
	}
	if e.Sock != nil && e.Sock.Local.Addr().Is6() {
		e.Sock.Local = withZone(e.Sock.Local, s)
	}
}

func addr(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

func withZone(a netip.AddrPort, zone string) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().WithZone(zone), a.Port())
}
