package bpf

import (
	"reflect"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// observeTypes are the types of the object, as clang wrote them. Reading them
// needs no privilege.
func observeTypes(t *testing.T) *btf.Spec {
	t.Helper()
	spec, err := LoadObserve()
	if err != nil {
		t.Fatal(err)
	}
	return spec.Types
}

func structOf(t *testing.T, types *btf.Spec, name string) *btf.Struct {
	t.Helper()
	var s *btf.Struct
	if err := types.TypeByName(name, &s); err != nil {
		t.Fatalf("struct %s: %v", name, err)
	}
	return s
}

// goName is what bpf2go makes of a C name.
func goName(c string) string {
	var b strings.Builder
	for part := range strings.SplitSeq(c, "_") {
		b.WriteString(strings.ToUpper(part[:1]) + part[1:])
	}
	return b.String()
}

// TestLayout: what Go reads is what C wrote, member by member, and no byte of
// it is left to chance.
func TestLayout(t *testing.T) {
	for _, tt := range []struct {
		name string
		typ  reflect.Type
	}{
		{"record", reflect.TypeFor[Record]()},
		{"counts", reflect.TypeFor[Counts]()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := structOf(t, observeTypes(t), tt.name)
			if s.Size%8 != 0 {
				t.Errorf("size %d is no multiple of 8: the ring buffer would pad it", s.Size)
			}
			if uintptr(s.Size) != tt.typ.Size() {
				t.Errorf("size %d in C, %d in Go", s.Size, tt.typ.Size())
			}
			end := uint32(0)
			for _, m := range s.Members {
				if m.BitfieldSize != 0 {
					t.Errorf("%s is a bitfield", m.Name)
				}
				if m.Offset%8 != 0 || m.Offset.Bytes() != end {
					t.Errorf("hole before %s: offset %d, the member before ends at %d", m.Name, m.Offset.Bytes(), end)
				}
				size, err := btf.Sizeof(m.Type)
				if err != nil {
					t.Fatalf("%s: %v", m.Name, err)
				}
				end = m.Offset.Bytes() + uint32(size)
				f, ok := tt.typ.FieldByName(goName(m.Name))
				switch {
				case !ok:
					t.Errorf("%s has no field in Go", m.Name)
				case f.Offset != uintptr(m.Offset.Bytes()) || f.Type.Size() != uintptr(size):
					t.Errorf("%s: %d bytes at %d in C, %d at %d in Go", m.Name, size, m.Offset.Bytes(), f.Type.Size(), f.Offset)
				case signed(m.Type) != signedKind(f.Type.Kind()):
					t.Errorf("%s: signed in one of C and Go", m.Name)
				}
			}
			if end != s.Size {
				t.Errorf("padding after the last member: it ends at %d of %d", end, s.Size)
			}
			fields := 0
			for i := range tt.typ.NumField() {
				if tt.typ.Field(i).Name != "_" { // structs.HostLayout
					fields++
				}
			}
			if fields != len(s.Members) {
				t.Errorf("%d members in C, %d fields in Go", len(s.Members), fields)
			}
		})
	}
}

func signed(typ btf.Type) bool {
	i, ok := btf.UnderlyingType(typ).(*btf.Int)
	return ok && i.Encoding == btf.Signed
}

func signedKind(k reflect.Kind) bool { return k >= reflect.Int && k <= reflect.Int64 }

// TestLayoutWire: both objects were compiled from the same record.
func TestLayoutWire(t *testing.T) {
	spec, err := LoadWire()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"record", "counts", "note"} {
		a, b := structOf(t, observeTypes(t), name), structOf(t, spec.Types, name)
		if a.Size != b.Size || len(a.Members) != len(b.Members) {
			t.Fatalf("struct %s: %d bytes and %d members in observe, %d and %d in wire", name, a.Size, len(a.Members), b.Size, len(b.Members))
		}
		for i, m := range a.Members {
			if o := b.Members[i]; m.Name != o.Name || m.Offset != o.Offset {
				t.Errorf("struct %s: %s at %d in observe, %s at %d in wire", name, m.Name, m.Offset, o.Name, o.Offset)
			}
		}
	}
}

// TestRingValue: the ring buffer says what it carries.
func TestRingValue(t *testing.T) {
	for name, load := range map[string]func() (*ebpf.CollectionSpec, error){"observe": LoadObserve, "wire": LoadWire} {
		spec, err := load()
		if err != nil {
			t.Fatal(err)
		}
		s, ok := spec.Maps["events"].Value.(*btf.Struct)
		if !ok || s.Name != "record" {
			t.Errorf("%s: events carries %v", name, spec.Maps["events"].Value)
		}
	}
}

