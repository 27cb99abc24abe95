package loader_test

import (
	"errors"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/bpf"
	"github.com/sockwatch/sockwatch/internal/loader"
	"github.com/sockwatch/sockwatch/internal/testlab"
)

// BenchmarkKernel measures what the programs cost, by the kernel's own
// statistics (BPF_STATS_RUN_TIME), in nanoseconds a run at the median of
// rounds. "watched" traffic is in a namespace that is watched, "unwatched"
// in one that is not: what every other socket on the machine pays.
func BenchmarkKernel(b *testing.B) {
	testlab.Privileged(b)
	stats, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	if err != nil {
		b.Fatal(err)
	}
	defer stats.Close()

	for _, watched := range []bool{true, false} {
		name := "unwatched"
		if watched {
			name = "watched"
		}
		b.Run(name, func(b *testing.B) {
			node := testlab.NewNodes(b, 1)[0]
			o, err := loader.Open(loader.Options{HZ: 250, ArrivalThreshold: time.Second})
			if err != nil {
				b.Fatal(err)
			}
			defer o.Close()
			if watched {
				err := node.Do(func() error { _, err := o.Watch(uint32(node.Inode()), 0); return err })
				if err != nil {
					b.Fatal(err)
				}
			}
			stop := drain(b, o)
			defer stop()
			l := node.Listen("tcp4", "127.0.0.1:0")
			rounds := make(map[string][]float64)
			for b.Loop() {
				before, err := o.RunTimes()
				if err != nil {
					b.Fatal(err)
				}
				for range 200 {
					exchange(b, node, l)
				}
				after, err := o.RunTimes()
				if err != nil {
					b.Fatal(err)
				}
				for prog, t := range after {
					if n := t.Runs - before[prog].Runs; n > 0 {
						rounds[prog] = append(rounds[prog], float64(t.Time-before[prog].Time)/float64(n))
					}
				}
			}
			for prog, r := range rounds {
				slices.Sort(r)
				b.ReportMetric(r[len(r)/2], prog+"-ns/run")
			}
		})
	}
}

// drain reads records and throws them away until stop is called.
func drain(tb testing.TB, o *loader.Observer) (stop func()) {
	done := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var rec bpf.Record
		for {
			err := o.Read(&rec)
			if errors.Is(err, loader.ErrFlushed) {
				select {
				case <-done:
					return
				default:
				}
			} else if err != nil {
				tb.Error(err)
				return
			}
		}
	}()
	return func() {
		close(done)
		o.Flush()
		<-ended
	}
}

// exchange opens a connection, sends 20 times 100 bytes each way and closes.
func exchange(tb testing.TB, node *testlab.Node, l *net.TCPListener) {
	client, server := node.Connect(node, l)
	defer client.Close()
	defer server.Close()
	buf := make([]byte, 100)
	for range 20 {
		for _, pair := range [][2]*net.TCPConn{{client, server}, {server, client}} {
			if _, err := pair[0].Write(buf); err != nil {
				tb.Fatal(err)
			}
			if _, err := io.ReadFull(pair[1], buf); err != nil {
				tb.Fatal(err)
			}
		}
	}
}
