package loader

import (
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/sockwatch/sockwatch/bpf"
)

// neighbourPrograms are attached where they could say whom it is about.
var neighbourPrograms = []program{
	{bpf.ProgNeighUpdate, "neigh_update", "tp_btf/neigh_update", "6.1", false, "neighbours before a change"},
	{bpf.ProgNeighUpdateDone, "neigh_update_done", "tp_btf/neigh_update_done", "6.1", false, "neighbours that move (neighbour events)"},
	{bpf.ProgNeighTimerHandler, "neigh_timer_handler", "tp_btf/neigh_timer_handler", "6.1", false, "neighbours that do not answer (neighbour events)"},
	{bpf.ProgNeighEventSendDone, "neigh_event_send_done", "tp_btf/neigh_event_send_done", "6.1", false, "whether a neighbour was known before it did not answer"},
}

// readsNeighbours tries whether the verifier lets the address of a neighbour
// be read: it stands behind its struct, in an array of no length, which older
// kernels do not let a program into.
func readsNeighbours(cache *btf.Cache) bool {
	spec, err := cache.Kernel()
	if err != nil {
		return false
	}
	var neighbour *btf.Struct
	if spec.TypeByName("neighbour", &neighbour) != nil {
		return false
	}
	for _, m := range neighbour.Members {
		if m.Name != "primary_key" {
			continue
		}
		p, err := ebpf.NewProgramWithOptions(&ebpf.ProgramSpec{
			Type: ebpf.Tracing, AttachType: ebpf.AttachTraceRawTp, AttachTo: "neigh_timer_handler", License: "GPL",
			Instructions: asm.Instructions{
				asm.LoadMem(asm.R1, asm.R1, 0, asm.DWord),
				asm.LoadMem(asm.R0, asm.R1, int16(m.Offset.Bytes())+8, asm.DWord),
				asm.Mov.Imm(asm.R0, 0),
				asm.Return(),
			},
		}, ebpf.ProgramOptions{LogDisabled: true})
		if err != nil {
			return false
		}
		p.Close()
		return true
	}
	return false
}
