package plan

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// Error is something wrong with a plan.
type Error struct {
	Name string // of the file or plan
	Line int    // from 1; 0: of the plan as a whole
	What string
}

func (e *Error) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("plan %s: %s", e.Name, e.What)
	}
	return fmt.Sprintf("plan %s, line %d: %s", e.Name, e.Line, e.What)
}

// Parse reads a plan; name is what errors call it. Errors are *[Error].
func Parse(name string, b []byte) (*Plan, error) {
	if line, what := badDuration(b); what != "" {
		return nil, &Error{Name: name, Line: line, What: what}
	}
	p := new(Plan)
	d := yaml.NewDecoder(bytes.NewReader(b), yaml.Strict())
	if err := d.Decode(p); err != nil {
		return nil, yamlError(name, err)
	}
	if err := d.Decode(new(Plan)); !errors.Is(err, io.EOF) {
		return nil, &Error{Name: name, What: "it has more than one YAML document"}
	}
	p.fill()
	where, what := p.check()
	if what != "" {
		return nil, &Error{Name: name, Line: lineOf(b, where), What: what}
	}
	return p, nil
}

// durations are the keys whose values are durations.
var durations = []string{"deadline", "window", "idle", "heal", "from", "to"}

// badDuration finds a duration that is none, of which the decoder would not
// say where it is. What is no YAML at all is the decoder's to tell.
func badDuration(b []byte) (line int, what string) {
	f, err := parser.ParseBytes(b, 0)
	if err != nil {
		return 0, ""
	}
	for _, doc := range f.Docs {
		if doc.Body == nil {
			continue
		}
		for _, n := range ast.Filter(ast.MappingValueType, doc.Body) {
			m, ok := n.(*ast.MappingValueNode)
			if !ok || what != "" || !slices.Contains(durations, m.Key.String()) {
				continue
			}
			v := m.Value.GetToken().Value
			if _, err := time.ParseDuration(v); err != nil {
				line, what = position(m), fmt.Sprintf("%s: %q is no duration, such as 20s or 500ms", m.Key, v)
			}
		}
	}
	return line, what
}

// wrongType is what the decoder says of a value that does not fit.
var wrongType = regexp.MustCompile(`^cannot unmarshal .+ into Go (?:struct field \S+|value) of type (\S+)`)

// yamlError makes one line of what the decoder says in several.
func yamlError(name string, err error) error {
	e := &Error{Name: name, What: err.Error()}
	var y yaml.Error
	if errors.As(err, &y) {
		e.What = y.GetMessage()
		if t := y.GetToken(); t != nil {
			e.Line = t.Position.Line
			if m := wrongType.FindStringSubmatch(e.What); m != nil {
				e.What = fmt.Sprintf("%q does not fit here: a %s is wanted", t.Value, wanted(m[1]))
			}
		}
	}
	e.What, _, _ = strings.Cut(e.What, "\n")
	if e.What == "EOF" {
		e.What = "it is empty"
	}
	return e
}

// wanted is a Go type in a plan's words.
func wanted(typ string) string {
	switch {
	case typ == "int":
		return "number"
	case strings.HasPrefix(typ, "[]"):
		return "list"
	case slices.Contains([]string{"plan.Cell", "plan.Fault", "plan.Prediction"}, typ):
		return "mapping"
	}
	return "word"
}

