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
			root.DisableAutoGenTag = true
			return doc.GenManTree(root, &doc.GenManHeader{
				Section: "8",
				Source:  "sockwatch " + v,
				Manual:  "System Manager's Manual",
			}, args[0])
		},
	})
}
