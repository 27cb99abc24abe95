package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/sockwatch/sockwatch/internal/harness/lab"
)

// labFlags say which lab is meant.
type labFlags struct{ name, stateDir string }

func (f *labFlags) add(cmd *cobra.Command) {
	fs := cmd.PersistentFlags()
	fs.StringVar(&f.name, "name", "lab", "`NAME` of the lab")
	fs.StringVar(&f.stateDir, "state-dir", lab.DefaultStateDir, "`DIR` where labs are written down")
}

func (f *labFlags) open() (*lab.Lab, error) { return lab.Open(f.stateDir, f.name) }

func labCommand(env *environment) *cobra.Command {
	var f labFlags
	cmd := &cobra.Command{
		Use:   "lab",
		Short: "Make three nodes to break, and take them away again",
		Long: `Make three nodes to break: a client, a controlplane and a worker, with addresses
of their own on one bridge, that talk gRPC over mutual TLS. The controlplane's
proxy keeps one connection to the worker and forwards over it what the client
asks, as the API of Talos does.

Each node is a network namespace with processes of its own, or a Docker
container. The namespace of the host is not touched; Docker touches it for its
network. A lab is not tied to the process that made it: it stays until it is
taken down.`,
		Example: `  sudo sockwatch lab up
  sudo sockwatch --netns sw-lab-controlplane --netns sw-lab-worker
  sudo sockwatch lab exec client sockwatch node apply
  sudo sockwatch lab down`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			return usageError("see: sockwatch lab --help", "lab does what? up, status, exec or down")
		},
	}
	f.add(cmd)
	cmd.AddCommand(labUp(env, &f), labStatus(env, &f), labExec(env, &f), labDown(env, &f))
	return cmd
}

func labUp(env *environment, f *labFlags) *cobra.Command {
	backend := lab.Netns
	cmd := &cobra.Command{
		Use:               "up",
		Short:             "Make a lab and wait until it serves",
		Example:           "  sudo sockwatch lab up\n  sudo sockwatch lab up --name two --backend docker",
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := labRoot(env); err != nil {
				return err
			}
			ctx, stop := interruptible(cmd.Context(), env)
			defer stop()
			l, err := lab.Up(ctx, lab.Spec{Name: f.name, Backend: backend, StateDir: f.stateDir})
			if ctx.Err() != nil && err != nil {
				return fail(exitFailure, "", "interrupted: %w", err)
			}
			if err != nil {
				return err
			}
			return describe(cmd.OutOrStdout(), l)
		},
	}
	backends := []string{lab.Netns, lab.Docker}
	cmd.Flags().Var(choiceValue{&backend, backends, "BACKEND"}, "backend", "what the nodes are: "+strings.Join(backends, ", "))
	must(cmd.RegisterFlagCompletionFunc("backend", cobra.FixedCompletions(backends, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

func describe(w io.Writer, l *lab.Lab) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, n := range l.Nodes() {
		fmt.Fprintf(t, "%s\t%s\t%s\n", n.Role, n.Addr, n.Target())
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "lab %s is up; sockwatch lab down%s takes it away\n", l.Name, nameFlag(l.Name))
	return err
}

func nameFlag(name string) string {
	if name == "lab" {
		return ""
	}
	return " --name " + name
}

func labStatus(env *environment, f *labFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "List the labs, and what holds for their nodes",
		Long: `List the labs, and what holds for their nodes, as the kernel and Docker say it.
With --name, only that lab.

A lab that is "making" or "removing" while nobody does so was left half way:
sockwatch lab down takes it away.`,
		Example:           "  sudo sockwatch lab status",
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := labRoot(env); err != nil {
				return err
			}
			labs, err := lab.List(f.stateDir)
			if err != nil {
				return err
			}
			if cmd.Flags().Changed("name") {
				l, err := f.open()
				if err != nil {
					return err
				}
				s, err := l.Status()
				if err != nil {
					return err
				}
				labs = []lab.Status{s}
			}
			return printLabs(cmd.Context(), cmd.OutOrStdout(), f.stateDir, labs)
		},
	}
}

