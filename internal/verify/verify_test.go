package verify

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sockwatch/sockwatch/internal/events"
)

// shared keeps the shapes of lines from one test to the next.
func shared(t testing.TB) *validator {
	t.Helper()
	v, err := sharedValidator()
	if err != nil {
		t.Fatal(err)
	}
	return v
}

var sharedValidator = sync.OnceValues(newValidator)

// verifyTexts verifies files given as text, called 1, 2, ...
func verifyTexts(t testing.TB, texts ...string) *Report {
	t.Helper()
	var sources []Source
	for i, text := range texts {
		sources = append(sources, Source{fmt.Sprint(i + 1), func() (io.ReadCloser, error) {
			return io.NopCloser(strings.NewReader(text)), nil
		}})
	}
	r, err := files(shared(t), sources, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// recorded returns the lines of real evidence: see TestLive.
func recorded(t testing.TB, name string) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name+".jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	return slices.Collect(strings.Lines(string(b)))
}

func joined(lines []string) string { return strings.Join(lines, "") }

func decode(t testing.TB, line string) *events.Event {
	t.Helper()
	var e events.Event
	if err := json.Unmarshal([]byte(line), &e); err != nil {
		t.Fatal(err)
	}
	return &e
}

func encode(e *events.Event) string { return string(e.AppendJSON(nil)) + "\n" }

// at returns the index of the nth line (from 0) that matches.
func at(t testing.TB, lines []string, nth int, match func(*events.Event) bool) int {
	t.Helper()
	for i, line := range lines {
		if match(decode(t, line)) {
			if nth--; nth < 0 {
				return i
			}
		}
	}
	t.Fatal("testdata has no such line: record it anew with -record")
	return 0
}

func ofType(typ events.Type) func(*events.Event) bool {
	return func(e *events.Event) bool { return e.Type == typ }
}

// edit changes one line as an event.
func edit(t testing.TB, lines []string, i int, change func(*events.Event)) {
	t.Helper()
	e := decode(t, lines[i])
	change(e)
	lines[i] = encode(e)
}

// forge makes the numbering and the counts of the summary fit again.
func forge(t testing.TB, lines []string) {
	t.Helper()
	all, by := make(map[string]uint64), make(map[events.Netns]map[string]uint64)
	for i := range lines {
		edit(t, lines, i, func(e *events.Event) {
			e.Seq = uint64(i + 1)
			all[string(e.Type)]++
			if e.Netns != nil {
				if by[*e.Netns] == nil {
					by[*e.Netns] = make(map[string]uint64)
				}
				by[*e.Netns][string(e.Type)]++
			}
		})
	}
	edit(t, lines, len(lines)-1, func(e *events.Event) {
		e.Summary.Lines, e.Summary.Events = uint64(len(lines)), all
		for i := range e.Summary.Namespaces {
			n := &e.Summary.Namespaces[i]
			n.Events = by[n.Netns]
		}
	})
}

func levelsOf(r *Report) map[Level]int {
	m := make(map[Level]int)
	for _, l := range levels {
		if n := r.Count(l); n > 0 {
			m[l] = n
		}
	}
	return m
}

func wholeText(r *Report) string { return strings.Join(r.Text(), "\n") }

func TestUntouched(t *testing.T) {
	client, worker := recorded(t, "client"), recorded(t, "worker")
	r := verifyTexts(t, joined(client), joined(worker))
	if r.Result != ResultHolds || len(levelsOf(r)) != 0 {
		t.Fatalf("%s:\n%s", r.Result, wholeText(r))
	}
	if r.Ends.Connections != 3 || r.Ends.Resets != 2 || r.Ends.Compared < 10 {
		t.Errorf("ends %+v", r.Ends)
	}
	for _, f := range r.Files {
		s := f.Sessions[0]
		if len(f.Sessions) != 1 || s.Causes == 0 || s.Sockets == 0 || s.Counters == 0 || !s.Summary || s.Verdict.State != "complete" {
			t.Errorf("%s: %+v", f.File, s)
		}
	}

	// Written by another tool, with its own order and spaces, it is the same.
	var other []string
	for _, line := range client {
		var v map[string]any
		dec := json.NewDecoder(strings.NewReader(line))
		dec.UseNumber()
		if err := dec.Decode(&v); err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		other = append(other, strings.ReplaceAll(string(b), `,"`, `, "`)+"\n")
	}
	if r := verifyTexts(t, joined(other)); r.Result != ResultHolds {
		t.Errorf("rewritten: %s", wholeText(r))
	}

	// Appended sessions are judged each by itself.
	if r := verifyTexts(t, joined(client)+joined(worker)); r.Result != ResultHolds || len(r.Files[0].Sessions) != 2 || r.Ends.Connections != 3 {
		t.Errorf("appended: %s", wholeText(r))
	}
}

// TestSabotage changes real evidence: each change must be caught.
func TestSabotage(t *testing.T) {
	del := func(lines []string, i int) []string { return slices.Delete(lines, i, i+1) }
	aborts := func(cause string) func(*events.Event) bool {
		return func(e *events.Event) bool { return e.Abort != nil && e.Abort.Cause == cause }
	}
	for _, tt := range []struct {
		name   string
		file   string // which of the two is changed
		change func(t *testing.T, lines []string) []string
		want   Result
		check  Check
		says   string
	}{
		{"a line deleted", "client", func(t *testing.T, l []string) []string {
			return del(l, at(t, l, 1, ofType(events.TypeState)))
		}, ResultContradicts, CheckNumbering, "1 line is missing, or moved"},
		{"a seq changed", "client", func(t *testing.T, l []string) []string {
			edit(t, l, 7, func(e *events.Event) { e.Seq += 100 })
			return l
		}, ResultContradicts, CheckNumbering, "seq is 108 where 8 has to follow"},
		{"an event duplicated", "client", func(t *testing.T, l []string) []string {
			i := at(t, l, 0, ofType(events.TypeRetransmit))
			return slices.Insert(l, i, l[i])
		}, ResultContradicts, CheckNumbering, "a line was put in, copied, moved"},
		{"two lines swapped", "client", func(_ *testing.T, l []string) []string {
			l[5], l[6] = l[6], l[5]
			return l
		}, ResultContradicts, CheckNumbering, "has to follow"},
		{"a count changed", "client", func(t *testing.T, l []string) []string {
			edit(t, l, len(l)-1, func(e *events.Event) { e.Summary.Events["retransmit"]++ })
			return l
		}, ResultContradicts, CheckCounts, "summary.events: 4 of type retransmit, there are 3"},
		{"a count of a namespace changed", "client", func(t *testing.T, l []string) []string {
			edit(t, l, len(l)-1, func(e *events.Event) { e.Summary.Namespaces[0].Events["abort"]-- })
			return l
		}, ResultContradicts, CheckCounts, "the events of client"},
		{"records read changed", "client", func(t *testing.T, l []string) []string {
			edit(t, l, len(l)-1, func(e *events.Event) { e.Summary.Kernel.Read-- })
			return l
		}, ResultContradicts, CheckCounts, "kernel.produced - lost - read is 1"},
		{"records lost concealed", "client", func(t *testing.T, l []string) []string {
			edit(t, l, len(l)-1, func(e *events.Event) { k := &e.Summary.Kernel; k.Lost, k.Produced = 2, k.Produced+2 })
			return l
		}, ResultContradicts, CheckCounts, "the lost lines add up to 0"},
		{"snd_una changed", "client", func(t *testing.T, l []string) []string {
			edit(t, l, at(t, l, 0, ofType(events.TypeRetransmit)), func(e *events.Event) { e.TCP.SndUna += 7 })
			return l
		}, ResultContradicts, CheckSockets, "tcp.unacked_bytes is 500, snd_nxt - snd_una is 493"},
		{"snd_una changed with what is derived from it", "client", func(t *testing.T, l []string) []string {
			edit(t, l, at(t, l, 0, ofType(events.TypeRetransmit)), func(e *events.Event) {
				e.TCP.SndUna -= 7
				e.TCP.UnackedBytes += 7
			})
			return l
		}, ResultContradicts, CheckSockets, "snd_una and bytes_acked do not move together"},
		{"snd_una and bytes_acked changed: the other end disagrees", "client", func(t *testing.T, l []string) []string {
			i := at(t, l, 0, ofType(events.TypeRetransmit))
			cookie := decode(t, l[i]).Sock.Cookie
			for j := i; j < len(l); j++ {
				edit(t, l, j, func(e *events.Event) {
					if e.Sock == nil || e.Sock.Cookie != cookie {
						return
					}
					e.TCP.SndUna += 50
					e.TCP.SndNxt += 50
					e.TCP.WriteSeq += 50
					e.TCP.BytesAcked += 50
					if r := e.Retransmit; r != nil {
						r.SeqStart += 50
						r.SeqEnd += 50
					}
					if e.Recovered != nil {
						e.Recovered.Ack += 50
					}
				})
			}
			return l
		}, ResultContradicts, CheckEnds, "were acknowledged"},
		{"the cause of a retransmission changed", "client", func(t *testing.T, l []string) []string {
			edit(t, l, at(t, l, 0, ofType(events.TypeRetransmit)), func(e *events.Event) { e.Retransmit.Cause = "fast" })
			return l
		}, ResultContradicts, CheckCauses, `retransmit.cause is "fast", by its facts it is "tlp"`},
		{"the cause of an abort changed", "worker", func(t *testing.T, l []string) []string {
			edit(t, l, at(t, l, 0, aborts("close-with-unread-data")), func(e *events.Event) { e.Abort.Cause = "destroyed" })
			return l
		}, ResultContradicts, CheckCauses, `abort is "destroyed" by local, by its facts it is "close-with-unread-data" by local`},
		{"who aborted changed", "worker", func(t *testing.T, l []string) []string {
			edit(t, l, at(t, l, 0, aborts("close-with-unread-data")), func(e *events.Event) { e.Abort.By = "peer" })
			return l
		}, ResultContradicts, CheckCauses, "by peer, by its facts"},
		{"a cause changed with its facts", "client", func(t *testing.T, l []string) []string {
			edit(t, l, at(t, l, 0, aborts("reset-received")), func(e *events.Event) {
				a := e.Abort
				a.By, a.Cause = "local", "user-timeout"
				a.Facts.ResetReceived = false
				e.TCP.SkErr, e.TCP.UserTimeoutMs = 110, 1000
				e.TCP.SndNxt++
				e.TCP.UnackedBytes++
			})
			return l
		}, ResultContradicts, CheckSockets, "abort.facts.reset_received is false, by the lines before it is true"},
		{"a port changed", "worker", func(t *testing.T, l []string) []string {
			i := at(t, l, 2, ofType(events.TypeState))
			l[i] = strings.Replace(l[i], `:8080"`, `:8081"`, 1)
			return l
		}, ResultContradicts, CheckSockets, "it was from"},
		{"a retransmission taken out by a forger", "client", func(t *testing.T, l []string) []string {
			l = del(l, at(t, l, 0, ofType(events.TypeRetransmit)))
			forge(t, l)
			return l
		}, ResultContradicts, CheckSockets, "retransmit.attempt is 2, it is number 1 of its run"},
		{"a recovery taken out by a forger", "client", func(t *testing.T, l []string) []string {
			l = del(l, at(t, l, 1, ofType(events.TypeRecovered)))
			l = del(l, at(t, l, 2, ofType(events.TypeRetransmit)))
			forge(t, l)
			return l
		}, ResultContradicts, CheckLedger, "RetransSegs: the ledger says that 3 are in the events, there are 2"},
		{"a state taken out by a forger", "client", func(t *testing.T, l []string) []string {
			l = del(l, at(t, l, 0, func(e *events.Event) bool { return e.State != nil && e.State.New == "FIN_WAIT2" }))
			forge(t, l)
			return l
		}, ResultContradicts, CheckSockets, "leaves FIN_WAIT2, it was in FIN_WAIT1"},
		{"an abort taken out by a forger", "client", func(t *testing.T, l []string) []string {
			l = del(l, at(t, l, 0, ofType(events.TypeAbort)))
			forge(t, l)
			return l
		}, ResultContradicts, CheckSockets, "no abort line follows"},
		{"a reset that was received taken out by a forger", "client", func(t *testing.T, l []string) []string {
			l = del(l, at(t, l, 0, ofType(events.TypeReset)))
			forge(t, l)
			return l
		}, ResultContradicts, CheckSockets, "abort.facts.reset_received is true, by the lines before it is false"},
		{"a reset that was sent taken out by a forger", "worker", func(t *testing.T, l []string) []string {
			l = del(l, at(t, l, 0, ofType(events.TypeReset)))
			forge(t, l)
			return l
		}, ResultContradicts, CheckLedger, "OutRsts: the ledger says that 2 are in the events, there are 1"},
		{"the same with the ledger forged too", "worker", func(t *testing.T, l []string) []string {
			l = del(l, at(t, l, 0, ofType(events.TypeReset)))
			forge(t, l)
			edit(t, l, len(l)-1, func(e *events.Event) {
				n := &e.Summary.Namespaces[0].Ledger
				i := slices.IndexFunc(n.Lines, func(l events.LedgerLine) bool { return l.Counter == "OutRsts" })
				n.Lines[i].Kernel, n.Lines[i].Events = 1, 1
			})
			return l
		}, ResultHolds, CheckEnds, "a reset was received that the other end did not send"}, // nothing contradicts, but the other end tells
		{"a counter changed", "client", func(t *testing.T, l []string) []string {
			edit(t, l, len(l)-1, func(e *events.Event) {
				n := &e.Summary.Namespaces[0].Ledger
				i := slices.IndexFunc(n.Lines, func(l events.LedgerLine) bool { return l.Counter == "RetransSegs" })
				n.Lines[i].Kernel++
			})
			return l
		}, ResultContradicts, CheckLedger, "RetransSegs: the ledger says balanced"},
		{"the verdict changed", "client", func(t *testing.T, l []string) []string {
			edit(t, l, len(l)-1, func(e *events.Event) { e.Summary.Verdict.State = "unprovable" })
			return l
		}, ResultContradicts, CheckLedger, "the verdict is unprovable, added up again it is complete"},
		{"a time changed", "client", func(t *testing.T, l []string) []string {
			edit(t, l, 9, func(e *events.Event) { e.Time += 5e9 })
			return l
		}, ResultContradicts, CheckClock, "time is not mono_ns by a clock line near it: it is 5s off"},
		{"an event before the session", "client", func(t *testing.T, l []string) []string {
			edit(t, l, 9, func(e *events.Event) { e.MonoNS -= 20e9; e.Time -= 20e9 })
			return l
		}, ResultContradicts, CheckClock, "before the session began"},
		{"an event after the summary", "client", func(t *testing.T, l []string) []string {
			edit(t, l, 9, func(e *events.Event) { e.MonoNS += 20e9; e.Time += 20e9 })
			return l
		}, ResultContradicts, CheckClock, "after the summary's"},
		{"the attach taken out by a forger", "client", func(t *testing.T, l []string) []string {
			l = del(l, at(t, l, 0, ofType(events.TypeTarget)))
			forge(t, l)
			return l
		}, ResultContradicts, CheckSockets, "no line before says that client was attached"},
		{"the header deleted", "client", func(_ *testing.T, l []string) []string {
			return l[1:]
		}, ResultContradicts, CheckNumbering, "the file does not begin with a session line: the lines before seq 2 are missing"},
		{"the summary deleted", "client", func(_ *testing.T, l []string) []string {
			return l[:len(l)-1]
		}, ResultIncomplete, CheckNumbering, "the session was cut short"},
		{"a line after the summary", "client", func(_ *testing.T, l []string) []string {
			return append(l, l[8])
		}, ResultContradicts, CheckNumbering, "follows the summary"},
		{"the session again", "client", func(_ *testing.T, l []string) []string {
			return slices.Concat(l, l)
		}, ResultContradicts, CheckNumbering, "the session of line 1 begins again"},
		{"an empty line", "client", func(_ *testing.T, l []string) []string {
			return slices.Insert(l, 5, "\n")
		}, ResultContradicts, CheckSchema, "the line is empty"},
		{"a line that is not JSON", "client", func(_ *testing.T, l []string) []string {
			l[5] = l[5][:100] + "\n"
			return l
		}, ResultContradicts, CheckSchema, "the line is not an event"},
		{"a key twice", "client", func(_ *testing.T, l []string) []string {
			l[5] = strings.Replace(l[5], `{"seq":6,`, `{"seq":7,"seq":6,`, 1)
			return l
		}, ResultContradicts, CheckSchema, `the key "seq" comes twice`},
		{"a key that nobody knows", "client", func(_ *testing.T, l []string) []string {
			l[5] = strings.Replace(l[5], `{"seq":6,`, `{"note":"ok","seq":6,`, 1)
			return l
		}, ResultContradicts, CheckSchema, "additional properties 'note' not allowed"},
		{"a word that nobody knows", "client", func(_ *testing.T, l []string) []string {
			l[5] = strings.Replace(l[5], `"family":"inet"`, `"family":"inet4"`, 1)
			return l
		}, ResultContradicts, CheckSchema, "value must be one of 'inet', 'inet6'"},
		{"another kernel in the same boot", "worker", func(t *testing.T, l []string) []string {
			edit(t, l, 0, func(e *events.Event) { e.Session.Kernel = "5.10.0" })
			return l
		}, ResultContradicts, CheckEnds, "kernel, machine, BTF or HZ are not"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			files := map[string][]string{"client": recorded(t, "client"), "worker": recorded(t, "worker")}
			files[tt.file] = tt.change(t, files[tt.file])
			r := verifyTexts(t, joined(files["client"]), joined(files["worker"]))
			if r.Result != tt.want {
				t.Errorf("%s, want %s", r.Result, tt.want)
			}
			all := slices.Clone(r.Findings)
			for _, f := range r.Files {
				all = append(all, f.Findings...)
			}
			name := map[string]string{"client": "1", "worker": "2"}[tt.file]
			ok := slices.ContainsFunc(all, func(f Finding) bool {
				return f.Check == tt.check && strings.Contains(f.Text, tt.says) && (f.File == name || f.Check == CheckEnds)
			})
			if !ok || t.Failed() {
				t.Errorf("no %s finding says %q:\n%s", tt.check, tt.says, wholeText(r))
			}
		})
	}
}

