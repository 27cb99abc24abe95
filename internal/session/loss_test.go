package session_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/evidence"
	"github.com/sockwatch/sockwatch/internal/session"
	"github.com/sockwatch/sockwatch/internal/sink"
	"github.com/sockwatch/sockwatch/internal/target"
	"github.com/sockwatch/sockwatch/internal/testlab"
)

// command builds sockwatch as it is shipped.
func command(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sockwatch")
	build := exec.Command("go", "build", "-o", path, "../../cmd/sockwatch")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build sockwatch: %v\n%s", err, out)
	}
	return path
}

// saved reads a file of evidence, which must be whole and without a gap.
func saved(t *testing.T, path string) []events.Event {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r := evidence.NewReader(f)
	var evs []events.Event
	for {
		var e events.Event
		err := r.Next(&e)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		evs = append(evs, e)
	}
	if gaps := r.Gaps(); len(gaps) > 0 || r.Cut() {
		t.Errorf("gaps %v, cut %v", gaps, r.Cut())
	}
	return evs
}

func sum(m map[string]uint64) (n uint64) {
	for _, v := range m {
		n += v
	}
	return n
}

// TestStoppedReader stops the command for 5 s while resets go on: what it lost
// is counted to the last record.
func TestStoppedReader(t *testing.T) {
	t.Parallel()
	testlab.Privileged(t)
	lab := testlab.New(t)
	lab.PinNeighbours()
	dir := t.TempDir()
	out, ready := filepath.Join(dir, "out.jsonl"), filepath.Join(dir, "ready")
	var stderr bytes.Buffer
	cmd := exec.Command(command(t), "--netns", lab.B.Name, "-o", out, "--ready-file", ready)
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	testlab.Eventually(t, testlab.Slack(30*time.Second), func() bool {
		_, err := os.Stat(ready)
		return err == nil
	})
	before := lab.B.Counters()
	blast := func(count, rate int) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := lab.BlastSYN(ctx, testlab.Blast{Port: port, Rate: rate, Count: count}); err != nil {
			t.Fatal(err)
		}
	}
	answered := func(count uint64) {
		t.Helper()
		testlab.Eventually(t, 10*time.Second, func() bool { return lab.B.Counters().Sub(before)["TcpOutRsts"] == count })
	}

	const some, many = 500, 100_000
	blast(some, 0)
	answered(some)
	if err := cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	stopped := time.Now()
	blast(many, many/5)
	time.Sleep(5*time.Second - time.Since(stopped))
	if err := cmd.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	answered(some + many)
	// Read again what was waiting, then what comes.
	size := func() int64 {
		info, err := os.Stat(out)
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	last, since := size(), time.Now()
	testlab.Eventually(t, testlab.Slack(60*time.Second), func() bool {
		if now := size(); now != last {
			last, since = now, time.Now()
		}
		return time.Since(since) > 500*time.Millisecond
	})
	blast(some, 0)
	answered(some + many + some)
	if err := cmd.Process.Signal(unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	err := cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 6 {
		t.Errorf("sockwatch ended with %v, want status 6", err)
	}
	if !bytes.Contains(stderr.Bytes(), []byte("incomplete")) {
		t.Errorf("it said: %s", stderr.Bytes())
	}

	evs := saved(t, out)
	s := evs[len(evs)-1].Summary
	if s == nil {
		t.Fatal("there is no summary")
	}
	k := s.Kernel
	const resets = some + many + some
	if k.Produced != k.Read+k.Lost || k.Unaccounted != 0 || k.Foreign != 0 {
		t.Errorf("records unaccounted for: %+v", k)
	}
	// The tracepoint and the edge wrote a record of each.
	if k.ByProgram["tcp_send_reset"]+k.Missed != resets || k.ByProgram["wire"] != resets || k.Produced != sum(k.ByProgram) {
		t.Errorf("produced %v, missed %d, the kernel sent %d resets", k.ByProgram, k.Missed, resets)
	}
	if k.Lost < many {
		t.Errorf("%d records lost, the ring holds fewer than half of %d", k.Lost, k.Produced)
	}
	lost := make(map[string]uint64)
	for _, e := range pick(evs, "lost", nil) {
		l := e.Lost
		if l.Count == 0 || sum(l.By) != l.Count || sum(l.PerCPU) != l.Count {
			t.Errorf("line %d: %+v", e.Seq, l)
		}
		for name, n := range l.By {
			lost[name] += n
		}
		if l.Total != sum(lost) {
			t.Errorf("line %d: total %d after %d", e.Seq, l.Total, sum(lost))
		}
	}
	if sum(lost) != k.Lost+k.Missed {
		t.Errorf("lines say %v were lost, the kernel %d and %d", lost, k.Lost, k.Missed)
	}
	if names := slices.Sorted(maps.Keys(lost)); !slices.Equal(names, []string{"tcp_send_reset", "wire"}) {
		t.Errorf("lost by %v", names)
	}
	seen := pick(evs, "reset", func(e *events.Event) bool { return e.Reset.SeenBy == "tcp_send_reset" })
	if want := resets - lost["tcp_send_reset"]; uint64(len(seen)) != want {
		t.Errorf("%d resets told, %d sent and %d lost", len(seen), resets, lost["tcp_send_reset"])
	}
	for _, e := range seen {
		if e.Reset.Reason != "" && e.Reset.Reason != "NO_SOCKET" || e.Reset.Socket || e.Sock.Local.Port() != port {
			t.Fatalf("line %d: %+v of %+v", e.Seq, e.Reset, e.Sock)
		}
	}
	if s.Verdict.State != evidence.Incomplete || s.Verdict.By < k.Lost {
		t.Errorf("verdict %+v", s.Verdict)
	}
}

// targets keeps what is said of targets, and counts the rest, as slowly as a
// bad disk.
type targets struct {
	mu      sync.Mutex
	changes []events.Event
	lines   uint64
}

func (s *targets) Write(e *events.Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines++
	if e.Target != nil {
		c := *e
		target, ns := *e.Target, *e.Netns
		c.Target, c.Netns = &target, &ns
		s.changes = append(s.changes, c)
		return nil
	}
	time.Sleep(300 * time.Microsecond)
	return nil
}

func (s *targets) Flush() error { return nil }
func (s *targets) Close() error { return nil }

// TestNeverIdle attaches to a namespace where more happens than can be read:
// the session is ready all the same, tells of another's end, and stops.
func TestNeverIdle(t *testing.T) {
	t.Parallel()
	testlab.Privileged(t)
	lab := testlab.New(t)
	lab.PinNeighbours()
	other := testlab.NewNodes(t, 1)[0]
	ctx, cancel := context.WithCancel(t.Context())
	blasted := make(chan error, 1)
	go func() {
		_, err := lab.BlastSYN(ctx, testlab.Blast{Port: port, Count: 1 << 40, Rate: 10_000})
		blasted <- err
	}()
	defer func() {
		cancel()
		if err := <-blasted; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}()

	out := &targets{}
	ready := make(chan struct{})
	cfg := session.Config{RingBytes: 1 << 20, Sinks: []sink.Sink{out}, OnReady: func() error { close(ready); return nil }}
	for _, name := range []string{lab.B.Name, other.Name} {
		spec, err := target.ParseSpec(name)
		if err != nil {
			t.Fatal(err)
		}
		cfg.Targets = append(cfg.Targets, spec)
	}
	run, stop := context.WithCancel(t.Context())
	defer stop()
	var res *session.Result
	done := make(chan error, 1)
	go func() {
		var err error
		res, err = session.Run(run, cfg)
		done <- err
	}()
	within := func(what string, c <-chan struct{}) {
		t.Helper()
		select {
		case <-c:
		case err := <-done:
			t.Fatalf("the session ended before it was %s: %v", what, err)
		case <-time.After(testlab.Slack(20 * time.Second)):
			t.Fatalf("not %s after 20 s", what)
		}
	}
	within("ready", ready)
	other.Release()
	testlab.Eventually(t, testlab.Slack(20*time.Second), func() bool {
		out.mu.Lock()
		defer out.mu.Unlock()
		return slices.ContainsFunc(out.changes, func(e events.Event) bool {
			return e.Target.Change == "gone" && e.Netns.Name == other.Name
		})
	})
	stop()
	select {
	case err := <-done:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(testlab.Slack(20 * time.Second)):
		t.Fatal("not stopped after 20 s")
	}
	k := res.Summary.Kernel
	if k.Produced != k.Read+k.Lost || k.Unaccounted != 0 {
		t.Errorf("records unaccounted for: %+v", k)
	}
	if k.Lost == 0 {
		t.Error("nothing was lost: everything could be read")
	}
	if res.Summary.Lines != out.lines {
		t.Errorf("summary says %d lines, there are %d", res.Summary.Lines, out.lines)
	}
	t.Logf("%d records read, %d lost", k.Read, k.Lost)
}
