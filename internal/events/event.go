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
	TypeDrop       Type = "drop"
	TypeICMP       Type = "icmp"
	TypeNeighbour  Type = "neighbour"
	TypeIO         Type = "io"
	TypeSegment    Type = "segment"
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
	Seq    uint64   `json:"seq" jsonschema:"minimum=1" jsonschema_description:"Number of the line in its session, from 1, without a gap."`
	Type   Type     `json:"type" jsonschema_description:"What the line says; the part of this name carries it."`
	MonoNS uint64   `json:"mono_ns" jsonschema_description:"Kernel CLOCK_MONOTONIC at the hook (bpf_ktime_get_ns), nanoseconds; of a line no hook wrote, when sockwatch wrote it."`
	Time   WallTime `json:"time" jsonschema_description:"mono_ns as wall time: RFC 3339 with nine digits, UTC, by the nearest clock pair."`

	Netns *Netns `json:"netns,omitempty" jsonschema_description:"The network namespace it happened in."`
	Sock  *Sock  `json:"sock,omitempty" jsonschema_description:"The socket, or the addresses of the segment where no socket exists."`
	Owner *Owner `json:"owner,omitempty" jsonschema_description:"The process that uses the socket; absent where it is not known."`
	CPU   *int   `json:"cpu,omitempty" jsonschema_description:"Processor the hook ran on (bpf_get_smp_processor_id)."`

	Session    *Session     `json:"session,omitempty"`
	Summary    *Summary     `json:"summary,omitempty"`
	Target     *Target      `json:"target,omitempty"`
	Inventory  *Inventory   `json:"inventory,omitempty"`
	Retransmit *Retransmit  `json:"retransmit,omitempty"`
	Probe      *Probe       `json:"probe,omitempty"`
	State      *State       `json:"state,omitempty"`
	Reset      *Reset       `json:"reset,omitempty"`
	Abort      *Abort       `json:"abort,omitempty"`
	Recovered  *Recovered   `json:"recovered,omitempty"`
	Arrival    *Arrival     `json:"arrival,omitempty"`
	Error      *Error       `json:"error,omitempty"`
	Drop       *Drop        `json:"drop,omitempty"`
	ICMP       *ICMP        `json:"icmp,omitempty"`
	Neighbour  *Neighbour   `json:"neighbour,omitempty"`
	IO         *IO          `json:"io,omitempty"`
	Segment    *SegmentSeen `json:"segment,omitempty"`
	Mark       *Mark        `json:"mark,omitempty"`
	Clock      *Clock       `json:"clock,omitempty"`
	Lost       *Lost        `json:"lost,omitempty"`

	TCP *TCP `json:"tcp,omitempty" jsonschema_description:"The socket's TCP state at the hook; absent where no full socket took part (a request not yet accepted, a TIME_WAIT socket, none)."`
}

// WallTime is wall time in nanoseconds since the Unix epoch. It is written as
// RFC 3339 with nine digits, UTC.
type WallTime int64

// Netns is the network namespace an event happened in.
type Netns struct {
	Name       string `json:"name" jsonschema_description:"The target's name, as given on the command line."`
	Generation int    `json:"generation" jsonschema:"minimum=0" jsonschema_description:"1 for the first namespace seen under this name, one more each time it was re-created; 0: none was attached yet."`
	Inode      uint32 `json:"inode" jsonschema_description:"Inode of the namespace (net->ns.inum); the kernel reuses it after the namespace is gone."`
	Cookie     uint64 `json:"cookie" jsonschema_description:"net->net_cookie, never reused until reboot; 0 where the kernel has none."`
}

// Sock identifies a socket. Cookie is unique until reboot.
type Sock struct {
	Cookie uint64         `json:"cookie" jsonschema_description:"Socket cookie (sk->sk_cookie), unique until reboot; 0 when no socket exists."`
	Family string         `json:"family" jsonschema:"enum=inet,enum=inet6" jsonschema_description:"The socket's own family (sk->sk_family): an IPv6 socket that talks IPv4 has family inet6 and IPv4 addresses."`
	Local  netip.AddrPort `json:"local" jsonschema_description:"Local address and port (skc_rcv_saddr, skc_num), IPv4-mapped addresses printed as IPv4; kept after the kernel cleared them."`
	Remote netip.AddrPort `json:"remote" jsonschema_description:"Remote address and port (skc_daddr, skc_dport); all zero for a listener."`
	MPTCP  bool           `json:"mptcp,omitempty" jsonschema_description:"True for a subflow of a Multipath TCP connection (tp->is_mptcp); absent otherwise."`
}

