package session

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/evidence"
)

func listenControl(t *testing.T, dir string) *Control {
	t.Helper()
	c, err := ListenControl(dir)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// take answers every request with err and returns what it got after Close.
func take(c *Control, err error) func() []MarkRequest {
	var got []MarkRequest
	done := make(chan struct{})
	go func() {
		defer close(done)
		for r := range c.Marks() {
			got = append(got, r)
			r.Reply(err)
		}
	}()
	return func() []MarkRequest {
		<-done
		return got
	}
}

var note = events.Mark{Text: `link cut "eth0" é`, Kind: "applied", By: "fault.sh[12]"}

func TestMark(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	c := listenControl(t, dir)
	got := take(c, nil)

	before, err := evidence.MonoNow()
	if err != nil {
		t.Fatal(err)
	}
	n, err := sendMark(t.Context(), dir, note)
	if n != 1 || err != nil {
		t.Fatalf("%d instances, %v", n, err)
	}
	after, err := evidence.MonoNow()
	if err != nil {
		t.Fatal(err)
	}

	path := filepath.Join(dir, strconv.Itoa(os.Getpid())+".sock")
	fi, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if fi.Mode().Perm() != 0o600 {
		t.Errorf("socket has mode %v", fi.Mode())
	}
	if fi, err := os.Stat(dir); err != nil || fi.Mode().Perm() != 0o755 {
		t.Errorf("directory: %v %v", fi.Mode(), err)
	}

	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	rs := got()
	if len(rs) != 1 {
		t.Fatalf("%d requests", len(rs))
	}
	r := rs[0]
	if (events.Mark{Text: r.Text, Kind: r.Kind, By: r.By}) != note {
		t.Errorf("got %+v, want %+v", r, note)
	}
	if r.MonoNS < before || r.MonoNS > after {
		t.Errorf("mono %d is not between %d and %d", r.MonoNS, before, after)
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after Close the socket is there: %v", err)
	}
	if n, err := sendMark(t.Context(), dir, note); n != 0 || !errors.Is(err, ErrNoInstance) {
		t.Errorf("after Close: %d instances, %v", n, err)
	}
}

func TestMarkConcurrent(t *testing.T) {
	dir := t.TempDir()
	c := listenControl(t, dir)
	got := take(c, nil)
	const clients = 50
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			m := note
			m.Text = strconv.Itoa(i)
			if n, err := sendMark(t.Context(), dir, m); n != 1 || err != nil {
				t.Errorf("mark %d: %d instances, %v", i, n, err)
			}
		})
	}
	wg.Wait()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]bool)
	for _, r := range got() {
		seen[r.Text] = true
	}
	if len(seen) != clients {
		t.Errorf("%d different marks of %d", len(seen), clients)
	}
}

func TestMarkNoInstance(t *testing.T) {
	for _, dir := range []string{t.TempDir(), filepath.Join(t.TempDir(), "absent")} {
		if n, err := sendMark(t.Context(), dir, note); n != 0 || !errors.Is(err, ErrNoInstance) {
			t.Errorf("%d instances, %v", n, err)
		}
	}
}

// The mark is acknowledged only once the session has it, and a session that
// cannot take it says why.
func TestMarkRefused(t *testing.T) {
	dir := t.TempDir()
	c := listenControl(t, dir)
	got := take(c, errors.New("disk full"))
	n, err := sendMark(t.Context(), dir, note)
	if want := fmt.Sprintf("sockwatch with pid %d refused: disk full", os.Getpid()); n != 0 || err == nil || err.Error() != want {
		t.Errorf("%d instances, %v, want %s", n, err, want)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	got()
}

// Close does not wait for clients that hang or for marks nobody took.
func TestControlClose(t *testing.T) {
	dir := t.TempDir()
	c := listenControl(t, dir)

	// One that says nothing.
	silent, err := net.Dial("unix", c.path)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	// One that waits for its reply: taken, never answered.
	result := make(chan error, 1)
	go func() {
		_, err := sendMark(t.Context(), dir, note)
		result <- err
	}()
	r := <-c.Marks()
	// One that is not taken at all.
	untaken := make(chan error, 1)
	go func() {
		_, err := sendMark(t.Context(), dir, note)
		untaken <- err
	}()

	start := time.Now()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(start); d > controlTimeout/2 {
		t.Errorf("Close took %v", d)
	}
	if err := <-result; !errors.Is(err, ErrNoInstance) {
		t.Errorf("taken: %v", err)
	}
	// It may come too late even to be read.
	if err := <-untaken; err == nil {
		t.Error("untaken: no error")
	}
	// A late answer does no harm.
	r.Reply(nil)
	r.Reply(nil)
}

func TestMarkContext(t *testing.T) {
	dir := t.TempDir()
	c := listenControl(t, dir)
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-c.Marks()
		cancel()
	}()
	n, err := sendMark(ctx, dir, note)
	if n != 0 || err == nil || !strings.Contains(err.Error(), "not known") {
		t.Errorf("%d instances, %v", n, err)
	}
}