// TestEveryLine takes out, doubles and swaps each line in turn.
func TestEveryLine(t *testing.T) {
	lines := recorded(t, "client")
	for i := range lines {
		for what, change := range map[string]func() []string{
			"deleted": func() []string { return slices.Delete(slices.Clone(lines), i, i+1) },
			"doubled": func() []string { return slices.Insert(slices.Clone(lines), i, lines[i]) },
			"swapped": func() []string {
				l := slices.Clone(lines)
				if i+1 < len(l) {
					l[i], l[i+1] = l[i+1], l[i]
				} else {
					l[i], l[0] = l[0], l[i]
				}
				return l
			},
		} {
			want := ResultContradicts
			if what == "deleted" && i == len(lines)-1 {
				want = ResultIncomplete
			}
			if r := verifyTexts(t, joined(change())); r.Result != want {
				t.Errorf("line %d %s: %s, want %s:\n%s", i+1, what, r.Result, want, wholeText(r))
			}
		}
	}
}

// TestCut cuts a file off at many places: what is left holds, and it says how
// far that is.
func TestCut(t *testing.T) {
	whole := joined(recorded(t, "client"))
	for n := 0; n < len(whole); n += 397 {
		r := verifyTexts(t, whole[:n])
		if r.Result != ResultIncomplete {
			t.Fatalf("cut after %d bytes: %s\n%s", n, r.Result, wholeText(r))
		}
		seqs := uint64(strings.Count(whole[:n], "\n"))
		if seqs == 0 {
			continue
		}
		s := r.Files[0].Sessions[0]
		if s.Summary || s.LastSeq != seqs || !strings.Contains(wholeText(r), fmt.Sprintf("hold up to seq %d at 20", seqs)) {
			t.Errorf("cut after %d bytes: %+v\n%s", n, s, wholeText(r))
		}
	}
	// Only the last newline is missing: nothing is.
	if r := verifyTexts(t, whole[:len(whole)-1]); r.Result != ResultHolds {
		t.Errorf("without the last newline: %s", wholeText(r))
	}
	if r := verifyTexts(t, whole[:len(whole)-2]); r.Result != ResultIncomplete || !strings.Contains(wholeText(r), "breaks off after") {
		t.Errorf("without the last brace: %s", wholeText(r))
	}
}

