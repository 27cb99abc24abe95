package loader

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/bpf"
)

// program is one row of the table of programs: what it hangs on, since when
// the kernel has that, and what is not seen without it.
type program struct {
	id       bpf.ProgramID
	name     string // in the object
	hook     string // for people
	since    string // first kernel whose hook serves
	required bool
	lost     string
}

// programs lists everything that may be attached host-wide, by ProgramID.
var programs = []program{
	{bpf.ProgRetransmitSkb, "tcp_retransmit_skb", "tp_btf/tcp_retransmit_skb", "5.5", true, "retransmissions"},
	{bpf.ProgRetransmitSynack, "tcp_retransmit_synack", "tp_btf/tcp_retransmit_synack", "5.5", true, "retransmitted SYN-ACKs"},
	{bpf.ProgSetState, "inet_sock_set_state", "tp_btf/inet_sock_set_state", "5.5", true, "state changes and aborts"},
	{bpf.ProgTCPProbe, "tcp_probe", "tp_btf/tcp_probe", "5.5", true, "recoveries, arrivals and received probes"},
	{bpf.ProgReceiveReset, "tcp_receive_reset", "tp_btf/tcp_receive_reset", "5.5", true, "resets that a socket accepted"},
	{bpf.ProgSendReset, "tcp_send_reset", "tp_btf/tcp_send_reset", "5.5", true, "resets sent by a socket"},
	{bpf.ProgErrorReport, "inet_sk_error_report", "tp_btf/inet_sk_error_report", "5.15", false, "errors reported to the application (error events)"},
	{bpf.ProgDestroySock, "tcp_destroy_sock", "tp_btf/tcp_destroy_sock", "5.5", true, "when a socket is forgotten"},
	{bpf.ProgRcvSpaceAdjust, "tcp_rcv_space_adjust", "tp_btf/tcp_rcv_space_adjust", "5.5", true, "owners of accepted sockets"},
	{bpf.ProgKfreeSkb, "kfree_skb", "tp_btf/kfree_skb", "5.5", false, "dropped segments (drop events)"},
	{bpf.ProgIterTCP, "iter_tcp", "iter/tcp", "5.9", true, "sockets that exist at attach (inventory)"},
}

// ioPrograms are attached when io events are asked for.
var ioPrograms = []program{
	{bpf.ProgSockSendLength, "sock_send_length", "tp_btf/sock_send_length", "6.3", false, "what applications write (io events)"},
	{bpf.ProgSockRecvLength, "sock_recv_length", "tp_btf/sock_recv_length", "6.3", false, "what applications read (io events)"},
}

// rows are the programs that the kernel has a use for and the options ask for.
func (o *Observer) rows() []program {
	rows := slices.Clone(programs)
	if o.kernel.neighbours {
		rows = append(rows, neighbourPrograms...)
	}
	if o.opts.IO {
		rows = append(rows, ioPrograms...)
	}
	return rows
}

// ProgramName is the kernel-side name of a program.
func ProgramName(id bpf.ProgramID) string {
	if id == bpf.ProgWire {
		return "wire"
	}
	for _, p := range slices.Concat(programs, neighbourPrograms, ioPrograms) {
		if p.id == id {
			return p.name
		}
	}
	return fmt.Sprintf("program-%d", id)
}

// kernel is what the running kernel's BTF says about the hooks.
type kernel struct {
	retransmitHasErr   bool
	sendResetHasReason bool
	sendResetNoSocket  bool // fires for segments without a socket
	socketCookie       bool
	skStorage          bool
	taskBTF            bool
	rdonlyCast         bool
	taskFromPid        bool
	neighbours         bool // their addresses can be read
	netnsCookie        bool
	sparesInit         bool // runs no tracing programs while process 1 is on the processor
	resetReasons       map[int32]string
	dropHasReason      bool // kfree_skb says why
	dropHasSocket      bool // and for which socket it was received
	dropReasons        map[uint32]string
}

