package bpf

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
)

// The verifier is the judge: every program must load on the running kernel.
func TestProgramsLoad(t *testing.T) {
	if err := rlimit.RemoveMemlock(); err != nil {
		t.Fatal(err)
	}
	for name, load := range map[string]func() (*ebpf.CollectionSpec, error){
		"observe": LoadObserve,
		"wire":    LoadWire,
	} {
		spec, err := load()
		if err != nil {
			t.Fatal(err)
		}
		for prog := range spec.Programs {
			t.Run(name+"/"+prog, func(t *testing.T) {
				one := spec.Copy()
				for other := range one.Programs {
					if other != prog {
						delete(one.Programs, other)
					}
				}
				coll, err := ebpf.NewCollection(one)
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
