package events

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/bpf"
)

const recordSize = int(unsafe.Sizeof(bpf.Record{}))

func recordBytes(r *bpf.Record) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(r)), recordSize)
}

// life is what happens to a few connections, in every kind of record.
func life() []bpf.Record {
	l, c, srv, d := newConn(1), newConn(2), newConn(3), newConn(4)
	comm := func(pid uint32, name string, via uint8) func(*bpf.Record) {
		return func(r *bpf.Record) {
			r.OwnerPid, r.OwnerVia, r.SockInode = pid, via, 61234
			copy(r.OwnerComm[:], name)
		}
	}
	srv.local = l.local
	listening := l.moves(stateClose, stateListen, comm(1, "server", bpf.ViaListen))
	recs := []bpf.Record{
		newConn(9).at(0, bpf.KindInventory, comm(3, "old", bpf.ViaNone)),
		listening,
		c.moves(stateClose, stateSynSent, comm(2, "client", bpf.ViaConnect)),
		l.at(ms, bpf.KindSynAck, func(r *bpf.Record) { r.SegFlags, r.Rto = flagSYN|flagACK, 250 }),
		srv.moves(stateSynRecv, stateEstablished, nil),
		c.moves(stateSynSent, stateEstablished, comm(2, "client", bpf.ViaConnect)),
		srv.at(ms, bpf.KindOwner, comm(4, "worker", bpf.ViaRecv)),
		c.retransmits(200 * ms), c.retransmits(400 * ms), c.retransmits(800 * ms), c.acked(ms, 2000),
		srv.at(ms, bpf.KindReceive, func(r *bpf.Record) {
			r.Why, r.SegSeq, r.SegEndSeq, r.SegFlags = bpf.ReceiveArrival, 500, 1500, flagACK
		}),
		srv.at(ms, bpf.KindReceive, func(r *bpf.Record) { r.Why, r.SegFlags = bpf.ReceiveProbe, flagACK }),
		c.at(ms, bpf.KindWire, func(r *bpf.Record) {
			r.Why, r.Flags, r.SegFlags = bpf.WireProbe, bpf.FlagFullSock|bpf.FlagOut, flagACK
		}),
		srv.rst(ms, true), srv.resetSent(ms, 22), srv.moves(stateEstablished, stateClose, errored(unix.ETIMEDOUT)),
		srv.at(ms, bpf.KindError, errored(unix.ETIMEDOUT)), srv.destroyed(),
		c.retransmits(300 * ms), c.rst(ms, false), c.resetReceived(ms), c.moves(stateEstablished, stateClose, errored(unix.ECONNRESET)), c.destroyed(),
		d.moves(stateClose, stateSynSent, comm(2, "client", bpf.ViaConnect)), d.moves(stateSynSent, stateEstablished, nil),
		d.at(ms, bpf.KindResetSent, func(r *bpf.Record) { r.SockAddr, r.Flags, r.SegSegs, r.ArgB = 0, bpf.FlagNoSock, 1, 1 }),
		d.rst(ms, true), d.rst(ms, false), d.rst(ms, false),
		d.moves(stateEstablished, stateFinWait1, flagged(bpf.FlagUser)), d.moves(stateFinWait1, stateFinWait2, nil),
		d.moves(stateFinWait2, stateClose, both(flagged(bpf.FlagUser|bpf.FlagLinger), shut(3))), d.resetSent(ms, 25), d.destroyed(),
		l.moves(stateListen, stateClose, nil), l.destroyed(),
	}
	return recs
}

// FuzzTrack: whatever the records hold, the tracker does not panic, and each
// line it makes is valid, as the schema has it, and reads back as it was.
func FuzzTrack(f *testing.F) {
	seed := []byte{1}
	for _, r := range life() {
		seed = append(seed, recordBytes(&r)...)
		f.Add(append([]byte{2}, recordBytes(&r)...))
	}
	f.Add(seed)
	f.Add(append([]byte{0}, bytes.Repeat([]byte{0xff}, 3*recordSize)...))
	f.Add(make([]byte, 1+2*recordSize))
	schema := compileSchema(f)

	f.Fuzz(func(t *testing.T, data []byte) { trackBytes(t, schema, data) })
}

