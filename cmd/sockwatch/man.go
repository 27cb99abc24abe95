//go:build man

package main

import (
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// addDevCommands adds what is needed to build sockwatch, not to use it: make
// man runs it. It is not in the ordinary binary, which would carry a Markdown
// processor for it.
func addDevCommands(root *cobra.Command) {
	root.AddCommand(&cobra.Command{
		Use:    "man DIR",
		Short:  "Write the manual pages to DIR",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			v, _ := build()
			// The shells have their own help, and the topics belong to the
			// page of sockwatch itself.
			for _, c := range root.Commands() {
				if c.Name() == "completion" {
					root.RemoveCommand(c)
				}
			}
			root.Long += "\n\n# TARGETS\n" + fenced(targetsHelp) + "\n# EXIT STATUS\n" + fenced(exitHelp())
			root.DisableAutoGenTag = true
			return doc.GenManTree(root, &doc.GenManHeader{
				Section: "8",
				Source:  "sockwatch " + v,
				Manual:  "System Manager's Manual",
			}, args[0])
		},
	})
}

// fenced is text as it stands.
func fenced(text string) string { return "```\n" + text + "\n```\n" }
