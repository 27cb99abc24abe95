package evidence

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/internal/events"
)

func TestClockPair(t *testing.T) {
	before := time.Now()
	p, err := ClockPair()
	if err != nil {
		t.Fatal(err)
	}
	after := time.Now()

	if got := time.Unix(0, int64(p.RealNS)); got.Before(before) || got.After(after) {
		t.Errorf("real %v is not between %v and %v", got, before, after)
	}
	if p.BootNS+p.ErrorNS < p.MonoNS {
		t.Errorf("boot %d is before mono %d", p.BootNS, p.MonoNS)
	}
	if p.ErrorNS == 0 || p.ErrorNS > uint64(10*time.Millisecond) {
		t.Errorf("error bound %d ns", p.ErrorNS)
	}
}

// Two pairs of an undisturbed machine agree within their bounds, and NTP
// slews by at most 500 ppm.
func TestClockPairsAgree(t *testing.T) {
	a, err := ClockPair()
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		b, err := ClockPair()
		if err != nil {
			t.Fatal(err)
		}
		if b.MonoNS <= a.MonoNS {
			t.Fatalf("mono went from %d to %d", a.MonoNS, b.MonoNS)
		}
		bound := int64(a.ErrorNS + b.ErrorNS + (b.MonoNS-a.MonoNS)/2000 + 1)
		if d := b.Offset() - a.Offset(); d > bound || d < -bound {
			t.Errorf("offset moved by %d ns, bound %d", d, bound)
		}
		a = b
	}
}

func TestClockMoves(t *testing.T) {
	const ms, s, hour = 1_000_000, 1_000_000_000, 3_600_000_000_000
	at := func(mono, real, boot, err uint64) Pair { return Pair{mono, real, boot, err} }
	for _, tt := range []struct {
		name      string
		old, next Pair
		want      Move
	}{
		{"steady", at(1*s, 9*s, 1*s, 50), at(11*s, 19*s, 11*s, 50), Move{}},
		{"slewed as fast as can be", at(1*s, 9*s, 1*s, 50), at(11*s, 19*s+5*ms, 11*s, 50), Move{StepNS: 5 * ms}},
		{"slewed back as fast as can be", at(1*s, 9*s, 1*s, 50), at(11*s, 19*s-5*ms, 11*s, 50), Move{StepNS: -5 * ms}},
		{"more than slewed", at(1*s, 9*s, 1*s, 50), at(11*s, 19*s+7*ms, 11*s, 50), Move{StepNS: 7 * ms, Stepped: true}},
		{"a small step at once", at(1*s, 9*s, 1*s, 50), at(1*s+100, 9*s+2*ms+100, 1*s+100, 50), Move{StepNS: 2 * ms, Stepped: true}},
		{"badly read", at(1*s, 9*s, 1*s, 4*ms), at(1*s+100, 9*s+2*ms+100, 1*s+100, 50), Move{StepNS: 2 * ms}},
		{"stepped back an hour", at(1*s, 2*hour, 1*s, 50), at(11*s, hour+10*s, 11*s, 50), Move{StepNS: -hour, Stepped: true}},
		{"suspended", at(1*s, 9*s, 1*s, 50), at(11*s, 79*s, 71*s, 50), Move{StepNS: 60 * s, AsleepNS: 60 * s, Suspended: true}},
		{"suspended, and stepped", at(1*s, 9*s, 1*s, 50), at(11*s, 80*s, 71*s, 50), Move{StepNS: 61 * s, AsleepNS: 60 * s, Suspended: true, Stepped: true}},
	} {
		if got := tt.next.Since(tt.old); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
		c := &Clock{last: tt.old}
		e := c.replace(tt.next)
		if e.StepNS != tt.want.StepNS || e.Stepped != tt.want.Stepped || (e.SuspendedNS != 0) != tt.want.Suspended || tt.want.Suspended && e.SuspendedNS != uint64(tt.want.AsleepNS) {
			t.Errorf("%s: event %+v", tt.name, e)
		}
		if e.RealNS != tt.next.RealNS || e.BootNS != tt.next.BootNS || e.ErrorNS != tt.next.ErrorNS || c.Pair() != tt.next {
			t.Errorf("%s: event %+v of %+v", tt.name, e, tt.next)
		}
	}
}

// TestClockNearest: between two pairs the nearer one tells wall time.
func TestClockNearest(t *testing.T) {
	c := &Clock{before: Pair{MonoNS: 1_000, RealNS: 1_000_000}, last: Pair{MonoNS: 2_000, RealNS: 5_001_000}}
	for mono, want := range map[uint64]int64{
		500: 999_500, 1_000: 1_000_000, 1_499: 1_000_499, // by the first
		1_500: 5_000_500, 2_000: 5_001_000, 9_000: 5_008_000, // by the second
	} {
		if got := int64(c.Wall(mono)); got != want {
			t.Errorf("wall of %d is %d, want %d", mono, got, want)
		}
	}
}

func TestClockUpdate(t *testing.T) {
	c, first, e, err := NewClock(nil)
	if err != nil {
		t.Fatal(err)
	}
	if e.StepNS != 0 || e.RealNS != first.RealNS || e.NTP == nil {
		t.Errorf("first event %+v", e)
	}
	if moved, err := c.Moved(); moved || err != nil {
		t.Errorf("moved: %v %v", moved, err)
	}
	p, e, err := c.Update()
	if err != nil {
		t.Fatal(err)
	}
	if p.MonoNS <= first.MonoNS {
		t.Errorf("second pair %d is not after the first %d", p.MonoNS, first.MonoNS)
	}
	if want := p.Offset() - first.Offset(); e.StepNS != want || e.Stepped || e.SuspendedNS != 0 {
		t.Errorf("event %+v, want step %d", e, want)
	}
	if got := int64(c.Wall(p.MonoNS)); got != int64(p.RealNS) {
		t.Errorf("wall of the pair itself %d, want %d", got, p.RealNS)
	}
	// It was stepped, and what was read before is of no use.
	c.last.RealNS -= 3_000_000_000
	if moved, err := c.Moved(); !moved || err != nil {
		t.Errorf("moved: %v %v", moved, err)
	}
}

func TestNTP(t *testing.T) {
	x := unix.Timex{Offset: -1500, Freq: -3 << 16, Tick: 10_001, Maxerror: 16_000_000, Esterror: 12, Status: unix.STA_PLL | unix.STA_UNSYNC}
	want := &events.NTP{
		State: "error", Status: []string{"PLL", "UNSYNC"}, OffsetNS: -1_500_000, FreqPPB: -3000, TickUs: 10_001, MaxErrorUs: 16_000_000, EstErrorUs: 12,
	}
	if got := ntp(5, &x); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	x.Status, want.State, want.Status, want.OffsetNS = unix.STA_NANO, "ok", []string{"NANO"}, -1500
	if got := ntp(0, &x); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	// The machine's own: what timedatectl reads too.
	if got := ReadNTP(); got == nil || got.TickUs < 9000 || got.TickUs > 11_000 || got.MaxErrorUs < 0 || (got.State == "error") != slices.Contains(got.Status, "UNSYNC") && !slices.Contains(got.Status, "CLOCKERR") {
		t.Errorf("%+v", got)
	}
}

func BenchmarkClockPair(b *testing.B) {
	for b.Loop() {
		if _, err := ClockPair(); err != nil {
			b.Fatal(err)
		}
	}
}
