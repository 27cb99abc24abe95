package report_test

import (
	"testing"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/report"
)

// TestOriginal: an acknowledgement of what was sent first is not taken for an
// answer to what was sent again.
func TestOriginal(t *testing.T) {
	evs := parse(t, "heal")
	_, e := first(t, evs, func(e *events.Event) bool { return e.Recovered != nil && e.Recovered.Answered != 0 })
	_, text := tell(t, report.Options{}, file{"heal", lines(evs)})
	has(t, text, "retransmission of client's end was answered")
	e.Recovered.Answered, e.Recovered.Original = 0, true
	_, text = tell(t, report.Options{}, file{"heal", lines(evs)})
	has(t, text, "what client's end had sent first was acknowledged: sending it again was not needed: it acknowledges ")
	hasNot(t, text, "retransmission of client's end was answered")
}
