package node

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func testMachined(t *testing.T, dir string) (*machined, *bytes.Buffer) {
	t.Helper()
	var b bytes.Buffer
	m, err := newMachined(dir, newLog(&b, "machined"))
	if err != nil {
		t.Fatal(err)
	}
	return m, &b
}

func applyRequest(t *testing.T, label string) map[string]string {
	t.Helper()
	a, err := Artifact(label)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]string{"data": string(a), "mode": "no-reboot"}
}

// Once it has begun, whether the caller is gone does not matter.
func TestApplyIgnoresCaller(t *testing.T) {
	m, log := testMachined(t, t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.apply(ctx, request(applyRequest(t, "late"))); err != nil {
		t.Fatal(err)
	}
	lines := ParseLog(log.Bytes())
	if len(lines) != 1 || lines[0].Msg != MsgApplied || lines[0].Label != "late" || lines[0].Version != 2 || !lines[0].CallerGone {
		t.Errorf("log %+v", lines)
	}
	list, err := m.get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s, err := single(list)
	if err != nil {
		t.Fatal(err)
	}
	r, err := parseReading(s)
	if err != nil {
		t.Fatal(err)
	}
	if r.Version != 2 || r.Label != "late" || r.Updated.Nanosecond() != 0 || time.Since(r.Updated) > time.Minute || r.BootNS == 0 {
		t.Errorf("reading %+v", r)
	}
}

// Two at a time are refused, not queued.
func TestApplyTryLock(t *testing.T) {
	m, log := testMachined(t, t.TempDir())
	m.applying.Lock()
	_, err := m.apply(t.Context(), request(applyRequest(t, "second")))
	if status.Code(err) != codes.FailedPrecondition {
		t.Errorf("while another is applied: %v", err)
	}
	m.applying.Unlock()
	if _, err := m.apply(t.Context(), request(applyRequest(t, "third"))); err != nil {
		t.Error(err)
	}
	if lines := ParseLog(log.Bytes()); len(lines) != 1 || lines[0].Label != "third" {
		t.Errorf("log %+v", lines)
	}
}

func TestApplyRefuses(t *testing.T) {
	m, log := testMachined(t, t.TempDir())
	good := applyRequest(t, "good")
	for name, fields := range map[string]map[string]string{
		"nothing":    {},
		"no label":   {"data": "machine: {}\n", "mode": "no-reboot"},
		"other mode": {"data": good["data"], "mode": "reboot"},
	} {
		if _, err := m.apply(t.Context(), request(fields)); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	if log.Len() != 0 || m.now.Version != 1 {
		t.Errorf("version %d, log %s", m.now.Version, log)
	}
}

// The configuration is kept, the version is not.
func TestRestart(t *testing.T) {
	dir := t.TempDir()
	m, _ := testMachined(t, dir)
	if m.now.Label != "" {
		t.Errorf("label %q before any", m.now.Label)
	}
	if _, err := m.apply(t.Context(), request(applyRequest(t, "kept"))); err != nil {
		t.Fatal(err)
	}
	again, _ := testMachined(t, dir)
	if again.now.Label != "kept" || again.now.Version != 1 || again.now.BootNS <= m.now.BootNS {
		t.Errorf("after a restart: %+v", again.now)
	}

	// A configuration that cannot be written is not applied.
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := again.apply(t.Context(), request(applyRequest(t, "lost"))); status.Code(err) != codes.Internal {
		t.Errorf("without a directory: %v", err)
	}
	if again.now.Version != 1 || again.now.Label != "kept" {
		t.Errorf("after a failure: %+v", again.now)
	}
	if _, err := newMachined(filepath.Join(dir, MachineFile), nil); err != nil {
		t.Errorf("no configuration is none: %v", err)
	}
}
