package events

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var update = flag.Bool("update", false, "rewrite the golden files and the generated parts of docs/events.md")

var (
	equateAddrs  = cmpopts.EquateComparable(netip.AddrPort{})
	equateEvents = cmp.Options{cmpopts.EquateEmpty(), equateAddrs}
)

// reflective is Event without its methods: encoding/json sees only the tags.
type reflective Event

func reflectiveJSON(t testing.TB, e *Event) string {
	t.Helper()
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode((*reflective)(e)); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// filler sets fields to what it draws from r.
type filler struct {
	r *rand.Rand
	// always leaves no pointer nil and no value zero.
	always bool
}

func (f *filler) fill(v reflect.Value) {
	if v.Type() == reflect.TypeFor[netip.AddrPort]() {
		v.Set(reflect.ValueOf(f.addrPort()))
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if f.always || f.r.IntN(2) == 0 {
			v.Set(reflect.New(v.Type().Elem()))
			f.fill(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			f.fill(v.Field(i))
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), f.len(), 4))
		for i := range v.Len() {
			f.fill(v.Index(i))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range f.len() {
			key, elem := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			f.fill(key)
			f.fill(elem)
			v.SetMapIndex(key, elem)
		}
	case reflect.Bool:
		v.SetBool(f.always || f.r.IntN(2) == 0)
	case reflect.String:
		v.SetString(f.string())
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(f.bits()))
	case reflect.Uint8, reflect.Uint32, reflect.Uint64:
		v.SetUint(f.bits() >> (64 - v.Type().Bits()))
	default:
		panic("fill: a field of kind " + v.Kind().String())
	}
}

func (f *filler) len() int {
	if f.always {
		return 3
	}
	return f.r.IntN(4)
}

// bits draws numbers of every length, and the two ends often.
func (f *filler) bits() uint64 {
	if f.always {
		return f.r.Uint64() | 1<<63
	}
	switch f.r.IntN(8) {
	case 0:
		return 0
	case 1:
		return math.MaxUint64
	}
	return f.r.Uint64() >> f.r.IntN(64)
}

func (f *filler) string() string {
	pieces := []string{
		"plain", `"`, `\`, "\x00", "\x1f", "\x7f", "\b\f\n\r\t", "\x1b[31m", "é", "€", "𝄞", "\u2027", "\u2028", "\u2029", "\u202a",
		"\ufffd", "\xff", "\xc3", "\xe2\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "<&>", "/",
	}
	s := ""
	if f.always {
		s = "x"
	}
	for range f.r.IntN(6) {
		s += pieces[f.r.IntN(len(pieces))]
	}
	return s
}

func (f *filler) addrPort() netip.AddrPort {
	port := uint16(f.r.Uint32())
	var a [16]byte
	for i := range a {
		a[i] = byte(f.r.Uint32())
	}
	addrs := []netip.AddrPort{
		netip.AddrPortFrom(netip.AddrFrom4([4]byte(a[:4])), port),
		netip.AddrPortFrom(netip.AddrFrom16(a), port),
		netip.AddrPortFrom(netip.AddrFrom16(netip.AddrFrom4([4]byte(a[:4])).As16()), port),
		netip.AddrPortFrom(netip.AddrFrom16(a).WithZone(`e"th`), port),
		{},
	}
	if f.always {
		return addrs[0]
	}
	return addrs[f.r.IntN(len(addrs))]
}

// ofType returns a copy of e that carries only the part of its type.
func ofType(e Event, typ Type) *Event {
	e.Type = typ
	v := reflect.ValueOf(&e).Elem()
	for i := range v.NumField() {
		name := jsonName(v.Type().Field(i))
		for _, other := range types {
			if name == string(other) && other != typ {
				v.Field(i).SetZero()
			}
		}
	}
	return &e
}

func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

