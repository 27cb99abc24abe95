package target

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"
)

// checkEvery is how often is checked what the kernel has no event for.
const checkEvery = 250 * time.Millisecond

// ChangeKind is what happened to a target. Its String is the word of the
// evidence file.
type ChangeKind uint8

// The kinds of a [Change].
const (
	Attached     ChangeKind = iota // a namespace is there; the receiver owns it and closes it after Gone
	Gone                           // it is not there any more, though it lives until it is closed
	Renamed                        // the target is gone, but Heir names the namespace too: it stays attached
	Waiting                        // it is not there yet; Detail says why
	Paused                         // the container's processes are frozen
	Unpaused                       // and run again
	Connected                      // the container was connected to network Detail
	Disconnected                   // and disconnected
)

var changeNames = [...]string{"attached", "gone", "renamed", "waiting", "paused", "unpaused", "connected", "disconnected"}

func (k ChangeKind) String() string {
	if int(k) < len(changeNames) {
		return changeNames[k]
	}
	return "change " + strconv.Itoa(int(k))
}

// Change is one step in the life of a target.
type Change struct {
	// MonoNS is CLOCK_MONOTONIC when the change was seen, in nanoseconds: for
	// named namespaces and processes within a fraction of a millisecond of it,
	// for what the engine reports on receipt, after the fact by as long as the
	// engine took.
	MonoNS uint64
	Kind   ChangeKind
	Name   string // the target, as given
	// Namespace is what the change concerns; nil for Waiting and for the
	// removal of a target that had none.
	Namespace *Namespace
	// Alias: Name is a further name of Namespace, which was (Attached) or
	// stays (Gone) attached under another. There is nothing to open or close.
	Alias     bool
	Heir      Heir   // Renamed
	Detail    string // what showed it; the network's name for Connected and Disconnected
	Container string // full id, for a container
	Final     bool   // Gone and Renamed: the target cannot come back
}

// Heir is the target by which a namespace is named from now on: it was an
// alias, of that generation.
type Heir struct {
	Name       string
	Generation int
	Container  string // full id, for a container
}

// Options of [Watch].
type Options struct {
	// Wait for targets that do not exist yet, instead of failing.
	Wait bool
}

// Watcher follows targets. Its methods are safe for concurrent use.
type Watcher struct {
	changes chan Change
	cancel  context.CancelFunc
	wg      sync.WaitGroup

	// To the one goroutine that owns all below.
	reports chan report
	mounted chan struct{}

	mounts  *os.File
	targets []*target
	live    map[nsID]*held
	queue   []Change
}

// target is a spec and what it names now.
type target struct {
	spec  Spec
	kind  Kind   // Bare until it is known
	path  string // of the namespace file; empty for a container
	cur   *held
	gen   int
	pidfd *os.File
	// token is the namespace as it was opened for this target: reports about
	// another concern an earlier generation.
	token     *Namespace
	container string
	final     bool
	trouble   string // why it could not be opened, as last reported
}

// held is an attached namespace and the targets that name it. It is called
// after the first.
type held struct {
	ns *Namespace
	by []*target
}

// report is what a source of changes tells the Watcher.
type report struct {
	t         *target
	kind      ChangeKind
	token     *Namespace // Attached: the new one, else the one concerned
	pidfd     *os.File
	mono      uint64
	detail    string
	container string
	final     bool
}

