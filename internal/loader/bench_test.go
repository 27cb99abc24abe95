package loader_test

import (
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/bpf"
	"github.com/sockwatch/sockwatch/internal/loader"
	"github.com/sockwatch/sockwatch/internal/testlab"
)

// BenchmarkKernel measures what the programs cost, by the kernel's own
// statistics (BPF_STATS_RUN_TIME): nanoseconds a run, at the median of rounds.
//
// The statistics read a clock twice a run, which costs as much as a program
// that does nothing: so an empty program hangs on the same hooks at the same
// time, and what it takes is subtracted.
//
// "record-ns" is the time of all programs together, those that wrote nothing
// included, over the records they wrote.
//
// In "open" and "close" nearly every run of inet_sock_set_state, tcp_send_reset
// and tcp_destroy_sock writes a record, and "open" makes each socket's storage
// too; in "bulk" nothing writes one, and "unwatched" is what the rest of the
// machine pays. In "drop" every run of kfree_skb is of a segment that the packet
// filter dropped; in "open" most are of one that found no socket.
func BenchmarkKernel(b *testing.B) {
	testlab.Privileged(b)
	stats, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	if err != nil {
		b.Fatal(err)
	}
	defer stats.Close()
	for _, c := range []struct {
		name    string
		prepare func(testing.TB, *testlab.Node, *net.TCPListener) traffic
	}{
		{"open", open},
		{"close", opened},
		{"bulk", bulk},
		{"drop", dropped},
	} {
		b.Run(c.name+"/watched", func(b *testing.B) { benchKernel(b, loader.Options{}, true, c.prepare) })
		b.Run(c.name+"/unwatched", func(b *testing.B) { benchKernel(b, loader.Options{}, false, c.prepare) })
	}
	all := loader.Options{IO: true, Segments: true}
	b.Run("bulk/asked", func(b *testing.B) { benchKernel(b, all, true, bulk) })
	b.Run("bulk/asked-unwatched", func(b *testing.B) { benchKernel(b, all, false, bulk) })
}

// traffic is what is measured, and clean what follows unmeasured.
type traffic struct{ run, clean func() }

func benchKernel(b *testing.B, opts loader.Options, watched bool, prepare func(testing.TB, *testlab.Node, *net.TCPListener) traffic) {
	node := testlab.NewNodes(b, 1)[0]
	opts.HZ, opts.ArrivalThreshold = 250, time.Second
	o, err := loader.Open(opts)
	if err != nil {
		b.Fatal(err)
	}
	defer o.Close()
	if watched {
		var w *loader.Watch // whose links end when nobody holds it
		err := node.Do(func() (err error) { w, err = o.Watch(uint32(node.Inode()), 0); return err })
		if err != nil {
			b.Fatal(err)
		}
		defer w.Close()
	}
	empty := emptyPrograms(b, "inet_sock_set_state", "tcp_destroy_sock", "tcp_send_reset", "tcp_probe", "tcp_rcv_space_adjust", "kfree_skb",
		"sock_send_length", "sock_recv_length")
	defer drain(b, o)()
	l := node.Listen("tcp4", "127.0.0.1:0")

	rounds := make(map[string][]float64)
	var all []float64 // what a record costs, of all programs together
	for b.Loop() {
		t := prepare(b, node, l)
		counts, before := produced(b, o), runTimes(b, o, empty)
		t.run()
		var ns, runs float64
		after := runTimes(b, o, empty)
		for prog, t := range after {
			n := t.Runs - before[prog].Runs
			if n >= 50 {
				rounds[prog] = append(rounds[prog], float64(t.Time-before[prog].Time)/float64(n))
			}
			if !strings.HasPrefix(prog, "empty ") {
				ns += float64(t.Time - before[prog].Time)
				runs += float64(n)
			}
		}
		base, was := after["empty inet_sock_set_state"], before["empty inet_sock_set_state"]
		if n := base.Runs - was.Runs; n > 0 {
			ns -= runs * float64(base.Time-was.Time) / float64(n)
		}
		if n := produced(b, o) - counts; n >= 50 {
			all = append(all, ns/float64(n))
		}
		t.clean()
	}
	if len(all) > 0 {
		b.ReportMetric(median(all), "record-ns")
	}
	for prog := range rounds {
		base, ok := rounds["empty "+prog]
		if prog == "wire" {
			base, ok = rounds["empty tcp_probe"]
		}
		if ok {
			b.ReportMetric(median(rounds[prog])-median(base), prog+"-ns")
		}
	}
	for prog, r := range rounds {
		if prog == "empty tcp_probe" {
			b.ReportMetric(median(r), "statistics-ns")
		}
	}
}

