package testlab

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// MonoNow returns CLOCK_MONOTONIC in nanoseconds, as bpf_ktime_get_ns counts.
func MonoNow() uint64 { return uint64(clockNS(unix.CLOCK_MONOTONIC)) }

func clockNS(clock int32) int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(clock, &ts); err != nil {
		panic(fmt.Sprintf("read clock %d: %v", clock, err))
	}
	return ts.Nano()
}

// clockPair is one reading of both clocks. CLOCK_REALTIME - CLOCK_MONOTONIC
// was offset, give or take bound.
type clockPair struct {
	real, offset, bound int64
}

// readPair brackets CLOCK_REALTIME by two readings of CLOCK_MONOTONIC and
// keeps the tightest of several tries.
func readPair() clockPair {
	var best clockPair
	for try := range 16 {
		before := clockNS(unix.CLOCK_MONOTONIC)
		now := clockNS(unix.CLOCK_REALTIME)
		after := clockNS(unix.CLOCK_MONOTONIC)
		bound := (after - before + 1) / 2
		if try == 0 || bound < best.bound {
			best = clockPair{real: now, offset: now - before - (after-before)/2, bound: bound}
		}
	}
	return best
}

// clockTrack reads pairs all the time, so that every time stamp lies between
// two of them.
type clockTrack struct {
	mu    sync.Mutex
	pairs []clockPair
	stop  chan struct{}
	done  chan struct{}
}

const pairInterval = 50 * time.Millisecond

func trackClock() *clockTrack {
	c := &clockTrack{
		pairs: []clockPair{readPair()},
		stop:  make(chan struct{}),
		done:  make(chan struct{}),
	}
	go func() {
		defer close(c.done)

		tick := time.NewTicker(pairInterval)
		defer tick.Stop()
		for {
			select {
			case <-c.stop:
				return
			case <-tick.C:
				c.add()
			}
		}
	}()
	return c
}

func (c *clockTrack) add() {
	pair := readPair()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pairs = append(c.pairs, pair)
}

func (c *clockTrack) close() {
	close(c.stop)
	<-c.done
	c.add()
}

// mono converts a CLOCK_REALTIME stamp. The bound covers both readings around
// it and what the clocks moved against each other in between, so a step of the
// clock shows as a large one.
func (c *clockTrack) mono(realNS int64) (mono uint64, bound int64) {
	c.mu.Lock()
	defer c.mu.Unlock()

	i, _ := slices.BinarySearchFunc(c.pairs, realNS, func(p clockPair, ns int64) int {
		switch {
		case p.real < ns:
			return -1
		case p.real > ns:
			return 1
		}
		return 0
	})
	near := c.pairs[max(0, i-1):min(len(c.pairs), i+1)]
	if len(near) == 1 {
		return uint64(realNS - near[0].offset), near[0].bound
	}
	moved := near[1].offset - near[0].offset
	return uint64(realNS - near[0].offset - moved/2), max(near[0].bound, near[1].bound) + max(moved, -moved)/2
}