// lineOf finds the line of a path such as $.cells[3].predict, or of the nearest
// that exists above it; 0 if there is none.
func lineOf(b []byte, path string) int {
	f, err := parser.ParseBytes(b, 0)
	if err != nil {
		return 0
	}
	for path != "" && path != "$" {
		if p, err := yaml.PathString(path); err == nil {
			if n, err := p.FilterFile(f); err == nil && n != nil {
				return position(n)
			}
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	return 0
}

// position is the line a node begins on: of a mapping, that of its first key.
func position(n ast.Node) int {
	if m, ok := n.(*ast.MappingNode); ok && len(m.Values) > 0 {
		n = m.Values[0].Key
	}
	if m, ok := n.(*ast.MappingValueNode); ok {
		n = m.Key
	}
	return n.GetToken().Position.Line
}

// fill sets what a plan may leave out.
func (p *Plan) fill() {
	for i := range p.Cells {
		c := &p.Cells[i]
		if c.Order == "" {
			c.Order = Mixed
		}
		for k := range c.Faults {
			f := &c.Faults[k]
			if f.At == "" {
				f.At = BeforeSend
			}
			if f.Kind == Netsplit && f.Mechanism == "" {
				f.Mechanism = Mechanisms[0]
			}
		}
	}
}

// nameRE: names become file names.
var nameRE = regexp.MustCompile(`^[a-z][a-z0-9-]{0,47}$`)

const maxCaptures = 1000

// check says what is wrong, and where.
func (p *Plan) check() (where, what string) {
	switch {
	case !nameRE.MatchString(p.Name):
		return "$.plan", fmt.Sprintf("plan %q: a name is lower-case letters, digits and hyphens", p.Name)
	case p.Captures < 1 || p.Captures > maxCaptures:
		return "$.captures", fmt.Sprintf("captures: from 1 to %d, not %d", maxCaptures, p.Captures)
	case p.Deadline < time.Second || p.Deadline > time.Hour:
		return "$.deadline", fmt.Sprintf("deadline: from 1s to 1h, not %s", p.Deadline)
	case p.Window < time.Second || p.Window > time.Hour:
		return "$.window", fmt.Sprintf("window: from 1s to 1h, not %s", p.Window)
	case len(p.Cells) == 0:
		return "", "it has no cells"
	}
	seen := make(map[string]bool)
	for i := range p.Cells {
		c, at := &p.Cells[i], fmt.Sprintf("$.cells[%d]", i)
		if !nameRE.MatchString(c.Name) {
			return at, fmt.Sprintf("cell %q: a name is lower-case letters, digits and hyphens", c.Name)
		}
		if seen[c.Name] {
			return at + ".name", fmt.Sprintf("cell %s: there is one of that name above", c.Name)
		}
		seen[c.Name] = true
		if field, what := c.check(p); what != "" {
			return at + field, fmt.Sprintf("cell %s: %s", c.Name, what)
		}
	}
	return "", ""
}

func (c *Cell) check(p *Plan) (field, what string) {
	switch {
	case !slices.Contains([]Order{First, Mixed, Last}, c.Order):
		return ".order", fmt.Sprintf("order %q is none of first, mixed, last", c.Order)
	case c.Route != Proxied && c.Route != Direct:
		return ".route", fmt.Sprintf("route %q is none of proxied, direct", c.Route)
	case c.Route == Direct && c.Connection != "":
		return ".connection", "a direct request opens its own connection, leave it out"
	case c.Route == Proxied && c.Connection != Warm && c.Connection != Cold:
		return ".connection", fmt.Sprintf("connection %q is none of warm, cold", c.Connection)
	case c.Idle != 0 && c.Connection != Warm:
		return ".idle", "only a warm connection can be idle"
	case c.Idle < 0 || c.Idle > time.Hour:
		return ".idle", fmt.Sprintf("idle: from 0s to 1h, not %s", c.Idle)
	}
	for i, f := range c.Faults {
		at := fmt.Sprintf(".faults[%d]", i)
		if field, what := f.check(p, c); what != "" {
			return at + field, what
		}
		for k, g := range c.Faults[:i] {
			// Each is verified by what passes between the nodes.
			if f.Kind == g.Kind && (f.Node == g.Node || f.Kind == Netsplit) {
				return at, fmt.Sprintf("fault %d is a %s already", k+1, f.Kind)
			}
		}
	}
	return c.Predict.check()
}

func (f *Fault) check(p *Plan, c *Cell) (field, what string) {
	switch {
	case !slices.Contains([]Kind{Netsplit, Pause, Kill, Neutral}, f.Kind):
		return ".kind", fmt.Sprintf("kind %q is none of netsplit, pause, kill, neutral", f.Kind)
	case !slices.Contains(Nodes, f.Node):
		return ".node", fmt.Sprintf("node %q is none of %s", f.Node, strings.Join(Nodes, ", "))
	case f.Kind != Netsplit && f.Mechanism != "":
		return ".mechanism", "only a netsplit has a mechanism"
	case f.Kind == Netsplit && !slices.Contains(Mechanisms, f.Mechanism):
		return ".mechanism", fmt.Sprintf("mechanism %q is none of %s", f.Mechanism, strings.Join(Mechanisms, ", "))
	case f.At != BeforeSend && f.At != Queued:
		return ".at", fmt.Sprintf("at %q is none of before-send, queued", f.At)
	case f.At == Queued && (c.Connection != Warm || !f.heldByAnother(c)):
		return ".at", "a request waits to be seen only on a warm connection to a worker that a fault before the send keeps away"
	case f.Heal <= 0 || f.Heal > time.Hour:
		return ".heal", fmt.Sprintf("heal: more than 0s, at most 1h after the send, not %s", f.Heal)
	case f.At == Queued && f.Heal <= p.Deadline:
		return ".heal", fmt.Sprintf("injected at some time up to the deadline, it cannot heal before that (%s)", p.Deadline)
	}
	return "", ""
}

// heldByAnother reports whether a fault before the send makes the request wait.
func (f *Fault) heldByAnother(c *Cell) bool {
	return slices.ContainsFunc(c.Faults, func(g Fault) bool {
		return g.At == BeforeSend && g.Kind == Netsplit && g.Node == "worker"
	})
}

func (p *Prediction) check() (field, what string) {
	switch {
	case !slices.Contains([]Landing{Always, Never, Either}, p.Landed):
		return ".predict.landed", fmt.Sprintf("predict.landed %q is none of always, never, either", p.Landed)
	case p.Landed == Never && (p.From != 0 || p.To != 0):
		return ".predict", "what never lands has no from and to"
	case p.Landed != Never && (p.From < 0 || p.To <= p.From):
		return ".predict", "predict.from and predict.to say when it lands, from before to"
	case p.By == "":
		return ".predict", "predict.by says what delivers the request, or what prevents it"
	}
	return "", ""
}
