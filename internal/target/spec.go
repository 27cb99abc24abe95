package target

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Kind is how a target is named.
type Kind uint8

// The kinds of a [Spec].
const (
	Bare   Kind = iota // a named namespace, else a Docker container
	Netns              // netns:NAME, a file in /run/netns
	Docker             // docker:NAME or docker:ID
	PID                // pid:N, in the pid namespace of this process
	Path               // path:FILE, a bind mount of a namespace or a link to one
	Host               // host, the namespace of the machine's process 1; where that may not be looked at, of this process
)

var prefixes = map[Kind]string{Netns: "netns", Docker: "docker", PID: "pid", Path: "path"}

const hintKinds = "a name, netns:NAME, docker:NAME, pid:N, path:FILE or host"

// maxPID is the kernel's PID_MAX_LIMIT on 64-bit machines.
const maxPID = 1 << 22

// Spec is a target as the user named it.
type Spec struct {
	Kind Kind
	Name string // without prefix; empty for Host
}

// ParseSpec reads a target: a bare name, netns:NAME, docker:NAME or docker:ID,
// pid:N, path:FILE, or host. The error is an [*Error] of [ErrBadSpec].
func ParseSpec(s string) (Spec, error) {
	bad := func(format string, args ...any) (Spec, error) {
		return Spec{}, &Error{Target: s, Err: ErrBadSpec, Detail: fmt.Sprintf(format, args...)}
	}
	if s == "" {
		return bad("empty; give %s", hintKinds)
	}
	if s == "host" {
		return Spec{Kind: Host}, nil
	}
	prefix, name, prefixed := strings.Cut(s, ":")
	if !prefixed {
		if strings.Contains(s, "/") {
			return bad("not a name; for a file write %q", "path:"+s)
		}
		if why := badName(s); why != "" {
			return bad("%s; give %s", why, hintKinds)
		}
		return Spec{Kind: Bare, Name: s}, nil
	}
	if strings.Contains(prefix, "/") {
		return bad("not a name; for a file write %q", "path:"+s)
	}
	if name == "" {
		return bad("nothing after %q; give %s", prefix+":", hintKinds)
	}
	switch prefix {
	case "netns":
		if why := badName(name); why != "" {
			return bad("%s; a named namespace is a file in %s, any other is given as path:FILE", why, netnsDir)
		}
		return Spec{Netns, name}, nil
	case "docker":
		if !isContainerRef(name) {
			return bad("not a container name or id; see docker ps")
		}
		return Spec{Docker, name}, nil
	case "pid":
		n, err := strconv.Atoi(name)
		if err != nil || strconv.Itoa(n) != name || n < 1 || n > maxPID {
			return bad("not a process id; give a number from 1 to %d, as in pid:1234", maxPID)
		}
		return Spec{PID, name}, nil
	case "path":
		if strings.ContainsRune(name, 0) {
			return bad("a path cannot hold a NUL byte")
		}
		return Spec{Path, name}, nil
	case "host":
		return bad("host takes no name; write host alone")
	}
	return bad("unknown prefix %q; give %s", prefix+":", hintKinds)
}

// String gives the target as [ParseSpec] reads it.
func (s Spec) String() string {
	switch s.Kind {
	case Bare:
		return s.Name
	case Host:
		return "host"
	}
	return prefixes[s.Kind] + ":" + s.Name
}

// badName says why name cannot be a file in /run/netns, or "".
func badName(name string) string {
	switch {
	case name == "." || name == "..", strings.Contains(name, "/"):
		return "not a plain name"
	case len(name) > 255:
		return "longer than 255 bytes"
	case !utf8.ValidString(name), strings.ContainsFunc(name, unicode.IsControl):
		return "holds a control character or a byte that is not UTF-8"
	}
	return ""
}

// isContainerRef reports whether the engine could have a container of that
// name or id. Anything else must not become part of a request's path.
func isContainerRef(s string) bool {
	for i, c := range []byte(s) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case i > 0 && (c == '_' || c == '.' || c == '-'):
		default:
			return false
		}
	}
	return s != "" && len(s) <= 255
}

// isContainerID reports whether s is a container id, at least in the short
// form that docker ps shows.
func isContainerID(s string) bool {
	if len(s) < 12 || len(s) > 64 {
		return false
	}
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}
