package fault

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// undoTimeout is how long an undo is tried again and again. It is for machines
// that are very slow; an undo takes milliseconds.
const undoTimeout = time.Minute

// Watch is the watchdog: it undoes what owner has in the journal when in, which
// only owner holds open, ends; and a single entry when its own time is over
// though owner lives. It answers each line of in by one in out. say gets lines
// for people.
func Watch(dir string, owner Process, in io.Reader, out io.Writer, say func(string)) error {
	w := &watchdog{journal: open(dir), owner: owner, say: say, armed: make(map[string]Entry)}
	lines := make(chan string)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(in); s.Scan(); {
			lines <- s.Text()
		}
	}()
	_, err := fmt.Fprintln(out, ready)
	for err == nil {
		select {
		case line, ok := <-lines:
			if !ok {
				return w.ownerGone()
			}
			_, err = fmt.Fprintln(out, w.request(line))
		case <-w.due():
			w.overdue()
		}
	}
	// Nobody reads the answers: so the owner is ending, and in ends with it.
	for range lines {
	}
	return w.ownerGone()
}

// The words between owner and watchdog.
const (
	ready  = "ready"
	arm    = "arm"
	disarm = "disarm"
	done   = "done"
)

type watchdog struct {
	journal journal
	owner   Process
	say     func(string)
	armed   map[string]Entry
}

func (w *watchdog) request(line string) string {
	verb, id, _ := strings.Cut(line, " ")
	switch verb {
	case arm:
		e, err := w.journal.read(id) // what cannot be read now cannot be read later
		if err == nil && e.Owner != w.owner {
			err = fmt.Errorf("%s belongs to process %d", id, e.Owner.PID)
		}
		if err != nil {
			return err.Error()
		}
		w.armed[id] = e
	case disarm:
		delete(w.armed, id)
	default:
		return fmt.Sprintf("unknown request %q", line)
	}
	return done
}

// due fires when the time of the first armed entry is over.
func (w *watchdog) due() <-chan time.Time {
	var first uint64
	for _, e := range w.armed {
		if e.HealByNS != 0 && (first == 0 || e.HealByNS < first) {
			first = e.HealByNS
		}
	}
	if first == 0 {
		return nil
	}
	return time.After(time.Duration(int64(first) - int64(monoNow())))
}

func (w *watchdog) overdue() {
	var entries []Entry
	for id, e := range w.armed {
		if e.HealByNS != 0 && e.HealByNS <= monoNow() {
			entries = append(entries, e)
			delete(w.armed, id)
		}
	}
	if len(entries) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), undoTimeout)
	defer cancel()
	if err := w.journal.undoAll(ctx, entries, func(s string) { w.say(s + ", overdue") }); err != nil {
		w.say(err.Error())
	}
}

// ownerGone undoes everything that the owner has in the journal, armed or not:
// it may have been killed between the two.
func (w *watchdog) ownerGone() error {
	entries, err := w.journal.list()
	entries = slices.DeleteFunc(entries, func(e Entry) bool { return e.Owner != w.owner })
	ctx, cancel := context.WithTimeout(context.Background(), undoTimeout)
	defer cancel()
	return errors.Join(err, w.journal.undoAll(ctx, entries, w.say))
}

func monoNow() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // it has always been there
	}
	return uint64(ts.Nano())
}
