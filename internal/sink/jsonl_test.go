package sink

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/testlab"
)

// TestMain is also the process that TestKilledWriter kills.
func TestMain(m *testing.M) {
	if path := os.Getenv("SINK_TEST_WRITER"); path != "" {
		writeForever(path)
	}
	os.Exit(m.Run())
}

func mark(seq uint64, text string) *events.Event {
	return &events.Event{Seq: seq, Type: events.TypeMark, Mark: &events.Mark{Text: text, Kind: "note", By: "test"}}
}

// examples are the golden lines of the events package.
func examples(t testing.TB) []*events.Event {
	t.Helper()
	paths, err := filepath.Glob("../events/testdata/*.jsonl")
	if err != nil || len(paths) != 20 {
		t.Fatalf("golden lines: %v, %v", paths, err)
	}
	var all []*events.Event
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		e := new(events.Event)
		if err := json.Unmarshal(b, e); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b *events.Event) int { return cmp.Compare(a.Seq, b.Seq) })
	return all
}

// readSeqs returns the seq of each whole line of a file and what follows the last.
func readSeqs(t *testing.T, path string) (seqs []uint64, rest []byte) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for {
		line, after, ok := bytes.Cut(b, []byte{'\n'})
		if !ok {
			return seqs, line
		}
		var e events.Event
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatalf("line %d of %s: %v: %q", len(seqs)+1, path, err, line)
		}
		seqs, b = append(seqs, e.Seq), after
	}
}

func wantSeqs(t *testing.T, got []uint64, n uint64) {
	t.Helper()
	if uint64(len(got)) != n {
		t.Fatalf("%d lines, want %d", len(got), n)
	}
	for i, seq := range got {
		if seq != uint64(i+1) {
			t.Fatalf("line %d has seq %d", i+1, seq)
		}
	}
}

// chunks keeps each write apart.
type chunks [][]byte

func (c *chunks) Write(b []byte) (int, error) {
	*c = append(*c, bytes.Clone(b))
	return len(b), nil
}

