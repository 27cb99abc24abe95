package session

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/evidence"
	"github.com/sockwatch/sockwatch/internal/target"
)

// owners looks for the owners of sockets that exist, once for all namespaces
// that came: it takes a pass over /proc, and what went must not wait for it.
func (s *session) owners(ctx context.Context, batch []target.Change) map[uint64]events.Owner {
	if s.foreignPIDs != "" || !slices.ContainsFunc(batch, func(c target.Change) bool { return c.Kind == target.Attached && !c.Alias }) {
		return nil
	}
	owners, _ := evidence.SocketOwners(ctx)
	return owners
}

// changes takes in what happened to the targets. started says that every
// target given has been heard of.
func (s *session) changes(batch []target.Change, owners map[uint64]events.Owner, started bool) error {
	if owners != nil {
		s.tracker.AddOwners(owners)
	}
	for _, c := range batch {
		if err := s.change(c); err != nil {
			return err
		}
	}
	if started && !s.started {
		s.started = true
		if s.cfg.OnStart != nil {
			if err := s.cfg.OnStart(); err != nil {
				return err
			}
		}
	}
	if s.started && !s.ready && len(s.absent) == 0 && s.stop == "" {
		return s.announceWhenRead()
	}
	return nil
}

// announceWhenRead announces once the sockets that exist have been written,
// so that whoever waits for it finds them in the file.
func (s *session) announceWhenRead() error {
	if err := s.drainNow(); err != nil {
		return err
	}
	return s.announce()
}

func (s *session) change(c target.Change) error {
	switch c.Kind {
	case target.Attached:
		delete(s.absent, c.Name)
	case target.Waiting:
		s.absent[c.Name] = true
	case target.Gone, target.Renamed:
		s.absent[c.Name] = true
		if c.Final {
			delete(s.absent, c.Name)
		}
	}
	switch {
	case c.Kind == target.Attached && !c.Alias:
		return s.attach(c)
	case c.Kind == target.Gone && !c.Alias && c.Namespace != nil:
		return s.detach(c)
	case c.Kind == target.Renamed:
		return s.rename(c)
	}
	t := &events.Target{Change: c.Kind.String(), Detail: c.Detail, Container: c.Container}
	e := events.Event{Type: events.TypeTarget, Target: t, Netns: &events.Netns{Name: c.Name}}
	if c.Namespace != nil {
		if w := s.watch[c.Namespace.Inode]; w != nil {
			e.Netns = &w.netns
			if c.Alias {
				s.alias(w, c, t)
			}
		}
	}
	if err := s.emitAt(c.MonoNS, e); err != nil {
		return err
	}
	switch c.Kind {
	case target.Waiting:
		s.cfg.Notice(fmt.Sprintf("waiting for target %s: %s", c.Name, c.Detail))
	case target.Gone:
		s.left(c)
	}
	return nil
}

// alias notes what becomes of a further name of a namespace.
func (s *session) alias(w *watched, c target.Change, t *events.Target) {
	t.Alias = c.Name
	switch c.Kind {
	case target.Attached:
		t.Change = "alias"
		t.BlindNS = s.blind(c.Name, c.MonoNS)
		w.aliases = append(w.aliases, c.Name)
		if s.started {
			s.cfg.Notice(fmt.Sprintf("target %s attached: the namespace of %s", c.Name, w.netns.Name))
		}
	case target.Gone:
		t.Change = "alias-gone"
		s.gone[c.Name] = c.MonoNS
		w.drop(c.Name)
	}
}

func (w *watched) drop(alias string) {
	w.aliases = slices.DeleteFunc(w.aliases, func(a string) bool { return a == alias })
}

// blind is for how long nothing was seen of a target that is back.
func (s *session) blind(name string, now uint64) uint64 {
	if since, ok := s.gone[name]; ok && now > since {
		return now - since
	}
	return 0
}

// rename goes on with a namespace under another of its names. What is in the
// ring was written under the old one.
func (s *session) rename(c target.Change) error {
	if err := s.drainNow(); err != nil {
		return err
	}
	s.gone[c.Name] = c.MonoNS
	if w := s.watch[c.Namespace.Inode]; w != nil && w.ns == c.Namespace {
		now, err := evidence.MonoNow()
		if err != nil {
			return err
		}
		t := &events.Target{Change: c.Kind.String(), Detail: c.Detail, Container: c.Heir.Container, Formerly: new(w.netns)}
		if late := time.Duration(now - c.MonoNS); late > 10*time.Millisecond {
			t.Detail += fmt.Sprintf(", %v before", late.Round(time.Millisecond))
		}
		w.formerly = append(w.formerly, w.netns)
		w.netns.Name, w.netns.Generation, w.container = c.Heir.Name, c.Heir.Generation, c.Heir.Container
		w.drop(c.Heir.Name)
		s.tracker.RenameNamespace(w.netns)
		if err := s.emitAt(now, events.Event{Type: events.TypeTarget, Target: t, Netns: &w.netns}); err != nil {
			return err
		}
		c.Detail += "; its namespace is watched on as " + c.Heir.Name
	}
	s.left(c)
	return nil
}

