package measure

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/sockwatch/sockwatch/internal/harness/plan"
)

// Check is what verifying the results of a run found.
type Check struct {
	Files    []string // listed in the manifest
	Evidence []string // of the captures, paths
	Captures int
	Differs  []string // what does not hold
}

// Verify checks the results in dir: the manifest, and that the explanation of
// each capture follows from its evidence. An error means that it cannot be
// done, such as without a manifest.
func Verify(dir string) (*Check, error) {
	c := new(Check)
	var err error
	if c.Files, c.Differs, err = CheckManifest(dir); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(dir, planName))
	if err != nil {
		return nil, err
	}
	p, err := plan.Parse(planName, text)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(filepath.Join(dir, capturesName))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	rows, _, err := readRows(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", capturesName, err)
	}
	c.Captures = len(rows)
	for _, row := range rows {
		if path := filepath.Join(dir, evidenceDir, row.Capture+".jsonl"); exists(path) {
			c.Evidence = append(c.Evidence, path)
		}
		if row.Valid != Yes {
			continue
		}
		cell := p.Cell(row.Cell)
		if cell == nil {
			c.Differs = append(c.Differs, fmt.Sprintf("%s: %s is no cell of the plan", row.Capture, row.Cell))
			continue
		}
		x, err := derive(dir, row.Capture)
		if err != nil {
			return nil, err
		}
		again := *row
		again.Delivered, again.Connection = -1, ""
		again.explain(x, cell.Predict)
		if again.line() != row.line() {
			c.Differs = append(c.Differs, row.Capture+": its explanation does not follow from its evidence")
		}
	}
	return c, nil
}
