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

// examples returns one plausible event of each type, in the order of types:
// a connection from a client (198.18.0.2) to a node whose link was cut. They
// are the golden lines and the examples of docs/events.md.
func examples() []*Event {
	const boot = 1_790_000_000_000_000_000 // wall time of mono_ns 0
	at := func(seq uint64, typ Type, mono uint64) *Event {
		return &Event{Seq: seq, Type: typ, MonoNS: mono, Time: WallTime(boot + mono)}
	}
	netns := Netns{Name: "controlplane", Generation: 1, Inode: 4026532301, Cookie: 8193}
	local := mustAddr("198.18.0.3:50000")
	sock := Sock{Cookie: 20481, Family: "inet", Local: local, Remote: mustAddr("198.18.0.4:50000")}
	owner := Owner{PID: 4711, Comm: "apid", Via: "connect"}
	tcp := TCP{
		State: "ESTABLISHED", SndUna: 2_147_484_000, SndNxt: 2_147_487_072, WriteSeq: 2_147_487_072,
		RcvNxt: 913_551_207, CopiedSeq: 913_551_207, UnackedBytes: 3072, BytesAcked: 18_734, BytesReceived: 9_120,
		RTOUs: 204_000, SrttUs: 412, RttvarUs: 157, CaState: "Open", PendingTimer: "retrans", TimeoutMsLeft: 204,
		SndCwnd: 10, Ssthresh: 2_147_483_647, SndWnd: 64_256, RcvWnd: 64_256, PacketsOut: 3, UserTimeoutMs: 20_000,
		Keepalive:      Keepalive{On: true, TimeMs: 15_000, IntvMs: 15_000, Probes: 9},
		SinceLastAckUs: 1_624_000, SinceLastRcvUs: 4_016_000,
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
		PID: 4700, Kernel: "6.12.117-amd64", Machine: "x86_64", Hostname: "lab1", BootID: "5c1f7c53-9a57-4c5f-8f0e-7b1a9d3c2e60",
		BTF: "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", HZ: 250, Lockdown: "none",
		Programs: []Program{
			{Name: "retransmit_skb", Hook: "tcp_retransmit_skb", Method: "tp_btf"},
			{Name: "wire", Hook: "LOCAL_IN, LOCAL_OUT", Method: "packet", Detail: "no BPF netfilter links (kernel 6.4)"},
		},
		BlindSpots: []string{"resets without a socket carry no reason (kernel 6.10)"}, Targets: []string{"controlplane"},
		ArrivalMs: 1000, RingBytes: 8 << 20,
	}

	summary := at(2048, TypeSummary, 65_250_000_000)
	summary.Summary = &Summary{
		Reason: "interrupt", DurationNS: 60_250_000_000, Lines: 2048,
		Events: map[string]uint64{"session": 1, "target": 1, "retransmit": 2040, "abort": 1, "clock": 4, "summary": 1},
		Kernel: Counts{Produced: 2053, Lost: 12, Read: 2041, ByProgram: map[string]uint64{"retransmit_skb": 2052, "set_state": 1}},
		Namespaces: []NamespaceCounts{
			{Netns: netns, Events: map[string]uint64{"retransmit": 2040, "abort": 1}},
		},
		BlindSpots: []string{},
	}

	target := at(2, TypeTarget, 5_100_000_000)
	target.Netns = &Netns{Name: "controlplane", Generation: 2, Inode: 4026532417, Cookie: 8196}
	target.Target = &Target{
		Change: "attached", Detail: "container started", Container: "3f4e2d1c0b9a", BlindNS: 184_000_000,
		Sysctls: map[string]string{"net.ipv4.tcp_retries2": "15", "net.ipv4.tcp_syn_retries": "6"},
	}

	mark := at(40, TypeMark, 9_000_000_000)
	mark.Mark = &Mark{Text: "link of controlplane cut", Kind: "applied", By: "cut.sh, pid 4690"}

	clock := at(41, TypeClock, 10_000_000_000)
	clock.Clock = &Clock{RealNS: boot + 10_000_000_000, BootNS: 10_000_000_000, ErrorNS: 90, StepNS: -1_250}

	lost := at(42, TypeLost, 10_500_000_000)
	lost.Lost = &Lost{
		Count: 12, Total: 12,
		By: map[string]uint64{"retransmit_skb": 12}, PerCPU: map[string]uint64{"0": 4, "1": 8},
	}

	return []*Event{
		session,
		summary,
		target,
		of(3, TypeInventory, 5_120_000_000, func(e *Event) {
			e.Owner.Via = "proc"
			e.Inventory = &Inventory{Inode: 61234}
			e.TCP.SndNxt, e.TCP.WriteSeq, e.TCP.UnackedBytes, e.TCP.PacketsOut = e.TCP.SndUna, e.TCP.SndUna, 0, 0
			e.TCP.PendingTimer, e.TCP.TimeoutMsLeft = "none", 0
		}),
		of(12, TypeRetransmit, 10_624_000_000, func(e *Event) {
			e.Retransmit = &Retransmit{
				Cause: "rto", Attempt: 3, SeqStart: e.TCP.SndUna, SeqEnd: e.TCP.SndUna + 1024, Segments: 1, NextDueMs: 1632,
				Why: "retransmission timer expired: ca_state Loss, icsk_pending none",
			}
			e.TCP.Retransmits, e.TCP.Backoff, e.TCP.RTOUs, e.TCP.CaState = 2, 2, 816_000, "Loss"
			e.TCP.PendingTimer, e.TCP.TimeoutMsLeft, e.TCP.SndCwnd, e.TCP.Ssthresh, e.TCP.LostOut = "none", 0, 1, 7, 3
		}),
		of(13, TypeProbe, 24_016_000_000, func(e *Event) {
			e.Probe = &Probe{Kind: "keepalive", Direction: "sent", Number: 1, Segment: Segment{
				SeqStart: e.TCP.SndUna - 1, SeqEnd: e.TCP.SndUna - 1, Ack: e.TCP.RcvNxt, Flags: "ACK",
			}}
			e.TCP.ProbesOut = 1
		}),
		of(14, TypeState, 30_000_000_000, func(e *Event) {
			e.State = &State{Old: "ESTABLISHED", New: "CLOSE"}
			e.TCP.SkErr = 110
		}),
		of(15, TypeReset, 45_001_000_000, func(e *Event) {
			e.Sock.Cookie, e.Owner, e.TCP = 0, nil, nil
			e.Reset = &Reset{
				Direction: "sent", Reason: "NO_SOCKET", SeenBy: "tcp_send_reset",
				Trigger: &Segment{SeqStart: 913_551_207, SeqEnd: 913_552_231, Ack: 2_147_484_000, Flags: "PSH,ACK"},
			}
		}),
		of(16, TypeAbort, 30_000_010_000, func(e *Event) {
			e.Abort = &Abort{
				By: "local", Cause: "user-timeout", State: "ESTABLISHED",
				Why: "sk_err ETIMEDOUT from the retransmission timer, 20.1 s after the first retransmission, user_timeout_ms 20000",
			}
			e.TCP.State, e.TCP.SkErr, e.TCP.SinceLastAckUs = "CLOSE", 110, 20_100_000
		}),
		of(17, TypeRecovered, 16_800_000_000, func(e *Event) {
			e.Recovered = &Recovered{
				StalledUs: 6_800_000, Retransmits: 5, Answered: 5, SinceLastUs: 431, Exact: true,
				Ack: e.TCP.SndUna + 1024, AckedBytes: 1024,
			}
		}),
		of(18, TypeArrival, 17_000_000_000, func(e *Event) {
			e.Arrival = &Arrival{SilenceMs: 7_984, Bytes: 39, Segment: Segment{
				SeqStart: e.TCP.RcvNxt, SeqEnd: e.TCP.RcvNxt + 39, Ack: e.TCP.SndNxt, Flags: "PSH,ACK",
			}}
		}),
		of(19, TypeError, 30_000_005_000, func(e *Event) {
			e.Error = &Error{Errno: 110, Name: "ETIMEDOUT"}
			e.TCP.SkErr = 110
		}),
		mark,
		clock,
		lost,
	}
}

func mustAddr(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }
