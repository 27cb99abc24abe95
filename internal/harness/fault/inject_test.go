package fault

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sockwatch/sockwatch/internal/harness/lab"
	"github.com/sockwatch/sockwatch/internal/harness/plan"
	"github.com/sockwatch/sockwatch/internal/testlab"
)

// sockwatch is the program that the labs of the tests run.
var sockwatch = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "sockwatch-fault-")
	if err != nil {
		return "", err
	}
	binaryDir = dir
	path := filepath.Join(dir, "sockwatch")
	build := exec.Command("go", "build", "-o", path, "../../../cmd/sockwatch")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build sockwatch: %w\n%s", err, out)
	}
	return path, nil
})

// RemoveBinary is for the end of the tests.
func RemoveBinary() {
	if binaryDir != "" {
		os.RemoveAll(binaryDir)
	}
}

var binaryDir string

// bench is a lab with what makes faults in it.
type bench struct {
	*Injector
	lab     *lab.Lab
	journal string

	mu    sync.Mutex
	marks []string
	times []uint64
}

func newBench(t *testing.T) *bench {
	t.Helper()
	testlab.Privileged(t)
	path, err := sockwatch()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	b := &bench{journal: filepath.Join(dir, "journal")}
	b.lab, err = lab.Up(t.Context(), lab.Spec{Name: fmt.Sprintf("f%d-%x", os.Getpid(), time.Now().UnixNano()&0xfffffff), StateDir: filepath.Join(dir, "labs"), Binary: path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.lab.Down(context.Background()); err != nil {
			t.Errorf("take the lab away: %v", err)
		}
	})
	guard, err := StartGuard(os.Args[0], b.journal, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := guard.Close(); err != nil {
			t.Error(err)
		}
	})
	b.Injector = &Injector{Guard: guard, Mark: func(kind, _ string, at uint64) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.marks = append(b.marks, kind)
		b.times = append(b.times, at)
	}}
	return b
}

