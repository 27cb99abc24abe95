package measure

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sockwatch/sockwatch/internal/harness/durable"
	"github.com/sockwatch/sockwatch/internal/harness/plan"
)

// conclude writes what follows from the table: the distribution, the summary,
// and, of a run that is finished, the manifest.
func (r *run) conclude() error {
	cells := r.distribution()
	var b strings.Builder
	b.WriteString("cell\tcaptures\tlanded\tunknown\tinvalid\tlow95\thigh95\tlanding_min_s\tlanding_median_s\tlanding_max_s\tpredicted\tas_predicted\tmechanism_predicted\n")
	for _, c := range cells {
		fmt.Fprintf(&b, "%s\t%d\t%d\t%d\t%d\t%.3f\t%.3f\t%s\t%s\t%s\t%s\t%d\t%s\n", c.Cell.Name, c.N, c.Landed, c.Unknown, c.Invalid, c.Low, c.High,
			at(c.Times, 0), at(c.Times, 0.5), at(c.Times, 1), c.Cell.Predict, c.Agree, clean(c.Cell.Predict.By))
	}
	if err := durable.WriteFile(r.path(distributionName), []byte(b.String())); err != nil {
		return err
	}
	if err := durable.WriteFile(r.path(summaryName), []byte(r.summary(cells))); err != nil {
		return err
	}
	if !r.result.Finished {
		return nil
	}
	return writeManifest(r.Dir)
}

// outcome is what was measured of a cell.
type outcome struct {
	Cell                     *plan.Cell
	N                        int // valid, and known
	Landed, Unknown, Invalid int
	Agree                    int
	Low, High                float64
	Times                    []float64 // of the landings, sorted
	Mechanisms               map[string]int
	Differ                   []string
}

// at is a quantile of sorted times, the nearest that was measured.
func at(times []float64, q float64) string {
	if len(times) == 0 {
		return "-"
	}
	return fmt.Sprintf("%.3f", times[int(q*float64(len(times)-1)+0.5)])
}

func (r *run) distribution() []*outcome {
	var out []*outcome
	for i := range r.Plan.Cells {
		o := &outcome{Cell: &r.Plan.Cells[i], Mechanisms: make(map[string]int)}
		there := false
		for _, row := range r.rows {
			if row.Cell != o.Cell.Name {
				continue
			}
			there = true
			switch {
			case row.Valid != Yes:
				o.Invalid++
				continue
			case row.Landed == Unknown:
				o.Unknown++
				continue
			}
			o.N++
			if row.Landed == Yes {
				o.Landed++
				o.Times = append(o.Times, row.landedAfter())
			}
			if row.Agrees == Yes {
				o.Agree++
			} else {
				o.Differ = append(o.Differ, row.Capture+": "+row.Agrees)
			}
			if row.DeliveredBy != "" && row.DeliveredBy != "-" {
				o.Mechanisms[row.DeliveredBy]++
			} else {
				o.Mechanisms["not delivered"]++
			}
		}
		if !there {
			continue
		}
		slices.Sort(o.Times)
		o.Low, o.High = Interval(o.Landed, o.N)
		out = append(out, o)
	}
	return out
}

func (r *run) summary(cells []*outcome) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n%s\n\n", r.Plan.Name, r.Plan.About)
	res := &r.result
	fmt.Fprintf(&b, "%d of %d captures", res.Kept+res.Done, res.Total)
	if !res.Finished {
		b.WriteString(", **not finished**")
	}
	fmt.Fprintf(&b, "; %d invalid, %d not as predicted, %d not explained by their evidence, %d with evidence that is not complete.\n", res.Invalid, res.Differ, res.Undecided, res.Incomplete)
	fmt.Fprintf(&b, "Backend %s, seed %d. run.json has the rest. Times are seconds after the send; intervals are exact (Clopper-Pearson), 95 %%.\n\n", r.Backend, r.Selection.Seed)
	b.WriteString("| cell | landed | 95 % | when | predicted | as predicted | delivered by |\n|---|---|---|---|---|---|---|\n")
	for _, c := range cells {
		when := "–"
		if len(c.Times) > 0 {
			when = at(c.Times, 0)
			if last := at(c.Times, 1); last != when {
				when += " to " + last
			}
		}
		var how []string
		for _, m := range slices.Sorted(maps.Keys(c.Mechanisms)) {
			how = append(how, fmt.Sprintf("%s: %d", m, c.Mechanisms[m]))
		}
		fmt.Fprintf(&b, "| %s | %d/%d | %.2f to %.2f | %s | %s | %d/%d | %s |\n", c.Cell.Name, c.Landed, c.N, c.Low, c.High, when, c.Cell.Predict, c.Agree, c.N, strings.Join(how, ", "))
	}
	b.WriteString("\n## Why\n")
	for _, c := range cells {
		fmt.Fprintf(&b, "\n### %s\n\nPredicted: %s, by %s.\n\n", c.Cell.Name, c.Cell.Predict, c.Cell.Predict.By)
		rows := slices.DeleteFunc(slices.Clone(r.rows), func(row *Row) bool { return row.Cell != c.Cell.Name })
		slices.SortFunc(rows, func(a, b *Row) int { return strings.Compare(a.Capture, b.Capture) })
		for _, row := range rows {
			what := row.Explanation
			if row.Valid != Yes {
				what = "invalid: " + row.Valid
			}
			if row.Agrees != Yes && row.Valid == Yes {
				what += " **(" + row.Agrees + ")**"
			}
			fmt.Fprintf(&b, "- %s: %s.", row.Capture, what)
			if row.Connection != "" && row.Connection != "-" {
				fmt.Fprintf(&b, " Worker's end: %s; other end: %s.", row.WorkerEnd, row.OtherEnd)
			}
			fmt.Fprintf(&b, " Evidence: %s.\n", row.Verdict)
		}
	}
	return b.String()
}
