package testlab

import (
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// Loss selects frames that get lost on the wire on their way to a node: the
// sender's stack has sent them, the receiver's has not seen them, and neither
// has a capture there.
type Loss struct {
	// Frames counts every frame, ARP and neighbour discovery too. All else
	// but Nth is ignored.
	Frames bool
	// SrcPort and DstPort of the TCP segment; 0 is any.
	SrcPort, DstPort uint16
	// Mask and Want select by TCP flags: flags & Mask == Want.
	Mask, Want TCPFlags
	// Bare counts segments without data too. Otherwise only those that carry
	// data, SYN or FIN count, which are the ones that get retransmitted.
	Bare bool
	// Nth of the selected are lost, counted from 1 to 1024; none means all. A
	// frame of several segments, see [Pair.SmallSegments], counts as one.
	Nth []int
}

// Lose loses frames that arrive at the node.
func (n *Node) Lose(l Loss) *Fault {
	n.t.Helper()

	w, err := n.openWire()
	if err != nil {
		n.t.Fatalf("lose frames to %s: %v", n.Name, err)
	}
	slot, err := w.add(l)
	if err != nil {
		n.t.Fatalf("lose frames to %s: %v", n.Name, err)
	}
	f := newFault(n.t, func() error { return w.remove(slot) })
	f.wire, f.slot = w, slot
	return f
}

// Cut loses every frame in both directions, and both carriers stay.
func (p *Pair) Cut() *Fault {
	p.A.t.Helper()

	a := p.A.Lose(Loss{Frames: true})
	b := p.B.Lose(Loss{Frames: true})
	return newFault(p.A.t, func() error {
		a.Undo()
		b.Undo()
		return nil
	})
}

// Seen returns how many frames were selected so far, lost or not. Only for
// faults of [Node.Lose].
func (f *Fault) Seen() uint64 { return f.counts().Seen }

// Lost returns how many frames were lost so far. Only for faults of
// [Node.Lose].
func (f *Fault) Lost() uint64 { return f.counts().Lost }

func (f *Fault) counts() wireRule {
	f.t.Helper()

	if f.wire == nil {
		f.t.Fatal("this fault does not count frames")
	}
	r, err := f.wire.rule(f.slot)
	if err != nil {
		f.t.Fatal(err)
	}
	return r
}

const (
	wireSlots = 8
	wireWords = 16

	kindFrame   = 1
	kindSegment = 2
	kindPayload = 3
)

// wireRule is the value of the program's map. A slot is free while Kind is 0,
// and keeps its counts after it was removed.
type wireRule struct {
	Kind             uint32
	SrcPort, DstPort uint16
	Mask, Want       uint8
	_                [2]byte
	All              uint32
	Seen, Lost       uint64
	Nth              [wireWords]uint64
}

// Offsets in wireRule that the program uses.
const (
	offKind    = 0
	offSrcPort = 4
	offDstPort = 6
	offMask    = 8
	offWant    = 9
	offAll     = 12
	offSeen    = 16
	offLost    = 24
	offNth     = 32
	wireSize   = offNth + 8*wireWords
)

// wire is a node's XDP program. Generic mode runs before packet sockets see a
// frame, and leaves the offloads of the veth pair alone.
type wire struct {
	rules *ebpf.Map
	prog  *ebpf.Program
	link  link.Link

	mu     sync.Mutex
	next   uint32
	closed bool
}

func (n *Node) openWire() (*wire, error) {
	n.mu.Lock()
	defer n.mu.Unlock()

	if n.wire != nil {
		return n.wire, nil
	}
	if n.Link.Index == 0 {
		return nil, errNoLink
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("lift the memlock limit: %w", err)
	}

	w := new(wire)
	var err error
	w.rules, err = ebpf.NewMap(&ebpf.MapSpec{
		Name:       "lab_wire",
		Type:       ebpf.Array,
		KeySize:    4,
		ValueSize:  wireSize,
		MaxEntries: wireSlots,
	})
	if err != nil {
		return nil, fmt.Errorf("create map: %w", err)
	}
	for _, exact := range []bool{true, false} {
		w.prog, err = ebpf.NewProgram(&ebpf.ProgramSpec{
			Name:         "lab_wire",
			Type:         ebpf.XDP,
			License:      "GPL",
			Instructions: wireProgram(w.rules.FD(), exact),
		})
		if !errors.Is(err, unix.EINVAL) {
			break
		}
	}
	if err != nil {
		w.close()
		return nil, fmt.Errorf("load program: %w", err)
	}
	err = n.Do(func() (err error) {
		w.link, err = link.AttachXDP(link.XDPOptions{
			Program:   w.prog,
			Interface: n.Link.Index,
			Flags:     link.XDPGenericMode,
		})
		return err
	})
	if err != nil {
		w.close()
		return nil, err
	}
	n.wire = w
	n.t.Cleanup(func() {
		if w := n.takeWire(); w != nil {
			w.close()
		}
	})
	return w, nil
}

func (n *Node) takeWire() *wire {
	n.mu.Lock()
	defer n.mu.Unlock()

	w := n.wire
	n.wire = nil
	return w
}

func (w *wire) close() {
	w.mu.Lock()
	defer w.mu.Unlock()

	w.closed = true
	if w.link != nil {
		w.link.Close()
	}
	if w.prog != nil {
		w.prog.Close()
	}
	w.rules.Close()
}

// add starts a rule in a free slot. The slot used longest ago comes last, so
// that counts of removed rules stay readable for a while.
func (w *wire) add(l Loss) (uint32, error) {
	r := wireRule{
		Kind:    kindPayload,
		SrcPort: l.SrcPort,
		DstPort: l.DstPort,
		Mask:    uint8(l.Mask),
		Want:    uint8(l.Want),
	}
	switch {
	case l.Frames:
		r.Kind = kindFrame
	case l.Bare:
		r.Kind = kindSegment
	}
	if len(l.Nth) == 0 {
		r.All = 1
	}
	for _, nth := range l.Nth {
		if nth < 1 || nth > 64*wireWords {
			return 0, fmt.Errorf("frame number %d is not between 1 and %d", nth, 64*wireWords)
		}
		r.Nth[(nth-1)/64] |= 1 << ((nth - 1) % 64)
	}

	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range uint32(wireSlots) {
		slot := (w.next + i) % wireSlots
		old, err := w.rule(slot)
		if err != nil {
			return 0, err
		}
		if old.Kind != 0 {
			continue
		}
		if err := w.rules.Put(slot, &r); err != nil {
			return 0, fmt.Errorf("write rule: %w", err)
		}
		w.next = slot + 1
		return slot, nil
	}
	return 0, fmt.Errorf("all %d rules are in use", wireSlots)
}

func (w *wire) rule(slot uint32) (wireRule, error) {
	var r wireRule
	if err := w.rules.Lookup(slot, &r); err != nil {
		return r, fmt.Errorf("read rule: %w", err)
	}
	return r, nil
}

// remove frees a slot and keeps its counts.
func (w *wire) remove(slot uint32) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil
	}
	r, err := w.rule(slot)
	if err != nil {
		return err
	}
	r.Kind = 0
	if err := w.rules.Put(slot, &r); err != nil {
		return fmt.Errorf("write rule: %w", err)
	}
	return nil
}

