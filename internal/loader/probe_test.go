package loader

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// privileged ends the test unless it runs as root.
func privileged(t *testing.T) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("CI") != "" {
		t.Fatal("not root, but CI is set: this test has to run")
	}
	t.Skip("needs root")
}

func TestProbe(t *testing.T) {
	privileged(t)
	var before, after unix.Stat_t
	if err := unix.Stat("/proc/self/ns/net", &before); err != nil {
		t.Fatal(err)
	}
	features, blind, err := Probe()
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Stat("/proc/self/ns/net", &after); err != nil {
		t.Fatal(err)
	}
	if before.Ino != after.Ino {
		t.Error("the process is in another namespace afterwards")
	}

	// It says what Open would do.
	o, err := Open(Options{IO: true})
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	if !slices.EqualFunc(features, o.Features(), func(a, b Feature) bool { return fmt.Sprint(a) == fmt.Sprint(b) }) {
		t.Errorf("Probe says\n%+v\nOpen does\n%+v", features, o.Features())
	}
	if !slices.Equal(blind, o.BlindSpots()) {
		t.Errorf("Probe says %q, Open %q", blind, o.BlindSpots())
	}
	for _, f := range features {
		if f.Err == nil && f.Method == MethodNone || f.Err != nil && f.Method != MethodNone {
			t.Errorf("%s: method %s, error %v", f.Name, f.Method, f.Err)
		}
	}
}
