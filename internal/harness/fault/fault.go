package fault

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/sockwatch/sockwatch/internal/harness/lab"
	"github.com/sockwatch/sockwatch/internal/harness/plan"
)

// What can go wrong with a fault. The error says where and what exactly.
var (
	ErrUnwell   = errors.New("the node is not well to begin with")
	ErrNoEffect = errors.New("the fault has no effect")
	ErrNotWell  = errors.New("the node does not recover")
)

// Spec is a fault to be made.
type Spec struct {
	Kind      plan.Kind
	Mechanism string // of a netsplit: one of plan.Mechanisms
	Node      string
	HealBy    time.Duration // from now: when the watchdog heals it even if this process lives; 0: never
}

func (s Spec) String() string {
	if s.Kind == plan.Netsplit {
		return fmt.Sprintf("netsplit of %s (%s)", s.Node, s.Mechanism)
	}
	return fmt.Sprintf("%s of %s", s.Kind, s.Node)
}

// Injector makes faults.
type Injector struct {
	Guard *Guard
	// Mark takes what becomes a mark: its kind, its text, when it was so.
	Mark func(kind, text string, monoNS uint64)
}

// Times are when the steps of a fault were done, CLOCK_MONOTONIC, nanoseconds;
// 0: not (yet).
type Times struct {
	Intended, Armed                 uint64
	Applying, Applied, Verified     uint64 // Applying: just before
	HealIntended, Healed, Recovered uint64
}

// Fault is one that is in place.
type Fault struct {
	Spec
	Times Times
	// Effect and Recovery say by what they were verified.
	Effect, Recovery string

	in     *Injector
	lab    *lab.Lab
	node   *lab.Node
	others []*lab.Node
	way    way
	entry  Entry
}

// Inject makes a fault and verifies that it is there. On an error it is not:
// what was done of it has been undone, or the watchdog will do so. The errors
// are [ErrUnwell], [ErrNoEffect], [ErrWatchdog], or of the lab.
func (in *Injector) Inject(ctx context.Context, l *lab.Lab, s Spec) (*Fault, error) {
	w, err := wayOf(s.Kind, s.Mechanism)
	if err != nil {
		return nil, err
	}
	f := &Fault{Spec: s, in: in, lab: l, way: w}
	for _, n := range l.Nodes() {
		if n.Role == s.Node {
			f.node = n
		} else {
			f.others = append(f.others, n)
		}
	}
	if f.node == nil {
		_, err := l.Node(s.Node)
		return nil, err
	}
	if what, err := f.whole(ctx); err != nil || what != "" {
		return nil, f.errorf(ErrUnwell, what, err)
	}
	if w.ready != nil {
		if err := w.ready(f.node, ctx); err != nil {
			return nil, f.errorf(nil, "", err)
		}
	}

	f.Times.Intended = monoNow()
	in.Mark("intended", s.String(), f.Times.Intended)
	f.entry = Entry{
		StateDir: filepath.Dir(l.Dir), Lab: l.Name, Kind: s.Kind, Mechanism: s.Mechanism, Node: s.Node,
		IntendedNS: f.Times.Intended,
	}
	if s.HealBy > 0 {
		f.entry.HealByNS = f.Times.Intended + uint64(s.HealBy)
	}
	if err := in.Guard.commit(&f.entry); err != nil {
		return nil, err
	}
	f.Times.Armed = monoNow()

	f.Times.Applying = f.Times.Armed
	if err := w.apply(f.node, ctx); err != nil {
		return nil, errors.Join(err, f.abandon())
	}
	f.Times.Applied = monoNow()
	in.Mark("applied", s.String(), f.Times.Applied)

	f.Effect, err = f.effect(ctx)
	if err != nil {
		return nil, errors.Join(err, f.abandon())
	}
	f.Times.Verified = monoNow()
	in.Mark("verified", fmt.Sprintf("%s: %s", s, f.Effect), f.Times.Verified)
	return f, nil
}

func (f *Fault) errorf(kind error, what string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", f.Spec, err)
	}
	return fmt.Errorf("%s: %w: %s", f.Spec, kind, what)
}

// abandonTimeout bounds an undo whose context may have ended.
const abandonTimeout = 10 * time.Second

// abandon undoes a fault that did not work.
func (f *Fault) abandon() error {
	ctx, cancel := context.WithTimeout(context.Background(), abandonTimeout)
	defer cancel()
	if err := f.way.undo(f.node, ctx); err != nil {
		return err // it stays in the journal
	}
	return f.in.Guard.release(&f.entry)
}

