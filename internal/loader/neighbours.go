package loader

import (
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// readsIPv6Neighbours tries whether the verifier lets the whole address of an
// IPv6 neighbour be read: it stands behind its struct, in an array of no
// length, which older kernels do not let a program into.
func readsIPv6Neighbours(cache *btf.Cache) bool {
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