func TestJSONLWritesWholeLines(t *testing.T) {
	var w chunks
	s := NewJSONL(&w)
	lines := 0
	for range 200 {
		for _, e := range examples(t) {
			if err := s.Write(e); err != nil {
				t.Fatal(err)
			}
			lines++
		}
	}
	// One line longer than the buffer.
	if err := s.Write(mark(1, strings.Repeat("x", 3*bufferSize))); err != nil {
		t.Fatal(err)
	}
	lines++
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := s.Flush(); err != nil { // nothing to do
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	got := 0
	for i, b := range w {
		if len(b) == 0 || b[len(b)-1] != '\n' {
			t.Fatalf("write %d of %d ends inside a line: %q", i, len(w), b[max(0, len(b)-40):])
		}
		if len(b) < bufferSize && i < len(w)-1 {
			t.Errorf("write %d has only %d bytes", i, len(b))
		}
		got += bytes.Count(b, []byte{'\n'})
	}
	if got != lines {
		t.Errorf("%d lines written, want %d", got, lines)
	}
}

func TestJSONLAllocs(t *testing.T) {
	s := NewJSONL(io.Discard)
	for _, e := range examples(t) {
		if e.Sock == nil {
			continue
		}
		if n := testing.AllocsPerRun(200, func() {
			if err := s.Write(e); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations, want 0", e.Type, n)
		}
	}
}

func BenchmarkJSONL(b *testing.B) {
	for _, e := range examples(b) {
		if e.Type != events.TypeRetransmit {
			continue
		}
		s := NewJSONL(io.Discard)
		b.ReportAllocs()
		for b.Loop() {
			if err := s.Write(e); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// smallDisk returns a directory on a file system of the given size.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	testlab.Privileged(t)
	dir := t.TempDir()
	if err := unix.Mount("sockwatch-test", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size="+size); err != nil {
		t.Fatalf("mount a tmpfs of %s: %v", size, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}

func TestJSONLDiskFull(t *testing.T) {
	for _, before := range []uint64{0, 3} {
		t.Run(fmt.Sprintf("after %d lines", before), func(t *testing.T) {
			path := filepath.Join(smallDisk(t, "256k"), "out.jsonl")
			if before > 0 {
				f, err := OpenFile(path, Create)
				if err != nil {
					t.Fatal(err)
				}
				s := NewJSONL(f)
				for i := range before {
					if err := s.Write(mark(i+1, "before")); err != nil {
						t.Fatal(err)
					}
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
			f, err := OpenFile(path, Append)
			if err != nil {
				t.Fatal(err)
			}
			s := NewJSONL(f)
			var given uint64
			var failed *WriteError
			for failed == nil {
				given++
				if given > 10_000 {
					t.Fatal("the disk does not fill")
				}
				err := s.Write(mark(before+given, "some text so that lines do not end where pages do"))
				if err != nil && !errors.As(err, &failed) {
					t.Fatalf("error %v is a %T", err, err)
				}
			}
			if !errors.Is(failed, syscall.ENOSPC) || failed.Name != path || failed.Torn != 0 {
				t.Errorf("error %+v", failed)
			}
			if failed.Kept == 0 || failed.Lost == 0 || failed.Kept+failed.Lost != given {
				t.Errorf("kept %d, lost %d, given %d", failed.Kept, failed.Lost, given)
			}
			want := fmt.Sprintf("write %s: no space left on device: %d lines kept, %d lost", path, failed.Kept, failed.Lost)
			if failed.Error() != want {
				t.Errorf("message %q, want %q", failed, want)
			}
			seqs, rest := readSeqs(t, path)
			wantSeqs(t, seqs, before+failed.Kept)
			if len(rest) != 0 {
				t.Errorf("the file ends in a partial line: %q", rest)
			}

			// It stays failed, counts on, and Close does not repeat it.
			var again *WriteError
			if err := s.Write(mark(0, "late")); !errors.As(err, &again) || again.Lost != failed.Lost+1 || again.Kept != failed.Kept {
				t.Errorf("after the error: %v", err)
			}
			if err := s.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
			after, _ := readSeqs(t, path)
			wantSeqs(t, after, before+failed.Kept)
		})
	}
}

// TestJSONLDiskFullStdout: a redirected stdout is cut as well, but not closed.
func TestJSONLDiskFullStdout(t *testing.T) {
	path := filepath.Join(smallDisk(t, "256k"), "out.jsonl")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("{}\n"); err != nil {
		t.Fatal(err)
	}
	s := NewJSONL(f)
	for err == nil {
		err = s.Write(mark(1, "some text"))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(b, []byte("{}\n{")) || b[len(b)-1] != '\n' {
		t.Errorf("begins %q, ends %q", b[:4], b[len(b)-4:])
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := f.Stat(); err != nil {
		t.Errorf("Close closed what it did not open: %v", err)
	}
}

// TestJSONLDevFull: nothing fits, and it is not a file that could be cut.
func TestJSONLDevFull(t *testing.T) {
	f, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := NewJSONL(f)
	if err := s.Write(mark(1, "a")); err != nil {
		t.Fatal(err)
	}
	var failed *WriteError
	if err := s.Close(); !errors.As(err, &failed) || !errors.Is(err, syscall.ENOSPC) || failed.Kept != 0 || failed.Lost != 1 {
		t.Errorf("Close: %v", err)
	}
}

func TestJSONLBrokenPipe(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	s := NewJSONL(w)
	if err := s.Write(mark(1, "read")); err != nil {
		t.Fatal(err)
	}
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil || !strings.Contains(line, `"read"`) {
		t.Fatalf("%q, %v", line, err)
	}
	r.Close()
	for seq := range uint64(2) {
		if err := s.Write(mark(seq+2, "not read")); err != nil {
			t.Fatal(err)
		}
	}
	var failed *WriteError
	if err := s.Flush(); !errors.As(err, &failed) || !errors.Is(err, syscall.EPIPE) || failed.Kept != 1 || failed.Lost != 2 {
		t.Errorf("Flush: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// short takes some bytes and then fails.
type short struct {
	bytes.Buffer
	room int
}

func (s *short) Write(b []byte) (int, error) {
	n := min(s.room, len(b))
	s.room -= n
	s.Buffer.Write(b[:n])
	if n < len(b) {
		return n, syscall.EIO
	}
	return n, nil
}

func TestJSONLTorn(t *testing.T) {
	line := len(mark(1, "x").AppendJSON(nil)) + 1
	s := NewJSONL(&short{room: 2*line + 7})
	for range 4 {
		if err := s.Write(mark(1, "x")); err != nil {
			t.Fatal(err)
		}
	}
	var failed *WriteError
	if err := s.Flush(); !errors.As(err, &failed) || failed.Kept != 2 || failed.Lost != 2 || failed.Torn != 7 {
		t.Fatalf("Flush: %v", err)
	}
	if want := "write output: input/output error: 2 lines kept, 2 lost, the last line is cut short after 7 bytes"; failed.Error() != want {
		t.Errorf("message %q, want %q", failed, want)
	}
}

func writeForever(path string) {
	f, err := OpenFile(path, Append)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	s := NewJSONL(f)
	for seq := uint64(1); ; seq++ {
		if err := s.Write(mark(seq, strings.Repeat("x", int(seq%700)))); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		if seq%50 == 0 {
			if err := s.Flush(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		}
	}
}

// TestKilledWriter: what a killed process leaves is whole lines and at most one
// partial one (the kernel may stop a write at a page when its process is
// killed), which the next writer removes.
func TestKilledWriter(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for i := range 20 {
		path := filepath.Join(dir, fmt.Sprintf("out%d.jsonl", i))
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), "SINK_TEST_WRITER="+path)
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		deadline := time.Now().Add(20 * time.Second)
		for size := int64(0); size < int64(200_000+i*7_919); {
			if time.Now().After(deadline) {
				t.Fatalf("%s has only %d bytes", path, size)
			}
			if info, err := os.Stat(path); err == nil {
				size = info.Size()
			}
		}
		if _, err := OpenFile(path, Append); !errors.Is(err, ErrLocked) {
			t.Errorf("while it runs: %v", err)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err == nil {
			t.Fatal("it ended well")
		}

		seqs, rest := readSeqs(t, path)
		wantSeqs(t, seqs, uint64(len(seqs)))
		f, err := OpenFile(path, Append)
		if err != nil {
			t.Fatal(err)
		}
		if f.Cut != int64(len(rest)) {
			t.Errorf("cut %d bytes, the partial line had %d", f.Cut, len(rest))
		}
		f.Close()
		again, rest := readSeqs(t, path)
		wantSeqs(t, again, uint64(len(seqs)))
		if len(rest) != 0 {
			t.Errorf("left %q", rest)
		}
	}
}