// TestAppendJSONEqualsTags holds the hand-written encoder to the struct tags.
func TestAppendJSONEqualsTags(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	check := func(t *testing.T, e *Event) {
		t.Helper()
		got, want := string(e.AppendJSON(nil)), reflectiveJSON(t, e)
		if got != want {
			i := 0
			for i < min(len(got), len(want)) && got[i] == want[i] {
				i++
			}
			i = max(0, i-40)
			t.Fatalf("AppendJSON differs from the struct tags from byte %d on\n got %.120q\nwant %.120q", i, got[i:], want[i:])
		}
	}

	var full Event
	(&filler{r: r, always: true}).fill(reflect.ValueOf(&full).Elem())
	t.Run("full", func(t *testing.T) { check(t, &full) })
	t.Run("zero", func(t *testing.T) { check(t, &Event{}) })
	for _, typ := range types {
		t.Run(string(typ), func(t *testing.T) {
			e := ofType(full, typ)
			check(t, e)
			if !bytes.Contains(e.AppendJSON(nil), fmt.Appendf(nil, `,"%s":{`, typ)) {
				t.Errorf("no part named %s", typ)
			}
			// Each field that can be absent is absent once.
			v := reflect.ValueOf(e).Elem()
			for i := range v.NumField() {
				if v.Field(i).Kind() != reflect.Pointer {
					continue
				}
				was := v.Field(i).Interface()
				v.Field(i).SetZero()
				check(t, e)
				v.Field(i).Set(reflect.ValueOf(was))
			}
		})
	}
	t.Run("random", func(t *testing.T) {
		for range 2000 {
			var e Event
			(&filler{r: r}).fill(reflect.ValueOf(&e).Elem())
			check(t, &e)
		}
	})
}

// TestAppendJSONNilLists: a reader never meets null.
func TestAppendJSONNilLists(t *testing.T) {
	e := Event{Session: &Session{}, Summary: &Summary{Namespaces: []NamespaceCounts{{}}}, Lost: &Lost{}, Target: &Target{}}
	line := string(e.AppendJSON(nil))
	if strings.Contains(line, "null") {
		t.Errorf("null in %s", line)
	}
	for _, want := range []string{`"command":[]`, `"programs":[]`, `"blind_spots":[]`, `"targets":[]`, `"by_program":{}`, `"by":{}`, `"per_cpu":{}`} {
		if !strings.Contains(line, want) {
			t.Errorf("no %s in %s", want, line)
		}
	}
}

// TestAllTypesListed: every part of Event that is not common belongs to a type.
func TestAllTypesListed(t *testing.T) {
	common := map[string]bool{
		"seq": true, "type": true, "mono_ns": true, "time": true, "netns": true, "sock": true, "owner": true, "cpu": true, "tcp": true,
	}
	var parts []Type
	for f := range reflect.TypeFor[Event]().Fields() {
		if name := jsonName(f); !common[name] {
			parts = append(parts, Type(name))
		}
	}
	if diff := cmp.Diff(types, parts); diff != "" {
		t.Errorf("types and parts of Event differ (-types +parts):\n%s", diff)
	}
}

func TestAppendString(t *testing.T) {
	for in, want := range map[string]string{
		"":                  `""`,
		"talosctl":          `"talosctl"`,
		"a\"b\\c":           `"a\"b\\c"`,
		"\n\r\t\b\f":        `"\n\r\t\b\f"`,
		"\x00\x1b[31m\x1f":  `"\u0000\u001b[31m\u001f"`,
		"\x7f":              "\"\x7f\"",
		"<script>&":         `"<script>&"`,
		"caf\xc3\xa9 \xff":  `"café \ufffd"`,
		"\xe2\x80":          `"\ufffd\ufffd"`,
		"\u2028|\u2029":     `"\u2028|\u2029"`,
		"\ufffd":            "\"\ufffd\"",
		"\xed\xa0\x80 half": `"\ufffd\ufffd\ufffd half"`,
	} {
		if got := string(appendString(nil, in)); got != want {
			t.Errorf("appendString(%q) = %s, want %s", in, got, want)
		}
	}
}

func TestWallTime(t *testing.T) {
	const layout = "2006-01-02T15:04:05.000000000Z"
	times := []int64{
		0, 1, -1, 999_999_999, 1e9, -1e9, math.MaxInt64, math.MinInt64, math.MinInt64 + 1,
		time.Date(2000, 2, 29, 23, 59, 59, 999_999_999, time.UTC).UnixNano(),
		time.Date(1900, 2, 28, 23, 59, 59, 1, time.UTC).UnixNano(),
		time.Date(1900, 3, 1, 0, 0, 0, 0, time.UTC).UnixNano(),
		time.Date(2100, 2, 28, 24, 0, 0, 0, time.UTC).UnixNano(),
	}
	// Every day of the range, at a moment that moves through the day.
	const day = int64(24 * time.Hour)
	for n := math.MinInt64/day + 1; n < math.MaxInt64/day-1; n++ {
		times = append(times, n*day+n*7_919_000_104_729%day)
	}
	for _, ns := range times {
		want := time.Unix(0, ns).UTC().Format(layout)
		text, err := WallTime(ns).MarshalText()
		if err != nil || string(text) != want {
			t.Fatalf("WallTime(%d) = %s, %v, want %s", ns, text, err, want)
		}
		var back WallTime
		if err := back.UnmarshalText(text); err != nil || int64(back) != ns {
			t.Fatalf("UnmarshalText(%s) = %d, %v, want %d", text, back, err, ns)
		}
	}

	var w WallTime
	if err := w.UnmarshalText([]byte("1970-01-01T01:00:00.5+01:00")); err != nil || w != 5e8 {
		t.Errorf("with an offset: %d, %v", w, err)
	}
	for _, bad := range []string{"", "now", "0001-01-01T00:00:00Z", "2262-04-11T23:47:16.854775808Z", "9999-12-31T23:59:59Z"} {
		if err := w.UnmarshalText([]byte(bad)); err == nil {
			t.Errorf("UnmarshalText(%q) = %s, want an error", bad, w)
		}
	}
}