// Watch finds specs and follows them until ctx ends or Close is called. The
// present state comes first: one Attached, or with Options.Wait one Waiting,
// for each spec in order. Errors are those of [Resolve].
//
// Each [Namespace] of an Attached that is no alias belongs to the receiver.
// It must stay open until its Gone, by which the Watcher tells it from its
// successor, and be closed then.
func Watch(ctx context.Context, specs []Spec, o Options) (*Watcher, error) {
	w := &Watcher{
		changes: make(chan Change),
		reports: make(chan report),
		mounted: make(chan struct{}, 1),
		live:    make(map[nsID]*held),
	}
	// What happens from here on is found in the mount table, the pidfds and
	// the engine's events since now.
	var err error
	if w.mounts, err = openMounts(); err != nil {
		return nil, err
	}
	since := time.Now().UnixNano()
	r := new(resolver)
	defer r.close()
	follow := &containers{since: since}
	for _, s := range specs {
		t := &target{spec: s, kind: s.Kind, path: s.path()}
		w.targets = append(w.targets, t)
		f, err := r.resolve(ctx, s)
		mono := monoNow()
		switch {
		case err == nil:
			if f.kind == Docker {
				c := follow.add(t)
				c.found(f.ctr, f.ns)
			}
			w.attach(report{t: t, token: f.ns, pidfd: f.pidfd, mono: mono, detail: attachDetail(f), container: f.ctr.id}, f.kind)
		case o.Wait && waitable(err):
			if s.Kind == Docker || s.Kind == Bare && isContainerRef(s.Name) {
				follow.add(t)
			}
			var e *Error
			errors.As(err, &e)
			w.queue = append(w.queue, Change{MonoNS: mono, Kind: Waiting, Name: s.String(), Detail: e.Detail})
		default:
			w.release()
			return nil, err
		}
	}
	ctx, w.cancel = context.WithCancel(ctx)
	for _, t := range w.targets {
		w.watchExit(ctx, t)
	}
	w.wg.Go(func() {
		_ = wait(w.mounts, func() bool { // ends when it is closed
			select {
			case w.mounted <- struct{}{}:
			default: // a check is due anyway
			}
			return false
		})
	})
	if len(follow.all) > 0 {
		follow.report = func(r report) { w.report(ctx, r) }
		w.wg.Go(func() { follow.run(ctx) })
	}
	w.wg.Go(func() { w.run(ctx) })
	return w, nil
}

// Changes is closed after the last change: when every target is final, ctx
// ended or Close was called.
func (w *Watcher) Changes() <-chan Change { return w.changes }

// Close ends the watch and waits for it. Namespaces that were received stay
// open.
func (w *Watcher) Close() {
	w.cancel()
	w.wg.Wait()
}

// path is the file that names the namespace of s, or "".
func (s Spec) path() string {
	switch s.Kind {
	case Bare, Netns:
		return namedPath(s.Name)
	case PID:
		return "/proc/" + s.Name + "/ns/net"
	case Path:
		return s.Name
	case Host:
		return hostPath()
	}
	return ""
}

func attachDetail(f found) string {
	switch f.kind {
	case Netns:
		return "named namespace"
	case Docker:
		d := fmt.Sprintf("container %s, process %d", f.ctr.name, f.ctr.pid)
		if f.ctr.paused {
			d += ", paused"
		}
		return d
	case PID:
		return "process"
	case Path:
		return "namespace file"
	}
	switch {
	case nested():
		return "the machine's first namespace, seen from a pid namespace"
	case hostPath() != procPath(1):
		return "namespace of this process, which may not look at process 1"
	}
	return "namespace of process 1"
}

// run owns the state of the Watcher.
func (w *Watcher) run(ctx context.Context) {
	ticker := time.NewTicker(checkEvery)
	defer ticker.Stop()
	defer close(w.changes)
	defer w.cancel() // ends the sources
	defer w.release()
	for {
		var out chan<- Change
		var next Change
		if len(w.queue) > 0 {
			out, next = w.changes, w.queue[0]
		} else if w.done() {
			return
		}
		var tick <-chan time.Time
		if w.needTick() {
			tick = ticker.C
		}
		select {
		case <-ctx.Done():
			return
		case out <- next:
			w.queue = w.queue[1:]
		case <-w.mounted:
			w.checkAll(ctx)
		case <-tick:
			w.checkAll(ctx)
		case r := <-w.reports:
			w.apply(ctx, r)
		}
	}
}

