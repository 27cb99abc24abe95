package measure

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sockwatch/sockwatch/internal/harness/plan"
)

// What a run that was killed left of captures that are not in its table goes
// when it is taken up again; the rest stays.
func TestDropUnfinished(t *testing.T) {
	r := &run{Config: Config{Dir: t.TempDir()}, rows: []*Row{newRow("a-01", "a")}}
	if err := r.makeDirs(); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{r.evidence("a-01"), r.evidence("a-02"), r.facts("a-01"), r.facts("a-02"), r.transcript("a-01"), r.transcript("a-02") + ".next"} {
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.dropUnfinished(); err != nil {
		t.Fatal(err)
	}
	if exists(r.path(afterWindowName)) {
		t.Error("after-window.tsv was made")
	}
	table := afterWindowHead + "\na-01\t1\t1\t2\t80.000\n"
	if err := os.WriteFile(r.path(afterWindowName), []byte(table+"a-02\t1\t1\t2\t80.000\na-01\t1"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.dropUnfinished(); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(r.path(afterWindowName)); err != nil || string(b) != table {
		t.Errorf("after-window.tsv: %q, %v", b, err)
	}
	left, err := filepath.Glob(filepath.Join(r.Dir, "*", "*"))
	if err != nil || len(left) != 3 {
		t.Errorf("left %v, %v", left, err)
	}
}

func TestProgress(t *testing.T) {
	p := &plan.Plan{Window: 10 * time.Second, Captures: 2, Cells: []plan.Cell{{Name: "a", Order: plan.First}, {Name: "b", Order: plan.Mixed}}}
	r := &run{Config: Config{Plan: p, Parallel: 2}, blocks: p.Order(plan.Selection{Seed: 1}), running: make(map[string]time.Time)}
	r.result.Total = 4
	if got := r.progress(nil); got.Left != 20*time.Second || got.Total != 4 || got.Done != 0 {
		t.Errorf("at the beginning: %+v", got)
	}
	r.Parallel = 1
	if got := r.progress(nil); got.Left != 40*time.Second {
		t.Errorf("one at a time: %+v", got)
	}
	for _, c := range r.blocks[0] {
		r.rows = append(r.rows, newRow(c.ID, c.Cell.Name))
	}
	if got := r.progress(nil); got.Left != 20*time.Second {
		t.Errorf("after the first block: %+v", got)
	}
	r.running[r.blocks[1][0].ID] = time.Now().Add(-4 * time.Second)
	if got := r.progress(nil).Left.Round(time.Second); got != 16*time.Second {
		t.Errorf("with one on its way: %s", got)
	}
}
