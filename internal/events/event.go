// Package events turns the kernel's records into events: what happened to a
// TCP socket, when, and why.
//
// A [bpf.Record] is what a BPF program copied; an [Event] is one line of
// evidence. Between them stands the [Tracker], which knows what a single
// record cannot say: a socket's ports after the kernel cleared them, its
// owner, its run of retransmissions. Everything here is a pure function of
// its input; nothing does I/O, so a saved file can be judged again.
package events

import "net/netip"

// Type names what an event says. The names are stable: they are the values
// of "type" in the evidence file.
type Type string

// The event types.
const (
	TypeSession    Type = "session"
	TypeSummary    Type = "summary"
	TypeTarget     Type = "target"
	TypeInventory  Type = "inventory"
	TypeRetransmit Type = "retransmit"
	TypeProbe      Type = "probe"
	TypeState      Type = "state"
	TypeReset      Type = "reset"
	TypeAbort      Type = "abort"
	TypeRecovered  Type = "recovered"
	TypeArrival    Type = "arrival"
	TypeError      Type = "error"
	TypeMark       Type = "mark"
	TypeClock      Type = "clock"
	TypeLost       Type = "lost"
)

// SchemaVersion is the version of the evidence format. The first number
// changes when a reader of the old format would misread the new one.
const SchemaVersion = "1.0"

// Event is one line of evidence. The common part is always there; of the
// rest, the part named like Type is set, and Netns, Sock, Owner and TCP where
// the event concerns a namespace or a socket.
//
// The Tracker reuses the Events it hands out: copy what must outlive the
// call.
type Event struct {
	Seq    uint64   `json:"seq" jsonschema_description:"Number of the line in its file, from 1, without a gap."`
	Type   Type     `json:"type"`
	MonoNS uint64   `json:"mono_ns" jsonschema_description:"Kernel CLOCK_MONOTONIC at the hook, nanoseconds (bpf_ktime_get_ns)."`
	Time   WallTime `json:"time" jsonschema:"type=string,format=date-time" jsonschema_description:"mono_ns as wall time: RFC 3339, nanoseconds, UTC, by the nearest clock pair."`

	Netns *Netns `json:"netns,omitempty"`
	Sock  *Sock  `json:"sock,omitempty"`
	Owner *Owner `json:"owner,omitempty"`
	CPU   *int   `json:"cpu,omitempty" jsonschema_description:"Processor the hook ran on."`

	Session    *Session    `json:"session,omitempty"`
	Summary    *Summary    `json:"summary,omitempty"`
	Target     *Target     `json:"target,omitempty"`
	Inventory  *Inventory  `json:"inventory,omitempty"`
	Retransmit *Retransmit `json:"retransmit,omitempty"`
	Probe      *Probe      `json:"probe,omitempty"`
	State      *State      `json:"state,omitempty"`
	Reset      *Reset      `json:"reset,omitempty"`
	Abort      *Abort      `json:"abort,omitempty"`
	Recovered  *Recovered  `json:"recovered,omitempty"`
	Arrival    *Arrival    `json:"arrival,omitempty"`
	Error      *Error      `json:"error,omitempty"`
	Mark       *Mark       `json:"mark,omitempty"`
	Clock      *Clock      `json:"clock,omitempty"`
	Lost       *Lost       `json:"lost,omitempty"`

	TCP *TCP `json:"tcp,omitempty"`
}

// WallTime is wall time in nanoseconds since the Unix epoch. It is written as
// RFC 3339 with nine digits, UTC.
type WallTime int64

// Netns is the network namespace an event happened in.
type Netns struct {
	Name       string `json:"name" jsonschema_description:"The target's name, as given on the command line."`
	Generation int    `json:"generation" jsonschema_description:"1 for the first namespace seen under this name, one more each time it was re-created."`
	Inode      uint32 `json:"inode" jsonschema_description:"Inode of the namespace (net->ns.inum); the kernel reuses it after the namespace is gone."`
	Cookie     uint64 `json:"cookie" jsonschema_description:"net->net_cookie, never reused until reboot; 0 where the kernel has none."`
}

// Sock identifies a socket. Cookie is unique until reboot.
type Sock struct {
	Cookie uint64         `json:"cookie" jsonschema_description:"Socket cookie (sk->sk_cookie), unique until reboot; 0 when no socket exists."`
	Family string         `json:"family" jsonschema:"enum=inet,enum=inet6" jsonschema_description:"The socket's own family: an IPv6 socket that talks IPv4 has family inet6 and IPv4 addresses."`
	Local  netip.AddrPort `json:"local" jsonschema:"type=string" jsonschema_description:"Local address and port (host order), IPv4-mapped addresses printed as IPv4; kept after the kernel cleared it."`
	Remote netip.AddrPort `json:"remote" jsonschema:"type=string" jsonschema_description:"Remote address and port; all zero for a listener."`
	MPTCP  bool           `json:"mptcp,omitempty" jsonschema_description:"True for a subflow of a Multipath TCP connection."`
}

