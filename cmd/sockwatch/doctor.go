package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"

	"github.com/sockwatch/sockwatch/internal/evidence"
	"github.com/sockwatch/sockwatch/internal/loader"
	"github.com/sockwatch/sockwatch/internal/session"
	"github.com/sockwatch/sockwatch/internal/target"
)

func doctorCommand(env *environment) *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Say what this kernel, these privileges and this machine allow",
		Long: `Say what this kernel, these privileges and this machine allow: for each BPF
program how it is attached here, or exactly why it cannot be. Each is tried for
real and detached again; nothing is watched.

Then the self-test: a retransmission, a reset and the aborts it causes are forced
in two network namespaces made for the purpose, and must be seen.

The exit status is 0 if sockwatch can observe here, even with blind spots, and 3
if it cannot.`,
		Example:           "  sudo sockwatch doctor",
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d := diagnosis{w: cmd.OutOrStdout(), colour: env.colour(env.Stdout)}
			return d.run(cmd.Context(), env)
		},
	}
}

// diagnosis prints one row for each check.
type diagnosis struct {
	w      io.Writer
	colour bool
	failed int
}

func (d *diagnosis) run(ctx context.Context, env *environment) error {
	host, err := evidence.Host()
	if err != nil {
		return err
	}
	d.ok("kernel", "%s %s, %d ticks a second", host.Kernel, host.Machine, host.HZ)
	if host.BTF == "" {
		d.fail("BTF", "%v", loader.ErrNoBTF)
	} else {
		d.ok("BTF", "/sys/kernel/btf/vmlinux, SHA-256 %s...", host.BTF[:12])
	}
	d.lockdown(host.Lockdown)
	if err := d.privileges(env); err != nil {
		return err
	}
	d.limits()
	d.docker(ctx)

	features, blind, err := loader.Probe()
	if spot := evidence.ForeignPIDs(); spot != "" {
		blind = append(blind, spot)
	}
	if err != nil && host.BTF != "" {
		d.fail("programs", "none could be tried: %v", err)
	}
	for _, f := range features {
		d.feature(f)
	}
	if d.failed == 0 {
		d.selfTest(ctx)
	}
	if len(blind) > 0 {
		fmt.Fprintln(d.w, "\nBlind spots, also stated in the evidence:")
		for _, b := range blind {
			fmt.Fprintf(d.w, "  - %s\n", oneLine(b))
		}
	}

	fmt.Fprintln(d.w)
	if d.failed > 0 {
		hint := ""
		if env.Geteuid() != 0 {
			hint = "run it with sudo: without root the kernel refuses even to be asked"
		}
		return fail(exitMachine, hint, "cannot observe on this machine: %d of the checks failed", d.failed)
	}
	fmt.Fprintln(d.w, "sockwatch can observe on this machine.")
	return nil
}

func (d *diagnosis) lockdown(mode string) {
	switch mode {
	case "confidentiality":
		d.ok("lockdown", "confidentiality: no program of sockwatch reads what it forbids")
	case "unknown":
		d.ok("lockdown", "not known (no /sys/kernel/security/lockdown)")
	default:
		d.ok("lockdown", "%s", mode)
	}
}

// needed are the capabilities sockwatch works with.
var needed = []struct {
	c     cap.Value
	why   string
	admin bool // CAP_SYS_ADMIN stands in for it
}{
	{cap.SYS_ADMIN, "entering a network namespace", false},
	{cap.NET_ADMIN, "attaching inside a namespace", false},
	{cap.BPF, "loading programs", true},
	{cap.PERFMON, "reading kernel structures", true},
	{cap.SYS_PTRACE, "who owns a socket, and the namespace of a pid", false},
}

func (d *diagnosis) privileges(env *environment) error {
	have := cap.GetProc()
	admin, err := have.GetFlag(cap.Effective, cap.SYS_ADMIN)
	if err != nil {
		return fmt.Errorf("look up capabilities: %w", err)
	}
	missing := 0
	for _, n := range needed {
		ok, err := have.GetFlag(cap.Effective, n.c)
		if err == nil && !ok && !(n.admin && admin) {
			missing++
			d.fail("privileges", "%s is missing, needed for %s", strings.ToUpper(n.c.String()), n.why)
		}
	}
	if missing == 0 {
		d.ok("privileges", "all there (user %d)", env.Geteuid())
	}
	return nil
}

// filesPerTarget is how many descriptors a watched namespace takes at most:
// itself, its process, four links.
const filesPerTarget = 8

func (d *diagnosis) limits() {
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		d.warn("open files", "%v", err)
		return
	}
	d.ok("open files", "limit %d: enough for about %d namespaces at once", lim.Max, lim.Max/filesPerTarget)
}

func (d *diagnosis) docker(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	// That there is no such container is an answer of the engine too.
	found, err := target.Resolve(ctx, []target.Spec{{Kind: target.Docker, Name: "sockwatch.doctor"}})
	for _, ns := range found {
		ns.Close()
	}
	var te *target.Error
	switch {
	case errors.As(err, &te) && errors.Is(err, target.ErrEngine):
		d.warn("docker", "containers cannot be named: %s", te.Detail)
	case err == nil, errors.Is(err, target.ErrNotFound):
		d.ok("docker", "the engine answers")
	default:
		d.warn("docker", "%v", err)
	}
}

func (d *diagnosis) selfTest(ctx context.Context) {
	t, err := session.SelfTest(ctx)
	switch {
	case err != nil:
		d.fail("self-test", "%v", err)
	case !t.Passed:
		d.fail("self-test", "%v", &session.SelfTestError{Missing: t.Missing})
	default:
		d.ok("self-test", "forced and seen: %s", strings.Join(t.Seen, ", "))
	}
}

func (d *diagnosis) feature(f loader.Feature) {
	switch {
	case f.Err == nil && strings.HasPrefix(f.Hook, f.Method):
		d.ok(f.Name, "%s", f.Hook)
	case f.Err == nil:
		d.ok(f.Name, "%s: %s", f.Method, f.Hook)
	case f.Required:
		d.fail(f.Name, "%v", f.Err)
	default:
		d.warn(f.Name, "%v; not seen without it: %s", f.Err, f.Lost)
	}
}

func (d *diagnosis) ok(what, format string, args ...any)   { d.row("ok", "32", what, format, args) }
func (d *diagnosis) warn(what, format string, args ...any) { d.row("warn", "33", what, format, args) }

func (d *diagnosis) fail(what, format string, args ...any) {
	d.failed++
	d.row("FAIL", "31", what, format, args)
}

func (d *diagnosis) row(mark, sgr, what, format string, args []any) {
	mark = fmt.Sprintf("%-4s", mark)
	if d.colour {
		mark = "\x1b[" + sgr + "m" + mark + "\x1b[m"
	}
	fmt.Fprintf(d.w, "%s  %-22s  %s\n", mark, what, oneLine(fmt.Sprintf(format, args...)))
}
