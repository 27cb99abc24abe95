package session

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/evidence"
)

// ControlDir is where running instances listen, each on PID.sock.
const ControlDir = "/run/sockwatch"

// MarkKinds are the values of [events.Mark].Kind.
var MarkKinds = []string{"note", "intended", "applied", "verified", "heal-intended", "healed", "recovered"}

// MaxMarkText is the longest text of a mark, in bytes.
const MaxMarkText = 4096

// ErrNoInstance means that no sockwatch runs that could take a mark.
var ErrNoInstance = errors.New("no sockwatch is running")

// errEnding refuses a mark that came too late.
var errEnding = errors.New("the session is ending")

const (
	controlTimeout = 10 * time.Second // for a whole exchange
	markTimeout    = 3 * time.Second  // for all answers to a mark: a script waits for them
	maxRequest     = 64 << 10         // bytes; a text may be escaped to six times its length
)

// A request and its reply are one line of JSON each.
type (
	controlRequest struct {
		Mark *controlMark `json:"mark"`
	}
	controlMark struct {
		Text   string `json:"text"`
		Kind   string `json:"kind"`
		MonoNS uint64 `json:"mono_ns"`
		By     string `json:"by"`
	}
	controlReply struct {
		OK     bool   `json:"ok"`
		Ending bool   `json:"ending,omitempty"` // it is as if it did not run any more
		Error  string `json:"error,omitempty"`
	}
)

// MarkRequest is a mark that somebody wants placed.
type MarkRequest struct {
	Text, Kind, By string // as in [events.Mark]
	MonoNS         uint64 // when it was asked for

	reply chan error // has room for one
}

// Reply answers the request: nil once the mark is in the stream. Only the
// first call counts.
func (r MarkRequest) Reply(err error) {
	select {
	case r.reply <- err:
	default:
	}
}

// NewMark makes a request for [Config].Marks. Done gives its one reply: nil once
// the mark is in the stream.
func NewMark(m events.Mark, monoNS uint64) (r MarkRequest, done <-chan error) {
	reply := make(chan error, 1)
	return MarkRequest{Text: m.Text, Kind: m.Kind, By: m.By, MonoNS: monoNS, reply: reply}, reply
}

// Control is the socket through which marks reach a running session.
type Control struct {
	ln    *net.UnixListener
	path  string
	marks chan MarkRequest
	done  chan struct{}
	wg    sync.WaitGroup
}

// ListenControl listens on dir/PID.sock, making dir if need be. Only root and
// the user this process runs as may connect.
func ListenControl(dir string) (*Control, error) {
	if err := makeControlDir(dir); err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	path := filepath.Join(dir, strconv.Itoa(os.Getpid())+".sock")
	ln, err := listenUnix(path)
	if errors.Is(err, unix.EADDRINUSE) {
		// The pid is ours now, so whoever left it is dead.
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("control socket: remove a stale one: %w", err)
		}
		ln, err = listenUnix(path)
	}
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	c := &Control{ln: ln, path: path, marks: make(chan MarkRequest), done: make(chan struct{})}
	c.wg.Go(c.accept)
	return c, nil
}

// makeControlDir makes dir, or checks that nobody else could put sockets into
// the one that is there.
func makeControlDir(dir string) error {
	err := os.Mkdir(dir, 0o755)
	if err == nil {
		return os.Chmod(dir, 0o755) // whatever the umask
	}
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	fi, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	owner := fi.Sys().(*syscall.Stat_t).Uid
	switch {
	case !fi.IsDir():
		return fmt.Errorf("%s is not a directory", dir)
	case owner != 0 && int(owner) != os.Geteuid():
		return fmt.Errorf("%s belongs to user %d, not to root", dir, owner)
	case fi.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("%s is writable by others (mode %04o)", dir, fi.Mode().Perm())
	}
	return nil
}

func listenUnix(path string) (*net.UnixListener, error) {
	// The mode of the unbound socket becomes the mode of the file: there is
	// no moment at which others could connect.
	lc := net.ListenConfig{Control: func(_, _ string, rc syscall.RawConn) error {
		var err error
		if e := rc.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }); e != nil {
			return e
		}
		return err
	}}
	ln, err := lc.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, err
	}
	return ln.(*net.UnixListener), nil
}

