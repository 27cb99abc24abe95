package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// run executes the command line and returns the exit status.
func run(env *environment) int {
	cmd := rootCommand(env)
	err := cmd.Execute()
	if env.stdoutErr != nil && (err == nil || errors.Is(err, env.stdoutErr)) {
		err = fail(exitOutput, "", "write output: %w", env.stdoutErr)
	}
	return report(env, err)
}

func rootCommand(env *environment) *cobra.Command {
	root := observeCommand(env)
	root.AddCommand(
		markCommand(),
		verifyCommand(),
		explainCommand(),
		doctorCommand(env),
		schemaCommand(),
		labCommand(env),
		nodeCommand(env),
		faultCommand(env),
		measureCommand(env),
		watchdogCommand(env),
		versionCommand(),
		topic("targets", "How --netns names what is watched", targetsHelp),
		topic("exit-status", "What the exit status says", exitHelp()),
	)
	root.SetHelpCommand(helpCommand())
	addDevCommands(root)

	root.PersistentPreRunE = noEmptyFlags
	root.SetArgs(env.Args)
	root.SetIn(env.Stdin)
	root.SetOut(output{env})
	root.SetErr(env.Stderr)
	root.SilenceErrors = true
	root.SilenceUsage = true
	root.SetFlagErrorFunc(flagError)
	return root
}

// topic is a page of help that is no command.
func topic(name, short, long string) *cobra.Command {
	return &cobra.Command{Use: name, Short: short, Long: long}
}

// helpCommand is cobra's, which takes an unknown topic for none and does not
// complete the pages that are no command.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND|TOPIC]",
		Short: "Help about a command or a topic",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			at, _, err := cmd.Root().Find(args)
			if err != nil {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			var names []string
			for _, c := range at.Commands() {
				if !c.Hidden && strings.HasPrefix(c.Name(), prefix) {
					names = append(names, cobra.CompletionWithDesc(c.Name(), c.Short))
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			at, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return usageError("commands and topics are listed by sockwatch --help", "no help about %q", strings.Join(args, " "))
			}
			return at.Help()
		},
	}
}

// noEmptyFlags refuses what a script with an unset variable gives: -o "$OUT"
// would silently be no -o at all.
func noEmptyFlags(cmd *cobra.Command, _ []string) (err error) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		empty := map[string]string{"string": "", "stringSlice": "[]"}
		if s, ok := empty[f.Value.Type()]; ok && f.Value.String() == s && err == nil {
			err = usageError("leave it out, or set the variable that it was to have", "--%s is empty", f.Name)
		}
	})
	return err
}

// flagError puts what pflag says into a usage error, with the hint of the
// flag's own value where there is one.
func flagError(cmd *cobra.Command, err error) error {
	hint := fmt.Sprintf("see: %s --help", cmd.CommandPath())
	if ce, ok := errors.AsType[*cliError](err); ok && ce.hint != "" {
		hint = ce.hint
	}
	return usageError(hint, "%w", err)
}

// noArgs refuses arguments, and guesses what was meant.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	arg := args[0]
	if cmd.HasParent() {
		return usageError(fmt.Sprintf("see: %s --help", cmd.CommandPath()), "%s takes no argument, got %q", cmd.CommandPath(), arg)
	}
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(arg); len(near) > 0 {
		return usageError("did you mean: sockwatch "+strings.Join(near, ", sockwatch ")+"?", "unknown command %q", arg)
	}
	return usageError("commands are listed by sockwatch --help; a target is given as --netns "+quoteArg(arg), "unknown command %q", arg)
}

// quoteArg makes s safe to paste into a shell.
func quoteArg(s string) string {
	if s != "" && strings.IndexFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:@%+=,", r))
	}) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(oneLine(s), "'", `'\''`) + "'"
}