// unchecked are the numbers that nothing else in the evidence depends on: what
// verification cannot know to have been changed.
var unchecked = []string{
	// Which moment, and where.
	"cpu", "owner.pid", "sock.cookie",
	// What the socket was like: a snapshot stands by itself but for its
	// sequence numbers and for what decides causes.
	"tcp.rto_us", "tcp.srtt_us", "tcp.rttvar_us", "tcp.retransmits", "tcp.backoff", "tcp.probes_out", "tcp.timeout_ms_left",
	"tcp.snd_cwnd", "tcp.ssthresh", "tcp.snd_wnd", "tcp.rcv_wnd", "tcp.packets_out", "tcp.retrans_out", "tcp.lost_out", "tcp.sacked_out",
	"tcp.user_timeout_ms", "tcp.keepalive.time_ms", "tcp.keepalive.intvl_ms", "tcp.keepalive.probes",
	"tcp.since_last_ack_us", "tcp.since_last_rcv_us", "tcp.sk_err",
	"tcp.bytes_acked", "tcp.bytes_received", // of a socket that is no connection, or whose lock was not held
	"retransmit.seq_start", "retransmit.next_due_ms", "recovered.since_last_us", "recovered.answered", "abort.facts.linger_ms",
	// The wire.
	"reset.segment.seq_start", "reset.segment.seq_end", "reset.segment.ack",
	// Of the session.
	"session.pid", "session.hz", "session.arrival_threshold_ms", "session.ring_bytes",
	"summary.kernel.foreign", "summary.namespaces.ledger.beside.*",
	"summary.namespaces.ledger.opened.*", "summary.namespaces.ledger.closed.*", // as long as no event is near
	"clock.error_ns", "clock.boot_ns",
}