// ErrNoBTF is returned where the kernel was built without BTF.
var ErrNoBTF = errors.New("this kernel has no BTF (/sys/kernel/btf/vmlinux): it needs CONFIG_DEBUG_INFO_BTF=y")

func probeKernel(cache *btf.Cache) (kernel, error) {
	spec, err := cache.Kernel()
	if err != nil {
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, btf.ErrNotFound) || errors.Is(err, ebpf.ErrNotSupported) {
			return kernel{}, ErrNoBTF
		}
		return kernel{}, fmt.Errorf("read the kernel's BTF: %w", err)
	}
	k := kernelFrom(spec)
	k.neighbours = readsNeighbours(cache)
	return k, nil
}

func kernelFrom(spec *btf.Spec) kernel {
	hasFunc := func(name string) bool {
		var fn *btf.Func
		return spec.TypeByName(name, &fn) == nil
	}
	args := func(tracepoint string) int {
		var td *btf.Typedef
		if spec.TypeByName("btf_trace_"+tracepoint, &td) != nil {
			return -1
		}
		ptr, ok := btf.UnderlyingType(td).(*btf.Pointer)
		if !ok {
			return -1
		}
		proto, ok := ptr.Target.(*btf.FuncProto)
		if !ok {
			return -1
		}
		return len(proto.Params) - 1 // the first is the tracepoint's own data
	}
	return kernel{
		retransmitHasErr:   args("tcp_retransmit_skb") >= 3,
		sendResetHasReason: args("tcp_send_reset") >= 3,
		sendResetNoSocket:  args("tcp_send_reset") >= 3,
		socketCookie:       hasFunc("bpf_get_socket_ptr_cookie"),
		skStorage:          hasFunc("bpf_sk_storage_get_tracing"),
		taskBTF:            hasFunc("bpf_get_current_task_btf"),
		rdonlyCast:         hasFunc("bpf_rdonly_cast"),
		taskFromPid:        hasFunc("bpf_task_from_pid"),
		netnsCookie:        hasMember(spec, "net", "net_cookie"),
		sparesInit:         hasMember(spec, "bpf_prog_aux", "init_owned"),
		resetReasons:       resetReasons(spec),
		dropHasReason:      args("kfree_skb") >= 3,
		dropHasSocket:      args("kfree_skb") >= 4,
		dropReasons:        dropReasons(spec),
	}
}

// resetReasons reads enum sk_rst_reason: its numbers differ between kernels.
func resetReasons(spec *btf.Spec) map[int32]string {
	var enum *btf.Enum
	if spec.TypeByName("sk_rst_reason", &enum) != nil {
		return nil
	}
	names := make(map[int32]string, len(enum.Values))
	for _, v := range enum.Values {
		names[int32(v.Value)] = strings.TrimPrefix(v.Name, "SK_RST_REASON_")
	}
	return names
}

func hasMember(spec *btf.Spec, structName, member string) bool {
	var s *btf.Struct
	if spec.TypeByName(structName, &s) != nil {
		return false
	}
	for _, m := range s.Members {
		if m.Name == member {
			return true
		}
	}
	return false
}

// blindSpots names what this kernel cannot show, given how things are attached.
func (k kernel) blindSpots(wire string) []string {
	var spots []string
	if !k.sendResetHasReason {
		spots = append(spots, "resets sent carry no reason (kernel before 6.10)")
	}
	if !k.sendResetNoSocket {
		spots = append(spots, "resets sent without a socket are seen on the wire only, without the segment they answer (kernel before 6.10)")
	}
	if !k.retransmitHasErr {
		spots = append(spots, "retransmissions that failed locally are not seen (kernel before 6.17)")
	}
	if !k.neighbours {
		spots = append(spots, "neighbours: no program may read their addresses (kernel before 6.1)")
	}
	if !k.rdonlyCast {
		spots = append(spots, "which segment was dropped, and drops before its socket is known (kernel before 6.2)")
	}
	if !k.dropHasReason {
		spots = append(spots, "dropped segments carry no reason (kernel before 5.17)")
	}
	if !k.dropHasSocket {
		spots = append(spots, "segments that TCP itself drops (kernel before 6.11)")
	}
	if !k.socketCookie {
		spots = append(spots, "cookies of sockets that nobody asked for one: those above 2^52 are made up by the session, no other tool knows them (kernel before 5.12)")
	}
	if k.sparesInit {
		spots = append(spots, "what timers and packets bring about while process 1 is on the processor (this kernel is built to run no tracing programs then)")
	}
	if wire == MethodPacket {
		spots = append(spots, "probes and resets at the edge are seen by a packet socket, after the firewall, and matched to sockets by address (no BPF netfilter link: kernel before 6.4)")
	}
	return spots
}

