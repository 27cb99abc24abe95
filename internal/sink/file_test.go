package sink

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	line1 = `{"seq":1,"type":"mark","mono_ns":0,"time":"1970-01-01T00:00:00.000000000Z"}` + "\n"
	line2 = `{"seq":2,"type":"mark","mono_ns":0,"time":"1970-01-01T00:00:00.000000000Z"}` + "\n"
)

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestOpenFileNew(t *testing.T) {
	for _, mode := range []Mode{Create, Append, Force} {
		path := filepath.Join(t.TempDir(), "out.jsonl")
		f, err := OpenFile(path, mode)
		if err != nil {
			t.Fatal(err)
		}
		info, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != 0o600 || info.Size() != 0 || f.Cut != 0 {
			t.Errorf("mode %d: %v, %d bytes, cut %d", mode, info.Mode(), info.Size(), f.Cut)
		}
		f.Close()
	}
}

func TestOpenFileExisting(t *testing.T) {
	long := `{"seq":3,"mark":{"text":"` + strings.Repeat("x", 100_000)
	for _, tt := range []struct {
		name, before string
		mode         Mode
		after        string // plus what is written: line2
		cut          int64
		err          error
	}{
		{"create", line1, Create, line1, 0, fs.ErrExist},
		{"create, empty", "", Create, "", 0, fs.ErrExist},
		{"force", line1, Force, "", 0, nil},
		{"append", line1, Append, line1, 0, nil},
		{"append to an empty file", "", Append, "", 0, nil},
		{"append, cut short", line1 + line2[:40], Append, line1, 40, nil},
		{"append, cut after one byte", line1 + "{", Append, line1, 1, nil},
		{"append, long line cut short", line1 + long, Append, line1, int64(len(long)), nil},
		{"append, longer than any line", line1 + long + strings.Repeat("y", maxLine), Append, line1, int64(len(long)) + maxLine, nil},
		{"append, first line cut short", line1[:20], Append, "", 20, nil},
		{"append, only the newline is missing", line1 + strings.TrimSuffix(line2, "\n"), Append, line1 + line2, 0, nil},
		{"append to something else", "Dear diary,\n", Append, "Dear diary,\n", 0, ErrNotEvidence},
		{"append to something else without a newline", "Dear diary", Append, "Dear diary", 0, ErrNotEvidence},
		{"append, something else at the end", line1 + "\x00\x00\x00", Append, line1 + "\x00\x00\x00", 0, ErrNotEvidence},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "out.jsonl")
			write(t, path, tt.before)
			f, err := OpenFile(path, tt.mode)
			if !errors.Is(err, tt.err) {
				t.Fatalf("error %v, want %v", err, tt.err)
			}
			if err != nil {
				if !strings.HasPrefix(err.Error(), "output "+path+": ") || strings.Contains(err.Error(), "\n") {
					t.Errorf("message %q", err)
				}
				if got := read(t, path); got != tt.after {
					t.Errorf("the file was changed to %q", got)
				}
				return
			}
			if f.Cut != tt.cut {
				t.Errorf("cut %d, want %d", f.Cut, tt.cut)
			}
			if _, err := f.WriteString(line2); err != nil {
				t.Fatal(err)
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			if got := read(t, path); got != tt.after+line2 {
				t.Errorf("the file has %q, want %q", got, tt.after+line2)
			}
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if tt.mode == Force && info.Mode() != 0o600 {
				t.Errorf("replaced with mode %v", info.Mode())
			}
		})
	}
}

func TestOpenFileLocked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out.jsonl")
	first, err := OpenFile(path, Create)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := first.WriteString(line1 + line2[:10]); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []Mode{Append, Force} {
		_, err := OpenFile(path, mode)
		if !errors.Is(err, ErrLocked) || err.Error() != "output "+path+": another sockwatch is writing to it" {
			t.Errorf("mode %d: %v", mode, err)
		}
	}
	if got := read(t, path); got != line1+line2[:10] {
		t.Errorf("a refused writer changed the file to %q", got)
	}
	first.Close()
	second, err := OpenFile(path, Append)
	if err != nil {
		t.Fatal(err)
	}
	if second.Cut != 10 {
		t.Errorf("cut %d", second.Cut)
	}
	second.Close()
}

func TestOpenFileNotRegular(t *testing.T) {
	dir := t.TempDir()
	target := filepath.Join(dir, "target")
	write(t, target, line1)
	link, dangling, fifo := filepath.Join(dir, "link"), filepath.Join(dir, "dangling"), filepath.Join(dir, "fifo")
	for _, err := range []error{
		os.Symlink(target, link), os.Symlink(filepath.Join(dir, "made"), dangling), unix.Mkfifo(fifo, 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{link, dangling, fifo, dir, "/dev/null"} {
		for _, mode := range []Mode{Create, Append, Force} {
			done := make(chan error, 1)
			go func() {
				_, err := OpenFile(path, mode)
				done <- err
			}()
			select {
			case err := <-done:
				if !errors.Is(err, ErrNotRegular) {
					t.Errorf("%s, mode %d: %v", path, mode, err)
				}
			case <-time.After(10 * time.Second):
				t.Fatalf("%s, mode %d: OpenFile hangs", path, mode)
			}
		}
	}
	if got := read(t, target); got != line1 {
		t.Errorf("the link's target was changed to %q", got)
	}
	if _, err := os.Lstat(filepath.Join(dir, "made")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a dangling link was followed: %v", err)
	}
	if _, err := OpenFile(filepath.Join(dir, "no", "out.jsonl"), Create); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
}