// TestTrackRandom is the fuzzer with plain luck: records of real life with
// some bytes changed, in any order.
func TestTrackRandom(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	schema, recs := compileSchema(t), life()
	for range 50 {
		data := []byte{byte(r.Uint32())}
		for range 60 {
			rec := recs[r.IntN(len(recs))]
			b := recordBytes(&rec)
			for range r.IntN(4) {
				b[r.IntN(len(b))] = byte(r.Uint32())
			}
			if r.IntN(8) == 0 {
				for i := range b {
					b[i] = byte(r.Uint32())
				}
			}
			data = append(data, b...)
		}
		trackBytes(t, schema, data)
	}
}

// trackBytes tracks the records that data holds, after one byte that
// configures the tracker, and checks each line.
func trackBytes(t *testing.T, schema *jsonschema.Schema, data []byte) {
	t.Helper()
	if len(data) == 0 {
		return
	}
	seq := uint64(0)
	cfg := testConfig(func(e *Event) error {
		seq++
		e.Seq = seq
		line := e.AppendJSON(nil)
		if err := validate(t, schema, line); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		var back Event
		if err := json.Unmarshal(line, &back); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		want := *e
		if e.Owner != nil { // bytes that are no text become U+FFFD
			owner := *e.Owner
			owner.Comm = string([]rune(owner.Comm))
			want.Owner = &owner
		}
		if e.Drop != nil {
			drop := *e.Drop
			drop.Device = string([]rune(drop.Device))
			want.Drop = &drop
		}
		if e.Neighbour != nil {
			n := *e.Neighbour
			n.Device, n.Comm = string([]rune(n.Device)), string([]rune(n.Comm))
			want.Neighbour = &n
		}
		if !reflect.DeepEqual(want, back) {
			t.Fatalf("reads back as something else (-want +got):\n%s", cmp.Diff(want, back, equateAddrs))
		}
		return nil
	})
	cfg.HZ = []uint32{100, 250, 300, 1000}[data[0]%4]
	cfg.EdgeSeen = data[0]&4 == 0
	cfg.ByAddress, cfg.NoCookies = data[0]&8 != 0, data[0]&16 != 0
	tr := NewTracker(cfg)
	tr.AddOwners(map[uint64]Owner{61: {PID: 3, Comm: "born-before", Via: "proc"}})
	tr.AddNamespace(Netns{Name: "a", Generation: 1, Inode: testInode, Cookie: 7}, Defaults{KeepaliveTimeMs: 7_200_000, SynLinearTimeouts: 4})
	tr.AddNamespace(Netns{Name: "b", Generation: 2, Inode: testInode + 1}, Defaults{})

	var foreign uint64
	for data = data[1:]; len(data) >= recordSize; data = data[recordSize:] {
		var r bpf.Record
		copy(recordBytes(&r), data)
		// Else nearly every record would be of another namespace, of no
		// kind, and of a socket of its own.
		if r.NetnsInode != testInode {
			r.NetnsInode = testInode + r.NetnsInode%3
		}
		if r.NetCookie %= 4; r.NetCookie != 0 {
			r.NetCookie = 7
		}
		r.Kind %= bpf.KindMax + 1
		r.SockAddr &^= 0xfffffffffffffff0 &^ 0xffff888000000000
		if r.NetnsInode == testInode+2 {
			foreign++
		}
		if err := tr.Track(&r); err != nil {
			t.Fatal(err)
		}
		if r.Cpu%5 == 0 {
			if err := tr.Tick(r.MonoNs); err != nil {
				t.Fatal(err)
			}
		}
		if r.Cpu%97 == 1 {
			tr.RemoveNamespace(testInode + 1)
			tr.AddNamespace(Netns{Name: "b", Generation: 3, Inode: testInode + 1}, Defaults{})
		}
	}
	if tr.Foreign() < foreign {
		t.Errorf("%d foreign records, at least %d are", tr.Foreign(), foreign)
	}
	if err := tr.Finish(); err != nil {
		t.Fatal(err)
	}
	if len(tr.held) != 0 || len(tr.expect) != 0 {
		t.Errorf("%d and %d still wait after the end", len(tr.held), len(tr.expect))
	}
	tr.RemoveNamespace(testInode)
	tr.RemoveNamespace(testInode + 1)
	if tr.Sockets() != 0 || len(tr.listeners) != 0 || len(tr.tuples) != 0 {
		t.Errorf("%d sockets, %d listening addresses and %d connections of no namespace", tr.Sockets(), len(tr.listeners), len(tr.tuples))
	}
}

