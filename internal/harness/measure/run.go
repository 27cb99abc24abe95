package measure

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
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
	ErrBusy     = errors.New("another measure is at work on it")
	ErrNothing  = errors.New("no cell is selected")
	ErrDir      = errors.New("the results cannot be kept")
)

type run struct {
	Config

	id       string   // in labels and names of labs
	lock     *os.File // the directory
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
	defer r.lock.Close()
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
