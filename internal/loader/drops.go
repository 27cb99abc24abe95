package loader

import (
	"slices"
	"strings"

	"github.com/cilium/ebpf/btf"
)

// dropReasons reads enum skb_drop_reason: its numbers differ between kernels.
// Those of modules (mac80211, openvswitch) are not in it.
func dropReasons(spec *btf.Spec) map[uint32]string {
	var enum *btf.Enum
	if spec.TypeByName("skb_drop_reason", &enum) != nil {
		return nil
	}
	names := make(map[uint32]string, len(enum.Values))
	for _, v := range enum.Values {
		names[uint32(v.Value)] = strings.TrimPrefix(v.Name, "SKB_DROP_REASON_")
	}
	return names
}

// reasonSet is a set of drop reasons as the programs look it up: DROP_REASONS
// bits.
type reasonSet [4]uint64

func reasonsWhere(names map[uint32]string, in func(name string) bool) (set reasonSet) {
	for v, name := range names {
		if v < 64*uint32(len(set)) && in(name) {
			set[v/64] |= 1 << (v % 64)
		}
	}
	return set
}

// losesNothing tells the reasons for which kfree_skb is no loss of a segment,
// or one that other events tell.
func losesNothing(name string) bool {
	return slices.Contains([]string{
		"SKB_NOT_DROPPED_YET", "SKB_CONSUMED",
		"NO_SOCKET",         // answered by a RST, or is one: reset events
		"TCP_RESET",         // a RST that did its work, or was challenged: reset events
		"OTHERHOST",         // was for another machine
		"PACKET_SOCK_ERROR", // the copy of a capture that is too slow
	}, name)
}

// handledByTCP tells the reasons that TCP gives once it has read the header:
// an acknowledgement that carries nothing else has done its work, or was
// answered.
func handledByTCP(name string) bool {
	if !strings.HasPrefix(name, "TCP_") {
		return false
	}
	// These refuse the segment unread, whatever it is.
	for _, unread := range []string{"TCP_CSUM", "TCP_MINTTL", "TCP_AUTH", "TCP_MD5", "TCP_AO", "TCP_LISTEN_OVERFLOW"} {
		if strings.HasPrefix(name, unread) {
			return false
		}
	}
	return true
}

// saysNothing tells the reasons that are none.
func saysNothing(name string) bool { return name == "NOT_SPECIFIED" || name == "QUEUE_PURGE" }

// DropReasons names the reasons of kfree_skb on this kernel, without their
// prefix; empty where it gives none.
func (o *Observer) DropReasons() map[uint32]string { return o.kernel.dropReasons }
