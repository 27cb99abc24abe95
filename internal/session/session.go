// Package session runs an observation: it brings targets, programs, tracker
// and sinks together. It is the one place that composes them; the command line
// and the tests both start it through [Run].
package session

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/bpf"
	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/evidence"
	"github.com/sockwatch/sockwatch/internal/loader"
	"github.com/sockwatch/sockwatch/internal/sink"
	"github.com/sockwatch/sockwatch/internal/target"
)

// Config is one observation.
type Config struct {
	Targets          []target.Spec
	SelfTest         bool               // before anything is watched; a failure ends the session
	Wait             bool               // wait for targets that do not exist yet
	Duration         time.Duration      // once every target is attached; 0: until the context ends
	ArrivalThreshold time.Duration      // silence that makes data an arrival
	RingBytes        uint64             // 0: loader.DefaultRingBytes
	IO               bool               // io events: what applications write and read
	Segments         bool               // segment events: every segment at the edge
	Wire             string             // loader.MethodNetfilter or MethodPacket; empty: the best there is
	Sinks            []sink.Sink        // each gets every event; the caller closes them
	ReadyFile        string             // created when every target is attached
	ControlDir       string             // where to listen for marks; empty: not at all
	Marks            <-chan MarkRequest // from this process, which closes it after Run; nil: none
	Notice           func(string)       // lines for people
	OnStart          func() error       // called once everything is attached that is there
	OnReady          func() error       // called once every target is attached
	Version, Commit  string
	Command          []string

	// Clock reads the clocks; nil: evidence.ClockPair.
	Clock func() (evidence.Pair, error)
}

// Result is how an observation went.
type Result struct {
	Summary events.Summary
	Reason  string
}

// The reasons for the end of a session, as they stand in the summary.
const (
	ReasonStopped     = "stopped"
	ReasonDuration    = "duration"
	ReasonTargetsGone = "targets-gone"
	ReasonOutput      = "output-failed"
	ReasonSelfTest    = "self-test-failed"
)

// ErrTargetsGone is returned when nothing is left to watch and nothing can
// come back.
var ErrTargetsGone = errors.New("every target is gone for good")

// OutputError is a sink that failed. What it wrote before stays.
type OutputError struct{ Err error }

func (e *OutputError) Error() string { return e.Err.Error() }
func (e *OutputError) Unwrap() error { return e.Err }

const (
	tickEvery  = 100 * time.Millisecond // flush and look after what waits
	countEvery = time.Second            // ask for lost records
	clockEvery = 10 * time.Second
)

// DefaultArrivalThreshold is the silence that makes received data an arrival.
const DefaultArrivalThreshold = time.Second

// Run observes until ctx ends, the duration is over or the targets are gone
// for good, and writes header and footer around the events.
func Run(ctx context.Context, cfg Config) (*Result, error) {
	if cfg.Notice == nil {
		cfg.Notice = func(string) {}
	}
	if cfg.ArrivalThreshold == 0 {
		cfg.ArrivalThreshold = DefaultArrivalThreshold
	}
	// Twice the same target is one.
	var targets []target.Spec
	for _, t := range cfg.Targets {
		if !slices.Contains(targets, t) {
			targets = append(targets, t)
		}
	}
	cfg.Targets = targets
	return newSession(cfg).run(ctx)
}

func newSession(cfg Config) *session {
	return &session{
		cfg:     cfg,
		inbox:   make(chan func() error, 64),
		readied: make(chan struct{}),
		watch:   make(map[uint32]*watched),
		gone:    make(map[string]uint64),
		absent:  make(map[string]bool),
		events:  make(map[string]uint64),
	}
}

type session struct {
	cfg     Config
	host    evidence.HostFacts
	clock   *evidence.Clock
	obs     *loader.Observer
	tracker *events.Tracker

	// inbox carries work to the goroutine that reads the ring: whoever puts
	// something in flushes the ring, so that a waiting read returns.
	inbox chan func() error

	watch   map[uint32]*watched // by inode
	closing []*watched          // not watched any more, records may still be in the ring
	final   int                 // targets that cannot come back
	gone    map[string]uint64   // when the last generation of a name ended
	absent  map[string]bool     // targets that are not attached, and may come

	startNS     uint64
	lastClockNS uint64
	lastCountNS uint64
	counts      loader.Counts
	seq         uint64
	read        uint64
	events      map[string]uint64
	finished    []events.NamespaceCounts
	cannotShow  []string
	foreignPIDs string              // blind spot, if /proc is not of the kernel's own pid namespace
	started     bool                // every target has been looked for
	ready       bool                // and been found
	readied     chan struct{}       // closed when ready
	divert      func(*events.Event) // takes what would be written
	stop        string              // reason, once the end has been asked for
	stopErr     error
}