func TestMarshalJSON(t *testing.T) {
	e := *exampleOf(t, TypeRetransmit)
	for _, v := range []any{e, &e} {
		b, err := json.Marshal(v)
		if err != nil || !bytes.Equal(b, e.AppendJSON(nil)) {
			t.Errorf("json.Marshal(%T) = %s, %v", v, b, err)
		}
	}
}

// TestGolden pins one line of each type, byte for byte.
func TestGolden(t *testing.T) {
	for i, e := range examples() {
		if e.Type != types[i] {
			t.Fatalf("example %d has type %s, want %s", i, e.Type, types[i])
		}
		path := filepath.Join("testdata", string(e.Type)+".jsonl")
		line := append(e.AppendJSON(nil), '\n')
		if *update {
			if err := os.WriteFile(path, line, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		golden, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(line, golden) {
			t.Errorf("%s differs (run with -update if the format was meant to change)\n got %swant %s", path, line, golden)
		}
		var back Event
		if err := json.Unmarshal(golden, &back); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		if diff := cmp.Diff(e, &back, equateEvents); diff != "" {
			t.Errorf("%s is not read back as it was written (-written +read):\n%s", path, diff)
		}
	}
}

// TestAppendJSONAllocs: what a socket's events cost is copying.
func TestAppendJSONAllocs(t *testing.T) {
	buf := make([]byte, 0, 8192)
	for _, typ := range types {
		e := exampleOf(t, typ)
		if e.Sock == nil {
			continue
		}
		if n := testing.AllocsPerRun(100, func() { buf = e.AppendJSON(buf[:0]) }); n != 0 {
			t.Errorf("%s: %v allocations, want 0", typ, n)
		}
	}
}

func BenchmarkAppendJSON(b *testing.B) {
	buf := make([]byte, 0, 8192)
	for _, typ := range types {
		e := exampleOf(b, typ)
		b.Run(string(typ), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				buf = e.AppendJSON(buf[:0])
			}
			b.SetBytes(int64(len(buf)))
		})
	}
}

func FuzzEventRoundTrip(f *testing.F) {
	seeds := 0
	for _, e := range examples() {
		f.Add(e.AppendJSON(nil))
		seeds++
	}
	for i := range uint64(20) {
		var e Event
		(&filler{r: rand.New(rand.NewPCG(i, 1))}).fill(reflect.ValueOf(&e).Elem())
		f.Add(e.AppendJSON(nil))
		seeds++
	}
	f.Add([]byte(`{"time":"2262-04-11T23:47:16.854775807Z","sock":{"local":"[fe80::1%e\u2028\"]:1","remote":""}}`))
	if seeds < len(types) {
		f.Fatalf("only %d seeds", seeds)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var first Event
		if json.Unmarshal(data, &first) != nil {
			return
		}
		line := first.AppendJSON(nil)
		if !json.Valid(line) || !utf8.Valid(line) || bytes.ContainsAny(line, "\n\r\x00\u2028\u2029") {
			t.Fatalf("not a line of JSON: %q", line)
		}
		var second Event
		if err := json.Unmarshal(line, &second); err != nil {
			t.Fatalf("own output is refused: %v\n%s", err, line)
		}
		if diff := cmp.Diff(first, second, equateEvents); diff != "" {
			t.Fatalf("changed on the way (-first +second):\n%s", diff)
		}
		if again := second.AppendJSON(nil); !bytes.Equal(again, line) {
			t.Fatalf("not stable:\n%s\n%s", line, again)
		}
	})
}