// release closes what nobody else will.
func (w *Watcher) release() {
	w.mounts.Close()
	for _, t := range w.targets {
		t.closeProcess()
	}
	for _, c := range w.queue {
		if c.Kind == Attached && !c.Alias {
			c.Namespace.Close()
		}
	}
	w.queue = nil
}

func (t *target) closeProcess() {
	if t.pidfd != nil {
		t.pidfd.Close()
		t.pidfd = nil
	}
}

func (w *Watcher) done() bool {
	for _, t := range w.targets {
		if !t.final {
			return false
		}
	}
	return true
}

// needTick reports whether there is a target without an event for every
// change.
func (w *Watcher) needTick() bool {
	for _, t := range w.targets {
		if !t.final && (t.kind == Path || t.kind == PID || t.trouble != "") {
			return true
		}
	}
	return false
}

// report hands r to the Watcher, unless that has ended.
func (w *Watcher) report(ctx context.Context, r report) {
	select {
	case w.reports <- r:
	case <-ctx.Done():
		if r.kind == Attached {
			r.token.Close()
			r.pidfd.Close()
		}
	}
}

// watchExit reports the end of the process by which t was reached.
func (w *Watcher) watchExit(ctx context.Context, t *target) {
	if t.pidfd == nil {
		return
	}
	// Copied: t belongs to another goroutine.
	pidfd, pid, r := t.pidfd, t.token.PID, report{t: t, kind: Gone, token: t.token, final: t.kind == PID}
	w.wg.Go(func() {
		if waitExit(pidfd) != nil {
			return // closed
		}
		r.mono = monoNow()
		r.detail = fmt.Sprintf("process %d ended", pid)
		w.report(ctx, r)
	})
}

// apply takes a report into the state.
func (w *Watcher) apply(ctx context.Context, r report) {
	t := r.t
	switch {
	case t.final:
		// Nothing can come.
	case r.kind == Attached && t.cur == nil && (t.kind == Docker || t.kind == Bare):
		w.attach(r, Docker)
		w.watchExit(ctx, t)
		return
	case r.kind == Waiting && t.cur == nil && t.kind != Netns:
		w.queue = append(w.queue, Change{MonoNS: r.mono, Kind: Waiting, Name: t.spec.String(), Detail: r.detail})
	case r.kind == Gone && r.token == nil && r.final && t.cur == nil:
		t.final = true
		w.queue = append(w.queue, Change{MonoNS: r.mono, Kind: Gone, Name: t.spec.String(), Detail: r.detail, Container: r.container, Final: true})
	case r.token == nil || r.token != t.token:
		// Of an earlier generation.
	case r.kind == Gone:
		w.gone(t, r.mono, r.detail, r.final)
	case r.kind != Attached:
		w.queue = append(w.queue, Change{
			MonoNS: r.mono, Kind: r.kind, Name: t.spec.String(), Namespace: t.cur.ns, Alias: t.cur.by[0] != t,
			Detail: r.detail, Container: t.container,
		})
	}
	if r.kind == Attached {
		r.token.Close()
		r.pidfd.Close()
	}
}

// attach makes the namespace of r the next generation of its target.
func (w *Watcher) attach(r report, kind Kind) {
	t, ns := r.t, r.token
	t.kind, t.token, t.pidfd, t.container, t.trouble = kind, ns, r.pidfd, r.container, ""
	t.gen++
	c := Change{MonoNS: r.mono, Kind: Attached, Name: t.spec.String(), Detail: r.detail, Container: r.container}
	h := w.live[ns.id()]
	if h == nil {
		ns.Name, ns.Generation = t.spec.String(), t.gen
		h = &held{ns: ns}
		w.live[ns.id()] = h
	} else {
		ns.Close()
		c.Alias = true
		c.Detail += ", the same namespace as " + h.by[0].spec.String()
	}
	h.by = append(h.by, t)
	t.cur, c.Namespace = h, h.ns
	w.queue = append(w.queue, c)
}

