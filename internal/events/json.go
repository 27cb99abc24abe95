package events

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"
)

// AppendJSON appends e as one line of JSON, without a newline, and returns the
// extended buffer. It equals what encoding/json makes of the struct tags
// (without HTML escaping), except that a nil list is [] and a nil map {}.
// Given capacity it allocates nothing for events of a socket.
func (e *Event) AppendJSON(b []byte) []byte {
	b = appendUint(b, `{"seq":`, e.Seq)
	b = appendStr(b, `,"type":`, string(e.Type))
	b = appendUint(b, `,"mono_ns":`, e.MonoNS)
	b = append(b, `,"time":"`...)
	b = e.Time.append(b)
	b = append(b, '"')
	if e.Netns != nil {
		b = append(b, `,"netns":`...)
		b = e.Netns.appendJSON(b)
	}
	if e.Sock != nil {
		b = append(b, `,"sock":`...)
		b = e.Sock.appendJSON(b)
	}
	if e.Owner != nil {
		b = append(b, `,"owner":`...)
		b = e.Owner.appendJSON(b)
	}
	if e.CPU != nil {
		b = appendInt(b, `,"cpu":`, int64(*e.CPU))
	}
	b = e.appendParts(b)
	if e.TCP != nil {
		b = append(b, `,"tcp":`...)
		b = e.TCP.appendJSON(b)
	}
	return append(b, '}')
}

// appendParts appends the parts named like a type, of which one is set.
func (e *Event) appendParts(b []byte) []byte {
	if e.Session != nil {
		b = append(b, `,"session":`...)
		b = e.Session.appendJSON(b)
	}
	if e.Summary != nil {
		b = append(b, `,"summary":`...)
		b = e.Summary.appendJSON(b)
	}
	if e.Target != nil {
		b = append(b, `,"target":`...)
		b = e.Target.appendJSON(b)
	}
	if e.Inventory != nil {
		b = appendUint(b, `,"inventory":{"inode":`, e.Inventory.Inode)
		b = append(b, '}')
	}
	if e.Retransmit != nil {
		b = append(b, `,"retransmit":`...)
		b = e.Retransmit.appendJSON(b)
	}
	if e.Probe != nil {
		b = append(b, `,"probe":`...)
		b = e.Probe.appendJSON(b)
	}
	if e.State != nil {
		b = appendStr(b, `,"state":{"old":`, e.State.Old)
		b = appendStr(b, `,"new":`, e.State.New)
		b = append(b, '}')
	}
	if e.Reset != nil {
		b = append(b, `,"reset":`...)
		b = e.Reset.appendJSON(b)
	}
	if e.Abort != nil {
		b = append(b, `,"abort":`...)
		b = e.Abort.appendJSON(b)
	}
	if e.Recovered != nil {
		b = append(b, `,"recovered":`...)
		b = e.Recovered.appendJSON(b)
	}
	if e.Arrival != nil {
		b = append(b, `,"arrival":`...)
		b = e.Arrival.appendJSON(b)
	}
	if e.Error != nil {
		b = appendUint(b, `,"error":{"errno":`, uint64(e.Error.Errno))
		b = appendStr(b, `,"name":`, e.Error.Name)
		b = append(b, '}')
	}
	if e.Drop != nil {
		b = append(b, `,"drop":`...)
		b = e.Drop.appendJSON(b)
	}
	if e.ICMP != nil {
		b = append(b, `,"icmp":`...)
		b = e.ICMP.appendJSON(b)
	}
	if e.Neighbour != nil {
		b = append(b, `,"neighbour":`...)
		b = e.Neighbour.appendJSON(b)
	}
	if e.IO != nil {
		b = append(b, `,"io":`...)
		b = e.IO.appendJSON(b)
	}
	if e.Segment != nil {
		b = append(b, `,"segment":`...)
		b = e.Segment.appendJSON(b)
	}
	if e.Mark != nil {
		b = appendStr(b, `,"mark":{"text":`, e.Mark.Text)
		b = appendStr(b, `,"kind":`, e.Mark.Kind)
		b = appendStr(b, `,"by":`, e.Mark.By)
		b = append(b, '}')
	}
	if e.Clock != nil {
		b = appendUint(b, `,"clock":{"real_ns":`, e.Clock.RealNS)
		b = appendUint(b, `,"boot_ns":`, e.Clock.BootNS)
		b = appendUint(b, `,"error_ns":`, e.Clock.ErrorNS)
		b = appendInt(b, `,"step_ns":`, e.Clock.StepNS)
		if e.Clock.Stepped {
			b = append(b, `,"stepped":true`...)
		}
		if e.Clock.SuspendedNS != 0 {
			b = appendUint(b, `,"suspended_ns":`, e.Clock.SuspendedNS)
		}
		if e.Clock.NTP != nil {
			b = append(b, `,"ntp":`...)
			b = e.Clock.NTP.appendJSON(b)
		}
		b = append(b, '}')
	}
	if e.Lost != nil {
		b = appendUint(b, `,"lost":{"count":`, e.Lost.Count)
		b = appendUint(b, `,"total":`, e.Lost.Total)
		b = appendCounts(b, `,"by":`, e.Lost.By)
		b = appendCounts(b, `,"per_cpu":`, e.Lost.PerCPU)
		b = append(b, '}')
	}
	return b
}

