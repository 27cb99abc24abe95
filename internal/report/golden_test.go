package report_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/sockwatch/sockwatch/internal/report"
)

// TestGolden tells the recorded evidence. The files are what the real session
// wrote of real sockets, see record_test.go.
func TestGolden(t *testing.T) {
	for _, tt := range []struct {
		name  string
		files []string
		o     report.Options
	}{
		{name: "cut", files: []string{"cut-client", "cut-worker"}, o: report.Options{Since: "applied"}},
		{name: "cut-worker-first", files: []string{"cut-worker", "cut-client"}},
		{name: "cut-client-only", files: []string{"cut-client"}, o: report.Options{Since: "link healed"}},
		{name: "cut-worker-only", files: []string{"cut-worker"}},
		{name: "heal", files: []string{"heal"}},
		{name: "lossy", files: []string{"lossy"}},
		{name: "handshake", files: []string{"handshake"}},
		{name: "ends", files: []string{"ends"}},
		{name: "twins", files: []string{"twins"}},
		{name: "mptcp", files: []string{"mptcp"}},
		{name: "born-before", files: []string{"born-before"}},
		{name: "gone", files: []string{"gone"}},
		{name: "reuse", files: []string{"reuse"}},
		{name: "killed", files: []string{"killed"}},
		{name: "unsent", files: []string{"unsent"}},
		{name: "reject", files: []string{"reject"}},
		{name: "idle", files: []string{"idle"}},
		{name: "tries", files: []string{"tries"}},
		{name: "unheard", files: []string{"unheard"}},
		{name: "restart", files: []string{"restart"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var c report.Collector
			for _, f := range tt.files {
				load(t, &c, f+".jsonl", read(t, f))
			}
			r, err := c.Report(tt.o)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, tt.name+".txt", r.AppendText(nil))
			if tt.name != "cut" {
				return
			}
			j, err := json.MarshalIndent(r, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			golden(t, tt.name+".json", append(j, '\n'))
		})
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
	}
}