// Owner is the process that uses the socket, never merely the task that
// happened to be on the processor.
type Owner struct {
	PID  uint32 `json:"pid" jsonschema_description:"Process (thread group) in the initial pid namespace."`
	Comm string `json:"comm" jsonschema_description:"Command name of the process when it was last seen using the socket (at most 15 bytes)."`
	Via  string `json:"via" jsonschema:"enum=connect,enum=listen,enum=recv,enum=close,enum=call,enum=listener,enum=proc" jsonschema_description:"How it is known: the system call it made on the socket (connect, listen, recv, close; call for another), the listener it was accepted from (listener), or /proc at attach (proc)."`
}

// TCP is the socket's TCP state when the hook ran. Names are the kernel's
// (struct tcp_sock, struct inet_connection_sock) unless a unit is added.
type TCP struct {
	State         string `json:"state" jsonschema_description:"sk->sk_state at the hook."`
	SndUna        uint32 `json:"snd_una" jsonschema_description:"First byte not acknowledged by the peer (sequence number)."`
	SndNxt        uint32 `json:"snd_nxt" jsonschema_description:"Next sequence number to send."`
	WriteSeq      uint32 `json:"write_seq" jsonschema_description:"Tail of the data the application wrote (sequence number)."`
	RcvNxt        uint32 `json:"rcv_nxt" jsonschema_description:"Next sequence number expected."`
	CopiedSeq     uint32 `json:"copied_seq" jsonschema_description:"Head of the data the application has not read (sequence number)."`
	UnackedBytes  uint32 `json:"unacked_bytes" jsonschema_description:"snd_nxt - snd_una: sent, not acknowledged; SYN and FIN count one."`
	UnsentBytes   uint32 `json:"unsent_bytes" jsonschema_description:"write_seq - snd_nxt: written, not sent."`
	UnreadBytes   uint32 `json:"unread_bytes" jsonschema_description:"rcv_nxt - copied_seq: received, not read; a FIN counts one."`
	BytesAcked    uint64 `json:"bytes_acked" jsonschema_description:"Bytes acknowledged by the peer over the connection's life."`
	BytesReceived uint64 `json:"bytes_received" jsonschema_description:"In-order bytes received over the connection's life."`
	RTOUs         uint32 `json:"rto_us" jsonschema_description:"icsk_rto: current retransmission timeout, microseconds, backoff included."`
	SrttUs        uint32 `json:"srtt_us" jsonschema_description:"Smoothed round-trip time, microseconds (the kernel's srtt_us >> 3)."`
	RttvarUs      uint32 `json:"rttvar_us" jsonschema_description:"Round-trip time variation, microseconds (the kernel's rttvar_us >> 2)."`
	Retransmits   uint8  `json:"retransmits" jsonschema_description:"icsk_retransmits: timeouts since the last acknowledgement that moved snd_una."`
	Backoff       uint8  `json:"backoff" jsonschema_description:"icsk_backoff: doublings in rto_us."`
	ProbesOut     uint8  `json:"probes_out" jsonschema_description:"icsk_probes_out: keepalive or zero-window probes not answered."`
	CaState       string `json:"ca_state" jsonschema_description:"Congestion state: Open, Disorder, CWR, Recovery, Loss."`
	PendingTimer  string `json:"pending_timer" jsonschema_description:"icsk_pending: none, retrans, reo-timeout, loss-probe, zero-window-probe; while the retransmission timer's handler runs it is none."`
	TimeoutMsLeft int64  `json:"timeout_ms_left" jsonschema_description:"Milliseconds until pending_timer expires; negative: overdue; 0 when none pends."`
	SndCwnd       uint32 `json:"snd_cwnd" jsonschema_description:"Congestion window, segments."`
	Ssthresh      uint32 `json:"ssthresh" jsonschema_description:"Slow-start threshold, segments."`
	SndWnd        uint32 `json:"snd_wnd" jsonschema_description:"Window the peer advertised, bytes."`
	RcvWnd        uint32 `json:"rcv_wnd" jsonschema_description:"Window advertised to the peer, bytes."`
	PacketsOut    uint32 `json:"packets_out" jsonschema_description:"Segments in flight or lost."`
	RetransOut    uint32 `json:"retrans_out" jsonschema_description:"Retransmitted segments not acknowledged."`
	LostOut       uint32 `json:"lost_out" jsonschema_description:"Segments believed lost."`
	SackedOut     uint32 `json:"sacked_out" jsonschema_description:"Segments acknowledged selectively (or duplicate acknowledgements)."`
	SkErr         uint32 `json:"sk_err" jsonschema_description:"sk->sk_err: errno waiting for the application; 0 none."`
	UserTimeoutMs uint32 `json:"user_timeout_ms" jsonschema_description:"TCP_USER_TIMEOUT, milliseconds; 0: not set."`

	Keepalive Keepalive `json:"keepalive"`

	SinceLastAckUs int64 `json:"since_last_ack_us" jsonschema_description:"Microseconds since an acknowledgement was received (rcv_tstamp), in steps of one tick; -1: none yet."`
	SinceLastRcvUs int64 `json:"since_last_rcv_us" jsonschema_description:"Microseconds since data was received (icsk_ack.lrcvtime), in steps of one tick; -1: none yet."`
}