// MarshalJSON is AppendJSON, for encoding/json.
func (e Event) MarshalJSON() ([]byte, error) {
	return e.AppendJSON(nil), nil
}

func (n *Netns) appendJSON(b []byte) []byte {
	b = appendStr(b, `{"name":`, n.Name)
	b = appendInt(b, `,"generation":`, int64(n.Generation))
	b = appendUint(b, `,"inode":`, uint64(n.Inode))
	b = appendUint(b, `,"cookie":`, n.Cookie)
	return append(b, '}')
}

func (s *Sock) appendJSON(b []byte) []byte {
	b = appendUint(b, `{"cookie":`, s.Cookie)
	b = appendStr(b, `,"family":`, s.Family)
	b = appendAddr(b, `,"local":`, s.Local)
	b = appendAddr(b, `,"remote":`, s.Remote)
	if s.MPTCP {
		b = append(b, `,"mptcp":true`...)
	}
	return append(b, '}')
}

func (o *Owner) appendJSON(b []byte) []byte {
	b = appendUint(b, `{"pid":`, uint64(o.PID))
	b = appendStr(b, `,"comm":`, o.Comm)
	b = appendStr(b, `,"via":`, o.Via)
	return append(b, '}')
}

func (t *TCP) appendJSON(b []byte) []byte {
	b = appendStr(b, `{"state":`, t.State)
	b = appendUint(b, `,"snd_una":`, uint64(t.SndUna))
	b = appendUint(b, `,"snd_nxt":`, uint64(t.SndNxt))
	b = appendUint(b, `,"write_seq":`, uint64(t.WriteSeq))
	b = appendUint(b, `,"rcv_nxt":`, uint64(t.RcvNxt))
	b = appendUint(b, `,"copied_seq":`, uint64(t.CopiedSeq))
	b = appendUint(b, `,"unacked_bytes":`, uint64(t.UnackedBytes))
	b = appendUint(b, `,"unsent_bytes":`, uint64(t.UnsentBytes))
	b = appendUint(b, `,"unread_bytes":`, uint64(t.UnreadBytes))
	b = appendUint(b, `,"bytes_acked":`, t.BytesAcked)
	b = appendUint(b, `,"bytes_received":`, t.BytesReceived)
	b = appendUint(b, `,"rto_us":`, uint64(t.RTOUs))
	b = appendUint(b, `,"srtt_us":`, uint64(t.SrttUs))
	b = appendUint(b, `,"rttvar_us":`, uint64(t.RttvarUs))
	b = appendUint(b, `,"retransmits":`, uint64(t.Retransmits))
	b = appendUint(b, `,"backoff":`, uint64(t.Backoff))
	b = appendUint(b, `,"probes_out":`, uint64(t.ProbesOut))
	b = appendStr(b, `,"ca_state":`, t.CaState)
	b = appendStr(b, `,"pending_timer":`, t.PendingTimer)
	b = appendInt(b, `,"timeout_ms_left":`, t.TimeoutMsLeft)
	b = appendUint(b, `,"snd_cwnd":`, uint64(t.SndCwnd))
	b = appendUint(b, `,"ssthresh":`, uint64(t.Ssthresh))
	b = appendUint(b, `,"snd_wnd":`, uint64(t.SndWnd))
	b = appendUint(b, `,"rcv_wnd":`, uint64(t.RcvWnd))
	b = appendUint(b, `,"packets_out":`, uint64(t.PacketsOut))
	b = appendUint(b, `,"retrans_out":`, uint64(t.RetransOut))
	b = appendUint(b, `,"lost_out":`, uint64(t.LostOut))
	b = appendUint(b, `,"sacked_out":`, uint64(t.SackedOut))
	b = appendUint(b, `,"sk_err":`, uint64(t.SkErr))
	b = appendUint(b, `,"user_timeout_ms":`, uint64(t.UserTimeoutMs))
	b = appendBool(b, `,"keepalive":{"on":`, t.Keepalive.On)
	b = appendUint(b, `,"time_ms":`, t.Keepalive.TimeMs)
	b = appendUint(b, `,"intvl_ms":`, t.Keepalive.IntvMs)
	b = appendUint(b, `,"probes":`, uint64(t.Keepalive.Probes))
	b = appendInt(b, `},"since_last_ack_us":`, t.SinceLastAckUs)
	b = appendInt(b, `,"since_last_rcv_us":`, t.SinceLastRcvUs)
	return append(b, '}')
}

