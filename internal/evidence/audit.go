package evidence

import "github.com/sockwatch/sockwatch/internal/events"

// An Audit judges one session again while its events pass by: it adds them up
// anew and holds them against the counters that the summary recorded.
type Audit struct {
	sum        *events.Summary
	cannotShow []string
	generation map[events.Netns]*generation
	order      []*generation // as in the summary
}

// generation is one namespace of an Audit.
type generation struct {
	recorded *events.NamespaceCounts
	counted  map[string]uint64
	tally    *Tally
}

// NewAudit begins the audit of a session, which needs its header and its
// summary. It keeps both.
func NewAudit(h *events.Session, sum *events.Summary) *Audit {
	a := &Audit{sum: sum, cannotShow: h.CannotShow, generation: make(map[events.Netns]*generation)}
	for i := range sum.Namespaces {
		n := &sum.Namespaces[i]
		t := NewTally(NewFacts(h.CannotShow, nil), n.Ledger.Opened)
		t.Close(n.Ledger.Closed)
		g := &generation{recorded: n, counted: make(map[string]uint64), tally: t}
		a.generation[n.Netns] = g
		for _, before := range n.Formerly {
			a.generation[before] = g
		}
		a.order = append(a.order, g)
	}
	return a
}

// Add takes the next event of the session. It does not keep it.
func (a *Audit) Add(e *events.Event) {
	if e.Netns == nil {
		return
	}
	g := a.generation[*e.Netns]
	if g == nil {
		return
	}
	if e.Target != nil && e.Target.Sysctls != nil {
		g.tally.facts = NewFacts(a.cannotShow, e.Target.Sysctls)
	}
	g.counted[string(e.Type)]++
	g.tally.Add(e)
}

// Settle returns what the summary should say of each generation, in its order,
// and of the session.
func (a *Audit) Settle() ([]events.NamespaceCounts, events.Verdict) {
	out := make([]events.NamespaceCounts, len(a.order))
	for i, g := range a.order {
		n := g.recorded
		out[i] = events.NamespaceCounts{Netns: n.Netns, Formerly: n.Formerly, Events: g.counted}
		if len(n.Ledger.Lines) == 0 {
			// There were no counters: only the summary knows why.
			out[i].Ledger, out[i].Verdict = n.Ledger, n.Verdict
			continue
		}
		grown := make(map[string]uint64)
		for name, v := range n.Ledger.Beside {
			grown[name] = v
		}
		for _, l := range n.Ledger.Lines {
			grown[l.Counter] = l.Kernel
		}
		out[i].Ledger, out[i].Verdict = g.tally.judge(grown)
	}
	return out, Conclude(a.sum.Kernel, out)
}