// TestLife holds the seed of the fuzzer and the benchmark to what it is for:
// every type of event that records make.
func TestLife(t *testing.T) {
	r := newRig(t)
	r.feed(life()...)
	r.tick(1 << 62)
	seen := map[Type]int{}
	causes := map[string]bool{}
	for _, e := range r.got {
		seen[e.Type]++
		if e.Abort != nil {
			causes[e.Abort.Cause] = true
		}
	}
	for _, typ := range []Type{TypeInventory, TypeRetransmit, TypeProbe, TypeState, TypeReset, TypeAbort, TypeRecovered, TypeArrival, TypeError} {
		if seen[typ] == 0 {
			t.Errorf("no event of type %s", typ)
		}
	}
	for _, cause := range []string{abortKeepalive, abortReset, abortLinger} {
		if !causes[cause] {
			t.Errorf("no abort by %s, only %v", cause, causes)
		}
	}
	if r.Sockets() != 1 { // the one that was there before
		t.Errorf("%d sockets left", r.Sockets())
	}
}

// BenchmarkTrack measures a record on its way: track, which decodes, and
// encode. One operation is one event.
func BenchmarkTrack(b *testing.B) {
	recs := life()
	line := make([]byte, 0, 4096)
	emitted := 0
	tr := NewTracker(testConfig(func(e *Event) error {
		emitted++
		line = e.AppendJSON(line[:0])
		return nil
	}))
	tr.AddNamespace(Netns{Name: "controlplane", Generation: 1, Inode: testInode, Cookie: 7}, Defaults{})
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	b.ReportAllocs()
	b.ResetTimer()
	before := threadTime(b)
	for i := 0; emitted < b.N; i++ {
		if err := tr.Track(&recs[i%len(recs)]); err != nil {
			b.Fatal(err)
		}
		if i%len(recs) == len(recs)-1 {
			if err := tr.Tick(1 << 62); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(threadTime(b)-before)/float64(emitted), "cpu-ns/event")
}

// threadTime is the processor time of this thread, which another load on the
// machine does not change.
func threadTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestTrackAllocates: nothing for an event, but the words of an abort, which
// have numbers in them.
func TestTrackAllocates(t *testing.T) {
	line := make([]byte, 0, 4096)
	events, aborts := 0, 0
	tr := NewTracker(testConfig(func(e *Event) error {
		line = e.AppendJSON(line[:0])
		events++
		if e.Abort != nil {
			aborts++
		}
		return nil
	}))
	tr.AddNamespace(Netns{Name: "controlplane", Generation: 1, Inode: testInode, Cookie: 7}, Defaults{})
	recs := life()
	run := func() {
		for i := range recs {
			if err := tr.Track(&recs[i]); err != nil {
				t.Fatal(err)
			}
		}
		if err := tr.Tick(1 << 62); err != nil {
			t.Fatal(err)
		}
	}
	run() // sockets, names and lists are made once
	events, aborts = 0, 0
	const runs = 100
	allocs := testing.AllocsPerRun(runs, run)
	events /= runs + 1
	aborts /= runs + 1
	if events < 30 || aborts != 3 {
		t.Fatalf("%d events and %d aborts a run", events, aborts)
	}
	// The three aborts, the record of the one that waits for its RST, and the
	// list of listeners.
	if perEvent := allocs / float64(events); perEvent >= 0.25 {
		t.Errorf("%v allocations for %d events, %d of them aborts", allocs, events, aborts)
	}
	for _, rec := range recs {
		if rec.Kind == bpf.KindState && (rec.ArgB == stateClose || rec.ArgB == stateListen) {
			continue // the words of an abort; the list of a port's listeners
		}
		one := func() {
			if err := tr.Track(&rec); err != nil {
				t.Fatal(err)
			}
		}
		one()
		if n := testing.AllocsPerRun(200, one); n != 0 {
			t.Errorf("%v allocations for a record of kind %d", n, rec.Kind)
		}
	}
}