// Owner is the process that uses the socket, never merely the task that
// happened to be on the processor.
type Owner struct {
	PID  uint32 `json:"pid" jsonschema_description:"Process (task->tgid) in the initial pid namespace."`
	Comm string `json:"comm" jsonschema_description:"Command name of the process (task->comm, at most 15 bytes) when it was last seen using the socket."`
	Via  string `json:"via" jsonschema:"enum=connect,enum=listen,enum=recv,enum=send,enum=close,enum=call,enum=listener,enum=proc" jsonschema_description:"How it is known: the system call it made on the socket (connect, listen, recv, send, close; call for another), the listener it was accepted from (listener), or /proc at attach (proc)."`
}

// TCP is the socket's TCP state when the hook ran. Names are the kernel's
// (struct tcp_sock, struct inet_connection_sock) unless a unit is added.
type TCP struct {
	State         string `json:"state" jsonschema:"enum=ESTABLISHED,enum=SYN_SENT,enum=SYN_RECV,enum=FIN_WAIT1,enum=FIN_WAIT2,enum=TIME_WAIT,enum=CLOSE,enum=CLOSE_WAIT,enum=LAST_ACK,enum=LISTEN,enum=CLOSING,enum=NEW_SYN_RECV" jsonschema_description:"sk->sk_state at the hook (include/net/tcp_states.h without TCP_); in a state or abort event the state being left."`
	SndUna        uint32 `json:"snd_una" jsonschema_description:"tp->snd_una: first byte not acknowledged by the peer, sequence number."`
	SndNxt        uint32 `json:"snd_nxt" jsonschema_description:"tp->snd_nxt: next to send, sequence number."`
	WriteSeq      uint32 `json:"write_seq" jsonschema_description:"tp->write_seq: end of what the application wrote, sequence number."`
	RcvNxt        uint32 `json:"rcv_nxt" jsonschema_description:"tp->rcv_nxt: next expected, sequence number."`
	CopiedSeq     uint32 `json:"copied_seq" jsonschema_description:"tp->copied_seq: start of what the application has not read, sequence number."`
	UnackedBytes  uint32 `json:"unacked_bytes" jsonschema_description:"snd_nxt - snd_una, bytes: sent, not acknowledged; SYN and FIN count one."`
	UnsentBytes   uint32 `json:"unsent_bytes" jsonschema_description:"write_seq - snd_nxt, bytes: written, not sent."`
	UnreadBytes   uint32 `json:"unread_bytes" jsonschema_description:"rcv_nxt - copied_seq, bytes: received in order, not read; a FIN counts one."`
	BytesAcked    uint64 `json:"bytes_acked" jsonschema_description:"tp->bytes_acked: bytes the peer acknowledged over the connection's life."`
	BytesReceived uint64 `json:"bytes_received" jsonschema_description:"tp->bytes_received: bytes received in order over the connection's life."`
	RTOUs         uint32 `json:"rto_us" jsonschema_description:"icsk->icsk_rto: current retransmission timeout, microseconds in steps of one tick, backoff included."`
	SrttUs        uint32 `json:"srtt_us" jsonschema_description:"tp->srtt_us >> 3: smoothed round-trip time, microseconds; 0: not measured."`
	RttvarUs      uint32 `json:"rttvar_us" jsonschema_description:"tp->rttvar_us >> 2: variation of the round-trip time, microseconds."`
	Retransmits   uint8  `json:"retransmits" jsonschema_description:"icsk->icsk_retransmits: timeouts since the last acknowledgement that moved snd_una."`
	Backoff       uint8  `json:"backoff" jsonschema_description:"icsk->icsk_backoff: doublings in rto_us."`
	ProbesOut     uint8  `json:"probes_out" jsonschema_description:"icsk->icsk_probes_out: keepalive or zero-window probes not answered."`
	CaState       string `json:"ca_state" jsonschema:"enum=Open,enum=Disorder,enum=CWR,enum=Recovery,enum=Loss" jsonschema_description:"icsk->icsk_ca_state: congestion state (enum tcp_ca_state without TCP_CA_)."`
	PendingTimer  string `json:"pending_timer" jsonschema:"enum=none,enum=retrans,enum=reo-timeout,enum=loss-probe,enum=zero-window-probe" jsonschema_description:"icsk->icsk_pending: the timer that is armed; none while the retransmission timer's own handler runs."`
	TimeoutMsLeft int64  `json:"timeout_ms_left" jsonschema_description:"Milliseconds until pending_timer expires (its expires - jiffies); negative: overdue; 0 when none is armed."`
	SndCwnd       uint32 `json:"snd_cwnd" jsonschema_description:"tp->snd_cwnd: congestion window, segments."`
	Ssthresh      uint32 `json:"ssthresh" jsonschema_description:"tp->snd_ssthresh: slow-start threshold, segments; 2147483647: not set yet."`
	SndWnd        uint32 `json:"snd_wnd" jsonschema_description:"tp->snd_wnd: window the peer advertised, bytes."`
	RcvWnd        uint32 `json:"rcv_wnd" jsonschema_description:"tp->rcv_wnd: window advertised to the peer, bytes."`
	PacketsOut    uint32 `json:"packets_out" jsonschema_description:"tp->packets_out: segments sent and not acknowledged cumulatively."`
	RetransOut    uint32 `json:"retrans_out" jsonschema_description:"tp->retrans_out: retransmitted segments not acknowledged."`
	LostOut       uint32 `json:"lost_out" jsonschema_description:"tp->lost_out: segments believed lost."`
	SackedOut     uint32 `json:"sacked_out" jsonschema_description:"tp->sacked_out: segments acknowledged selectively, or duplicate acknowledgements without SACK."`
	SkErr         uint32 `json:"sk_err" jsonschema_description:"sk->sk_err: errno that waits for the application; 0: none."`
	UserTimeoutMs uint32 `json:"user_timeout_ms" jsonschema_description:"icsk->icsk_user_timeout: TCP_USER_TIMEOUT, milliseconds; 0: not set."`

	Keepalive Keepalive `json:"keepalive" jsonschema_description:"Keepalive setting, the namespace's sysctl defaults filled in."`

	SinceLastAckUs int64 `json:"since_last_ack_us" jsonschema_description:"jiffies - tp->rcv_tstamp: since an acknowledgement was received, microseconds in steps of one tick; -1: none yet."`
	SinceLastRcvUs int64 `json:"since_last_rcv_us" jsonschema_description:"jiffies - icsk->icsk_ack.lrcvtime: since data was received, microseconds in steps of one tick; -1: none yet."`
}

