package loader

import (
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/bpf"
)

// Probe tries what Open and Watch do, each program by itself, and says of each
// how it is attached here or why it cannot be. What it attaches it detaches
// again; it watches a namespace made for the purpose, no existing one.
//
// Blind are the blind spots of what works. The error is that of a machine
// where nothing can be tried at all: no BTF, no privileges.
func Probe() (features []Feature, blind []string, err error) {
	cache := btf.NewCache()
	k, err := probeKernel(cache)
	if err != nil {
		return nil, nil, err
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, nil, fmt.Errorf("raise the limit of locked memory: %w", err)
	}
	o := &Observer{
		kernel:  k,
		cache:   cache,
		opts:    Options{RingBytes: uint64(os.Getpagesize()), ArrivalThreshold: time.Second, IO: true},
		watched: make(map[uint32]int),
	}
	defer o.Close()

	spec, err := bpf.LoadObserve()
	if err != nil {
		return nil, nil, fmt.Errorf("read the embedded object: %w", err)
	}
	if err := o.prepare(spec); err != nil {
		return nil, nil, err
	}
	maps := spec.Copy()
	maps.Programs = nil
	if o.objs, err = ebpf.NewCollection(maps); err != nil {
		return nil, nil, explain(program{name: "create the maps"}, err)
	}
	o.objs.Programs = make(map[string]*ebpf.Program)
	for _, p := range o.rows() {
		f := Feature{Name: p.name, Hook: p.hook, Method: MethodTracepoint, Since: p.since, Required: p.required, Lost: p.lost}
		if p.id == bpf.ProgIterTCP {
			f.Method = MethodIterator
		}
		if f.Err = explain(p, o.attach(spec, p)); f.Err != nil {
			f.Method = MethodNone
		}
		o.feature = append(o.feature, f)
	}
	if err := o.loadWire(); err != nil {
		return nil, nil, err
	}
	// The wire row is the last; whether it can be attached shows only inside a
	// namespace. A failed iterator shows there too and is not the wire's.
	wire := &o.feature[len(o.feature)-1]
	if wire.Err == nil && o.objs.Programs["iter_tcp"] != nil {
		if err := inNewNamespace(func(inode uint32) error {
			w, err := o.Watch(inode, 0)
			if err == nil {
				w.Close()
			}
			return err
		}); err != nil {
			wire.Method, wire.Err = MethodNone, err
		}
	}
	return o.Features(), o.BlindSpots(), nil
}

// inNewNamespace runs f on a thread in a new network namespace. Thread and
// namespace end with it.
func inNewNamespace(f func(inode uint32) error) error {
	errc := make(chan error)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			// The main thread cannot be ended. While it is held here, another
			// is used.
			errc <- inNewNamespace(f)
			runtime.UnlockOSThread()
			return
		}
		errc <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("make a network namespace: %w", err)
			}
			var st unix.Stat_t
			if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
				return fmt.Errorf("identify a network namespace: %w", err)
			}
			return f(uint32(st.Ino))
		}()
	}()
	return <-errc
}
