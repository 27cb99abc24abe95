package fault

import (
	"bufio"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// ErrWatchdog: the watchdog does not start, or has died. Without it nothing is
// broken.
var ErrWatchdog = errors.New("no watchdog")

// Guard is this process's watchdog, seen from here.
type Guard struct {
	journal journal
	self    Process
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers *bufio.Scanner

	mu     sync.Mutex // one request at a time
	closed chan struct{}
	gone   chan struct{} // closed when the watchdog has ended
}

// StartGuard starts a watchdog for this process: binary is sockwatch, dir the
// directory of the journal (DefaultJournal if empty), stderr takes the lines
// that the watchdog has for people, also after this process has ended.
func StartGuard(binary, dir string, stderr *os.File) (*Guard, error) {
	self, err := Self()
	if err != nil {
		return nil, err
	}
	g := &Guard{journal: open(dir), self: self, closed: make(chan struct{}), gone: make(chan struct{})}
	g.cmd = exec.Command(binary, "watchdog", "--journal", string(g.journal), "--owner", self.String())
	g.cmd.Dir = "/"
	g.cmd.Stderr = stderr
	// In a session of its own neither the terminal nor a signal to our group
	// reaches it.
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if g.in, err = g.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	answers, out, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	g.cmd.Stdout = out
	err = g.cmd.Start()
	out.Close()
	if err != nil {
		answers.Close()
		return nil, fmt.Errorf("%w: %w", ErrWatchdog, err)
	}
	g.answers = bufio.NewScanner(answers)
	go func() {
		_ = g.cmd.Wait() // that it ended is what matters
		close(g.gone)
	}()
	if answer, err := g.answer(); err != nil || answer != ready {
		g.in.Close()
		<-g.gone
		return nil, fmt.Errorf("%w: it does not start: %q, %s", ErrWatchdog, answer, g.cmd.ProcessState)
	}
	return g, nil
}

// String is p as [ParseProcess] reads it.
func (p Process) String() string { return fmt.Sprintf("%d:%d", p.PID, p.Start) }

// ParseProcess reads PID:START.
func ParseProcess(s string) (Process, error) {
	pid, start, _ := strings.Cut(s, ":")
	p, err := strconv.Atoi(pid)
	t, err2 := strconv.ParseUint(start, 10, 64)
	if err := errors.Join(err, err2); err != nil {
		return Process{}, fmt.Errorf("%q is no process: %w", s, err)
	}
	return Process{p, t}, nil
}

// Gone is closed when the watchdog has ended before it should: then heal
// everything and stop.
func (g *Guard) Gone() <-chan struct{} { return g.gone }

// PID of the watchdog.
func (g *Guard) PID() int { return g.cmd.Process.Pid }

func (g *Guard) answer() (string, error) {
	if !g.answers.Scan() {
		if err := g.answers.Err(); err != nil {
			return "", err
		}
		return "", io.ErrUnexpectedEOF
	}
	return g.answers.Text(), nil
}

func (g *Guard) request(verb, id string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, err := fmt.Fprintln(g.in, verb, id); err != nil {
		return fmt.Errorf("%w: %w", ErrWatchdog, err)
	}
	answer, err := g.answer()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrWatchdog, err)
	}
	if answer != done {
		return fmt.Errorf("%w: %s", ErrWatchdog, answer)
	}
	return nil
}

// commit journals an entry and arms the watchdog for it.
func (g *Guard) commit(e *Entry) error {
	e.ID, e.Owner = rand.Text(), g.self
	if err := g.journal.add(*e); err != nil {
		return err
	}
	if err := g.request(arm, e.ID); err != nil {
		return errors.Join(err, g.journal.remove(e.ID))
	}
	return nil
}

// release forgets an entry that is undone.
func (g *Guard) release(e *Entry) error {
	return errors.Join(g.journal.remove(e.ID), g.request(disarm, e.ID))
}

// Own makes a lab that is about to be made go away with this process. Call
// release when it is down.
func (g *Guard) Own(stateDir, name string) (release func() error, err error) {
	e := &Entry{StateDir: stateDir, Lab: name, Kind: wholeLab, IntendedNS: monoNow()}
	if err := g.commit(e); err != nil {
		return nil, err
	}
	return func() error { return g.release(e) }, nil
}

// Close ends the watchdog, which first undoes what is still in the journal.
func (g *Guard) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.closed:
		return nil
	default:
		close(g.closed)
	}
	g.in.Close()
	select {
	case <-g.gone:
		return nil
	case <-time.After(undoTimeout + 10*time.Second):
		return fmt.Errorf("%w: it does not end", ErrWatchdog)
	}
}
