package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sockwatch/sockwatch/internal/harness/lab"
	"github.com/sockwatch/sockwatch/internal/harness/measure"
	"github.com/sockwatch/sockwatch/internal/harness/plan"
	"github.com/sockwatch/sockwatch/plans"
)

type measureFlags struct {
	output   string
	only     string
	captures int
	parallel int
	seed     uint64
	backend  string
	resume   bool
}

func measureCommand(env *environment) *cobra.Command {
	f := measureFlags{backend: lab.Netns}
	cmd := &cobra.Command{
		Use:   "measure PLAN -o DIR",
		Short: "Run an experiment plan and explain what came of it",
		Long: `Run an experiment plan and explain what came of it.

A plan has cells: how a request reaches the worker, what is broken when, what is
predicted. Each capture of a cell has a lab and an observer of its own; as many
as the machine carries run side by side. What became of the request is explained
from the kernel's events, and counted beside what was predicted.

PLAN is a file, or one of those that are shipped:

` + shippedPlans() + `
DIR gets the table of captures, their evidence and transcripts, the distribution,
a summary, and checksums; sockwatch verify DIR checks it. A run that is cut short
heals what it broke, keeps the captures that are over, and goes on with --resume.`,
		Example: `  sudo sockwatch measure quick -o quick
  sudo sockwatch measure latelanding -o results --only 'netsplit-worker|control' -n 3
  sudo sockwatch measure latelanding -o results --resume`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError("for example: sudo sockwatch measure quick -o quick", "measure needs one plan")
			}
			return nil
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return planNames(), cobra.ShellCompDirectiveDefault
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return measurePlan(cmd.Context(), env, args[0], f)
		},
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringVarP(&f.output, "output", "o", "", "write the results to `DIR`, which is made")
	fs.BoolVar(&f.resume, "resume", false, "go on with the run in DIR")
	fs.StringVar(&f.only, "only", "", "make the cells whose name matches `REGEXP`")
	fs.IntVarP(&f.captures, "captures", "n", 0, "make `N` captures of each cell (default: as the plan says)")
	fs.IntVar(&f.parallel, "parallel", 0, "make `N` captures side by side (default: as many as the machine carries)")
	fs.Uint64Var(&f.seed, "seed", 0, "`SEED` of the order of captures (default: a new one, recorded)")
	backends := []string{lab.Netns, lab.Docker}
	fs.Var(choiceValue{&f.backend, backends, "BACKEND"}, "backend", "what the labs' nodes are: "+strings.Join(backends, ", "))
	must(cmd.RegisterFlagCompletionFunc("backend", cobra.FixedCompletions(backends, cobra.ShellCompDirectiveNoFileComp)))
	for _, name := range []string{"only", "captures", "parallel", "seed"} {
		must(cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions))
	}
	return cmd
}

// planNames are the shipped plans, by name.
func planNames() (names []string) {
	files, err := fs.Glob(plans.FS, "*.yaml")
	must(err)
	for _, f := range files {
		names = append(names, strings.TrimSuffix(f, ".yaml"))
	}
	return names
}

func shippedPlans() string {
	var b strings.Builder
	for _, name := range planNames() {
		text, err := plans.FS.ReadFile(name + ".yaml")
		must(err)
		p, err := plan.Parse(name, text)
		must(err)
		fmt.Fprintf(&b, "  %-12s %s\n", name, wrap(p.About, 62, "\n               "))
	}
	return b.String()
}

// wrap breaks text into lines of at most width.
func wrap(text string, width int, sep string) string {
	var b strings.Builder
	n := 0
	for _, w := range strings.Fields(text) {
		switch {
		case n == 0:
		case n+1+len(w) > width:
			b.WriteString(sep)
			n = 0
		default:
			b.WriteByte(' ')
			n++
		}
		b.WriteString(w)
		n += len(w)
	}
	return b.String()
}

// loadPlan finds a plan: a shipped one by its name, any other is a file.
func loadPlan(name string) (*plan.Plan, []byte, error) {
	var text []byte
	var err error
	if slices.Contains(planNames(), name) {
		text, err = plans.FS.ReadFile(name + ".yaml")
	} else {
		text, err = os.ReadFile(name)
	}
	if err != nil {
		return nil, nil, usageError("a plan is a file, or one of: "+strings.Join(planNames(), ", "), "plan %s: %w", name, plainError(err))
	}
	p, err := plan.Parse(name, text)
	return p, text, err
}

func (f *measureFlags) selection() (s plan.Selection, err error) {
	s.Seed, s.Captures = f.seed, f.captures
	if f.only != "" {
		if s.Only, err = regexp.Compile(f.only); err != nil {
			return s, usageError("it is a regular expression, such as 'control|netsplit-worker-20'", "--only: %w", err)
		}
	}
	switch {
	case f.output == "":
		return s, usageError("for example: -o results", "no directory for the results")
	case f.captures < 0, f.parallel < 0:
		return s, usageError("give a number from 1", "--captures and --parallel cannot be negative")
	case f.resume && (f.only != "" || f.captures != 0 || f.seed != 0):
		return s, usageError("leave out --only, -n and --seed", "a run is resumed with the selection that it was begun with")
	}
	return s, nil
}