type watched struct {
	ns        *target.Namespace
	netns     events.Netns
	formerly  []events.Netns // what it was named before
	container string         // of the target that names it
	aliases   []string       // the other targets that name it
	w         *loader.Watch

	events map[string]uint64
	why    target.Change
	until  uint64 // records read when its last is in

	evidence.Account
}

func (s *session) run(ctx context.Context) (_ *Result, err error) {
	pair, first, err := s.begin()
	if err != nil {
		return nil, err
	}

	// Targets first: a name that is wrong should not cost the load of programs.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watcher, err := target.Watch(ctx, s.cfg.Targets, target.Options{Wait: s.cfg.Wait})
	if err != nil {
		return nil, err
	}
	defer watcher.Close()

	if err := s.load(); err != nil {
		return nil, err
	}
	defer s.obs.Close()
	defer s.release()
	var control *Control
	if s.cfg.ControlDir != "" {
		if control, err = ListenControl(s.cfg.ControlDir); err != nil {
			return nil, err
		}
		defer control.Close()
	}

	var tested *events.SelfTest
	if s.cfg.SelfTest {
		if tested, err = s.selfTest(ctx); err != nil {
			return nil, err
		}
	}
	if err := s.header(pair, first, tested); err != nil {
		return nil, err
	}
	if tested != nil && !tested.Passed {
		s.stop = ReasonSelfTest
		return s.finish(&SelfTestError{tested.Missing})
	}
	go s.forwardTargets(ctx, watcher)
	go s.forwardTicks(ctx)
	if control != nil {
		go s.forwardMarks(ctx, control.Marks())
	}
	if s.cfg.Marks != nil {
		go s.forwardMarks(ctx, s.cfg.Marks)
	}
	err = s.loop(ctx)
	cancel()
	return s.finish(err)
}

// begin reads what is known before anything is watched.
func (s *session) begin() (pair evidence.Pair, first events.Clock, err error) {
	if s.host, err = evidence.Host(); err != nil {
		return pair, first, err
	}
	// Four links, an open namespace and a pidfd for each target, twice that in a restart.
	limits, err := evidence.RaiseLimits(uint64(256 + 12*len(s.cfg.Targets)))
	if err != nil {
		return pair, first, err
	}
	// With fewer, features of the kernel would seem to be missing.
	if need := uint64(100 + 6*len(s.cfg.Targets)); limits.Files < need {
		return pair, first, fmt.Errorf("%w: the limit is %d, and watching this takes up to %d", unix.EMFILE, limits.Files, need)
	}
	s.foreignPIDs = evidence.ForeignPIDs()
	if s.clock, pair, first, err = evidence.NewClock(s.cfg.Clock); err != nil {
		return pair, first, err
	}
	s.startNS, s.lastClockNS, s.lastCountNS = pair.MonoNS, pair.MonoNS, pair.MonoNS
	return pair, first, nil
}

// load loads the programs, and makes the tracker of what they write.
func (s *session) load() (err error) {
	s.obs, err = loader.Open(loader.Options{
		RingBytes:        s.cfg.RingBytes,
		ArrivalThreshold: s.cfg.ArrivalThreshold,
		HZ:               s.host.HZ,
		Wire:             s.cfg.Wire,
		IO:               s.cfg.IO,
		Segments:         s.cfg.Segments,
	})
	if err != nil {
		return err
	}
	s.tracker = events.NewTracker(events.Config{
		HZ:           s.host.HZ,
		WallTime:     s.clock.Wall,
		ResetReasons: s.obs.ResetReasons(),
		DropReasons:  s.obs.DropReasons(),
		EdgeSeen:     true,
		ByAddress:    s.obs.WireMethod() == loader.MethodPacket,
		NoCookies:    s.obs.Gaps().Cookies,
		Emit:         s.emit,
	})
	s.cannotShow = cannotShow(s.obs.Gaps())
	return nil
}

