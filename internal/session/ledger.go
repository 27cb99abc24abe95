package session

import (
	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/evidence"
	"github.com/sockwatch/sockwatch/internal/loader"
)

// cannotShow are the blind spots that a verdict must know.
func cannotShow(g loader.Gaps) []string {
	var what []string
	for _, x := range []struct {
		gap  bool
		name string
	}{
		{g.FailedRetransmits, evidence.CannotShowFailedRetransmits},
		{g.ResetReasons, evidence.CannotShowResetReasons},
		{g.LoneResets, evidence.CannotShowLoneResets},
		{g.BeforeFirewall, evidence.CannotShowBeforeFirewall},
	} {
		if x.gap {
			what = append(what, x.name)
		}
	}
	return what
}

// open reads the counters for the first time, in the namespace, when nothing
// can happen there unseen any more. Counters that cannot be read are no reason
// not to watch: the verdict will say so.
func (w *watched) open(f evidence.Facts) {
	if w.Before, w.Err = evidence.ReadCounters(); w.Err == nil {
		w.Tally = evidence.NewTally(f, w.Before.Reading)
	}
}

// close reads the counters for the last time and stops watching. The namespace
// is still there, whatever became of its name.
func (w *watched) close() {
	if w.Err == nil {
		w.Err = w.ns.Do(func() (err error) {
			w.After, err = evidence.ReadCounters()
			return err
		})
	}
	if w.Err == nil {
		w.Tally.Close(w.After.Reading)
	}
	w.w.Close()
}

// settle draws the account up when the last of its events is in.
func (w *watched) settle() events.NamespaceCounts {
	n := events.NamespaceCounts{Netns: w.netns, Formerly: w.formerly, Events: w.events}
	n.Ledger, n.Verdict = w.Account.Settle()
	return n
}
