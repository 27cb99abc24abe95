package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/evidence"
	"github.com/sockwatch/sockwatch/internal/loader"
	"github.com/sockwatch/sockwatch/internal/session"
	"github.com/sockwatch/sockwatch/internal/sink"
	"github.com/sockwatch/sockwatch/internal/target"
)

const (
	formatAuto = "auto"
	formatJSON = "json"
	formatText = "text"
)

const targetsHelp = `What is watched is given with --netns, once for each target:

  NAME         the network namespace of that name (ip netns), else the Docker
               container; if both exist, say which:
  netns:NAME   a named network namespace, a file in /run/netns
  docker:NAME  the network namespace of a running container, by name or id
  pid:N        the network namespace of a process
  path:FILE    a namespace bound to a file, such as /proc/1234/ns/net
  host         the network namespace of process 1 of the machine; where that
               may not be looked at, of this process

A container that restarts, and a named namespace that is deleted and added
again, are followed: each new namespace is the next generation of the same
target, and the evidence says for how long nothing was seen in between. With
--wait a target need not exist yet: --ready-file is created, and --duration
begins, when all of them are there.

Targets that name one namespace share it. Its lines bear the name of the first;
when that is gone, they bear the name of one that lives.

The Docker engine is asked at its default socket or at DOCKER_HOST.`

type observeFlags struct {
	netns     []string
	output    string
	appendTo  bool
	force     bool
	wait      bool
	duration  time.Duration
	arrival   time.Duration
	readyFile string
	format    string
	ring      uint64
	complete  bool
	selfTest  bool
	with      []string
}

func observeCommand(env *environment) *cobra.Command {
	f := observeFlags{format: formatAuto, arrival: session.DefaultArrivalThreshold, ring: loader.DefaultRingBytes}
	cmd := &cobra.Command{
		Use:   "sockwatch --netns TARGET [--netns TARGET]... [-o FILE]",
		Short: "Tell what TCP did inside network namespaces, when, and why",
		Long: `sockwatch watches the TCP sockets of chosen network namespaces through BPF and
tells exactly when, on which connection and why each retransmission, reset and
abort happened. It writes evidence: JSON Lines, one event a line, stamped with
the kernel's clock. On a terminal it shows one readable line for each event.

It needs root. It changes nothing in the namespaces and in their traffic, and
stops at Ctrl-C, after --duration, or when every target is gone for good.`,
		Example: `  # Watch a container or a named namespace on this terminal.
  sudo sockwatch --netns controlplane

  # Keep evidence of an experiment, in step with the script that runs it.
  rm -f run.ready
  sudo sockwatch --netns controlplane --netns worker -o run.jsonl --ready-file run.ready &
  until [ -e run.ready ]; do sleep 0.1; done
  sudo sockwatch mark --kind applied "unplugged worker"

  # Ten minutes of the host, only the aborts.
  sudo sockwatch --netns host --duration 10m --format json | jq 'select(.type == "abort")'`,
		DisableFlagsInUseLine: true,

		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return observe(cmd.Context(), env, f)
		},
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringArrayVarP(&f.netns, "netns", "n", nil, "watch the namespace of `TARGET`, repeatable; see: sockwatch help targets")
	fs.StringVarP(&f.output, "output", "o", "", "write the evidence to `FILE` (mode 0600); default: standard output")
	fs.BoolVar(&f.appendTo, "append", false, "add to FILE if it exists")
	fs.BoolVar(&f.force, "force", false, "replace FILE if it exists")
	fs.BoolVar(&f.wait, "wait", false, "wait for targets that do not exist yet")
	fs.Var(durationValue{&f.duration, time.Millisecond}, "duration", "stop this long after every target is being watched, such as 90s or 1h30m")
	fs.Var(durationValue{&f.arrival, time.Millisecond}, "arrival-threshold", "tell of data that arrives after a silence of at least this")
	fs.StringVar(&f.readyFile, "ready-file", "", "create `FILE` when every target is being watched, the last too with --wait; it is\nremoved at the end")
	fs.StringSliceVar(&f.with, "with", nil, "also write events of these `TYPES`: io (what processes write and read),\nsegment (every segment at the namespace's edge)")
	formats := []string{formatAuto, formatJSON, formatText}
	fs.Var(choiceValue{&f.format, formats, "FORMAT"}, "format", "of standard output: json, text, or auto (text on a terminal; json elsewhere,\nor nothing with -o)")
	fs.Var(sizeValue{&f.ring}, "ring-size", "size of the kernel's event buffer, a power of two")

	fs.BoolVar(&f.selfTest, "self-test", false, "first force a retransmission, a reset and aborts in namespaces of its own, and end\nwith exit status 3 unless they are seen")
	fs.BoolVar(&f.complete, "require-complete", false, "end with exit status 6 unless the kernel's own counters prove that nothing is missing")

	must(cmd.RegisterFlagCompletionFunc("netns", completeTargets))
	must(cmd.RegisterFlagCompletionFunc("with", cobra.FixedCompletions(withTypes, cobra.ShellCompDirectiveNoFileComp)))
	must(cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp)))
	for _, name := range []string{"duration", "arrival-threshold", "ring-size"} {
		must(cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions))
	}
	return cmd
}

