package measure

import (
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

	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/internal/harness/durable"
	"github.com/sockwatch/sockwatch/internal/harness/plan"
)

// open makes or finds the directory of the results.
func (r *run) open() (err error) {
	defer func() {
		if err != nil && r.lock != nil {
			r.lock.Close()
		}
	}()
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
	if err := r.takeDir(); err != nil {
		return err
	}
	r.captures, err = openTable(r.path(capturesName), header(), 0)
	if err == nil {
		err = durable.WriteFile(r.path(planName), r.PlanText)
	}
	if err == nil {
		err = r.writeRecord()
	}
	if err != nil {
		return fmt.Errorf("results: %w: %w", ErrDir, err)
	}
	return nil
}

// takeDir makes the directory this process's: the lock ends with it.
func (r *run) takeDir() error {
	d, err := os.Open(r.Dir)
	if err != nil {
		return fmt.Errorf("results: %w: %w", ErrDir, err)
	}
	err = unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err != nil {
		d.Close()
	}
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		return fmt.Errorf("results %s: %w", r.Dir, ErrBusy)
	case err != nil:
		return fmt.Errorf("results %s: %w: lock: %w", r.Dir, ErrDir, err)
	}
	r.lock = d
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
	if err := r.takeDir(); err != nil {
		return err
	}
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
	return durable.WriteFile(r.path(afterWindowName), []byte(text))
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
