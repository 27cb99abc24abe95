// Package loader brings the BPF programs into the kernel, attaches them, and
// reads what they write.
//
// [Open] loads the host-wide tracepoints; they look at nothing until
// [Observer.Watch], called inside a network namespace, adds that namespace.
// Records come out of [Observer.Read] in the order in which the kernel reserved
// them. [Observer.Counts] says what the programs produced and what was lost.
package loader

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/bpf"
)

// DefaultRingBytes is the size of the ring buffer: about 28,000 records,
// a quarter of a second of the highest rate the budget knows.
const DefaultRingBytes = 8 << 20

// Options configure an Observer.
type Options struct {
	RingBytes        uint64        // power of two, a multiple of the page size; 0: DefaultRingBytes
	ArrivalThreshold time.Duration // silence that makes received data an arrival
	HZ               uint32        // ticks a second of the kernel
	IO               bool          // what applications write and read
	Segments         bool          // every segment at the edge, not only those of interest
	Wire             string        // MethodNetfilter or MethodPacket; empty: the best this kernel has
}

// Observer holds the loaded programs. Read is for one goroutine; the rest may
// be called from any.
type Observer struct {
	kernel  kernel
	opts    Options
	cache   *btf.Cache // the kernel's types, decoded once for all programs
	objs    *ebpf.Collection
	wire    *ebpf.Collection // netfilter; nil with MethodPacket
	flows   *ebpf.Map        // MethodPacket's
	links   []link.Link
	reader  *ringbuf.Reader
	raw     ringbuf.Record
	feature []Feature

	mu      sync.Mutex
	watched map[uint32]int // inode -> watches
}

// Open loads and attaches the host-wide programs.
func Open(opts Options) (*Observer, error) {
	if opts.RingBytes == 0 {
		opts.RingBytes = DefaultRingBytes
	}
	if err := checkRing(opts.RingBytes); err != nil {
		return nil, err
	}
	cache := btf.NewCache()
	k, err := probeKernel(cache)
	if err != nil {
		return nil, err
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("raise the limit of locked memory: %w", err)
	}
	o := &Observer{kernel: k, opts: opts, cache: cache, watched: make(map[uint32]int)}
	if err := o.load(); err != nil {
		o.Close()
		return nil, err
	}
	o.cache = nil // tens of megabytes
	return o, nil
}

func checkRing(n uint64) error {
	page := uint64(os.Getpagesize())
	if n < page || n&(n-1) != 0 || n > 1<<30 {
		return fmt.Errorf("ring size %d: it must be a power of two from %d to %d bytes", n, page, 1<<30)
	}
	return nil
}

func (o *Observer) load() error {
	spec, err := bpf.LoadObserve()
	if err != nil {
		return fmt.Errorf("read the embedded object: %w", err)
	}
	if err := o.prepare(spec); err != nil {
		return err
	}
	// Maps first, then each program by itself, so that one refused by this
	// kernel is named and the others still run.
	maps := spec.Copy()
	maps.Programs = nil
	if o.objs, err = ebpf.NewCollection(maps); err != nil {
		return explain(program{name: "create the maps"}, err)
	}
	o.objs.Programs = make(map[string]*ebpf.Program)
	for _, p := range o.rows() {
		method := MethodTracepoint
		if p.id == bpf.ProgIterTCP {
			method = MethodIterator
		}
		err := explain(p, o.attach(spec, p))
		f := Feature{Name: p.name, Hook: p.hook, Method: method, Since: p.since, Required: p.required, Lost: p.lost, Err: err}
		if err != nil {
			f.Method = MethodNone
			if p.required {
				return err
			}
		}
		o.feature = append(o.feature, f)
	}
	if err := o.loadWire(); err != nil {
		return err
	}
	if o.reader, err = ringbuf.NewReader(o.objs.Maps["events"]); err != nil {
		return fmt.Errorf("open the ring buffer: %w", err)
	}
	return nil
}