// TestEveryNumber changes each number of one line of each kind, and holds what
// goes unnoticed to the list above.
func TestEveryNumber(t *testing.T) {
	lines := recorded(t, "client")
	done := make(map[string]bool)
	noticed, missed := make(map[string]bool), make(map[string]bool)
	for i, line := range lines {
		e := decode(t, line)
		kind := string(e.Type)
		switch {
		case e.Retransmit != nil:
			kind += e.Retransmit.Cause
		case e.Abort != nil:
			kind += e.Abort.Cause
		case e.State != nil:
			kind += e.State.Old + e.State.New
		}
		if done[kind] {
			continue
		}
		done[kind] = true
		for _, n := range numbers(line) {
			changed := slices.Clone(lines)
			changed[i] = line[:n.from] + bump(line[n.from:n.to]) + line[n.to:]
			r := verifyTexts(t, joined(changed))
			if r.Result == ResultHolds {
				missed[n.path] = true
			} else {
				noticed[n.path] = true
			}
		}
	}
	allowed := func(path string) bool {
		for _, u := range unchecked {
			if path == u || strings.HasSuffix(u, ".*") && strings.HasPrefix(path, strings.TrimSuffix(u, "*")) {
				return true
			}
		}
		return false
	}
	for _, path := range slices.Sorted(maps.Keys(missed)) {
		if !allowed(path) {
			t.Errorf("%s was changed and nobody noticed (in other lines: %v)", path, noticed[path])
		}
	}
	if len(noticed) < 60 {
		t.Errorf("only %d numbers are checked", len(noticed))
	}
	t.Logf("%d numbers are checked, %d are not", len(noticed), len(missed))
}