// completeTargets lists what could be named. Nobody waits long for a completion.
func completeTargets(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
	ctx := cmd.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var names []string
	for _, n := range target.Candidates(ctx) {
		if strings.HasPrefix(n, prefix) {
			names = append(names, n)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

func observe(ctx context.Context, env *environment, f observeFlags) (err error) {
	targets, err := f.targets()
	if err != nil {
		return err
	}
	if err := f.check(); err != nil {
		return err
	}
	if err := checkPrivileges(env); err != nil {
		return err
	}
	if err := checkClock(); err != nil {
		return err
	}
	if f.readyFile != "" {
		if err := clearReadyFile(f.readyFile); err != nil {
			return err
		}
	}

	// Notices come from more than one goroutine of the session.
	var mu sync.Mutex
	notice := func(s string) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(env.Stderr, "sockwatch: %s\n", oneLine(s))
	}
	sinks, err := f.sinks(env, notice)
	if err != nil {
		return err
	}
	ctx, stop := untilSignal(ctx, env, notice)
	defer stop()

	v, c := build()
	res, err := session.Run(ctx, session.Config{
		Targets:          targets,
		SelfTest:         f.selfTest,
		Wait:             f.wait,
		Duration:         f.duration,
		ArrivalThreshold: f.arrival,
		RingBytes:        f.ring,
		IO:               slices.Contains(f.with, string(events.TypeIO)),
		Segments:         slices.Contains(f.with, string(events.TypeSegment)),
		Sinks:            sinks,
		ReadyFile:        f.readyFile,
		ControlDir:       session.ControlDir,
		Notice:           notice,
		OnStart:          dropPrivileges,
		Version:          v,
		Commit:           c,
		Command:          append([]string{"sockwatch"}, env.Args...),
	})
	if f.readyFile != "" && err == nil {
		err = clearReadyFile(f.readyFile) // what waits for the next one must not take it for this
	}
	for _, s := range sinks {
		if e := s.Close(); e != nil && err == nil {
			err = &session.OutputError{Err: e}
		}
	}
	if err != nil {
		return err
	}
	if f.output != "" {
		notice(fmt.Sprintf("%s: %d lines; the evidence is %s", f.output, res.Summary.Lines, verdict(res.Summary.Verdict)))
	}
	return complete(res, f.complete)
}

// verdict is a verdict in words.
func verdict(v events.Verdict) string {
	what := v.State
	if v.By > 0 {
		what = fmt.Sprintf("%s by %d", what, v.By)
	}
	if len(v.Reasons) > 0 {
		what += ": " + strings.Join(v.Reasons, "; ")
	}
	return what
}

// complete makes an error of evidence with holes and, where a proof is asked
// for, of evidence that has none.
func complete(res *session.Result, prove bool) error {
	k := res.Summary.Kernel
	switch {
	case k.Lost > 0:
		return fail(exitIncomplete, "the lines of type \"lost\" say when; --ring-size makes room for bursts",
			"the evidence is incomplete: %d of %d records were lost", k.Lost, k.Produced)
	case k.Unaccounted != 0:
		return fail(exitIncomplete, "this is a defect of sockwatch, please report it",
			"the evidence is incomplete: %d records are unaccounted for", k.Unaccounted)
	case prove && res.Summary.Verdict.State != evidence.Complete:
		return fail(exitIncomplete, "the summary has the whole ledger; docs/evidence.md says how to read it",
			"the evidence is %s", verdict(res.Summary.Verdict))
	}
	return nil
}

func (f *observeFlags) targets() ([]target.Spec, error) {
	if len(f.netns) == 0 {
		return nil, usageError("for example: sudo sockwatch --netns controlplane; see: sockwatch help targets", "no target: --netns says what to watch")
	}
	specs := make([]target.Spec, 0, len(f.netns))
	for _, s := range f.netns {
		spec, err := target.ParseSpec(s)
		if err != nil {
			return nil, err
		}
		specs = append(specs, spec)
	}
	return specs, nil
}

// withTypes are the types of event that are written only when asked for.
var withTypes = []string{string(events.TypeIO), string(events.TypeSegment)}

func (f *observeFlags) check() error {
	for _, w := range f.with {
		if !slices.Contains(withTypes, w) {
			return usageError("all other types are always written", "--with takes %s, not %q", strings.Join(withTypes, " and "), w)
		}
	}
	switch {
	case f.appendTo && f.force:
		return usageError("--append keeps what is in the file, --force replaces it", "--append and --force exclude each other")
	case f.output == "" && f.appendTo:
		return usageError("give -o FILE as well, or use the shell's >>", "--append is for -o")
	case f.output == "" && f.force:
		return usageError("give -o FILE as well", "--force is for -o")
	case f.output != "" && f.readyFile != "" && filepath.Clean(f.output) == filepath.Clean(f.readyFile):
		return usageError("the ready file is a file of its own", "-o and --ready-file name the same file")
	}
	return nil
}

// sinks decides where events go. The file comes first: what it refuses ends
// the session before anything is shown.
func (f *observeFlags) sinks(env *environment, notice func(string)) ([]sink.Sink, error) {
	var sinks []sink.Sink
	if f.output != "" {
		out := &fileSink{path: f.output, notice: notice}
		switch {
		case f.appendTo:
			out.mode = sink.Append
		case f.force:
			out.mode = sink.Force
		}
		if err := out.check(); err != nil {
			return nil, &session.OutputError{Err: err}
		}
		sinks = append(sinks, out)
	}
	switch terminal := env.IsTerminal(env.Stdout); {
	case f.format == formatText, f.format == formatAuto && terminal:
		sinks = append(sinks, sink.NewText(env.Stdout, env.colour(env.Stdout)))
	case f.output == "", f.format == formatJSON:
		sinks = append(sinks, sink.NewJSONL(env.Stdout))
	}
	return sinks, nil
}

// checkPrivileges says early and in plain words what the kernel would say
// later. Entering a namespace takes CAP_SYS_ADMIN, which stands in for
// CAP_BPF and CAP_PERFMON.
func checkPrivileges(env *environment) error {
	have := cap.GetProc()
	for _, c := range []cap.Value{cap.SYS_ADMIN, cap.NET_ADMIN} {
		ok, err := have.GetFlag(cap.Effective, c)
		if err != nil {
			return fmt.Errorf("look up capabilities: %w", err)
		}
		switch {
		case ok:
		case env.Geteuid() != 0:
			return fail(exitMachine, "run it with sudo", "watching sockets needs root")
		default:
			return fail(exitMachine, "sockwatch doctor says what this machine allows", "root without %s cannot watch sockets", c)
		}
	}
	return nil
}

// checkClock refuses a time namespace with a clock of its own: the kernel
// stamps events with the clock that all others share.
func checkClock() error {
	offset, err := evidence.TimeNamespaceOffset()
	if err != nil {
		return fmt.Errorf("look up the time namespace: %w", err)
	}
	if offset != 0 {
		return fail(exitMachine, "run it outside, for example: sudo nsenter --time=/proc/1/ns/time --target 1 sockwatch ...",
			"this process is in a time namespace whose clock differs from the kernel's by %v", offset)
	}
	return nil
}

// dropPrivileges gives up what is not needed once everything is attached that is
// there: what stays is for targets that come (enter a namespace, attach there, find
// the owners of its sockets).
func dropPrivileges() error {
	return evidence.DropCapabilities(cap.SYS_ADMIN, cap.NET_ADMIN, cap.BPF, cap.PERFMON, cap.SYS_PTRACE, cap.DAC_READ_SEARCH)
}

// readyPrefix is how the content of a ready file begins.
const readyPrefix = "ready: "

// clearReadyFile removes the ready file of an earlier run, which would tell
// whoever waits that this one is ready. It does not touch other files.
func clearReadyFile(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		// It is created much later: say now that it cannot be.
		if err := unix.Access(filepath.Dir(path), unix.W_OK); err != nil {
			return fail(exitOutput, "name a file in a directory that exists", "ready file %s: %w", path, err)
		}
		return nil
	}
	if err == nil {
		if !info.Mode().IsRegular() || info.Size() > 4096 {
			return notReadyFile(path)
		}
		var b []byte
		if b, err = os.ReadFile(path); err == nil {
			if !bytes.HasPrefix(b, []byte(readyPrefix)) {
				return notReadyFile(path)
			}
			err = os.Remove(path)
		}
	}
	if err != nil {
		return fail(exitOutput, "", "ready file: %w", err)
	}
	return nil
}

func notReadyFile(path string) error {
	return fail(exitOutput, "name a file that does not exist", "ready file %s exists and is not one of sockwatch's", path)
}

// signalPause is how long after the first signal another is taken for the same:
// timeout(1) signals its child, and then the group that the child is in.
const signalPause = time.Second

// untilSignal returns a context that the first SIGINT, SIGTERM or SIGHUP ends.
// A second one, after a pause, ends the process.
func untilSignal(ctx context.Context, env *environment, notice func(string)) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	signals, stop := env.Signals()
	done := make(chan struct{})
	go func() {
		var first time.Time
		for {
			select {
			case <-done:
				return
			case s := <-signals:
				switch {
				case first.IsZero():
					first = time.Now()
				case time.Since(first) > signalPause:
					notice(fmt.Sprintf("second signal (%v): ended at once, the evidence has no footer", s))
					env.Exit(exitIncomplete)
				}
				cancel()
			}
		}
	}()
	return ctx, func() {
		stop()
		close(done)
		cancel()
	}
}
