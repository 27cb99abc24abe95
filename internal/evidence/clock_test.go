package evidence

import (
	"testing"
	"time"
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

func TestClockStep(t *testing.T) {
	c := &Clock{last: Pair{MonoNS: 1_000, RealNS: 1_000_000, BootNS: 1_000}}
	tests := []struct {
		name string
		next Pair
		step int64
		wall int64 // of mono 10_000
	}{
		{"steady", Pair{MonoNS: 2_000, RealNS: 1_001_000, BootNS: 2_000, ErrorNS: 7}, 0, 1_009_000},
		{"forward", Pair{MonoNS: 3_000, RealNS: 1_007_000, BootNS: 3_000}, 5_000, 1_014_000},
		{"back", Pair{MonoNS: 4_000, RealNS: 500_000, BootNS: 4_000}, -508_000, 506_000},
		{"suspend", Pair{MonoNS: 5_000, RealNS: 601_000, BootNS: 105_000}, 100_000, 606_000},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := c.replace(tt.next)
			if e.StepNS != tt.step {
				t.Errorf("step %d, want %d", e.StepNS, tt.step)
			}
			if e.RealNS != tt.next.RealNS || e.BootNS != tt.next.BootNS || e.ErrorNS != tt.next.ErrorNS {
				t.Errorf("event %+v of %+v", e, tt.next)
			}
			if got := int64(c.Wall(10_000)); got != tt.wall {
				t.Errorf("wall %d, want %d", got, tt.wall)
			}
			if c.Pair() != tt.next {
				t.Errorf("pair %+v", c.Pair())
			}
		})
	}
}

func TestClockUpdate(t *testing.T) {
	c, first, e, err := NewClock()
	if err != nil {
		t.Fatal(err)
	}
	if e.StepNS != 0 || e.RealNS != first.RealNS {
		t.Errorf("first event %+v", e)
	}
	p, e, err := c.Update()
	if err != nil {
		t.Fatal(err)
	}
	if p.MonoNS <= first.MonoNS {
		t.Errorf("second pair %d is not after the first %d", p.MonoNS, first.MonoNS)
	}
	if want := p.Offset() - first.Offset(); e.StepNS != want {
		t.Errorf("step %d, want %d", e.StepNS, want)
	}
	if got := int64(c.Wall(p.MonoNS)); got != int64(p.RealNS) {
		t.Errorf("wall of the pair itself %d, want %d", got, p.RealNS)
	}
}

func BenchmarkClockPair(b *testing.B) {
	for b.Loop() {
		if _, err := ClockPair(); err != nil {
			b.Fatal(err)
		}
	}
}
