// Package verify re-derives from saved evidence what it proves. It reads
// files that sockwatch wrote, at any time and on any machine, and decides
// everything in them again: whether each line is one, whether one is missing,
// what the summary counted, why each segment was sent again and each connection
// ended, what the kernel's counters say. Sessions of one boot are held against
// each other too, where they show both ends of a connection.
//
// It claims a contradiction only where something cannot be, and says undecided
// where it cannot tell. What it cannot find out is whether evidence that is
// consistent in all of this was made up.
package verify

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/evidence"
)

// Source is a file to verify. It is opened twice: a session is judged by its
// summary, which comes last.
type Source struct {
	Name string
	Open func() (io.ReadCloser, error)
}

// Options say who verifies.
type Options struct {
	Build string // version and commit of this sockwatch
}

// versions are those of the format that this build knows.
var versions = []string{events.SchemaVersion}

// VersionError is a file of a format that this build does not know.
type VersionError struct{ Version string }

func (e *VersionError) Error() string {
	return fmt.Sprintf("its format is %q, this sockwatch knows %s", e.Version, events.SchemaVersion)
}

// ErrNoEvidence is a file in which no line is an event: no sockwatch wrote it.
var ErrNoEvidence = errors.New("no evidence in it: none of its lines is an event")

// Files verifies files, each by itself and all together. An error is a file
// that could not be read, whose format is not known, or that is no evidence
// ([ErrNoEvidence]); what is wrong with the evidence is in the report.
func Files(sources []Source, opt Options) (*Report, error) {
	schema, err := newValidator()
	if err != nil {
		return nil, err
	}
	return files(schema, sources, opt)
}

func files(schema *validator, sources []Source, opt Options) (*Report, error) {
	v := &verifier{opt: opt, schema: schema, report: &Report{Files: []*File{}, Findings: []Finding{}}, ends: newEnds()}
	for _, src := range sources {
		if err := v.file(src); err != nil {
			return nil, fmt.Errorf("verify %s: %w", src.Name, err)
		}
	}
	v.together()
	v.report.finish()
	return v.report, nil
}

type verifier struct {
	opt      Options
	schema   *validator
	report   *Report
	sessions []*session
	ends     *ends
}

// file verifies one file.
func (v *verifier) file(src Source) error {
	marks, err := scan(src)
	if err != nil {
		return err
	}
	r, err := src.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	f := &fileCheck{v: v, out: &File{File: src.Name, Sessions: []*Session{}, Findings: []Finding{}}, marks: marks}
	v.report.Files = append(v.report.Files, f.out)
	return f.run(evidence.NewReader(r))
}

// boundary is a line that begins or ends a session.
type boundary struct {
	line    int
	summary *events.Summary // nil for a session line
}

// scan finds where the sessions of a file begin and end. Whether all is well
// formed is not its business.
func scan(src Source) ([]boundary, error) {
	r, err := src.Open()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	var out []boundary
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 64<<10), 17<<20) // more than a Reader takes
	for n := 1; lines.Scan(); n++ {
		line := lines.Bytes()
		if !bytes.Contains(line, []byte(`"summary"`)) && !bytes.Contains(line, []byte(`"session"`)) {
			continue
		}
		var e struct {
			Type    events.Type
			Session *struct{ Schema string }
			Summary *events.Summary
		}
		if json.Unmarshal(line, &e) != nil {
			continue
		}
		switch {
		case e.Type == events.TypeSession && e.Session != nil:
			if !slices.Contains(versions, e.Session.Schema) {
				return nil, &VersionError{e.Session.Schema}
			}
			out = append(out, boundary{line: n})
		case e.Type == events.TypeSummary && e.Summary != nil:
			out = append(out, boundary{n, e.Summary})
		}
	}
	if err := lines.Err(); err != nil && !errors.Is(err, bufio.ErrTooLong) {
		return nil, err
	}
	return out, nil
}

// fileCheck is a file while it is read.
type fileCheck struct {
	v     *verifier
	out   *File
	marks []boundary
	cur   *session
}

