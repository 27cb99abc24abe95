package testlab

import (
	"slices"
	"testing"
)

// TestFailures: what failed is selected again, and nothing else of it.
func TestFailures(t *testing.T) {
	f := make(failures)
	for _, line := range []string{
		"=== RUN   TestA\n",
		"--- FAIL: TestA (0.00s)\n",
		"    --- FAIL: TestA/SYN-ACK_loss,_whatever_(b) (3.39s)\n",
		"        --- FAIL: TestA/SYN-ACK_loss,_whatever_(b)/deeper (3.39s)\n",
		"    --- PASS: TestA/c (3.39s)\n",
		"    --- FAIL: TestA/d/e (0.10s)\n",
		"\x16--- FAIL: TestB (1.00s)\n",
		"--- FAIL: TestC (1.00s)\n",
		"    main_test.go:20: --- FAIL: TestD (1.00s)\n",
		"FAIL\n",
	} {
		f.add(line)
	}
	want := []string{`^TestA$/^(SYN-ACK_loss,_whatever_\(b\)|d)$`, "^(TestB|TestC)$"}
	if got := f.patterns(); !slices.Equal(got, want) {
		t.Errorf("patterns %q, want %q", got, want)
	}
}