func produced(tb testing.TB, o *loader.Observer) uint64 {
	c, err := o.Counts()
	if err != nil {
		tb.Fatal(err)
	}
	if loader.Sum(c.Lost) > 0 {
		tb.Fatal("records were lost: a program that finds no room is cheaper")
	}
	return loader.Sum(c.Produced)
}

func median(r []float64) float64 {
	slices.Sort(r)
	return r[len(r)/2]
}

func runTimes(tb testing.TB, o *loader.Observer, empty map[string]*ebpf.Program) map[string]loader.RunTime {
	times, err := o.RunTimes()
	if err != nil {
		tb.Fatal(err)
	}
	for hook, p := range empty {
		s, err := p.Stats()
		if err != nil {
			tb.Fatal(err)
		}
		times["empty "+hook] = loader.RunTime{Runs: s.RunCount, Time: s.Runtime}
	}
	return times
}

// emptyPrograms attaches a program that returns at once to each hook.
func emptyPrograms(tb testing.TB, hooks ...string) map[string]*ebpf.Program {
	progs := make(map[string]*ebpf.Program)
	for _, hook := range hooks {
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Type: ebpf.Tracing, AttachType: ebpf.AttachTraceRawTp, AttachTo: hook, License: "GPL",
			Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
		})
		if errors.Is(err, ebpf.ErrNotSupported) {
			continue // this kernel has no such hook
		}
		if err != nil {
			tb.Fatal(err)
		}
		at, err := link.AttachTracing(link.TracingOptions{Program: p})
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { at.Close(); p.Close() })
		progs[hook] = p
	}
	return progs
}

// drain reads records and throws them away until stop is called. It looks ten
// times a second, as a session does.
func drain(tb testing.TB, o *loader.Observer) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	var both sync.WaitGroup
	both.Go(func() {
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
	})
	both.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			if err := o.Flush(); err != nil {
				tb.Error(err)
			}
			select {
			case <-tick.C:
			case <-ended:
				return
			}
		}
	})
	return func() {
		close(done)
		both.Wait()
	}
}

const connections = 200

// open opens connections that send 100 bytes each way, and as many that are
// refused.
func open(tb testing.TB, node *testlab.Node, l *net.TCPListener) traffic {
	var conns []*net.TCPConn
	return traffic{
		run: func() {
			buf := make([]byte, 100)
			for range connections {
				client, server := node.Connect(node, l)
				conns = append(conns, client, server)
				for _, pair := range [][2]*net.TCPConn{{client, server}, {server, client}} {
					if _, err := pair[0].Write(buf); err != nil {
						tb.Fatal(err)
					}
					if _, err := io.ReadFull(pair[1], buf); err != nil {
						tb.Fatal(err)
					}
				}
				if c, err := node.DialContext(tb.Context(), "tcp4", "127.0.0.1:1"); err == nil {
					c.Close()
					tb.Fatal("port 1 is open")
				}
			}
		},
		clean: func() {
			for _, c := range conns {
				c.Close()
			}
		},
	}
}

// opened is open before the measurement begins: it closes them.
func opened(tb testing.TB, node *testlab.Node, l *net.TCPListener) traffic {
	t := open(tb, node, l)
	t.run()
	return traffic{run: t.clean, clean: func() {}}
}

// bulk sends 64 MiB through one connection.
func bulk(tb testing.TB, node *testlab.Node, l *net.TCPListener) traffic {
	client, server := node.Connect(node, l)
	const size = 64 << 20
	return traffic{
		run: func() {
			go func() {
				defer client.Close()
				buf := make([]byte, 64<<10)
				for sent := 0; sent < size; sent += len(buf) {
					if _, err := client.Write(buf); err != nil {
						tb.Error(err)
						return
					}
				}
			}()
			if n, err := io.Copy(io.Discard, server); err != nil || n != size {
				tb.Fatalf("received %d bytes: %v", n, err)
			}
		},
		clean: func() { server.Close() },
	}
}

// dropped asks for connections that the packet filter does not let out.
func dropped(tb testing.TB, node *testlab.Node, _ *net.TCPListener) traffic {
	filter := node.DropTCP(9, testlab.Out)
	var fds []int
	return traffic{
		run: func() {
			for range connections {
				fd, err := node.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
				if err != nil {
					tb.Fatal(err)
				}
				fds = append(fds, fd)
				err = unix.Connect(fd, &unix.SockaddrInet4{Port: 9, Addr: [4]byte{127, 0, 0, 1}})
				if err != nil && !errors.Is(err, unix.EINPROGRESS) {
					tb.Fatal(err)
				}
			}
		},
		clean: func() {
			for _, fd := range fds {
				unix.Close(fd)
			}
			filter.Undo()
		},
	}
}