func TestStaleSockets(t *testing.T) {
	dir := t.TempDir()
	// A process that existed and is dead.
	cmd := exec.Command("/bin/true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	dead := staleSocket(t, dir, cmd.Process.Pid)
	alive := staleSocket(t, dir, os.Getppid())
	other := filepath.Join(dir, "notes.sock")
	if err := os.WriteFile(other, nil, 0o600); err != nil {
		t.Fatal(err)
	}

	if n, err := sendMark(t.Context(), dir, note); n != 0 || !errors.Is(err, ErrNoInstance) {
		t.Errorf("%d instances, %v", n, err)
	}
	if _, err := os.Lstat(dead); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("socket of a dead process is left: %v", err)
	}
	for _, path := range []string{alive, other} {
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("removed: %v", err)
		}
	}

	// One under our own pid is replaced.
	staleSocket(t, dir, os.Getpid())
	c := listenControl(t, dir)
	got := take(c, nil)
	if n, err := sendMark(t.Context(), dir, note); n != 1 || err != nil {
		t.Errorf("%d instances, %v", n, err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if rs := got(); len(rs) != 1 {
		t.Errorf("%d requests", len(rs))
	}
}

func staleSocket(t *testing.T, dir string, pid int) string {
	t.Helper()
	path := filepath.Join(dir, strconv.Itoa(pid)+".sock")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	ln.SetUnlinkOnClose(false)
	ln.Close()
	return path
}

func TestControlRequests(t *testing.T) {
	c := listenControl(t, t.TempDir())
	defer c.Close()
	go func() {
		for r := range c.Marks() {
			r.Reply(nil)
		}
	}()
	now, err := evidence.MonoNow()
	if err != nil {
		t.Fatal(err)
	}
	mark := func(text, kind string, mono uint64) string {
		b, err := json.Marshal(controlRequest{&controlMark{Text: text, Kind: kind, MonoNS: mono, By: "x[1]"}})
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	tests := []struct{ name, request, want string }{
		{"good", mark("a", "note", now), ""},
		{"longest text", mark(strings.Repeat("\x01", MaxMarkText), "note", now), ""},
		{"not JSON", "hello", "parse request: invalid character 'h'"},
		{"no mark", "{}", "unknown request"},
		{"no text", mark("", "note", now), "a mark needs a text"},
		{"long text", mark(strings.Repeat("a", MaxMarkText+1), "note", now), "a mark's text has at most 4096 bytes, not 4097"},
		{"bad kind", mark("a", "boom", now), `mark kind "boom" is none of note, intended`},
		{"no time", mark("a", "note", 0), "mono_ns 0 is not a time that has been"},
		{"future", mark("a", "note", now+uint64(time.Hour)), "is not a time that has been"},
		{"endless", strings.Repeat("a", maxRequest+1), "read request"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			conn, err := net.Dial("unix", c.path)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := conn.Write([]byte(tt.request + "\n")); err != nil {
				t.Fatal(err)
			}
			line, err := bufio.NewReader(conn).ReadBytes('\n')
			if tt.name == "endless" && errors.Is(err, unix.ECONNRESET) {
				return // it did not read to the end
			}
			if err != nil {
				t.Fatal(err)
			}
			var reply controlReply
			if err := json.Unmarshal(line, &reply); err != nil {
				t.Fatal(err)
			}
			if reply.OK != (tt.want == "") || !strings.Contains(reply.Error, tt.want) {
				t.Errorf("reply %s, want %q", line, tt.want)
			}
		})
	}
}

func TestCheckMark(t *testing.T) {
	for _, kind := range MarkKinds {
		if err := CheckMark(events.Mark{Text: "x", Kind: kind}); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
	if err := CheckMark(events.Mark{Text: "\xff", Kind: "note"}); err == nil {
		t.Error("text that is not UTF-8 is accepted")
	}
}

// Whoever gets past the file mode is still asked who they are.
func TestControlPeer(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("not root, but CI is set: this test has to run")
		}
		t.Skip("needs root")
	}
	dir := t.TempDir()
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	c := listenControl(t, dir)
	defer c.Close()
	got := make(chan MarkRequest, 1)
	go func() {
		for r := range c.Marks() {
			got <- r
			r.Reply(nil)
		}
	}()

	now, err := evidence.MonoNow()
	if err != nil {
		t.Fatal(err)
	}
	line, err := json.Marshal(controlRequest{&controlMark{Text: "a", Kind: "note", MonoNS: now}})
	if err != nil {
		t.Fatal(err)
	}
	s := controlSocket{path: c.path, pid: os.Getpid()}
	send := func() error { return s.send(t.Context(), append(line, '\n')) }

	if err := asNobody(send); !errors.Is(err, unix.EACCES) {
		t.Errorf("user 65534 with the socket at 0600: %v, want EACCES", err)
	}
	if err := os.Chmod(c.path, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := asNobody(send); err == nil || !strings.Contains(err.Error(), "user 65534 may not place marks") {
		t.Errorf("user 65534 with the socket at 0666: %v", err)
	}
	select {
	case r := <-got:
		t.Errorf("the mark arrived: %+v", r)
	default:
	}
}

// asNobody runs f, which starts no goroutine to do its work, as user 65534.
// The thread ends with it.
func asNobody(f func() error) (err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		// The raw call changes this thread only.
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534); errno != 0 {
			err = errno
			return
		}
		err = f()
	}()
	<-done
	return err
}

func TestControlDir(t *testing.T) {
	root := t.TempDir()
	path := func(name string) string { return filepath.Join(root, name) }
	if err := os.WriteFile(path("file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path("good"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(path("good"), path("link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path("open"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path("open"), 0o777); err != nil {
		t.Fatal(err)
	}
	tests := []struct{ dir, want string }{
		{"new", ""},
		{"good", ""},
		{"file", "is not a directory"},
		{"link", "is not a directory"},
		{"open", "is writable by others (mode 0777)"},
		{"a/b", "no such file or directory"},
	}
	if os.Geteuid() == 0 {
		if err := os.Mkdir(path("foreign"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(path("foreign"), 65534, 65534); err != nil {
			t.Fatal(err)
		}
		tests = append(tests, struct{ dir, want string }{"foreign", "belongs to user 65534, not to root"})
	}
	for _, tt := range tests {
		t.Run(tt.dir, func(t *testing.T) {
			c, err := ListenControl(path(tt.dir))
			if tt.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				if err := c.Close(); err != nil {
					t.Fatal(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}
