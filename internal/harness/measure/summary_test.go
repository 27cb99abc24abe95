package measure

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sockwatch/sockwatch/internal/harness/plan"
)

// What is not valid is not counted, what is not known is not "no", and what was
// not predicted is said.
func TestConclude(t *testing.T) {
	cell := plan.Cell{Name: "split", Predict: plan.Prediction{Landed: plan.Either, From: 25 * time.Second, To: 28 * time.Second, By: "the 7th"}}
	r := &run{Config: Config{Dir: t.TempDir(), Plan: &plan.Plan{Name: "p", About: "About.", Cells: []plan.Cell{cell, {Name: "other"}}}, Backend: "netns"}}
	row := func(id, valid, landed string, applied float64, agrees, by string) {
		x := newRow(id, "split")
		x.Valid, x.Landed, x.Applied, x.Agrees, x.DeliveredBy, x.Explanation = valid, landed, applied, agrees, by, "because"
		x.Connection, x.WorkerEnd, x.OtherEnd, x.Verdict = "a>b", "alive", "gone", "complete"
		r.rows = append(r.rows, x)
	}
	row("split-03", Yes, Yes, 27.5, Yes, "7th retransmission by timeout")
	row("split-01", Yes, Yes, 26.5, Yes, "7th retransmission by timeout")
	row("split-02", Yes, Yes, 30, "landed after 30.0s, predicted not after 28s", "8th retransmission by timeout")
	row("split-04", Yes, No, -1, Yes, "")
	row("split-05", "node worker has died", No, -1, "-", "")
	row("split-06", Yes, Unknown, -1, Unknown, "")
	r.rows[3].Explanation = undecided + "who knows"
	for _, x := range r.rows {
		r.count(x)
	}
	r.result.Total = 7
	if got := r.result; got.Done != 6 || got.Invalid != 1 || got.Differ != 2 || got.Undecided != 1 {
		t.Errorf("counted %+v", got)
	}
	if err := r.conclude(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(r.path(distributionName))
	if err != nil {
		t.Fatal(err)
	}
	want := "split\t4\t3\t1\t1\t0.194\t0.994\t26.500\t27.500\t30.000\tlands or not, 25s to 28s after the send\t3\tthe 7th\n"
	if _, lines, _ := strings.Cut(string(b), "\n"); lines != want {
		t.Errorf("distribution %q\nwant %q", lines, want)
	}
	b, err = os.ReadFile(r.path(summaryName))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"6 of 7 captures, **not finished**; 1 invalid, 2 not as predicted, 1 not explained",
		"| split | 3/4 | 0.19 to 0.99 | 26.500 to 30.000 |",
		"7th retransmission by timeout: 2, 8th retransmission by timeout: 1, not delivered: 1 |",
		"- split-01: because. Worker's end: alive; other end: gone. Evidence: complete.\n- split-02: because **(landed after 30.0s, predicted not after 28s)**.",
		"- split-05: invalid: node worker has died.",
	} {
		if !strings.Contains(string(b), want) {
			t.Errorf("the summary has no %q:\n%s", want, b)
		}
	}
	if exists(r.path(ManifestName)) {
		t.Error("a run that is not finished has a manifest")
	}
}