// Feature is one row of what can be attached here.
type Feature struct {
	Name     string // program
	Hook     string // where it runs
	Method   string // MethodTracepoint, MethodNetfilter, MethodPacket, or MethodNone
	Since    string // kernel the hook needs
	Required bool
	Lost     string // what is not seen without it
	Err      error  // why it is not attached; nil if it is
}

// The ways a program is attached.
const (
	MethodTracepoint = "tp_btf"
	MethodIterator   = "iter"
	MethodNetfilter  = "netfilter"
	MethodPacket     = "packet"
	MethodNone       = "none"
)

// ErrRefused is in every error that says why this kernel, or these
// privileges, do not let a program run.
var ErrRefused = errors.New("refused")

// refusal is one line about a program, with the kernel's error behind it.
type refusal struct {
	line  string
	cause error
}

func (r *refusal) Error() string   { return r.line }
func (r *refusal) Unwrap() []error { return []error{ErrRefused, r.cause} }

// explain turns the kernel's refusal of a program into one line that says
// what to do about it.
func explain(p program, err error) error {
	if err == nil {
		return nil
	}
	return &refusal{line: explanation(p, err).Error(), cause: err}
}

func explanation(p program, err error) error {
	switch {
	case errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES):
		if missing := missingCapabilities(); missing != "" {
			return fmt.Errorf("%s: not permitted: %s missing", p.name, missing)
		}
		return fmt.Errorf("%s: the kernel refuses it (%w): lockdown or a security module", p.name, err)
	case errors.Is(err, btf.ErrNotFound) || errors.Is(err, ebpf.ErrNotSupported):
		return fmt.Errorf("%s: this kernel has no %s, it needs %s or newer", p.name, p.hook, p.since)
	}
	var verr *ebpf.VerifierError
	if errors.As(err, &verr) && len(verr.Log) > 0 {
		return fmt.Errorf("%s: the verifier refuses it: %s", p.name, lastLine(verr.Log))
	}
	return fmt.Errorf("%s: %w", p.name, err)
}

func lastLine(log []string) string {
	for i := len(log) - 1; i >= 0; i-- {
		line := strings.TrimSpace(log[i])
		if line != "" && !strings.HasPrefix(line, "processed ") {
			return line
		}
	}
	return "no reason given"
}

// missingCapabilities names the capabilities that observing needs and the
// process lacks. CAP_SYS_ADMIN stands in for CAP_BPF and CAP_PERFMON.
func missingCapabilities() string {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if unix.Capget(&hdr, &data[0]) != nil {
		return ""
	}
	has := func(c int) bool { return data[c/32].Effective&(1<<(c%32)) != 0 }
	var missing []string
	for _, c := range []struct {
		bit  int
		name string
	}{
		{unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN"},
		{unix.CAP_BPF, "CAP_BPF"},
		{unix.CAP_PERFMON, "CAP_PERFMON"},
		{unix.CAP_NET_ADMIN, "CAP_NET_ADMIN"},
	} {
		if !has(c.bit) && !(c.bit != unix.CAP_NET_ADMIN && has(unix.CAP_SYS_ADMIN)) {
			missing = append(missing, c.name)
		}
	}
	return strings.Join(missing, ", ")
}
