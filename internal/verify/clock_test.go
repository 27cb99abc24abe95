package verify

import (
	"strconv"
	"strings"
	"testing"

	"github.com/sockwatch/sockwatch/internal/events"
)

// TestClocks moves the clocks of real evidence, and what the lines say of it.
func TestClocks(t *testing.T) {
	const s = 1_000_000_000
	for _, tt := range []struct {
		name   string
		change func(*events.Event)
		want   Result
		says   string // of a finding; empty: none
	}{
		{"stepped", func(e *events.Event) {
			e.Time += 5 * s
			e.Clock.RealNS += 5 * s
			e.Clock.StepNS += 5 * s
			e.Clock.Stepped = true
		}, ResultHolds, "note  line L (seq L): wall time was stepped by 5"},
		{"stepped, and not flagged", func(e *events.Event) {
			e.Time += 5 * s
			e.Clock.RealNS += 5 * s
			e.Clock.StepNS += 5 * s
		}, ResultContradicts, "stepped is false, by real_ns it is true"},
		{"flagged, and not stepped", func(e *events.Event) { e.Clock.Stepped = true }, ResultContradicts, "stepped is true, by real_ns it is false"},
		{"suspended", func(e *events.Event) {
			e.Time += 60 * s
			e.Clock.RealNS += 60 * s
			e.Clock.StepNS += 60 * s
			e.Clock.BootNS += 60 * s
			e.Clock.SuspendedNS = 60 * s
		}, ResultContradicts, "suspended_ns is 60000000000, by boot_ns it is 5"}, // some nanoseconds less
		{"suspended, and not flagged", func(e *events.Event) { e.Clock.BootNS += 60 * s }, ResultContradicts, "suspended_ns is 0, by boot_ns it is"},
		{"flagged, and not suspended", func(e *events.Event) { e.Clock.SuspendedNS = s }, ResultContradicts, "suspended_ns is 1000000000, by boot_ns it is 0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			lines := recorded(t, "client")
			last := 0
			for i, line := range lines {
				if decode(t, line).Clock != nil {
					last = i
				}
			}
			set(t, lines, last, tt.change)
			says := strings.ReplaceAll(tt.says, "L", strconv.Itoa(last+1))
			if r := verifyTexts(t, joined(lines)); r.Result != tt.want || !strings.Contains(wholeText(r), says) {
				t.Errorf("%s, want %s and %q:\n%s", r.Result, tt.want, says, wholeText(r))
			}
		})
	}
	// What was really slept is a note.
	lines := recorded(t, "client")
	clocks := []int{}
	for i, line := range lines {
		if decode(t, line).Clock != nil {
			clocks = append(clocks, i)
		}
	}
	before := decode(t, lines[clocks[len(clocks)-2]])
	set(t, lines, clocks[len(clocks)-1], func(e *events.Event) {
		asleep := func(e *events.Event) int64 { return int64(e.Clock.BootNS - e.MonoNS) }
		e.Time += 60 * s
		e.Clock.RealNS += 60 * s
		e.Clock.StepNS += 60 * s
		e.Clock.BootNS += 60 * s
		e.Clock.SuspendedNS = uint64(asleep(e) - asleep(before))
	})
	if r := verifyTexts(t, joined(lines)); r.Result != ResultHolds || !strings.Contains(wholeText(r), "the machine was suspended for 59.9999") || strings.Contains(wholeText(r), "stepped") {
		t.Errorf("%s:\n%s", r.Result, wholeText(r))
	}
}

// set changes a clock line, and the times of the lines after it.
func set(t *testing.T, lines []string, i int, change func(*events.Event)) {
	t.Helper()
	edit(t, lines, i, change)
	pair := decode(t, lines[i])
	for j := i + 1; j < len(lines); j++ {
		edit(t, lines, j, func(e *events.Event) { e.Time = pair.Time + events.WallTime(e.MonoNS-pair.MonoNS) })
	}
}

// TestSelfTestResult: a self-test that failed makes evidence incomplete, and
// its result has to fit what it lists.
func TestSelfTestResult(t *testing.T) {
	for _, tt := range []struct {
		test events.SelfTest
		want Result
		says string
	}{
		{events.SelfTest{Passed: true, Runs: 1, Seen: []string{"reset sent"}, Missing: []string{}}, ResultHolds, ""},
		{events.SelfTest{Runs: 3, Seen: []string{}, Missing: []string{"reset sent: 1 happened, 0 seen"}}, ResultIncomplete, "the self-test failed, so that nothing follows from what is not here: reset sent: 1 happened, 0 seen"},
		{events.SelfTest{Passed: true, Runs: 1, Seen: []string{}, Missing: []string{"reset sent: 1 happened, 0 seen"}}, ResultContradicts, "self_test.passed is true, and self_test.missing lists 1"},
	} {
		lines := recorded(t, "client")
		edit(t, lines, 0, func(e *events.Event) { e.Session.SelfTest = &tt.test })
		if r := verifyTexts(t, joined(lines)); r.Result != tt.want || !strings.Contains(wholeText(r), tt.says) {
			t.Errorf("%s, want %s and %q:\n%s", r.Result, tt.want, tt.says, wholeText(r))
		}
	}
}
