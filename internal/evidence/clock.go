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

// Clock keeps the newest pair. The zero value is not usable, see [NewClock].
// It is not safe for concurrent use.
type Clock struct {
	last Pair
}

// NewClock returns a Clock and the event for its first pair.
func NewClock() (*Clock, Pair, events.Clock, error) {
	p, err := ClockPair()
	if err != nil {
		return nil, Pair{}, events.Clock{}, err
	}
	return &Clock{last: p}, p, p.event(0), nil
}

// Update reads the clocks again and returns the new pair and its event, whose
// StepNS is what wall time gained on CLOCK_MONOTONIC since the pair before.
// A few microseconds a second are slewing by NTP; more is a step.
func (c *Clock) Update() (Pair, events.Clock, error) {
	p, err := ClockPair()
	if err != nil {
		return Pair{}, events.Clock{}, err
	}
	e := c.replace(p)
	return p, e, nil
}

func (c *Clock) replace(p Pair) events.Clock {
	e := p.event(p.Offset() - c.last.Offset())
	c.last = p
	return e
}

// Pair returns the newest pair.
func (c *Clock) Pair() Pair { return c.last }

// Wall converts CLOCK_MONOTONIC to wall time by the newest pair.
func (c *Clock) Wall(monoNS uint64) events.WallTime { return c.last.Wall(monoNS) }

func (p Pair) event(step int64) events.Clock {
	return events.Clock{RealNS: p.RealNS, BootNS: p.BootNS, ErrorNS: p.ErrorNS, StepNS: step}
}