// release lets go of every namespace, also on an early end.
func (s *session) release() {
	for _, w := range append(s.closing, values(s.watch)...) {
		w.w.Close()
		w.ns.Close()
	}
	s.closing, s.watch = nil, nil
}

func values[K comparable, V any](m map[K]V) []V {
	out := make([]V, 0, len(m))
	for _, v := range m {
		out = append(out, v)
	}
	return out
}

// post hands work to the loop. It returns false when the session has ended.
func (s *session) post(ctx context.Context, f func() error) bool {
	select {
	case s.inbox <- f:
		return s.obs.Flush() == nil
	case <-ctx.Done():
		return false
	}
}

func (s *session) forwardTicks(ctx context.Context) {
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	var over <-chan time.Time
	readied := s.readied
	for {
		select {
		case <-tick.C:
			s.obs.Flush() // the loop does what is due when its read returns
		case <-readied:
			readied = nil
			if s.cfg.Duration > 0 {
				over = time.After(s.cfg.Duration)
			}
		case <-over:
			s.post(ctx, func() error { s.end(ReasonDuration, nil); return nil })
			return
		case <-ctx.Done():
			s.obs.Flush()
			return
		}
	}
}

func (s *session) forwardMarks(ctx context.Context, marks <-chan MarkRequest) {
	for m := range marks {
		if !s.post(ctx, func() error { return s.mark(m) }) {
			m.Reply(errEnding)
		}
	}
}

func (s *session) forwardTargets(ctx context.Context, w *target.Watcher) {
	initial := len(s.cfg.Targets) // each is heard of first, and once
	for {
		var batch []target.Change
		select {
		case c, ok := <-w.Changes():
			if !ok {
				return
			}
			batch = append(batch, c)
		case <-ctx.Done():
			return
		}
		for more := true; more; {
			select {
			case c, ok := <-w.Changes():
				if more = ok; ok {
					batch = append(batch, c)
				}
			default:
				more = len(batch) < initial
				if more {
					time.Sleep(time.Millisecond)
				}
			}
		}
		initial -= len(batch)
		owners := s.owners(ctx, batch)
		started := initial <= 0
		if !s.post(ctx, func() error { return s.changes(batch, owners, started) }) {
			return
		}
	}
}

// loop reads the ring until the end. Only it touches the tracker and the sinks.
func (s *session) loop(ctx context.Context) error {
	var rec bpf.Record
	for n := 0; ; n++ {
		switch err := s.obs.Read(&rec); {
		case err == nil:
			s.read++
			if err := s.tracker.Track(&rec); err != nil {
				return err
			}
			if err := s.settle(false); err != nil {
				return err
			}
			if n%1024 != 0 {
				continue
			}
		case errors.Is(err, loader.ErrFlushed):
			if err := s.settle(true); err != nil {
				return err
			}
		default:
			return fmt.Errorf("read the ring buffer: %w", err)
		}
		if err := s.work(); err != nil {
			return err
		}
		if ctx.Err() != nil {
			s.end(ReasonStopped, nil)
		}
		if s.stop != "" {
			return s.stopErr
		}
	}
}

// work does what was posted, and what is due.
func (s *session) work() error {
	for {
		select {
		case f := <-s.inbox:
			if err := f(); err != nil {
				return err
			}
			continue
		default:
		}
		break
	}
	return s.tick()
}

func (s *session) tick() error {
	now, err := evidence.MonoNow()
	if err != nil {
		return err
	}
	if err := s.tracker.Tick(now); err != nil {
		return err
	}
	if now-s.lastCountNS >= uint64(countEvery) {
		s.lastCountNS = now
		if err := s.lost(now); err != nil {
			return err
		}
	}
	moved, err := s.clock.Moved()
	if err != nil {
		return err
	}
	if moved || now-s.lastClockNS >= uint64(clockEvery) {
		if err := s.clockPair(); err != nil {
			return err
		}
	}
	return s.flush()
}

func (s *session) flush() error {
	for _, out := range s.cfg.Sinks {
		if err := out.Flush(); err != nil {
			return &OutputError{err}
		}
	}
	return nil
}

func (s *session) end(reason string, err error) {
	if s.stop == "" {
		s.stop, s.stopErr = reason, err
	}
}

