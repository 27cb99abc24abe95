package session_test

import (
	"context"
	"testing"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/evidence"
	"github.com/sockwatch/sockwatch/internal/session"
	"github.com/sockwatch/sockwatch/internal/testlab"
)

// Marks of the process itself stand in the evidence with their own time; one
// that comes when the session has ended is refused.
func TestMarksWithin(t *testing.T) {
	testlab.Privileged(t)
	n := testlab.NewNodes(t, 1)[0]
	marks := make(chan session.MarkRequest)
	o := observeWith(t, session.Config{Marks: marks}, n.Name)
	at, err := evidence.MonoNow()
	if err != nil {
		t.Fatal(err)
	}
	send := func(text string) error {
		m, done := session.NewMark(events.Mark{Text: text, Kind: "applied", By: "test"}, at)
		select {
		case marks <- m:
		case <-t.Context().Done():
			return context.Cause(t.Context())
		}
		return <-done
	}
	if err := send("within"); err != nil {
		t.Fatal(err)
	}
	evs := o.stop()
	if err := send("after"); err == nil {
		t.Error("a session that has ended took a mark")
	}
	close(marks)
	found := 0
	for _, e := range evs {
		if e.Type == events.TypeMark {
			found++
			if e.MonoNS != at || e.Mark.Text != "within" || e.Mark.Kind != "applied" || e.Mark.By != "test" {
				t.Errorf("mark %+v at %d, want %d", e.Mark, e.MonoNS, at)
			}
		}
	}
	if found != 1 {
		t.Errorf("%d marks, want 1", found)
	}
}