// number is a number in a line of JSON.
type number struct {
	path     string
	from, to int
}

func numbers(line string) (out []number) {
	dec := json.NewDecoder(strings.NewReader(line))
	dec.UseNumber()
	type level struct {
		list bool
		key  string
	}
	var stack []level
	wantKey := false
	for {
		tok, err := dec.Token()
		if err != nil {
			return out
		}
		switch v := tok.(type) {
		case json.Delim:
			switch v {
			case '{':
				stack = append(stack, level{})
			case '[':
				stack = append(stack, level{list: true})
			default:
				stack = stack[:len(stack)-1]
			}
		case string:
			if wantKey {
				stack[len(stack)-1].key = v
				wantKey = false
				continue
			}
		case json.Number:
			var path []string
			for _, l := range stack {
				if !l.list {
					path = append(path, l.key)
				}
			}
			end := int(dec.InputOffset())
			out = append(out, number{strings.Join(path, "."), end - len(v), end})
		}
		wantKey = len(stack) > 0 && !stack[len(stack)-1].list
	}
}

func bump(n string) string {
	if strings.HasPrefix(n, "-") {
		return n + "1"
	}
	if strings.HasSuffix(n, "9") {
		return n[:len(n)-1] + "8"
	}
	return n[:len(n)-1] + string(n[len(n)-1]+1)
}

