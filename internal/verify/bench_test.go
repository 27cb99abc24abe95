package verify

import (
	"bytes"
	"io"
	"runtime"
	"testing"

	"github.com/sockwatch/sockwatch/internal/events"
)

// stretched is real evidence with its connections repeated until it has as
// many lines, each time under other cookies.
func stretched(t testing.TB, lines int) []byte {
	t.Helper()
	recorded := recorded(t, "client")
	var evs []*events.Event
	for _, line := range recorded {
		evs = append(evs, decode(t, line))
	}
	var b []byte
	seq := uint64(0)
	put := func(e *events.Event) {
		seq++
		e.Seq = seq
		b = append(e.AppendJSON(b), '\n')
	}
	body := evs[3 : len(evs)-2]
	for _, e := range evs[:3] {
		put(e)
	}
	for seq < uint64(lines) {
		for _, e := range body {
			if e.Sock == nil {
				continue
			}
			old := *e.Sock
			if e.Sock.Cookie != 0 {
				e.Sock.Cookie += 1000
			}
			put(e)
			if e.Sock.Cookie == old.Cookie && old.Cookie != 0 {
				t.Fatal("a cookie came twice")
			}
		}
	}
	for _, e := range evs[len(evs)-2:] {
		put(e)
	}
	return b
}

// BenchmarkVerify verifies long files. Counts and counters do not fit them,
// which costs nothing.
func BenchmarkVerify(b *testing.B) {
	const lines = 100_000
	file := stretched(b, lines)
	b.SetBytes(int64(len(file)))
	b.ReportAllocs()
	var r *Report
	for b.Loop() {
		var err error
		r, err = Files([]Source{{"long", func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(file)), nil }}}, Options{})
		if err != nil {
			b.Fatal(err)
		}
	}
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*r.Files[0].Lines), "us/line")
	b.ReportMetric(float64(r.Files[0].Sessions[0].Sockets), "sockets")
}
