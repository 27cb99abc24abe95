package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/sockwatch/sockwatch/internal/harness/measure"
	"github.com/sockwatch/sockwatch/internal/sink"
	"github.com/sockwatch/sockwatch/internal/verify"
)

func verifyCommand() *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use:   "verify FILE...|DIR",
		Short: "Derive again from saved evidence what it proves",
		Long: `Derive again from saved evidence what it proves: on any machine, without root.

Every line is held against the schema and its number, the summary against the
lines, each cause against the facts in its event, the lines of each socket
against each other, the verdict against the kernel's counters. Files of one run
are checked together: where both ends of a connection were watched, they must
agree on what was sent, received and acknowledged.

A session that was cut short proves what its whole lines say; what is missing is
named. A contradiction means that the file was edited or damaged, or that
sockwatch has a defect: please report it. What the evidence does not decide is
called undecided.

A DIR is what sockwatch measure wrote: its checksums are compared, each capture's
explanation is derived again from its evidence, and every file of evidence is
verified.

The exit status is 0 if everything holds, 6 if something is missing and the rest
holds, and 7 if the evidence contradicts itself.`,
		Example: `  sockwatch verify run.jsonl
  sockwatch verify client.jsonl worker.jsonl   # both ends of one run
  sockwatch verify --json run.jsonl | jq '.files[].findings'
  sockwatch verify results                     # of sockwatch measure`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError("for example: sockwatch verify run.jsonl", "no file to verify")
			}
			return nil
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return []string{"jsonl"}, cobra.ShellCompDirectiveFilterFileExt
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			groups := [][]string{args}
			if info, err := os.Stat(args[0]); err == nil && info.IsDir() && len(args) == 1 {
				evidence, err := verifyResults(cmd.OutOrStdout(), args[0], asJSON)
				if err != nil {
					return err
				}
				// Each capture had a lab of its own, with the same addresses.
				groups = nil
				for _, name := range evidence {
					groups = append(groups, []string{name})
				}
			}
			var r *verify.Report
			for _, names := range groups {
				one, err := verifyTogether(names)
				if err != nil {
					return err
				}
				if r == nil {
					r = one
				} else {
					r.Add(one)
				}
			}
			if r == nil {
				return nil // results without evidence
			}
			if err := writeReport(cmd.OutOrStdout(), r, asJSON); err != nil {
				return err
			}
			switch r.Result {
			case verify.ResultContradicts:
				places := "places"
				if r.Count(verify.Contradiction) == 1 {
					places = "place"
				}
				otherwise, hint := "", ""
				if r.Disputed() {
					otherwise, hint = ", or judged otherwise by the version that wrote it", "verify it with the sockwatch that wrote it"
				}
				return fail(exitContradiction, hint, "the evidence contradicts itself, in at least %d %s: it was edited or damaged%s", r.Count(verify.Contradiction), places, otherwise)
			case verify.ResultIncomplete:
				return fail(exitIncomplete, "", "the evidence is incomplete; what is there holds")
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the report as JSON")
	return cmd
}

// verifyTogether verifies the files of one run.
func verifyTogether(names []string) (*verify.Report, error) {
	v, c := build()
	var files []verify.Source
	for _, name := range names {
		if err := regular(name); err != nil {
			return nil, err
		}
		files = append(files, verify.Source{Name: name, Open: func() (io.ReadCloser, error) { return os.Open(name) }})
	}
	r, err := verify.Files(files, verify.Options{Build: v + " " + c})
	if _, ok := errors.AsType[*verify.VersionError](err); ok {
		return nil, fail(exitFailure, "verify it with the sockwatch that wrote it, or a newer one", "%w", err)
	}
	if errors.Is(err, verify.ErrNoEvidence) {
		return nil, usageError("give it what sockwatch -o wrote", "%w", err)
	}
	return r, err
}

// verifyResults checks what measure wrote, its evidence apart, which it lists.
func verifyResults(w io.Writer, dir string, asJSON bool) (evidence []string, err error) {
	c, err := measure.Verify(dir)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return nil, fail(exitMachine, "results can be read by their owner only: run it with sudo", "verify %s: permission denied", dir)
	case errors.Is(err, fs.ErrNotExist):
		return nil, usageError("a run that was cut short has no checksums yet: sockwatch measure ... --resume", "verify %s: these are no finished results: %w", dir, err)
	case err != nil:
		return nil, fail(exitContradiction, "", "verify %s: %w", dir, err)
	}
	for _, d := range c.Differs {
		fmt.Fprintf(w, "%s\n", sink.AppendPrintable(nil, []byte(d)))
	}
	if len(c.Differs) > 0 {
		return nil, fail(exitContradiction, "", "%s differs from what was written, in %d places: it was edited or damaged", dir, len(c.Differs))
	}
	if asJSON {
		return c.Evidence, nil
	}
	_, err = fmt.Fprintf(w, "%s: %d files as they were written, %d captures explained by their evidence\n", dir, len(c.Files), c.Captures)
	return c.Evidence, err
}

// regular refuses what cannot be read twice.
func regular(name string) error {
	if name == "-" {
		return usageError("give it as a file: it is read twice", "verify -: standard input is not read")
	}
	info, err := os.Stat(name)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fail(exitMachine, "evidence can be read by its owner only: run it with sudo", "verify %s: permission denied", name)
	case err != nil:
		return usageError("", "verify %s: %w", name, plainError(err))
	case !info.Mode().IsRegular():
		return usageError("give it as a file: it is read twice", "verify %s: not a regular file", name)
	}
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrPermission) {
		return fail(exitMachine, "evidence can be read by its owner only: run it with sudo", "verify %s: permission denied", name)
	}
	if err != nil {
		return fail(exitFailure, "", "verify %s: %w", name, plainError(err))
	}
	return f.Close()
}

// plainError is what went wrong, without the path that is named already.
func plainError(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	return err
}

func writeReport(w io.Writer, r *verify.Report, asJSON bool) error {
	if asJSON {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		return enc.Encode(r)
	}
	for _, line := range r.Text() {
		if _, err := fmt.Fprintf(w, "%s\n", sink.AppendPrintable(nil, []byte(line))); err != nil {
			return err
		}
	}
	return nil
}