// Keepalive is the socket's keepalive setting, sysctl defaults filled in.
type Keepalive struct {
	On     bool   `json:"on" jsonschema_description:"SO_KEEPALIVE (SOCK_KEEPOPEN)."`
	TimeMs uint64 `json:"time_ms" jsonschema_description:"Idle time before the first probe (tp->keepalive_time, net.ipv4.tcp_keepalive_time), milliseconds."`
	IntvMs uint64 `json:"intvl_ms" jsonschema_description:"Time between probes (tp->keepalive_intvl, net.ipv4.tcp_keepalive_intvl), milliseconds."`
	Probes uint32 `json:"probes" jsonschema_description:"Unanswered probes before the connection is aborted (tp->keepalive_probes, net.ipv4.tcp_keepalive_probes)."`
}

// Segment is a TCP segment that took part in an event. Sequence numbers are
// absolute, as on the wire.
type Segment struct {
	SeqStart uint32 `json:"seq_start" jsonschema_description:"First sequence number."`
	SeqEnd   uint32 `json:"seq_end" jsonschema_description:"One past the last sequence number; SYN and FIN count one."`
	Ack      uint32 `json:"ack" jsonschema_description:"Acknowledgement number; 0 without the ACK flag."`
	Flags    string `json:"flags" jsonschema_description:"TCP flags, comma separated, in this order: FIN,SYN,RST,PSH,ACK,URG,ECE,CWR."`
}

