package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/evidence"
	"github.com/sockwatch/sockwatch/internal/harness/fault"
	"github.com/sockwatch/sockwatch/internal/harness/lab"
	"github.com/sockwatch/sockwatch/internal/harness/plan"
	"github.com/sockwatch/sockwatch/internal/session"
)

// start repairs a node that does not run, for whatever reason.
const start = "start"

// The kinds of faults that can be asked for, and start.
var faultKinds = []string{string(plan.Netsplit), string(plan.Pause), string(plan.Kill), string(plan.Neutral), start}

func faultCommand(env *environment) *cobra.Command {
	var f labFlags
	var mechanism string
	var hold time.Duration
	cmd := &cobra.Command{
		Use:   "fault KIND NODE [--for DURATION]",
		Short: "Break a node of a lab, and repair it",
		Long: `Break a node of a lab, and repair it: after --for, or at Ctrl-C. The command stays
while the fault is in place. If it is killed, a watchdog repairs the node at once.

KIND is netsplit, pause, kill or neutral, or start, which starts a node that does
not run; NODE is client, controlplane or worker. That a fault has an effect, and
that the node recovers, is verified: by frames sent both ways, and by what the
kernel says of the node's processes. Every sockwatch that observes gets a mark
for each step.

Ways to make a netsplit, with --mechanism:

  unplug          the node's interface is removed, and made again as it was
  unplug-new-mac  and made again with another hardware address
  port-down       the bridge's end is set down: the node loses its carrier
  drop            frames are dropped on the bridge, both ways; the carrier stays
  drop-to         only those to the node
  drop-from       only those of the node
  drop-output     the node's own packet filter drops what it sends

A pause freezes the node's processes while its kernel goes on; a kill ends them
with SIGKILL, and the repair is a cold start. A neutral fault does nothing, with
everything around it.`,
		Example: `  sudo sockwatch lab up
  sudo sockwatch fault netsplit worker --for 20s
  sudo sockwatch fault netsplit worker --mechanism drop-to
  sudo sockwatch fault pause controlplane --for 5s
  sudo sockwatch fault kill controlplane --for 1s   # a cold start`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usageError("for example: sudo sockwatch fault netsplit worker --for 20s", "fault needs a kind and a node")
			}
			if !slices.Contains(faultKinds, args[0]) {
				return usageError("give one of: "+strings.Join(faultKinds, ", "), "unknown kind of fault %q", args[0])
			}
			if !slices.Contains(lab.Roles, args[1]) {
				return usageError("give one of: "+strings.Join(lab.Roles, ", "), "unknown node %q", args[1])
			}
			return nil
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			switch len(args) {
			case 0:
				return faultKinds, cobra.ShellCompDirectiveNoFileComp
			case 1:
				return lab.Roles, cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			spec := fault.Spec{Kind: plan.Kind(args[0]), Mechanism: mechanism, Node: args[1]}
			switch {
			case args[0] == start && hold > 0:
				return usageError("leave it out", "--for is for a fault")
			case spec.Kind != plan.Netsplit && mechanism != "":
				return usageError("leave it out", "--mechanism is for a netsplit")
			case spec.Kind == plan.Netsplit && mechanism == "":
				spec.Mechanism = plan.Mechanisms[0]
			}
			return breakNode(cmd.Context(), env, &f, spec, hold)
		},
	}
	f.add(cmd)
	cmd.Flags().Var(durationValue{&hold, time.Millisecond}, "for", "repair it after this long; without, at Ctrl-C")
	cmd.Flags().Var(choiceValue{&mechanism, plan.Mechanisms, "MECHANISM"}, "mechanism", "how a netsplit is made (default "+plan.Mechanisms[0]+")")
	must(cmd.RegisterFlagCompletionFunc("mechanism", cobra.FixedCompletions(plan.Mechanisms, cobra.ShellCompDirectiveNoFileComp)))
	must(cmd.RegisterFlagCompletionFunc("for", cobra.NoFileCompletions))
	return cmd
}

