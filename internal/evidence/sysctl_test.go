package evidence

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestSysctls(t *testing.T) {
	m, err := Sysctls()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"tcp_retries1", "tcp_retries2", "tcp_syn_retries", "tcp_keepalive_time", "tcp_fin_timeout", "tcp_congestion_control",
	} {
		if m[name] == "" {
			t.Errorf("%s is missing", name)
		}
	}
	// Present here means present there, and absent means absent.
	for _, name := range sysctlNames {
		_, err := os.Stat(filepath.Join(sysctlDir, name))
		if _, ok := m[name]; ok != (err == nil) {
			t.Errorf("%s: read %t, file %v", name, ok, err)
		}
	}
}

func TestSysctlNamesUnique(t *testing.T) {
	names := slices.Clone(sysctlNames)
	slices.Sort(names)
	if u := slices.Compact(names); len(u) != len(sysctlNames) {
		t.Errorf("%d names, %d of them unique", len(sysctlNames), len(u))
	}
}

// The settings are those of the calling thread's namespace, not of the
// process.
func TestSysctlsOfThread(t *testing.T) {
	requireRoot(t)

	before, err := Sysctls()
	if err != nil {
		t.Fatal(err)
	}

	type result struct {
		m   map[string]string
		err error
	}
	ch := make(chan result)
	go func() {
		// Never unlocked: the thread ends with the goroutine, and the
		// namespace with the thread.
		runtime.LockOSThread()
		var r result
		if r.err = unix.Unshare(unix.CLONE_NEWNET); r.err == nil {
			if r.err = os.WriteFile(filepath.Join(sysctlDir, "tcp_retries2"), []byte("7"), 0o644); r.err == nil {
				r.m, r.err = Sysctls()
			}
		}
		ch <- r
	}()
	r := <-ch
	if r.err != nil {
		t.Fatal(r.err)
	}
	if r.m["tcp_retries2"] != "7" {
		t.Errorf("tcp_retries2 in the new namespace: %q, want 7", r.m["tcp_retries2"])
	}

	after, err := Sysctls()
	if err != nil {
		t.Fatal(err)
	}
	if after["tcp_retries2"] != before["tcp_retries2"] {
		t.Errorf("tcp_retries2 outside went from %q to %q", before["tcp_retries2"], after["tcp_retries2"])
	}
}

func TestReadSysctls(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "tcp_retries2"), []byte("15\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "tcp_sack"), []byte("1\t2\t3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "tcp_unrelated"), []byte("1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := readSysctls(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(m) != 2 || m["tcp_retries2"] != "15" || m["tcp_sack"] != "1 2 3" {
		t.Errorf("got %v", m)
	}

	// A setting that is there but cannot be read is an error.
	if err := os.Mkdir(filepath.Join(dir, "tcp_frto"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := readSysctls(dir); err == nil {
		t.Error("no error for an unreadable setting")
	}
}

// requireRoot skips a test that needs root, unless the run claims to be
// privileged: then a skip would hide a failure.
func requireRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("CI") != "" {
		t.Fatal("not root, but CI is set: this test has to run")
	}
	t.Skip("needs root")
}