func measurePlan(ctx context.Context, env *environment, name string, f measureFlags) error {
	p, text, err := loadPlan(name)
	if err != nil {
		return err
	}
	sel, err := f.selection()
	if err != nil {
		return err
	}
	if err := checkPrivileges(env); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	dir, err := filepath.Abs(f.output)
	if err != nil {
		return err
	}
	say := func(s string) { fmt.Fprintf(env.Stderr, "sockwatch: %s\n", oneLine(s)) }
	ctx, stop := untilSignal(ctx, env, say)
	defer stop()
	view := newProgressView(env, p)
	v, c := build()
	res, err := measure.Run(ctx, measure.Config{
		Plan: p, PlanText: text, Dir: dir, Selection: sel, Resume: f.resume, Parallel: f.parallel,
		Backend: f.backend, Binary: self, Version: v, Commit: c, Command: append([]string{"sockwatch"}, env.Args...),
		Notice: say, Progress: view.show, Stderr: stderrFile(env),
	})
	view.end()
	again := "sockwatch measure " + quoteArg(name) + " -o " + quoteArg(f.output) + " --resume"
	if f.backend != lab.Netns {
		again += " --backend " + f.backend
	}
	switch {
	case errors.Is(err, measure.ErrExists):
		return fail(exitOutput, "name a directory that does not exist, or go on with --resume", "%w", err)
	case errors.Is(err, measure.ErrFinished):
		return fail(exitOutput, "name another directory for another run", "%w", err)
	case errors.Is(err, measure.ErrBusy):
		return fail(exitOutput, "wait until it is over, or stop it", "%w", err)
	case errors.Is(err, measure.ErrDir), errors.Is(err, measure.ErrOther):
		return fail(exitOutput, "", "%w", err)
	case errors.Is(err, measure.ErrNothing):
		return usageError("the cells are: "+strings.Join(cellNames(p), ", "), "--only %s: %w", f.only, err)
	case res == nil:
		return err
	case err != nil:
		status, _ := classify(err)
		if errors.Is(err, context.Canceled) {
			status, err = exitIncomplete, errors.New("interrupted")
		}
		return fail(status, "to go on: sudo "+again, "%w; %d of %d captures are kept in %s", err, res.Kept+res.Done, res.Total, f.output)
	}
	if _, err := fmt.Fprintf(output{env}, "%s: %d captures, %d invalid, %d not as predicted, %d not explained, %d with incomplete evidence\n",
		filepath.Join(f.output, "summary.md"), res.Kept+res.Done, res.Invalid, res.Differ, res.Undecided, res.Incomplete); err != nil {
		return err
	}
	if res.Invalid > 0 {
		return fail(exitIncomplete, "the column valid of captures.tsv says why", "%d of %d captures are invalid", res.Invalid, res.Total)
	}
	return nil
}

func cellNames(p *plan.Plan) (names []string) {
	for _, c := range p.Cells {
		names = append(names, c.Name)
	}
	return names
}

// progressView tells how far a run is: a line for each capture that is over,
// and on a terminal one below them that changes.
type progressView struct {
	env   *environment
	plan  *plan.Plan
	live  bool
	drawn bool
}

func newProgressView(env *environment, p *plan.Plan) *progressView {
	return &progressView{env: env, plan: p, live: env.IsTerminal(env.Stderr)}
}

func (v *progressView) show(p measure.Progress) {
	if p.Last != nil {
		v.clear()
		fmt.Fprintf(v.env.Stderr, "%*d/%d  %s\n", len(fmt.Sprint(p.Total)), p.Done, p.Total, oneLine(captureLine(p.Last)))
	}
	if v.live {
		v.clear()
		fmt.Fprintf(v.env.Stderr, "%d of %d done, %d running, about %s left", p.Done, p.Total, p.Running, p.Left.Round(time.Second))
		v.drawn = true
	}
}

func captureLine(r *measure.Row) string {
	if r.Valid != measure.Yes {
		return fmt.Sprintf("%-32s invalid: %s", r.Capture, r.Valid)
	}
	s := fmt.Sprintf("%-32s landed: %s", r.Capture, r.Landed)
	if r.Applied >= 0 {
		s += fmt.Sprintf(", %.3f s after the send", r.Applied)
	}
	if r.Agrees != measure.Yes {
		s += " (" + r.Agrees + ")"
	}
	return s
}

// clear takes the changing line away.
func (v *progressView) clear() {
	if v.drawn {
		fmt.Fprint(v.env.Stderr, "\r\x1b[K")
		v.drawn = false
	}
}

func (v *progressView) end() { v.clear() }
