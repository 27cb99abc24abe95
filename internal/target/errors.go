package target

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// What went wrong with a target, for errors.Is.
var (
	// ErrBadSpec: the text is not a target.
	ErrBadSpec = errors.New("bad target")
	// ErrNotFound: nothing of that name exists.
	ErrNotFound = errors.New("not found")
	// ErrAmbiguous: a bare name is a named namespace and a container.
	ErrAmbiguous = errors.New("ambiguous")
	// ErrEngine: the Docker engine was needed and could not be asked.
	ErrEngine = errors.New("docker engine not available")
	// ErrGone: it is known but has no namespace now: a container that does not
	// run, a process that ended while it was looked at.
	ErrGone = errors.New("gone")
)

// Error says what is wrong with one target, in one line.
type Error struct {
	Target string // as the user gave it
	Err    error  // ErrBadSpec, ErrNotFound, ErrAmbiguous, ErrEngine or ErrGone
	Detail string // what happened and what to do
	Near   []string

	cause error
}

func (e *Error) Error() string {
	return fmt.Sprintf("target %q: %s", e.Target, e.Detail)
}

// Unwrap lets errors.Is find the sentinel and the cause.
func (e *Error) Unwrap() []error {
	if e.cause == nil {
		return []error{e.Err}
	}
	return []error{e.Err, e.cause}
}

// waitable reports whether the target may still appear.
func waitable(err error) bool {
	return errors.Is(err, ErrNotFound) || errors.Is(err, ErrGone) || errors.Is(err, ErrEngine)
}

// fdError adds to err what to do when it is about file descriptors.
func fdError(what string, err error) error {
	switch {
	case errors.Is(err, unix.EMFILE):
		var lim unix.Rlimit
		if unix.Getrlimit(unix.RLIMIT_NOFILE, &lim) == nil {
			return fmt.Errorf("%s: %w: the limit is %d; raise it with ulimit -n", what, err, lim.Cur)
		}
	case errors.Is(err, unix.ENFILE):
		return fmt.Errorf("%s: %w: raise sysctl fs.file-max", what, err)
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("%s: %w: %s", what, err, refusal(os.Geteuid()))
	}
	return fmt.Errorf("%s: %w", what, err)
}

// refusal says what refuses to open or enter a namespace.
func refusal(euid int) string {
	if euid != 0 {
		return "run as root"
	}
	var missing []string
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData // 32 capabilities each
	if unix.Capget(&head, &have[0]) == nil {
		for _, c := range []struct {
			bit  uint
			name string
		}{{unix.CAP_SYS_PTRACE, "CAP_SYS_PTRACE"}, {unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN"}} {
			if have[0].Effective>>c.bit&1 == 0 {
				missing = append(missing, c.name)
			}
		}
	}
	if len(missing) > 0 {
		return "this root has no " + strings.Join(missing, " and no ")
	}
	return "this is root, with CAP_SYS_PTRACE and CAP_SYS_ADMIN: a security module or a user namespace refuses, or the permissions of the file"
}

// near gives up to three of names that the user may have meant, best first.
func near(name string, names []string) []string {
	type hit struct {
		name string
		dist int
	}
	var hits []hit
	for _, n := range names {
		d := distance(strings.ToLower(name), strings.ToLower(n))
		short := min(len(name), len(n))
		switch {
		case d <= max(1, len(name)/3):
		case short >= 3 && (strings.Contains(n, name) || strings.Contains(name, n)):
			d += 100 // after the misspellings
		default:
			continue
		}
		hits = append(hits, hit{n, d})
	}
	slices.SortStableFunc(hits, func(a, b hit) int {
		if a.dist != b.dist {
			return a.dist - b.dist
		}
		return strings.Compare(a.name, b.name)
	})
	var out []string
	for _, h := range hits {
		if !slices.Contains(out, h.name) && len(out) < 3 {
			out = append(out, h.name)
		}
	}
	return out
}

// distance is the number of insertions, deletions, replacements and swaps of
// neighbours between a and b.
func distance(a, b string) int {
	ra, rb := []rune(a), []rune(b)
	var before []int
	prev := make([]int, len(rb)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := range ra {
		cur := make([]int, len(rb)+1)
		cur[0] = i + 1
		for j := range rb {
			cost := 1
			if ra[i] == rb[j] {
				cost = 0
			}
			cur[j+1] = min(prev[j+1]+1, cur[j]+1, prev[j]+cost)
			if i > 0 && j > 0 && ra[i] == rb[j-1] && ra[i-1] == rb[j] {
				cur[j+1] = min(cur[j+1], before[j-1]+1)
			}
		}
		before, prev = prev, cur
	}
	return prev[len(rb)]
}