// Marks gives the requests, until Close closes it. The receiver must Reply to
// each.
func (c *Control) Marks() <-chan MarkRequest { return c.marks }

// Close stops listening, removes the socket and refuses the requests that have
// no reply yet.
func (c *Control) Close() error {
	close(c.done)
	err := c.ln.Close() // removes the file
	c.wg.Wait()
	close(c.marks)
	if err != nil {
		return fmt.Errorf("close control socket: %w", err)
	}
	return nil
}

func (c *Control) accept() {
	for {
		conn, err := c.ln.AcceptUnix()
		switch {
		case err == nil:
			c.wg.Go(func() { c.serve(conn) })
		case errors.Is(err, net.ErrClosed):
			return
		default:
			// Out of descriptors or the like: give it time to pass.
			select {
			case <-c.done:
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	}
}

func (c *Control) serve(conn *net.UnixConn) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(controlTimeout))
	// A client that hangs must not outlive the session.
	stop := make(chan struct{})
	defer close(stop)
	c.wg.Go(func() {
		select {
		case <-c.done:
			_ = conn.SetReadDeadline(time.Now())
		case <-stop:
		}
	})

	reply := controlReply{OK: true}
	if err := c.handle(conn); err != nil {
		reply = controlReply{Error: err.Error(), Ending: errors.Is(err, errEnding)}
	}
	b, _ := json.Marshal(reply)        // two plain fields
	_, _ = conn.Write(append(b, '\n')) // a client that has gone needs no reply
}

func (c *Control) handle(conn *net.UnixConn) error {
	// Read first: closing with unread data would take the refusal away.
	line, err := bufio.NewReader(io.LimitReader(conn, maxRequest)).ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	if err := checkPeer(conn); err != nil {
		return err
	}
	var req controlRequest
	if err := json.Unmarshal(line, &req); err != nil {
		return fmt.Errorf("parse request: %w", err)
	}
	if req.Mark == nil {
		return errors.New("unknown request")
	}
	m := events.Mark{Text: req.Mark.Text, Kind: req.Mark.Kind, By: req.Mark.By}
	if err := CheckMark(m); err != nil {
		return err
	}
	now, err := evidence.MonoNow()
	if err != nil {
		return err
	}
	if req.Mark.MonoNS == 0 || req.Mark.MonoNS > now {
		return fmt.Errorf("mono_ns %d is not a time that has been", req.Mark.MonoNS)
	}

	r := MarkRequest{
		Text: m.Text, Kind: m.Kind, By: m.By,
		MonoNS: req.Mark.MonoNS,
		reply:  make(chan error, 1),
	}
	select {
	case c.marks <- r:
	case <-c.done:
		return errEnding
	case <-time.After(controlTimeout):
		return errors.New("the session takes no marks: it is stalled")
	}
	select {
	case err := <-r.reply:
		return err
	case <-c.done:
		r.Reply(errEnding) // unless it came just now
		return <-r.reply
	}
}

