package loader

import (
	"maps"
	"slices"
	"testing"

	"github.com/cilium/ebpf/btf"
)

// TestDropReasons: what is left out is left out by name, and every name is one
// that some kernel has.
func TestDropReasons(t *testing.T) {
	names := map[uint32]string{
		0: "SKB_NOT_DROPPED_YET", 1: "SKB_CONSUMED", 2: "NOT_SPECIFIED", 3: "NO_SOCKET", 63: "TCP_RESET", 64: "TCP_OLD_DATA",
		65: "TCP_CSUM", 200: "TCP_MD5FAILURE", 255: "QUEUE_PURGE", 256: "NO_SOCKET", 257: "NETFILTER_DROP",
	}
	for _, tt := range []struct {
		name string
		in   func(string) bool
		want []uint32
	}{
		{"nothing", losesNothing, []uint32{0, 1, 3, 63}},
		{"handled", handledByTCP, []uint32{63, 64}},
		{"unsaid", saysNothing, []uint32{2, 255}},
	} {
		set := reasonsWhere(names, tt.in)
		var got []uint32
		for v := range uint32(256) {
			if set[v/64]&(1<<(v%64)) != 0 {
				got = append(got, v)
			}
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

// TestDropReasonsOfKernel reads the running kernel's.
func TestDropReasonsOfKernel(t *testing.T) {
	spec, err := btf.LoadKernelSpec()
	if err != nil {
		t.Fatalf("this kernel's types cannot be read, and nothing works without: %v", err)
	}
	k := kernelFrom(spec)
	if k.dropHasReason != (len(k.dropReasons) > 0) {
		t.Fatalf("kfree_skb has a reason: %v, the kernel names %d", k.dropHasReason, len(k.dropReasons))
	}
	for _, want := range []string{"NOT_SPECIFIED", "NO_SOCKET", "TCP_RESET", "NETFILTER_DROP", "TCP_OLD_DATA"} {
		if !slices.Contains(slices.Collect(maps.Values(k.dropReasons)), want) && k.dropHasReason {
			t.Errorf("it does not name %s", want)
		}
	}
}
