package lab

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

var errFrozen = errors.New("it is frozen")

// Exec makes this process the program of argv, as a process of the node: in
// its network namespace, frozen with it, killed with it. It returns only if
// that is not possible.
func (n *Node) Exec(ctx context.Context, argv, env []string) error {
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return err
	}
	runtime.LockOSThread() // it is this thread that lives on
	if err := n.lab.backend.enter(ctx, n); err != nil {
		return fmt.Errorf("enter node %s: %w", n.Name, err)
	}
	return fmt.Errorf("run %s: %w", path, unix.Exec(path, argv, env))
}