// entries counts what is in the journal.
func (b *bench) entries(t *testing.T) int {
	t.Helper()
	all, err := journal(b.journal).list()
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

func (b *bench) condition(t *testing.T, role string) lab.Condition {
	t.Helper()
	n, err := b.lab.Node(role)
	if err != nil {
		t.Fatal(err)
	}
	c, err := n.Condition(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Every way to break a node has the one life: journalled and armed before it
// is applied, verified, healed, recovered, forgotten.
func TestEveryWay(t *testing.T) {
	b := newBench(t)
	specs := []Spec{
		{Kind: plan.Pause, Node: lab.Controlplane},
		{Kind: plan.Kill, Node: lab.Worker},
		{Kind: plan.Neutral, Node: lab.Worker},
		{Kind: plan.Pause, Node: lab.Client},
	}
	for _, m := range plan.Mechanisms {
		specs = append(specs, Spec{Kind: plan.Netsplit, Mechanism: m, Node: lab.Worker})
	}
	for _, s := range specs {
		t.Run(s.String(), func(t *testing.T) {
			b.marks, b.times = nil, nil
			before := b.condition(t, s.Node)
			f, err := b.Inject(t.Context(), b.lab, s)
			if err != nil {
				t.Fatal(err)
			}
			if n := b.entries(t); n != 1 {
				t.Errorf("%d entries in the journal while it holds, want 1", n)
			}
			if x := f.Times; x.Intended > x.Armed || x.Armed > x.Applying || x.Applying > x.Applied || x.Applied > x.Verified {
				t.Errorf("not in order: %+v", x)
			}
			if during := b.condition(t, s.Node); (during == before) != (s.Kind == plan.Neutral) {
				t.Errorf("while it holds: %+v, before: %+v", during, before)
			}
			if err := f.Heal(t.Context()); err != nil {
				t.Fatal(err)
			}
			if n := b.entries(t); n != 0 {
				t.Errorf("%d entries in the journal when it is healed", n)
			}
			after := b.condition(t, s.Node)
			if s.Mechanism == "unplug-new-mac" && after.MAC == before.MAC {
				t.Error("the hardware address is the same")
			} else if s.Mechanism == "unplug-new-mac" {
				after.MAC = before.MAC
			}
			if s.Kind == plan.Kill && after.Netns == before.Netns {
				t.Error("the network namespace is the same")
			} else if s.Kind == plan.Kill {
				after.Netns = before.Netns
			}
			if after != before {
				t.Errorf("healed: %+v, before: %+v", after, before)
			}
			if want := []string{"intended", "applied", "verified", "heal-intended", "healed", "recovered"}; !slices.Equal(b.marks, want) {
				t.Errorf("marks %v, want %v", b.marks, want)
			}
			if !slices.IsSorted(b.times) {
				t.Errorf("marks at %v", b.times)
			}
		})
	}
}

// What has no effect is not called a fault, and what is not well to begin with
// is not broken.
func TestRefusals(t *testing.T) {
	b := newBench(t)
	real := splits["drop"]
	defer func() { splits["drop"] = real }()
	nothing := func(*lab.Node, context.Context) error { return nil }

	lame := real
	lame.apply = nothing
	splits["drop"] = lame
	if _, err := b.Inject(t.Context(), b.lab, Spec{Kind: plan.Netsplit, Mechanism: "drop", Node: lab.Worker}); !errors.Is(err, ErrNoEffect) {
		t.Errorf("no effect: %v", err)
	}
	// It drops one way only: half an effect is none either.
	lame.apply = drop(lab.To)
	splits["drop"] = lame
	if _, err := b.Inject(t.Context(), b.lab, Spec{Kind: plan.Netsplit, Mechanism: "drop", Node: lab.Worker}); !errors.Is(err, ErrNoEffect) || !strings.Contains(err.Error(), "what worker sends to client arrives") {
		t.Errorf("half an effect: %v", err)
	}
	if want := []string{"intended", "applied", "intended", "applied"}; !slices.Equal(b.marks, want) {
		t.Errorf("marks %v, want %v", b.marks, want)
	}
	if c := b.condition(t, lab.Worker); c.Dropped != lab.None || b.entries(t) != 0 {
		t.Errorf("left %s dropped, %d entries", c.Dropped, b.entries(t))
	}

	// A heal that heals nothing.
	lame = real
	lame.undo = nothing
	splits["drop"] = lame
	f, err := b.Inject(t.Context(), b.lab, Spec{Kind: plan.Netsplit, Mechanism: "drop", Node: lab.Worker})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Heal(t.Context()); !errors.Is(err, ErrNotWell) {
		t.Errorf("not healed: %v", err)
	}
	if b.entries(t) != 1 {
		t.Error("what is not healed is not in the journal any more")
	}
	splits["drop"] = real

	b.marks = nil
	if _, err := b.Inject(t.Context(), b.lab, Spec{Kind: plan.Netsplit, Mechanism: "unplug", Node: lab.Worker}); !errors.Is(err, ErrUnwell) || len(b.marks) > 0 {
		t.Errorf("dropped already: %v, marks %v", err, b.marks)
	}
	// What stays in the journal is undone by whoever comes next.
	if err := journal(b.journal).undoAll(t.Context(), mustList(t, b.journal), func(string) {}); err != nil {
		t.Fatal(err)
	}
	if c := b.condition(t, lab.Worker); c.Dropped != lab.None || b.entries(t) != 0 {
		t.Errorf("left %s dropped, %d entries", c.Dropped, b.entries(t))
	}
}

func mustList(t *testing.T, dir string) []Entry {
	t.Helper()
	all, err := journal(dir).list()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// A harness that hangs does not keep a node broken.
func TestOverdue(t *testing.T) {
	b := newBench(t)
	f, err := b.Inject(t.Context(), b.lab, Spec{Kind: plan.Pause, Node: lab.Worker, HealBy: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if !b.condition(t, lab.Worker).Frozen {
		t.Error("healed before its time")
	}
	for end := time.Now().Add(testlab.Slack(5 * time.Second)); b.condition(t, lab.Worker).Frozen || b.entries(t) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not healed, long after its time")
		}
	}
	if err := f.Heal(t.Context()); err != nil {
		t.Errorf("healing what is healed: %v", err)
	}
}
