package measure

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/procfs"

	"github.com/sockwatch/sockwatch/internal/harness/fault"
	"github.com/sockwatch/sockwatch/internal/harness/lab"
	"github.com/sockwatch/sockwatch/internal/harness/plan"
	"github.com/sockwatch/sockwatch/internal/session"
)

// Config is one measurement.
type Config struct {
	Plan     *plan.Plan
	PlanText []byte // as it was read, kept with the results
	Dir      string // of the results

	Selection plan.Selection // Seed 0: a new one
	Resume    bool           // go on with what is in Dir; the selection is the one there
	Parallel  int            // captures side by side; 0: as many as the machine carries

	Backend  string // of the labs
	StateDir string // of the labs; empty: lab.DefaultStateDir
	Journal  string // of the faults; empty: fault.DefaultJournal
	Binary   string // sockwatch, for nodes and watchdog

	Version, Commit string
	Command         []string

	Notice   func(string)   // lines for people
	Progress func(Progress) // called when something changed, one at a time
	Stderr   *os.File       // of the watchdog
}

// Progress is how far a run is.
type Progress struct {
	Total, Done, Running int
	Left                 time.Duration // about
	Last                 *Row          // the capture that is over now; nil: one began
}

// Result is what a run did.
type Result struct {
	Total, Done, Kept int // captures selected, made now, made before
	Invalid           int
	Differ            int // from their prediction
	Undecided         int // not explained by their evidence
	Incomplete        int // with evidence that is not
	Finished          bool
}

// What can be wrong with a run before it begins.
var (
	ErrExists   = errors.New("there is something already")
	ErrOther    = errors.New("it holds another measurement")
	ErrFinished = errors.New("it is finished")
	ErrNothing  = errors.New("no cell is selected")
	ErrDir      = errors.New("the results cannot be kept")
)

type run struct {
	Config

	id       string // in labels and names of labs
	blocks   [][]plan.Capture
	guard    *fault.Guard
	starting chan struct{}
	labs     atomic.Uint32

	mu       sync.Mutex
	captures *table
	rows     []*Row
	result   Result
	running  map[string]time.Time
	begun    time.Time
}

// Run makes the measurement. When ctx ends it heals what is broken, drops the
// captures that are not over, and returns with what is done; so does an error.
func Run(ctx context.Context, cfg Config) (*Result, error) {
	if cfg.Notice == nil {
		cfg.Notice = func(string) {}
	}
	if cfg.Progress == nil {
		cfg.Progress = func(Progress) {}
	}
	if cfg.StateDir == "" {
		cfg.StateDir = lab.DefaultStateDir
	}
	r := &run{Config: cfg, running: make(map[string]time.Time), begun: time.Now()}
	if err := r.open(); err != nil {
		return nil, err
	}
	defer r.captures.close()
	if err := fault.Sweep(ctx, r.Journal, r.Notice); err != nil {
		return nil, err
	}
	var err error
	if r.guard, err = fault.StartGuard(r.Binary, r.Journal, r.Stderr); err != nil {
		return nil, err
	}
	err = worse(r.all(ctx), r.guard.Close())
	r.result.Finished = err == nil && r.result.Kept+r.result.Done == r.result.Total
	if e := r.conclude(); e != nil && err == nil {
		err = &session.OutputError{Err: e}
	}
	return &r.result, err
}

// open makes or finds the directory of the results.
func (r *run) open() error {
	if r.Resume {
		if err := r.resume(); err != nil {
			return err
		}
	} else if err := r.begin(); err != nil {
		return err
	}
	r.blocks = r.Plan.Order(r.Selection)
	if r.Parallel == 0 {
		r.Parallel = DefaultParallel()
	}
	r.starting = make(chan struct{}, runtime.NumCPU())
	for _, row := range r.rows {
		r.count(row)
	}
	r.result.Done, r.result.Kept = 0, len(r.rows)
	for i, b := range r.blocks {
		r.result.Total += len(b)
		r.blocks[i] = slices.DeleteFunc(b, func(c plan.Capture) bool { return r.kept(c.ID) })
	}
	if r.result.Total == 0 {
		return fmt.Errorf("%w", ErrNothing)
	}
	return nil
}

