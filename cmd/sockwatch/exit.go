package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/internal/harness/fault"
	"github.com/sockwatch/sockwatch/internal/harness/lab"
	"github.com/sockwatch/sockwatch/internal/harness/plan"
	"github.com/sockwatch/sockwatch/internal/loader"
	"github.com/sockwatch/sockwatch/internal/session"
	"github.com/sockwatch/sockwatch/internal/sink"
	"github.com/sockwatch/sockwatch/internal/target"
)

// The exit statuses. exitTable documents them.
const (
	exitOK = iota
	exitFailure
	exitUsage
	exitMachine
	exitTarget
	exitOutput
	exitIncomplete
	exitContradiction
)

var exitTable = []struct {
	status  int
	meaning string
}{
	{exitOK, "all went well: observation ended when it was asked to"},
	{exitFailure, "sockwatch itself failed"},
	{exitUsage, "usage: a flag, a duration, a target or a file is misspelled"},
	{exitMachine, "this machine cannot: not root, a capability is missing, no BTF, the kernel refuses a program; --self-test: something that was forced was not seen"},
	{exitTarget, "target: unknown, ambiguous, Docker not running, all gone for good; mark: no sockwatch is running; lab: unknown, or there already"},
	{exitOutput, "output: exists, in use by another sockwatch, disk full, broken pipe"},
	{exitIncomplete, "the evidence is incomplete: records were lost (it says how many), or a second signal cut it short; with --require-complete, also when it cannot be proved complete"},
	{exitContradiction, "verify: the evidence contradicts itself: it was edited or damaged"},
}

func exitHelp() string {
	var b strings.Builder
	b.WriteString("The exit status of sockwatch says what kind of thing went wrong:\n\n")
	for _, e := range exitTable {
		fmt.Fprintf(&b, "  %d  %s\n", e.status, e.meaning)
	}
	b.WriteString("\nEvery error is one line on standard error, \"sockwatch: what failed\", and where\nthere is something to do about it, a second one, \"hint: what to do\".")
	return b.String()
}

// cliError is an error with its exit status and, perhaps, advice.
type cliError struct {
	status int
	err    error
	hint   string
}

func (e *cliError) Error() string { return e.err.Error() }
func (e *cliError) Unwrap() error { return e.err }

func fail(status int, hint, format string, args ...any) error {
	return &cliError{status, fmt.Errorf(format, args...), hint}
}

func usageError(hint, format string, args ...any) error {
	return fail(exitUsage, hint, format, args...)
}

// classify returns the exit status of err, and a hint or "".
func classify(err error) (status int, hint string) {
	var ce *cliError
	switch {
	case err == nil:
		return exitOK, ""
	case errors.As(err, &ce):
		return ce.status, ce.hint

	case errors.Is(err, target.ErrBadSpec):
		return exitUsage, "see: sockwatch help targets"
	case errors.Is(err, target.ErrNotFound):
		return exitTarget, "ip netns list and docker ps show what there is; --wait waits for a target to appear"
	case errors.Is(err, target.ErrAmbiguous), errors.Is(err, target.ErrEngine), errors.Is(err, target.ErrGone):
		return exitTarget, "" // the error says it
	case errors.Is(err, session.ErrTargetsGone):
		return exitTarget, "the evidence up to then is complete"
	case errors.Is(err, session.ErrNoInstance):
		return exitTarget, "start one first: sudo sockwatch --netns NAME -o FILE"

	case errors.Is(err, lab.ErrName), errors.Is(err, lab.ErrNode), errors.Is(err, lab.ErrBackend):
		return exitUsage, "" // the error says it
	case errors.Is(err, lab.ErrNotFound):
		return exitTarget, "sockwatch lab up makes one"
	case errors.Is(err, lab.ErrExists):
		return exitTarget, "take it down first, sockwatch lab down, or give another one a name of its own: --name"
	case errors.Is(err, lab.ErrEngine):
		return exitTarget, "without Docker: --backend netns"
	case errors.Is(err, lab.ErrUnsupported):
		return exitMachine, ""

	case isPlan(err):
		return exitUsage, "docs/harness.md says what a plan is"
	case errors.Is(err, fault.ErrUnwell):
		return exitTarget, "sockwatch lab status says what is wrong with it"

	case isOutput(err):
		return exitOutput, outputHint(err)
	case isSelfTest(err):
		return exitMachine, "what is not seen here is not seen in the targets either; sockwatch doctor says what is attached"

	case errors.Is(err, unix.EMFILE):
		return exitMachine, "raise the limit: ulimit -n 4096"
	case errors.Is(err, loader.ErrNoBTF), errors.Is(err, loader.ErrRefused), errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return exitMachine, "sockwatch doctor says what this machine allows"
	case errors.Is(err, context.Canceled):
		return exitOK, ""
	}
	return exitFailure, ""
}

func isPlan(err error) bool {
	var pe *plan.Error
	return errors.As(err, &pe)
}

func isSelfTest(err error) bool {
	var se *session.SelfTestError
	return errors.As(err, &se)
}

func isOutput(err error) bool {
	var we *sink.WriteError
	var oe *session.OutputError
	return errors.As(err, &we) || errors.As(err, &oe)
}

func outputHint(err error) string {
	switch {
	case errors.Is(err, sink.ErrLocked):
		return "give each sockwatch a file of its own, or watch several namespaces with one: --netns A --netns B"
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT), errors.Is(err, unix.EFBIG):
		return "make room and start again; the lines that were kept are whole"
	case errors.Is(err, unix.EPIPE):
		return "the reader of standard output has gone; -o FILE keeps the evidence"
	}
	return ""
}

// report prints err as the two lines that every error has, and returns the
// exit status.
func report(env *environment, err error) int {
	status, hint := classify(err)
	if status == exitOK {
		return status
	}
	fmt.Fprintf(env.Stderr, "sockwatch: %s\n", oneLine(err.Error()))
	if hint != "" {
		fmt.Fprintf(env.Stderr, "hint: %s\n", hint)
	}
	return status
}

// maxMessage is where a message is cut: it may quote a user's argument.
const maxMessage = 4000

// oneLine makes what may contain a user's or a container's strings safe to
// print: one line, no terminal escapes, of a bearable length.
func oneLine(s string) string {
	s = strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return ' '
		}
		return r
	}, strings.TrimSpace(s))
	if len(s) > maxMessage {
		s = strings.ToValidUTF8(s[:maxMessage], "") + "..."
	}
	return string(sink.AppendPrintable(nil, []byte(s)))
}