// emit numbers an event and writes it everywhere.
func (s *session) emit(e *events.Event) error {
	if s.divert != nil {
		if w := s.watch[e.Netns.Inode]; w != nil {
			w.count(e)
		}
		s.divert(e)
		return nil
	}
	s.seq++
	e.Seq = s.seq
	s.events[string(e.Type)]++
	if e.Netns != nil {
		if w := s.watch[e.Netns.Inode]; w != nil && w.netns == *e.Netns {
			w.count(e)
		} else {
			for _, w := range s.closing {
				if w.netns == *e.Netns {
					w.count(e)
				}
			}
		}
	}
	for _, out := range s.cfg.Sinks {
		if err := out.Write(e); err != nil {
			return &OutputError{err}
		}
	}
	return nil
}

// count takes an event of the namespace into its account.
func (w *watched) count(e *events.Event) {
	w.events[string(e.Type)]++
	if w.Tally != nil {
		w.Tally.Add(e)
	}
}

func (s *session) emitAt(monoNS uint64, e events.Event) error {
	e.MonoNS, e.Time = monoNS, s.clock.Wall(monoNS)
	return s.emit(&e)
}

func (s *session) header(pair evidence.Pair, first events.Clock, tested *events.SelfTest) error {
	h := &events.Session{
		Schema:     events.SchemaVersion,
		Version:    s.cfg.Version,
		Commit:     s.cfg.Commit,
		Command:    s.cfg.Command,
		PID:        os.Getpid(),
		BlindSpots: s.blindSpots(),
		CannotShow: s.cannotShow,
		ArrivalMs:  uint64(s.cfg.ArrivalThreshold / time.Millisecond),
		RingBytes:  s.cfg.RingBytes,
	}
	if s.cfg.IO {
		h.With = append(h.With, string(events.TypeIO))
	}
	if s.cfg.Segments {
		h.With = append(h.With, string(events.TypeSegment))
	}
	if h.RingBytes == 0 {
		h.RingBytes = loader.DefaultRingBytes
	}
	h.SelfTest = tested
	s.host.Fill(h)
	for _, t := range s.cfg.Targets {
		h.Targets = append(h.Targets, t.String())
	}
	for _, f := range s.obs.Features() {
		p := events.Program{Name: f.Name, Hook: f.Hook, Method: f.Method}
		if f.Err != nil {
			p.Detail = f.Err.Error()
		}
		h.Programs = append(h.Programs, p)
	}
	if err := s.emitAt(pair.MonoNS, events.Event{Type: events.TypeSession, Session: h}); err != nil {
		return err
	}
	return s.emitAt(pair.MonoNS, events.Event{Type: events.TypeClock, Clock: &first})
}

// blindSpots are those of the kernel and of where this process runs.
func (s *session) blindSpots() []string {
	spots := s.obs.BlindSpots()
	if s.foreignPIDs != "" {
		spots = append(spots, s.foreignPIDs)
	}
	return spots
}

func (s *session) clockPair() error {
	pair, c, err := s.clock.Update()
	if err != nil {
		return err
	}
	s.lastClockNS = pair.MonoNS
	return s.emitAt(pair.MonoNS, events.Event{Type: events.TypeClock, Clock: &c})
}

func (s *session) mark(m MarkRequest) error {
	err := s.emitAt(m.MonoNS, events.Event{Type: events.TypeMark, Mark: &events.Mark{Text: m.Text, Kind: m.Kind, By: m.By}})
	if err == nil {
		err = s.flush()
	}
	m.Reply(err)
	return err
}

// lost writes how many records were lost since it last looked.
func (s *session) lost(now uint64) error {
	c, err := s.obs.Counts()
	if err != nil {
		return err
	}
	l := &events.Lost{By: map[string]uint64{}, PerCPU: map[string]uint64{}}
	for id := range c.Lost {
		lost := c.Lost[id] + c.Missed[id]
		l.Total += lost
		if n := lost - s.counts.Lost[id] - s.counts.Missed[id]; n > 0 {
			l.By[loader.ProgramName(bpf.ProgramID(id))] = n
			l.Count += n
		}
	}
	for cpu, n := range c.LostCPU {
		before := uint64(0)
		if s.counts.LostCPU != nil {
			before = s.counts.LostCPU[cpu]
		}
		if n > before {
			l.PerCPU[fmt.Sprint(cpu)] = n - before
		}
	}
	s.counts = c
	if l.Count == 0 {
		return nil
	}
	return s.emitAt(now, events.Event{Type: events.TypeLost, Lost: l})
}