// recoverTimeout is how long a node may take to be well again.
const recoverTimeout = 10 * time.Second

// Heal undoes the fault and verifies that the node is well. It does so also if
// ctx has ended. The errors are [ErrNotWell], or of the lab.
func (f *Fault) Heal(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*recoverTimeout)
	defer cancel()
	f.Times.HealIntended = monoNow()
	f.in.Mark("heal-intended", f.Spec.String(), f.Times.HealIntended)
	if err := f.way.undo(f.node, ctx); err != nil {
		return fmt.Errorf("heal %s: %w", f.Spec, err)
	}
	f.Times.Healed = monoNow()
	f.in.Mark("healed", f.Spec.String(), f.Times.Healed)
	for end := time.Now().Add(recoverTimeout); ; {
		what, err := f.whole(ctx)
		if err == nil && what == "" {
			break
		}
		if time.Now().After(end) {
			return f.errorf(ErrNotWell, what, err)
		}
	}
	f.Times.Recovered = monoNow()
	f.Recovery = "frames pass both ways"
	if f.Kind == plan.Pause {
		f.Recovery = "no process is frozen"
	}
	f.in.Mark("recovered", fmt.Sprintf("%s: %s", f.Spec, f.Recovery), f.Times.Recovered)
	return f.in.Guard.release(&f.entry)
}

// whole says what is wrong with the node, as far as this kind of fault goes:
// "" if nothing is. Other faults may hold at the same time.
func (f *Fault) whole(ctx context.Context) (string, error) {
	c, err := f.node.Condition(ctx)
	if err != nil {
		return "", err
	}
	switch {
	case f.Kind == plan.Pause && c.Frozen:
		return "it is frozen", nil
	case f.Kind == plan.Pause, f.Kind == plan.Kill && !c.Alive:
		if !c.Alive {
			return "it does not run", nil
		}
		return "", nil
	}
	return f.blocked(false, false)
}

// effect says by what the effect is seen.
func (f *Fault) effect(ctx context.Context) (string, error) {
	c, err := f.node.Condition(ctx)
	if err != nil {
		return "", err
	}
	switch {
	case f.Kind == plan.Pause && c.Frozen:
		return "every process is frozen", nil
	case f.Kind == plan.Kill && !c.Alive:
		return "no process runs", nil
	case f.Kind == plan.Pause, f.Kind == plan.Kill:
		return "", f.errorf(ErrNoEffect, "its processes go on", nil)
	}
	what, err := f.blocked(f.way.toBlocked, f.way.fromBlocked)
	if err != nil || what != "" {
		return "", f.errorf(ErrNoEffect, what, err)
	}
	effect := "frames pass both ways"
	switch {
	case f.way.toBlocked && f.way.fromBlocked:
		effect = "no frame passes either way"
	case f.way.toBlocked:
		effect = "no frame reaches it, its own pass"
	case f.way.local:
		effect = "no packet leaves it, frames reach it"
	case f.way.fromBlocked:
		effect = "no frame of it passes, frames reach it"
	}
	return f.counted(ctx, effect)
}

// counted adds what the counters of the packet filter say.
func (f *Fault) counted(ctx context.Context, effect string) (string, error) {
	c, err := f.node.Condition(ctx)
	if err != nil {
		return "", err
	}
	var n uint64
	switch {
	case f.way.local:
		n = c.OutputPackets
	case strings.HasPrefix(f.Mechanism, "drop"):
		n = c.DroppedPackets
	default:
		return effect, nil
	}
	if n == 0 {
		return "", f.errorf(ErrNoEffect, "the packet filter has counted nothing", nil)
	}
	return fmt.Sprintf("%s, %d counted", effect, n), nil
}

// blocked probes both directions against every other node and says what is not
// as it should be.
func (f *Fault) blocked(to, from bool) (string, error) {
	for _, other := range f.others {
		got, err := reaches(other, f.node)
		if err != nil {
			return "", err
		}
		if got == to {
			return fmt.Sprintf("a frame from %s to %s %s", other.Role, f.node.Role, fate(got)), nil
		}
		leaves := reaches
		if f.way.local {
			leaves = sends
		}
		if got, err = leaves(f.node, other); err != nil {
			return "", err
		}
		if got == from {
			return fmt.Sprintf("what %s sends to %s %s", f.node.Role, other.Role, fate(got)), nil
		}
	}
	return "", nil
}

func fate(arrived bool) string {
	if arrived {
		return "arrives"
	}
	return "does not arrive"
}