func (r *run) begin() error {
	if len(r.Plan.Order(r.Selection)) == 0 {
		return fmt.Errorf("%w", ErrNothing)
	}
	entries, err := os.ReadDir(r.Dir)
	switch {
	case err == nil && len(entries) > 0:
		return fmt.Errorf("results %s: %w", r.Dir, ErrExists)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("results: %w: %w", ErrDir, err)
	}
	if r.Selection.Seed == 0 {
		var b [8]byte
		rand.Read(b[:])
		// Such that JSON readers that know only floats keep it.
		r.Selection.Seed = binary.NativeEndian.Uint64(b[:])>>11 | 1
	}
	r.id = strings.ToLower(rand.Text()[:6])
	if err := r.makeDirs(); err != nil {
		return fmt.Errorf("results: %w: %w", ErrDir, err)
	}
	r.captures, err = openTable(r.path(capturesName), header(), 0)
	if err == nil {
		err = writeFile(r.path(planName), r.PlanText)
	}
	if err == nil {
		err = r.writeRecord()
	}
	if err != nil {
		return fmt.Errorf("results: %w: %w", ErrDir, err)
	}
	return nil
}

func (r *run) makeDirs() error {
	for _, d := range []string{r.Dir, r.path(evidenceDir), r.path(factsDir), r.path(transcriptDir)} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return err
		}
	}
	return nil
}

// resume takes up a run that was cut short. Captures that are not in the table
// are made again: what there is of them goes.
func (r *run) resume() error {
	rec, err := readRecord(r.path(recordName))
	if err != nil {
		return fmt.Errorf("results %s: %w: %w", r.Dir, ErrDir, err)
	}
	text, err := os.ReadFile(r.path(planName))
	if err != nil {
		return fmt.Errorf("results: %w: %w", ErrDir, err)
	}
	if string(text) != string(r.PlanText) || rec.Plan != r.Plan.Name || rec.Backend != r.Backend {
		return fmt.Errorf("results %s: %w: plan %s, backend %s", r.Dir, ErrOther, rec.Plan, rec.Backend)
	}
	if exists(r.path(ManifestName)) {
		return fmt.Errorf("results %s: %w", r.Dir, ErrFinished)
	}
	if r.Selection, err = rec.selection(); err != nil {
		return fmt.Errorf("results %s: %w: %w", r.Dir, ErrDir, err)
	}
	r.id = rec.ID
	f, err := os.Open(r.path(capturesName))
	if err != nil {
		return fmt.Errorf("results: %w: %w", ErrDir, err)
	}
	defer f.Close()
	rows, end, err := readRows(f)
	if err != nil {
		return fmt.Errorf("results %s: %w: %s: %w", r.Dir, ErrDir, capturesName, err)
	}
	r.rows = rows
	if err := r.makeDirs(); err != nil {
		return fmt.Errorf("results: %w: %w", ErrDir, err)
	}
	if err := r.dropUnfinished(); err != nil {
		return fmt.Errorf("results: %w: %w", ErrDir, err)
	}
	if r.captures, err = openTable(r.path(capturesName), header(), end); err != nil {
		return fmt.Errorf("results: %w: %w", ErrDir, err)
	}
	return nil
}

