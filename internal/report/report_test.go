package report_test

import (
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/evidence"
	"github.com/sockwatch/sockwatch/internal/report"
)

var update = flag.Bool("update", false, "write the golden stories anew")

// load reads the text of files, as the command reads files.
func load(t testing.TB, c *report.Collector, name, text string) {
	t.Helper()
	f := c.File(name)
	r := evidence.NewReader(strings.NewReader(text))
	for {
		e := new(events.Event)
		err := r.Next(e)
		var bad *evidence.LineError
		switch {
		case errors.Is(err, io.EOF):
			if r.Cut() {
				f.Cut()
			}
			for _, g := range r.Gaps() {
				f.Damaged(g.String())
			}
			return
		case errors.As(err, &bad):
			f.Damaged(bad.Error())
		case err != nil:
			t.Fatal(err)
		default:
			f.Add(r.Line(), e)
		}
	}
}

func read(t testing.TB, file string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", file+".jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
