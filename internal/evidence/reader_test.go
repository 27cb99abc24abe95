package evidence

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/sockwatch/sockwatch/internal/events"
)

// lines makes a file of a header, marks and a footer, numbered from 1.
func lines(t testing.TB, evs ...events.Event) []string {
	t.Helper()
	var out []string
	for i, e := range evs {
		if e.Seq == 0 {
			e.Seq = uint64(i + 1)
		}
		b, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, string(b)+"\n")
	}
	return out
}

func header() events.Event {
	return events.Event{Type: events.TypeSession, Session: &events.Session{Schema: events.SchemaVersion, Kernel: "6.18.0"}}
}

func footer() events.Event {
	return events.Event{Type: events.TypeSummary, Summary: &events.Summary{Reason: "interrupted", Lines: 3}}
}

func mark(text string) events.Event {
	return events.Event{Type: events.TypeMark, MonoNS: 17, Time: 1_700_000_000_123_456_789, Mark: &events.Mark{Text: text, Kind: "note"}}
}

func TestReadFile(t *testing.T) {
	whole := strings.Join(lines(t, header(), mark("a"), footer()), "")
	path := filepath.Join(t.TempDir(), "e.jsonl")
	if err := os.WriteFile(path, []byte(whole), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Events) != 3 || f.Cut || len(f.Gaps) != 0 {
		t.Fatalf("%d events, cut %t, gaps %v", len(f.Events), f.Cut, f.Gaps)
	}
	if f.Header == nil || f.Header.Kernel != "6.18.0" || f.Footer == nil || f.Footer.Reason != "interrupted" {
		t.Errorf("header %+v, footer %+v", f.Header, f.Footer)
	}
	// What was read is what was written.
	var again strings.Builder
	for _, e := range f.Events {
		b, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		again.Write(append(b, '\n'))
	}
	if again.String() != whole {
		t.Errorf("read back\n%s\nof\n%s", again.String(), whole)
	}
}

func TestReadFileMissing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "absent.jsonl")
	_, err := ReadFile(path)
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), path) {
		t.Errorf("error %v", err)
	}
}

func TestReadAll(t *testing.T) {
	l := lines(t, header(), mark("a"), mark("b"), footer())
	second := lines(t, events.Event{Seq: 5, Type: events.TypeSession, Session: &events.Session{Schema: events.SchemaVersion}})
	long := lines(t, header(), mark(strings.Repeat("x", 300<<10)), footer())
	tests := []struct {
		name   string
		in     string
		events int
		cut    bool
		gaps   []Gap
		footer bool
	}{
		{"whole", strings.Join(l, ""), 4, false, nil, true},
		{"empty", "", 0, false, nil, false},
		{"killed between lines", l[0] + l[1], 2, false, nil, false},
		{"killed in a line", l[0] + l[1][:20], 1, true, nil, false},
		{"killed before the newline", l[0] + strings.TrimSuffix(l[1], "\n"), 2, false, nil, false},
		{"killed after one byte", l[0] + "{", 1, true, nil, false},
		{"zeros after a crash", l[0] + "\x00\x00\x00\x00", 1, true, nil, false},
		{"line removed", l[0] + l[2] + l[3], 3, false, []Gap{{2, 2, 3}}, true},
		{"first removed", l[1] + l[2], 2, false, []Gap{{1, 1, 2}}, false},
		{"line repeated", l[0] + l[1] + l[1] + l[2], 4, false, []Gap{{3, 3, 2}}, false},
		{"swapped", l[0] + l[2] + l[1] + l[3], 4, false, []Gap{{2, 2, 3}, {3, 4, 2}, {4, 3, 4}}, true},
		{"appended to", strings.Join(l, "") + second[0], 5, false, nil, false},
		{"appended to, numbered anew", strings.Join(l, "") + l[0] + l[1], 6, false, nil, false},
		{"longer than the buffer", strings.Join(long, ""), 3, false, nil, true},
		{"long and cut", long[0] + long[1][:200<<10], 1, true, nil, false},
		{"unknown field and type", l[0] + `{"seq":2,"type":"drop","mono_ns":1,"drop":{"reason":"X"},"new":1}` + "\n", 2, false, nil, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for name, r := range map[string]io.Reader{
				"at once":      strings.NewReader(tt.in),
				"byte by byte": iotest.OneByteReader(strings.NewReader(tt.in)),
			} {
				f, err := readAll(r)
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				if len(f.Events) != tt.events || f.Cut != tt.cut || !slices.Equal(f.Gaps, tt.gaps) || (f.Footer != nil) != tt.footer {
					t.Errorf("%s: %d events, cut %t, gaps %v, footer %t", name, len(f.Events), f.Cut, f.Gaps, f.Footer != nil)
				}
			}
		})
	}
}

