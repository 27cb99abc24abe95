package events

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const docsPage = "../../docs/events.md"

// documented are the structs of the page, by the name its markers use.
var documented = func() map[string]reflect.Type {
	m := make(map[string]reflect.Type)
	var walk func(t reflect.Type)
	walk = func(t reflect.Type) {
		for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct || t.PkgPath() != reflect.TypeFor[Event]().PkgPath() || m[t.Name()] != nil {
			return
		}
		m[t.Name()] = t
		for f := range t.Fields() {
			walk(f.Type)
		}
	}
	walk(reflect.TypeFor[Event]())
	return m
}()

var generated = regexp.MustCompile(`(?s)(<!-- (fields|example): ([A-Za-z]+) -->\n).*?(<!-- end -->)`)

// TestDocs holds docs/events.md to the struct tags and the examples. With
// -update it rewrites the parts between the markers; the rest is written by
// hand.
func TestDocs(t *testing.T) {
	page, err := os.ReadFile(docsPage)
	if err != nil {
		t.Fatal(err)
	}
	var tables, lines []string
	want := generated.ReplaceAllFunc(page, func(block []byte) []byte {
		m := generated.FindSubmatch(block)
		var body string
		switch kind, name := string(m[2]), string(m[3]); kind {
		case "fields":
			typ := documented[name]
			if typ == nil {
				t.Fatalf("the page has a table of %s, which is no struct of an event", name)
			}
			body = fieldTable(t, typ)
			tables = append(tables, name)
		case "example":
			body = "```json\n" + wrapped(t, exampleOf(t, Type(name))) + "```\n"
			lines = append(lines, name)
		}
		return slices.Concat(m[1], []byte(body), m[4])
	})
	if *update {
		if err := os.WriteFile(docsPage, want, 0o644); err != nil {
			t.Fatal(err)
		}
	} else if !bytes.Equal(page, want) {
		t.Errorf("%s is stale: run go test ./internal/events -run TestDocs -update", docsPage)
	}
	for name := range documented {
		if !slices.Contains(tables, name) {
			t.Errorf("the page has no table of %s", name)
		}
	}
	for _, typ := range types {
		if !slices.Contains(lines, string(typ)) {
			t.Errorf("the page has no example of %s", typ)
		}
		if !bytes.Contains(page, fmt.Appendf(nil, "\n### %s\n", typ)) {
			t.Errorf("the page has no section on %s", typ)
		}
	}
}

// fieldTable documents a struct by its tags.
func fieldTable(t *testing.T, typ reflect.Type) string {
	var b strings.Builder
	b.WriteString("| field | type | meaning |\n|---|---|---|\n")
	for f := range typ.Fields() {
		name := jsonName(f)
		if slices.Contains(types, Type(name)) && typ == reflect.TypeFor[Event]() {
			continue // the types have sections of their own
		}
		text := f.Tag.Get("jsonschema_description")
		if text == "" {
			t.Errorf("%s.%s has no description", typ.Name(), f.Name)
		}
		var enum []string
		for _, tag := range strings.Split(f.Tag.Get("jsonschema"), ",") {
			if value, ok := strings.CutPrefix(tag, "enum="); ok {
				enum = append(enum, "`"+value+"`")
			}
		}
		if enum != nil {
			text += " One of " + strings.Join(enum, ", ") + "."
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", name, typeName(f), strings.ReplaceAll(text, "|", `\|`))
	}
	return b.String()
}

// typeName is the JSON type of a field, in words.
func typeName(f reflect.StructField) string {
	var name func(t reflect.Type) string
	name = func(t reflect.Type) string {
		switch {
		case t.Kind() == reflect.Pointer:
			return name(t.Elem())
		case documented[t.Name()] == t:
			return "[object](#" + strings.ToLower(t.Name()) + ")"
		case t.Implements(reflect.TypeFor[interface{ MarshalText() ([]byte, error) }]()), t.Kind() == reflect.String:
			return "string"
		case t.Kind() == reflect.Bool:
			return "boolean"
		case t.Kind() == reflect.Slice:
			return "list of " + plural(name(t.Elem()))
		case t.Kind() == reflect.Map:
			return "object of " + plural(name(t.Elem()))
		}
		return "integer"
	}
	s := name(f.Type)
	if strings.Contains(f.Tag.Get("json"), ",omitempty") {
		s += ", optional"
	}
	return s
}

func plural(s string) string {
	if strings.HasPrefix(s, "[") {
		return strings.Replace(s, "object]", "objects]", 1)
	}
	return s + "s"
}

// wrapped is the line of e, broken before its parts so that it can be read.
func wrapped(t *testing.T, e *Event) string {
	line := e.AppendJSON(nil)
	var v map[string]json.RawMessage
	if err := json.Unmarshal(line, &v); err != nil {
		t.Fatal(err)
	}
	s := string(line)
	for f := range reflect.TypeFor[Event]().Fields() {
		key := jsonName(f)
		if part, ok := v[key]; ok && part[0] == '{' {
			s = strings.Replace(s, `,"`+key+`":{`, ",\n \""+key+`":{`, 1)
		}
	}
	return s + "\n"
}
