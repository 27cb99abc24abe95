package measure

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/sockwatch/sockwatch/internal/harness/durable"
)

// transcript is what was done in a capture, for people.
type transcript struct {
	mu       sync.Mutex
	lines    []timed
	sections []string
}

type timed struct {
	at   uint64
	text string
}

func newTranscript() *transcript { return new(transcript) }

func (t *transcript) say(format string, args ...any) { t.sayAt(monoNow(), format, args...) }

func (t *transcript) sayAt(at uint64, format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines = append(t.lines, timed{at, clean(fmt.Sprintf(format, args...))})
}

// section adds text as it is at the end.
func (t *transcript) section(title string, b []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sections = append(t.sections, fmt.Sprintf("\n== %s ==\n%s", title, bytes.ToValidUTF8(b, []byte("?"))))
}

// write writes the transcript; times count from zero, or the first line.
func (t *transcript) write(path string, zero uint64) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if zero == 0 && len(t.lines) > 0 {
		zero = t.lines[0].at
	}
	slices.SortStableFunc(t.lines, func(a, b timed) int { return cmp.Compare(a.at, b.at) })
	var b strings.Builder
	fmt.Fprintf(&b, "seconds after the send, at CLOCK_MONOTONIC %d\n", zero)
	for _, l := range t.lines {
		fmt.Fprintf(&b, "%+9.3f  %s\n", float64(int64(l.at)-int64(zero))/1e9, l.text)
	}
	for _, s := range t.sections {
		b.WriteString(s)
	}
	return durable.WriteFile(path, []byte(b.String()))
}