// TestResetsElsewhere: a reset need not come from the socket at the other end.
// It may come from its namespace, when the socket is gone, or from the next
// namespace of that name. See internal/report/record_test.go.
func TestResetsElsewhere(t *testing.T) {
	for _, name := range []string{"killed", "restart", "reuse"} {
		lines := recorded(t, "../../report/testdata/"+name)
		r := verifyTexts(t, joined(lines))
		unexplained := slices.ContainsFunc(r.Findings, func(f Finding) bool { return strings.Contains(f.Text, "the other end did not send") })
		if r.Result != ResultHolds || r.Ends.Resets != 1 || unexplained {
			t.Errorf("%s: ends %+v\n%s", name, r.Ends, wholeText(r))
		}
		// Another reset does not explain it.
		i := at(t, lines, 0, func(e *events.Event) bool {
			return e.Reset != nil && e.Reset.Direction == "sent" && e.Reset.Trigger != nil
		})
		edit(t, lines, i, func(e *events.Event) { e.Reset.Trigger.Ack++ })
		r = verifyTexts(t, joined(lines))
		if r.Ends.Resets != 0 || !slices.ContainsFunc(r.Findings, func(f Finding) bool {
			return f.Level == Undecided && strings.Contains(f.Text, "a reset was received that the other end did not send")
		}) {
			t.Errorf("%s with another reset: ends %+v\n%s", name, r.Ends, wholeText(r))
		}
	}
}

