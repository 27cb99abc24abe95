package events

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

func compileSchema(t testing.TB) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("schema.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("schema.json")
	if err != nil {
		t.Fatalf("the schema is not a schema: %v", err)
	}
	return s
}

func validate(t testing.TB, s *jsonschema.Schema, line []byte) error {
	t.Helper()
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(line))
	if err != nil {
		t.Fatalf("%v: %s", err, line)
	}
	return s.Validate(v)
}

func TestSchemaAcceptsGolden(t *testing.T) {
	s := compileSchema(t)
	for _, e := range examples() {
		if err := validate(t, s, e.AppendJSON(nil)); err != nil {
			t.Errorf("%s: %v", e.Type, err)
		}
	}
	for name, change := range map[string]func(e *Event){
		"a state of a newer kernel": func(e *Event) { e.TCP.State, e.TCP.CaState, e.TCP.PendingTimer = "STATE_13", "CA_5", "timer-7" },
		"a mapped address":          func(e *Event) { e.Sock.Local = mustAddr("[::ffff:198.18.0.1]:1") },
		"IPv6 with a zone":          func(e *Event) { e.Sock.Local = mustAddr("[fe80::1%eth0]:65535") },
		"no snapshot, no owner":     func(e *Event) { e.TCP, e.Owner = nil, nil },
		"the largest numbers": func(e *Event) {
			e.Seq, e.MonoNS, e.Sock.Cookie, e.Netns.Cookie = 1<<64-1, 1<<64-1, 1<<64-1, 1<<64-1
		},
	} {
		e := exampleOf(t, TypeRetransmit)
		change(e)
		if err := validate(t, s, e.AppendJSON(nil)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	empty := &Event{Seq: 1, Type: TypeSummary, Summary: &Summary{Verdict: Verdict{State: "complete"}}}
	if err := validate(t, s, empty.AppendJSON(nil)); err != nil {
		t.Errorf("empty lists: %v", err)
	}
}

// TestSchemaRefusesMutations: for each golden line, taking away any key at any
// depth that is not optional, adding one, or putting in a wrong type must be
// refused.
func TestSchemaRefusesMutations(t *testing.T) {
	s := compileSchema(t)
	optional := map[string]bool{
		"owner": true, "tcp": true, "mptcp": true, "container": true, "blind_ns": true, "sysctls": true, "sockets": true,
		"reset.segment": true, "reset.trigger": true, "drop.segment": true, "detail": true, "clock.ntp": true,
	}
	for _, e := range examples() {
		line := e.AppendJSON(nil)
		mutations := 0
		refused := func(what string, mutate func(v map[string]any)) {
			t.Helper()
			var v map[string]any
			dec := json.NewDecoder(bytes.NewReader(line))
			dec.UseNumber()
			if err := dec.Decode(&v); err != nil {
				t.Fatal(err)
			}
			mutate(v)
			b, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			if validate(t, s, b) == nil {
				t.Errorf("%s: accepted %s: %s", e.Type, what, b)
			}
			mutations++
		}
		for path := range objects(line) {
			at := func(v map[string]any) map[string]any {
				for _, key := range strings.FieldsFunc(path, func(r rune) bool { return r == '.' }) {
					v = v[key].(map[string]any)
				}
				return v
			}
			var v map[string]any
			if err := json.Unmarshal(line, &v); err != nil {
				t.Fatal(err)
			}
			last := path[strings.LastIndex(path, ".")+1:]
			free := slices.Contains([]string{"events", "by_program", "by", "per_cpu", "sysctls"}, last) && path != ""
			for key := range at(v) {
				if !free && !optional[key] && !optional[path+"."+key] {
					refused("without "+path+"."+key, func(v map[string]any) { delete(at(v), key) })
				}
				refused("null as "+path+"."+key, func(v map[string]any) { at(v)[key] = nil })
				refused("a list as "+path+"."+key, func(v map[string]any) { at(v)[key] = []any{1} })
			}
			if !free {
				refused("a key more in "+path, func(v map[string]any) { at(v)["surplus"] = 1 })
			}
		}
		for _, other := range examples() {
			if other.Type == e.Type {
				continue
			}
			refused("type "+string(other.Type), func(v map[string]any) { v["type"] = string(other.Type) })
			refused("a part of "+string(other.Type), func(v map[string]any) {
				var o map[string]any
				if err := json.Unmarshal(other.AppendJSON(nil), &o); err != nil {
					t.Fatal(err)
				}
				v[string(other.Type)] = o[string(other.Type)]
			})
		}
		refused("an unknown type", func(v map[string]any) { v["type"] = "unheard-of" })
		if e.Sock == nil {
			refused("a socket", func(v map[string]any) {
				v["sock"] = map[string]any{"cookie": 1, "family": "inet", "local": "1.2.3.4:5", "remote": "1.2.3.4:5"}
			})
			if e.CPU == nil {
				refused("a processor", func(v map[string]any) { v["cpu"] = 1 })
			}
		}
		if mutations < 40 {
			t.Errorf("%s: only %d mutations", e.Type, mutations)
		}
	}
}

// objects yields the path of each object in a line, the line itself first.
func objects(line []byte) map[string]bool {
	paths := map[string]bool{"": true}
	var walk func(path string, v map[string]any)
	walk = func(path string, v map[string]any) {
		for key, child := range v {
			if m, ok := child.(map[string]any); ok {
				p := strings.TrimPrefix(path+"."+key, ".")
				paths[p] = true
				walk(p, m)
			}
		}
	}
	var v map[string]any
	if err := json.Unmarshal(line, &v); err != nil {
		panic(err)
	}
	walk("", v)
	return paths
}

func TestSchemaRefusesValues(t *testing.T) {
	s := compileSchema(t)
	for _, tt := range []struct {
		typ      Type
		old, new string
	}{
		{TypeRetransmit, `"cause":"rto"`, `"cause":"timer"`},
		{TypeRetransmit, `"state":"ESTABLISHED"`, `"state":"ESTAB"`},
		{TypeRetransmit, `"ca_state":"Loss"`, `"ca_state":"loss"`},
		{TypeRetransmit, `"pending_timer":"none"`, `"pending_timer":""`},
		{TypeRetransmit, `"attempt":3`, `"attempt":-3`},
		{TypeRetransmit, `"attempt":3`, `"attempt":3.5`},
		{TypeRetransmit, `"attempt":3`, `"attempt":4294967296`},
		{TypeRetransmit, `"retransmits":2`, `"retransmits":256`},
		{TypeRetransmit, `"seq":12`, `"seq":0`},
		{TypeRetransmit, `"family":"inet"`, `"family":"unix"`},
		{TypeRetransmit, `"local":"198.18.0.3:41532"`, `"local":"198.18.0.3"`},
		{TypeRetransmit, `"local":"198.18.0.3:41532"`, `"local":""`},
		{TypeRetransmit, `"via":"connect"`, `"via":"cpu"`},
		{TypeRetransmit, `.624000000Z"`, `.624Z"`},
		{TypeRetransmit, `.624000000Z"`, `.624000000+00:00"`},
		{TypeRetransmit, `"2026-09-21T`, `"2026-13-21T`},
		{TypeState, `"new":"CLOSE"`, `"new":"CLOSED"`},
		{TypeProbe, `"direction":"sent"`, `"direction":"out"`},
		{TypeProbe, `"kind":"keepalive"`, `"kind":"persist"`},
		{TypeReset, `"seen_by":"tcp_send_reset"`, `"seen_by":"tcpdump"`},
		{TypeAbort, `"by":"local"`, `"by":"remote"`},
		{TypeAbort, `"cause":"user-timeout"`, `"cause":"timeout"`},
		{TypeMark, `"kind":"applied"`, `"kind":"done"`},
		{TypeTarget, `"change":"attached"`, `"change":"added"`},
		{TypeSession, `"lockdown":"none"`, `"lockdown":"off"`},
		{TypeSession, `"method":"packet"`, `"method":"kprobe"`},
	} {
		line := string(exampleOf(t, tt.typ).AppendJSON(nil))
		if !strings.Contains(line, tt.old) {
			t.Errorf("%s: no %s in %s", tt.typ, tt.old, line)
			continue
		}
		if validate(t, s, []byte(strings.Replace(line, tt.old, tt.new, 1))) == nil {
			t.Errorf("%s: accepted %s", tt.typ, tt.new)
		}
	}
}

// TestSchemaNames holds the schema to the names that events are written with.
func TestSchemaNames(t *testing.T) {
	var doc struct {
		Schema string `json:"$schema"`
		Defs   map[string]struct {
			AdditionalProperties *bool `json:"additionalProperties"`
			Properties           map[string]struct {
				Description string   `json:"description"`
				Enum        []string `json:"enum"`
				AnyOf       []struct {
					Enum    []string `json:"enum"`
					Pattern string   `json:"pattern"`
				} `json:"anyOf"`
			} `json:"properties"`
		} `json:"$defs"`
	}
	if err := json.Unmarshal(Schema(), &doc); err != nil {
		t.Fatal(err)
	}
	if doc.Schema != "https://json-schema.org/draft/2020-12/schema" {
		t.Errorf("$schema is %s", doc.Schema)
	}
	for def, d := range doc.Defs {
		if d.AdditionalProperties == nil || *d.AdditionalProperties {
			t.Errorf("%s allows additional properties", def)
		}
		for name, p := range d.Properties {
			if p.Description == "" {
				t.Errorf("%s.%s has no description", def, name)
			}
		}
	}
	want := func(def, field string, names []string) {
		t.Helper()
		p := doc.Defs[def].Properties[field]
		got := p.Enum
		if len(p.AnyOf) > 0 {
			got = p.AnyOf[0].Enum
		}
		slices.Sort(got)
		names = slices.DeleteFunc(slices.Clone(names), func(s string) bool { return s == "" })
		slices.Sort(names)
		if !slices.Equal(got, names) {
			t.Errorf("%s.%s: schema has %q, events are written with %q", def, field, got, names)
		}
	}
	timers := map[string]bool{}
	for i := range 256 {
		if name := timerName(uint8(i)); name != fmt.Sprintf("timer-%d", i) {
			timers[name] = true
		}
	}
	for _, f := range [][2]string{{"TCP", "state"}, {"State", "old"}, {"State", "new"}, {"Abort", "state"}} {
		want(f[0], f[1], stateNames[:])
	}
	want("TCP", "ca_state", caNames[:])
	want("TCP", "pending_timer", slices.Collect(maps.Keys(timers)))
	want("Retransmit", "cause", []string{
		causeSyn, causeSynAck, causeRTO, causeTLP, causeFast, causeLossRecovery, causeMTU, causeUndecided,
	})
	want("Abort", "by", []string{byLocal, byPeer, byUndecided})
	want("Abort", "cause", []string{
		abortReset, abortRetries, abortUserTimeout, abortKeepalive, abortRefused, abortUnreachable, abortUnread, abortLinger, abortMemory,
		abortDestroyed, abortDisconnect, abortListener, abortCancelled, causeUndecided,
	})
}
