package evidence

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Limits are this process's limits on what an observer runs out of first.
type Limits struct {
	Files   uint64 // RLIMIT_NOFILE: each watched namespace takes some descriptors
	Memlock uint64 // RLIMIT_MEMLOCK, bytes: counts BPF maps before Linux 5.11
}

// RaiseLimits raises RLIMIT_NOFILE to at least files, or as close to it as the
// kernel and the privileges allow, and RLIMIT_MEMLOCK to unlimited. It returns
// what is in force afterwards. Falling short is not an error: that shows when
// the limit is hit, which it may never be.
func RaiseLimits(files uint64) (Limits, error) {
	files = min(files, maxFiles())
	got, err := raise(unix.RLIMIT_NOFILE, files)
	if err != nil {
		return Limits{}, fmt.Errorf("raise RLIMIT_NOFILE to %d: %w", files, err)
	}
	lock, err := raise(unix.RLIMIT_MEMLOCK, unix.RLIM_INFINITY)
	if err != nil {
		return Limits{}, fmt.Errorf("raise RLIMIT_MEMLOCK: %w", err)
	}
	return Limits{Files: got, Memlock: lock}, nil
}

// raise never lowers a limit. Above the hard limit it needs CAP_SYS_RESOURCE;
// without it the hard limit is what can be had.
func raise(resource int, want uint64) (uint64, error) {
	var old unix.Rlimit
	if err := unix.Getrlimit(resource, &old); err != nil {
		return 0, err
	}
	if old.Cur >= want {
		return old.Cur, nil
	}
	lim := unix.Rlimit{Cur: want, Max: max(old.Max, want)}
	err := unix.Setrlimit(resource, &lim)
	if errors.Is(err, unix.EPERM) {
		lim = unix.Rlimit{Cur: min(want, old.Max), Max: old.Max}
		err = unix.Setrlimit(resource, &lim)
	}
	if err != nil {
		return 0, err
	}
	return lim.Cur, nil
}

// maxFiles is what the kernel accepts as RLIMIT_NOFILE.
func maxFiles() uint64 {
	b, err := os.ReadFile("/proc/sys/fs/nr_open")
	if err == nil {
		if n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64); err == nil {
			return n
		}
	}
	return 1 << 20 // the kernel's default
}