func (s *Segment) appendJSON(b []byte) []byte {
	b = appendUint(b, `{"seq_start":`, uint64(s.SeqStart))
	b = appendUint(b, `,"seq_end":`, uint64(s.SeqEnd))
	b = appendUint(b, `,"ack":`, uint64(s.Ack))
	b = appendStr(b, `,"flags":`, s.Flags)
	return append(b, '}')
}

func (r *Retransmit) appendJSON(b []byte) []byte {
	b = appendStr(b, `{"cause":`, r.Cause)
	b = appendUint(b, `,"attempt":`, uint64(r.Attempt))
	b = appendUint(b, `,"seq_start":`, uint64(r.SeqStart))
	b = appendUint(b, `,"seq_end":`, uint64(r.SeqEnd))
	b = appendStr(b, `,"flags":`, r.Flags)
	b = appendUint(b, `,"segments":`, uint64(r.Segments))
	b = appendStr(b, `,"send_error":`, r.SendError)
	b = appendInt(b, `,"next_due_ms":`, r.NextDueMs)
	b = appendStr(b, `,"why":`, r.Why)
	if r.DuplicateSYN {
		b = append(b, `,"duplicate_syn":true`...)
	}
	if r.NoTimeout {
		b = append(b, `,"no_timeout":true`...)
	}
	return append(b, '}')
}

func (p *Probe) appendJSON(b []byte) []byte {
	b = appendStr(b, `{"kind":`, p.Kind)
	b = appendStr(b, `,"direction":`, p.Direction)
	b = appendUint(b, `,"number":`, uint64(p.Number))
	b = append(b, `,"segment":`...)
	b = p.Segment.appendJSON(b)
	return append(b, '}')
}

func (r *Reset) appendJSON(b []byte) []byte {
	b = appendStr(b, `{"direction":`, r.Direction)
	b = appendStr(b, `,"reason":`, r.Reason)
	b = appendBool(b, `,"socket":`, r.Socket)
	if r.Segment != nil {
		b = append(b, `,"segment":`...)
		b = r.Segment.appendJSON(b)
	}
	if r.Trigger != nil {
		b = append(b, `,"trigger":`...)
		b = r.Trigger.appendJSON(b)
	}
	b = appendStr(b, `,"seen_by":`, r.SeenBy)
	return append(b, '}')
}

func (a *Abort) appendJSON(b []byte) []byte {
	b = appendStr(b, `{"by":`, a.By)
	b = appendStr(b, `,"cause":`, a.Cause)
	b = appendStr(b, `,"why":`, a.Why)
	b = appendStr(b, `,"state":`, a.State)
	f := &a.Facts
	b = appendBool(b, `,"facts":{"user":`, f.User)
	b = appendBool(b, `,"dead":`, f.Dead)
	b = appendBool(b, `,"linger":`, f.Linger)
	b = appendUint(b, `,"linger_ms":`, f.LingerMs)
	b = appendBool(b, `,"reset_received":`, f.ResetReceived)
	b = appendBool(b, `,"data_after_end":`, f.DataAfterEnd)
	b = appendBool(b, `,"reset_sent":`, f.ResetSent)
	b = appendStr(b, `,"reset_reason":`, f.ResetReason)
	b = appendUint(b, `,"connect_ns":`, f.ConnectNS)
	if f.Disconnected {
		b = append(b, `,"disconnected":true`...)
	}
	if f.Multipath {
		b = append(b, `,"multipath":true`...)
	}
	if f.Unaccepted {
		b = append(b, `,"unaccepted":true`...)
	}
	if f.ProbingMs != 0 {
		b = appendUint(b, `,"probing_ms":`, f.ProbingMs)
	}
	return append(b, "}}"...)
}

