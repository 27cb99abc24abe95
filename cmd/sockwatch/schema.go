package main

import (
	"github.com/spf13/cobra"

	"github.com/sockwatch/sockwatch/internal/events"
)

func schemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of the evidence",
		Long: `Print the JSON Schema (draft 2020-12) that every line of evidence satisfies. It
describes each field with its unit.`,
		Example:           "  sockwatch schema > sockwatch.schema.json",
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := cmd.OutOrStdout().Write(events.Schema())
			return err
		},
	}
}
