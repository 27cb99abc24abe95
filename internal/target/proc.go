package target

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// wait calls f at once and again each time the kernel signals file, until f
// reports true or file is closed. What is signalled while f runs is not lost:
// f is called once more.
func wait(file *os.File, f func() (done bool)) error {
	rc, err := file.SyscallConn()
	if err != nil {
		return err
	}
	return rc.Read(func(uintptr) bool { return f() })
}

// openMounts opens the mount table, which becomes ready whenever something is
// mounted or unmounted in this mount namespace.
func openMounts() (*os.File, error) {
	fd, err := unix.Open("/proc/self/mountinfo", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fdError("open the mount table", err)
	}
	return os.NewFile(uintptr(fd), "mountinfo"), nil
}

// errExited is returned for a process that does not exist any more.
var errExited = errors.New("no such process")

// openProcess opens the pidfd of process pid.
func openProcess(pid int) (*os.File, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	switch {
	case err == nil:
		return os.NewFile(uintptr(fd), "pidfd"), nil
	case errors.Is(err, unix.ESRCH):
		return nil, errExited
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
		return nil, fmt.Errorf("%d is a thread; give its process", pid)
	}
	return nil, fdError(fmt.Sprintf("open process %d", pid), err)
}

// exited reports whether the process of pidfd has ended.
func exited(pidfd *os.File) bool {
	done := true
	rc, err := pidfd.SyscallConn()
	if err != nil {
		return true
	}
	if rc.Control(func(fd uintptr) { done = readable(fd) }) != nil {
		return true
	}
	return done
}

// waitExit returns nil when the process of pidfd has ended, or an error when
// pidfd is closed before.
func waitExit(pidfd *os.File) error {
	return wait(pidfd, func() bool { return exited(pidfd) })
}

func readable(fd uintptr) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 0)
		if !errors.Is(err, unix.EINTR) {
			return err == nil && n == 1
		}
	}
}

// openPID opens the namespace of process pid and its pidfd, which proves that
// the process was the same before and after.
func openPID(pid int) (*Namespace, *os.File, error) {
	pidfd, err := openProcess(pid)
	if err != nil {
		return nil, nil, err
	}
	ns, err := openNamespace(procPath(pid))
	if exited(pidfd) {
		if err == nil {
			ns.Close()
		}
		err = errExited
	}
	if err != nil {
		pidfd.Close()
		return nil, nil, err
	}
	ns.PID = pid
	return ns, pidfd, nil
}
