package evidence

import (
	"fmt"
	"math"
	"os"

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

	c := Counters{Values: make(map[string]uint64)}
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
	snmp6, err := thread.Snmp6()
	if err != nil && !os.IsNotExist(err) { // a kernel without IPv6
		return Counters{}, fmt.Errorf("read the counters: %w", err)
	}
	if c.EndNS, err = MonoNow(); err != nil {
		return Counters{}, err
	}
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
		"TCPAbortOnTimeout":   netstat.TCPAbortOnTimeout,
		"TCPAbortOnClose":     netstat.TCPAbortOnClose,
		"TCPAbortOnData":      netstat.TCPAbortOnData,
		"TCPAbortOnLinger":    netstat.TCPAbortOnLinger,
		"TCPAbortOnMemory":    netstat.TCPAbortOnMemory,
		"TCPKeepAlive":        netstat.TCPKeepAlive,

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
