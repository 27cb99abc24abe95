package kernelstest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// ExitLine begins the guest's last line on the results port; its exit status
// follows. Without it the machine crashed or ran out of time.
const ExitLine = "kernelstest: exit "

// Machine is one virtual machine.
type Machine struct {
	Kernel    string // vmlinuz
	Initramfs string
	Cmdline   string // added to the kernel's command line
	Console   string // file for the kernel's messages
	Memory    int    // MiB
	Limit     time.Duration
}

// ErrNoExit is returned when the machine ended without saying how it went.
var ErrNoExit = errors.New("the machine ended without an exit status")

// Run boots the machine, copies what its guest reports to out, and returns the
// guest's exit status.
func (m *Machine) Run(ctx context.Context, out io.Writer) (status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, m.Limit)
	defer cancel()
	// The machine has no disk and no network. A panic ends it, as reboot=t
	// becomes an exit under -no-reboot.
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64",
		"-accel", "tcg,thread=multi", "-cpu", "max", "-machine", "q35", "-m", strconv.Itoa(m.Memory), "-smp", "2",
		"-nodefaults", "-no-reboot", "-display", "none", "-nic", "none",
		"-serial", "file:"+m.Console, "-serial", "stdio",
		"-kernel", m.Kernel, "-initrd", m.Initramfs,
		"-append", strings.TrimSpace("console=ttyS0 quiet loglevel=4 panic=-1 reboot=t tsc=unstable random.trust_cpu=on "+m.Cmdline),
	)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	cmd.WaitDelay = 5 * time.Second
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("start qemu: %w: install qemu-system-x86", err)
	}
	status = -1
	readErr := lines(stdout, func(line string) {
		if rest, ok := strings.CutPrefix(line, ExitLine); ok {
			if n, err := strconv.Atoi(strings.TrimSpace(rest)); err == nil {
				status = n
				return
			}
		}
		fmt.Fprintln(out, line)
	})
	err = cmd.Wait()
	switch {
	case status >= 0:
		return status, nil
	case ctx.Err() != nil:
		return 0, fmt.Errorf("%w within %v: %w", ErrNoExit, m.Limit, context.Cause(ctx))
	case err != nil:
		return 0, fmt.Errorf("qemu: %w: %s", err, stderr.String())
	case readErr != nil:
		return 0, readErr
	}
	return 0, ErrNoExit
}

// ConsoleTail returns the last lines of the kernel's messages.
func (m *Machine) ConsoleTail(n int) string {
	text, err := os.ReadFile(m.Console)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(text), "\r\n"), "\n")
	return strings.Join(all[max(0, len(all)-n):], "\n")
}
