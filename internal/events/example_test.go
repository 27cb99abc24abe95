package events

import (
	"net/netip"
	"testing"
)

func exampleOf(t testing.TB, typ Type) *Event {
	t.Helper()
	for _, e := range examples() {
		if e.Type == typ {
			return e
		}
	}
	t.Fatalf("no example of type %s", typ)
	return nil
}

// examples returns one plausible event of each type, in the order of types: a
// connection between two nodes (198.18.0.3 and 198.18.0.4) whose link is cut.
// They are the golden lines and the examples of docs/events.md.
func examples() []*Event {
	const boot = 1_790_000_000_000_000_000 // wall time of mono_ns 0
	at := func(seq uint64, typ Type, mono uint64) *Event {
		return &Event{Seq: seq, Type: typ, MonoNS: mono, Time: WallTime(boot + mono)}
	}
	netns := Netns{Name: "controlplane", Generation: 1, Inode: 4026532301, Cookie: 8193}
	sock := Sock{Cookie: 20481, Family: "inet", Local: mustAddr("198.18.0.3:41532"), Remote: mustAddr("198.18.0.4:50000")}
	owner := Owner{PID: 4711, Comm: "apid", Via: "connect"}
	tcp := TCP{
		State: "ESTABLISHED", SndUna: 2_147_484_000, SndNxt: 2_147_487_072, WriteSeq: 2_147_487_072,
		RcvNxt: 913_551_207, CopiedSeq: 913_551_207, UnackedBytes: 3072, BytesAcked: 18_734, BytesReceived: 9_120,
		RTOUs: 204_000, SrttUs: 412, RttvarUs: 157, CaState: "Open", PendingTimer: "none",
		SndCwnd: 10, Ssthresh: 2_147_483_647, SndWnd: 64_256, RcvWnd: 64_256, PacketsOut: 3, UserTimeoutMs: 20_000,
		Keepalive:      Keepalive{On: true, TimeMs: 15_000, IntvMs: 15_000, Probes: 9},
		SinceLastAckUs: 1_624_000, SinceLastRcvUs: 4_016_000,
	}
	idle := func(e *Event) {
		e.TCP.SndUna, e.TCP.UnackedBytes, e.TCP.PacketsOut, e.TCP.BytesAcked = e.TCP.SndNxt, 0, 0, 21_806
	}
	of := func(seq uint64, typ Type, mono uint64, change func(*Event)) *Event {
		n, s, o, t, cpu := netns, sock, owner, tcp, 1
		e := at(seq, typ, mono)
		e.Netns, e.Sock, e.Owner, e.CPU, e.TCP = &n, &s, &o, &cpu, &t
		change(e)
		return e
	}

	session := at(1, TypeSession, 5_000_000_000)
	session.Session = &Session{
		Schema: SchemaVersion, Version: "v0.1.0", Commit: "0a1b2c3d4e5f", Command: []string{"sockwatch", "--netns", "controlplane", "-o", "out.jsonl"},
		PID: 4700, Kernel: "6.1.0-28-amd64", Machine: "x86_64", Hostname: "lab1", BootID: "5c1f7c53-9a57-4c5f-8f0e-7b1a9d3c2e60",
		BTF: "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", HZ: 250, Lockdown: "none",
		Programs: []Program{
			{Name: "tcp_retransmit_skb", Hook: "tp_btf/tcp_retransmit_skb", Method: "tp_btf"},
			{Name: "wire", Hook: "AF_PACKET", Method: "packet", Detail: "no BPF netfilter link: kernel before 6.4"},
		},
		BlindSpots: []string{"probes and resets at the edge are seen by a packet socket, after the firewall"},
		CannotShow: []string{"failed-retransmissions", "reset-reasons", "resets-without-socket", "before-firewall"}, Targets: []string{"controlplane"},
		ArrivalMs: 1000, RingBytes: 8 << 20,
	}

	summary := at(2048, TypeSummary, 65_250_000_000)
	summary.Summary = &Summary{
		Reason: "stopped", DurationNS: 60_250_000_000, Lines: 2048,
		Events: map[string]uint64{"session": 1, "target": 1, "retransmit": 2030, "state": 1, "abort": 1, "clock": 8, "lost": 5, "summary": 1},
		Kernel: Counts{Produced: 2043, Lost: 12, Read: 2031, ByProgram: map[string]uint64{"tcp_retransmit_skb": 2042, "inet_sock_set_state": 1}},
		Namespaces: []NamespaceCounts{
			{
				Netns: netns, Events: map[string]uint64{"target": 1, "retransmit": 2030, "state": 1, "abort": 1},
				Ledger: Ledger{
					Opened: Reading{StartNS: 5_099_800_000, EndNS: 5_099_950_000}, Closed: Reading{StartNS: 65_248_000_000, EndNS: 65_248_160_000},
					Lines: []LedgerLine{
						{Counter: "RetransSegs", Kernel: 2042, Events: 2030, Difference: 12, Result: "incomplete", Why: "12 are not in the events"},
						{Counter: "AttemptFails", Kernel: 2, Difference: 2, Explained: 2, Result: "balanced", Why: "2 connection requests ended by a RST or SYN of the peer, which is no event"},
						{Counter: "EstabResets", Kernel: 1, Events: 1, Result: "balanced"},
					},
					Beside: map[string]uint64{"EmbryonicRsts": 2},
				},
				Verdict: Verdict{State: "incomplete", By: 12, Reasons: []string{"RetransSegs: the kernel counted 2042, 2030 are in the events: 12 are not in the events"}},
			},
		},
		Verdict:    Verdict{State: "incomplete", By: 12, Reasons: []string{"12 of 2043 records were lost", "controlplane: RetransSegs: the kernel counted 2042, 2030 are in the events: 12 are not in the events"}},
		BlindSpots: []string{},
	}

	target := at(3, TypeTarget, 5_100_000_000)
	target.Netns = &Netns{Name: "controlplane", Generation: 2, Inode: 4026532417, Cookie: 8196}
	target.Target = &Target{
		Change: "attached", Detail: "container started", Container: "3f4e2d1c0b9a", BlindNS: 184_000_000,
		Sysctls: map[string]string{"tcp_retries2": "15", "tcp_syn_retries": "6"},
	}

	mark := at(10, TypeMark, 9_000_000_000)
	mark.Mark = &Mark{Text: "link of controlplane cut", Kind: "applied", By: "cut.sh, pid 4690"}

	neighbour := at(24, TypeNeighbour, 12_700_000_000)
	neighbour.Netns, neighbour.CPU = &Netns{Name: "controlplane", Generation: 1, Inode: 4026532301, Cookie: 8193}, new(int)
	neighbour.Neighbour = &Neighbour{
		Change: "failed", Address: "198.18.0.4", Device: "eth0", Old: "PROBE", New: "FAILED",
		OldLladdr: "02:42:c6:12:00:04", NewLladdr: "02:42:c6:12:00:04", Sockets: 1,
	}

	clock := at(11, TypeClock, 10_000_000_000)
	clock.Clock = &Clock{RealNS: boot + 10_000_000_000, BootNS: 10_000_000_000, ErrorNS: 90, StepNS: -1_250, NTP: &NTP{
		State: "ok", Status: []string{"PLL", "NANO"}, OffsetNS: -4_210, FreqPPB: -13_204, TickUs: 10_000, MaxErrorUs: 21_500, EstErrorUs: 118,
	}}

	lost := at(13, TypeLost, 11_000_000_000)
	lost.Lost = &Lost{
		Count: 12, Total: 12,
		By: map[string]uint64{"tcp_retransmit_skb": 12}, PerCPU: map[string]uint64{"0": 4, "1": 8},
	}

	return []*Event{
		session,
		summary,
		target,
		of(4, TypeInventory, 5_120_000_000, func(e *Event) {
			idle(e)
			e.Owner.Via = "proc"
			e.Inventory = &Inventory{Inode: 61234}
		}),
		of(12, TypeRetransmit, 10_624_000_000, func(e *Event) {
			e.Retransmit = &Retransmit{
				Cause: "rto", Attempt: 3, SeqStart: e.TCP.SndUna, SeqEnd: e.TCP.SndUna + 1024, Flags: "PSH,ACK", Segments: 1, NextDueMs: 1632,
				Why: "in the retransmission timer: icsk_pending is none, ca_state Loss",
			}
			e.TCP.Retransmits, e.TCP.Backoff, e.TCP.RTOUs, e.TCP.CaState = 2, 2, 816_000, "Loss"
			e.TCP.SndCwnd, e.TCP.Ssthresh, e.TCP.LostOut = 1, 7, 3
		}),
		of(14, TypeProbe, 24_016_000_000, func(e *Event) {
			idle(e)
			e.Probe = &Probe{Kind: "keepalive", Direction: "sent", Number: 1, Segment: Segment{
				SeqStart: e.TCP.SndUna - 1, SeqEnd: e.TCP.SndUna - 1, Ack: e.TCP.RcvNxt, Flags: "ACK",
			}}
			e.TCP.SinceLastAckUs, e.TCP.SinceLastRcvUs = 15_004_000, 15_004_000
		}),
		of(15, TypeState, 30_000_000_000, func(e *Event) {
			e.State = &State{Old: "ESTABLISHED", New: "CLOSE"}
			e.TCP.SkErr, e.TCP.PacketsOut, e.TCP.SinceLastAckUs, e.TCP.Retransmits = 110, 0, 20_100_000, 7
		}),
		of(19, TypeReset, 45_001_000_000, func(e *Event) {
			e.Sock.Cookie, e.Owner, e.TCP = 0, nil, nil
			e.Reset = &Reset{
				Direction: "sent", Reason: "NO_SOCKET", SeenBy: "tcp_send_reset",
				Segment: &Segment{SeqStart: 2_147_484_000, SeqEnd: 2_147_484_000, Flags: "RST"},
				Trigger: &Segment{SeqStart: 913_551_207, SeqEnd: 913_552_231, Ack: 2_147_484_000, Flags: "PSH,ACK"},
			}
		}),
		of(16, TypeAbort, 30_000_000_000, func(e *Event) {
			e.Abort = &Abort{
				By: "local", Cause: "user-timeout", State: "ESTABLISHED",
				Why:   "sk_err ETIMEDOUT in the retransmission timer, user_timeout_ms 20000, 7 retransmissions",
				Facts: AbortFacts{ConnectNS: 9_500_000_000},
			}
			e.TCP.SkErr, e.TCP.PacketsOut, e.TCP.SinceLastAckUs, e.TCP.Retransmits = 110, 0, 20_100_000, 7
		}),
		of(20, TypeRecovered, 46_800_000_000, func(e *Event) {
			e.Recovered = &Recovered{
				StalledUs: 6_800_000, Retransmits: 5, Answered: 5, SinceLastUs: 431, Exact: true,
				Ack: e.TCP.SndUna + 1024, AckedBytes: 1024,
			}
			e.TCP.Retransmits, e.TCP.Backoff, e.TCP.RTOUs, e.TCP.CaState = 5, 5, 6_528_000, "Loss"
			e.TCP.PendingTimer, e.TCP.TimeoutMsLeft, e.TCP.SndCwnd, e.TCP.LostOut = "retrans", 6528, 1, 2
		}),
		of(21, TypeArrival, 47_000_000_000, func(e *Event) {
			idle(e)
			e.Arrival = &Arrival{SilenceMs: 7_984, Bytes: 39, Segment: Segment{
				SeqStart: e.TCP.RcvNxt, SeqEnd: e.TCP.RcvNxt + 39, Ack: e.TCP.SndNxt, Flags: "PSH,ACK",
			}}
			e.TCP.SinceLastRcvUs = 7_984_000
		}),
		of(17, TypeError, 30_000_002_000, func(e *Event) {
			e.Error = &Error{Errno: 110, Name: "ETIMEDOUT"}
			e.TCP.State, e.TCP.PacketsOut = "CLOSE", 0
			e.TCP.SkErr, e.TCP.SinceLastAckUs, e.TCP.Retransmits = 110, 20_100_000, 7
		}),
		of(22, TypeDrop, 9_600_000_000, func(e *Event) {
			e.Drop = &Drop{
				Reason: "NETFILTER_DROP", Direction: "sent", Device: "eth0", SkbLen: 1076,
				Segment: &Segment{SeqStart: e.TCP.SndUna, SeqEnd: e.TCP.SndUna + 1024, Ack: e.TCP.RcvNxt, Flags: "PSH,ACK"},
			}
		}),
		of(23, TypeICMP, 9_700_000_000, func(e *Event) {
			e.TCP = nil
			e.ICMP = &ICMP{Type: "DEST_UNREACH", Code: "HOST_UNREACH", From: "198.18.0.1", SeqStart: 2_147_484_000}
		}),
		neighbour,
		of(25, TypeIO, 9_550_000_000, func(e *Event) {
			e.IO = &IO{Op: "write", Bytes: 3072, Frozen: "no"}
			e.Owner.Via = "send"
		}),
		of(26, TypeSegment, 9_560_000_000, func(e *Event) {
			e.TCP = nil
			e.Segment = &SegmentSeen{
				Direction: "sent", SeqStart: 2_147_484_000, SeqEnd: 2_147_487_072, Ack: 913_551_207, Flags: "PSH,ACK", Bytes: 3072, Window: 502,
			}
		}),
		mark,
		clock,
		lost,
	}
}

func mustAddr(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }
