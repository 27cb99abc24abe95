// Package archtest holds the repository's rules about itself, as tests.
package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/sockwatch/sockwatch/"

// allowed says which packages of this module a package may import, its tests
// apart. A package that is not here fails the test: add it, and think where it
// belongs.
//
// Records come out of the loader, events are made of them, and neither knows
// the other; only a session composes.
var allowed = map[string][]string{
	"bpf":               {},
	"internal/events":   {"bpf"},
	"internal/loader":   {"bpf"},
	"internal/target":   {},
	"internal/evidence": {"internal/events"},
	"internal/sink":     {"internal/events"},
	"internal/verify":   {"internal/events", "internal/evidence"},
	"internal/report":   {"internal/events", "internal/sink"},
	"internal/session": {
		"bpf", "internal/events", "internal/evidence", "internal/loader", "internal/scratch", "internal/sink", "internal/target",
	},
	"internal/scratch": {"internal/target"},

	// The harness: programs of the nodes, the lab that runs them.
	"internal/harness/node": {},
	"internal/harness/lab":  {"internal/harness/durable", "internal/harness/node", "internal/target"},

	"internal/harness/durable": {},

	"plans":                 {},
	"internal/harness/plan": {},
	"internal/harness/measure": {
		"internal/events", "internal/evidence", "internal/harness/durable", "internal/harness/fault", "internal/harness/lab",
		"internal/harness/node", "internal/harness/plan", "internal/session", "internal/sink", "internal/target",
	},
	"internal/harness/fault": {"internal/harness/durable", "internal/harness/lab", "internal/harness/plan"},
	"cmd/sockwatch": {
		"internal/harness/fault", "internal/harness/lab", "internal/harness/measure", "internal/harness/node", "internal/harness/plan",
		"plans",
		"internal/events", "internal/evidence", "internal/loader", "internal/session", "internal/sink", "internal/target",
		"internal/verify", "internal/report",
	},

	// For tests only: nothing above may import them.
	"internal/archtest":          {},
	"internal/testlab":           {},
	"internal/kernelstest":       {},
	"internal/kernelstest/guest": {"internal/kernelstest"},
	"hack/demo":                  {},
	"hack/kernels":               {"internal/kernelstest"},
}

// pure packages do no I/O, so they may not import what does. (x/sys/unix stays
// out of the list: it has the names of errors.)
var pure = map[string][]string{
	"internal/report": {"os", "io/fs", "net", "net/http", "os/exec", "os/signal", "syscall", "log"},
	"internal/verify": {"os", "io/fs", "net", "net/http", "os/exec", "os/signal", "syscall", "log"},
	"internal/events": {"os", "io/fs", "net", "net/http", "os/exec", "os/signal", "syscall", "log"},

	"internal/harness/plan": {"os", "io/fs", "net", "net/http", "os/exec", "os/signal", "syscall", "log"},
}

// confined modules may be imported by these files only, because they are
// heavy, or will be replaced.
var confined = map[string][]string{
	"github.com/docker/docker/":                        {"internal/target/docker.go", "internal/harness/lab/docker.go", "internal/testlab/docker.go"},
	"github.com/vishvananda/netns":                     {"internal/target/namespace.go", "internal/harness/lab/*.go", "internal/testlab/netns.go", "internal/testlab/docker.go"},
	"github.com/spf13/cobra":                           {"cmd/sockwatch/*.go"},
	"github.com/coreos/go-systemd/":                    {"internal/session/session.go"},
	"github.com/cilium/ebpf":                           {"bpf/*.go", "internal/loader/*.go", "internal/testlab/*.go"},
	"kernel.org/pub/linux/libs/security/libcap/":       {"internal/evidence/caps.go", "cmd/sockwatch/*.go"},
	"google.golang.org/grpc":                           {"internal/harness/node/*.go"},
	"github.com/siderolabs/grpc-proxy/":                {"internal/harness/node/apid.go"},
	"github.com/invopop/jsonschema":                    {"internal/events/schema.go"},
	"github.com/santhosh-tekuri/jsonschema/":           {"internal/verify/schema.go"},
	"github.com/sockwatch/sockwatch/internal/testlab":  {},
	"github.com/sockwatch/sockwatch/internal/archtest": {},
}

// source is a Go file that is not a test.
type source struct {
	pkg, file string // relative to the module's root
	imports   []string
	ast       *ast.File
}

func sources(t *testing.T) []source {
	t.Helper()
	root := filepath.Join("..", "..")
	var out []source
	fset := token.NewFileSet()
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if p != root && (strings.HasPrefix(name, ".") || name == "testdata" || name == "dist") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(fset, p, nil, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		s := source{pkg: path.Dir(filepath.ToSlash(rel)), file: filepath.ToSlash(rel), ast: f}
		for _, i := range f.Imports {
			imported, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			s.imports = append(s.imports, imported)
		}
		out = append(out, s)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(out) < 20 {
		t.Fatalf("only %d source files found", len(out))
	}
	return out
}

func TestImports(t *testing.T) {
	for _, s := range sources(t) {
		may, known := allowed[s.pkg]
		if !known {
			t.Errorf("%s: package %s is not in the table of who may import what", s.file, s.pkg)
			continue
		}
		for _, i := range s.imports {
			if own, ok := strings.CutPrefix(i, module); ok && !slices.Contains(may, own) {
				t.Errorf("%s imports %s; of this module %s may import %v", s.file, own, s.pkg, may)
			}
			if slices.Contains(pure[s.pkg], i) {
				t.Errorf("%s imports %s, but %s does no I/O", s.file, i, s.pkg)
			}
		}
	}
}

func TestConfined(t *testing.T) {
	for _, s := range sources(t) {
		for _, i := range s.imports {
			for _, prefix := range slices.Sorted(maps.Keys(confined)) {
				if i != strings.TrimSuffix(prefix, "/") && !strings.HasPrefix(i, strings.TrimSuffix(prefix, "/")+"/") {
					continue
				}
				if !slices.ContainsFunc(confined[prefix], func(pattern string) bool {
					ok, err := path.Match(pattern, s.file)
					if err != nil {
						t.Fatal(err)
					}
					return ok
				}) {
					t.Errorf("%s imports %s, which only %v may", s.file, i, confined[prefix])
				}
			}
		}
	}
}

// Every package says what it is for, once.
func TestPackageComments(t *testing.T) {
	comments := make(map[string][]string)
	for _, s := range sources(t) {
		if _, ok := comments[s.pkg]; !ok {
			comments[s.pkg] = nil
		}
		if s.ast.Doc == nil {
			continue
		}
		comments[s.pkg] = append(comments[s.pkg], s.file)
		want := "Package " + s.ast.Name.Name + " "
		if text := s.ast.Doc.Text(); s.ast.Name.Name != "main" && !strings.HasPrefix(text, want) {
			t.Errorf("%s: package comment begins %.40q, want %q", s.file, text, want)
		}
	}
	for pkg, files := range comments {
		if len(files) != 1 {
			t.Errorf("package %s has %d package comments %v, want one", pkg, len(files), files)
		}
	}
}
