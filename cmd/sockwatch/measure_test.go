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

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/internal/harness/lab"
	"github.com/sockwatch/sockwatch/internal/testlab"
)

// TestMeasureScripts runs what makes labs of its own.
func TestMeasureScripts(t *testing.T) {
	testlab.Privileged(t)
	runScripts(t, "testdata/measure", func(env *testscript.Env) error {
		env.Defer(func() { _ = unix.Unmount(filepath.Join(env.WorkDir, "disk"), unix.MNT_DETACH) }) // of a script that failed
		return nil
	})
}

// The docker backend makes the same of the quick plan, with shorter times, and
// of one held cell; and leaves nothing when it is killed in the middle of one.
func TestMeasureDocker(t *testing.T) {
	testlab.NewDocker(t) // or skip
	plan, dir := writePlan(t, strings.Replace(killedPlan, "cells:\n", `cells:
  - name: control
    order: first
    route: proxied
    connection: warm
    predict: {landed: always, from: 0s, to: 2s, by: x}
`, 1))
	out := filepath.Join(dir, "out")
	cmd := exec.Command(filepath.Join(binDir, "sockwatch"), "measure", plan, "-o", out, "--backend", "docker", "--only", "control|held")
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	rows := table(t, filepath.Join(out, "captures.tsv"))
	for id, landed := range map[string]string{"control-01": "yes", "held-01": ""} {
		row := rows[id]
		if row["valid"] != "yes" || landed != "" && row["landed"] != landed || strings.HasPrefix(row["explanation"], "undecided") {
			t.Errorf("%s: %v", id, row)
		}
	}
	if by := rows["held-01"]["delivered_by"]; !strings.HasSuffix(by, "retransmission by timeout") {
		t.Errorf("held: delivered by %q", by)
	}

	killed := filepath.Join(dir, "killed")
	var stderr bytes.Buffer
	cmd = exec.Command(filepath.Join(binDir, "sockwatch"), "measure", plan, "-o", killed, "--backend", "docker", "--only", "held")
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, filepath.Join(killed, "evidence", "held-01.jsonl"), `"text":"pause of controlplane","kind":"applied"`)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	expectClean(t, cmd.Process.Pid, killed, &stderr)
	_ = cmd.Wait() // the watchdog has its stderr, too
}

// await waits until a file has a text.
func await(t *testing.T, path, text string) {
	t.Helper()
	for end := time.Now().Add(testlab.Slack(30 * time.Second)); ; time.Sleep(10 * time.Millisecond) {
		if b, _ := os.ReadFile(path); bytes.Contains(b, []byte(text)) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s has no %s", path, text)
		}
	}
}