// overdue is how much later than asked for the watchdog repairs a node if this
// process hangs.
const overdue = 30 * time.Second

func breakNode(ctx context.Context, env *environment, f *labFlags, spec fault.Spec, hold time.Duration) error {
	if err := labRoot(env); err != nil {
		return err
	}
	say := func(format string, args ...any) {
		fmt.Fprintf(env.Stderr, "sockwatch: "+format+"\n", args...)
	}
	if err := fault.Sweep(ctx, fault.DefaultJournal, func(s string) { say("%s, left by a process that was killed", s) }); err != nil {
		return err
	}
	l, err := f.open()
	if err != nil {
		return err
	}
	if spec.Kind == start {
		return startNode(ctx, env, l, spec.Node)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	guard, err := fault.StartGuard(self, fault.DefaultJournal, stderrFile(env))
	if err != nil {
		return err
	}
	defer guard.Close()
	ctx, stop := interruptible(ctx, env)
	defer stop()
	marks := newMarker()
	defer marks.wait()
	in := &fault.Injector{Guard: guard, Mark: func(kind, text string, at uint64) {
		if kind == "verified" || kind == "recovered" {
			say("%s: %s", kind, text)
		}
		marks.put(events.Mark{Text: text, Kind: kind, By: fmt.Sprintf("sockwatch[%d]", os.Getpid())}, at)
	}}
	if hold > 0 {
		spec.HealBy = hold + overdue
	}
	broken, err := in.Inject(ctx, l, spec)
	if err != nil {
		return err
	}
	var over <-chan time.Time
	if hold > 0 {
		over = time.After(hold - time.Since(since(broken.Times.Applied)))
	}
	select {
	case <-over:
	case <-ctx.Done():
	case <-guard.Gone():
		say("the watchdog has ended: repairing at once")
	}
	return broken.Heal(ctx)
}

// startNode starts a node that does not run.
func startNode(ctx context.Context, env *environment, l *lab.Lab, role string) error {
	n, err := l.Node(role)
	if err != nil {
		return err
	}
	ctx, stop := interruptible(ctx, env)
	defer stop()
	marks := newMarker()
	defer marks.wait()
	for _, kind := range []string{"heal-intended", "healed"} {
		now, err := evidence.MonoNow()
		if err != nil {
			return err
		}
		marks.put(events.Mark{Text: "start of " + role, Kind: kind, By: fmt.Sprintf("sockwatch[%d]", os.Getpid())}, now)
		if kind == "heal-intended" {
			if err := n.Start(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// since is a time of the kernel's clock on Go's.
func since(monoNS uint64) time.Time {
	now, err := evidence.MonoNow()
	if err != nil {
		return time.Now()
	}
	return time.Now().Add(-time.Duration(now - monoNS))
}

// stderrFile is where the watchdog writes, also when this process has ended.
func stderrFile(env *environment) *os.File {
	f, _ := env.Stderr.(*os.File)
	return f
}

// marker puts marks into the evidence of those that observe, in order, without
// keeping who makes them.
type marker struct {
	queue chan func()
	done  chan struct{}
}

func newMarker() *marker {
	m := &marker{queue: make(chan func(), 64), done: make(chan struct{})}
	go func() {
		defer close(m.done)
		for f := range m.queue {
			f()
		}
	}()
	return m
}

func (m *marker) put(mark events.Mark, at uint64) {
	m.queue <- func() {
		_, err := session.MarkAt(context.Background(), mark, at)
		if err != nil && !errors.Is(err, session.ErrNoInstance) {
			fmt.Fprintf(os.Stderr, "sockwatch: mark %q: %s\n", mark.Kind, oneLine(err.Error()))
		}
	}
}

func (m *marker) wait() {
	close(m.queue)
	<-m.done
}
