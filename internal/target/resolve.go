package target

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Resolve opens the namespaces of specs. Two specs of one namespace share a
// [Namespace], which has the name of the first. The caller closes them.
//
// The error is an [*Error] for a target that does not exist, is ambiguous or
// cannot be asked for; it concerns the first such target, and nothing stays
// open.
func Resolve(ctx context.Context, specs []Spec) ([]*Namespace, error) {
	r := new(resolver)
	defer r.close()
	var all []*Namespace
	for _, s := range specs {
		f, err := r.resolve(ctx, s)
		if err != nil {
			for _, ns := range all {
				ns.Close()
			}
			return nil, err
		}
		f.closeProcess()
		if slices.ContainsFunc(all, func(ns *Namespace) bool { return ns.id() == f.ns.id() }) {
			f.ns.Close()
			continue
		}
		f.ns.Name, f.ns.Generation = s.String(), 1
		all = append(all, f.ns)
	}
	return all, nil
}

// found is an open namespace and how it was found.
type found struct {
	ns    *Namespace
	kind  Kind     // never Bare
	pidfd *os.File // PID and Docker
	ctr   ctr      // Docker
}

func (f *found) closeProcess() {
	if f.pidfd != nil {
		f.pidfd.Close()
	}
}

// resolver answers for many specs and asks the engine for its list once.
type resolver struct {
	asked bool
	eng   *engine
	ids   map[string]string // containers: name -> id
	err   error             // why the engine cannot be asked
}

func (r *resolver) close() {
	if r.eng != nil {
		r.eng.close()
	}
}

func (r *resolver) ask(ctx context.Context) error {
	if !r.asked {
		r.asked = true
		if r.eng, r.err = newEngine(); r.err == nil {
			r.ids, r.err = r.eng.list(ctx)
		}
	}
	return r.err
}

// resolve opens the namespace of s. Errors that waiting may cure satisfy
// waitable.
func (r *resolver) resolve(ctx context.Context, s Spec) (found, error) {
	switch s.Kind {
	case Bare:
		return r.bare(ctx, s)
	case Netns:
		return r.netns(s)
	case Docker:
		return r.docker(ctx, s)
	case PID:
		return r.pid(s)
	case Path:
		return r.file(s, s.Name, "no such file")
	case Host:
		f, err := r.file(s, hostPath(), "cannot be seen; is /proc mounted?")
		if err == nil && nested() && f.ns.Cookie != initCookie {
			f.ns.Close()
			return found{}, fail(s, ErrBadSpec, nil, "cannot be seen from here: process 1 is that of a pid namespace, such as a container's; for the network namespace it is in write pid:1")
		}
		return f, err
	}
	return found{}, fail(s, ErrBadSpec, nil, "unknown kind %d", s.Kind)
}

func fail(s Spec, kind, cause error, format string, args ...any) *Error {
	return &Error{Target: s.String(), Err: kind, Detail: fmt.Sprintf(format, args...), cause: cause}
}

func (r *resolver) bare(ctx context.Context, s Spec) (found, error) {
	_, isNamed := fileID(namedPath(s.Name))
	isContainer := false
	if isContainerRef(s.Name) && r.ask(ctx) == nil {
		_, isContainer = r.ids[s.Name]
		if !isContainer && isContainerID(s.Name) {
			for _, id := range r.ids {
				isContainer = isContainer || strings.HasPrefix(id, s.Name)
			}
		}
	}
	switch {
	case isNamed && isContainer:
		return found{}, fail(s, ErrAmbiguous, nil, "names a network namespace and a Docker container; write netns:%s or docker:%s", s.Name, s.Name)
	case isNamed:
		f, err := r.netns(s)
		f.kind = Netns
		return f, err
	case isContainer:
		return r.docker(ctx, s)
	}
	if _, err := os.Lstat(namedPath(s.Name)); err == nil {
		return r.netns(s) // something else, which says what
	}
	e := fail(s, ErrNotFound, r.err, "no such namespace or container")
	names := named()
	looked := fmt.Sprintf("looked in %s (%d names)", netnsDir, len(names))
	if r.asked && r.err == nil {
		looked += fmt.Sprintf(" and at the Docker engine (%d containers)", len(r.ids))
		names = append(names, r.containers()...)
	} else if r.asked {
		looked += "; the " + r.err.Error()
	}
	return found{}, e.suggest(s.Name, names, looked)
}

