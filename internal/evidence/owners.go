package evidence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/internal/events"
)

// holder is a process that has a socket open.
type holder struct {
	pid, ppid uint32
	start     uint64 // clock ticks after boot: pids wrap, this does not
	comm      string
}

// SocketOwners looks through /proc for who has which socket open and returns
// the owner by socket inode, Via "proc". It is for sockets born before the
// trace, whose connect or listen nobody saw.
//
// A socket may be open in several processes, and /proc does not say who uses
// it. In this order:
//
//   - The process whose parent has the socket open too is taken for an
//     inheritor, and its parent preferred: a server rather than its workers, a
//     program rather than the helpers it forked. The system's init (pid 1) is
//     the exception: it keeps sockets only on behalf of the services it passed
//     them to.
//   - Of the rest, the one that started first.
//
// It is one pass over /proc: a process that starts, ends or opens a socket
// meanwhile may be missed, and sockets passed to a process that this one may
// not inspect are left out. Pids are those of the mounted /proc.
func SocketOwners(ctx context.Context) (map[uint64]events.Owner, error) {
	holders, err := socketHolders(ctx)
	if err != nil {
		return nil, err
	}
	owners := make(map[uint64]events.Owner, len(holders))
	for inode, hs := range holders {
		h := pickOwner(hs)
		owners[inode] = events.Owner{PID: h.pid, Comm: h.comm, Via: "proc"}
	}
	return owners, nil
}

func pickOwner(hs []*holder) *holder {
	holds := func(pid uint32) bool {
		for _, h := range hs {
			if h.pid == pid && pid != 1 {
				return true
			}
		}
		return false
	}
	// Smaller is better: original before inheritor before init, then older.
	rank := func(h *holder) int {
		switch {
		case h.pid == 1:
			return 2
		case holds(h.ppid):
			return 1
		default:
			return 0
		}
	}
	best := hs[0]
	for _, h := range hs[1:] {
		a, b := rank(h), rank(best)
		if a < b || a == b && (h.start < best.start || h.start == best.start && h.pid < best.pid) {
			best = h
		}
	}
	return best
}

func socketHolders(ctx context.Context) (map[uint64][]*holder, error) {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("look for socket owners: %w", err)
	}
	defer proc.Close()
	names, err := proc.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("look for socket owners: %w", err)
	}

	holders := make(map[uint64][]*holder)
	var s procScan
	for _, name := range names {
		if name[0] < '0' || name[0] > '9' {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("look for socket owners: %w", err)
		}
		pid, err := strconv.ParseUint(name, 10, 32)
		if err != nil {
			continue
		}
		inodes, err := s.sockets("/proc/" + name + "/fd")
		if err != nil {
			return nil, fmt.Errorf("look for sockets of process %s: %w", name, err)
		}
		if len(inodes) == 0 {
			continue
		}
		h := &holder{pid: uint32(pid)}
		if !h.stat(s.buf[:]) {
			continue // gone meanwhile
		}
		for _, inode := range inodes {
			// dup and fork make the same socket appear twice in a process.
			if hs := holders[inode]; len(hs) == 0 || hs[len(hs)-1] != h {
				holders[inode] = append(hs, h)
			}
		}
	}
	return holders, nil
}

// procScan keeps buffers from process to process.
type procScan struct {
	buf    [1024]byte
	inodes []uint64
}

// sockets returns the inodes of the sockets in an fd directory, valid until
// the next call. A process that is gone or may not be inspected has none.
func (s *procScan) sockets(dir string) ([]uint64, error) {
	f, err := os.Open(dir)
	if err != nil {
		if vanished(err) {
			return nil, nil
		}
		return nil, err
	}
	defer f.Close()

	names, err := f.Readdirnames(-1)
	if err != nil && !vanished(err) {
		return nil, err
	}
	s.inodes = s.inodes[:0]
	for _, name := range names {
		n, err := unix.Readlinkat(int(f.Fd()), name, s.buf[:])
		if err != nil {
			continue // closed meanwhile
		}
		if inode, ok := socketInode(s.buf[:n]); ok {
			s.inodes = append(s.inodes, inode)
		}
	}
	return s.inodes, nil
}

func vanished(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) ||
		errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM)
}

// socketInode parses "socket:[12345]".
func socketInode(link []byte) (uint64, bool) {
	rest, ok := bytes.CutPrefix(link, []byte("socket:["))
	if !ok {
		return 0, false
	}
	rest, ok = bytes.CutSuffix(rest, []byte("]"))
	if !ok || len(rest) == 0 {
		return 0, false
	}
	var n uint64
	for _, c := range rest {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + uint64(c-'0')
	}
	return n, true
}

// stat fills in comm, ppid and start from /proc/PID/stat.
func (h *holder) stat(buf []byte) bool {
	fd, err := unix.Open("/proc/"+strconv.FormatUint(uint64(h.pid), 10)+"/stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	n, err := unix.Read(fd, buf)
	if err != nil {
		return false
	}
	return h.parseStat(buf[:n])
}

// parseStat parses "pid (comm) state ppid ... starttime ...". comm may hold
// anything, parentheses and spaces too, so its end is the last parenthesis.
func (h *holder) parseStat(b []byte) bool {
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 0 || end < open {
		return false
	}
	const ppid, starttime = 1, 19 // fields after comm, from 0
	fields := bytes.Fields(b[end+1:])
	if len(fields) <= starttime {
		return false
	}
	pp, err := strconv.ParseUint(string(fields[ppid]), 10, 32)
	if err != nil {
		return false
	}
	start, err := strconv.ParseUint(string(fields[starttime]), 10, 64)
	if err != nil {
		return false
	}
	h.comm, h.ppid, h.start = string(b[open+1:end]), uint32(pp), start
	return true
}