// gone ends the generation of t.
func (w *Watcher) gone(t *target, mono uint64, detail string, final bool) {
	h := t.cur
	named := h.by[0] == t
	h.by = slices.DeleteFunc(h.by, func(o *target) bool { return o == t })
	c := Change{MonoNS: mono, Kind: Gone, Name: t.spec.String(), Namespace: h.ns, Detail: detail, Container: t.container, Final: final}
	switch {
	case len(h.by) == 0:
		delete(w.live, h.ns.id())
	case named:
		h.choose()
		c.Kind, c.Heir = Renamed, Heir{h.by[0].spec.String(), h.by[0].gen, h.by[0].container}
	default:
		c.Alias = true
	}
	t.cur, t.token, t.container, t.final = nil, nil, "", final
	t.closeProcess()
	w.queue = append(w.queue, c)
}

// choose puts a target first that lives: what ends one may have ended another,
// whose report is still to come.
func (h *held) choose() {
	if i := slices.IndexFunc(h.by, (*target).lives); i > 0 {
		h.by[0], h.by[i] = h.by[i], h.by[0]
	}
}

func (t *target) lives() bool {
	if t.pidfd != nil {
		return !exited(t.pidfd)
	}
	id, ok := fileID(t.path)
	return ok && id == t.cur.ns.id()
}

// troubled reports once that t is there but cannot be opened.
func (w *Watcher) troubled(t *target, mono uint64, detail string) {
	if t.trouble == detail {
		return
	}
	t.trouble = detail
	w.queue = append(w.queue, Change{MonoNS: mono, Kind: Waiting, Name: t.spec.String(), Detail: detail})
}

// checkAll looks at the file of every target that has one. What ended comes
// first, and of one namespace the name that it bears last: it must not pass to
// one that ended as well.
func (w *Watcher) checkAll(ctx context.Context) {
	var there, gone, named []seen
	for _, t := range w.targets {
		if t.final || t.kind != Bare && t.kind != Netns && t.kind != Path && t.kind != PID {
			continue
		}
		x := seen{t: t}
		x.id, x.ok = fileID(t.path)
		x.mono = monoNow()
		there = append(there, x)
		switch detail := x.ended(); {
		case detail == "":
		case t.cur.by[0] == t:
			named = append(named, x)
		default:
			gone = append(gone, x)
		}
	}
	for _, x := range append(gone, named...) {
		w.gone(x.t, x.mono, x.ended(), x.t.kind == Path)
	}
	for _, x := range there {
		if x.t.cur == nil && !x.t.final {
			w.open(ctx, x)
		}
	}
}

// seen is what the file of a target names.
type seen struct {
	t    *target
	id   nsID
	ok   bool
	mono uint64
}

// ended says why what is attached is not there any more, or "".
func (x seen) ended() string {
	t := x.t
	switch {
	case t.cur == nil, x.ok && x.id == t.cur.ns.id():
		return ""
	case t.kind == PID && !x.ok:
		return "" // the pidfd tells
	case t.kind == PID:
		return "the process moved to another namespace"
	case t.kind == Path:
		return "the file names it no longer"
	case x.ok:
		return "name deleted and given to another namespace"
	}
	return "name deleted"
}

// open attaches what the file names now.
func (w *Watcher) open(ctx context.Context, x seen) {
	t := x.t
	if !x.ok {
		t.trouble = ""
		return
	}
	f, err := new(resolver).resolve(ctx, Spec{t.fileKind(), t.spec.Name})
	switch {
	case err == nil:
		w.attach(report{t: t, token: f.ns, pidfd: f.pidfd, mono: monoNow(), detail: attachDetail(f)}, f.kind)
		w.watchExit(ctx, t)
	case !waitable(err):
		w.troubled(t, x.mono, err.Error())
	}
}

func (t *target) fileKind() Kind {
	if t.kind == Bare {
		return Netns
	}
	return t.kind
}
