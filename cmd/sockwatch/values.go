package main

import (
	"math"
	"os"
	"strconv"
	"strings"
	"time"
)

// durationValue is a flag that takes a positive duration.
type durationValue struct {
	d   *time.Duration
	min time.Duration
}

func (v durationValue) Type() string { return "DURATION" }

func (v durationValue) String() string {
	if v.d == nil || *v.d == 0 {
		return ""
	}
	return shortDuration(*v.d)
}

func (v durationValue) Set(s string) error {
	const hint = "give a number with a unit, such as 500ms, 30s, 5m or 1h30m"
	d, err := time.ParseDuration(s)
	switch {
	case err != nil && isNumber(s):
		return usageError(hint, "a duration needs a unit")
	case err != nil:
		return usageError(hint, "not a duration")
	case d < v.min:
		return usageError(hint, "it must be at least %s", shortDuration(v.min))
	}
	*v.d = d
	return nil
}

func isNumber(s string) bool {
	_, err := strconv.ParseFloat(s, 64)
	return err == nil
}

// shortDuration prints 5m0s as 5m.
func shortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// sizeValue is a flag that takes a size the ring buffer can have.
type sizeValue struct{ n *uint64 }

func (v sizeValue) Type() string { return "SIZE" }

func (v sizeValue) String() string {
	if v.n == nil || *v.n == 0 {
		return ""
	}
	return formatSize(*v.n)
}

const maxRing = 1 << 30

func (v sizeValue) Set(s string) error {
	const hint = "give a power of two with a unit, such as 512KiB, 8MiB or 64MiB"
	n, ok := parseSize(s)
	page := uint64(os.Getpagesize())
	switch {
	case !ok:
		return usageError(hint, "not a size")
	case n < page || n > maxRing:
		return usageError(hint, "it must be from %s to %s", formatSize(page), formatSize(maxRing))
	case n&(n-1) != 0:
		return usageError(hint, "%s is not a power of two", formatSize(n))
	}
	*v.n = n
	return nil
}

var sizeUnits = []struct {
	name  string
	shift uint
}{
	{"GiB", 30}, {"MiB", 20}, {"KiB", 10},
}

// parseSize reads bytes, or a number of KiB, MiB or GiB, also without "iB" and
// in any case. Decimal units (MB) are refused: none of them is a power of two.
func parseSize(s string) (uint64, bool) {
	var shift uint
	for _, u := range sizeUnits {
		digits, ok := cutSuffixFold(s, u.name)
		if !ok {
			digits, ok = cutSuffixFold(s, u.name[:1])
		}
		if ok {
			s, shift = strings.TrimSuffix(digits, " "), u.shift
			break
		}
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n > math.MaxUint64>>shift {
		return 0, false
	}
	return n << shift, true
}

func cutSuffixFold(s, suffix string) (string, bool) {
	at := len(s) - len(suffix)
	if at <= 0 || !strings.EqualFold(s[at:], suffix) {
		return s, false
	}
	return s[:at], true
}

func formatSize(n uint64) string {
	for _, u := range sizeUnits {
		if n >= 1<<u.shift && n&(1<<u.shift-1) == 0 {
			return strconv.FormatUint(n>>u.shift, 10) + u.name
		}
	}
	return strconv.FormatUint(n, 10) + " bytes"
}

// choiceValue is a flag that takes one of some words.
type choiceValue struct {
	s       *string
	choices []string
	kind    string
}

func (v choiceValue) Type() string { return v.kind }

func (v choiceValue) String() string {
	if v.s == nil {
		return ""
	}
	return *v.s
}

func (v choiceValue) Set(s string) error {
	for _, c := range v.choices {
		if s == c {
			*v.s = s
			return nil
		}
	}
	return usageError("", "it must be one of %s", strings.Join(v.choices, ", "))
}
