package evidence

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/internal/events"
)

// Pair is one simultaneous reading of the kernel's clocks, in nanoseconds.
// Real and boot were both read within ErrorNS of MonoNS.
type Pair struct {
	MonoNS  uint64 // CLOCK_MONOTONIC, what bpf_ktime_get_ns returns
	RealNS  uint64 // CLOCK_REALTIME since the Unix epoch
	BootNS  uint64 // CLOCK_BOOTTIME, monotonic time with suspends counted
	ErrorNS uint64
}

// Clocks cannot be read at the same instant, so they are read between two
// readings of CLOCK_MONOTONIC; a preemption in between makes a bad bracket,
// and the tightest of some tries is kept.
const (
	clockTries   = 16
	clockGoodNS  = 500 // tight enough to stop trying
	clockMinimum = 3   // the first try pays for cold caches
)

// ClockPair reads the clocks.
func ClockPair() (Pair, error) {
	var best Pair
	for i := range clockTries {
		p, err := readClocks()
		if err != nil {
			return Pair{}, err
		}
		if i == 0 || p.ErrorNS < best.ErrorNS {
			best = p
		}
		if i+1 >= clockMinimum && best.ErrorNS <= clockGoodNS {
			break
		}
	}
	return best, nil
}

func readClocks() (Pair, error) {
	before, err := readClock(unix.CLOCK_MONOTONIC)
	if err != nil {
		return Pair{}, err
	}
	wall, err := readClock(unix.CLOCK_REALTIME)
	if err != nil {
		return Pair{}, err
	}
	boot, err := readClock(unix.CLOCK_BOOTTIME)
	if err != nil {
		return Pair{}, err
	}
	after, err := readClock(unix.CLOCK_MONOTONIC)
	if err != nil {
		return Pair{}, err
	}

	// Both readings are somewhere in [before, after]: from the middle, half
	// the bracket bounds the error. Round it up.
	return Pair{
		MonoNS:  before + (after-before)/2,
		RealNS:  wall,
		BootNS:  boot,
		ErrorNS: (after - before + 1) / 2,
	}, nil
}

// MonoNow reads CLOCK_MONOTONIC, in nanoseconds.
func MonoNow() (uint64, error) { return readClock(unix.CLOCK_MONOTONIC) }

func readClock(id int32) (uint64, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(id, &ts); err != nil {
		return 0, fmt.Errorf("read clock %d: %w", id, err)
	}
	return uint64(ts.Nano()), nil
}

// Offset is what has to be added to CLOCK_MONOTONIC to get wall time.
func (p Pair) Offset() int64 { return int64(p.RealNS - p.MonoNS) }

// Wall converts CLOCK_MONOTONIC to wall time.
func (p Pair) Wall(monoNS uint64) events.WallTime {
	return events.WallTime(int64(monoNS) + p.Offset())
}

// A Move is what happened to the clocks from one pair to the next.
type Move struct {
	StepNS    int64 // what CLOCK_REALTIME gained on CLOCK_MONOTONIC
	AsleepNS  int64 // what CLOCK_BOOTTIME did
	Stepped   bool  // StepNS is more than a suspend, slewing and the errors of the pairs
	Suspended bool  // AsleepNS is more than the errors of the pairs
}

// moveNS is what clocks move by at least when they move.
const moveNS = 1_000_000

// Since says what moved since an earlier pair. CLOCK_MONOTONIC never steps, and
// wall time is slewed by 500 parts in a million at most.
func (p Pair) Since(old Pair) Move {
	slack := int64(old.ErrorNS + p.ErrorNS)
	m := Move{StepNS: p.Offset() - old.Offset(), AsleepNS: p.asleep() - old.asleep()}
	m.Suspended = m.AsleepNS > slack+moveNS
	step := m.StepNS
	if m.Suspended {
		step -= m.AsleepNS
	}
	since := int64(p.MonoNS - old.MonoNS)
	m.Stepped = max(step, -step) > 2*slack+moveNS+max(since, -since)/2000
	return m
}

// asleep is for how long the machine was suspended since it started.
func (p Pair) asleep() int64 { return int64(p.BootNS - p.MonoNS) }

// Clock keeps the newest pairs. It is not safe for concurrent use.
type Clock struct {
	read         func() (Pair, error)
	before, last Pair
}

// NewClock returns a Clock and the event for its first pair. read takes pairs;
// nil is [ClockPair].
func NewClock(read func() (Pair, error)) (*Clock, Pair, events.Clock, error) {
	if read == nil {
		read = ClockPair
	}
	p, err := read()
	if err != nil {
		return nil, Pair{}, events.Clock{}, err
	}
	return &Clock{read: read, before: p, last: p}, p, p.event(), nil
}

// Update reads the clocks again and returns the new pair and its event, which
// says what moved since the pair before.
func (c *Clock) Update() (Pair, events.Clock, error) {
	p, err := c.read()
	if err != nil {
		return Pair{}, events.Clock{}, err
	}
	return p, c.replace(p), nil
}

// Moved says whether wall time was stepped, or the machine suspended, since the
// newest pair. It is cheap.
func (c *Clock) Moved() (bool, error) {
	p, err := c.read()
	if err != nil {
		return false, err
	}
	m := p.Since(c.last)
	return m.Stepped || m.Suspended, nil
}

func (c *Clock) replace(p Pair) events.Clock {
	m := p.Since(c.last)
	e := p.event()
	e.StepNS, e.Stepped = m.StepNS, m.Stepped
	if m.Suspended {
		e.SuspendedNS = uint64(m.AsleepNS)
	}
	c.before, c.last = c.last, p
	return e
}

// Pair returns the newest pair.
func (c *Clock) Pair() Pair { return c.last }

// Wall converts CLOCK_MONOTONIC to wall time by the nearer of the newest two
// pairs.
func (c *Clock) Wall(monoNS uint64) events.WallTime {
	if monoNS < c.last.MonoNS && c.last.MonoNS-monoNS > monoNS-min(monoNS, c.before.MonoNS) {
		return c.before.Wall(monoNS)
	}
	return c.last.Wall(monoNS)
}

func (p Pair) event() events.Clock {
	return events.Clock{RealNS: p.RealNS, BootNS: p.BootNS, ErrorNS: p.ErrorNS, NTP: ReadNTP()}
}
