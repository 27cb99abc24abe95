package main

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/evidence"
	stories "github.com/sockwatch/sockwatch/internal/report"
	"github.com/sockwatch/sockwatch/internal/session"
)

func explainCommand() *cobra.Command {
	var o stories.Options
	asJSON := false
	cmd := &cobra.Command{
		Use:   "explain FILE...",
		Short: "Tell the story of each connection that had trouble",
		Long: `Tell the story of each connection that had trouble, from saved evidence: on any
machine, without root.

A story has one time line: what was outstanding when the trouble began, each run
of retransmissions, which one was answered and after how long, which end gave up
first and why, what arrived after, what each end did not learn, the marks and
what happened to the namespaces in between, and how it ended, or that this is
not known. Both ends of a connection are told together where both were watched:
give the files of both.

Times are relative to the first trouble of each connection, or to what --since
names: a mark, by its text or its kind (the first that matches), or a line of the
first FILE, by its seq.

What a story says follows from the lines, which --json names for each step; what
is inferred is called so. Connections without trouble are counted, and so are
those that were over within a second like others of their kind; --sock tells
those that it names in any case.

The exit status is 0 whatever the evidence says; sockwatch verify judges it.`,
		Example: `  sockwatch explain run.jsonl
  sockwatch explain client.jsonl worker.jsonl --since applied
  sockwatch explain run.jsonl --sock 198.18.0.1:40558
  sockwatch explain run.jsonl --json | jq '.stories[].steps[].text'`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError("for example: sockwatch explain run.jsonl", "no file to explain")
			}
			return nil
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return []string{"jsonl"}, cobra.ShellCompDirectiveFilterFileExt
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.Sock != "" {
				if err := stories.CheckSock(o.Sock); err != nil {
					return usageError("for example: --sock 198.18.0.1:40558, --sock 198.18.0.1 or --sock 87830", "--sock: %w", err)
				}
			}
			var c stories.Collector
			for _, name := range args {
				if err := collect(&c, name); err != nil {
					return err
				}
			}
			r, err := c.Report(o)
			switch {
			case errors.Is(err, stories.ErrNoMatch):
				return usageError("without --sock, every connection that had trouble is told", "%w", err)
			case err != nil:
				return usageError("--since takes the text or the kind of a mark, or the seq of a line of the first file", "%w", err)
			}
			if asJSON {
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				enc.SetEscapeHTML(false)
				return enc.Encode(r)
			}
			_, err = cmd.OutOrStdout().Write(r.AppendText(nil))
			return err
		},
	}
	cmd.Flags().StringVar(&o.Sock, "sock", "", "tell of the connections with this `ADDR`[:PORT], or of the socket with this COOKIE")
	cmd.Flags().StringVar(&o.Since, "since", "", "count times from this `MARK`, or from the line with this SEQ")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the stories as JSON")
	must(cmd.RegisterFlagCompletionFunc("sock", cobra.NoFileCompletions))
	must(cmd.RegisterFlagCompletionFunc("since", cobra.FixedCompletions(session.MarkKinds, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

// collect reads one file. Lines that are not events are noted and passed over,
// but a file without any session is no evidence.
func collect(c *stories.Collector, name string) error {
	f, err := os.Open(name)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fail(exitMachine, "evidence can be read by its owner only: run it with sudo", "explain %s: permission denied", name)
	case err != nil:
		return usageError("", "explain %s: %w", name, plainError(err))
	}
	defer f.Close()
	r, out := evidence.NewReader(f), c.File(name)
	begun := false
	for {
		e := new(events.Event)
		err := r.Next(e)
		bad, isLine := errors.AsType[*evidence.LineError](err)
		switch {
		case errors.Is(err, io.EOF):
			if !begun {
				return usageError("give it what sockwatch -o wrote", "explain %s: no evidence in it", name)
			}
			for _, g := range r.Gaps() {
				out.Damaged(g.String())
			}
			if r.Cut() {
				out.Cut()
			}
			return nil
		case isLine && !begun:
			return usageError("give it what sockwatch -o wrote", "explain %s: %w", name, bad)
		case isLine:
			out.Damaged(bad.Error())
		case err != nil:
			return fail(exitFailure, "", "explain %s: %w", name, plainError(err))
		default:
			begun = true
			out.Add(r.Line(), e)
		}
	}
}
