package measure

import (
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// Against R's binom.test(k, n)$conf.int and, where k is 0 or n, the closed form.
func TestInterval(t *testing.T) {
	tests := []struct {
		k, n      int
		low, high float64
	}{
		{0, 0, 0, 1},
		{0, 5, 0, 1 - math.Pow(0.025, 1.0/5)},
		{5, 5, math.Pow(0.025, 1.0/5), 1},
		{0, 18, 0, 0.1853020},
		{7, 8, 0.4734903, 0.9968403},
		{2, 3, 0.09429932, 0.99159624},
		{1, 2, 0.01257912, 0.98742088},
		{10, 20, 0.2719578, 0.7280422},
	}
	for _, tt := range tests {
		low, high := Interval(tt.k, tt.n)
		if math.Abs(low-tt.low) > 1e-6 || math.Abs(high-tt.high) > 1e-6 {
			t.Errorf("%d of %d: %.7f to %.7f, want %.7f to %.7f", tt.k, tt.n, low, high, tt.low, tt.high)
		}
	}
}

func TestRows(t *testing.T) {
	a := newRow("x-01", "x")
	a.Sent, a.SentNS, a.Ended, a.RC, a.Landed = "2026-01-02T03:04:05.000000006Z", 1<<63, 15.0004, 137, No
	a.Client, a.Explanation = "-", "one\ttwo\nthree"
	b := newRow("x-02", "x")

	path := filepath.Join(t.TempDir(), "captures.tsv")
	tab, err := openTable(path, header(), 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []*Row{a, b} {
		if err := tab.add(r.line()); err != nil {
			t.Fatal(err)
		}
	}
	tab.close()
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	// Cut anywhere, the whole lines count and the next line is on its own.
	for cut := range len(whole) + 1 {
		if err := os.WriteFile(path, whole[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		rows, end, err := readRows(strings.NewReader(string(whole[:cut])))
		if err != nil {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		want := max(strings.Count(string(whole[:cut]), "\n")-1, 0)
		if len(rows) != want {
			t.Fatalf("cut at %d: %d rows, want %d", cut, len(rows), want)
		}
		tab, err := openTable(path, header(), end)
		if err != nil {
			t.Fatal(err)
		}
		if err := tab.add(b.line()); err != nil {
			t.Fatal(err)
		}
		tab.close()
		again, _ := os.ReadFile(path)
		if rows, _, err := readRows(strings.NewReader(string(again))); err != nil || len(rows) != want+1 {
			t.Fatalf("cut at %d and added to: %d rows, %v", cut, len(rows), err)
		}
	}

	rows, _, err := readRows(strings.NewReader(string(whole)))
	if err != nil {
		t.Fatal(err)
	}
	got := *rows[0]
	want := *a
	want.Ended, want.Explanation = 15, "one two three"
	for _, s := range []*string{&want.Updated, &want.Connection, &want.DeliveredBy, &want.WorkerEnd, &want.OtherEnd, &want.Verdict, &want.Agrees} {
		*s = "-"
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("read %+v\nwant %+v", got, want)
	}

	for _, bad := range []string{"a\tb\n", header() + "\nx\n", header() + "\n" + strings.Replace(a.line(), "137", "x", 1) + "\n"} {
		if _, _, err := readRows(strings.NewReader(bad)); err == nil {
			t.Errorf("no error for %q", bad)
		}
	}
}

func TestManifest(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	check := func(want ...string) {
		t.Helper()
		_, differs, err := CheckManifest(dir)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(differs, want) {
			t.Errorf("differs %q, want %q", differs, want)
		}
	}
	if _, _, err := CheckManifest(dir); !os.IsNotExist(err) {
		t.Errorf("no manifest: %v", err)
	}
	write("b.tsv", "b")
	write("evidence/a.jsonl", "a")
	write("c", "c")
	if err := writeManifest(dir); err != nil {
		t.Fatal(err)
	}
	files, _, err := CheckManifest(dir)
	if err != nil || !slices.Equal(files, []string{"b.tsv", "c", "evidence/a.jsonl"}) {
		t.Errorf("files %q, %v", files, err)
	}
	check()
	write("b.tsv", "B")
	os.Remove(filepath.Join(dir, "c"))
	write("evidence/new", "")
	check("b.tsv: changed", "c: missing", "evidence/new: not in the manifest")

	for _, bad := range []string{"abc  x\n", strings.Repeat("00", 32) + "  ../x\n", strings.Repeat("00", 32) + "  /x\n", strings.Repeat(strings.Repeat("00", 32)+"  x\n", 2)} {
		write(ManifestName, bad)
		if _, _, err := CheckManifest(dir); err == nil {
			t.Errorf("no error for %q", bad)
		}
	}
}
