package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/sockwatch/sockwatch/internal/events"
)

// Set by the linker, see the Makefile.
var (
	version = ""
	commit  = ""
)

// build returns the version and commit of this binary: the linker's, else what
// the go command knows.
func build() (v, c string) {
	v, c = version, commit
	if info, ok := debug.ReadBuildInfo(); ok {
		if v == "" && info.Main.Version != "" && info.Main.Version != "(devel)" {
			v = info.Main.Version
		}
		for _, s := range info.Settings {
			if c == "" && s.Key == "vcs.revision" {
				c = s.Value
			}
		}
	}
	if v == "" {
		v = "unreleased"
	}
	if c == "" {
		c = "unknown"
	}
	return v, c
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "version",
		Short:             "Print the version of sockwatch and of its evidence format",
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v, c := build()
			fmt.Fprintf(cmd.OutOrStdout(), "sockwatch %s\ncommit %s\nevidence format %s\n%s %s/%s\n",
				v, c, events.SchemaVersion, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return nil
		},
	}
}
