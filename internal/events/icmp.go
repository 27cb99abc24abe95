package events

import (
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/bpf"
)

// ICMP types and codes as include/uapi/linux/icmp.h and icmpv6.h name them.
var (
	icmpTypes = map[int32]string{3: "DEST_UNREACH", 4: "SOURCE_QUENCH", 5: "REDIRECT", 11: "TIME_EXCEEDED", 12: "PARAMETERPROB"}
	icmpCodes = map[int32][]string{
		3: {
			"NET_UNREACH", "HOST_UNREACH", "PROT_UNREACH", "PORT_UNREACH", "FRAG_NEEDED", "SR_FAILED", "NET_UNKNOWN", "HOST_UNKNOWN",
			"HOST_ISOLATED", "NET_ANO", "HOST_ANO", "NET_UNR_TOS", "HOST_UNR_TOS", "PKT_FILTERED", "PREC_VIOLATION", "PREC_CUTOFF",
		},
		5:  {"REDIR_NET", "REDIR_HOST", "REDIR_NETTOS", "REDIR_HOSTTOS"},
		11: {"EXC_TTL", "EXC_FRAGTIME"},
	}
	icmpv6Types = map[int32]string{1: "DEST_UNREACH", 2: "PKT_TOOBIG", 3: "TIME_EXCEED", 4: "PARAMPROB"}
	icmpv6Codes = map[int32][]string{
		1: {"NOROUTE", "ADM_PROHIBITED", "NOT_NEIGHBOUR", "ADDR_UNREACH", "PORT_UNREACH", "POLICY_FAIL", "REJECT_ROUTE"},
		3: {"EXC_HOPLIMIT", "EXC_FRAGTIME"},
		4: {"HDR_FIELD", "UNK_NEXTHDR", "UNK_OPTION"},
	}
)

func icmpNames(family uint16, typ, code int32) (string, string) {
	types, codes := icmpTypes, icmpCodes
	if family == unix.AF_INET6 {
		types, codes = icmpv6Types, icmpv6Codes
	}
	name, ok := types[typ]
	if !ok {
		name = "TYPE_" + strconv.Itoa(int(typ))
	}
	if list := codes[typ]; code >= 0 && int(code) < len(list) {
		return name, list[code]
	}
	return name, "CODE_" + strconv.Itoa(int(code))
}

// icmp takes an error message that quotes a segment.
func (t *Tracker) icmp(ns *namespace, r *bpf.Record) error {
	s := t.hurt(ns, r)
	t.begin(TypeICMP, r, s)
	t.ev.TCP = nil
	typ, code := icmpNames(r.Family, r.ArgA, r.ArgB)
	t.buf.icmp = ICMP{Type: typ, Code: code, From: netip.AddrFrom16(r.OwnerComm).Unmap().String(), SeqStart: r.SegSeq}
	switch {
	case code == "FRAG_NEEDED":
		t.buf.icmp.MTU = r.SegAckSeq & 0xffff
	case typ == "PKT_TOOBIG":
		t.buf.icmp.MTU = r.SegAckSeq
	}
	t.ev.ICMP = &t.buf.icmp
	return t.emit()
}