// prepare sets what the programs must know about this kernel, and the sizes.
func (o *Observer) prepare(spec *ebpf.CollectionSpec) error {
	spec.Maps["events"].MaxEntries = uint32(o.opts.RingBytes)
	if o.kernel.skStorage {
		spec.Maps["notes_by_addr"].MaxEntries = 1 // not used
	}
	hz := uint64(o.opts.HZ)
	if hz == 0 {
		hz = 250
	}
	for name, value := range map[string]any{
		"have_socket_cookie":    o.kernel.socketCookie,
		"have_sk_storage":       o.kernel.skStorage,
		"have_task_btf":         o.kernel.taskBTF,
		"have_rdonly_cast":      o.kernel.rdonlyCast,
		"retransmit_has_err":    o.kernel.retransmitHasErr,
		"send_reset_has_reason": o.kernel.sendResetHasReason,
		"wakeup_bytes":          o.opts.RingBytes / 2,
		"every_segment":         o.opts.Segments,
		"watch_io":              o.opts.IO,
		"have_task_from_pid":    o.kernel.taskFromPid,
		"kfree_skb_has_reason":  o.kernel.dropHasReason,
		"kfree_skb_has_rx_sk":   o.kernel.dropHasSocket,
		"drop_nothing":          reasonsWhere(o.kernel.dropReasons, losesNothing),
		"drop_handled":          reasonsWhere(o.kernel.dropReasons, handledByTCP),
		"drop_unsaid":           reasonsWhere(o.kernel.dropReasons, saysNothing),
		"arrival_jiffies":       uint32(max(1, uint64(o.opts.ArrivalThreshold)*hz/uint64(time.Second))),
	} {
		v, ok := spec.Variables[name]
		if !ok {
			continue // the wire object has only some of them
		}
		if err := v.Set(value); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	return nil
}

func (o *Observer) attach(spec *ebpf.CollectionSpec, p program) error {
	one := spec.Copy()
	for name := range one.Programs {
		if name != p.name {
			delete(one.Programs, name)
		}
	}
	coll, err := ebpf.NewCollectionWithOptions(one, ebpf.CollectionOptions{MapReplacements: o.objs.Maps, Cache: o.cache})
	if err != nil {
		return err
	}
	defer coll.Close()
	prog := coll.DetachProgram(p.name)
	o.objs.Programs[p.name] = prog
	if p.id == bpf.ProgIterTCP {
		return nil
	}
	l, err := link.AttachTracing(link.TracingOptions{Program: prog})
	if err != nil {
		return err
	}
	o.links = append(o.links, l)
	return nil
}

func (o *Observer) wireSpec() (*ebpf.CollectionSpec, error) {
	spec, err := bpf.LoadWire()
	if err != nil {
		return nil, fmt.Errorf("read the embedded object: %w", err)
	}
	return spec, o.prepare(spec)
}

// shared are the maps that both objects use. Their .rodata stays their own.
func (o *Observer) shared() map[string]*ebpf.Map {
	shared := make(map[string]*ebpf.Map)
	for _, name := range []string{"events", "counters", "watched_bits", "watched", "notes", "notes_by_addr"} {
		shared[name] = o.objs.Maps[name]
	}
	return shared
}

func (o *Observer) loadWire() error {
	row := program{id: bpf.ProgWire, name: "wire", hook: "netfilter LOCAL_IN and LOCAL_OUT in each namespace", since: "6.4"}
	f := Feature{Name: row.name, Hook: row.hook, Method: MethodNetfilter, Since: row.since, Required: true, Lost: "probes, and resets without a socket"}
	var err error
	if o.opts.Wire != MethodPacket {
		if err = o.loadNetfilter(); err == nil {
			o.feature = append(o.feature, f)
			return nil
		}
		if o.opts.Wire == MethodNetfilter {
			return explain(row, err)
		}
	}
	f.Method, f.Hook = MethodPacket, "AF_PACKET socket in each namespace"
	o.feature = append(o.feature, f)
	spec, err := o.wireSpec()
	if err != nil {
		return err
	}
	// One for all namespaces: each has a program of its own.
	if o.flows, err = ebpf.NewMap(spec.Maps["flows"]); err != nil {
		return fmt.Errorf("create the map of flows: %w", err)
	}
	return nil
}

func (o *Observer) loadNetfilter() error {
	if !o.kernel.rdonlyCast {
		return ebpf.ErrNotSupported
	}
	spec, err := o.wireSpec()
	if err != nil {
		return err
	}
	delete(spec.Programs, "wire_packet")
	o.wire, err = ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: o.shared(), Cache: o.cache})
	return err
}

// Features says how each program is attached, or why not.
func (o *Observer) Features() []Feature { return slices.Clone(o.feature) }

// WireMethod is how the namespace's edge is watched.
func (o *Observer) WireMethod() string {
	if o.wire != nil {
		return MethodNetfilter
	}
	return MethodPacket
}

// ResetReasons names the reasons of tcp_send_reset on this kernel, without
// their prefix; empty where it gives none.
func (o *Observer) ResetReasons() map[int32]string { return o.kernel.resetReasons }

// BlindSpots names what cannot be seen on this kernel.
func (o *Observer) BlindSpots() []string {
	spots := o.kernel.blindSpots(o.WireMethod())
	for _, f := range o.feature {
		if f.Err != nil {
			spots = append(spots, fmt.Sprintf("%s: not seen: %v", f.Lost, f.Err))
		}
	}
	return spots
}

// Watch is one namespace being watched. While it is open it keeps the
// namespace alive.
type Watch struct {
	o      *Observer
	inode  uint32
	links  []link.Link
	socket int // AF_PACKET, or -1
	once   sync.Once
}