// dropUnfinished removes the files of captures that are not in the table.
func (r *run) dropUnfinished() error {
	for _, d := range []string{evidenceDir, factsDir, transcriptDir} {
		entries, err := os.ReadDir(r.path(d))
		if err != nil {
			return err
		}
		for _, e := range entries {
			id := strings.TrimSuffix(e.Name(), filepath.Ext(e.Name()))
			if r.kept(id) {
				continue
			}
			if err := os.Remove(filepath.Join(r.path(d), e.Name())); err != nil {
				return err
			}
		}
	}
	b, err := os.ReadFile(r.path(afterWindowName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	text := afterWindowHead + "\n"
	for line := range strings.Lines(string(b)) {
		if id, _, _ := strings.Cut(line, "\t"); r.kept(id) && strings.HasSuffix(line, "\n") {
			text += line
		}
	}
	return writeFile(r.path(afterWindowName), []byte(text))
}

func (r *run) kept(id string) bool {
	return slices.ContainsFunc(r.rows, func(row *Row) bool { return row.Capture == id })
}

// The files of a run. What else there is stands in docs/harness.md.
const (
	capturesName     = "captures.tsv"
	afterWindowName  = "after-window.tsv"
	distributionName = "distribution.tsv"
	summaryName      = "summary.md"
	recordName       = "run.json"
	planName         = "plan.yaml"
	evidenceDir      = "evidence"
	factsDir         = "facts"
	transcriptDir    = "transcripts"
)

func (r *run) path(name string) string { return filepath.Join(r.Dir, name) }

func (r *run) evidence(id string) string { return r.path(filepath.Join(evidenceDir, id+".jsonl")) }

func (r *run) facts(id string) string { return r.path(filepath.Join(factsDir, id+".json")) }

func (r *run) transcript(id string) string { return r.path(filepath.Join(transcriptDir, id+".txt")) }

// labName is a new name for a lab. Names of interfaces are short.
func (r *run) labName() string { return fmt.Sprintf("m%s%d", r.id, r.labs.Add(1)) }

// labMemory is what a lab takes: five programs of a few MB each, an observer's
// ring, and room for their garbage.
const labMemory = 200 << 20

// DefaultParallel is how many captures the machine carries side by side. A
// capture mostly waits; what limits is how soon a program is run that has
// something to do.
func DefaultParallel() int {
	n := 10 * runtime.NumCPU()
	if p, err := procfs.NewDefaultFS(); err == nil {
		if m, err := p.Meminfo(); err == nil && m.MemAvailableBytes != nil {
			n = min(n, int(*m.MemAvailableBytes/2/labMemory))
		}
	}
	return max(n, 1)
}

// all makes the captures, block after block.
func (r *run) all(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-r.guard.Gone():
			cancel(fmt.Errorf("%w any more: it has ended", fault.ErrWatchdog))
		case <-ctx.Done():
		}
	}()
	for _, block := range r.blocks {
		next := make(chan plan.Capture)
		var wg sync.WaitGroup
		var once sync.Once
		var failed error
		for range min(r.Parallel, len(block)) {
			wg.Go(func() {
				for c := range next {
					if err := r.one(ctx, c); err != nil {
						once.Do(func() { failed = fmt.Errorf("capture %s: %w", c.ID, err) })
						cancel(err)
					}
				}
			})
		}
		for _, c := range block {
			select {
			case next <- c:
			case <-ctx.Done():
			}
			if ctx.Err() != nil {
				break
			}
		}
		close(next)
		wg.Wait()
		if ctx.Err() != nil {
			// What ended it, not what each capture saw of that.
			if cause := context.Cause(ctx); failed == nil || errors.Is(cause, context.Canceled) || errors.Is(cause, fault.ErrWatchdog) {
				return cause
			}
			return failed
		}
	}
	return nil
}

// one makes a capture and keeps it.
func (r *run) one(ctx context.Context, pc plan.Capture) error {
	c := &capture{Capture: pc, run: r, row: newRow(pc.ID, pc.Cell.Name)}
	r.began(pc.ID)
	err := c.make(ctx)
	if err == nil {
		err = r.keep(c)
	}
	if err != nil {
		r.mu.Lock()
		delete(r.running, pc.ID)
		r.mu.Unlock()
		os.Remove(r.evidence(pc.ID))
		os.Remove(r.facts(pc.ID))
		os.Remove(r.transcript(pc.ID))
	}
	return err
}

func (r *run) began(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running[id] = time.Now()
	r.Progress(r.progress(nil))
}

// keep adds the capture to the table: from here on it is made.
func (r *run) keep(c *capture) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.later != "" {
		head, keep := afterWindowHead, int64(0)
		if info, err := os.Stat(r.path(afterWindowName)); err == nil {
			keep = info.Size()
		}
		t, err := openTable(r.path(afterWindowName), head, keep)
		if err == nil {
			err = t.add(afterWindow(c.row, c.laterAt, c.later))
			err = errors.Join(err, t.close())
		}
		if err != nil {
			return &session.OutputError{Err: err}
		}
	}
	if err := r.captures.add(c.row.line()); err != nil {
		return &session.OutputError{Err: err}
	}
	r.rows = append(r.rows, c.row)
	r.count(c.row)
	delete(r.running, c.ID)
	r.Progress(r.progress(c.row))
	return nil
}

func (r *run) count(row *Row) {
	r.result.Done++
	switch {
	case row.Valid != Yes:
		r.result.Invalid++
		return
	case row.Agrees != Yes:
		r.result.Differ++
	}
	if strings.HasPrefix(row.Explanation, undecided) {
		r.result.Undecided++
	}
	if strings.HasPrefix(row.Verdict, "incomplete") {
		r.result.Incomplete++
	}
}

// progress is called under the lock.
func (r *run) progress(last *Row) Progress {
	p := Progress{Total: r.result.Total, Done: r.result.Kept + r.result.Done, Running: len(r.running), Last: last}
	// What is left of each block, shared by those side by side, but at least its
	// longest.
	for _, b := range r.blocks {
		var sum, longest time.Duration
		for _, c := range b {
			if r.kept(c.ID) {
				continue
			}
			left := r.Plan.Duration(c.Cell)
			if t, ok := r.running[c.ID]; ok {
				left = max(left-time.Since(t), 0)
			}
			sum += left
			longest = max(longest, left)
		}
		p.Left += max(sum/time.Duration(min(r.Parallel, max(len(b), 1))), longest)
	}
	return p
}
