package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/internal/harness/durable"
)

// state is what is written down of a lab, before any of it is made. Together
// with its name it says where everything is.
type state struct {
	Name    string       `json:"name"`
	Backend string       `json:"backend"`
	Binary  string       `json:"binary"`
	Dir     string       `json:"dir"` // where this is written down, as what is made is marked with
	Phase   Phase        `json:"phase"`
	Made    time.Time    `json:"made"`
	Network netip.Prefix `json:"network,omitzero"`  // of the nodes; with docker known only once it is made
	Freezer string       `json:"freezer,omitempty"` // directory of the cgroups, with netns
}

func (s state) status(dir string) Status {
	return Status{Name: s.Name, Backend: s.Backend, Phase: s.Phase, Made: s.Made, Dir: dir}
}

const stateFile = "lab.json"

// readState reads the state of the lab in dir. The error is fs.ErrNotExist
// where there is no lab.
func readState(dir string) (state, error) {
	var s state
	b, err := os.ReadFile(filepath.Join(dir, stateFile))
	if errors.Is(err, os.ErrNotExist) {
		// A directory without a file is a lab of which nothing was made yet.
		if _, err := os.Stat(dir); err != nil {
			return s, err
		}
		return state{Name: filepath.Base(dir), Backend: Netns, Phase: Making}, nil
	}
	if err != nil {
		return s, fmt.Errorf("read the state of a lab: %w", err)
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return s, fmt.Errorf("read the state of a lab: %s: %w", filepath.Join(dir, stateFile), err)
	}
	return s, nil
}

// write replaces the state in dir; afterwards it survives whatever happens to
// this process.
func (s state) write(dir string) error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("write the state of lab %s: %w", s.Name, err)
	}
	return durable.WriteFile(filepath.Join(dir, stateFile), append(b, '\n'))
}

func (l *Lab) stateDir() string { return filepath.Dir(l.Dir) }

// lockEvery is how often a lock that another process holds is tried again.
const lockEvery = 5 * time.Millisecond

// lock keeps other processes, and other users of the lab in this one, from
// changing the lab. It ends with the process, however that ends.
func (l *Lab) lock(ctx context.Context) (unlock func(), err error) {
	for {
		f, err := os.Open(l.Dir)
		if errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("%w: %s", ErrNotFound, l.Name)
		}
		if err != nil {
			return nil, fmt.Errorf("lock lab %s: %w", l.Name, err)
		}
		err = flock(ctx, f)
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("lock lab %s, which another process is changing: %w", l.Name, err)
		}
		// While waiting, the lab may have gone, and another of its name come.
		mine, err := f.Stat()
		if err == nil {
			if now, e := os.Stat(l.Dir); e == nil && os.SameFile(mine, now) {
				return func() { f.Close() }, nil
			}
		}
		f.Close()
	}
}

func flock(ctx context.Context, f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(lockEvery):
		}
	}
}
