package measure

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/sockwatch/sockwatch/internal/evidence"
	"github.com/sockwatch/sockwatch/internal/harness/durable"
	"github.com/sockwatch/sockwatch/internal/harness/plan"
	"github.com/sockwatch/sockwatch/internal/session"
)

// conclude explains the capture from what is saved of it.
func (c *capture) conclude() error {
	r := c.row
	if r.Landed != Unknown && (r.Landed == Yes) != (r.Lines > 0) && r.Valid == Yes {
		r.Valid = fmt.Sprintf("version and log disagree: landed %s, %d lines", r.Landed, r.Lines)
	}
	b, err := json.MarshalIndent(c.facts, "", "  ")
	if err == nil {
		err = durable.WriteFile(c.run.facts(c.ID), append(b, '\n'))
	}
	if err != nil {
		return &session.OutputError{Err: err}
	}
	if r.Valid == Yes {
		x, err := derive(c.run.Dir, c.ID)
		if err != nil {
			return err
		}
		r.explain(x, c.Cell.Predict)
		c.script.say("landed: %s; predicted: %s; as predicted: %s", r.Landed, c.Cell.Predict, r.Agrees)
		c.script.say("%s", r.Explanation)
	}
	if err := c.script.write(c.run.transcript(c.ID), c.facts.Sent); err != nil {
		return &session.OutputError{Err: err}
	}
	return nil
}

// derive explains a capture from the files in dir.
func derive(dir, id string) (x explained, err error) {
	b, err := os.ReadFile(filepath.Join(dir, factsDir, id+".json"))
	if err != nil {
		return x, err
	}
	if err := json.Unmarshal(b, &x.facts); err != nil {
		return x, fmt.Errorf("%s/%s.json: %w", factsDir, id, err)
	}
	f, err := evidence.ReadFile(filepath.Join(dir, evidenceDir, id+".jsonl"))
	if err != nil {
		return x, err
	}
	x.Explanation = Explain(f.Events, x.facts)
	return x, nil
}

// explained is an explanation with what it rests on.
type explained struct {
	Explanation
	facts Facts
}

// explain fills in what follows from the evidence.
func (r *Row) explain(x explained, p plan.Prediction) {
	if x.Connection != nil {
		r.Connection = x.Connection.String()
	}
	r.DeliveredBy, r.WorkerEnd, r.OtherEnd, r.Explanation = x.DeliveredBy, x.WorkerEnd, x.OtherEnd, x.Text
	if !x.Decided {
		r.Explanation = undecided + x.Text
	}
	if x.DeliveredNS != 0 {
		r.Delivered = x.facts.after(x.DeliveredNS)
	}
	r.Agrees = Unknown
	if r.Landed != Unknown {
		if r.Agrees = p.Agrees(r.Landed == Yes, time.Duration(r.landedAfter()*float64(time.Second))); r.Agrees == "" {
			r.Agrees = Yes
		}
	}
}

const undecided = "undecided: "

// landedAfter is when it landed: as the daemon says, else when it was seen.
func (r *Row) landedAfter() float64 {
	if r.Applied >= 0 {
		return r.Applied
	}
	return r.FirstSeen
}
