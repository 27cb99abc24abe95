package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/evidence"
	"github.com/sockwatch/sockwatch/internal/loader"
	"github.com/sockwatch/sockwatch/internal/session"
	"github.com/sockwatch/sockwatch/internal/sink"
	"github.com/sockwatch/sockwatch/internal/target"
)

func TestParseSize(t *testing.T) {
	tests := []struct {
		in   string
		want uint64
		ok   bool
	}{
		{"4096", 4096, true},
		{"8MiB", 8 << 20, true},
		{"8M", 8 << 20, true},
		{"8mib", 8 << 20, true},
		{"8 MiB", 8 << 20, true},
		{"1G", 1 << 30, true},
		{"512KiB", 512 << 10, true},
		{"3k", 3 << 10, true},
		{"0", 0, true},
		{"", 0, false},
		{"M", 0, false},
		{"MiB", 0, false},
		{"8MB", 0, false},
		{"8iB", 0, false},
		{"-8M", 0, false},
		{"1.5M", 0, false},
		{"8 M iB", 0, false},
		{"17179869184G", 0, false}, // 2^64
		{"17179869183G", 17179869183 << 30, true},
	}
	for _, tt := range tests {
		got, ok := parseSize(tt.in)
		if got != tt.want || ok != tt.ok {
			t.Errorf("%q: %d %t, want %d %t", tt.in, got, ok, tt.want, tt.ok)
		}
		if ok {
			if again, ok := parseSize(strings.TrimSuffix(formatSize(got), " bytes")); !ok || again != got {
				t.Errorf("%q: printed as %q, read as %d", tt.in, formatSize(got), again)
			}
		}
	}
}

func TestShortDuration(t *testing.T) {
	for in, want := range map[time.Duration]string{
		time.Second: "1s", 5 * time.Minute: "5m", time.Hour: "1h", 90 * time.Minute: "1h30m",
		time.Hour + time.Second: "1h0m1s", 10 * time.Second: "10s", 500 * time.Millisecond: "500ms", 20 * time.Minute: "20m",
	} {
		if got := shortDuration(in); got != want {
			t.Errorf("%d: %q, want %q", in, got, want)
		}
	}
}

func TestClassify(t *testing.T) {
	tests := []struct {
		name string
		err  error
		want int
	}{
		{"none", nil, exitOK},
		{"anything", errors.New("boom"), exitFailure},
		{"usage", usageError("", "x"), exitUsage},
		{"target misspelled", &target.Error{Err: target.ErrBadSpec}, exitUsage},
		{"no BTF", fmt.Errorf("open: %w", loader.ErrNoBTF), exitMachine},
		{"kernel refuses", fmt.Errorf("load: %w", unix.EPERM), exitMachine},
		{"target unknown", &target.Error{Err: target.ErrNotFound}, exitTarget},
		{"target ambiguous", &target.Error{Err: target.ErrAmbiguous}, exitTarget},
		{"engine", &target.Error{Err: target.ErrEngine}, exitTarget},
		{"target not running", &target.Error{Err: target.ErrGone}, exitTarget},
		{"targets gone", fmt.Errorf("watch: %w", session.ErrTargetsGone), exitTarget},
		{"no instance", session.ErrNoInstance, exitTarget},
		{"output exists", &session.OutputError{Err: fs.ErrExist}, exitOutput},
		{"output not permitted", &session.OutputError{Err: unix.EACCES}, exitOutput},
		{"output in use", &session.OutputError{Err: sink.ErrLocked}, exitOutput},
		{"disk full", &sink.WriteError{Cause: unix.ENOSPC}, exitOutput},
		{"broken pipe", &session.OutputError{Err: &sink.WriteError{Cause: unix.EPIPE}}, exitOutput},
		{"records lost", complete(&session.Result{Summary: events.Summary{Kernel: events.Counts{Produced: 9, Lost: 2}}}, false), exitIncomplete},
		{"records gone", complete(&session.Result{Summary: events.Summary{Kernel: events.Counts{Unaccounted: -1}}}, false), exitIncomplete},
		{"complete", complete(&session.Result{Summary: events.Summary{Kernel: events.Counts{Produced: 9, Read: 9}}}, false), exitOK},
		{"not proven, not asked for", complete(&session.Result{Summary: events.Summary{Verdict: events.Verdict{State: evidence.Unprovable}}}, false), exitOK},
		{"not proven", complete(&session.Result{Summary: events.Summary{Verdict: events.Verdict{State: evidence.Unprovable}}}, true), exitIncomplete},
		{"proven", complete(&session.Result{Summary: events.Summary{Verdict: events.Verdict{State: evidence.Complete}}}, true), exitOK},
	}
	for _, tt := range tests {
		if got, _ := classify(tt.err); got != tt.want {
			t.Errorf("%s: status %d, want %d", tt.name, got, tt.want)
		}
	}
	for i, e := range exitTable {
		if e.status != i {
			t.Errorf("row %d of the table is for status %d", i, e.status)
		}
	}
	if len(exitTable) != exitContradiction+1 {
		t.Errorf("%d statuses documented of %d", len(exitTable), exitContradiction+1)
	}
}