// expectClean waits for the machine to be clean, no longer than it may take.
func expectClean(t *testing.T, pid int, out string, stderr fmt.Stringer) {
	t.Helper()
	killed := time.Now()
	for {
		left := leftBy(t, pid, out)
		if len(left) == 0 {
			t.Logf("clean after %s", time.Since(killed).Round(time.Millisecond))
			return
		}
		if time.Since(killed) > testlab.Slack(5*time.Second) {
			t.Fatalf("left behind after 5 s:\n%s\nit said: %s", strings.Join(left, "\n"), stderr)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// table reads a table with a header, by the first column.
func table(t *testing.T, path string) map[string]map[string]string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
	names := strings.Split(lines[0], "\t")
	rows := make(map[string]map[string]string)
	for _, l := range lines[1:] {
		row := make(map[string]string)
		for i, v := range strings.Split(l, "\t") {
			row[names[i]] = v
		}
		rows[row[names[0]]] = row
	}
	return rows
}

func writePlan(t *testing.T, text string) (plan, dir string) {
	t.Helper()
	dir = t.TempDir()
	plan = filepath.Join(dir, "plan.yaml")
	if err := os.WriteFile(plan, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return plan, dir
}

// Without a race in it: what happens is the same each time.
const surePlan = `plan: sure
captures: 3
deadline: 2s
window: 2s
cells:
  - name: control
    route: proxied
    connection: warm
    predict: {landed: always, from: 0s, to: 2s, by: x}
  - name: arrives
    route: proxied
    connection: warm
    faults: [{kind: netsplit, mechanism: drop-from, node: worker, heal: 4s}]
    predict: {landed: always, from: 0s, to: 2s, by: x}
  - name: waits
    route: proxied
    connection: warm
    faults: [{kind: pause, node: controlplane, heal: 3s}]
    predict: {landed: never, by: x}
  - name: nowhere
    route: direct
    faults: [{kind: netsplit, node: worker, heal: 4s}]
    predict: {landed: never, by: x}
`

// Captures side by side come out as one at a time, and are explained alike.
func TestMeasureSideBySide(t *testing.T) {
	testlab.Privileged(t)
	if testing.Short() {
		t.Skip("it takes a minute")
	}
	plan, dir := writePlan(t, surePlan)
	results := make(map[string]map[string]map[string]string)
	for name, args := range map[string][]string{"alone": {"--parallel", "1", "-n", "1"}, "together": {"--parallel", "12"}} {
		out := filepath.Join(dir, name)
		cmd := exec.Command(filepath.Join(binDir, "sockwatch"), append([]string{"measure", plan, "-o", out}, args...)...)
		if b, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, b)
		}
		results[name] = table(t, filepath.Join(out, "captures.tsv"))
	}
	if len(results["alone"]) != 4 || len(results["together"]) != 12 {
		t.Fatalf("%d captures alone, %d together", len(results["alone"]), len(results["together"]))
	}
	for id, got := range results["together"] {
		want := results["alone"][got["cell"]+"-01"]
		for _, column := range []string{"valid", "client_rc", "landed", "log_lines", "delivered_by", "as_predicted"} {
			if got[column] != want[column] {
				t.Errorf("%s: %s is %q, alone it is %q (%s)", id, column, got[column], want[column], got["explanation"])
			}
		}
		if got["as_predicted"] != "yes" || strings.HasPrefix(got["explanation"], "undecided") {
			t.Errorf("%s: %s: %s", id, got["as_predicted"], got["explanation"])
		}
	}
}

// A node that dies makes its capture invalid, not one in which nothing landed.
func TestMeasureNodeDies(t *testing.T) {
	testlab.Privileged(t)
	plan, dir := writePlan(t, surePlan)
	out := filepath.Join(dir, "out")
	var stderr bytes.Buffer
	cmd := exec.Command(filepath.Join(binDir, "sockwatch"), "measure", plan, "-o", out, "-n", "1", "--only", "waits")
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, filepath.Join(out, "evidence", "waits-01.jsonl"), "sent: the client starts")
	var record struct{ ID string }
	b, err := os.ReadFile(filepath.Join(out, "run.json"))
	if err == nil {
		err = json.Unmarshal(b, &record)
	}
	if err != nil {
		t.Fatal(err)
	}
	l, err := lab.Open("", "m"+record.ID+"1")
	if err != nil {
		t.Fatal(err)
	}
	worker, err := l.Node(lab.Worker)
	if err == nil {
		err = worker.Kill(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != exitIncomplete {
		t.Errorf("it ended with %v\n%s", err, &stderr)
	}
	if got := table(t, filepath.Join(out, "captures.tsv"))["waits-01"]["valid"]; got != "node worker has died" {
		t.Errorf("valid: %q", got)
	}
	if !strings.Contains(stderr.String(), "sockwatch: 1 of 1 captures are invalid\n") {
		t.Errorf("it said: %s", &stderr)
	}
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
	plan, dir := writePlan(t, killedPlan)
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
			expectClean(t, cmd.Process.Pid, out, &stderr)
			<-ended
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
	if record.ID != "" {
		left = append(left, containersOf("m"+record.ID)...)
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

// containersOf lists the containers and networks of a run, where there is Docker.
func containersOf(lab string) (left []string) {
	for _, what := range []string{"container", "network"} {
		args := []string{what, "ls", "--filter", "name=" + lab, "--format", what + " {{.Name}}"}
		if what == "container" {
			args = append(args, "--all")
		}
		if b, err := exec.Command("docker", args...).Output(); err == nil {
			for l := range strings.Lines(string(b)) {
				left = append(left, strings.TrimSpace(l))
			}
		}
	}
	return left
}