// Retransmit is one call that sent segments again.
type Retransmit struct {
	Cause     string `json:"cause" jsonschema:"enum=syn,enum=synack,enum=rto,enum=tlp,enum=fast,enum=loss-recovery,enum=mtu,enum=undecided" jsonschema_description:"What made the kernel send again; undecided with the reason in why."`
	Attempt   uint32 `json:"attempt" jsonschema_description:"Number of this retransmission in its run, from 1. A run ends when the peer acknowledges something new."`
	SeqStart  uint32 `json:"seq_start" jsonschema_description:"First sequence number sent again (TCP_SKB_CB(skb)->seq)."`
	SeqEnd    uint32 `json:"seq_end" jsonschema_description:"One past the last (TCP_SKB_CB(skb)->end_seq); SYN and FIN count one."`
	Flags     string `json:"flags" jsonschema_description:"TCP flags of what was sent again, comma separated, as in a segment."`
	Segments  uint32 `json:"segments" jsonschema_description:"Segments on the wire (tcp_skb_pcount: a GSO buffer is several), as the counter RetransSegs counts them; 0: given up before anything was handed down."`
	SendError string `json:"send_error" jsonschema_description:"Name of the error if the send failed locally, else empty. Kernels before 6.17 do not show it."`
	NextDueMs int64  `json:"next_due_ms" jsonschema_description:"Milliseconds from this event until the retransmission timer is due if nothing is acknowledged; -1: not known. The kernel's timer wheel rounds up."`
	Why       string `json:"why" jsonschema_description:"The facts that decided the cause, or why it is undecided."`

	DuplicateSYN bool `json:"duplicate_syn,omitempty" jsonschema_description:"synack: true if the peer's SYN came again and was answered, absent if the request's timer sent it."`
	NoTimeout    bool `json:"no_timeout,omitempty" jsonschema_description:"In ca_state Loss: true if no timeout began it (tp->retrans_stamp and tp->undo_marker were 0 at the first retransmission), absent otherwise."`
}

// Probe is a keepalive or zero-window probe on the wire.
type Probe struct {
	Kind      string  `json:"kind" jsonschema:"enum=keepalive,enum=zero-window" jsonschema_description:"keepalive: the connection was idle; zero-window: the peer had closed its window."`
	Direction string  `json:"direction" jsonschema:"enum=sent,enum=received" jsonschema_description:"As the socket sees it."`
	Number    uint32  `json:"number" jsonschema_description:"Which probe of its run, from 1."`
	Segment   Segment `json:"segment" jsonschema_description:"The probe on the wire."`
}

// State is a change of TCP state.
type State struct {
	Old string `json:"old" jsonschema:"enum=ESTABLISHED,enum=SYN_SENT,enum=SYN_RECV,enum=FIN_WAIT1,enum=FIN_WAIT2,enum=TIME_WAIT,enum=CLOSE,enum=CLOSE_WAIT,enum=LAST_ACK,enum=LISTEN,enum=CLOSING,enum=NEW_SYN_RECV" jsonschema_description:"State it left (inet_sock_set_state)."`
	New string `json:"new" jsonschema:"enum=ESTABLISHED,enum=SYN_SENT,enum=SYN_RECV,enum=FIN_WAIT1,enum=FIN_WAIT2,enum=TIME_WAIT,enum=CLOSE,enum=CLOSE_WAIT,enum=LAST_ACK,enum=LISTEN,enum=CLOSING,enum=NEW_SYN_RECV" jsonschema_description:"State it entered."`
}

