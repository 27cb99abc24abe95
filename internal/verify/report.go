package verify

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/sockwatch/sockwatch/internal/events"
)

// Level says how much a finding matters.
type Level string

// The levels, from bad to harmless.
const (
	Contradiction Level = "contradiction" // it cannot all be true: edited, damaged, or a defect of sockwatch
	Incomplete    Level = "incomplete"    // something is missing, and the file says or shows that it is
	Undecided     Level = "undecided"     // it may be so or not, nothing here decides it
	Note          Level = "note"          // the evidence is sound, but who uses it should know
)

var levels = []Level{Contradiction, Incomplete, Undecided, Note}

// Check names what was compared.
type Check string

// The checks.
const (
	CheckSchema    Check = "schema"    // each line by itself
	CheckNumbering Check = "numbering" // seq, and how sessions begin and end
	CheckCounts    Check = "counts"    // what the summary counts
	CheckCauses    Check = "causes"    // causes, by the facts in their events
	CheckSockets   Check = "sockets"   // the lines of a socket with each other
	CheckClock     Check = "clock"     // the clocks
	CheckLedger    Check = "ledger"    // the kernel's counters, and the verdict
	CheckEnds      Check = "ends"      // both ends of a connection
)

// Result is what a file comes to, or all of them.
type Result string

// The results, from good to bad.
const (
	ResultHolds       Result = "holds"         // everything holds
	ResultIncomplete  Result = "incomplete"    // something is missing, what is there holds
	ResultContradicts Result = "contradiction" // the evidence contradicts itself
)

// Finding is one sentence about one place.
type Finding struct {
	Level   Level  `json:"level"`
	Check   Check  `json:"check"`
	File    string `json:"file"`
	Session int    `json:"session"` // of the file, from 1; 0: none
	Line    int    `json:"line"`    // of the file, from 1; 0: none
	Seq     uint64 `json:"seq"`     // of the line; 0: it has none
	Text    string `json:"text"`
}

// Session is what one session of a file holds.
type Session struct {
	Session   int             `json:"session"` // from 1
	FirstLine int             `json:"first_line"`
	LastLine  int             `json:"last_line"`
	LastSeq   uint64          `json:"last_seq"`
	Targets   []string        `json:"targets"`
	BootID    string          `json:"boot_id"`
	Version   string          `json:"version"` // of the sockwatch that wrote it
	Began     events.WallTime `json:"began"`
	MonoNS    [2]uint64       `json:"mono_ns"` // of the first line, and the latest

	Summary bool              `json:"summary"`           // it has one: it was not cut short
	Reason  string            `json:"reason"`            // what ended it; empty without a summary
	Verdict *events.Verdict   `json:"verdict,omitempty"` // as the summary has it
	Lines   uint64            `json:"lines"`
	Events  map[string]uint64 `json:"events"` // lines by type

	Sockets  uint64 `json:"sockets"`  // whose lines were compared
	Causes   uint64 `json:"causes"`   // decided again
	Counters uint64 `json:"counters"` // added up again

	// Omitted are the findings that were like too many others to be kept.
	Omitted map[Check]uint64 `json:"omitted"`
}

// File is what one file came to.
type File struct {
	File     string     `json:"file"`
	Result   Result     `json:"result"`
	Lines    int        `json:"lines"`
	Sessions []*Session `json:"sessions"`
	Findings []Finding  `json:"findings"`
}

// Ends says how many connections were seen from both ends.
type Ends struct {
	Connections uint64 `json:"connections"` // whose ends were matched
	Compared    uint64 `json:"compared"`    // snapshots of one end held against the other
	Resets      uint64 `json:"resets"`      // that one end received, and were seen to be sent
	Unmatched   uint64 `json:"unmatched"`   // pairs with mirrored addresses that are not one connection
}

// Report is what verification came to.
type Report struct {
	Result   Result    `json:"result"`
	Files    []*File   `json:"files"`
	Ends     Ends      `json:"ends"`
	Findings []Finding `json:"findings"` // between sessions or files
}

// Add joins a report of other files, which were not verified together with
// those of r.
func (r *Report) Add(o *Report) {
	r.Files = append(r.Files, o.Files...)
	r.Findings = append(r.Findings, o.Findings...)
	r.Ends.Connections += o.Ends.Connections
	r.Ends.Compared += o.Ends.Compared
	r.Ends.Resets += o.Ends.Resets
	r.Ends.Unmatched += o.Ends.Unmatched
	order := []Result{ResultHolds, ResultIncomplete, ResultContradicts}
	r.Result = order[max(slices.Index(order, r.Result), slices.Index(order, o.Result))]
}

// Count returns how many findings of a level there are.
func (r *Report) Count(l Level) int {
	n := count(r.Findings, l)
	for _, f := range r.Files {
		n += count(f.Findings, l)
	}
	return n
}

func count(list []Finding, l Level) (n int) {
	for i := range list {
		if list[i].Level == l {
			n++
		}
	}
	return n
}

// all returns the findings of all files and between them.
func (r *Report) all() []Finding {
	all := slices.Clone(r.Findings)
	for _, f := range r.Files {
		all = append(all, f.Findings...)
	}
	return all
}

// Disputed reports whether the only contradictions are judgements that the
// version of sockwatch which wrote the evidence may have made otherwise.
func (r *Report) Disputed() bool { return disputed(r.all()) }

func disputed(list []Finding) bool {
	n := 0
	for i := range list {
		if list[i].Level == Contradiction {
			if !strings.HasSuffix(list[i].Text, judgedOtherwise) {
				return false
			}
			n++
		}
	}
	return n > 0 && n < maxLike // of more, not all were kept
}

func resultOf(list []Finding) Result {
	switch {
	case count(list, Contradiction) > 0:
		return ResultContradicts
	case count(list, Incomplete) > 0:
		return ResultIncomplete
	}
	return ResultHolds
}

// finish sorts the findings and draws the results.
func (r *Report) finish() {
	all := slices.Clone(r.Findings)
	for _, f := range r.Files {
		sortFindings(f.Findings)
		f.Result = resultOf(f.Findings)
		all = append(all, f.Findings...)
	}
	sortFindings(r.Findings)
	r.Result = resultOf(all)
}

func sortFindings(list []Finding) {
	slices.SortStableFunc(list, func(a, b Finding) int {
		return cmp.Or(
			cmp.Compare(slices.Index(levels, a.Level), slices.Index(levels, b.Level)),
			cmp.Compare(a.File, b.File),
			cmp.Compare(a.Line, b.Line),
		)
	})
}

// place is where a finding is, for a sentence about another.
func place(file string, line int) string { return fmt.Sprintf("%s line %d", file, line) }