// wireProgram parses the frame once and then asks each rule.
//
// exact counts with fetching atomics, which kernels have from 5.12 on; without,
// frames that arrive on two processors at once may get the same number.
//
// From "rules" on, R7 and R8 are the TCP ports, R9 the TCP flags with
// isTCP and hasData above them, and R6 the verdict.
func wireProgram(mapFD int, exact bool) asm.Instructions {
	const (
		pass, drop = 2, 1
		hasData    = 1 << 8
		isTCP      = 1 << 16
		fin, syn   = 0x01, 0x02

		ethLen, ip4Len, ip6Len, tcpLen = 14, 20, 40, 20
	)
	insns := asm.Instructions{
		asm.Mov.Imm(asm.R6, pass),
		asm.Mov.Imm(asm.R7, 0),
		asm.Mov.Imm(asm.R8, 0),
		asm.Mov.Imm(asm.R9, 0),
		asm.LoadMem(asm.R2, asm.R1, 0, asm.Word), // data
		asm.LoadMem(asm.R3, asm.R1, 4, asm.Word), // data_end
		asm.Mov.Reg(asm.R4, asm.R2),
		asm.Add.Imm(asm.R4, ethLen+ip4Len),
		asm.JGT.Reg(asm.R4, asm.R3, "rules"),
		asm.LoadMem(asm.R5, asm.R2, 12, asm.Half),
		asm.HostTo(asm.BE, asm.R5, asm.Half),
		asm.JEq.Imm(asm.R5, 0x0800, "ip4"),
		asm.JEq.Imm(asm.R5, 0x86dd, "ip6"),
		asm.Ja.Label("rules"),

		asm.LoadMem(asm.R5, asm.R2, ethLen+9, asm.Byte).WithSymbol("ip4"), // protocol
		asm.JNE.Imm(asm.R5, 6, "rules"),
		asm.LoadMem(asm.R0, asm.R2, ethLen+2, asm.Half), // total length
		asm.HostTo(asm.BE, asm.R0, asm.Half),
		asm.LoadMem(asm.R5, asm.R2, ethLen, asm.Byte),
		asm.And.Imm(asm.R5, 0x0f),
		asm.LSh.Imm(asm.R5, 2),
		asm.Sub.Reg(asm.R0, asm.R5),
		asm.Add.Imm(asm.R2, ethLen),
		asm.Add.Reg(asm.R2, asm.R5),
		asm.Ja.Label("tcp"),

		asm.Mov.Reg(asm.R4, asm.R2).WithSymbol("ip6"),
		asm.Add.Imm(asm.R4, ethLen+ip6Len),
		asm.JGT.Reg(asm.R4, asm.R3, "rules"),
		asm.LoadMem(asm.R5, asm.R2, ethLen+6, asm.Byte), // next header
		asm.JNE.Imm(asm.R5, 6, "rules"),
		asm.LoadMem(asm.R0, asm.R2, ethLen+4, asm.Half), // payload length
		asm.HostTo(asm.BE, asm.R0, asm.Half),
		asm.Add.Imm(asm.R2, ethLen+ip6Len),

		// R0 is the length of the TCP header and data.
		asm.Mov.Reg(asm.R4, asm.R2).WithSymbol("tcp"),
		asm.Add.Imm(asm.R4, tcpLen),
		asm.JGT.Reg(asm.R4, asm.R3, "rules"),
		asm.LoadMem(asm.R7, asm.R2, 0, asm.Half),
		asm.HostTo(asm.BE, asm.R7, asm.Half),
		asm.LoadMem(asm.R8, asm.R2, 2, asm.Half),
		asm.HostTo(asm.BE, asm.R8, asm.Half),
		asm.LoadMem(asm.R9, asm.R2, 13, asm.Byte),
		asm.Or.Imm(asm.R9, isTCP),
		asm.LoadMem(asm.R5, asm.R2, 12, asm.Byte),
		asm.RSh.Imm(asm.R5, 4),
		asm.LSh.Imm(asm.R5, 2),
		asm.JLE.Reg(asm.R0, asm.R5, "rules"),
		asm.Or.Imm(asm.R9, hasData),
	}

	next := "rules"
	for slot := range wireSlots {
		here := next
		next = "rule" + strconv.Itoa(slot+1)
		label := func(s string) string { return s + strconv.Itoa(slot) }
		insns = append(insns,
			asm.StoreImm(asm.RFP, -4, int64(slot), asm.Word).WithSymbol(here),
			asm.LoadMapPtr(asm.R1, mapFD),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -4),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, next),
			asm.LoadMem(asm.R1, asm.R0, offKind, asm.Word),
			asm.JEq.Imm(asm.R1, 0, next),
			asm.JEq.Imm(asm.R1, kindFrame, label("match")),
			asm.Mov.Reg(asm.R2, asm.R9),
			asm.And.Imm(asm.R2, isTCP),
			asm.JEq.Imm(asm.R2, 0, next),

			asm.LoadMem(asm.R2, asm.R0, offSrcPort, asm.Half),
			asm.JEq.Imm(asm.R2, 0, label("dst")),
			asm.JNE.Reg(asm.R2, asm.R7, next),
			asm.LoadMem(asm.R2, asm.R0, offDstPort, asm.Half).WithSymbol(label("dst")),
			asm.JEq.Imm(asm.R2, 0, label("flags")),
			asm.JNE.Reg(asm.R2, asm.R8, next),
			asm.LoadMem(asm.R2, asm.R0, offMask, asm.Byte).WithSymbol(label("flags")),
			asm.And.Reg(asm.R2, asm.R9),
			asm.LoadMem(asm.R3, asm.R0, offWant, asm.Byte),
			asm.JNE.Reg(asm.R2, asm.R3, next),
			asm.JEq.Imm(asm.R1, kindSegment, label("match")),
			asm.Mov.Reg(asm.R2, asm.R9),
			asm.And.Imm(asm.R2, hasData|syn|fin),
			asm.JEq.Imm(asm.R2, 0, next),

			// R1 becomes the number of this frame, from 0.
			asm.Mov.Imm(asm.R1, 1).WithSymbol(label("match")),
		)
		if exact {
			insns = append(insns, fetchAdd(asm.R0, asm.R1, offSeen))
		} else {
			insns = append(insns,
				asm.Mov.Reg(asm.R2, asm.R1),
				asm.LoadMem(asm.R1, asm.R0, offSeen, asm.DWord),
				asm.AddAtomic.Mem(asm.R0, asm.R2, asm.DWord, offSeen),
			)
		}
		insns = append(insns,
			asm.LoadMem(asm.R2, asm.R0, offAll, asm.Word),
			asm.JNE.Imm(asm.R2, 0, label("drop")),
			asm.JGT.Imm(asm.R1, 64*wireWords-1, next),
			asm.Mov.Reg(asm.R2, asm.R1),
			asm.RSh.Imm(asm.R2, 6),
			asm.LSh.Imm(asm.R2, 3),
			asm.Mov.Reg(asm.R3, asm.R0),
			asm.Add.Reg(asm.R3, asm.R2),
			asm.LoadMem(asm.R2, asm.R3, offNth, asm.DWord),
			asm.And.Imm(asm.R1, 63),
			asm.RSh.Reg(asm.R2, asm.R1),
			asm.And.Imm(asm.R2, 1),
			asm.JEq.Imm(asm.R2, 0, next),

			asm.Mov.Imm(asm.R1, 1).WithSymbol(label("drop")),
			asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, offLost),
			asm.Mov.Imm(asm.R6, drop),
		)
	}
	return append(insns,
		asm.Mov.Reg(asm.R0, asm.R6).WithSymbol(next),
		asm.Return(),
	)
}

// fetchAdd emits src = atomic_fetch_add((u64 *)(dst + offset), src). The
// library keeps the constant it finds instead of the one that says fetch.
func fetchAdd(dst, src asm.Register, offset int16) asm.Instruction {
	ins := asm.FetchAdd.Mem(dst, src, asm.DWord, offset)
	ins.Constant = int64(asm.FetchAdd >> 8)
	return ins
}