// Keepalive is the socket's keepalive setting, sysctl defaults filled in.
type Keepalive struct {
	On     bool   `json:"on" jsonschema_description:"SO_KEEPALIVE."`
	TimeMs uint64 `json:"time_ms" jsonschema_description:"Idle time before the first probe, milliseconds."`
	IntvMs uint64 `json:"intvl_ms" jsonschema_description:"Time between probes, milliseconds."`
	Probes uint32 `json:"probes" jsonschema_description:"Unanswered probes before the connection is aborted."`
}

// Segment is a TCP segment that took part in an event. Sequence numbers are
// absolute, as on the wire.
type Segment struct {
	SeqStart uint32 `json:"seq_start" jsonschema_description:"First sequence number."`
	SeqEnd   uint32 `json:"seq_end" jsonschema_description:"One past the last; SYN and FIN count one."`
	Ack      uint32 `json:"ack" jsonschema_description:"Acknowledgement number; 0 without the ACK flag."`
	Flags    string `json:"flags" jsonschema_description:"TCP flags, comma separated: FIN,SYN,RST,PSH,ACK,URG,ECE,CWR."`
}

// Retransmit is one call that sent segments again.
type Retransmit struct {
	Cause     string `json:"cause" jsonschema:"enum=syn,enum=synack,enum=rto,enum=tlp,enum=fast,enum=loss-recovery,enum=undecided"`
	Attempt   uint32 `json:"attempt" jsonschema_description:"Number of this retransmission in its run, from 1. A run ends when the peer acknowledges something new."`
	SeqStart  uint32 `json:"seq_start" jsonschema_description:"First sequence number sent again."`
	SeqEnd    uint32 `json:"seq_end" jsonschema_description:"One past the last."`
	Segments  uint32 `json:"segments" jsonschema_description:"Segments on the wire (a GSO buffer is several), as RetransSegs counts them."`
	SendError string `json:"send_error" jsonschema_description:"Name of the error if the send failed locally, else empty. Kernels before 6.17 cannot show it."`
	NextDueMs int64  `json:"next_due_ms" jsonschema_description:"Milliseconds from this event until the retransmission timer is due, if nothing is acknowledged; -1: not known. The kernel's timer wheel rounds up."`
	Why       string `json:"why" jsonschema_description:"The facts that decided the cause."`
}

// Probe is a keepalive or zero-window probe on the wire.
type Probe struct {
	Kind      string  `json:"kind" jsonschema:"enum=keepalive,enum=zero-window"`
	Direction string  `json:"direction" jsonschema:"enum=sent,enum=received"`
	Number    uint32  `json:"number" jsonschema_description:"Which probe of its run, from 1."`
	Segment   Segment `json:"segment"`
}

// State is a change of TCP state.
type State struct {
	Old string `json:"old"`
	New string `json:"new"`
}

// Reset is a RST segment sent or received.
type Reset struct {
	Direction string   `json:"direction" jsonschema:"enum=sent,enum=received"`
	Reason    string   `json:"reason" jsonschema_description:"The kernel's name for the reason (enum sk_rst_reason without its prefix) when it sent the reset; empty where it gives none."`
	Socket    bool     `json:"socket" jsonschema_description:"Whether a socket took part. False: it was sent for a segment that belongs to no socket, or received and accepted by none."`
	Segment   *Segment `json:"segment,omitempty" jsonschema_description:"The RST segment itself, where it was seen on the wire."`
	Trigger   *Segment `json:"trigger,omitempty" jsonschema_description:"The segment that was answered with the reset."`
	SeenBy    string   `json:"seen_by" jsonschema_description:"What showed it: tcp_send_reset, tcp_receive_reset or wire."`
}