func (r *Recovered) appendJSON(b []byte) []byte {
	b = appendUint(b, `{"stalled_us":`, r.StalledUs)
	b = appendUint(b, `,"retransmits":`, uint64(r.Retransmits))
	b = appendUint(b, `,"answered":`, uint64(r.Answered))
	b = appendUint(b, `,"since_last_us":`, r.SinceLastUs)
	b = appendBool(b, `,"exact":`, r.Exact)
	b = appendUint(b, `,"ack":`, uint64(r.Ack))
	b = appendUint(b, `,"acked_bytes":`, uint64(r.AckedBytes))
	if r.Original {
		b = append(b, `,"original":true`...)
	}
	return append(b, '}')
}

func (a *Arrival) appendJSON(b []byte) []byte {
	b = appendUint(b, `{"silence_ms":`, a.SilenceMs)
	b = appendUint(b, `,"bytes":`, uint64(a.Bytes))
	b = append(b, `,"segment":`...)
	b = a.Segment.appendJSON(b)
	return append(b, '}')
}

func (d *Drop) appendJSON(b []byte) []byte {
	b = appendStr(b, `{"reason":`, d.Reason)
	b = appendStr(b, `,"direction":`, d.Direction)
	b = appendStr(b, `,"device":`, d.Device)
	b = appendUint(b, `,"skb_len":`, uint64(d.SkbLen))
	if d.Segment != nil {
		b = append(b, `,"segment":`...)
		b = d.Segment.appendJSON(b)
	}
	return append(b, '}')
}

func (i *ICMP) appendJSON(b []byte) []byte {
	b = appendStr(b, `{"type":`, i.Type)
	b = appendStr(b, `,"code":`, i.Code)
	b = appendStr(b, `,"from":`, i.From)
	b = appendUint(b, `,"mtu":`, uint64(i.MTU))
	b = appendUint(b, `,"seq_start":`, uint64(i.SeqStart))
	return append(b, '}')
}

func (n *Neighbour) appendJSON(b []byte) []byte {
	b = appendStr(b, `{"change":`, n.Change)
	b = appendStr(b, `,"address":`, n.Address)
	b = appendStr(b, `,"device":`, n.Device)
	b = appendStr(b, `,"old":`, n.Old)
	b = appendStr(b, `,"new":`, n.New)
	b = appendStr(b, `,"old_lladdr":`, n.OldLladdr)
	b = appendStr(b, `,"new_lladdr":`, n.NewLladdr)
	b = appendUint(b, `,"sockets":`, n.Sockets)
	if n.PID != 0 {
		b = appendUint(b, `,"pid":`, uint64(n.PID))
	}
	if n.Comm != "" {
		b = appendStr(b, `,"comm":`, n.Comm)
	}
	return append(b, '}')
}

func (i *IO) appendJSON(b []byte) []byte {
	b = appendStr(b, `{"op":`, i.Op)
	b = appendUint(b, `,"bytes":`, uint64(i.Bytes))
	if i.Peek {
		b = append(b, `,"peek":true`...)
	}
	b = appendStr(b, `,"frozen":`, i.Frozen)
	return append(b, '}')
}

func (s *SegmentSeen) appendJSON(b []byte) []byte {
	b = appendStr(b, `{"direction":`, s.Direction)
	b = appendUint(b, `,"seq_start":`, uint64(s.SeqStart))
	b = appendUint(b, `,"seq_end":`, uint64(s.SeqEnd))
	b = appendUint(b, `,"ack":`, uint64(s.Ack))
	b = appendStr(b, `,"flags":`, s.Flags)
	b = appendUint(b, `,"bytes":`, uint64(s.Bytes))
	b = appendUint(b, `,"window":`, uint64(s.Window))
	return append(b, '}')
}

