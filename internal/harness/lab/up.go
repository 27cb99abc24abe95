package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long making or removing a lab may take, unless the caller's
// context says less.
const patience = 60 * time.Second

func newBackend(l *Lab, s state) (backend, error) {
	switch s.Backend {
	case Netns:
		return &namespaces{l: l, freezer: s.Freezer}, nil
	case Docker:
		return &containers{l: l}, nil
	}
	return nil, fmt.Errorf("%w: %q; there is %s and %s", ErrBackend, s.Backend, Netns, Docker)
}

// Up makes a lab and waits until its nodes serve. What it makes is written
// down beforehand. On an error nothing is left of it.
func Up(ctx context.Context, s Spec) (*Lab, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := complete(&s); err != nil {
		return nil, err
	}
	l, unlock, err := begin(ctx, s)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := l.up(ctx); err != nil {
		// What ended ctx must not keep the lab from being taken away.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		if e := l.remove(ctx); e != nil {
			return nil, fmt.Errorf("make lab %s: %w; what was made could not be removed: %w", s.Name, err, e)
		}
		return nil, fmt.Errorf("make lab %s: %w", s.Name, err)
	}
	return l, nil
}

// complete checks a Spec and fills in what is missing.
func complete(s *Spec) error {
	if err := checkName(s.Name); err != nil {
		return err
	}
	if s.Backend == "" {
		s.Backend = Netns
	}
	if s.StateDir == "" {
		s.StateDir = DefaultStateDir
	}
	if s.Binary == "" {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find this program: %w", err)
		}
		s.Binary = self
	}
	for _, path := range []*string{&s.StateDir, &s.Binary} {
		abs, err := filepath.Abs(*path)
		if err != nil {
			return err
		}
		*path = abs
	}
	return nil
}

// begin claims the lab's directory, and writes down there what will be made. A
// lab of the same name that nobody finished is removed first. The lab is
// locked.
func begin(ctx context.Context, s Spec) (l *Lab, unlock func(), err error) {
	dir := filepath.Join(s.StateDir, s.Name)
	w, err := plan(s, dir)
	if err != nil {
		return nil, nil, err
	}
	l, err = newLab(dir, w)
	if err != nil {
		return nil, nil, err
	}
	if err := l.backend.check(ctx); err != nil {
		return nil, nil, err
	}
	unlock, err = l.claim(ctx)
	if err != nil {
		return nil, nil, err
	}
	if err := w.write(l.Dir); err != nil {
		os.RemoveAll(l.Dir) // the first error is what matters
		unlock()
		return nil, nil, err
	}
	return l, unlock, nil
}

// plan is what will be made.
func plan(s Spec, dir string) (state, error) {
	w := state{Name: s.Name, Backend: s.Backend, Binary: s.Binary, Dir: dir, Phase: Making, Made: time.Now().UTC()}
	if s.Backend == Netns {
		root, err := freezer()
		if err != nil {
			return w, err
		}
		w.Freezer = filepath.Join(root, cgroupParent, s.Name)
		w.Network = netnsNetwork
	}
	return w, nil
}

// claim makes the lab's directory, which must be new, and locks it.
func (l *Lab) claim(ctx context.Context) (unlock func(), err error) {
	for {
		// The directory above goes with the last lab in it, whoever removes that.
		err := os.MkdirAll(l.stateDir(), 0o755)
		if err == nil {
			err = os.Mkdir(l.Dir, 0o700)
		}
		switch {
		case errors.Is(err, os.ErrNotExist):
			continue
		case errors.Is(err, os.ErrExist):
			if err := removeUnfinished(ctx, l.stateDir(), l.Name); err != nil {
				return nil, err
			}
			continue
		case err != nil:
			return nil, fmt.Errorf("make lab %s: %w", l.Name, err)
		}
		unlock, err = l.lock(ctx)
		if !errors.Is(err, ErrNotFound) { // another has taken it for one that nobody finished
			return unlock, err
		}
	}
}

// removeUnfinished removes a lab if whoever made or removed it did not get to
// the end. It waits while somebody is at it.
func removeUnfinished(ctx context.Context, stateDir, name string) error {
	l, err := Open(stateDir, name)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	unlock, err := l.lock(ctx)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unlock()
	// Only now is it known what was finished.
	if l, err = Open(stateDir, name); err != nil {
		return err
	}
	status, err := l.Status()
	if err != nil {
		return err
	}
	if status.Phase == Ready {
		return fmt.Errorf("%w: %s", ErrExists, name)
	}
	return l.remove(ctx)
}

// up makes what is written down.
func (l *Lab) up(ctx context.Context) error {
	if err := l.backend.make(ctx); err != nil {
		return err
	}
	for _, n := range l.nodes {
		if err := n.waitServing(ctx); err != nil {
			return err
		}
	}
	return l.setPhase(Ready)
}

func (l *Lab) setPhase(p Phase) error {
	s, err := readState(l.Dir)
	if err != nil {
		return err
	}
	s.Phase = p
	return s.write(l.Dir)
}

// Down takes the lab away, whatever of it there is. It does nothing where
// there is nothing left.
func (l *Lab) Down(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	unlock, err := l.lock(ctx)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unlock()
	return l.remove(ctx)
}

// remove is Down under the lock.
func (l *Lab) remove(ctx context.Context) error {
	s, err := readState(l.Dir)
	if err != nil {
		return fmt.Errorf("remove lab %s: %w", l.Name, err)
	}
	if s.Phase == Ready { // what was never finished still is not
		// It can be removed also where nothing more can be written.
		if err := l.setPhase(Removing); err != nil && !errors.Is(err, unix.ENOSPC) {
			return fmt.Errorf("remove lab %s: %w", l.Name, err)
		}
	}
	if err := l.backend.remove(ctx); err != nil {
		return fmt.Errorf("remove lab %s: %w", l.Name, err)
	}
	if err := os.RemoveAll(l.Dir); err != nil {
		return fmt.Errorf("remove lab %s: %w", l.Name, err)
	}
	os.Remove(l.stateDir()) // it stays while there are other labs
	return nil
}
