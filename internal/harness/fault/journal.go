package fault

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/sockwatch/sockwatch/internal/harness/durable"
	"github.com/sockwatch/sockwatch/internal/harness/plan"
)

// DefaultJournal is the directory of the journal.
const DefaultJournal = "/run/sockwatch/faults"

// wholeLab is the kind of an entry whose undo takes the whole lab away.
const wholeLab plan.Kind = "lab"

// Entry says what is to be undone. It is written before anything is done.
type Entry struct {
	ID         string    `json:"id"`
	Owner      Process   `json:"owner"` // whose end is the time to undo it
	StateDir   string    `json:"state_dir"`
	Lab        string    `json:"lab"`
	Kind       plan.Kind `json:"kind"`
	Mechanism  string    `json:"mechanism,omitempty"`
	Node       string    `json:"node,omitempty"`
	IntendedNS uint64    `json:"intended_ns"` // CLOCK_MONOTONIC
	HealByNS   uint64    `json:"heal_by_ns"`  // when it is undone even if the owner lives; 0: never
}

func (e *Entry) String() string {
	if e.Kind == wholeLab {
		return "lab " + e.Lab
	}
	return fmt.Sprintf("%s of %s in lab %s", e.Kind, e.Node, e.Lab)
}

// Process is a process, told from a later one of the same number.
type Process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // ticks after boot
}

// Self is this process.
func Self() (Process, error) { return processOf(os.Getpid()) }

func processOf(pid int) (Process, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Process{}, fmt.Errorf("look up process %d: %w", pid, err)
	}
	// The name in the second field may contain anything.
	_, rest, _ := strings.Cut(string(b[strings.LastIndexByte(string(b), ')')+1:]), " ")
	fields := strings.Fields(rest)
	const state, startTime = 0, 19
	if len(fields) <= startTime {
		return Process{}, fmt.Errorf("look up process %d: %s", pid, b)
	}
	if fields[state] == "Z" {
		return Process{}, fmt.Errorf("look up process %d: %w", pid, os.ErrProcessDone)
	}
	start, err := strconv.ParseUint(fields[startTime], 10, 64)
	return Process{pid, start}, err
}

// Alive reports whether the process still runs.
func (p Process) Alive() bool {
	now, err := processOf(p.PID)
	return err == nil && now == p
}

// journal is a directory with a file for each entry.
type journal string

func (j journal) path(id string) string { return filepath.Join(string(j), id+".json") }

// add writes e; when it returns, e survives whatever happens to this process.
func (j journal) add(e Entry) error {
	if err := os.MkdirAll(string(j), 0o755); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	b, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if err := durable.WriteFile(j.path(e.ID), append(b, '\n')); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	return nil
}

func (j journal) remove(id string) error {
	err := os.Remove(j.path(id))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("journal: %w", err)
	}
	return nil
}

func (j journal) read(id string) (Entry, error) {
	var e Entry
	if id == "" || strings.ContainsAny(id, "/\x00") {
		return e, fmt.Errorf("journal: %q is no entry", id)
	}
	b, err := os.ReadFile(j.path(id))
	if err != nil {
		return e, fmt.Errorf("journal: %w", err)
	}
	if err := json.Unmarshal(b, &e); err != nil {
		return e, fmt.Errorf("journal: %s: %w", j.path(id), err)
	}
	if e.ID != id {
		return e, fmt.Errorf("journal: %s holds entry %q", j.path(id), e.ID)
	}
	return e, nil
}

// list reads every entry. What is damaged is in the error, the rest is there.
func (j journal) list() ([]Entry, error) {
	files, err := os.ReadDir(string(j))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	var entries []Entry
	var errs []error
	for _, f := range files {
		id, ok := strings.CutSuffix(f.Name(), ".json")
		if !ok {
			continue
		}
		e, err := j.read(id)
		switch {
		case err == nil:
			entries = append(entries, e)
		case !errors.Is(err, fs.ErrNotExist): // just removed
			errs = append(errs, err)
		}
	}
	return entries, errors.Join(errs...)
}