func (t *Target) appendJSON(b []byte) []byte {
	b = appendStr(b, `{"change":`, t.Change)
	b = appendStr(b, `,"detail":`, t.Detail)
	if t.Container != "" {
		b = appendStr(b, `,"container":`, t.Container)
	}
	if t.Alias != "" {
		b = appendStr(b, `,"alias":`, t.Alias)
	}
	if t.Formerly != nil {
		b = append(b, `,"formerly":`...)
		b = t.Formerly.appendJSON(b)
	}
	if t.BlindNS != 0 {
		b = appendUint(b, `,"blind_ns":`, t.BlindNS)
	}
	if len(t.Sysctls) != 0 {
		b = append(b, `,"sysctls":{`...)
		for i, k := range slices.Sorted(maps.Keys(t.Sysctls)) {
			b = appendKey(b, i, k)
			b = appendString(b, t.Sysctls[k])
		}
		b = append(b, '}')
	}
	if t.Sockets != 0 {
		b = appendUint(b, `,"sockets":`, t.Sockets)
	}
	return append(b, '}')
}

func (s *Session) appendJSON(b []byte) []byte {
	b = appendStr(b, `{"schema":`, s.Schema)
	b = appendStr(b, `,"version":`, s.Version)
	b = appendStr(b, `,"commit":`, s.Commit)
	b = appendStrs(b, `,"command":`, s.Command)
	b = appendInt(b, `,"pid":`, int64(s.PID))
	b = appendStr(b, `,"kernel":`, s.Kernel)
	b = appendStr(b, `,"machine":`, s.Machine)
	b = appendStr(b, `,"hostname":`, s.Hostname)
	b = appendStr(b, `,"boot_id":`, s.BootID)
	b = appendStr(b, `,"btf_sha256":`, s.BTF)
	b = appendUint(b, `,"hz":`, uint64(s.HZ))
	b = appendStr(b, `,"lockdown":`, s.Lockdown)
	b = append(b, `,"programs":[`...)
	for i := range s.Programs {
		if i > 0 {
			b = append(b, ',')
		}
		b = s.Programs[i].appendJSON(b)
	}
	b = append(b, ']')
	b = appendStrs(b, `,"blind_spots":`, s.BlindSpots)
	b = appendStrs(b, `,"cannot_show":`, s.CannotShow)
	if len(s.With) > 0 {
		b = appendStrs(b, `,"with":`, s.With)
	}
	b = appendStrs(b, `,"targets":`, s.Targets)
	b = appendUint(b, `,"arrival_threshold_ms":`, s.ArrivalMs)
	b = appendUint(b, `,"ring_bytes":`, s.RingBytes)
	if s.SelfTest != nil {
		b = append(b, `,"self_test":`...)
		b = s.SelfTest.appendJSON(b)
	}
	return append(b, '}')
}

func (n *NTP) appendJSON(b []byte) []byte {
	b = appendStr(b, `{"state":`, n.State)
	b = appendStrs(b, `,"status":`, n.Status)
	b = appendInt(b, `,"offset_ns":`, n.OffsetNS)
	b = appendInt(b, `,"freq_ppb":`, n.FreqPPB)
	b = appendInt(b, `,"tick_us":`, n.TickUs)
	b = appendInt(b, `,"maxerror_us":`, n.MaxErrorUs)
	b = appendInt(b, `,"esterror_us":`, n.EstErrorUs)
	return append(b, '}')
}

func (t *SelfTest) appendJSON(b []byte) []byte {
	b = appendBool(b, `{"passed":`, t.Passed)
	b = appendInt(b, `,"runs":`, int64(t.Runs))
	b = appendUint(b, `,"duration_ns":`, t.DurationNS)
	b = appendStrs(b, `,"seen":`, t.Seen)
	b = appendStrs(b, `,"missing":`, t.Missing)
	return append(b, '}')
}

func (p *Program) appendJSON(b []byte) []byte {
	b = appendStr(b, `{"name":`, p.Name)
	b = appendStr(b, `,"hook":`, p.Hook)
	b = appendStr(b, `,"method":`, p.Method)
	if p.Detail != "" {
		b = appendStr(b, `,"detail":`, p.Detail)
	}
	return append(b, '}')
}

