package session_test

import (
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/evidence"
	"github.com/sockwatch/sockwatch/internal/session"
	"github.com/sockwatch/sockwatch/internal/testlab"
)

// clocks are the machine's, but for what a test adds to them.
type clocks struct{ wall, boot atomic.Int64 }

func (c *clocks) read() (evidence.Pair, error) {
	p, err := evidence.ClockPair()
	p.RealNS += uint64(c.wall.Load())
	p.BootNS += uint64(c.boot.Load())
	return p, err
}

// stepsWithin is how soon a step is to be told.
const stepsWithin = time.Second

// TestClockSteps steps wall time and suspends the machine, as far as the
// session can tell: each is told at once, and what happens after has the time
// that counts then.
func TestClockSteps(t *testing.T) {
	t.Parallel()
	const s = int64(time.Second)
	fake := new(clocks)
	lab := testlab.New(t)
	lab.PinNeighbours()
	o := observeWith(t, session.Config{Clock: fake.read}, lab.A.Name, lab.B.Name)
	l := lab.B.Listen("tcp4", lab.B.Addr(port).String())
	var wall, boot int64
	for _, tt := range []struct {
		name       string
		wall, boot int64 // nanoseconds gained
		stepped    bool
	}{
		{"stepped forward", 5 * s, 0, true},
		{"stepped back", -3600 * s, 0, true},
		{"suspended", 30 * s, 30 * s, false},
		{"suspended, and set on waking", 31 * s, 30 * s, true},
	} {
		at := testlab.MonoNow()
		fake.boot.Add(tt.boot)
		fake.wall.Add(tt.wall)
		wall, boot = wall+tt.wall, boot+tt.boot
		e := o.until(tt.name, stepsWithin, func(e *events.Event) bool { return e.Clock != nil && e.MonoNS > at && e.Clock.StepNS/s != 0 })
		c := e.Clock
		if off := c.StepNS - tt.wall; off < -s/100 || off > s/100 || c.Stepped != tt.stepped {
			t.Errorf("%s: %+v", tt.name, c)
		}
		if off := int64(c.SuspendedNS) - tt.boot; off < -s/100 || off > s/100 {
			t.Errorf("%s: suspended_ns %d, want %d", tt.name, c.SuspendedNS, tt.boot)
		}
		if e.MonoNS-at > uint64(stepsWithin) {
			t.Errorf("%s: told %v later", tt.name, time.Duration(e.MonoNS-at))
		}

		// A connection made now has the wall time of now.
		client, _ := lab.A.Connect(lab.B, l)
		real, err := evidence.ClockPair()
		if err != nil {
			t.Fatal(err)
		}
		got := o.until("connection", 5*time.Second, func(x *events.Event) bool {
			return x.State != nil && x.State.New == "ESTABLISHED" && x.Sock.Local.String() == client.LocalAddr().String()
		})
		want := int64(got.MonoNS) + real.Offset() + wall
		if off := int64(got.Time) - want; off < -s/100 || off > s/100 {
			t.Errorf("%s: time is %v off", tt.name, time.Duration(off))
		}
	}
	evs := o.stop()
	moved := pick(evs, events.TypeClock, func(e *events.Event) bool { return e.Clock.Stepped || e.Clock.SuspendedNS != 0 })
	if len(moved) != 4 {
		t.Errorf("%d clock lines say that clocks moved, want 4", len(moved))
	}
	for _, e := range pick(evs, events.TypeClock, nil) {
		if e.Clock.NTP == nil {
			t.Errorf("line %d: no state of NTP", e.Seq)
		}
	}
}

// TestRealStep steps the clock of the machine, where that is nobody else's.
func TestRealStep(t *testing.T) {
	if !testlab.Emulated() {
		t.Skip("steps the machine's own clock: only in a machine made for tests")
	}
	o := observe(t, testlab.NewNodes(t, 1)[0].Name)
	for _, by := range []time.Duration{90 * time.Second, -90 * time.Second} {
		var now unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_REALTIME, &now); err != nil {
			t.Fatal(err)
		}
		at := testlab.MonoNow()
		set := unix.NsecToTimespec(now.Nano() + int64(by))
		if err := unix.ClockSettime(unix.CLOCK_REALTIME, &set); err != nil {
			t.Fatal(err)
		}
		e := o.until("step", stepsWithin, func(e *events.Event) bool { return e.Clock != nil && e.MonoNS > at && e.Clock.Stepped })
		if off := time.Duration(e.Clock.StepNS) - by; off < -time.Second || off > time.Second || e.Clock.SuspendedNS != 0 {
			t.Errorf("stepped by %v: %+v", by, e.Clock)
		}
	}
	o.stop()
}
