package report_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/sockwatch/sockwatch/internal/report"
)

var block = regexp.MustCompile(`(?s)<!-- (example|json): ([a-z-]+) ?(\d*) -->\n.*?<!-- end -->`)

// TestDocs holds docs/explain.md against the stories and the format; -update
// writes the examples anew.
func TestDocs(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "explain.md")
	doc, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	examples := 0
	want := block.ReplaceAllFunc(doc, func(b []byte) []byte {
		examples++
		m := block.FindSubmatch(b)
		text, lang := "", ""
		if string(m[1]) == "example" {
			golden, err := os.ReadFile(filepath.Join("testdata", string(m[2])+".txt"))
			if err != nil {
				t.Fatal(err)
			}
			text = string(golden)
		} else {
			var r struct {
				Stories []struct{ Steps []json.RawMessage }
			}
			golden, err := os.ReadFile(filepath.Join("testdata", string(m[2])+".json"))
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(golden, &r); err != nil {
				t.Fatal(err)
			}
			n, err := strconv.Atoi(string(m[3]))
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			if err := json.Indent(&out, r.Stories[0].Steps[n], "", "  "); err != nil {
				t.Fatal(err)
			}
			text, lang = out.String()+"\n", "json"
		}
		head, _, _ := strings.Cut(string(b), "\n")
		return []byte(head + "\n```" + lang + "\n" + text + "```\n<!-- end -->")
	})
	if examples < 3 {
		t.Errorf("%d examples", examples)
	}
	if !bytes.Equal(doc, want) {
		if !*update {
			t.Errorf("the examples in %s are old: run go test ./internal/report -update", path)
		} else if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}

	// Every field and every value is described.
	prose := string(block.ReplaceAll(want, nil))
	seen := make(map[reflect.Type]bool)
	var fields func(typ reflect.Type)
	fields = func(typ reflect.Type) {
		for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct || seen[typ] || typ.PkgPath() != reflect.TypeFor[report.Report]().PkgPath() {
			return // what events describe is described there
		}
		seen[typ] = true
		for f := range typ.Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name != "" && !strings.Contains(prose, "`"+name+"`") && !strings.Contains(prose, "`files[]."+name+"`") {
				t.Errorf("%s.%s: %q is not in %s", typ.Name(), f.Name, name, path)
			}
			fields(f.Type)
		}
	}
	fields(reflect.TypeFor[report.Report]())
	for _, value := range []string{
		report.KindOpened, report.KindBornBefore, report.KindWatchedAgain, report.KindOutstanding, report.KindRetransmissions, report.KindProbes,
		report.KindRecovered, report.KindArrival, report.KindClosing, report.KindClosed, report.KindAborted, report.KindUnaware, report.KindLate,
		report.KindReset, report.KindError, report.KindMark, report.KindTarget, report.KindLost, report.KindEnd,
		report.EndingFIN, report.EndingAbort, report.EndingOpen, report.EndingGone, report.EndingUnknown, report.EndingNoSocket, report.EndingUnmatched,
		report.ArrivedYes, report.ArrivedNotSeen, report.ArrivedUnknown, report.RoleOpened, report.RoleAccepted, report.RoleUnknown,
	} {
		if !strings.Contains(prose, "`"+value+"`") {
			t.Errorf("%q is not in %s", value, path)
		}
	}
}
