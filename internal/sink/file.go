package sink

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Mode says what OpenFile does with a file that exists.
type Mode int

// The modes.
const (
	Create Mode = iota // refuse it
	Append             // add to it
	Force              // replace what is in it
)

var (
	// ErrLocked: another process writes the file.
	ErrLocked = errors.New("another sockwatch is writing to it")
	// ErrNotEvidence: a file to append to was not written by sockwatch.
	ErrNotEvidence = errors.New("it is not sockwatch evidence, nothing was added")
	// ErrNotRegular: the path names a device, a directory, a pipe or a link.
	ErrNotRegular = errors.New("not a regular file; to write elsewhere leave out -o and redirect stdout")
)

// existsError satisfies errors.Is(err, fs.ErrExist).
type existsError struct{}

func (existsError) Error() string        { return "it exists: --append adds to it, --force replaces it" }
func (existsError) Is(target error) bool { return target == fs.ErrExist }

// File is an evidence file. It is locked (flock) until closed, so a second
// writer is refused even if the first was killed in between: a lock dies with
// its process.
type File struct {
	*os.File
	// Cut is the length in bytes of a partial last line that was removed on
	// Append: the writer before was killed. 0: the file ended well.
	Cut int64
}

// OpenFile opens an evidence file of mode 0600 for writing. It never follows a
// symbolic link in the last element of path, and changes nothing before it
// holds the lock. Errors are [ErrLocked], [ErrNotRegular], [ErrNotEvidence],
// fs.ErrExist, or the system's.
func OpenFile(path string, mode Mode) (*File, error) {
	f, err := open(path, mode)
	if err != nil {
		return nil, fmt.Errorf("output %s: %w", path, err)
	}
	return f, nil
}

func open(path string, mode Mode) (*File, error) {
	flags := os.O_RDWR | os.O_APPEND | os.O_CREATE | unix.O_NOFOLLOW
	// A named pipe without a reader would make open wait for one.
	flags |= unix.O_NONBLOCK
	if mode == Create {
		flags |= os.O_EXCL
	}
	f, err := os.OpenFile(path, flags, 0o600)
	switch {
	case errors.Is(err, fs.ErrExist):
		if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
			return nil, ErrNotRegular
		}
		return nil, existsError{}
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EISDIR), errors.Is(err, unix.ENXIO):
		return nil, ErrNotRegular
	case err != nil:
		return nil, cause(err)
	}
	out := &File{File: f}
	if err := out.take(mode); err != nil {
		f.Close()
		return nil, err
	}
	return out, nil
}

// take makes the open file ours: checks it, locks it, and readies its end.
func (f *File) take(mode Mode) error {
	info, err := f.Stat()
	if err != nil {
		return cause(err)
	}
	if !info.Mode().IsRegular() {
		return ErrNotRegular
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return ErrLocked
	}
	if err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	switch mode {
	case Append:
		return f.mend()
	case Force:
		if err := f.Chmod(0o600); err != nil {
			return cause(err)
		}
		return cause(f.Truncate(0))
	}
	return nil
}

// mend makes the file end with a whole line. It touches only what sockwatch
// wrote: a line that begins like one of ours.
func (f *File) mend() error {
	info, err := f.Stat()
	if err != nil {
		return cause(err)
	}
	size := info.Size()
	head := make([]byte, min(size, int64(len(lineStart))))
	if _, err := f.ReadAt(head, 0); err != nil {
		return cause(err)
	}
	if !ours(head) {
		return ErrNotEvidence
	}
	start, err := lastLine(f, size)
	if err != nil || start == size {
		return cause(err)
	}
	tail := make([]byte, min(size-start, maxLine))
	if _, err := f.ReadAt(tail, start); err != nil {
		return cause(err)
	}
	if !ours(tail) {
		return ErrNotEvidence
	}
	if int64(len(tail)) == size-start && json.Valid(tail) {
		_, err := f.Write([]byte{'\n'}) // only the newline is missing
		return cause(err)
	}
	f.Cut = size - start
	return cause(f.Truncate(start))
}

// lineStart is how every line begins, maxLine more than the longest one.
const (
	lineStart = `{"seq":`
	maxLine   = 1 << 20
)

// ours reports whether b begins like a line of evidence, or could if it went on.
func ours(b []byte) bool {
	n := min(len(b), len(lineStart))
	return string(b[:n]) == lineStart[:n]
}

// lastLine returns the offset after the last newline: the end of the file, if
// it ends well.
func lastLine(r io.ReaderAt, size int64) (int64, error) {
	var chunk [32 << 10]byte
	for end := size; end > 0; {
		b := chunk[:min(end, int64(len(chunk)))]
		end -= int64(len(b))
		if _, err := r.ReadAt(b, end); err != nil {
			return 0, err
		}
		if i := bytes.LastIndexByte(b, '\n'); i >= 0 {
			return end + int64(i) + 1, nil
		}
	}
	return 0, nil
}