// Watch starts watching the namespace that the calling thread is in, and
// writes a record for every socket in it. inode and cookie identify it.
func (o *Observer) Watch(inode uint32, cookie uint64) (*Watch, error) {
	w := &Watch{o: o, inode: inode, socket: -1}
	if err := o.addInode(inode); err != nil {
		return nil, err
	}
	var err error
	if o.wire != nil {
		err = w.attachNetfilter()
	} else {
		err = w.attachPacket(cookie)
	}
	if err == nil {
		err = o.inventory()
	}
	if err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

// The program sees what TCP hands out before any rule does, and what TCP is
// handed after every rule.
const (
	priorityFirst = -1<<31 + 1
	priorityLast  = 1<<31 - 2

	// The kernel gives each priority to one BPF program.
	maxNeighbours = 64
)

func (w *Watch) attachNetfilter() error {
	const localIn, localOut = 1, 3 // enum nf_inet_hooks
	for _, family := range []link.NetfilterProtocolFamily{unix.NFPROTO_IPV4, unix.NFPROTO_IPV6} {
		for hook, priority := range map[link.NetfilterInetHook]int32{localIn: priorityLast, localOut: priorityFirst} {
			step := int32(1)
			if priority > 0 {
				step = -1
			}
			var l link.Link
			var err error
			for range maxNeighbours {
				l, err = link.AttachNetfilter(link.NetfilterOptions{
					Program:        w.o.wire.Programs["wire_netfilter"],
					ProtocolFamily: family,
					Hook:           hook,
					Priority:       priority,
				})
				if !errors.Is(err, unix.EBUSY) {
					break
				}
				priority += step // another observer's
			}
			if errors.Is(err, unix.EAFNOSUPPORT) && family == unix.NFPROTO_IPV6 {
				continue // no IPv6 on this machine
			}
			if err != nil {
				return explain(program{name: "attach the netfilter link", hook: "BPF netfilter link", since: "6.4"}, err)
			}
			w.links = append(w.links, l)
		}
	}
	return nil
}

func (w *Watch) attachPacket(cookie uint64) error {
	spec, err := w.o.wireSpec()
	if err != nil {
		return err
	}
	delete(spec.Programs, "wire_netfilter")
	if err := spec.Variables["packet_netns_inode"].Set(w.inode); err != nil {
		return err
	}
	if err := spec.Variables["packet_netns_cookie"].Set(cookie); err != nil {
		return err
	}
	maps := w.o.shared()
	maps["flows"] = w.o.flows
	coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: maps})
	if err != nil {
		return explain(program{name: "wire_packet", hook: "socket filter", since: "5.8"}, err)
	}
	defer coll.Close() // the socket holds the program, and that its maps
	const ethPAll = 0x0003
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("open a packet socket: %w", err)
	}
	w.socket = fd
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ATTACH_BPF, coll.Programs["wire_packet"].FD()); err != nil {
		return fmt.Errorf("attach to the packet socket: %w", err)
	}
	// Bound last, so that nothing is queued before the filter turns it away.
	sa := &unix.SockaddrLinklayer{Protocol: ethPAll<<8 | ethPAll>>8}
	if err := unix.Bind(fd, sa); err != nil {
		return fmt.Errorf("bind the packet socket: %w", err)
	}
	return nil
}

// Close stops watching the namespace and lets go of it.
func (w *Watch) Close() {
	w.once.Do(func() {
		for _, l := range w.links {
			l.Close()
		}
		if w.socket >= 0 {
			unix.Close(w.socket)
		}
		w.o.removeInode(w.inode)
	})
}

const watchedBits = 1 << 16 // WATCHED_BITS

func (o *Observer) addInode(inode uint32) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.watched[inode]++
	if o.watched[inode] > 1 {
		return nil
	}
	if err := o.objs.Maps["watched"].Put(inode, uint32(1)); err != nil {
		delete(o.watched, inode)
		return fmt.Errorf("watch namespace %d: %w", inode, err)
	}
	return o.setBits(inode)
}

func (o *Observer) removeInode(inode uint32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.watched[inode]--
	if o.watched[inode] > 0 {
		return
	}
	delete(o.watched, inode)
	// Nothing to be done about an error: the map is about to go, or the key is gone.
	_ = o.objs.Maps["watched"].Delete(inode)
	_ = o.setBits(inode)
}

// setBits recomputes the word that inode falls into: other inodes share it.
func (o *Observer) setBits(inode uint32) error {
	word := inode % watchedBits / 64
	var bits uint64
	for other := range o.watched {
		if other%watchedBits/64 == word {
			bits |= 1 << (other % 64)
		}
	}
	return o.objs.Maps["watched_bits"].Put(word, bits)
}