// Reset is a RST segment sent or received.
type Reset struct {
	Direction string   `json:"direction" jsonschema:"enum=sent,enum=received" jsonschema_description:"As the namespace sees it."`
	Reason    string   `json:"reason" jsonschema_description:"The kernel's name for the reason (enum sk_rst_reason without its prefix) when it sent the reset; empty where it gives none."`
	Socket    bool     `json:"socket" jsonschema_description:"Whether a socket took part. False: it was sent for a segment that belongs to no socket, or received and accepted by none."`
	Segment   *Segment `json:"segment,omitempty" jsonschema_description:"The RST segment itself, where it was seen on the wire."`
	Trigger   *Segment `json:"trigger,omitempty" jsonschema_description:"The segment that was answered with the reset."`
	SeenBy    string   `json:"seen_by" jsonschema:"enum=tcp_send_reset,enum=tcp_receive_reset,enum=wire" jsonschema_description:"Which hook showed it: a tracepoint, or the namespace's edge (wire)."`
}

// Abort is a connection that ended other than by FIN.
type Abort struct {
	By    string `json:"by" jsonschema:"enum=local,enum=peer,enum=undecided" jsonschema_description:"Which end ended it."`
	Cause string `json:"cause" jsonschema:"enum=reset-received,enum=retries-exhausted,enum=user-timeout,enum=keepalive,enum=refused,enum=unreachable,enum=close-with-unread-data,enum=linger-zero,enum=out-of-memory,enum=destroyed,enum=disconnected,enum=listener-closed,enum=connect-cancelled,enum=undecided" jsonschema_description:"What ended it; undecided with the reason in why."`
	Why   string `json:"why" jsonschema_description:"The facts that decided the cause, or why it is undecided."`
	State string `json:"state" jsonschema:"enum=ESTABLISHED,enum=SYN_SENT,enum=SYN_RECV,enum=FIN_WAIT1,enum=FIN_WAIT2,enum=TIME_WAIT,enum=CLOSE,enum=CLOSE_WAIT,enum=LAST_ACK,enum=LISTEN,enum=CLOSING,enum=NEW_SYN_RECV" jsonschema_description:"The state the connection was in when it ended."`

	Facts AbortFacts `json:"facts" jsonschema_description:"What decided the cause beside tcp."`
}

// AbortFacts are what decides the cause of an abort and is not in the socket's
// TCP state: a saved line can be judged again by them.
type AbortFacts struct {
	User          bool   `json:"user" jsonschema_description:"A process held the socket's lock (sk->sk_lock.owned): a system call of it ended the connection."`
	Dead          bool   `json:"dead" jsonschema_description:"No process had the socket open any more (SOCK_DEAD)."`
	Linger        bool   `json:"linger" jsonschema_description:"SO_LINGER was on (SOCK_LINGER)."`
	LingerMs      uint64 `json:"linger_ms" jsonschema_description:"Its time (sk->sk_lingertime), milliseconds; 0 too where linger is false."`
	ResetReceived bool   `json:"reset_received" jsonschema_description:"A RST was received and accepted before."`
	DataAfterEnd  bool   `json:"data_after_end" jsonschema_description:"Data arrived for the socket when no process had it open."`
	ResetSent     bool   `json:"reset_sent" jsonschema_description:"The socket sent a RST before it was decided."`
	ResetReason   string `json:"reset_reason" jsonschema_description:"The kernel's reason for that RST; empty without one, or where the kernel gives none."`
	ConnectNS     uint64 `json:"connect_ns" jsonschema_description:"mono_ns when it began to connect; 0: it did not, or before the trace."`

	Disconnected bool   `json:"disconnected,omitempty" jsonschema_description:"True if the process had not closed the socket (sk->sk_shutdown), so that it disconnected it; absent otherwise."`
	Multipath    bool   `json:"multipath,omitempty" jsonschema_description:"True if it was a subflow of Multipath TCP, whose queues and options are the connection's; absent otherwise."`
	Unaccepted   bool   `json:"unaccepted,omitempty" jsonschema_description:"True if the connection waited to be accepted: no file held the socket, and none had (SOCK_DEAD); absent otherwise."`
	ProbingMs    uint64 `json:"probing_ms,omitempty" jsonschema_description:"Milliseconds since the first zero-window probe that found the window closed (icsk->icsk_probes_tstamp); absent when there was none, or where the kernel does not keep it."`
}

