package plan

import (
	"fmt"
	"math/rand/v2"
	"regexp"
)

// Capture is one run of a cell.
type Capture struct {
	ID   string // CELL-NN
	Cell *Cell
	N    int // from 1
}

// Selection says which captures of a plan are made.
type Selection struct {
	Only     *regexp.Regexp // cells whose name matches, somewhere; nil: all
	Captures int            // of each cell; 0: as many as the plan says
	Seed     uint64         // of the order
}

// Order lists the captures in the order in which they begin: the cells that
// come first, the mixed ones, those that come last. Within a block they are
// shuffled in rounds, each of which has every cell of the block once, so that a
// run that is cut short has about as many of each. The same selection gives the
// same order.
func (p *Plan) Order(s Selection) [][]Capture {
	n := s.Captures
	if n == 0 {
		n = p.Captures
	}
	rng := rand.New(rand.NewPCG(s.Seed, 0))
	var blocks [][]Capture
	for _, o := range []Order{First, Mixed, Last} {
		var block []Capture
		for round := 1; round <= n; round++ {
			var caps []Capture
			for i := range p.Cells {
				c := &p.Cells[i]
				if c.Order == o && s.matches(c.Name) {
					caps = append(caps, Capture{ID: fmt.Sprintf("%s-%02d", c.Name, round), Cell: c, N: round})
				}
			}
			rng.Shuffle(len(caps), func(i, k int) { caps[i], caps[k] = caps[k], caps[i] })
			block = append(block, caps...)
		}
		if len(block) > 0 {
			blocks = append(blocks, block)
		}
	}
	return blocks
}

func (s *Selection) matches(name string) bool {
	return s.Only == nil || s.Only.MatchString(name)
}