// TestOtherVersion: what another version may have judged otherwise is a
// contradiction, but no sign of an edit; what it cannot have is one.
func TestOtherVersion(t *testing.T) {
	const otherwise = "or judged otherwise by the version that wrote it"
	verify := func(lines []string, build string) *Report {
		t.Helper()
		r, err := files(shared(t), []Source{{"1", func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(joined(lines))), nil }}}, Options{Build: build})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	lines := recorded(t, "client")
	i := at(t, lines, 0, func(e *events.Event) bool { return e.Retransmit != nil && e.Retransmit.Cause == "tlp" })
	edit(t, lines, i, func(e *events.Event) { e.Retransmit.Cause = "fast" })
	if r := verify(lines, "v9 9"); r.Result != ResultContradicts || !r.Disputed() || !strings.Contains(wholeText(r), otherwise) {
		t.Errorf("judged by another version: %s\n%s", r.Result, wholeText(r))
	}
	if r := verify(lines, ""); r.Result != ResultContradicts || r.Disputed() || strings.Contains(wholeText(r), otherwise) {
		t.Errorf("judged by the same: %s\n%s", r.Result, wholeText(r))
	}
	edit(t, lines, i, func(e *events.Event) { e.TCP.UnackedBytes++ })
	if r := verify(lines, "v9 9"); r.Result != ResultContradicts || r.Disputed() {
		t.Errorf("edited too: %s\n%s", r.Result, wholeText(r))
	}
}

