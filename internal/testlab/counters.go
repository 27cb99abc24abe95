package testlab

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

// Counters are a namespace's SNMP counters by the names nstat(8) prints:
// "TcpRetransSegs", "TcpExtTCPTimeouts", "Ip6InReceives".
type Counters map[string]uint64

// Counters reads /proc/net/snmp, snmp6 and netstat inside the namespace.
func (n *Node) Counters() Counters {
	n.t.Helper()

	c := make(Counters)
	err := n.Do(func() error {
		// The thread, not the process: only this thread is inside.
		for file, add := range map[string]func(string) error{
			"snmp": c.addTables, "netstat": c.addTables, "snmp6": c.addList,
		} {
			text, err := os.ReadFile("/proc/thread-self/net/" + file)
			if err != nil {
				return err
			}
			if err := add(string(text)); err != nil {
				return fmt.Errorf("parse %s: %w", file, err)
			}
		}
		return nil
	})
	if err != nil {
		n.t.Fatalf("read counters of %s: %v", n.Name, err)
	}
	return c
}

// addTables takes pairs of lines: "Tcp: RtoMin RtoMax", "Tcp: 200 120000".
func (c Counters) addTables(text string) error {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for i := 0; i < len(lines); i += 2 {
		names := strings.Fields(lines[i])
		if i+1 == len(lines) {
			return fmt.Errorf("no values follow %q", lines[i])
		}
		values := strings.Fields(lines[i+1])
		if len(names) != len(values) || names[0] != values[0] {
			return fmt.Errorf("%d names and %d values in %q", len(names), len(values), names[0])
		}
		for j := 1; j < len(names); j++ {
			// A setting and not a count: -1.
			if names[j] == "MaxConn" {
				continue
			}
			if err := c.set(strings.TrimSuffix(names[0], ":")+names[j], values[j]); err != nil {
				return err
			}
		}
	}
	return nil
}

// addList takes lines of a name and a value.
func (c Counters) addList(text string) error {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) != 2 {
			return fmt.Errorf("no name and value in %q", line)
		}
		if err := c.set(fields[0], fields[1]); err != nil {
			return err
		}
	}
	return nil
}

func (c Counters) set(name, text string) error {
	value, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return fmt.Errorf("value of %s: %w", name, err)
	}
	c[name] = value
	return nil
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
