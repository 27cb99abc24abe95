package evidence

import (
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sockwatch/sockwatch/internal/events"
)

func TestHost(t *testing.T) {
	f, err := Host()
	if err != nil {
		t.Fatal(err)
	}

	for flag, got := range map[string]string{"-r": f.Kernel, "-m": f.Machine, "-n": f.Hostname} {
		out, err := exec.Command("uname", flag).Output()
		if err != nil {
			t.Fatal(err)
		}
		if want := strings.TrimSpace(string(out)); got != want {
			t.Errorf("uname %s: %q, want %q", flag, got, want)
		}
	}
	if len(f.BootID) != 36 || strings.Count(f.BootID, "-") != 4 {
		t.Errorf("boot id %q is not a UUID", f.BootID)
	}
	if _, err := os.Stat(pathBTF); err == nil {
		if b, err := hex.DecodeString(f.BTF); err != nil || len(b) != 32 {
			t.Errorf("BTF hash %q", f.BTF)
		}
		out, err := exec.Command("sha256sum", pathBTF).Output()
		if err != nil {
			t.Fatal(err)
		}
		if want, _, _ := strings.Cut(string(out), " "); f.BTF != want {
			t.Errorf("BTF hash %s, sha256sum says %s", f.BTF, want)
		}
	}
	switch f.HZ {
	case 100, 250, 300, 1000:
	default:
		t.Errorf("HZ %d is none the kernel offers", f.HZ)
	}

	var s events.Session
	f.Fill(&s)
	if s.Kernel != f.Kernel || s.Machine != f.Machine || s.Hostname != f.Hostname || s.BootID != f.BootID ||
		s.BTF != f.BTF || s.HZ != f.HZ || s.Lockdown != f.Lockdown {
		t.Errorf("header %+v of %+v", s, f)
	}
}

func TestLockdown(t *testing.T) {
	tests := []struct{ file, want string }{
		{"[none] integrity confidentiality\n", "none"},
		{"none [integrity] confidentiality\n", "integrity"},
		{"none integrity [confidentiality]\n", "confidentiality"},
		{"", "unknown"},
		{"none\n", "unknown"},
	}
	for _, tt := range tests {
		path := filepath.Join(t.TempDir(), "lockdown")
		if err := os.WriteFile(path, []byte(tt.file), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := lockdown(path); got != tt.want {
			t.Errorf("lockdown of %q: %q, want %q", tt.file, got, tt.want)
		}
	}
	if got := lockdown(filepath.Join(t.TempDir(), "absent")); got != "unknown" {
		t.Errorf("lockdown without its file: %q", got)
	}
}