func printLabs(ctx context.Context, w io.Writer, stateDir string, labs []lab.Status) error {
	if len(labs) == 0 {
		_, err := fmt.Fprintln(w, "no lab")
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, s := range labs {
		if s.Phase == lab.Left {
			fmt.Fprintf(t, "%s\t%s\t%s\twritten down nowhere: sockwatch lab down --name %s\n", s.Name, s.Backend, s.Phase, s.Name)
			continue
		}
		fmt.Fprintf(t, "%s\t%s\t%s\tmade %s\n", s.Name, s.Backend, s.Phase, s.Made.Format("2006-01-02 15:04:05Z"))
		l, err := lab.Open(stateDir, s.Name)
		if err != nil {
			return err
		}
		for _, n := range l.Nodes() {
			text := ""
			if c, err := n.Condition(ctx); err != nil {
				text = oneLine(err.Error())
			} else {
				text = conditionText(c)
			}
			fmt.Fprintf(t, "  %s\t%s\t%s\t%s\n", n.Role, n.Addr, n.Target(), text)
		}
	}
	return t.Flush()
}

// conditionText says what is not as it was when the lab came up.
func conditionText(c lab.Condition) string {
	if !c.Alive {
		return "not running"
	}
	var all []string
	if c.Frozen {
		all = append(all, "frozen")
	}
	switch {
	case !c.Plugged:
		all = append(all, "unplugged")
	case !c.PortUp:
		all = append(all, "port down")
	}
	if c.Dropped != lab.None {
		all = append(all, fmt.Sprintf("dropped on the bridge: %s (%d so far)", c.Dropped, c.DroppedPackets))
	}
	if c.OutputDropped {
		all = append(all, fmt.Sprintf("output dropped (%d so far)", c.OutputPackets))
	}
	if len(all) == 0 {
		return "running"
	}
	return strings.Join(all, ", ")
}

func labExec(env *environment, f *labFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "exec NODE COMMAND...",
		Short: "Run a command in a node",
		Long: `Run a command in a node: in its network namespace, frozen and killed with it.
Files are those of the host. sockwatch becomes the command, so that signals, the
terminal and the exit status are the command's.

$SOCKWATCH_NODE is the directory of the node's files, where sockwatch node read
and sockwatch node apply find what they need.`,
		Example: `  sudo sockwatch lab exec worker ss -tnoi
  sudo sockwatch lab exec client sockwatch node read --route direct`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 2 {
				return usageError("for example: sudo sockwatch lab exec worker ss -tnoi", "exec needs a node and a command")
			}
			return nil
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return lab.Roles, cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveDefault
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := labRoot(env); err != nil {
				return err
			}
			l, err := f.open()
			if err != nil {
				return err
			}
			n, err := l.Node(args[0])
			if err != nil {
				return err
			}
			args = args[1:]
			if args[0] == "--" && len(args) > 1 {
				args = args[1:]
			}
			return n.Exec(cmd.Context(), args, append(env.Environ(), nodeDirEnv+"="+filepath.Join(l.Dir, lab.Client)))
		},
	}
	cmd.Flags().SetInterspersed(false) // what follows the node is the command's
	return cmd
}

func labDown(env *environment, f *labFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Take a lab away",
		Long: `Take a lab away, whatever of it there is: also one that was left half made, with
whatever is broken in it.`,
		Example:           "  sudo sockwatch lab down",
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := labRoot(env); err != nil {
				return err
			}
			return lab.Remove(cmd.Context(), f.stateDir, f.name)
		},
	}
}

// labRoot refuses early what the kernel would refuse in the middle.
func labRoot(env *environment) error {
	if env.Geteuid() != 0 {
		return fail(exitMachine, "run it with sudo", "a lab needs root")
	}
	return nil
}

var errInterrupted = errors.New("a signal")

// interruptible ends ctx with the first signal.
func interruptible(ctx context.Context, env *environment) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals, stop := env.Signals()
	go func() {
		select {
		case <-signals:
			cancel(errInterrupted)
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		stop()
		cancel(nil)
	}
}
