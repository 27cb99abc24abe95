package evidence

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/sockwatch/sockwatch/internal/events"
)

// maxLine bounds a line, so that a file which is no evidence cannot exhaust
// memory. The longest real lines are headers with some hundred targets.
const maxLine = 16 << 20

// ErrLongLine is returned for a line that no sockwatch wrote. It is final.
var ErrLongLine = fmt.Errorf("longer than %d MiB: not an evidence file", maxLine>>20)

// LineError is a line that is not an event.
type LineError struct {
	Line int // from 1
	Err  error
}

func (e *LineError) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }

// Unwrap returns what is wrong with the line.
func (e *LineError) Unwrap() error { return e.Err }

// Gap is a place where the numbers of the lines do not follow each other.
// What should stand between was removed, or lines were put in or moved.
type Gap struct {
	Line      int    // the line after the gap, from 1
	Want, Got uint64 // its seq
}

func (g Gap) String() string {
	return fmt.Sprintf("line %d: seq is %d, not %d", g.Line, g.Got, g.Want)
}

// Reader reads evidence line by line. It is not safe for concurrent use.
type Reader struct {
	r    *bufio.Reader
	long []byte // a line that is longer than r's buffer
	text []byte // the last line
	line int
	last uint64 // seq
	cut  bool
	gaps []Gap
}

// NewReader returns a Reader of r.
func NewReader(r io.Reader) *Reader {
	return &Reader{r: bufio.NewReaderSize(r, 64<<10)}
}

// Next reads the next event into e, replacing all that was there. At the end it
// returns io.EOF. A line that is not an event gives a [*LineError], after which
// reading may go on; any other error is final.
//
// Fields and types it does not know are ignored: they come from a newer
// version of the same format. A newer format is an error.
func (r *Reader) Next(e *events.Event) error {
	*e = events.Event{}
	line, whole, err := r.readLine()
	if err != nil {
		return err
	}
	r.line++
	r.text = line
	if !whole && !json.Valid(line) {
		// The writer was killed, or the disk was full, in the middle of it.
		r.cut = true
		return io.EOF
	}
	if err := decodeLine(line, e); err != nil {
		*e = events.Event{}
		return &LineError{Line: r.line, Err: err}
	}
	want := r.last + 1
	if e.Session != nil && e.Seq == 1 {
		want = 1 // a session that was appended
	}
	if e.Seq != want {
		r.gaps = append(r.gaps, Gap{Line: r.line, Want: want, Got: e.Seq})
	}
	r.last = e.Seq
	return nil
}

// Bytes returns the last line as it stands, without its newline. It is valid
// until the next call of Next.
func (r *Reader) Bytes() []byte { return r.text }

// Line returns the number of lines read so far.
func (r *Reader) Line() int { return r.line }

// Cut reports whether the last line breaks off. It is not an event then; the
// lines before it are whole.
func (r *Reader) Cut() bool { return r.cut }

// Gaps returns where the numbering is broken, as far as read.
func (r *Reader) Gaps() []Gap { return r.gaps }

// readLine returns a line without its newline, valid until the next call, and
// whether there was a newline.
func (r *Reader) readLine() (line []byte, whole bool, err error) {
	r.long = r.long[:0]
	for {
		part, err := r.r.ReadSlice('\n')
		if len(r.long)+len(part) > maxLine {
			return nil, false, fmt.Errorf("line %d is %w", r.line+1, ErrLongLine)
		}
		switch {
		case err == nil && len(r.long) == 0:
			return part[:len(part)-1], true, nil
		case err == nil:
			r.long = append(r.long, part[:len(part)-1]...)
			return r.long, true, nil
		case errors.Is(err, bufio.ErrBufferFull):
			r.long = append(r.long, part...)
		case errors.Is(err, io.EOF):
			r.long = append(r.long, part...)
			if len(r.long) == 0 {
				return nil, false, io.EOF
			}
			return r.long, false, nil
		default:
			return nil, false, err
		}
	}
}

func decodeLine(line []byte, e *events.Event) error {
	if len(bytes.TrimSpace(line)) == 0 {
		return errors.New("empty")
	}
	if err := json.Unmarshal(line, e); err != nil {
		return fmt.Errorf("not an event: %w", err)
	}
	if e.Type == "" {
		return errors.New(`not an event: no "type"`)
	}
	if e.Seq == 0 {
		return errors.New(`not an event: no "seq"`)
	}
	if !hasPart(e) {
		return fmt.Errorf("type is %q, but there is no %q", e.Type, e.Type)
	}
	if e.Session != nil {
		major, _, _ := strings.Cut(events.SchemaVersion, ".")
		if got, _, _ := strings.Cut(e.Session.Schema, "."); got != major {
			return fmt.Errorf("format is %q, this sockwatch reads %s.x", e.Session.Schema, major)
		}
	}
	return nil
}

// hasPart reports whether the part that belongs to the type is there.
func hasPart(e *events.Event) bool {
	switch e.Type {
	case events.TypeSession:
		return e.Session != nil
	case events.TypeSummary:
		return e.Summary != nil
	case events.TypeTarget:
		return e.Target != nil
	case events.TypeInventory:
		return e.Inventory != nil
	case events.TypeRetransmit:
		return e.Retransmit != nil
	case events.TypeProbe:
		return e.Probe != nil
	case events.TypeState:
		return e.State != nil
	case events.TypeReset:
		return e.Reset != nil
	case events.TypeAbort:
		return e.Abort != nil
	case events.TypeRecovered:
		return e.Recovered != nil
	case events.TypeArrival:
		return e.Arrival != nil
	case events.TypeError:
		return e.Error != nil
	case events.TypeDrop:
		return e.Drop != nil
	case events.TypeICMP:
		return e.ICMP != nil
	case events.TypeNeighbour:
		return e.Neighbour != nil
	case events.TypeIO:
		return e.IO != nil
	case events.TypeSegment:
		return e.Segment != nil
	case events.TypeMark:
		return e.Mark != nil
	case events.TypeClock:
		return e.Clock != nil
	case events.TypeLost:
		return e.Lost != nil
	}
	return true // a type of a newer version
}

// File is a saved evidence file.
type File struct {
	Events []events.Event
	Header *events.Session // of the first session; nil if there is none
	Footer *events.Summary // of the last session; nil if it was cut short
	Cut    bool            // the last line breaks off
	Gaps   []Gap
}

// ReadFile reads a whole file. It stops at the first line that is not an
// event, except that a last line which breaks off is only noted: it is what
// SIGKILL or a full disk leaves.
func ReadFile(path string) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read evidence: %w", err)
	}
	defer f.Close()
	file, err := readAll(f)
	if err != nil {
		return nil, fmt.Errorf("read evidence %s: %w", path, err)
	}
	return file, nil
}

func readAll(rd io.Reader) (*File, error) {
	r := NewReader(rd)
	var file File
	for {
		var e events.Event
		err := r.Next(&e)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		switch {
		case e.Session != nil:
			// A file that was appended to holds several sessions.
			if file.Header == nil {
				file.Header = e.Session
			}
			file.Footer = nil
		case e.Summary != nil:
			file.Footer = e.Summary
		}
		file.Events = append(file.Events, e)
	}
	file.Cut, file.Gaps = r.Cut(), r.Gaps()
	return &file, nil
}