// Recovered is the first acknowledgement after a run of retransmissions.
type Recovered struct {
	StalledUs   uint64 `json:"stalled_us" jsonschema_description:"Microseconds from the first retransmission of the run to this acknowledgement."`
	Retransmits uint32 `json:"retransmits" jsonschema_description:"Retransmissions in the run."`
	Answered    uint32 `json:"answered" jsonschema_description:"Which of them was answered: the one whose time stamp the acknowledgement echoes, without time stamps the last one sent at least the minimum round trip before; 0: none, see original, or not known."`
	SinceLastUs uint64 `json:"since_last_us" jsonschema_description:"Microseconds from the last retransmission to this acknowledgement."`
	Exact       bool   `json:"exact" jsonschema_description:"False: the acknowledgement itself was not seen, it came at some time before this event; times are upper bounds."`
	Ack         uint32 `json:"ack" jsonschema_description:"Acknowledgement number that moved snd_una."`
	AckedBytes  uint32 `json:"acked_bytes" jsonschema_description:"ack minus snd_una at the start of the run, bytes: what it acknowledged anew."`

	Original bool `json:"original,omitempty" jsonschema_description:"True if the acknowledgement echoes a time stamp from before the run: what had been sent first arrived, and the run was not needed. Absent otherwise."`
}

// Arrival is data received after a silence.
type Arrival struct {
	SilenceMs uint64  `json:"silence_ms" jsonschema_description:"Milliseconds without data before it, in steps of one tick."`
	Bytes     uint32  `json:"bytes" jsonschema_description:"Payload of the segment that ended it."`
	Segment   Segment `json:"segment" jsonschema_description:"The segment that ended the silence."`
}

// Error is an error the socket reports to the application.
type Error struct {
	Errno uint32 `json:"errno" jsonschema_description:"sk->sk_err when sk_error_report ran."`
	Name  string `json:"name" jsonschema_description:"Its name: ECONNRESET, ETIMEDOUT, ..."`
}

// Drop is a segment that the kernel dropped in the namespace.
type Drop struct {
	Reason    string   `json:"reason" jsonschema_description:"The kernel's name for the reason (enum skb_drop_reason without its prefix); empty where it gives none."`
	Direction string   `json:"direction" jsonschema:"enum=sent,enum=received" jsonschema_description:"received: it had come in by a device of the namespace; sent: it came from a socket in it."`
	Device    string   `json:"device" jsonschema_description:"Device that the segment was at (skb->dev->name); empty: none, it had no route yet or was in TCP already."`
	SkbLen    uint32   `json:"skb_len" jsonschema_description:"skb->len: bytes in the buffer, with the headers that stood in it then."`
	Segment   *Segment `json:"segment,omitempty" jsonschema_description:"The segment; absent where this kernel does not let its header be read."`
}

// ICMP is an error message that quotes a segment of the namespace.
type ICMP struct {
	Type     string `json:"type" jsonschema_description:"Its type, by the kernel's name without ICMP_ or ICMPV6_ (DEST_UNREACH, TIME_EXCEEDED, PKT_TOOBIG, ...); TYPE_n where it has none."`
	Code     string `json:"code" jsonschema_description:"Its code, by the kernel's name likewise (HOST_UNREACH, PKT_FILTERED, FRAG_NEEDED, ...); CODE_n where it has none."`
	From     string `json:"from" jsonschema_description:"Address it came from: the peer, a router, or this namespace itself."`
	MTU      uint32 `json:"mtu" jsonschema_description:"FRAG_NEEDED and PKT_TOOBIG: the largest packet that would pass, bytes; otherwise 0."`
	SeqStart uint32 `json:"seq_start" jsonschema_description:"First sequence number of the segment that it quotes."`
}

