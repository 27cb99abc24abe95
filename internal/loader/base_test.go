package loader_test

import (
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/internal/testlab"
)

// BenchmarkEmptyProgram is what the statistics themselves cost: a program
// that returns at once, on the same hooks under the same traffic.
func BenchmarkEmptyProgram(b *testing.B) {
	testlab.Privileged(b)
	stats, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	if err != nil {
		b.Fatal(err)
	}
	defer stats.Close()
	node := testlab.NewNodes(b, 1)[0]
	l := node.Listen("tcp4", "127.0.0.1:0")
	progs := map[string]*ebpf.Program{}
	for _, hook := range []string{"inet_sock_set_state", "tcp_probe", "tcp_rcv_space_adjust", "tcp_destroy_sock"} {
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Type: ebpf.Tracing, AttachType: ebpf.AttachTraceRawTp, AttachTo: hook, License: "GPL",
			Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
		})
		if err != nil {
			b.Fatal(err)
		}
		defer p.Close()
		at, err := link.AttachTracing(link.TracingOptions{Program: p})
		if err != nil {
			b.Fatal(err)
		}
		defer at.Close()
		progs[hook] = p
	}
	rounds := map[string][]float64{}
	for b.Loop() {
		before := map[string]*ebpf.ProgramStats{}
		for hook, p := range progs {
			before[hook], _ = p.Stats()
		}
		for range 200 {
			exchange(b, node, l)
		}
		for hook, p := range progs {
			after, err := p.Stats()
			if err != nil {
				b.Fatal(err)
			}
			if n := after.RunCount - before[hook].RunCount; n > 0 {
				rounds[hook] = append(rounds[hook], float64(after.Runtime-before[hook].Runtime)/float64(n))
			}
		}
	}
	for hook, r := range rounds {
		slices.Sort(r)
		b.ReportMetric(r[len(r)/2], hook+"-ns/run")
	}
}