func TestReport(t *testing.T) {
	var stderr bytes.Buffer
	env := &environment{Stderr: &stderr}
	if got := report(env, usageError("try x", "bad \x1b[31m\nname")); got != exitUsage {
		t.Errorf("status %d", got)
	}
	if got, want := stderr.String(), "sockwatch: bad \\x1b[31m name\nhint: try x\n"; got != want {
		t.Errorf("printed %q, want %q", got, want)
	}
}

func TestQuoteArg(t *testing.T) {
	for in, want := range map[string]string{
		"plain": "plain", "netns:a_b-c.d": "netns:a_b-c.d", "": "''", "a b": "'a b'", "a'b": `'a'\''b'`, "$(x)": "'$(x)'",
	} {
		if got := quoteArg(in); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
}

// The first signal ends gracefully, also when it comes twice; a second one
// ends at once.
func TestUntilSignal(t *testing.T) {
	signals := make(chan os.Signal)
	exited := make(chan int, 1)
	stopped := false
	env := &environment{
		Signals: func() (<-chan os.Signal, func()) { return signals, func() { stopped = true } },
		Exit:    func(status int) { exited <- status },
	}
	said := make(chan string, 1)
	ctx, stop := untilSignal(t.Context(), env, func(s string) { said <- s })

	if ctx.Err() != nil {
		t.Fatal("ended before any signal")
	}
	signals <- unix.SIGTERM
	<-ctx.Done()
	signals <- unix.SIGTERM // the same, from timeout(1)
	select {
	case <-exited:
		t.Fatal("a doubled signal ended it at once")
	case <-time.After(signalPause + 100*time.Millisecond):
	}
	signals <- unix.SIGINT
	if got := <-said; got != "second signal (interrupt): ended at once, the evidence has no footer" {
		t.Errorf("said %q", got)
	}
	if got := <-exited; got != exitIncomplete {
		t.Errorf("exit status %d", got)
	}
	stop()
	if !stopped {
		t.Error("signals are still delivered")
	}
}

func TestUntilSignalStop(t *testing.T) {
	env := &environment{Signals: func() (<-chan os.Signal, func()) { return nil, func() {} }}
	ctx, stop := untilSignal(t.Context(), env, func(string) {})
	stop()
	if !errors.Is(ctx.Err(), context.Canceled) {
		t.Errorf("context: %v", ctx.Err())
	}
}

func TestClearReadyFile(t *testing.T) {
	path := t.TempDir() + "/ready"
	if err := clearReadyFile(path); err != nil {
		t.Errorf("absent: %v", err)
	}
	for content, ours := range map[string]bool{"ready: watching x\n": true, "": false, "notes\n": false} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		err := clearReadyFile(path)
		_, stat := os.Lstat(path)
		if gone := errors.Is(stat, fs.ErrNotExist); gone != ours || (err == nil) != ours {
			t.Errorf("%q: gone %t, error %v", content, gone, err)
		}
	}
}

func TestCaller(t *testing.T) {
	comm, _, ok := process(os.Getppid())
	if !ok {
		t.Fatal("no parent")
	}
	if got, want := caller(), fmt.Sprintf("%s[%d]", comm, os.Getppid()); comm != "sudo" && got != want {
		t.Errorf("caller %q, want %q", got, want)
	}
	if _, _, ok := process(1 << 30); ok {
		t.Error("a process that cannot be exists")
	}
}
