package measure

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/evidence"
)

var update = flag.Bool("update", false, "write the explanations that are compared with")

// recorded reads the events and facts of a capture that was really made. Of
// its evidence the lines are kept that concern connections.
func recorded(t testing.TB, name string) ([]events.Event, Facts) {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", name+".jsonl.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var evs []events.Event
	for r := evidence.NewReader(z); ; {
		var e events.Event
		err := r.Next(&e)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		evs = append(evs, e)
	}
	var facts Facts
	b, err := os.ReadFile(filepath.Join("testdata", name+".json"))
	if err == nil {
		err = json.Unmarshal(b, &facts)
	}
	if err != nil {
		t.Fatal(err)
	}
	return evs, facts
}

func recordings(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/*.jsonl.gz")
	if err != nil || len(files) < 8 {
		t.Fatalf("%d recordings: %v", len(files), err)
	}
	for i, f := range files {
		files[i] = strings.TrimSuffix(filepath.Base(f), ".jsonl.gz")
	}
	return files
}

// Each explanation is what a reader of the whole evidence found.
func TestExplain(t *testing.T) {
	for _, name := range recordings(t) {
		evs, facts := recorded(t, name)
		x := Explain(evs, facts)
		if !x.Decided {
			t.Errorf("%s: undecided: %s", name, x.Text)
		}
		b, err := json.MarshalIndent(x, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		b = append(b, '\n')
		golden := filepath.Join("testdata", name+".golden")
		if *update {
			if err := os.WriteFile(golden, b, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if string(b) != string(want) {
			t.Errorf("%s: %s\nwant %s", name, b, want)
		}
	}
}

// Without the events that decide it an explanation is undecided, or says less:
// it never becomes another one.
func TestExplainWithout(t *testing.T) {
	for _, name := range recordings(t) {
		evs, facts := recorded(t, name)
		whole := Explain(evs, facts)
		if none := Explain(nil, facts); none.Decided {
			t.Errorf("%s: decided without evidence: %s", name, none.Text)
		}
		// Lose each event that matters, one at a time.
		for i := range evs {
			e := &evs[i]
			if e.Retransmit == nil && e.Recovered == nil && e.Abort == nil {
				continue
			}
			less := append(append([]events.Event{}, evs[:i]...), evs[i+1:]...)
			x := Explain(less, facts)
			if x.DeliveredBy != "" && whole.DeliveredBy == "" {
				t.Errorf("%s without line %d (%s): delivered by %s, and was not", name, e.Seq, e.Type, x.DeliveredBy)
			}
			if x.Decided && x.DeliveredBy != whole.DeliveredBy {
				t.Errorf("%s without line %d (%s): delivered by %q, was %q", name, e.Seq, e.Type, x.DeliveredBy, whole.DeliveredBy)
			}
		}
	}
}

func TestOrdinal(t *testing.T) {
	for n, want := range map[int]string{1: "1st", 2: "2nd", 3: "3rd", 4: "4th", 7: "7th", 11: "11th", 12: "12th", 13: "13th", 21: "21st", 112: "112th"} {
		if got := ordinal(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}