func (s *session) attach(c target.Change) error {
	ns := c.Namespace
	if w := s.watch[ns.Inode]; w != nil {
		// The old namespace with this inode is gone, its end not yet told.
		if err := s.detach(target.Change{Kind: target.Gone, Namespace: w.ns, Name: w.netns.Name, MonoNS: c.MonoNS, Detail: "replaced by " + c.Name}); err != nil {
			return err
		}
		if err := s.drainNow(); err != nil {
			return err
		}
	}
	w, sysctls, err := s.watchNamespace(ns)
	if err != nil {
		ns.Close()
		return err
	}
	s.watch[ns.Inode] = w
	now, err := evidence.MonoNow()
	if err != nil {
		return err
	}
	t := &events.Target{Change: c.Kind.String(), Detail: c.Detail, Container: ns.Container, Sysctls: sysctls, BlindNS: s.blind(ns.Name, now)}
	if s.started {
		s.cfg.Notice(fmt.Sprintf("target %s attached (generation %d)", ns.Name, ns.Generation))
	}
	return s.emitAt(now, events.Event{Type: events.TypeTarget, Target: t, Netns: &w.netns})
}

// watchNamespace begins to watch a namespace, and its ledger.
func (s *session) watchNamespace(ns *target.Namespace) (*watched, map[string]string, error) {
	w := &watched{
		ns:        ns,
		netns:     events.Netns{Name: ns.Name, Generation: ns.Generation, Inode: ns.Inode, Cookie: ns.Cookie},
		container: ns.Container,
		events:    make(map[string]uint64),
	}
	var sysctls map[string]string
	err := ns.Do(func() (err error) {
		if sysctls, err = evidence.Sysctls(); err != nil {
			return err
		}
		s.tracker.AddNamespace(w.netns, defaults(sysctls))
		if w.w, err = s.obs.Watch(ns.Inode, ns.Cookie); err != nil {
			return err
		}
		w.open(evidence.NewFacts(s.cannotShow, sysctls))
		return nil
	})
	if err != nil {
		s.tracker.RemoveNamespace(ns.Inode)
		return nil, nil, fmt.Errorf("watch %s: %w", ns.Name, err)
	}
	return w, sysctls, nil
}

// detach stops watching a namespace. Its last records may still be in the
// ring: settle completes it when they have been read.
func (s *session) detach(c target.Change) error {
	w := s.watch[c.Namespace.Inode]
	if w != nil && w.ns == c.Namespace {
		w.why = c
		s.gone[w.netns.Name] = c.MonoNS
		w.close()
		delete(s.watch, c.Namespace.Inode)
		w.until = s.read + s.obs.Pending()
		s.closing = append(s.closing, w)
		if err := s.obs.Flush(); err != nil {
			return err
		}
	}
	s.left(c)
	return nil
}

// left notes that a target is gone. When none can come back, that is the end.
func (s *session) left(c target.Change) {
	line := fmt.Sprintf("target %s is gone: %s", c.Name, c.Detail)
	if c.Final {
		s.final++
	} else {
		line += "; waiting for its return"
	}
	s.cfg.Notice(line)
	if s.final == len(s.cfg.Targets) {
		s.end(ReasonTargetsGone, ErrTargetsGone)
	}
}

// settle finishes the namespaces that are not watched any more, once the ring
// holds nothing of theirs, or nothing at all.
func (s *session) settle(empty bool) error {
	for len(s.closing) > 0 && (empty || s.closing[0].until <= s.read) {
		w := s.closing[0]
		if err := s.tracker.Finish(); err != nil {
			return err
		}
		sockets := s.tracker.RemoveNamespace(w.netns.Inode)
		t := &events.Target{Change: target.Gone.String(), Detail: w.why.Detail, Container: w.container, Sockets: sockets}
		err := s.emitAt(w.why.MonoNS, events.Event{Type: events.TypeTarget, Target: t, Netns: &w.netns})
		s.closing = s.closing[1:]
		s.finished = append(s.finished, w.settle())
		w.ns.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// defaults picks from a namespace's settings what sockets fall back to.
func defaults(sysctls map[string]string) events.Defaults {
	n := func(name string, fallback uint64) uint64 {
		v, err := strconv.ParseUint(sysctls[name], 10, 64)
		if err != nil {
			return fallback
		}
		return v
	}
	second := uint64(time.Second / time.Millisecond)
	return events.Defaults{
		KeepaliveTimeMs:   n("tcp_keepalive_time", 7200) * second,
		KeepaliveIntvlMs:  n("tcp_keepalive_intvl", 75) * second,
		KeepaliveProbes:   uint32(n("tcp_keepalive_probes", 9)),
		SynLinearTimeouts: uint32(n("tcp_syn_linear_timeouts", 0)),
		RTOMaxMs:          int64(n("tcp_rto_max_ms", 120_000)),
	}
}
