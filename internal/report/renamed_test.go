package report_test

import (
	"testing"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/report"
)

// A namespace goes on under another name when the target that it was named by
// ends: nothing of it was missed.
func TestRenamed(t *testing.T) {
	client, worker := parse(t, "cut-client"), parse(t, "cut-worker")
	_, probe := first(t, worker, ofType(events.TypeProbe))
	was := *probe.Netns
	now := was
	now.Name = "pid:4711"
	at := probe.MonoNS + 1
	for _, e := range worker {
		if e.Netns != nil && e.MonoNS > at {
			e.Netns = &now
		}
		if e.Summary != nil {
			n := &e.Summary.Namespaces[0]
			n.Netns, n.Formerly = now, []events.Netns{was}
		}
	}
	_, born := first(t, worker, func(e *events.Event) bool { return e.Target != nil })
	worker = insert(
		worker,
		&events.Event{Type: events.TypeTarget, MonoNS: born.MonoNS + 1, Netns: &was, Target: &events.Target{Change: "alias", Alias: "pid:4711", Detail: "process"}},
		&events.Event{Type: events.TypeTarget, MonoNS: at, Netns: &now, Target: &events.Target{Change: "renamed", Formerly: &was, Detail: "name deleted"}},
	)
	_, text := tell(t, report.Options{}, file{"client.jsonl", lines(client)}, file{"worker.jsonl", lines(worker)})
	// The story is told under the last name, and breaks off nowhere.
	has(t, text, "worker was no longer there (name deleted); its namespace was watched on as pid:4711", "1 connection in 2 files",
		"pid:4711's end gave up first, by keepalive", "reached pid:4711, whose socket had been gone for 24.6 s: it was answered with a RST",
		"client's end was reset: it accepted a RST sent by pid:4711")
	hasNot(t, text, "no longer watched", "from here on was not seen", "alias")
}
