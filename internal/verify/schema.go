package verify

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"net/netip"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/sockwatch/sockwatch/internal/events"
)

// maxShapes bounds the shapes that are remembered.
const maxShapes = 1 << 16

// validator holds lines to the schema. Validating every line would take most
// of the time, and nearly all lines are alike: of those that are written as
// sockwatch writes them, it validates one of each shape.
type validator struct {
	schema *jsonschema.Schema
	seed   maphash.Seed
	shapes map[uint64]struct{} // valid ones
	again  []byte
}

func newValidator() (*validator, error) {
	s, err := compiled()
	if err != nil {
		return nil, err
	}
	return &validator{schema: s, seed: maphash.MakeSeed(), shapes: make(map[uint64]struct{})}, nil
}

// compiled returns the schema, compiled once.
var compiled = sync.OnceValues(func() (*jsonschema.Schema, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(events.Schema()))
	if err != nil {
		return nil, fmt.Errorf("read the schema: %w", err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	const name = "sockwatch.schema.json"
	if err := c.AddResource(name, doc); err != nil {
		return nil, fmt.Errorf("read the schema: %w", err)
	}
	s, err := c.Compile(name)
	if err != nil {
		return nil, fmt.Errorf("compile the schema: %w", err)
	}
	return s, nil
})

// check says what is wrong with a line, of which e was read.
func (v *validator) check(line []byte, e *events.Event) error {
	v.again = e.AppendJSON(v.again[:0])
	if !bytes.Equal(v.again, line) {
		return v.validate(line)
	}
	shape := v.shape(e)
	if _, ok := v.shapes[shape]; ok {
		return nil
	}
	if err := v.validate(line); err != nil {
		return err
	}
	if len(v.shapes) == maxShapes {
		clear(v.shapes)
	}
	v.shapes[shape] = struct{}{}
	return nil
}

// shape is a hash of all that the schema can object to in a line that
// AppendJSON wrote: its structure and its words. Numbers are within the ranges
// of their types, times and addresses are well formed, because they were read;
// the sign of a number is kept.
func (v *validator) shape(e *events.Event) uint64 {
	c := *e
	c.Time = 0
	if c.Sock != nil {
		s := *c.Sock
		s.Local, s.Remote = plainAddr(s.Local), plainAddr(s.Remote)
		c.Sock = &s
	}
	if c.Retransmit != nil {
		r := *c.Retransmit
		r.Why = ""
		c.Retransmit = &r
	}
	if c.Abort != nil {
		a := *c.Abort
		a.Why = ""
		c.Abort = &a
	}
	if c.Mark != nil {
		m := *c.Mark
		m.Text, m.By = "", ""
		c.Mark = &m
	}
	v.again = withoutNumbers(c.AppendJSON(v.again[:0]))
	return maphash.Bytes(v.seed, v.again)
}

var somewhere = netip.AddrPortFrom(netip.AddrFrom4([4]byte{}), 0)

func plainAddr(a netip.AddrPort) netip.AddrPort {
	if a.IsValid() && a.Addr().Zone() == "" {
		return somewhere
	}
	return a
}

// withoutNumbers takes the digits outside of strings out of b, in place.
func withoutNumbers(b []byte) []byte {
	out := b[:0]
	inside := false
	for i := 0; i < len(b); i++ {
		c := b[i]
		switch {
		case c == '"':
			inside = !inside
		case c == '\\':
			out = append(out, c)
			i++
			c = b[i]
		case !inside && '0' <= c && c <= '9':
			continue
		}
		out = append(out, c)
	}
	return out
}

func (v *validator) validate(line []byte) error {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(line))
	if err != nil {
		return fmt.Errorf("not valid JSON: %w", err)
	}
	if key := duplicateKey(line); key != "" {
		return fmt.Errorf("the key %q comes twice: readers may differ on which counts", key)
	}
	var ve *jsonschema.ValidationError
	switch err := v.schema.Validate(doc); {
	case err == nil:
		return nil
	case errors.As(err, &ve):
		return errors.New("not valid: " + innermost(ve.Error()))
	default:
		return fmt.Errorf("not valid: %w", err)
	}
}

// innermost picks from the lines of a validation error the one that says most.
func innermost(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.TrimPrefix(strings.TrimSpace(lines[len(lines)-1]), "- ")
}

// duplicateKey returns a key that an object has twice, of any depth, or "".
func duplicateKey(line []byte) string {
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.UseNumber()
	var open []map[string]bool // nil for a list
	key := false               // the next string is one
	for {
		tok, err := dec.Token()
		if err != nil {
			return ""
		}
		switch t := tok.(type) {
		case json.Delim:
			switch t {
			case '{':
				open = append(open, make(map[string]bool))
			case '[':
				open = append(open, nil)
			default:
				open = open[:len(open)-1]
			}
		case string:
			if !key {
				break
			}
			names := open[len(open)-1]
			if names[t] {
				return t
			}
			names[t] = true
			key = false
			continue
		}
		key = len(open) > 0 && open[len(open)-1] != nil
	}
}