// Neighbour is a change of who is behind an address of the link.
type Neighbour struct {
	Change    string `json:"change" jsonschema:"enum=failed,enum=moved,enum=resolved" jsonschema_description:"failed: nobody answers for the address any more, or somebody deleted the entry; moved: it has another hardware address; resolved: it has one again, or the first."`
	Address   string `json:"address" jsonschema_description:"Address of the neighbour (neigh->primary_key)."`
	Device    string `json:"device" jsonschema_description:"Device it is behind (neigh->dev->name)."`
	Old       string `json:"old" jsonschema_description:"neigh->nud_state before (NUD_ without the prefix); empty: not known."`
	New       string `json:"new" jsonschema_description:"neigh->nud_state after."`
	OldLladdr string `json:"old_lladdr" jsonschema_description:"Hardware address before (neigh->ha); empty: none yet, or not one of six bytes."`
	NewLladdr string `json:"new_lladdr" jsonschema_description:"Hardware address after."`
	Sockets   uint64 `json:"sockets" jsonschema_description:"Sockets known in the namespace whose remote address this is. Those that reach their peer through it as a gateway are not counted."`
	PID       uint32 `json:"pid,omitempty" jsonschema_description:"Process that made the change by netlink; absent: the kernel did."`
	Comm      string `json:"comm,omitempty" jsonschema_description:"Its command name (task->comm)."`
}

// IO is data that an application wrote or read.
type IO struct {
	Op     string `json:"op" jsonschema:"enum=write,enum=read,enum=arrive" jsonschema_description:"write, read: what the system call did; arrive: data came for a process that was frozen."`
	Bytes  uint32 `json:"bytes" jsonschema_description:"Bytes it wrote or read; a read of 0: the peer's FIN. arrive: bytes in the segment, some of which may have come before."`
	Peek   bool   `json:"peek,omitempty" jsonschema_description:"read: true if the bytes stay to be read (MSG_PEEK); absent otherwise."`
	Frozen string `json:"frozen" jsonschema:"enum=yes,enum=no,enum=unknown" jsonschema_description:"Whether the process's cgroup was frozen, or being frozen, when the call ended (cgroup->freezer.e_freeze, the freezer of version 1); unknown: the kernel has no freezer. arrive: yes, its main thread was (task->frozen, TASK_FROZEN)."`
}

// SegmentSeen is a segment at the namespace's edge.
type SegmentSeen struct {
	Direction string `json:"direction" jsonschema:"enum=sent,enum=received" jsonschema_description:"As the namespace sees it."`
	SeqStart  uint32 `json:"seq_start" jsonschema_description:"First sequence number."`
	SeqEnd    uint32 `json:"seq_end" jsonschema_description:"One past the last sequence number; SYN and FIN count one."`
	Ack       uint32 `json:"ack" jsonschema_description:"Acknowledgement number; 0 without the ACK flag."`
	Flags     string `json:"flags" jsonschema_description:"TCP flags, comma separated, in this order: FIN,SYN,RST,PSH,ACK,URG,ECE,CWR."`
	Bytes     uint32 `json:"bytes" jsonschema_description:"Payload, bytes."`
	Window    uint32 `json:"window" jsonschema_description:"Window as it stands in the header, not scaled."`
}

// Inventory is a socket that existed when its namespace was attached: it was
// born before the trace, so what happened to it earlier is not known.
type Inventory struct {
	Inode uint64 `json:"inode" jsonschema_description:"Socket inode as in /proc/PID/fd; 0 when no file holds it."`
}

// Mark is placed in the evidence from outside.
type Mark struct {
	Text string `json:"text" jsonschema_description:"What the one who placed it wrote."`
	Kind string `json:"kind" jsonschema:"enum=note,enum=intended,enum=applied,enum=verified,enum=heal-intended,enum=healed,enum=recovered" jsonschema_description:"What it marks; note is free text."`
	By   string `json:"by" jsonschema_description:"Who placed it: command and pid."`
}