func TestReadAllErrors(t *testing.T) {
	l := lines(t, header(), mark("a"), footer())
	tests := []struct{ name, in, want string }{
		{"not JSON", l[0] + "hello\n", `line 2: not an event: invalid character 'h' looking for beginning of value`},
		{"cut in the middle", l[0] + l[1][:30] + "\n" + l[2], "line 2: not an event: unexpected end of JSON input"},
		{"empty line", l[0] + "\n" + l[1], "line 2: empty"},
		{"another JSON", `{"a":1}` + "\n", `line 1: not an event: no "type"`},
		{"array", "[]\n", "line 1: not an event: json: cannot unmarshal array into Go value of type events.Event"},
		{"no seq", `{"type":"mark"}` + "\n", `line 1: not an event: no "seq"`},
		{"no part", `{"seq":1,"type":"abort"}` + "\n", `line 1: type is "abort", but there is no "abort"`},
		{"newer format", `{"seq":1,"type":"session","session":{"schema":"2.0"}}` + "\n", `line 1: format is "2.0", this sockwatch reads 1.x`},
		{"endless line", strings.Repeat("x", maxLine+1), "line 1 is longer than 16 MiB: not an evidence file"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := readAll(strings.NewReader(tt.in))
			if err == nil || err.Error() != tt.want {
				t.Errorf("error %v, want %s", err, tt.want)
			}
		})
	}
	if _, err := readAll(iotest.ErrReader(io.ErrClosedPipe)); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("error %v, want that of the reader", err)
	}
}

// Every type has its part, and reading goes on after a bad line.
func TestNextGoesOn(t *testing.T) {
	r := NewReader(strings.NewReader("junk\n" + strings.Join(lines(t, header(), mark("a")), "")))
	var e events.Event
	var le *LineError
	if err := r.Next(&e); !errors.As(err, &le) || le.Line != 1 {
		t.Fatalf("error %v", err)
	}
	for _, want := range []events.Type{events.TypeSession, events.TypeMark} {
		if err := r.Next(&e); err != nil || e.Type != want {
			t.Fatalf("%v, type %s, want %s", err, e.Type, want)
		}
	}
	if err := r.Next(&e); !errors.Is(err, io.EOF) || r.Line() != 3 || len(r.Gaps()) != 0 {
		t.Errorf("%v after %d lines, gaps %v", err, r.Line(), r.Gaps())
	}
}

func TestGapString(t *testing.T) {
	if got := fmt.Sprint(Gap{Line: 4, Want: 4, Got: 9}); got != "line 4: seq is 9, not 4" {
		t.Error(got)
	}
}

func FuzzReader(f *testing.F) {
	l := lines(f, header(), mark("a"), footer())
	f.Add([]byte(strings.Join(l, "")))
	f.Add([]byte(l[0] + l[1][:30]))
	f.Add([]byte("\n\n{}\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		r := NewReader(strings.NewReader(string(in)))
		var e events.Event
		n := 0
		for {
			err := r.Next(&e)
			if errors.Is(err, io.EOF) {
				break
			}
			var le *LineError
			if err != nil && !errors.As(err, &le) {
				t.Fatal(err)
			}
			if err == nil && (e.Type == "" || e.Seq == 0) {
				t.Fatalf("event %+v", e)
			}
			n++
		}
		if want := strings.Count(string(in), "\n"); n != want && n != want+1 {
			t.Fatalf("%d lines of %d", n, want)
		}
	})
}
