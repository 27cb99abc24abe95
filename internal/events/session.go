package events

import "slices"

// Session is the header of a file: who looked, with what, at what.
type Session struct {
	Schema     string    `json:"schema" jsonschema_description:"Version of this format."`
	Version    string    `json:"version" jsonschema_description:"Version of sockwatch."`
	Commit     string    `json:"commit" jsonschema_description:"Commit it was built from."`
	Command    []string  `json:"command" jsonschema_description:"Its command line, name first."`
	PID        int       `json:"pid" jsonschema_description:"Its process, in its own pid namespace."`
	Kernel     string    `json:"kernel" jsonschema_description:"uname -r"`
	Machine    string    `json:"machine" jsonschema_description:"uname -m"`
	Hostname   string    `json:"hostname" jsonschema_description:"uname -n"`
	BootID     string    `json:"boot_id" jsonschema_description:"/proc/sys/kernel/random/boot_id: mono_ns of two files can be compared if it is the same."`
	BTF        string    `json:"btf_sha256" jsonschema_description:"SHA-256 of /sys/kernel/btf/vmlinux."`
	HZ         uint32    `json:"hz" jsonschema_description:"Ticks a second of the kernel's timers."`
	Lockdown   string    `json:"lockdown" jsonschema:"enum=none,enum=integrity,enum=confidentiality,enum=unknown" jsonschema_description:"/sys/kernel/security/lockdown."`
	Programs   []Program `json:"programs" jsonschema_description:"The BPF programs and how each is attached."`
	BlindSpots []string  `json:"blind_spots" jsonschema_description:"What this kernel cannot show."`
	CannotShow []string  `json:"cannot_show" jsonschema:"enum=failed-retransmissions,enum=reset-reasons,enum=resets-without-socket,enum=before-firewall" jsonschema_description:"Of the blind spots those that the verdict must know. failed-retransmissions: those given up before they left the socket; reset-reasons: why a reset was sent; resets-without-socket: told from those of a firewall; before-firewall: what the namespace's own packet filter drops on its way out."`
	With       []string  `json:"with,omitempty" jsonschema:"enum=io,enum=segment" jsonschema_description:"Types of event that are written only when asked for, and were; absent: none."`
	Targets    []string  `json:"targets" jsonschema_description:"What is watched, as given."`
	ArrivalMs  uint64    `json:"arrival_threshold_ms" jsonschema_description:"Silence after which received data is an arrival, milliseconds."`
	RingBytes  uint64    `json:"ring_bytes" jsonschema_description:"Size of the ring buffer between kernel and reader, bytes."`
	SelfTest   *SelfTest `json:"self_test,omitempty" jsonschema_description:"What the self-test found before anything was watched; absent when it was not asked for."`
}

// SelfTest is the positive control: a retransmission, a reset and aborts were
// forced in two namespaces of its own, under the programs of this session.
type SelfTest struct {
	Passed     bool     `json:"passed" jsonschema_description:"Whether all that was forced was seen, and the kernel's counters agreed."`
	Runs       int      `json:"runs" jsonschema_description:"How often it was run; three times at most, since kernels that run no tracing programs over process 1 may hide something once."`
	DurationNS uint64   `json:"duration_ns" jsonschema_description:"How long the last run took, nanoseconds."`
	Seen       []string `json:"seen" jsonschema_description:"What was forced and seen."`
	Missing    []string `json:"missing" jsonschema_description:"What was not, with how often it happened and was seen; empty when passed."`
}

// Program is one BPF program and how it is attached.
type Program struct {
	Name   string `json:"name" jsonschema_description:"Name of the program, as in lost.by and summary.kernel.by_program."`
	Hook   string `json:"hook" jsonschema_description:"Where it runs."`
	Method string `json:"method" jsonschema:"enum=tp_btf,enum=iter,enum=netfilter,enum=packet,enum=none" jsonschema_description:"How it is attached; none: it is not, see detail."`
	Detail string `json:"detail,omitempty" jsonschema_description:"Why it is not attached, or what is lost; absent when there is nothing to say."`
}

// Summary is the footer of a file. A file without one was cut short.
type Summary struct {
	Reason     string            `json:"reason" jsonschema_description:"What ended the session."`
	DurationNS uint64            `json:"duration_ns" jsonschema_description:"Nanoseconds from the session line to this one."`
	Lines      uint64            `json:"lines" jsonschema_description:"Lines of the session, this one included."`
	Events     map[string]uint64 `json:"events" jsonschema_description:"Lines by type, this one included."`
	Kernel     Counts            `json:"kernel" jsonschema_description:"What the programs produced, against what was read."`
	Namespaces []NamespaceCounts `json:"namespaces" jsonschema_description:"Each generation of each target: its events, held against the kernel's counters."`
	Verdict    Verdict           `json:"verdict" jsonschema_description:"Whether anything is missing, over all generations."`
	BlindSpots []string          `json:"blind_spots" jsonschema_description:"What could not be seen: of this kernel, and what the session ran into."`
}

