package sink

import (
	"io"

	"github.com/sockwatch/sockwatch/internal/events"
)

// JSONL writes events as JSON Lines, one object a line.
//
// What has been flushed consists of whole lines, whatever happens to the
// process afterwards. When a write fails, a file is cut back to its last whole
// line, the error is a *[WriteError], and the sink takes no more.
type JSONL struct {
	lines
}

// NewJSONL returns a sink that writes to w. Close syncs w if it is a regular
// file, and closes it only if it is a *[File].
func NewJSONL(w io.Writer) *JSONL {
	return &JSONL{newLines(w)}
}

// Write adds e. It allocates nothing for the events of a socket.
func (j *JSONL) Write(e *events.Event) error {
	j.buf = append(e.AppendJSON(j.buf), '\n')
	return j.added()
}

// Close implements [Sink].
func (j *JSONL) Close() error { return j.close() }
