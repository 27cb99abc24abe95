package lab

import (
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// outputTable is of a node's own packet filter.
const outputTable = "sockwatch"

// bridgeTable is of the switch's packet filter, for one node.
func bridgeTable(role string) string { return "sockwatch-" + role }

// dropped is what a table of drops does.
type dropped struct {
	direction Direction
	packets   uint64
}

// dropOnBridge drops the frames that pass the bridge between port and the
// others, or no longer.
func dropOnBridge(sw netns.NsHandle, table, port string, d Direction) error {
	var rules [][]expr.Any
	if d == From || d == Both {
		rules = append(rules, dropIf(expr.MetaKeyIIFNAME, expr.CmpOpEq, port))
	}
	if d == To || d == Both {
		rules = append(rules, dropIf(expr.MetaKeyOIFNAME, expr.CmpOpEq, port))
	}
	return setTable(sw, nftables.TableFamilyBridge, table, nftables.ChainHookForward, rules)
}

// dropOutput drops what a node sends to others, or no longer.
func dropOutput(ns netns.NsHandle, drop bool) error {
	var rules [][]expr.Any
	if drop {
		rules = append(rules, dropIf(expr.MetaKeyOIFNAME, expr.CmpOpNeq, "lo"))
	}
	return setTable(ns, nftables.TableFamilyINet, outputTable, nftables.ChainHookOutput, rules)
}

// dropIf counts and drops what comes in or goes out by an interface, or by any
// other.
func dropIf(key expr.MetaKey, op expr.CmpOp, name string) []expr.Any {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return []expr.Any{
		&expr.Meta{Key: key, Register: 1},
		&expr.Cmp{Op: op, Register: 1, Data: padded},
		&expr.Counter{},
		&expr.Verdict{Kind: expr.VerdictDrop},
	}
}

// setTable replaces a table, at once, by one with a chain of these rules, or
// by nothing if there is none.
func setTable(ns netns.NsHandle, family nftables.TableFamily, name string, hook *nftables.ChainHook, rules [][]expr.Any) error {
	conn, err := nftables.New(nftables.WithNetNSFd(int(ns)))
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	t := &nftables.Table{Family: family, Name: name}
	conn.AddTable(t) // what does not exist cannot be deleted
	conn.DelTable(t)
	if len(rules) > 0 {
		conn.AddTable(t)
		chain := conn.AddChain(&nftables.Chain{
			Name: "drop", Table: t, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: nftables.ChainPriorityFilter,
		})
		for _, r := range rules {
			conn.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: r})
		}
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("set packet filter: %w", err)
	}
	return nil
}

// droppedBy reads a table of drops: what it drops of port, and how many it
// has. One of a node's own output has the direction [From].
func droppedBy(ns netns.NsHandle, family nftables.TableFamily, name string) (dropped, error) {
	var d dropped
	conn, err := nftables.New(nftables.WithNetNSFd(int(ns)))
	if err != nil {
		return d, fmt.Errorf("open nftables: %w", err)
	}
	tables, err := conn.ListTablesOfFamily(family)
	if err != nil {
		return d, fmt.Errorf("list packet filter: %w", err)
	}
	for _, t := range tables {
		if t.Name != name {
			continue
		}
		rules, err := conn.GetRules(t, &nftables.Chain{Name: "drop", Table: t})
		if err != nil {
			return d, fmt.Errorf("list packet filter: %w", err)
		}
		for _, r := range rules {
			d.add(r)
		}
	}
	return d, nil
}

func (d *dropped) add(r *nftables.Rule) {
	way := From
	for _, e := range r.Exprs {
		switch e := e.(type) {
		case *expr.Meta:
			if e.Key == expr.MetaKeyOIFNAME {
				way = To
			}
		case *expr.Cmp:
			if e.Op == expr.CmpOpNeq {
				way = From // to any other interface than loopback
			}
		case *expr.Counter:
			d.packets += e.Packets
		}
	}
	if d.direction == None || d.direction == way {
		d.direction = way
	} else {
		d.direction = Both
	}
}