// TestEnums holds the names of names.go to the enums of record.h.
func TestEnums(t *testing.T) {
	types := observeTypes(t)
	for name, goValues := range map[string]map[string]uint64{
		"record_kind": {
			"KIND_NONE":       0, // no record has it, so Go has no name for it
			"KIND_RETRANSMIT": uint64(KindRetransmit), "KIND_SYNACK": uint64(KindSynAck), "KIND_STATE": uint64(KindState),
			"KIND_RECEIVE": uint64(KindReceive), "KIND_RESET_RECEIVED": uint64(KindResetReceived), "KIND_RESET_SENT": uint64(KindResetSent),
			"KIND_ERROR": uint64(KindError), "KIND_DESTROY": uint64(KindDestroy), "KIND_INVENTORY": uint64(KindInventory),
			"KIND_OWNER": uint64(KindOwner), "KIND_WIRE": uint64(KindWire), "KIND_DROP": uint64(KindDrop), "KIND_NEIGHBOUR": uint64(KindNeighbour), "KIND_IO": uint64(KindIO), "KIND_MAX": uint64(KindMax),
		},
		"program_id": {
			"PROG_RETRANSMIT_SKB": uint64(ProgRetransmitSkb), "PROG_RETRANSMIT_SYNACK": uint64(ProgRetransmitSynack),
			"PROG_SET_STATE": uint64(ProgSetState), "PROG_TCP_PROBE": uint64(ProgTCPProbe), "PROG_RECEIVE_RESET": uint64(ProgReceiveReset),
			"PROG_SEND_RESET": uint64(ProgSendReset), "PROG_ERROR_REPORT": uint64(ProgErrorReport), "PROG_DESTROY_SOCK": uint64(ProgDestroySock),
			"PROG_ITER_TCP": uint64(ProgIterTCP), "PROG_WIRE": uint64(ProgWire), "PROG_RCV_SPACE_ADJUST": uint64(ProgRcvSpaceAdjust),
			"PROG_KFREE_SKB":    uint64(ProgKfreeSkb),
			"PROG_NEIGH_UPDATE": uint64(ProgNeighUpdate), "PROG_NEIGH_UPDATE_DONE": uint64(ProgNeighUpdateDone),
			"PROG_NEIGH_TIMER_HANDLER": uint64(ProgNeighTimerHandler), "PROG_NEIGH_EVENT_SEND_DONE": uint64(ProgNeighEventSendDone),
			"PROG_SOCK_SEND_LENGTH": uint64(ProgSockSendLength), "PROG_SOCK_RECV_LENGTH": uint64(ProgSockRecvLength),
			"PROG_MAX": uint64(ProgMax),
		},
		"receive_why": {
			"RECEIVE_ACKED": uint64(ReceiveAcked), "RECEIVE_ARRIVAL": uint64(ReceiveArrival), "RECEIVE_PROBE": uint64(ReceiveProbe), "RECEIVE_FROZEN": uint64(ReceiveFrozen),
		},
		"wire_why": {
			"WIRE_RST": uint64(WireRST), "WIRE_PROBE": uint64(WireProbe), "WIRE_ACKED": uint64(WireAcked),
			"WIRE_UNSURE": uint64(WireUnsure), "WIRE_ICMP": uint64(WireICMP), "WIRE_SEEN": uint64(WireSeen),
		},
		"io_why": {"IO_FROZEN": uint64(IOFrozen), "IO_FROZEN_KNOWN": uint64(IOFrozenKnown)},
		"record_flag": {
			"FLAG_FULL_SOCK": uint64(FlagFullSock), "FLAG_MPTCP": uint64(FlagMPTCP), "FLAG_KEEPOPEN": uint64(FlagKeepOpen),
			"FLAG_LINGER": uint64(FlagLinger), "FLAG_DEAD": uint64(FlagDead), "FLAG_USER": uint64(FlagUser),
			"FLAG_OUT": uint64(FlagOut), "FLAG_NO_SOCK": uint64(FlagNoSock),
		},
		"owner_via": {
			"VIA_NONE": uint64(ViaNone), "VIA_CONNECT": uint64(ViaConnect), "VIA_LISTEN": uint64(ViaListen),
			"VIA_RECV": uint64(ViaRecv), "VIA_CLOSE": uint64(ViaClose), "VIA_SEND": uint64(ViaSend), "VIA_CALL": uint64(ViaCall),
		},
	} {
		t.Run(name, func(t *testing.T) {
			var enum *btf.Enum
			if err := types.TypeByName(name, &enum); err != nil {
				t.Fatal(err)
			}
			for _, v := range enum.Values {
				got, ok := goValues[v.Name]
				switch {
				case !ok:
					t.Errorf("%s = %d has no name in Go: add it to names.go and here", v.Name, v.Value)
				case got != v.Value:
					t.Errorf("%s is %d in C and %d in Go", v.Name, v.Value, got)
				}
				// Each has to fit the byte of the record that carries it.
				if v.Value > 255 {
					t.Errorf("%s = %d does not fit a byte", v.Name, v.Value)
				}
			}
			if len(goValues) != len(enum.Values) {
				t.Errorf("%d values in C, %d names in Go", len(enum.Values), len(goValues))
			}
		})
	}
	// Every enum of record.h is above: the object carries them in one variable.
	v := structOfVar(t, types, "enums")
	if len(v.Members) != 7 {
		t.Errorf("the object carries %d enums, this test knows 7", len(v.Members))
	}
}

func structOfVar(t *testing.T, types *btf.Spec, name string) *btf.Struct {
	t.Helper()
	var v *btf.Var
	if err := types.TypeByName(name, &v); err != nil {
		t.Fatal(err)
	}
	s, ok := btf.UnderlyingType(v.Type).(*btf.Struct)
	if !ok {
		t.Fatalf("%s is a %v", name, v.Type)
	}
	return s
}

// TestCountersCoverPrograms: each program counts in a slot of its own.
func TestCountersCoverPrograms(t *testing.T) {
	spec, err := LoadObserve()
	if err != nil {
		t.Fatal(err)
	}
	if n := spec.Maps["counters"].MaxEntries; n != uint32(ProgMax) {
		t.Errorf("%d counters for %d programs", n, ProgMax)
	}
	if n := len(spec.Programs) + 1; n != int(ProgMax) { // wire.bpf.c has one, in two forms
		t.Errorf("%d programs, %d program ids", n, ProgMax)
	}
}