// containers lists the names of the containers.
func (r *resolver) containers() []string {
	names := make([]string, 0, len(r.ids))
	for n := range r.ids {
		names = append(names, n)
	}
	return names
}

// suggest adds the names that may have been meant, and where was looked.
func (e *Error) suggest(name string, names []string, looked string) *Error {
	if e.Near = near(name, names); len(e.Near) > 0 {
		e.Detail += "; did you mean " + strings.Join(e.Near, " or ") + "?"
	}
	e.Detail += " (" + looked + ")"
	return e
}

func (r *resolver) netns(s Spec) (found, error) {
	ns, err := openNamespace(namedPath(s.Name))
	_, lost := os.Readlink(namedPath(s.Name))
	switch {
	case err == nil:
		return found{ns: ns, kind: Netns}, nil
	case errors.Is(err, errNotNamespace), errors.Is(err, fs.ErrNotExist) && lost == nil:
		return found{}, fail(s, ErrNotFound, err, "%s", notMounted(namedPath(s.Name)))
	case errors.As(err, new(errOtherKind)):
		return found{}, fail(s, ErrBadSpec, err, "%s is %v", namedPath(s.Name), err)
	case errors.Is(err, fs.ErrNotExist):
		names := named()
		return found{}, fail(s, ErrNotFound, err, "no such namespace").suggest(s.Name, names, fmt.Sprintf("looked in %s (%d names)", netnsDir, len(names)))
	}
	return found{}, fmt.Errorf("target %q: %w", s, err)
}

// notMounted says what is in the place of a named namespace.
func notMounted(path string) string {
	info, err := os.Lstat(path)
	switch {
	case err == nil && info.Mode()&fs.ModeSymlink != 0:
		return path + " is a link that leads to no namespace"
	case err == nil && !info.Mode().IsRegular():
		what := "a special file"
		if info.IsDir() {
			what = "a directory"
		}
		return fmt.Sprintf("%s is %s, not a namespace", path, what)
	}
	return path + " is there but no namespace is mounted on it; is another mount namespace in use?"
}

func (r *resolver) docker(ctx context.Context, s Spec) (found, error) {
	switch err := r.ask(ctx); {
	case errors.Is(err, fs.ErrPermission):
		return found{}, fail(s, ErrEngine, err, "%v", err)
	case err != nil:
		return found{}, fail(s, ErrEngine, err, "%v; start it or set DOCKER_HOST", err)
	}
	c, ns, pidfd, err := r.eng.open(ctx, s.Name)
	if err == nil {
		return found{ns, Docker, pidfd, c}, nil
	}
	var stopped errNotRunning
	switch {
	case errors.As(err, &stopped):
		return found{}, fail(s, ErrGone, err, "%v; start it, or wait for it with --wait", err)
	case errors.Is(err, errNoContainer):
		names := r.containers()
		return found{}, fail(s, ErrNotFound, err, "no such container").suggest(s.Name, names, fmt.Sprintf("the engine has %d", len(names)))
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.EPERM):
		return found{}, fmt.Errorf("target %q: %w", s, err)
	}
	return found{}, fail(s, ErrEngine, err, "%v", err)
}

func (r *resolver) pid(s Spec) (found, error) {
	pid, err := strconv.Atoi(s.Name)
	if err != nil {
		return found{}, fail(s, ErrBadSpec, err, "not a process id")
	}
	ns, pidfd, err := openPID(pid)
	switch {
	case err == nil:
		return found{ns: ns, kind: PID, pidfd: pidfd}, nil
	case errors.Is(err, errExited):
		return found{}, fail(s, ErrNotFound, err, "no such process (looked in /proc, in the pid namespace of this process)")
	case errors.Is(err, fs.ErrNotExist):
		return found{}, fail(s, ErrGone, err, "process is a zombie and has no namespace any more")
	}
	return found{}, fmt.Errorf("target %q: %w", s, err)
}

func (r *resolver) file(s Spec, path, missing string) (found, error) {
	ns, err := openNamespace(path)
	switch {
	case err == nil:
		return found{ns: ns, kind: s.Kind}, nil
	case errors.Is(err, errNotNamespace):
		return found{}, fail(s, ErrNotFound, err, "not a namespace file; give one such as /proc/PID/ns/net or a bind mount of it")
	case errors.As(err, new(errOtherKind)):
		return found{}, fail(s, ErrBadSpec, err, "%v", err)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return found{}, fail(s, ErrNotFound, err, "%s", missing)
	}
	return found{}, fmt.Errorf("target %q: %w", s, err)
}
