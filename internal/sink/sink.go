// Package sink is where events go: a file of JSON Lines, or a view for people.
//
// Sinks collect lines and write them when there are enough or when Flush is
// called; how often that happens is the caller's policy. They are used by one
// goroutine.
package sink

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/internal/events"
)

// Sink takes events in order. It does not keep them: the caller may reuse an
// Event after Write.
type Sink interface {
	// Write adds one line, which may wait for Flush.
	Write(*events.Event) error
	// Flush hands the waiting lines to the operating system.
	Flush() error
	// Close flushes and finishes the output. An error that Write or Flush
	// returned is not repeated.
	Close() error
}

// WriteError says that an output failed, and what of it there is. Unwrap gives
// the cause: syscall.ENOSPC for a full disk, syscall.EPIPE when the reader of
// a pipe is gone.
type WriteError struct {
	Name  string // of the output
	Kept  uint64 // whole lines written
	Lost  uint64 // lines given to the sink and not written whole
	Torn  int    // bytes of a partial line at the end that could not be cut off
	Cause error
}

func (e *WriteError) Error() string {
	s := fmt.Sprintf("write %s: %v: %d lines kept, %d lost", e.Name, e.Cause, e.Kept, e.Lost)
	if e.Torn > 0 {
		s += fmt.Sprintf(", the last line is cut short after %d bytes", e.Torn)
	}
	return s
}

func (e *WriteError) Unwrap() error { return e.Cause }

// bufferSize is how much collects before it is written without being asked.
const bufferSize = 64 << 10

// lines collects whole lines and writes them, so that each write ends where a
// line ends. The first error ends it.
type lines struct {
	w       io.Writer
	name    string
	buf     []byte
	waiting uint64 // lines in buf
	kept    uint64
	size    int64 // of a *File, as far as it was written here
	failed  *WriteError
}

func newLines(w io.Writer) lines {
	l := lines{w: w, name: "output", buf: make([]byte, 0, bufferSize+16<<10)}
	if f, ok := w.(interface{ Name() string }); ok {
		l.name = f.Name()
	}
	if f, ok := w.(*File); ok {
		if info, err := f.Stat(); err == nil {
			l.size = info.Size()
		}
	}
	return l
}

// added counts the line that the caller has appended to l.buf.
func (l *lines) added() error {
	l.waiting++
	if l.failed != nil || len(l.buf) >= bufferSize {
		return l.Flush()
	}
	return nil
}

// Flush writes the waiting lines in one piece.
func (l *lines) Flush() error {
	if l.failed == nil {
		if len(l.buf) == 0 {
			return nil
		}
		n, err := l.w.Write(l.buf)
		if err == nil && n < len(l.buf) {
			err = io.ErrShortWrite
		}
		whole := uint64(bytes.Count(l.buf[:n], []byte{'\n'}))
		l.kept += whole
		l.size += int64(n)
		l.waiting -= whole
		if err != nil {
			l.fail(l.buf[:n], err)
		}
	}
	l.buf = l.buf[:0]
	if l.failed == nil {
		return nil
	}
	l.failed.Lost += l.waiting
	l.waiting = 0
	report := *l.failed
	return &report
}

// fail records err and cuts off the part of a line that written ends with.
func (l *lines) fail(written []byte, err error) {
	l.failed = &WriteError{Name: l.name, Kept: l.kept, Cause: cause(err)}
	torn := len(written) - (bytes.LastIndexByte(written, '\n') + 1)
	if torn > 0 && !l.cut(int64(torn)) {
		l.failed.Torn = torn
	}
}

// cut takes the last n bytes off the output, if it is a file that ends with
// what was just written.
func (l *lines) cut(n int64) bool {
	f, ok := regular(l.w)
	if !ok {
		return false
	}
	pos, err := f.Seek(0, io.SeekCurrent)
	if err != nil || pos < n {
		return false
	}
	if info, err := f.Stat(); err != nil || info.Size() != pos {
		return false
	}
	if f.Truncate(pos-n) != nil {
		return false
	}
	_, err = f.Seek(pos-n, io.SeekStart)
	return err == nil
}

func (l *lines) close() error {
	var errs []error
	if l.failed == nil {
		errs = append(errs, l.Flush())
	}
	if f, ok := regular(l.w); ok {
		if err := f.Sync(); err != nil {
			errs = append(errs, fmt.Errorf("sync %s: %w", l.name, cause(err)))
		}
	}
	if f, ok := l.w.(*File); ok {
		if l.failed == nil {
			errs = append(errs, l.whole(f))
		}
		if err := f.Close(); err != nil {
			errs = append(errs, fmt.Errorf("close %s: %w", l.name, cause(err)))
		}
	}
	return errors.Join(errs...)
}

// whole reports what somebody else did to the file in the meantime.
func (l *lines) whole(f *File) error {
	info, err := f.Stat()
	if err != nil {
		return cause(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	switch {
	case st.Nlink == 0:
		return fmt.Errorf("output %s was removed while it was written: its %d lines are lost", l.name, l.kept)
	case info.Size() != l.size:
		return fmt.Errorf("output %s was changed by something else: it has %d bytes, %d were written", l.name, info.Size(), l.size)
	}
	return nil
}

// regular returns the regular file that w is, if it is one.
func regular(w io.Writer) (*os.File, bool) {
	var f *os.File
	switch w := w.(type) {
	case *os.File:
		f = w
	case *File:
		f = w.File
	default:
		return nil, false
	}
	info, err := f.Stat()
	return f, err == nil && info.Mode().IsRegular()
}

// cause strips the operation and the path from a file's error.
func cause(err error) error {
	var path *os.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}