func (f *fileCheck) run(r *evidence.Reader) error {
	var e events.Event
	evs := 0
	for {
		err := r.Next(&e)
		line := r.Line()
		f.out.Lines = line
		var bad *evidence.LineError
		switch {
		case errors.Is(err, io.EOF):
			if f.foreign(r, evs) {
				return ErrNoEvidence
			}
			f.over(r, evs)
			return nil
		case errors.As(err, &bad):
			f.find(Contradiction, CheckSchema, line, 0, "the line is %v", bad.Err)
			if f.cur != nil {
				f.cur.unreadable()
			}
			continue
		case errors.Is(err, evidence.ErrLongLine):
			if evs == 0 {
				return ErrNoEvidence
			}
			f.out.Lines++
			f.find(Contradiction, CheckSchema, f.out.Lines, 0, "the line is %v", evidence.ErrLongLine)
			f.over(r, evs)
			return nil
		case err != nil:
			return err
		}
		evs++
		if err := f.v.schema.check(r.Bytes(), &e); err != nil {
			f.find(Contradiction, CheckSchema, line, e.Seq, "the line is %v", err)
		}
		f.line(&e, line)
	}
}

// over is the end of the file.
func (f *fileCheck) over(r *evidence.Reader, evs int) {
	if r.Cut() {
		f.find(Incomplete, CheckNumbering, r.Line(), 0, "the line breaks off after %d bytes: sockwatch was killed or its disk was full, or the file was cut", len(r.Bytes()))
	}
	switch {
	case f.cur != nil:
		f.cur.over()
	case evs == 0:
		f.find(Incomplete, CheckNumbering, 0, 0, "there is no whole line in it: it proves nothing")
	}
}

// foreign reports whether the file, which was read, is something else than
// evidence. An empty one, or one that breaks off in its first line, may be
// evidence that was cut short.
func (f *fileCheck) foreign(r *evidence.Reader, evs int) bool {
	switch {
	case evs > 0 || f.out.Lines == 0:
		return false
	case f.out.Lines == 1 && r.Cut():
		begin := []byte(`{"seq":1,"type":"session",`)
		n := min(len(begin), len(r.Bytes()))
		return !bytes.Equal(r.Bytes()[:n], begin[:n])
	}
	return true
}

// line takes the next event.
func (f *fileCheck) line(e *events.Event, line int) {
	switch {
	case e.Session != nil:
		f.begin(e, line)
	case f.cur == nil:
		f.begin(e, line)
		text := "the file does not begin with a session line"
		if e.Seq > 1 {
			text += fmt.Sprintf(": the lines before seq %d are missing", e.Seq)
		}
		f.find(Contradiction, CheckNumbering, line, e.Seq, "%s", text)
	case f.cur.summary != nil:
		f.begin(e, line)
		f.find(Contradiction, CheckNumbering, line, e.Seq, "a %s line follows the summary, where only a session line can", e.Type)
	}
	f.cur.add(e, line)
}

// begin starts a session at a line.
func (f *fileCheck) begin(e *events.Event, line int) {
	if f.cur != nil {
		f.cur.over()
	}
	var sum *events.Summary
	for len(f.marks) > 0 && f.marks[0].line <= line {
		f.marks = f.marks[1:]
	}
	if len(f.marks) > 0 {
		sum = f.marks[0].summary
	}
	f.cur = newSession(f, e, line, sum)
	f.out.Sessions = append(f.out.Sessions, f.cur.out)
	f.v.sessions = append(f.v.sessions, f.cur)
	if h := f.cur.header; h != nil {
		f.cur.twin(f.v.sessions)
	}
}

func (f *fileCheck) find(l Level, c Check, line int, seq uint64, format string, args ...any) {
	if f.cur != nil {
		f.cur.find(l, c, line, seq, format, args...)
		return
	}
	if count(f.out.Findings, l) < most(l) {
		f.out.Findings = append(f.out.Findings, Finding{Level: l, Check: c, File: f.out.File, Line: line, Seq: seq, Text: fmt.Sprintf(format, args...)})
	}
}
