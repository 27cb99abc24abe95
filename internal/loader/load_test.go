package loader

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/rlimit"

	"github.com/sockwatch/sockwatch/bpf"
)

// The verifier is the judge: every program whose hook this kernel has must
// load, be it in use here or not.
func TestProgramsLoad(t *testing.T) {
	privileged(t)
	if err := rlimit.RemoveMemlock(); err != nil {
		t.Fatal(err)
	}
	cache := btf.NewCache()
	k, err := probeKernel(cache)
	if err != nil {
		t.Fatal(err)
	}
	types, err := cache.Kernel()
	if err != nil {
		t.Fatal(err)
	}
	o := &Observer{kernel: k, cache: cache, opts: Options{RingBytes: 1 << 20, ArrivalThreshold: time.Second}}
	for name, load := range map[string]func() (*ebpf.CollectionSpec, error){
		"observe": bpf.LoadObserve,
		"wire":    bpf.LoadWire,
	} {
		spec, err := load()
		if err != nil {
			t.Fatal(err)
		}
		if err := o.prepare(spec); err != nil {
			t.Fatal(err)
		}
		for prog, p := range spec.Programs {
			t.Run(name+"/"+prog, func(t *testing.T) {
				one := spec.Copy()
				for other := range one.Programs {
					if other != prog {
						delete(one.Programs, other)
					}
				}
				coll, err := ebpf.NewCollectionWithOptions(one, ebpf.CollectionOptions{Cache: cache})
				if strings.HasPrefix(prog, "neigh_") && !k.neighbours {
					t.Logf("not used on this kernel, and its blind spot says so: %v", err)
					if err == nil {
						coll.Close()
					}
					return
				}
				if !hasHook(types, p) {
					if err == nil {
						coll.Close()
						t.Fatal("it loads, though the kernel's types do not have its hook")
					}
					t.Logf("not on this kernel: %v", err)
					return
				}
				var verr *ebpf.VerifierError
				if errors.As(err, &verr) {
					t.Fatalf("%+v", verr)
				}
				if err != nil {
					t.Fatal(err)
				}
				coll.Close()
			})
		}
	}
}

// hasHook says whether the kernel has what a program hangs on.
func hasHook(types *btf.Spec, p *ebpf.ProgramSpec) bool {
	switch {
	case p.Type == ebpf.Netfilter:
		var fn *btf.Func
		return types.TypeByName("bpf_nf_link_attach", &fn) == nil
	case p.AttachType == ebpf.AttachTraceRawTp:
		var td *btf.Typedef
		return types.TypeByName("btf_trace_"+p.AttachTo, &td) == nil
	}
	return true
}

// What cannot be attached is optional, has a reason, and is a blind spot.
func TestFeatures(t *testing.T) {
	privileged(t)
	o, err := Open(Options{HZ: 250, IO: true})
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	for _, f := range o.Features() {
		t.Logf("%-24s %-10s %v", f.Name, f.Method, f.Err)
		if f.Err == nil {
			continue
		}
		if f.Required {
			t.Errorf("%s is required, yet Open works without it: %v", f.Name, f.Err)
		}
		if !slices.ContainsFunc(o.BlindSpots(), func(s string) bool { return strings.HasPrefix(s, f.Lost) }) {
			t.Errorf("no blind spot says that %s are lost", f.Lost)
		}
	}
	for _, s := range o.BlindSpots() {
		t.Log("blind spot: " + s)
	}
}
