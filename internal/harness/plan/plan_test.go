package plan_test

import (
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sockwatch/sockwatch/internal/harness/plan"
	"github.com/sockwatch/sockwatch/plans"
)

func shipped(t testing.TB) map[string][]byte {
	t.Helper()
	out := make(map[string][]byte)
	names, err := fs.Glob(plans.FS, "*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if out[n], err = plans.FS.ReadFile(n); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func TestShipped(t *testing.T) {
	cells := map[string]int{"latelanding": 14, "held": 5, "boundary": 11, "mechanism": 9, "quick": 3}
	files := shipped(t)
	if len(files) != len(cells) {
		t.Errorf("%d plans shipped, want %d", len(files), len(cells))
	}
	for file, b := range files {
		p, err := plan.Parse(file, b)
		if err != nil {
			t.Error(err)
			continue
		}
		if p.Name+".yaml" != file {
			t.Errorf("%s holds plan %s", file, p.Name)
		}
		if len(p.Cells) != cells[p.Name] {
			t.Errorf("%s has %d cells, want %d", file, len(p.Cells), cells[p.Name])
		}
		// A result needs a control, before and after.
		blocks := p.Order(plan.Selection{})
		for _, b := range [][]plan.Capture{blocks[0], blocks[len(blocks)-1]} {
			for _, c := range b {
				if len(c.Cell.Faults) > 0 || c.Cell.Predict.Landed != plan.Always {
					t.Errorf("%s: %s is first or last and no control", file, c.ID)
				}
			}
		}
	}
}

const small = `plan: p
captures: 2
deadline: 15s
window: 10s
cells:
  - name: a
    order: first
    route: proxied
    connection: warm
    predict: {landed: always, from: 0s, to: 1s, by: x}
  - name: b
    route: proxied
    connection: warm
    idle: 10s
    faults:
      - {kind: netsplit, node: worker, heal: 20s}
      - kind: pause
        node: controlplane
        at: queued
        heal: 45s
    predict: {landed: never, by: x}
  - name: c
    route: direct
    predict: {landed: either, from: 1s, to: 2s, by: x}
`

func TestParse(t *testing.T) {
	got, err := plan.Parse("small", []byte(small))
	if err != nil {
		t.Fatal(err)
	}
	want := &plan.Plan{
		Name: "p", Captures: 2, Deadline: 15 * time.Second, Window: 10 * time.Second,
		Cells: []plan.Cell{
			{
				Name: "a", Order: plan.First, Route: plan.Proxied, Connection: plan.Warm,
				Predict: plan.Prediction{Landed: plan.Always, To: time.Second, By: "x"},
			},
			{
				Name: "b", Order: plan.Mixed, Route: plan.Proxied, Connection: plan.Warm, Idle: 10 * time.Second,
				Faults: []plan.Fault{
					{Kind: plan.Netsplit, Mechanism: "unplug", Node: "worker", At: plan.BeforeSend, Heal: 20 * time.Second},
					{Kind: plan.Pause, Node: "controlplane", At: plan.Queued, Heal: 45 * time.Second},
				},
				Predict: plan.Prediction{Landed: plan.Never, By: "x"},
			},
			{
				Name: "c", Order: plan.Mixed, Route: plan.Direct,
				Predict: plan.Prediction{Landed: plan.Either, From: time.Second, To: 2 * time.Second, By: "x"},
			},
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	b := got.Cell("b")
	if d := got.Duration(b); b.LastHeal() != 45*time.Second || d != 65*time.Second {
		t.Errorf("last heal %s, duration %s", b.LastHeal(), d)
	}
}

func TestRefused(t *testing.T) {
	edit := func(from, to string) string {
		if !strings.Contains(small, from) {
			t.Fatalf("%q is not in the plan", from)
		}
		return strings.Replace(small, from, to, 1)
	}
	tests := []struct {
		yaml string
		want string
	}{
		{"", "plan x: it is empty"},
		{"plan: [", "plan x, line 1: "},
		{edit("window:", "windw:"), `plan x, line 4: unknown field "windw"`},
		{edit("    idle: 10s\n", "    idle: 10s\n    nap: 3s\n"), `plan x, line 15: unknown field "nap"`},
		{edit("captures: 2", "captures: 2\ncaptures: 3"), "plan x, line 3: "},
		{edit("captures: 2", "captures: many"), `plan x, line 2: "many" does not fit here: a number is wanted`},
		{edit("deadline: 15s", "deadline: 15"), `plan x, line 3: deadline: "15" is no duration, such as 20s or 500ms`},
		{edit("heal: 45s", "heal: 5 parsecs"), `plan x, line 20: heal: "5 parsecs" is no duration`},
		{edit("node: controlplane", "node: [worker]"), `plan x, line 18: "[" does not fit here: a word is wanted`},
		{small + "---\nplan: q\n", "plan x: it has more than one YAML document"},
		{edit("deadline: 15s", "deadline: 1ms"), "plan x, line 3: deadline: from 1s to 1h, not 1ms"},
		{edit("captures: 2", "captures: 0"), "plan x, line 2: captures: from 1 to 1000, not 0"},
		{edit("captures: 2\n", ""), "plan x: captures: from 1 to 1000, not 0"},
		{edit("plan: p", "plan: ../p"), `plan x, line 1: plan "../p": a name is lower-case letters, digits and hyphens`},
		{edit("name: b", "name: a"), "plan x, line 11: cell a: there is one of that name above"},
		{edit("name: c", "name: C"), `plan x, line 22: cell "C": a name is lower-case letters, digits and hyphens`},
		{edit("order: first", "order: second"), `plan x, line 7: cell a: order "second" is none of first, mixed, last`},
		{edit("route: direct", "route: scenic"), `plan x, line 23: cell c: route "scenic" is none of proxied, direct`},
		{edit("route: direct", "route: direct\n    connection: warm"), "plan x, line 24: cell c: a direct request opens its own connection, leave it out"},
		{edit("node: controlplane", "node: moon"), `plan x, line 18: cell b: node "moon" is none of client, controlplane, worker`},
		{edit("{kind: netsplit, node: worker, heal: 20s}", "{kind: netsplit, mechanism: axe, node: worker, heal: 20s}"), `plan x, line 16: cell b: mechanism "axe" is none of`},
		{edit("{kind: netsplit, node: worker, heal: 20s}", "{kind: pause, node: worker, heal: 20s}"), "plan x, line 19: cell b: a request waits to be seen only"},
		{edit("heal: 45s", "heal: 15s"), "plan x, line 20: cell b: injected at some time up to the deadline, it cannot heal before that (15s)"},
		{edit("heal: 20s", "heal: 0s"), "plan x, line 16: cell b: heal: more than 0s"},
		{edit("{landed: never, by: x}", "{landed: never, to: 1s, by: x}"), "plan x, line 21: cell b: what never lands has no from and to"},
		{edit("{landed: never, by: x}", "{landed: never}"), "plan x, line 21: cell b: predict.by says"},
		{edit("    predict: {landed: never, by: x}\n", ""), `plan x, line 11: cell b: predict.landed "" is none of always, never, either`},
	}
	for _, tt := range tests {
		_, err := plan.Parse("x", []byte(tt.yaml))
		var pe *plan.Error
		if !errors.As(err, &pe) || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("error %v\nwant  %s", err, tt.want)
		} else if strings.Contains(err.Error(), "\n") {
			t.Errorf("error of several lines: %q", err)
		}
	}
}

func TestOrder(t *testing.T) {
	p, err := plan.Parse("latelanding", shipped(t)["latelanding.yaml"])
	if err != nil {
		t.Fatal(err)
	}
	ids := func(s plan.Selection) (out []string) {
		for i, b := range p.Order(s) {
			for _, c := range b {
				out = append(out, fmt.Sprintf("%d %s", i, c.ID))
			}
		}
		return out
	}
	all := ids(plan.Selection{Seed: 1})
	if len(all) != 70 {
		t.Errorf("%d captures, want 70", len(all))
	}
	if !slices.Equal(all, ids(plan.Selection{Seed: 1})) {
		t.Error("the same seed gives another order")
	}
	if slices.Equal(all, ids(plan.Selection{Seed: 2})) {
		t.Error("another seed gives the same order")
	}
	if all[0] != "0 control-01" || all[4] != "0 control-05" || all[69] != "2 control-after-05" {
		t.Errorf("controls are not first and last: %v", all)
	}
	// Each round of 12 has every mixed cell once.
	for round := range 5 {
		cells := make(map[string]bool)
		for _, id := range all[5+12*round:][:12] {
			if !strings.HasSuffix(id, fmt.Sprintf("-%02d", round+1)) {
				t.Errorf("%s in round %d", id, round+1)
			}
			cells[strings.TrimSuffix(id, fmt.Sprintf("-%02d", round+1))] = true
		}
		if len(cells) != 12 {
			t.Errorf("round %d has %d cells", round+1, len(cells))
		}
	}
	some := ids(plan.Selection{Only: regexp.MustCompile(`^control$|worker-20$`), Captures: 2})
	if len(some) != 2+4*2 {
		t.Errorf("selected %v", some)
	}
	if none := p.Order(plan.Selection{Only: regexp.MustCompile("nothing")}); len(none) != 0 {
		t.Errorf("selected %v", none)
	}
}

func TestAgrees(t *testing.T) {
	always := plan.Prediction{Landed: plan.Always, From: time.Second, To: 2 * time.Second}
	never := plan.Prediction{Landed: plan.Never}
	either := plan.Prediction{Landed: plan.Either, From: time.Second, To: 2 * time.Second}
	tests := []struct {
		p      plan.Prediction
		landed bool
		after  time.Duration
		want   string
	}{
		{always, true, time.Second, ""},
		{always, true, 2 * time.Second, ""},
		{always, true, 2*time.Second + 100*time.Millisecond, "landed after 2.1s, predicted not after 2s"},
		{always, false, 0, "did not land, predicted always"},
		{never, false, 0, ""},
		{never, true, time.Second, "landed, predicted never"},
		{either, false, 0, ""},
		{either, true, 1500 * time.Millisecond, ""},
		{either, true, 0, "landed after 0.0s, predicted not before 1s"},
	}
	for _, tt := range tests {
		if got := tt.p.Agrees(tt.landed, tt.after); got != tt.want {
			t.Errorf("%+v, landed %t after %s: %q, want %q", tt.p, tt.landed, tt.after, got, tt.want)
		}
	}
}

// No input breaks the parser, and what it takes it orders.
func FuzzParse(f *testing.F) {
	for _, b := range shipped(f) {
		f.Add(b)
	}
	f.Add([]byte(small))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := plan.Parse("x", b)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("error of several lines: %q", err)
			}
			return
		}
		n := 0
		for _, block := range p.Order(plan.Selection{Captures: 2}) {
			n += len(block)
		}
		if n != 2*len(p.Cells) {
			t.Errorf("%d captures of %d cells", n, len(p.Cells))
		}
	})
}
