package target

import (
	"errors"
	"strings"
	"testing"
)

func TestParseSpec(t *testing.T) {
	for in, want := range map[string]Spec{
		"controlplane":             {Bare, "controlplane"},
		"host":                     {Host, ""},
		"netns:host":               {Netns, "host"},
		"netns:a:b":                {Netns, "a:b"},
		"docker:web-1":             {Docker, "web-1"},
		"docker:4c544fba4b79":      {Docker, "4c544fba4b79"},
		"pid:1":                    {PID, "1"},
		"pid:4194304":              {PID, "4194304"},
		"path:/proc/1/ns/net":      {Path, "/proc/1/ns/net"},
		"path:a:b":                 {Path, "a:b"},
		"netns:" + long(255):       {Netns, long(255)},
		"name with spaces and é漢字": {Bare, "name with spaces and é漢字"},
	} {
		got, err := ParseSpec(in)
		if err != nil || got != want {
			t.Errorf("ParseSpec(%q) = %+v, %v, want %+v", in, got, err, want)
		}
		if got.String() != in {
			t.Errorf("ParseSpec(%q).String() = %q", in, got.String())
		}
	}
}

func TestParseSpecErrors(t *testing.T) {
	for in, hint := range map[string]string{
		"":                     "give a name",
		"netns:":               "nothing after",
		"docker:":              "nothing after",
		"pid:":                 "nothing after",
		"path:":                "nothing after",
		"host:":                "nothing after",
		"host:a":               "write host alone",
		"pid:0":                "pid:1234",
		"pid:-1":               "pid:1234",
		"pid:+1":               "pid:1234",
		"pid:01":               "pid:1234",
		"pid:x":                "pid:1234",
		"pid:4194305":          "4194304",
		"pid:9999999999999999": "pid:1234",
		"netns:../x":           "path:FILE",
		"netns:..":             "path:FILE",
		"netns:a/b":            "path:FILE",
		"netns:" + long(256):   "255 bytes",
		"..":                   "not a plain name",
		"/run/netns/x":         `"path:/run/netns/x"`,
		"./x:y":                `"path:./x:y"`,
		"container:web":        `unknown prefix "container:"`,
		":web":                 `unknown prefix ":"`,
		"docker:../images":     "docker ps",
		"docker:a/b":           "docker ps",
		"docker:-a":            "docker ps",
		"a\x1b[31m":            "control character",
		"a\xff":                "not UTF-8",
		"path:a\x00b":          "NUL",
	} {
		_, err := ParseSpec(in)
		if !errors.Is(err, ErrBadSpec) {
			t.Errorf("ParseSpec(%q): %v, want ErrBadSpec", in, err)
			continue
		}
		if msg := err.Error(); !strings.Contains(msg, hint) || strings.ContainsAny(msg, "\n\x1b") {
			t.Errorf("ParseSpec(%q): %q, want one line with %q", in, msg, hint)
		}
	}
}

func FuzzParseSpec(f *testing.F) {
	for _, s := range []string{"a", "host", "netns:a", "docker:a", "pid:12", "path:/x", "netns:../x", "pid:0", "x:y", "", "a/b", ":"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		spec, err := ParseSpec(s)
		if err != nil {
			if !errors.Is(err, ErrBadSpec) || strings.ContainsAny(err.Error(), "\n\x1b") {
				t.Fatalf("ParseSpec(%q): %v", s, err)
			}
			return
		}
		if spec.String() != s {
			t.Fatalf("ParseSpec(%q).String() = %q", s, spec.String())
		}
		if again, err := ParseSpec(spec.String()); err != nil || again != spec {
			t.Fatalf("ParseSpec(%q) again = %+v, %v, want %+v", s, again, err, spec)
		}
		switch spec.Kind {
		case Bare, Netns:
			if p := namedPath(spec.Name); p != netnsDir+"/"+spec.Name {
				t.Fatalf("ParseSpec(%q) leads to %q", s, p)
			}
		case Docker:
			if strings.ContainsAny(spec.Name, "/?#%\x00") {
				t.Fatalf("ParseSpec(%q) would change a request's path", s)
			}
		}
	})
}

func TestNear(t *testing.T) {
	names := []string{"controlplane", "worker", "worker-2", "client", "db"}
	for name, want := range map[string]string{
		"contrlplane":  "controlplane",
		"ControlPlane": "controlplane",
		"worekr":       "worker",
		"work":         "worker worker-2",
		"dc":           "db",
		"elsewhere":    "",
	} {
		if got := strings.Join(near(name, names), " "); got != want {
			t.Errorf("near(%q) = %q, want %q", name, got, want)
		}
	}
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "abc", 3}, {"abc", "acb", 1}, {"kitten", "sitting", 3}, {"é", "e", 1}, {"same", "same", 0}} {
		if got := distance(c.a, c.b); got != c.want {
			t.Errorf("distance(%q, %q) = %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

func long(n int) string { return strings.Repeat("n", n) }
