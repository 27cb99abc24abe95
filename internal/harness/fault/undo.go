package fault

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sockwatch/sockwatch/internal/harness/lab"
	"github.com/sockwatch/sockwatch/internal/harness/plan"
)

// way is how a kind of fault, by its mechanism, is done and undone, and what
// the probes must then see: whether the node's frames are kept from it, and
// from the others.
type way struct {
	apply, undo step
	ready       step // says whether it could be undone; nil: it can

	toBlocked, fromBlocked bool
	local                  bool // from is blocked for the node's own sockets only
}

type step = func(*lab.Node, context.Context) error

func wayOf(k plan.Kind, mechanism string) (way, error) {
	switch k {
	case plan.Pause:
		return way{apply: (*lab.Node).Freeze, undo: (*lab.Node).Thaw}, nil
	case plan.Kill:
		return way{apply: (*lab.Node).Kill, undo: (*lab.Node).Start}, nil
	case plan.Neutral:
		nothing := func(*lab.Node, context.Context) error { return nil }
		return way{apply: nothing, undo: nothing}, nil
	case plan.Netsplit:
		if w, ok := splits[mechanism]; ok {
			return w, nil
		}
		return way{}, fmt.Errorf("unknown mechanism %q", mechanism)
	}
	return way{}, fmt.Errorf("unknown kind of fault %q", k)
}

var splits = map[string]way{
	"unplug":         {apply: (*lab.Node).Unplug, undo: plug(false), toBlocked: true, fromBlocked: true},
	"unplug-new-mac": {apply: (*lab.Node).Unplug, undo: plug(true), ready: plug(true), toBlocked: true, fromBlocked: true},
	"port-down":      {apply: (*lab.Node).PortDown, undo: (*lab.Node).PortUp, toBlocked: true, fromBlocked: true},
	"drop":           {apply: drop(lab.Both), undo: (*lab.Node).UndropOnBridge, toBlocked: true, fromBlocked: true},
	"drop-to":        {apply: drop(lab.To), undo: (*lab.Node).UndropOnBridge, toBlocked: true},
	"drop-from":      {apply: drop(lab.From), undo: (*lab.Node).UndropOnBridge, fromBlocked: true},
	"drop-output":    {apply: (*lab.Node).DropOutput, undo: (*lab.Node).UndropOutput, fromBlocked: true, local: true},
}

func plug(newMAC bool) step {
	return func(n *lab.Node, ctx context.Context) error { return n.Plug(ctx, lab.PlugOptions{NewMAC: newMAC}) }
}

func drop(d lab.Direction) step {
	return func(n *lab.Node, ctx context.Context) error { return n.DropOnBridge(ctx, d) }
}

// undo undoes an entry, whatever of it was done. A lab that is gone needs
// nothing.
func (e *Entry) undo(ctx context.Context) error {
	l, err := lab.Open(e.StateDir, e.Lab)
	if err == nil && e.Kind == wholeLab {
		err = l.Down(ctx)
	} else if err == nil {
		err = e.undoIn(ctx, l)
	}
	if errors.Is(err, lab.ErrNotFound) {
		return nil
	}
	return err
}

func (e *Entry) undoIn(ctx context.Context, l *lab.Lab) error {
	n, err := l.Node(e.Node)
	if err != nil {
		return err
	}
	w, err := wayOf(e.Kind, e.Mechanism)
	if err != nil {
		return err
	}
	return w.undo(n, ctx)
}

// undoAll undoes the entries, the labs side by side, and takes them out of the
// journal. What fails is tried again until ctx ends. say gets a line for each.
func (j journal) undoAll(ctx context.Context, entries []Entry, say func(string)) error {
	// The last one done is the first one undone. A lab that goes away takes its
	// faults with it; its entry stays until it is gone.
	slices.SortFunc(entries, func(a, b Entry) int {
		if (a.Kind == wholeLab) != (b.Kind == wholeLab) {
			if a.Kind == wholeLab {
				return 1
			}
			return -1
		}
		return cmp.Compare(b.IntendedNS, a.IntendedNS)
	})
	labs := make(map[string][]Entry)
	owned := make(map[string]bool)
	for _, e := range entries {
		key := e.StateDir + "\x00" + e.Lab
		labs[key] = append(labs[key], e)
		owned[key] = owned[key] || e.Kind == wholeLab
	}
	var mu sync.Mutex
	var errs []error
	var wg sync.WaitGroup
	for key, all := range labs {
		wg.Go(func() {
			for _, e := range all {
				var err error
				if e.Kind == wholeLab || !owned[key] {
					err = retry(ctx, e.undo)
				}
				if err == nil {
					err = j.remove(e.ID)
				}
				mu.Lock()
				if err != nil {
					errs = append(errs, fmt.Errorf("undo %s: %w", &e, err))
				} else {
					say("undone: " + e.String())
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

const retryEvery = 100 * time.Millisecond

func retry(ctx context.Context, f func(context.Context) error) error {
	for {
		err := f(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(retryEvery):
		}
	}
}

// Sweep undoes what processes that are dead, and whose watchdogs are too, left
// in the journal (DefaultJournal if dir is empty). say gets a line for each.
func Sweep(ctx context.Context, dir string, say func(string)) error {
	j := open(dir)
	entries, err := j.list()
	if err != nil {
		return err
	}
	entries = slices.DeleteFunc(entries, func(e Entry) bool { return e.Owner.Alive() })
	// A watchdog may be at it just now: doing it twice does no harm.
	ctx, cancel := context.WithTimeout(ctx, undoTimeout)
	defer cancel()
	return j.undoAll(ctx, entries, say)
}

func open(dir string) journal {
	if dir == "" {
		dir = DefaultJournal
	}
	return journal(dir)
}
