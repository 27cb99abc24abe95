package events

import (
	"encoding/json"
	"math"
	"net/netip"
	"reflect"
	"slices"

	"github.com/invopop/jsonschema"
)

// types are all types, in the order of Event's parts.
var types = []Type{
	TypeSession, TypeSummary, TypeTarget, TypeInventory, TypeRetransmit, TypeProbe, TypeState, TypeReset,
	TypeAbort, TypeRecovered, TypeArrival, TypeError, TypeDrop, TypeICMP, TypeNeighbour, TypeIO, TypeSegment, TypeMark, TypeClock, TypeLost,
}

// requires names what a line of each type has beside the common part and the
// part of its own name.
var requires = map[Type][]string{
	TypeSession:    nil,
	TypeSummary:    nil,
	TypeTarget:     {"netns"},
	TypeInventory:  {"netns", "sock", "cpu"},
	TypeRetransmit: {"netns", "sock", "cpu"},
	TypeProbe:      {"netns", "sock", "cpu"},
	TypeState:      {"netns", "sock", "cpu"},
	TypeReset:      {"netns", "sock", "cpu"},
	TypeAbort:      {"netns", "sock", "cpu"},
	TypeRecovered:  {"netns", "sock", "cpu"},
	TypeArrival:    {"netns", "sock", "cpu", "tcp"},
	TypeError:      {"netns", "sock", "cpu"},
	TypeDrop:       {"netns", "sock", "cpu"},
	TypeICMP:       {"netns", "sock", "cpu"},
	TypeNeighbour:  {"netns", "cpu"},
	TypeIO:         {"netns", "sock", "cpu"},
	TypeSegment:    {"netns", "sock", "cpu"},
	TypeMark:       nil,
	TypeClock:      nil,
	TypeLost:       nil,
}

// unknownNames are what stands in for a name that a newer kernel added.
var unknownNames = []struct{ def, field, pattern string }{
	{"TCP", "state", "^STATE_[0-9]+$"},
	{"TCP", "ca_state", "^CA_[0-9]+$"},
	{"TCP", "pending_timer", "^timer-[0-9]+$"},
	{"State", "old", "^STATE_[0-9]+$"},
	{"State", "new", "^STATE_[0-9]+$"},
	{"Abort", "state", "^STATE_[0-9]+$"},
}

// Schema returns the JSON Schema (draft 2020-12) of one line, indented.
func Schema() []byte {
	r := &jsonschema.Reflector{ExpandedStruct: true, Anonymous: true, Mapper: scalar}
	s := r.Reflect(&Event{})
	s.ID = "https://github.com/sockwatch/sockwatch/events/" + SchemaVersion
	s.Title = "One line of sockwatch evidence"

	for _, u := range unknownNames {
		p := s.Definitions[u.def].Properties.Value(u.field)
		p.AnyOf = []*jsonschema.Schema{{Enum: p.Enum}, {Pattern: u.pattern}}
		p.Enum = nil
	}
	typ := s.Properties.Value("type")
	for _, t := range types {
		typ.Enum = append(typ.Enum, t)
		s.AllOf = append(s.AllOf, &jsonschema.Schema{
			If:   where("type", &jsonschema.Schema{Const: t}),
			Then: partsOf(t),
			Else: where(string(t), jsonschema.FalseSchema),
		})
	}

	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		panic(err) // it is made of strings and numbers
	}
	return append(b, '\n')
}

// partsOf returns what holds for a line of type t: its part is there, what it
// requires too, and nothing about a socket if it requires none.
func partsOf(t Type) *jsonschema.Schema {
	s := &jsonschema.Schema{Required: append([]string{string(t)}, requires[t]...)}
	if slices.Contains(requires[t], "sock") {
		return s
	}
	s.Properties = jsonschema.NewProperties()
	for _, name := range []string{"netns", "sock", "owner", "cpu", "tcp"} {
		if !slices.Contains(requires[t], name) {
			s.Properties.Set(name, jsonschema.FalseSchema)
		}
	}
	return s
}

// scalar maps the Go types whose JSON form reflection does not show, and gives
// unsigned numbers their range.
func scalar(t reflect.Type) *jsonschema.Schema {
	switch t {
	case reflect.TypeFor[netip.AddrPort]():
		return &jsonschema.Schema{Type: "string", Pattern: `^(([0-9]{1,3}\.){3}[0-9]{1,3}|\[[0-9a-f:.]+(%[^\]]+)?\]):[0-9]{1,5}$`}
	case reflect.TypeFor[WallTime]():
		return &jsonschema.Schema{Type: "string", Format: "date-time", Pattern: `^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{9}Z$`}
	}
	switch t.Kind() {
	case reflect.Uint8, reflect.Uint32:
		return &jsonschema.Schema{Type: "integer", Minimum: "0", Maximum: number(math.MaxUint64 >> (64 - t.Bits()))}
	case reflect.Uint64:
		return &jsonschema.Schema{Type: "integer", Minimum: "0", Maximum: number(math.MaxUint64)}
	}
	return nil
}

func number(v uint64) json.Number {
	return json.Number(appendUint(nil, "", v))
}

// where returns a schema that says of one property what s says.
func where(name string, s *jsonschema.Schema) *jsonschema.Schema {
	p := jsonschema.NewProperties()
	p.Set(name, s)
	return &jsonschema.Schema{Properties: p}
}