// TestNoEvidence: what no sockwatch wrote was not edited, it is another file.
func TestNoEvidence(t *testing.T) {
	client := joined(recorded(t, "client"))
	for name, text := range map[string]string{
		"binary": "\x7fELF\x02\x01\n\x00\x00\n", "passwd": "root:x:0:0:root:/root:/bin/bash\n", "a word": "thesis", "JSON": "{\n \"seq\": 1\n}\n",
		"other lines": `{"level":"info"}` + "\n", "an empty line": "\n", "a long line": strings.Repeat("x", 17<<20) + "\n",
	} {
		for _, texts := range [][]string{{text}, {client, text}} {
			var sources []Source
			for i, text := range texts {
				sources = append(sources, Source{fmt.Sprint(i), func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(text)), nil }})
			}
			if r, err := files(shared(t), sources, Options{}); !errors.Is(err, ErrNoEvidence) {
				t.Errorf("%s: %v, %+v", name, err, r)
			}
		}
	}
	// What was cut short in its first line may have become evidence, and what
	// was damaged there still is.
	for _, text := range []string{"", client[:1], client[:500], "x" + client} {
		if r := verifyTexts(t, text); r.Result == ResultHolds {
			t.Errorf("%.20q... holds", text)
		}
	}
}

// FuzzVerify: no bytes make it panic, and a report of them can be written.
func FuzzVerify(f *testing.F) {
	client := recorded(f, "client")
	f.Add([]byte(joined(client)), []byte(joined(recorded(f, "worker"))))
	f.Add([]byte(nil), []byte("\n\n{}\n"))
	f.Add([]byte(client[0]+client[len(client)-1]), []byte(client[0]))
	f.Add([]byte(`{"seq":1,"type":"abort","abort":{},"sock":{"cookie":1}}`), []byte("[[[[1"))
	for _, line := range client {
		f.Add([]byte(client[0]+client[1]+client[2]+line+line), []byte(line))
	}
	f.Fuzz(func(t *testing.T, a, b []byte) {
		var sources []Source
		for i, data := range [][]byte{a, b} {
			sources = append(sources, Source{fmt.Sprint(i), func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }})
		}
		r, err := files(shared(t), sources, Options{Build: "x"})
		if err != nil {
			return // a format that is not known, or none
		}
		if len(r.Text()) < 2 {
			t.Error("a report of nothing")
		}
		if _, err := json.Marshal(r); err != nil {
			t.Error(err)
		}
	})
}

// TestRandom is the fuzzer with plain luck: real evidence, changed in many
// places, does not make it panic, and does not hold.
func TestRandom(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	client, worker := recorded(t, "client"), recorded(t, "worker")
	values := []string{"0", "1", "-1", "4294967295", "18446744073709551615", "9223372036854775808", "-9223372036854775808", `"x"`, "null", "[]", "{}"}
	for range 80 {
		l := slices.Clone(client)
		for range 1 + rng.IntN(20) {
			i := rng.IntN(len(l))
			switch rng.IntN(8) {
			case 0:
				l = slices.Delete(l, i, i+1)
			case 1:
				l = slices.Insert(l, i, l[rng.IntN(len(l))])
			case 2:
				j := rng.IntN(len(l))
				l[i], l[j] = l[j], l[i]
			case 3:
				b := []byte(l[i])
				b[rng.IntN(len(b))] = byte(rng.Uint32())
				l[i] = string(b)
			default:
				if list := numbers(l[i]); len(list) > 0 {
					n := list[rng.IntN(len(list))]
					l[i] = l[i][:n.from] + values[rng.IntN(len(values))] + l[i][n.to:]
				}
			}
			if len(l) == 0 {
				l = slices.Clone(client)
			}
		}
		r := verifyTexts(t, joined(l), joined(worker), joined(l))
		if len(r.Text()) < 3 {
			t.Error("a report of nothing")
		}
		if _, err := json.Marshal(r); err != nil {
			t.Error(err)
		}
	}
}
