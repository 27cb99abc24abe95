package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sockwatch/sockwatch/internal/testlab"
)

// TestMeasure runs what makes labs of its own.
func TestMeasure(t *testing.T) {
	testlab.Privileged(t)
	runScripts(t, "testdata/measure", nil)
}

// Each of these has something else to be undone: an interface, a frozen
// cgroup, a rule in a node's own filter, a node without processes.
const killedPlan = `plan: killed
captures: 1
deadline: 2s
window: 6s
cells:
  - name: held
    route: proxied
    connection: warm
    faults:
      - {kind: netsplit, node: worker, heal: 4s}
      - {kind: pause, node: controlplane, at: queued, heal: 3s}
    predict: {landed: either, from: 0s, to: 10s, by: x}
  - name: filter
    route: proxied
    connection: warm
    faults:
      - {kind: netsplit, mechanism: drop-output, node: worker, heal: 3s}
      - {kind: pause, node: client, heal: 4s}
    predict: {landed: either, from: 0s, to: 10s, by: x}
  - name: cold
    route: proxied
    connection: cold
    faults:
      - {kind: kill, node: worker, heal: 3s}
    predict: {landed: either, from: 0s, to: 10s, by: x}
`

// A measurement that is killed at any instant leaves nothing behind, 5 s later.
func TestMeasureKilled(t *testing.T) {
	testlab.Privileged(t)
	if testing.Short() {
		t.Skip("it takes a minute")
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	dir := t.TempDir()
	plan := filepath.Join(dir, "killed.yaml")
	if err := os.WriteFile(plan, []byte(killedPlan), 0o600); err != nil {
		t.Fatal(err)
	}
	const instants, longest = 20, 8 * time.Second
	side := make(chan struct{}, 5)
	for i := range instants {
		after := time.Duration(rng.Int64N(int64(longest)))
		cell := []string{"held", "filter", "cold"}[i%3]
		t.Run(fmt.Sprintf("%s after %s", cell, after.Round(time.Millisecond)), func(t *testing.T) {
			t.Parallel()
			side <- struct{}{}
			defer func() { <-side }()
			out := filepath.Join(dir, fmt.Sprint(i))
			var stderr bytes.Buffer
			cmd := exec.Command(filepath.Join(binDir, "sockwatch"), "measure", plan, "-o", out, "--only", cell)
			cmd.Stderr = &stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan struct{})
			go func() {
				_ = cmd.Wait() // the watchdog has its stderr, too
				close(ended)
			}()
			select {
			case <-time.After(after):
			case <-ended:
				t.Fatalf("it ended by itself: %s\n%s", cmd.ProcessState, &stderr)
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			killed := time.Now()
			for what := []string{""}; len(what) > 0; time.Sleep(20 * time.Millisecond) {
				what = leftBy(t, cmd.Process.Pid, out)
				if len(what) > 0 && time.Since(killed) > testlab.Slack(5*time.Second) {
					t.Fatalf("left behind after 5 s:\n%s\nit said: %s", strings.Join(what, "\n"), &stderr)
				}
			}
			<-ended
			t.Logf("clean after %s", time.Since(killed).Round(time.Millisecond))
		})
	}
}

// leftBy lists what a measurement has on the machine.
func leftBy(t *testing.T, pid int, out string) (left []string) {
	t.Helper()
	journal, err := filepath.Glob("/run/sockwatch/faults/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range journal {
		if b, err := os.ReadFile(f); err == nil && bytes.Contains(b, fmt.Appendf(nil, `"pid":%d,`, pid)) {
			left = append(left, f)
		}
	}
	// Words that only its processes have in their command lines.
	words := []string{fmt.Sprintf("--owner\x00%d:", pid)}
	var record struct{ ID string }
	if b, err := os.ReadFile(filepath.Join(out, "run.json")); err == nil {
		if err := json.Unmarshal(b, &record); err != nil {
			t.Fatal(err)
		}
		lab := "m" + record.ID
		words = append(words, "/"+lab)
		for _, pattern := range []string{
			"/run/netns/sw-%s*", "/run/sockwatch/labs/%s*", "/sys/fs/cgroup/sockwatch/%s*", "/sys/fs/cgroup/*/sockwatch/%s*",
		} {
			files, err := filepath.Glob(fmt.Sprintf(pattern, lab))
			if err != nil {
				t.Fatal(err)
			}
			left = append(left, files...)
		}
	}
	procs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range procs {
		b, err := os.ReadFile(p)
		if err != nil {
			continue
		}
		for _, w := range words {
			if bytes.Contains(b, []byte(w)) {
				left = append(left, fmt.Sprintf("%s: %s", p, bytes.ReplaceAll(b, []byte{0}, []byte{' '})))
			}
		}
	}
	return left
}
