package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/harness/fault"
	"github.com/sockwatch/sockwatch/internal/session"
)

// watchdogCommand is what fault and measure start beside themselves.
func watchdogCommand(env *environment) *cobra.Command {
	var journal, owner string
	cmd := &cobra.Command{
		Use:    "watchdog",
		Short:  "Undo the faults of a process when it ends",
		Hidden: true,
		Args:   noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := fault.ParseProcess(owner)
			if err != nil {
				return usageError("fault and measure start it", "%w", err)
			}
			// Signals are for its owner: it ends when that has ended.
			signals, stop := env.Signals()
			defer stop()
			go func() {
				for range signals {
					continue
				}
			}()
			return fault.Watch(journal, p, env.Stdin, env.Stdout, func(s string) {
				fmt.Fprintf(env.Stderr, "sockwatch: watchdog: %s\n", oneLine(s))
				// Best effort: what observes may have ended with the owner.
				_, _ = session.Mark(cmd.Context(), events.Mark{Text: s, Kind: "healed", By: "sockwatch watchdog"})
			})
		},
	}
	cmd.Flags().StringVar(&journal, "journal", fault.DefaultJournal, "")
	cmd.Flags().StringVar(&owner, "owner", "", "")
	return cmd
}
