package events

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
	Targets    []string  `json:"targets" jsonschema_description:"What is watched, as given."`
	ArrivalMs  uint64    `json:"arrival_threshold_ms" jsonschema_description:"Silence after which received data is an arrival, milliseconds."`
	RingBytes  uint64    `json:"ring_bytes" jsonschema_description:"Size of the ring buffer between kernel and reader, bytes."`
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
	Namespaces []NamespaceCounts `json:"namespaces" jsonschema_description:"Events of each generation of each target."`
	BlindSpots []string          `json:"blind_spots" jsonschema_description:"What could not be seen: of this kernel, and what the session ran into."`
}

// Counts compares what the programs produced with what was read: produced is
// read and lost together, or the difference is in unaccounted.
type Counts struct {
	Produced    uint64            `json:"produced" jsonschema_description:"Records the programs wanted to write."`
	Lost        uint64            `json:"lost" jsonschema_description:"Of these, the ones the ring buffer had no room for."`
	Read        uint64            `json:"read" jsonschema_description:"Records read from the ring buffer."`
	Unaccounted int64             `json:"unaccounted" jsonschema_description:"produced - lost - read; anything but 0 is a defect."`
	Foreign     uint64            `json:"foreign" jsonschema_description:"Records read that belonged to no watched namespace (an inode reused)."`
	ByProgram   map[string]uint64 `json:"by_program" jsonschema_description:"produced, per program."`
}

// NamespaceCounts are the events of one generation of a target.
type NamespaceCounts struct {
	Netns  Netns             `json:"netns" jsonschema_description:"Which namespace."`
	Events map[string]uint64 `json:"events" jsonschema_description:"Lines by type."`
}