// Abort is a connection that ended other than by FIN.
type Abort struct {
	By    string `json:"by" jsonschema:"enum=local,enum=peer,enum=undecided" jsonschema_description:"Which end ended it."`
	Cause string `json:"cause" jsonschema:"enum=reset-received,enum=retries-exhausted,enum=user-timeout,enum=keepalive,enum=refused,enum=unreachable,enum=close-with-unread-data,enum=linger-zero,enum=out-of-memory,enum=destroyed,enum=namespace-gone,enum=connect-cancelled,enum=undecided"`
	Why   string `json:"why" jsonschema_description:"The facts that decided the cause, or why it is undecided."`
	State string `json:"state" jsonschema_description:"The state the connection was in when it ended."`
}

// Recovered is the first acknowledgement after a run of retransmissions.
type Recovered struct {
	StalledUs   uint64 `json:"stalled_us" jsonschema_description:"Microseconds from the first retransmission of the run to this acknowledgement."`
	Retransmits uint32 `json:"retransmits" jsonschema_description:"Retransmissions in the run."`
	Answered    uint32 `json:"answered" jsonschema_description:"Which of them was answered: the last one sent at least the minimum round trip before this acknowledgement; 0: not known."`
	SinceLastUs uint64 `json:"since_last_us" jsonschema_description:"Microseconds from the last retransmission to this acknowledgement."`
	Exact       bool   `json:"exact" jsonschema_description:"False: the acknowledgement itself was not seen, it came at some time before this event; times are upper bounds."`
	Ack         uint32 `json:"ack" jsonschema_description:"Acknowledgement number."`
	AckedBytes  uint32 `json:"acked_bytes" jsonschema_description:"ack - snd_una."`
}

// Arrival is data received after a silence.
type Arrival struct {
	SilenceMs uint64  `json:"silence_ms" jsonschema_description:"Milliseconds without data before it, in steps of one tick."`
	Bytes     uint32  `json:"bytes" jsonschema_description:"Payload of the segment that ended it."`
	Segment   Segment `json:"segment"`
}

// Error is an error the socket reports to the application.
type Error struct {
	Errno uint32 `json:"errno"`
	Name  string `json:"name" jsonschema_description:"ECONNRESET, ETIMEDOUT, ..."`
}

// Inventory is a socket that existed when its namespace was attached: it was
// born before the trace, so what happened to it earlier is not known.
type Inventory struct {
	Inode uint64 `json:"inode" jsonschema_description:"Socket inode as in /proc/PID/fd; 0 when no file holds it."`
}

// Mark is placed in the evidence from outside.
type Mark struct {
	Text string `json:"text"`
	Kind string `json:"kind" jsonschema:"enum=note,enum=intended,enum=applied,enum=verified,enum=heal-intended,enum=healed,enum=recovered" jsonschema_description:"What it marks; note is free text."`
	By   string `json:"by" jsonschema_description:"Who placed it: command and pid."`
}

// Target is a change in what is watched.
type Target struct {
	Change    string            `json:"change" jsonschema:"enum=attached,enum=gone,enum=waiting,enum=paused,enum=unpaused,enum=connected,enum=disconnected"`
	Detail    string            `json:"detail" jsonschema_description:"What showed it, or the network that was (dis)connected."`
	Container string            `json:"container,omitempty" jsonschema_description:"Container id, for a container."`
	BlindNS   uint64            `json:"blind_ns,omitempty" jsonschema_description:"attached, from the second generation on: nanoseconds between the old namespace's end and this attach, in which nothing was seen."`
	Sysctls   map[string]string `json:"sysctls,omitempty" jsonschema_description:"attached: net.ipv4.tcp_* settings of the namespace that decide timers and aborts."`
	Sockets   uint64            `json:"sockets,omitempty" jsonschema_description:"gone: sockets that were still known."`
}

// Clock pairs the clocks at one instant.
type Clock struct {
	RealNS  uint64 `json:"real_ns" jsonschema_description:"CLOCK_REALTIME."`
	BootNS  uint64 `json:"boot_ns" jsonschema_description:"CLOCK_BOOTTIME."`
	ErrorNS uint64 `json:"error_ns" jsonschema_description:"Bound: the clocks were read within this long of mono_ns."`
	StepNS  int64  `json:"step_ns" jsonschema_description:"Wall time against the pair before: what it gained on CLOCK_MONOTONIC; a step when large."`
}

// Lost says that records were lost, and where.
type Lost struct {
	Count  uint64            `json:"count" jsonschema_description:"Records lost since the previous line of this type."`
	Total  uint64            `json:"total" jsonschema_description:"Records lost since the session began."`
	By     map[string]uint64 `json:"by" jsonschema_description:"count, per program."`
	PerCPU map[string]uint64 `json:"per_cpu" jsonschema_description:"count, per processor."`
}
