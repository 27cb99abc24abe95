package testlab

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Fault is something broken on purpose. It is undone when the test ends, if
// not before.
type Fault struct {
	t    testing.TB
	once sync.Once
	undo func() error

	// Of faults on the wire only.
	wire *wire
	slot uint32
}

func newFault(t testing.TB, undo func() error) *Fault {
	f := &Fault{t: t, undo: undo}
	t.Cleanup(f.Undo)
	return f
}

// Undo repairs it. Undoing twice does nothing.
func (f *Fault) Undo() {
	f.t.Helper()

	f.once.Do(func() {
		if err := f.undo(); err != nil {
			f.t.Errorf("undo a fault: %v", err)
		}
	})
}

// LinkDown sets the node's own interface down: its routes vanish, and the peer
// loses its carrier.
func (n *Node) LinkDown() *Fault {
	n.t.Helper()
	return n.linkDown(IfName)
}

func (n *Node) linkDown(name string) *Fault {
	n.t.Helper()

	if err := n.setLink(name, false); err != nil {
		n.t.Fatal(err)
	}
	return newFault(n.t, func() error { return n.setLink(name, true) })
}

// Hook is where the node's packet filter acts.
type Hook int

// Hooks for what the node receives, sends, and both.
const (
	In Hook = 1 << iota
	Out
	Both = In | Out
)

// DropTCP drops, in the node's own packet filter, TCP segments to or from
// port; port 0 is every port. What is dropped on its way out is a local
// failure that the sending socket learns of; see [Node.Lose] for loss on the
// wire.
func (n *Node) DropTCP(port uint16, hook Hook) *Fault {
	n.t.Helper()
	return n.filter(port, hook, &expr.Verdict{Kind: expr.VerdictDrop})
}

// RejectTCP answers, in the node's own packet filter, TCP segments to or from
// port with a reset, which goes to whoever sent the segment. Resets pass: the
// answer to what the node sends takes the same way out.
func (n *Node) RejectTCP(port uint16, hook Hook) *Fault {
	n.t.Helper()
	return n.filter(port, hook,
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{byte(RST)}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{0}},
		&expr.Reject{Type: unix.NFT_REJECT_TCP_RST},
	)
}

// RejectICMP answers, in the node's own packet filter, TCP segments to or from
// port with an ICMP error of code, such as [HostUnreachable], which goes to
// whoever sent the segment.
func (n *Node) RejectICMP(port uint16, hook Hook, code uint8) *Fault {
	n.t.Helper()
	return n.filter(port, hook, &expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: code})
}

// Codes for [Node.RejectICMP]: what ICMP and ICMPv6 have in common.
const (
	NoRoute uint8 = iota
	PortUnreachable
	HostUnreachable
	AdminProhibited
)

var tables atomic.Uint32

// filter adds a table of its own, so that undoing it touches nothing else.
func (n *Node) filter(port uint16, hook Hook, action ...expr.Any) *Fault {
	n.t.Helper()

	conn, err := nftables.New(nftables.WithNetNSFd(int(n.ns)))
	if err != nil {
		n.t.Fatalf("open nftables in %s: %v", n.Name, err)
	}
	table := conn.AddTable(&nftables.Table{
		Family: nftables.TableFamilyINet,
		Name:   fmt.Sprintf("lab%d", tables.Add(1)),
	})
	for _, h := range []struct {
		hook Hook
		name string
		num  *nftables.ChainHook
	}{
		{In, "in", nftables.ChainHookInput},
		{Out, "out", nftables.ChainHookOutput},
	} {
		if hook&h.hook == 0 {
			continue
		}
		chain := conn.AddChain(&nftables.Chain{
			Name:     h.name,
			Table:    table,
			Type:     nftables.ChainTypeFilter,
			Hooknum:  h.num,
			Priority: nftables.ChainPriorityFilter,
		})
		for _, match := range portMatches(port) {
			conn.AddRule(&nftables.Rule{
				Table: table,
				Chain: chain,
				Exprs: append(match, action...),
			})
		}
	}
	if err := conn.Flush(); err != nil {
		n.t.Fatalf("add filter in %s: %v", n.Name, err)
	}
	return newFault(n.t, func() error {
		conn.DelTable(table)
		if err := conn.Flush(); err != nil {
			return fmt.Errorf("remove filter in %s: %w", n.Name, err)
		}
		return nil
	})
}

// portMatches returns the rules that together match TCP to or from port.
func portMatches(port uint16) [][]expr.Any {
	tcp := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}},
	}
	if port == 0 {
		return [][]expr.Any{tcp}
	}
	var matches [][]expr.Any
	for _, offset := range []uint32{0, 2} {
		match := append([]expr.Any{}, tcp...)
		matches = append(matches, append(match,
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(port)},
		))
	}
	return matches
}
