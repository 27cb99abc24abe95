package testlab

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// Counters are a namespace's SNMP counters by the names nstat(8) prints:
// "TcpRetransSegs", "TcpExtTCPTimeouts", "Ip6InReceives". Counters that package
// procfs does not know are absent.
type Counters map[string]uint64

// Counters reads /proc/net/snmp, snmp6 and netstat inside the namespace.
func (n *Node) Counters() Counters {
	n.t.Helper()

	c := make(Counters)
	err := n.Do(func() error {
		// The thread, not the process: only this thread is inside.
		proc, err := procfs.NewProc(unix.Gettid())
		if err != nil {
			return err
		}
		snmp, err := proc.Snmp()
		if err != nil {
			return err
		}
		netstat, err := proc.Netstat()
		if err != nil {
			return err
		}
		snmp6, err := proc.Snmp6()
		if err != nil {
			return err
		}
		c.add(snmp)
		c.add(netstat)
		c.add(snmp6)
		return nil
	})
	if err != nil {
		n.t.Fatalf("read counters of %s: %v", n.Name, err)
	}
	return c
}

// add takes the counters of a procfs struct: embedded structs, named as the
// kernel's tables are, of pointers that are nil where the kernel has no value.
func (c Counters) add(tables any) {
	v := reflect.ValueOf(tables)
	for i := range v.NumField() {
		table := v.Field(i)
		if table.Kind() != reflect.Struct {
			continue
		}
		for j := range table.NumField() {
			// Tcp's MaxConn is -1, a setting and not a count.
			value, ok := table.Field(j).Interface().(*float64)
			if ok && value != nil && *value >= 0 {
				c[v.Type().Field(i).Name+table.Type().Field(j).Name] = uint64(*value)
			}
		}
	}
}

// Sub returns what was counted since before.
func (c Counters) Sub(before Counters) Counters {
	delta := make(Counters, len(c))
	for name, value := range c {
		delta[name] = value - before[name]
	}
	return delta
}

// NonZero returns the counters that are not zero, for messages.
func (c Counters) NonZero() Counters {
	some := make(Counters)
	for name, value := range c {
		if value != 0 {
			some[name] = value
		}
	}
	return some
}

// Get returns a counter and ends the test if there is none of that name, which
// a map would call zero.
func (c Counters) Get(t testing.TB, name string) uint64 {
	t.Helper()

	value, ok := c[name]
	if !ok {
		t.Fatal(fmt.Errorf("this kernel has no counter %s", name))
	}
	return value
}
