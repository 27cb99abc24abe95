package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sockwatch/sockwatch/internal/harness/node"
)

// nodeDirEnv names the directory with a node's files.
const nodeDirEnv = "SOCKWATCH_NODE"

// nodeCommand has the programs of a lab's nodes. Nobody types run and apid;
// read and apply are for trying a lab out.
func nodeCommand(env *environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:    "node",
		Short:  "The programs that run in a lab's nodes",
		Hidden: true,
		Args:   noArgs,
		RunE: func(*cobra.Command, []string) error {
			return usageError("see: sockwatch node --help", "node does what? read or apply")
		},
	}
	daemon := func(name, short string, run func(ctx context.Context, dir string) error) *cobra.Command {
		return &cobra.Command{
			Use:    name + " DIR",
			Short:  short,
			Hidden: true,
			Args:   cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				ctx, stop := interruptible(cmd.Context(), env)
				defer stop()
				return run(ctx, args[0])
			},
		}
	}
	cmd.AddCommand(
		daemon("run", "The first process of a node", func(ctx context.Context, dir string) error {
			self, err := os.Executable()
			if err != nil {
				return err
			}
			return node.Run(ctx, dir, self, env.Stdout)
		}),
		daemon("apid", "The proxy of a node", func(ctx context.Context, dir string) error {
			return node.RunAPID(ctx, dir, env.Stdout)
		}),
		nodeRead(env),
		nodeApply(env),
	)
	return cmd
}

func routeFlag(cmd *cobra.Command) *string {
	route := string(node.Proxied)
	var routes []string
	for _, r := range node.Routes {
		routes = append(routes, string(r))
	}
	cmd.Flags().Var(choiceValue{&route, routes, "ROUTE"}, "route", "through the controlplane or not: "+strings.Join(routes, ", "))
	return &route
}

func nodeDir(env *environment) (string, error) {
	dir := env.Getenv(nodeDirEnv)
	if dir == "" {
		return "", usageError("run it in a lab: sudo sockwatch lab exec client sockwatch node read", "not in a lab: $%s is not set", nodeDirEnv)
	}
	return dir, nil
}

func nodeRead(env *environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "read",
		Short: "Ask the worker for the version of its configuration",
		Args:  noArgs,
	}
	route := routeFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		dir, err := nodeDir(env)
		if err != nil {
			return err
		}
		return node.RunRead(cmd.Context(), dir, node.Route(*route), env.Stdout)
	}
	return cmd
}

func nodeApply(env *environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "apply [FILE]",
		Short: "Apply a configuration to the worker; without FILE, one of its own",
		Args:  cobra.MaximumNArgs(1),
	}
	route := routeFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		dir, err := nodeDir(env)
		if err != nil {
			return err
		}
		artifact, err := readArtifact(args)
		if err != nil {
			return err
		}
		return node.RunApply(cmd.Context(), dir, node.Route(*route), artifact, env.Stdout)
	}
	return cmd
}

func readArtifact(args []string) ([]byte, error) {
	if len(args) == 1 {
		return os.ReadFile(args[0])
	}
	return node.Artifact(fmt.Sprintf("try-%d", os.Getpid()))
}
