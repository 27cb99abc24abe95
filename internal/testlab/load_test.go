package testlab

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/procfs"
)

func TestBurnCPU(t *testing.T) {
	pids, stop := BurnCPU(t, 1)
	if len(pids) == 0 {
		t.Fatal("no process")
	}
	for _, pid := range pids {
		Eventually(t, 10*time.Second, func() bool {
			proc, err := procfs.NewProc(pid)
			if err != nil {
				t.Fatal(err)
			}
			stat, err := proc.Stat()
			if err != nil {
				t.Fatal(err)
			}
			return stat.CPUTime() > 0.1
		})
	}
	stop()
	for _, pid := range pids {
		if _, err := os.Stat(filepath.Join("/proc", strconv.Itoa(pid))); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("process %d is still there (%v)", pid, err)
		}
	}
}

// Each segment reaches B's stack and is answered, as its counters and a capture
// confirm.
func TestBlastSYN(t *testing.T) {
	for name, b := range map[string]Blast{
		"ipv4": {Port: 7, Rate: 20_000, Count: 5000},
		"ipv6": {Port: 7, Rate: 20_000, Count: 5000, IPv6: true},
	} {
		t.Run(name, func(t *testing.T) {
			p := New(t)
			c := p.B.Capture(IfName)
			before := p.B.Counters()
			done, err := p.BlastSYN(t.Context(), b)
			if err != nil {
				t.Fatal(err)
			}
			if done.Sent != b.Count || done.Rate() > 1.05*float64(b.Rate) {
				t.Errorf("sent %+v at %.0f/s", done, done.Rate())
			}
			var d Counters
			Eventually(t, 5*time.Second, func() bool {
				d = p.B.Counters().Sub(before)
				return d.Get(t, "TcpOutRsts") >= uint64(b.Count)
			})
			if d.Get(t, "TcpOutRsts") != uint64(b.Count) || d.Get(t, "TcpInSegs") != uint64(b.Count) || d.Get(t, "TcpInErrs") != 0 {
				t.Errorf("%v", d.NonZero())
			}
			c.Stop()
			from := make(map[netip.AddrPort]bool)
			for _, syn := range c.Filter(func(p Packet) bool { return p.Flags == SYN }) {
				from[syn.Src] = true
			}
			if len(from) != b.Count {
				t.Errorf("%d different sources, want %d", len(from), b.Count)
			}
		})
	}
}

func TestBlastSYNEndsWithContext(t *testing.T) {
	p := New(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	done, err := p.BlastSYN(ctx, Blast{Port: 7, Rate: 100, Count: 1_000_000})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if elapsed := time.Since(start); elapsed > 5*time.Second || done.Sent > 100 {
		t.Errorf("%+v after %v", done, elapsed)
	}
}

// BenchmarkBlastSYNPaced holds 50,000 segments a second under a capture, which
// sees twice as many packets and must not lose one.
func BenchmarkBlastSYNPaced(b *testing.B) {
	p := New(b)
	c := p.A.Capture(IfName)
	b.ResetTimer()
	done, err := p.BlastSYN(b.Context(), Blast{Port: 7, Rate: 50_000, Count: b.N})
	if err != nil {
		b.Fatal(err)
	}
	b.StopTimer()
	b.ReportMetric(done.Rate(), "segments/s")
	c.Stop()
	if got := len(c.Packets()); got != 2*b.N {
		b.Errorf("captured %d packets, want %d", got, 2*b.N)
	}
}

// BenchmarkBlastSYN measures what one thread can send, answers included.
func BenchmarkBlastSYN(b *testing.B) {
	p := New(b)
	b.ResetTimer()
	done, err := p.BlastSYN(b.Context(), Blast{Port: 7, Count: b.N})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(done.Rate(), "segments/s")
}