// Counts compares what the programs produced with what was read: produced is
// read and lost together, or the difference is in unaccounted.
type Counts struct {
	Produced    uint64            `json:"produced" jsonschema_description:"Records the programs wanted to write."`
	Lost        uint64            `json:"lost" jsonschema_description:"Of these, the ones the ring buffer had no room for."`
	Missed      uint64            `json:"missed" jsonschema_description:"Times a hook fired while its program was running on the same processor already, so that it was not run; in any namespace."`
	Read        uint64            `json:"read" jsonschema_description:"Records read from the ring buffer."`
	Unaccounted int64             `json:"unaccounted" jsonschema_description:"produced - lost - read; anything but 0 is a defect."`
	Foreign     uint64            `json:"foreign" jsonschema_description:"Records read that belonged to no watched namespace (an inode reused)."`
	ByProgram   map[string]uint64 `json:"by_program" jsonschema_description:"produced, per program."`
}

// NamespaceCounts are the events of one generation of a target.
type NamespaceCounts struct {
	Netns    Netns             `json:"netns" jsonschema_description:"Which namespace, by its last name."`
	Formerly []Netns           `json:"formerly,omitempty" jsonschema_description:"The names it had before, in order, if targets whose name it bore ended while another named it on: all below is of the whole time. Absent without any."`
	Events   map[string]uint64 `json:"events" jsonschema_description:"Lines by type."`

	Ledger  Ledger  `json:"ledger" jsonschema_description:"What the kernel counted, against the events."`
	Verdict Verdict `json:"verdict" jsonschema_description:"Whether anything of this generation is missing."`
}

// Is reports whether lines of the namespace bear or bore that name.
func (n *NamespaceCounts) Is(ns Netns) bool {
	return n.Netns == ns || slices.Contains(n.Formerly, ns)
}

// Ledger holds the events of one generation against the kernel's own counters
// (/proc/net/snmp and netstat of the namespace). Both were read twice: when
// everything was attached, and before anything was detached.
type Ledger struct {
	Opened Reading           `json:"opened" jsonschema_description:"When the counters were read first; events before it do not count."`
	Closed Reading           `json:"closed" jsonschema_description:"When they were read last; events after it do not count. Both 0: they could not be read, the verdict says why."`
	Lines  []LedgerLine      `json:"lines" jsonschema_description:"One for each counter that this kernel has."`
	Beside map[string]uint64 `json:"beside" jsonschema_description:"Growth of other counters, which explain a difference: EmbryonicRsts, OutNoRoutes, Ip6OutNoRoutes."`
}

// Reading is the bracket within which counters were read, in CLOCK_MONOTONIC.
type Reading struct {
	StartNS uint64 `json:"start_ns" jsonschema_description:"CLOCK_MONOTONIC before the reading, nanoseconds."`
	EndNS   uint64 `json:"end_ns" jsonschema_description:"CLOCK_MONOTONIC after it, nanoseconds."`
}

// LedgerLine is one counter.
type LedgerLine struct {
	Counter    string `json:"counter" jsonschema_description:"The kernel's name."`
	Kernel     uint64 `json:"kernel" jsonschema_description:"By how much it grew between the readings."`
	Events     int64  `json:"events" jsonschema_description:"By how much the events between the readings say it grew."`
	Difference int64  `json:"difference" jsonschema_description:"kernel - events."`
	Explained  int64  `json:"explained" jsonschema_description:"How much of the difference is known not to be a missing event; why says by what."`
	Result     string `json:"result" jsonschema:"enum=balanced,enum=incomplete,enum=unprovable" jsonschema_description:"balanced: there is no difference, or all of it is explained; incomplete: events are missing; unprovable: it cannot be told."`
	Why        string `json:"why" jsonschema_description:"What explains the difference, or why it cannot be told; empty without a difference."`
}

// Verdict says whether events are missing.
type Verdict struct {
	State   string   `json:"state" jsonschema:"enum=complete,enum=incomplete,enum=unprovable" jsonschema_description:"complete: the kernel counted nothing that is not here; incomplete: something is missing; unprovable: it cannot be told, reasons say why."`
	By      uint64   `json:"by" jsonschema_description:"incomplete: how many are missing at least; otherwise 0."`
	Reasons []string `json:"reasons" jsonschema_description:"What is missing, by the counter that shows it, or why it cannot be told; empty when complete."`
}
