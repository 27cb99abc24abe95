package evidence

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"

	"github.com/sockwatch/sockwatch/internal/events"
)

// Counters are the counters of a network namespace that judge the events.
type Counters struct {
	events.Reading

	// Values are the counters by the kernel's names: those of a ledger, and
	// EmbryonicRsts, OutNoRoutes and Ip6OutNoRoutes. Those that this kernel
	// does not have are absent.
	Values map[string]uint64
}

// ReadCounters reads the counters of the calling thread's network namespace:
// /proc/thread-self/net/snmp, snmp6 and netstat.
func ReadCounters() (Counters, error) {
	// The thread by its number in the pid namespace of /proc, which need not
	// be that of this process.
	const self = "/proc/thread-self"
	link, err := os.Readlink(self)
	if err != nil {
		return Counters{}, fmt.Errorf("read the counters: %w", err)
	}
	var pid, tid int
	if _, err := fmt.Sscanf(link, "%d/task/%d", &pid, &tid); err != nil {
		return Counters{}, fmt.Errorf("read the counters: %s leads to %q", self, link)
	}
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return Counters{}, fmt.Errorf("read the counters: %w", err)
	}
	thread, err := fs.Thread(pid, tid)
	if err != nil {
		return Counters{}, fmt.Errorf("read the counters: %w", err)
	}

	var c Counters
	if c.StartNS, err = MonoNow(); err != nil {
		return Counters{}, err
	}
	snmp, err := thread.Snmp()
	if err != nil {
		return Counters{}, fmt.Errorf("read the counters: %w", err)
	}
	netstat, err := thread.Netstat()
	if err != nil {
		return Counters{}, fmt.Errorf("read the counters: %w", err)
	}
	// Package procfs has fields for these and leaves them empty.
	more, err := tcpExt("TCPAbortOnTimeout", "TCPAbortOnLinger", "TCPAbortOnMemory")
	if err != nil {
		return Counters{}, fmt.Errorf("read the counters: %w", err)
	}
	snmp6, err := thread.Snmp6()
	if err != nil && !os.IsNotExist(err) { // a kernel without IPv6
		return Counters{}, fmt.Errorf("read the counters: %w", err)
	}
	if c.EndNS, err = MonoNow(); err != nil {
		return Counters{}, err
	}
	c.Values = more
	for name, v := range map[string]*float64{
		"ActiveOpens":         snmp.Tcp.ActiveOpens,
		"PassiveOpens":        snmp.Tcp.PassiveOpens,
		"AttemptFails":        snmp.Tcp.AttemptFails,
		"EstabResets":         snmp.Tcp.EstabResets,
		"RetransSegs":         snmp.Tcp.RetransSegs,
		"OutRsts":             snmp.Tcp.OutRsts,
		"TCPSynRetrans":       netstat.TCPSynRetrans,
		"TCPTimeouts":         netstat.TCPTimeouts,
		"TCPLossProbes":       netstat.TCPLossProbes,
		"TCPFastRetrans":      netstat.TCPFastRetrans,
		"TCPSlowStartRetrans": netstat.TCPSlowStartRetrans,
		"TCPRetransFail":      netstat.TCPRetransFail,
		"TCPAbortOnClose":     netstat.TCPAbortOnClose,
		"TCPAbortOnData":      netstat.TCPAbortOnData,
		"TCPKeepAlive":        netstat.TCPKeepAlive,
		"TCPWinProbe":         netstat.TCPWinProbe,

		embryonicRsts:  netstat.EmbryonicRsts,
		outNoRoutes:    snmp.Ip.OutNoRoutes,
		ip6OutNoRoutes: snmp6.OutNoRoutes,
	} {
		if v == nil {
			continue
		}
		if *v < 0 || *v > 1<<53 || *v != math.Trunc(*v) {
			return Counters{}, fmt.Errorf("read the counters: %s is %v", name, *v)
		}
		c.Values[name] = uint64(*v)
	}
	return c, nil
}

// tcpExt reads counters of the TcpExt table. Those that this kernel does not
// have are absent.
func tcpExt(names ...string) (map[string]uint64, error) {
	b, err := os.ReadFile("/proc/thread-self/net/netstat")
	if err != nil {
		return nil, err
	}
	const table = "TcpExt:"
	var rows [][]string // the names, then the values
	for line := range strings.Lines(string(b)) {
		if row, ok := strings.CutPrefix(line, table); ok {
			rows = append(rows, strings.Fields(row))
		}
	}
	if len(rows) != 2 || len(rows[0]) != len(rows[1]) {
		return nil, errors.New("/proc/net/netstat has no table TcpExt of names and values")
	}
	values := make(map[string]uint64, len(names))
	for i, name := range rows[0] {
		if !slices.Contains(names, name) {
			continue
		}
		if values[name], err = strconv.ParseUint(rows[1][i], 10, 64); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return values, nil
}