// checkPeer lets root in, and the user this process runs as.
func checkPeer(conn *net.UnixConn) error {
	rc, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var cerr error
	if err := rc.Control(func(fd uintptr) {
		cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return err
	}
	if cerr != nil {
		return fmt.Errorf("who is asking: %w", cerr)
	}
	if cred.Uid != 0 && int(cred.Uid) != os.Geteuid() {
		return fmt.Errorf("user %d may not place marks", cred.Uid)
	}
	return nil
}

// CheckMark says what is wrong with a mark, if anything.
func CheckMark(m events.Mark) error {
	switch {
	case strings.TrimSpace(m.Text) == "":
		return errors.New("a mark needs a text")
	case len(m.Text) > MaxMarkText:
		return fmt.Errorf("a mark's text has at most %d bytes, not %d", MaxMarkText, len(m.Text))
	case !utf8.ValidString(m.Text):
		return errors.New("a mark's text is UTF-8")
	case !slices.Contains(MarkKinds, m.Kind):
		return fmt.Errorf("mark kind %q is none of %s", m.Kind, strings.Join(MarkKinds, ", "))
	}
	return nil
}

// Mark places m in the evidence of every running instance, stamped with the
// kernel's clock at the call, and returns how many took it. If some did not,
// there is an error beside the number. [ErrNoInstance] means that none runs.
func Mark(ctx context.Context, m events.Mark) (int, error) {
	return sendMark(ctx, ControlDir, m)
}

// MarkAt is Mark for something that was so at monoNS, by the kernel's clock.
func MarkAt(ctx context.Context, m events.Mark, monoNS uint64) (int, error) {
	return sendMarkAt(ctx, ControlDir, m, monoNS)
}

func sendMark(ctx context.Context, dir string, m events.Mark) (int, error) {
	now, err := evidence.MonoNow()
	if err != nil {
		return 0, err
	}
	return sendMarkAt(ctx, dir, m, now)
}

func sendMarkAt(ctx context.Context, dir string, m events.Mark, now uint64) (int, error) {
	if err := CheckMark(m); err != nil {
		return 0, err
	}
	line, err := json.Marshal(controlRequest{&controlMark{Text: m.Text, Kind: m.Kind, MonoNS: now, By: m.By}})
	if err != nil {
		return 0, err
	}
	sockets, err := controlSockets(dir)
	if err != nil {
		return 0, fmt.Errorf("look for running instances: %w", err)
	}

	// All at once: one that is stalled must not delay the others.
	ctx, cancel := context.WithTimeout(ctx, markTimeout)
	defer cancel()
	errs := make([]error, len(sockets))
	var wg sync.WaitGroup
	for i, s := range sockets {
		wg.Go(func() { errs[i] = s.send(ctx, append(slices.Clone(line), '\n')) })
	}
	wg.Wait()

	placed := 0
	var failed []error
	for _, err := range errs {
		switch {
		case err == nil:
			placed++
		case !errors.Is(err, errStale):
			failed = append(failed, err)
		}
	}
	if placed == 0 && len(failed) == 0 {
		return 0, ErrNoInstance
	}
	return placed, errors.Join(failed...)
}

type controlSocket struct {
	path string
	pid  int
}

var (
	socketName = regexp.MustCompile(`^([1-9][0-9]{0,9})\.sock$`)
	errStale   = errors.New("stale socket")
)

func controlSockets(dir string) ([]controlSocket, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var sockets []controlSocket
	for _, e := range entries {
		m := socketName.FindStringSubmatch(e.Name())
		if m == nil || e.Type() != fs.ModeSocket {
			continue
		}
		pid, err := strconv.Atoi(m[1])
		if err != nil {
			continue
		}
		sockets = append(sockets, controlSocket{filepath.Join(dir, e.Name()), pid})
	}
	return sockets, nil
}

// send sends one request and waits for the reply. A socket that nobody listens
// on is stale; it is removed if its process is dead too, because one that is
// just starting has bound it but does not listen yet.
func (s controlSocket) send(ctx context.Context, line []byte) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", s.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errStale // it ended just now
	case errors.Is(err, unix.ECONNREFUSED):
		if errors.Is(unix.Kill(s.pid, 0), unix.ESRCH) {
			os.Remove(s.path) // without permission it stays, and stays harmless
		}
		return errStale
	case err != nil:
		return fmt.Errorf("sockwatch with pid %d: %w", s.pid, err)
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })()

	if _, err := conn.Write(line); err != nil {
		return fmt.Errorf("sockwatch with pid %d: %w", s.pid, err)
	}
	answer, err := bufio.NewReader(io.LimitReader(conn, maxRequest)).ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("sockwatch with pid %d gave no answer, whether it placed the mark is not known: %w", s.pid, err)
	}
	var reply controlReply
	if err := json.Unmarshal(answer, &reply); err != nil {
		return fmt.Errorf("sockwatch with pid %d: parse its answer: %w", s.pid, err)
	}
	if reply.Ending {
		return errStale
	}
	if !reply.OK {
		return fmt.Errorf("sockwatch with pid %d refused: %s", s.pid, reply.Error)
	}
	return nil
}