func (s *Summary) appendJSON(b []byte) []byte {
	b = appendStr(b, `{"reason":`, s.Reason)
	b = appendUint(b, `,"duration_ns":`, s.DurationNS)
	b = appendUint(b, `,"lines":`, s.Lines)
	b = appendCounts(b, `,"events":`, s.Events)
	b = append(b, `,"kernel":`...)
	b = s.Kernel.appendJSON(b)
	b = append(b, `,"namespaces":[`...)
	for i := range s.Namespaces {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"netns":`...)
		b = s.Namespaces[i].Netns.appendJSON(b)
		if before := s.Namespaces[i].Formerly; len(before) != 0 {
			b = append(b, `,"formerly":[`...)
			for j := range before {
				if j > 0 {
					b = append(b, ',')
				}
				b = before[j].appendJSON(b)
			}
			b = append(b, ']')
		}
		b = appendCounts(b, `,"events":`, s.Namespaces[i].Events)
		b = append(b, `,"ledger":`...)
		b = s.Namespaces[i].Ledger.appendJSON(b)
		b = append(b, `,"verdict":`...)
		b = s.Namespaces[i].Verdict.appendJSON(b)
		b = append(b, '}')
	}
	b = append(b, `],"verdict":`...)
	b = s.Verdict.appendJSON(b)
	b = appendStrs(b, `,"blind_spots":`, s.BlindSpots)
	return append(b, '}')
}

func (l *Ledger) appendJSON(b []byte) []byte {
	b = append(b, `{"opened":`...)
	b = l.Opened.appendJSON(b)
	b = append(b, `,"closed":`...)
	b = l.Closed.appendJSON(b)
	b = append(b, `,"lines":[`...)
	for i := range l.Lines {
		if i > 0 {
			b = append(b, ',')
		}
		b = l.Lines[i].appendJSON(b)
	}
	b = appendCounts(append(b, ']'), `,"beside":`, l.Beside)
	return append(b, '}')
}

func (r *Reading) appendJSON(b []byte) []byte {
	b = appendUint(b, `{"start_ns":`, r.StartNS)
	b = appendUint(b, `,"end_ns":`, r.EndNS)
	return append(b, '}')
}

func (l *LedgerLine) appendJSON(b []byte) []byte {
	b = appendStr(b, `{"counter":`, l.Counter)
	b = appendUint(b, `,"kernel":`, l.Kernel)
	b = appendInt(b, `,"events":`, l.Events)
	b = appendInt(b, `,"difference":`, l.Difference)
	b = appendInt(b, `,"explained":`, l.Explained)
	b = appendStr(b, `,"result":`, l.Result)
	b = appendStr(b, `,"why":`, l.Why)
	return append(b, '}')
}

func (v *Verdict) appendJSON(b []byte) []byte {
	b = appendStr(b, `{"state":`, v.State)
	b = appendUint(b, `,"by":`, v.By)
	b = appendStrs(b, `,"reasons":`, v.Reasons)
	return append(b, '}')
}

func (c *Counts) appendJSON(b []byte) []byte {
	b = appendUint(b, `{"produced":`, c.Produced)
	b = appendUint(b, `,"lost":`, c.Lost)
	b = appendUint(b, `,"missed":`, c.Missed)
	b = appendUint(b, `,"read":`, c.Read)
	b = appendInt(b, `,"unaccounted":`, c.Unaccounted)
	b = appendUint(b, `,"foreign":`, c.Foreign)
	b = appendCounts(b, `,"by_program":`, c.ByProgram)
	return append(b, '}')
}

// The helpers below take the key with what precedes it (`,"key":`).

func appendUint(b []byte, key string, v uint64) []byte {
	return strconv.AppendUint(append(b, key...), v, 10)
}

func appendInt(b []byte, key string, v int64) []byte {
	return strconv.AppendInt(append(b, key...), v, 10)
}

func appendBool(b []byte, key string, v bool) []byte {
	return strconv.AppendBool(append(b, key...), v)
}

func appendStr(b []byte, key, s string) []byte {
	return appendString(append(b, key...), s)
}

func appendAddr(b []byte, key string, a netip.AddrPort) []byte {
	b = append(b, key...)
	if a.Addr().Zone() != "" { // a zone is any string
		text, _ := a.AppendText(nil)
		return appendString(b, string(text))
	}
	b = append(b, '"')
	b = a.AppendTo(b)
	return append(b, '"')
}

func appendStrs(b []byte, key string, list []string) []byte {
	b = append(b, key...)
	b = append(b, '[')
	for i, s := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, s)
	}
	return append(b, ']')
}

func appendCounts(b []byte, key string, m map[string]uint64) []byte {
	b = append(b, key...)
	b = append(b, '{')
	for i, k := range slices.Sorted(maps.Keys(m)) {
		b = appendKey(b, i, k)
		b = strconv.AppendUint(b, m[k], 10)
	}
	return append(b, '}')
}

func appendKey(b []byte, i int, key string) []byte {
	if i > 0 {
		b = append(b, ',')
	}
	b = appendString(b, key)
	return append(b, ':')
}

const hexDigits = "0123456789abcdef"

// plain marks the bytes that stand for themselves inside a JSON string.
var plain = func() (t [256]bool) {
	for c := ' '; c < utf8.RuneSelf; c++ {
		t[c] = c != '"' && c != '\\'
	}
	return t
}()

// appendString appends s as a JSON string. Invalid UTF-8 becomes U+FFFD;
// U+2028 and U+2029 are escaped, since some readers take them for newlines.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if plain[c] {
			i++
			continue
		}
		if c < utf8.RuneSelf {
			b = append(b, s[start:i]...)
			b = appendEscape(b, c)
			i++
			start = i
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			b = append(append(b, s[start:i]...), `\ufffd`...)
			start = i + size
		case r == '\u2028' || r == '\u2029':
			b = append(append(b, s[start:i]...), `\u202`...)
			b = append(b, hexDigits[r&0xf])
			start = i + size
		}
		i += size
	}
	b = append(b, s[start:]...)
	return append(b, '"')
}

func appendEscape(b []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(b, '\\', c)
	case '\b':
		return append(b, `\b`...)
	case '\f':
		return append(b, `\f`...)
	case '\n':
		return append(b, `\n`...)
	case '\r':
		return append(b, `\r`...)
	case '\t':
		return append(b, `\t`...)
	}
	return append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&0xf])
}

// append appends t as 2006-01-02T15:04:05.000000000Z. An int64 of nanoseconds
// spans the years 1677 to 2262, so every field has a fixed width.
func (t WallTime) append(b []byte) []byte {
	const day = 24 * 60 * 60
	sec, ns := int64(t)/1e9, int64(t)%1e9
	if ns < 0 {
		sec, ns = sec-1, ns+1e9
	}
	days, sec := sec/day, sec%day
	if sec < 0 {
		days, sec = days-1, sec+day
	}

	// Days since 0000-03-01: a year that begins in March ends in its leap day.
	z := uint64(days + 719468)
	era := z / 146097
	doe := z % 146097
	yoe := (doe - doe/1460 + doe/36524 - doe/146096) / 365
	doy := doe - (365*yoe + yoe/4 - yoe/100)
	mp := (5*doy + 2) / 153
	year, month, mday := era*400+yoe, mp+3, doy-(153*mp+2)/5+1
	if month > 12 {
		year, month = year+1, month-12
	}

	var d [30]byte
	put(d[0:4], year)
	d[4] = '-'
	put(d[5:7], month)
	d[7] = '-'
	put(d[8:10], mday)
	d[10] = 'T'
	put(d[11:13], uint64(sec/3600))
	d[13] = ':'
	put(d[14:16], uint64(sec/60%60))
	d[16] = ':'
	put(d[17:19], uint64(sec%60))
	d[19] = '.'
	put(d[20:29], uint64(ns))
	d[29] = 'Z'
	return append(b, d[:]...)
}

// put fills d with the decimal digits of v.
func put(d []byte, v uint64) {
	for i := len(d) - 1; i >= 0; i-- {
		d[i] = byte('0' + v%10)
		v /= 10
	}
}

// AppendText appends t as RFC 3339 with nine digits, UTC.
func (t WallTime) AppendText(b []byte) ([]byte, error) { return t.append(b), nil }

// MarshalText returns t as RFC 3339 with nine digits, UTC.
func (t WallTime) MarshalText() ([]byte, error) { return t.append(nil), nil }

// UnmarshalText reads RFC 3339.
func (t *WallTime) UnmarshalText(text []byte) error {
	parsed, err := time.Parse(time.RFC3339Nano, string(text))
	if err != nil {
		return fmt.Errorf("wall time: %w", err)
	}
	ns := parsed.UnixNano()
	if !time.Unix(0, ns).Equal(parsed) {
		return fmt.Errorf("wall time %s is outside the years 1678 to 2261", text)
	}
	*t = WallTime(ns)
	return nil
}

// String returns t as RFC 3339 with nine digits, UTC.
func (t WallTime) String() string { return string(t.append(nil)) }

var (
	_ json.Marshaler = Event{}
	_ fmt.Stringer   = WallTime(0)
)
