package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/session"
)

func markCommand() *cobra.Command {
	kind := session.MarkKinds[0]
	cmd := &cobra.Command{
		Use:   "mark TEXT...",
		Short: "Put a mark into the evidence of every running sockwatch",
		Long: `Put a mark into the evidence of every sockwatch that runs on this machine, so
that what a script did stands between the events that it caused. The mark has
the time at which it was asked for, on the same clock as the events, and names
the process that asked. When the command returns, the mark has been written.`,
		Example: `  sudo sockwatch mark "starting the upgrade"
  sudo sockwatch mark --kind applied "unplugged worker-1"
  sudo sockwatch mark --kind healed "plugged worker-1 in again"`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError(`for example: sockwatch mark "link cut"`, "a mark needs a text")
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			m := events.Mark{Text: strings.Join(args, " "), Kind: kind, By: caller()}
			if err := session.CheckMark(m); err != nil {
				return usageError("", "%w", err)
			}
			if err := checkClock(); err != nil {
				return err
			}
			_, err := session.Mark(cmd.Context(), m)
			if errors.Is(err, fs.ErrPermission) {
				return fail(exitMachine, "run it with sudo", "%w", err)
			}
			return err
		},
	}
	cmd.Flags().VarP(choiceValue{&kind, session.MarkKinds, "KIND"}, "kind", "k", "what it marks: "+strings.Join(session.MarkKinds, ", "))
	must(cmd.RegisterFlagCompletionFunc("kind", cobra.FixedCompletions(session.MarkKinds, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

// caller names the process that runs this command, as COMMAND[PID]: the shell
// or script, not sudo.
func caller() string {
	pid := os.Getppid()
	for {
		comm, ppid, ok := process(pid)
		if !ok {
			return fmt.Sprintf("sockwatch[%d]", os.Getpid())
		}
		if comm != "sudo" || ppid <= 1 {
			return fmt.Sprintf("%s[%d]", comm, pid)
		}
		pid = ppid
	}
}

func process(pid int) (comm string, ppid int, ok bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return "", 0, false
	}
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 0 || end < open {
		return "", 0, false
	}
	fields := bytes.Fields(b[end+1:])
	if len(fields) < 2 {
		return "", 0, false
	}
	ppid, err = strconv.Atoi(string(fields[1]))
	return string(b[open+1 : end]), ppid, err == nil
}

// must is for errors that only a mistake in this package can cause.
func must(err error) {
	if err != nil {
		panic(err)
	}
}
