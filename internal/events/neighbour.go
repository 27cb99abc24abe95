package events

import (
	"fmt"
	"net/netip"
	"strconv"

	"github.com/sockwatch/sockwatch/bpf"
)

// States of a neighbour (include/uapi/linux/neighbour.h).
const (
	nudFailed = 0x20
	nudValid  = 0xde // it has a hardware address that is believed
)

var nudNames = map[int32]string{
	0x01: "INCOMPLETE", 0x02: "REACHABLE", 0x04: "STALE", 0x08: "DELAY", 0x10: "PROBE", nudFailed: "FAILED", 0x40: "NOARP", 0x80: "PERMANENT",
}

func nudName(s int32) string {
	if name, ok := nudNames[s]; ok || s == 0 {
		return name
	}
	return "NUD_" + strconv.FormatUint(uint64(uint32(s)), 10)
}

// neighbour takes a change of a neighbour, if it is one that sockets feel.
func (t *Tracker) neighbour(ns *namespace, r *bpf.Record) error {
	n := &t.buf.neighbour
	*n = Neighbour{
		Address: netip.AddrFrom16(r.RemoteAddr).Unmap().String(), Device: t.commName(&r.LocalAddr),
		Old: nudName(r.ArgA), New: nudName(r.ArgB), OldLladdr: lladdr(r.BytesAcked), NewLladdr: lladdr(r.BytesReceived),
	}
	switch {
	case r.ArgB == nudFailed:
		n.Change = "failed"
	case r.ArgB&nudValid == 0:
		return nil // being asked for
	case r.ArgA&nudValid == 0:
		n.Change = "resolved"
	case r.BytesAcked != r.BytesReceived:
		n.Change = "moved"
	default:
		return nil
	}
	for _, s := range t.socks {
		if s.ns == ns && s.tuple.remote == r.RemoteAddr && s.tuple.rport != 0 {
			n.Sockets++
		}
	}
	if r.OwnerPid != 0 {
		n.PID, n.Comm = r.OwnerPid, t.commName(&r.OwnerComm)
	}
	s := &t.lone
	*s = sock{ns: ns}
	t.begin(TypeNeighbour, r, s)
	t.ev.Sock, t.ev.TCP = nil, nil
	t.ev.Neighbour = n
	return t.emit()
}

// lladdr prints a hardware address, of which the record has the first byte lowest.
func lladdr(v uint64) string {
	if v == 0 {
		return ""
	}
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", v&0xff, v>>8&0xff, v>>16&0xff, v>>24&0xff, v>>32&0xff, v>>40&0xff)
}