// inventory writes a record for every socket of the thread's namespace.
func (o *Observer) inventory() error {
	it, err := link.AttachIter(link.IterOptions{Program: o.objs.Programs["iter_tcp"]})
	if err != nil {
		return explain(program{name: "iter_tcp", hook: "iter/tcp", since: "5.9"}, err)
	}
	defer it.Close()
	r, err := it.Open()
	if err != nil {
		return fmt.Errorf("list the sockets: %w", err)
	}
	defer r.Close()
	buf := make([]byte, 4096)
	for {
		n, err := r.Read(buf)
		if n == 0 || err != nil {
			return nil // the program prints nothing: the first read has visited every socket
		}
	}
}

// ErrFlushed is returned by Read once per Flush, when the ring is empty.
var ErrFlushed = ringbuf.ErrFlushed

// ErrClosed is returned by Read after Close.
var ErrClosed = ringbuf.ErrClosed

// Read waits for the next record and copies it to rec.
func (o *Observer) Read(rec *bpf.Record) error {
	if err := o.reader.ReadInto(&o.raw); err != nil {
		return err
	}
	if len(o.raw.RawSample) < int(unsafe.Sizeof(*rec)) {
		return fmt.Errorf("record of %d bytes, want %d: object and binary do not belong together", len(o.raw.RawSample), unsafe.Sizeof(*rec))
	}
	*rec = *(*bpf.Record)(unsafe.Pointer(unsafe.SliceData(o.raw.RawSample)))
	return nil
}

// Pending is the number of records in the ring, those included that are being
// written.
func (o *Observer) Pending() uint64 {
	const header, align = 8, 8
	size := header + (uint64(unsafe.Sizeof(bpf.Record{}))+align-1)&^(align-1)
	return uint64(o.reader.AvailableBytes()) / size
}

// Flush makes a waiting Read return: the records that are there, then ErrFlushed.
func (o *Observer) Flush() error { return o.reader.Flush() }

// Counts is what the programs did so far.
type Counts struct {
	Produced [bpf.ProgMax]uint64
	Lost     [bpf.ProgMax]uint64 // no room in the ring
	Missed   [bpf.ProgMax]uint64 // the hook fired while the program ran on that processor
	LostCPU  []uint64            // Lost, by processor
}

// Sum adds up one of the arrays of Counts.
func Sum(a [bpf.ProgMax]uint64) (n uint64) {
	for _, v := range a {
		n += v
	}
	return n
}

// Counts reads the programs' counters.
func (o *Observer) Counts() (Counts, error) {
	var c Counts
	var per []bpf.Counts
	for id := range bpf.ProgMax {
		if err := o.objs.Maps["counters"].Lookup(uint32(id), &per); err != nil {
			return c, fmt.Errorf("read the counters: %w", err)
		}
		if c.LostCPU == nil {
			c.LostCPU = make([]uint64, len(per))
		}
		for cpu, n := range per {
			c.Produced[id] += n.Produced
			c.Lost[id] += n.Lost
			c.LostCPU[cpu] += n.Lost
		}
	}
	for _, p := range o.rows() {
		prog := o.objs.Programs[p.name]
		if prog == nil {
			continue
		}
		stats, err := prog.Stats()
		if err != nil {
			return c, fmt.Errorf("read the statistics of %s: %w", p.name, err)
		}
		c.Missed[p.id] = stats.RecursionMisses
	}
	return c, nil
}

// RunTime is how often a program ran and for how long in all. The kernel
// counts only while statistics are on (kernel.bpf_stats_enabled).
type RunTime struct {
	Runs uint64
	Time time.Duration
}

// RunTimes reads the kernel's statistics of each program, by name.
func (o *Observer) RunTimes() (map[string]RunTime, error) {
	progs := make(map[string]*ebpf.Program)
	for name, p := range o.objs.Programs {
		progs[name] = p
	}
	if o.wire != nil {
		progs["wire"] = o.wire.Programs["wire_netfilter"]
	}
	times := make(map[string]RunTime, len(progs))
	for name, p := range progs {
		st, err := p.Stats()
		if err != nil {
			return nil, fmt.Errorf("read the statistics of %s: %w", name, err)
		}
		times[name] = RunTime{Runs: st.RunCount, Time: st.Runtime}
	}
	return times, nil
}

// Detach removes the host-wide programs. Records that are in the ring stay
// readable.
func (o *Observer) Detach() {
	for _, l := range o.links {
		l.Close()
	}
	o.links = nil
}

// Close detaches and unloads everything.
func (o *Observer) Close() {
	o.Detach()
	if o.reader != nil {
		o.reader.Close()
	}
	if o.wire != nil {
		o.wire.Close()
	}
	if o.flows != nil {
		o.flows.Close()
	}
	if o.objs != nil {
		o.objs.Close()
	}
}
