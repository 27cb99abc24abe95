package measure

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"
)

// The values of what may be unknown.
const (
	Yes     = "yes"
	No      = "no"
	Unknown = "unknown"
)

// Row is one line of captures.tsv. Times without a unit in their name are
// seconds after the send; -1 means that it did not happen, or is not known.
type Row struct {
	Capture, Cell string
	Valid         string // yes, or why not
	Sent          string // RFC 3339, UTC
	SentNS        uint64 // CLOCK_MONOTONIC
	Ended         float64
	RC            int // exit status of the client; 137: killed
	Healed        float64
	Before, After string // versions; After is unknown if the last read failed
	Landed        string
	FirstSeen     float64 // the first read that saw the new version
	Updated       string  // of the new version, whole seconds, RFC 3339
	Lines         int     // of the daemon's log, for this artifact
	Applied       float64 // when the daemon had applied it
	Client        string  // what the client said at its end
	Connection    string  // that the request took, LOCAL>REMOTE
	DeliveredBy   string
	Delivered     float64
	WorkerEnd     string // of that connection: its fate
	OtherEnd      string
	Verdict       string // of the evidence
	Agrees        string // with the prediction: yes, or how not
	Explanation   string
}

// column is one of captures.tsv.
type column struct {
	name string
	get  func(*Row) string
	set  func(*Row, string) error
}

func text(name string, f func(*Row) *string) column {
	return column{name, func(r *Row) string { return *f(r) }, func(r *Row, s string) error { *f(r) = s; return nil }}
}

func seconds(name string, f func(*Row) *float64) column {
	return column{
		name,
		func(r *Row) string {
			if *f(r) < 0 {
				return "-"
			}
			return strconv.FormatFloat(*f(r), 'f', 3, 64)
		},
		func(r *Row, s string) (err error) {
			if s == "-" {
				*f(r) = -1
				return nil
			}
			*f(r), err = strconv.ParseFloat(s, 64)
			return err
		},
	}
}

func number(name string, f func(*Row) *int) column {
	return column{
		name,
		func(r *Row) string { return strconv.Itoa(*f(r)) },
		func(r *Row, s string) (err error) { *f(r), err = strconv.Atoi(s); return err },
	}
}

var columns = []column{
	text("capture", func(r *Row) *string { return &r.Capture }),
	text("cell", func(r *Row) *string { return &r.Cell }),
	text("valid", func(r *Row) *string { return &r.Valid }),
	text("sent", func(r *Row) *string { return &r.Sent }),
	{
		"sent_mono_ns",
		func(r *Row) string { return strconv.FormatUint(r.SentNS, 10) },
		func(r *Row, s string) (err error) { r.SentNS, err = strconv.ParseUint(s, 10, 64); return err },
	},
	seconds("killed_s", func(r *Row) *float64 { return &r.Ended }),
	number("client_rc", func(r *Row) *int { return &r.RC }),
	seconds("healed_s", func(r *Row) *float64 { return &r.Healed }),
	text("version_before", func(r *Row) *string { return &r.Before }),
	text("version_after", func(r *Row) *string { return &r.After }),
	text("landed", func(r *Row) *string { return &r.Landed }),
	seconds("first_seen_s", func(r *Row) *float64 { return &r.FirstSeen }),
	text("updated", func(r *Row) *string { return &r.Updated }),
	number("log_lines", func(r *Row) *int { return &r.Lines }),
	seconds("applied_s", func(r *Row) *float64 { return &r.Applied }),
	text("client_said", func(r *Row) *string { return &r.Client }),
	text("connection", func(r *Row) *string { return &r.Connection }),
	text("delivered_by", func(r *Row) *string { return &r.DeliveredBy }),
	seconds("delivered_s", func(r *Row) *float64 { return &r.Delivered }),
	text("worker_end", func(r *Row) *string { return &r.WorkerEnd }),
	text("other_end", func(r *Row) *string { return &r.OtherEnd }),
	text("verdict", func(r *Row) *string { return &r.Verdict }),
	text("as_predicted", func(r *Row) *string { return &r.Agrees }),
	text("explanation", func(r *Row) *string { return &r.Explanation }),
}

// newRow is a row of which nothing is known.
func newRow(capture, cell string) *Row {
	return &Row{
		Capture: capture, Cell: cell, Valid: Yes, Before: Unknown, After: Unknown, Landed: Unknown,
		Ended: -1, RC: -1, Healed: -1, FirstSeen: -1, Applied: -1, Delivered: -1,
	}
}

// header and line are lines of captures.tsv, without their end.
func header() string {
	names := make([]string, len(columns))
	for i, c := range columns {
		names[i] = c.name
	}
	return strings.Join(names, "\t")
}

func (r *Row) line() string {
	values := make([]string, len(columns))
	for i, c := range columns {
		if values[i] = clean(c.get(r)); values[i] == "" {
			values[i] = "-"
		}
	}
	return strings.Join(values, "\t")
}

// clean keeps a value in its column and on its line.
func clean(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }), " ")
}

// readRows reads captures.tsv. A last line without an end was cut short and
// does not count; end is where it begins, or the size.
func readRows(r io.Reader) (rows []*Row, end int64, err error) {
	br := bufio.NewReader(r)
	for n := 1; ; n++ {
		line, err := br.ReadString('\n')
		if errors.Is(err, io.EOF) {
			return rows, end, nil
		}
		if err != nil {
			return rows, end, err
		}
		end += int64(len(line))
		line = strings.TrimSuffix(line, "\n")
		if n == 1 {
			if line != header() {
				return rows, end, errors.New("line 1: not the columns that this version writes")
			}
			continue
		}
		values := strings.Split(line, "\t")
		if len(values) != len(columns) {
			return rows, end, fmt.Errorf("line %d: %d columns, want %d", n, len(values), len(columns))
		}
		row := new(Row)
		for i, c := range columns {
			if err := c.set(row, values[i]); err != nil {
				return rows, end, fmt.Errorf("line %d: %s: %w", n, c.name, err)
			}
		}
		rows = append(rows, row)
	}
}

// table is a file of lines that is added to, each line synced.
type table struct{ f *os.File }

// openTable opens a table for adding, cut to its first keep bytes; a new one
// begins with head.
func openTable(path, head string, keep int64) (*table, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	t := &table{f}
	if err := f.Truncate(keep); err != nil {
		f.Close()
		return nil, err
	}
	if keep == 0 {
		if err := t.add(head); err != nil {
			f.Close()
			return nil, err
		}
	}
	return t, nil
}

func (t *table) add(line string) error {
	if _, err := t.f.WriteString(line + "\n"); err != nil {
		return err
	}
	return t.f.Sync()
}

func (t *table) close() error { return t.f.Close() }

// afterWindow is a line of after-window.tsv: a version that moved when nobody
// was reading it any more.
func afterWindow(r *Row, closed time.Duration, version string) string {
	return fmt.Sprintf("%s\t%s\t%s\t%s\t%.3f", r.Capture, r.Before, r.After, version, closed.Seconds())
}

const afterWindowHead = "capture\tversion_before\tversion_at_close\tversion_later\tseen_s"

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