// Target is a change in what is watched.
type Target struct {
	Change    string            `json:"change" jsonschema:"enum=attached,enum=gone,enum=alias,enum=alias-gone,enum=renamed,enum=waiting,enum=paused,enum=unpaused,enum=connected,enum=disconnected" jsonschema_description:"What happened to the target. alias: a further target names the namespace, alias-gone: it does so no longer; lines go on under the name they had. renamed: the target of that name is gone, but an alias lives: the namespace is watched on, and lines from here on bear the alias's name."`
	Detail    string            `json:"detail" jsonschema_description:"What showed it, or the network that was (dis)connected."`
	Container string            `json:"container,omitempty" jsonschema_description:"Container id, for a container; absent otherwise."`
	Alias     string            `json:"alias,omitempty" jsonschema_description:"The target that this is about, if the lines of its namespace bear another's name; absent otherwise."`
	Formerly  *Netns            `json:"formerly,omitempty" jsonschema_description:"renamed: what lines of this namespace bore until here; absent otherwise."`
	BlindNS   uint64            `json:"blind_ns,omitempty" jsonschema_description:"attached and alias, from the second generation on: nanoseconds between the old namespace's end and this attach, in which nothing was seen; absent when 0."`
	Sysctls   map[string]string `json:"sysctls,omitempty" jsonschema_description:"attached: the namespace's net.ipv4.tcp_* settings that decide timers and aborts, without net.ipv4.; absent when empty."`
	Sockets   uint64            `json:"sockets,omitempty" jsonschema_description:"gone: sockets that were still known; absent when 0."`
}

// Clock pairs the clocks at one instant.
type Clock struct {
	RealNS  uint64 `json:"real_ns" jsonschema_description:"CLOCK_REALTIME, nanoseconds."`
	BootNS  uint64 `json:"boot_ns" jsonschema_description:"CLOCK_BOOTTIME, nanoseconds: it counts suspend, CLOCK_MONOTONIC does not."`
	ErrorNS uint64 `json:"error_ns" jsonschema_description:"Bound, nanoseconds: all clocks were read within this long of mono_ns."`
	StepNS  int64  `json:"step_ns" jsonschema_description:"What CLOCK_REALTIME gained on CLOCK_MONOTONIC since the pair before, nanoseconds; wall time is slewed by 500 parts in a million at most."`

	Stepped     bool   `json:"stepped,omitempty" jsonschema_description:"True if step_ns is more than slewing and a suspend make it: wall time was set since the pair before, compare mono_ns across it. Absent otherwise."`
	SuspendedNS uint64 `json:"suspended_ns,omitempty" jsonschema_description:"What CLOCK_BOOTTIME gained on CLOCK_MONOTONIC since the pair before, nanoseconds: the machine was suspended. Absent when it was not."`
	NTP         *NTP   `json:"ntp,omitempty" jsonschema_description:"How well the kernel believes wall time to be kept; absent where it may not be asked."`
}

// NTP is the kernel's state of CLOCK_REALTIME, as adjtimex(2) has it.
type NTP struct {
	State      string   `json:"state" jsonschema:"enum=ok,enum=ins,enum=del,enum=oop,enum=wait,enum=error" jsonschema_description:"What adjtimex returns, without TIME_: error if nothing synchronises the clock; ins, del, oop, wait around a leap second."`
	Status     []string `json:"status" jsonschema_description:"Flags of status, without STA_: UNSYNC, PLL, NANO, ..."`
	OffsetNS   int64    `json:"offset_ns" jsonschema_description:"Offset that is being slewed away, nanoseconds."`
	FreqPPB    int64    `json:"freq_ppb" jsonschema_description:"Correction of the clock's frequency, parts in 10^9."`
	TickUs     int64    `json:"tick_us" jsonschema_description:"Microseconds between ticks of USER_HZ: 10000 unless it is corrected."`
	MaxErrorUs int64    `json:"maxerror_us" jsonschema_description:"Bound of the error of wall time, microseconds; the kernel lets it grow until it is synchronised again."`
	EstErrorUs int64    `json:"esterror_us" jsonschema_description:"Estimated error of wall time, microseconds."`
}

// Lost says that records were lost, and where.
type Lost struct {
	Count  uint64            `json:"count" jsonschema_description:"Records lost since the previous line of this type."`
	Total  uint64            `json:"total" jsonschema_description:"Records lost since the session began."`
	By     map[string]uint64 `json:"by" jsonschema_description:"count, per program."`
	PerCPU map[string]uint64 `json:"per_cpu" jsonschema_description:"count, per processor (its number as a string)."`
}