// finish drains what is left, writes the footer and says how it went.
func (s *session) finish(cause error) (*Result, error) {
	reason := s.stop
	var output *OutputError
	switch {
	case errors.As(cause, &output):
		reason = ReasonOutput
	case reason == "" && cause != nil:
		reason = "failed: " + cause.Error()
	}
	// From here on nothing new is recorded; what is in the ring still counts.
	for _, w := range s.watch {
		w.close()
	}
	s.obs.Detach()
	errs := []error{cause}
	if output == nil {
		err := s.drainNow()
		for err == nil && s.obs.Pending() > 0 { // of programs that were running
			err = s.drainNow()
		}
		errs = append(errs, err, s.tracker.Finish())
	}
	sum, err := s.summary(reason)
	errs = append(errs, err)
	return &Result{Summary: sum, Reason: reason}, first(errs)
}

func first(errs []error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// drainNow reads what is in the ring and completes what was closed. In a busy
// namespace the ring is never empty: what comes meanwhile stays.
func (s *session) drainNow() error {
	if err := s.obs.Flush(); err != nil {
		return err
	}
	var rec bpf.Record
	for until := s.read + s.obs.Pending(); s.read < until; {
		err := s.obs.Read(&rec)
		if errors.Is(err, loader.ErrFlushed) {
			return s.settle(true)
		}
		if err != nil {
			return fmt.Errorf("read the ring buffer: %w", err)
		}
		s.read++
		if err := s.tracker.Track(&rec); err != nil {
			return err
		}
	}
	return s.settle(false)
}

func (s *session) summary(reason string) (events.Summary, error) {
	errs := []error{s.clockPair()}
	now, err := evidence.MonoNow()
	if err != nil {
		return events.Summary{}, err
	}
	errs = append(errs, s.lost(now))
	sum := events.Summary{
		Reason:     reason,
		DurationNS: now - s.startNS,
		Events:     s.events,
		BlindSpots: s.blindSpots(),
		Namespaces: s.finished,
		Kernel: events.Counts{
			Produced:  loader.Sum(s.counts.Produced),
			Lost:      loader.Sum(s.counts.Lost),
			Missed:    loader.Sum(s.counts.Missed),
			Read:      s.read,
			Foreign:   s.tracker.Foreign(),
			ByProgram: make(map[string]uint64),
		},
	}
	sum.Kernel.Unaccounted = int64(sum.Kernel.Produced - sum.Kernel.Lost - sum.Kernel.Read)
	for id, n := range s.counts.Produced {
		if n > 0 {
			sum.Kernel.ByProgram[loader.ProgramName(bpf.ProgramID(id))] = n
		}
	}
	for _, w := range s.watch {
		sum.Namespaces = append(sum.Namespaces, w.settle())
	}
	slices.SortFunc(sum.Namespaces, func(a, b events.NamespaceCounts) int {
		if c := strings.Compare(a.Netns.Name, b.Netns.Name); c != 0 {
			return c
		}
		return a.Netns.Generation - b.Netns.Generation
	})
	sum.Verdict = evidence.Conclude(sum.Kernel, sum.Namespaces)
	sum.Lines = s.seq + 1
	errs = append(errs, s.emitAt(now, events.Event{Type: events.TypeSummary, Summary: &sum}), s.flush())
	return sum, first(errs)
}

// announce says that every target is attached.
func (s *session) announce() error {
	s.ready = true
	close(s.readied)
	if s.cfg.OnReady != nil {
		if err := s.cfg.OnReady(); err != nil {
			return err
		}
	}
	names := make([]string, 0, len(s.watch))
	for _, w := range s.watch {
		names = append(names, strings.Join(append([]string{w.netns.Name}, w.aliases...), " = "))
	}
	slices.Sort(names)
	if len(names) > 5 {
		names = append(names[:5], fmt.Sprintf("and %d more", len(names)-5))
	}
	line := fmt.Sprintf("ready: watching %s (namespaces: %d, sockets: %d)", strings.Join(names, ", "), len(s.watch), s.events[string(events.TypeInventory)])
	s.cfg.Notice(line)
	if s.cfg.ReadyFile != "" {
		if err := os.WriteFile(s.cfg.ReadyFile, []byte(line+"\n"), 0o644); err != nil {
			return fmt.Errorf("write the ready file: %w", err)
		}
	}
	_, err := daemon.SdNotify(false, daemon.SdNotifyReady)
	return err
}
