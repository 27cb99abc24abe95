package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/evidence"
	"github.com/sockwatch/sockwatch/internal/harness/lab"
	"github.com/sockwatch/sockwatch/internal/testlab"
)

// binDir holds the sockwatch that the scripts run: built as it is shipped, and
// where any user may execute it.
var binDir string

func TestMain(m *testing.M) {
	status, err := withBinary(m.Run)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = 1
	}
	os.Exit(status)
}

func withBinary(f func() int) (int, error) {
	dir, err := os.MkdirTemp("", "sockwatch-bin-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		return 0, err
	}
	build := exec.Command("go", "build", "-trimpath",
		"-ldflags=-X main.version=v9.8.7-test -X main.commit=0123456789ab",
		"-o", filepath.Join(dir, "sockwatch"), ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("build sockwatch: %w\n%s", err, out)
	}
	binDir = dir
	return f(), nil
}

// TestScript runs what needs no namespace.
func TestScript(t *testing.T) {
	runScripts(t, "testdata/script", nil)
}

// TestObserve runs what watches one: each script has two of its own, $NETNS
// and $NETNS2.
func TestObserve(t *testing.T) {
	testlab.Privileged(t)
	runScripts(t, "testdata/observe", withNetns(t))
}

// TestMarks is apart, because a mark goes to every sockwatch that runs, and
// those of the other scripts may be about to fail.
func TestMarks(t *testing.T) {
	testlab.Privileged(t)
	runScripts(t, "testdata/marks", withNetns(t))
}

// TestLab runs what makes labs: each script has a name for one, $LAB.
func TestLab(t *testing.T) {
	testlab.Privileged(t)
	runScripts(t, "testdata/lab", func(env *testscript.Env) error {
		name := fmt.Sprintf("s%d", os.Getpid())
		env.Setenv("LAB", name)
		dir := filepath.Join(env.WorkDir, "labs")
		env.Defer(func() { lab.Remove(context.Background(), dir, name) })
		return nil
	})
}

func withNetns(t *testing.T) func(*testscript.Env) error {
	return func(env *testscript.Env) error {
		nodes := testlab.NewNodes(t, 2)
		env.Setenv("NETNS", nodes[0].Name)
		env.Setenv("NETNS2", nodes[1].Name)
		return nil
	}
}

func runScripts(t *testing.T, dir string, setup func(*testscript.Env) error) {
	recorded, err := filepath.Abs("../../internal/verify/testdata")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 dir,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Deadline:            time.Now().Add(3 * time.Minute), // one that hangs is killed and named
		Setup: func(env *testscript.Env) error {
			env.Setenv("PATH", binDir+string(os.PathListSeparator)+env.Getenv("PATH"))
			env.Setenv("PAGE", strconv.Itoa(os.Getpagesize()))
			env.Setenv("EVIDENCE", recorded)
			saved, err := filepath.Abs(filepath.Join("..", "..", "internal", "report", "testdata"))
			if err != nil {
				return err
			}
			env.Setenv("SAVED", saved) // evidence
			if setup != nil {
				return setup(env)
			}
			return nil
		},
		Condition: func(cond string) (bool, error) {
			if cond != "root" {
				return false, fmt.Errorf("unknown condition %q", cond)
			}
			root := os.Geteuid() == 0
			if !root && os.Getenv("CI") != "" {
				return false, errors.New("not root, but CI is set: this script has to run")
			}
			return root, nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"status":   cmdStatus,
			"await":    cmdAwait,
			"evidence": cmdEvidence,
			"mode":     cmdMode,
			"signal":   cmdSignal,
		},
	})
}

// status N command...: the command ends with exit status N.
func cmdStatus(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: status N command...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit status %d, want %d", got, want)
	}
}

// await FILE [TEXT]: waits until the file exists, and contains the text.
func cmdAwait(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 || len(args) > 2 {
		ts.Fatalf("usage: await FILE [TEXT]")
	}
	text := ""
	if len(args) == 2 {
		text = args[1]
	}
	path := ts.MkAbs(args[0])
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if b, err := os.ReadFile(path); err == nil && strings.Contains(string(b), text) {
			return
		}
	}
	ts.Fatalf("%s does not appear, or has no %q", args[0], text)
}

// evidence FILE [cut] TYPE...: the file is evidence without gaps, and has lines
// of these types in this order, clock lines apart.
func cmdEvidence(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 {
		ts.Fatalf("usage: evidence FILE [cut] TYPE...")
	}
	f, err := evidence.ReadFile(ts.MkAbs(args[0]))
	ts.Check(err)
	want := args[1:]
	cut := len(want) > 0 && want[0] == "cut"
	if cut {
		want = want[1:]
	}
	if f.Cut != cut || len(f.Gaps) > 0 {
		ts.Fatalf("cut %t, gaps %v", f.Cut, f.Gaps)
	}
	var got []string
	for _, e := range f.Events {
		if e.Type != events.TypeClock {
			got = append(got, string(e.Type))
		}
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		ts.Fatalf("lines are %q, want %q", got, want)
	}
}

// mode FILE OCTAL: the file's permissions.
func cmdMode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: mode FILE OCTAL")
	}
	info, err := os.Stat(ts.MkAbs(args[0]))
	ts.Check(err)
	if got := fmt.Sprintf("%04o", info.Mode().Perm()); got != args[1] {
		ts.Fatalf("mode %s, want %s", got, args[1])
	}
}

// signal NAME FILE: sends a signal to the sockwatch that writes the file.
func cmdSignal(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: signal NAME FILE")
	}
	sig := unix.SignalNum("SIG" + args[0])
	if sig == 0 {
		ts.Fatalf("unknown signal %s", args[0])
	}
	f, err := evidence.ReadFile(ts.MkAbs(args[1]))
	ts.Check(err)
	if f.Header == nil {
		ts.Fatalf("%s has no header", args[1])
	}
	ts.Check(unix.Kill(f.Header.PID, sig))
}
