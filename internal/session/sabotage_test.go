package session_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/evidence"
	"github.com/sockwatch/sockwatch/internal/session"
	"github.com/sockwatch/sockwatch/internal/sink"
	"github.com/sockwatch/sockwatch/internal/target"
	"github.com/sockwatch/sockwatch/internal/testlab"
)

// TestDetachedProgram takes one program after another off its hook while the
// session runs, which does not notice: the verdict does, by the counter that
// knows of the events. Of those that no counter knows of, see TestSelfTestFails.
func TestDetachedProgram(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ program, situation, node, counter string }{
		{"tcp_retransmit_skb", "retries exhausted", "a", "RetransSegs"},
		{"tcp_retransmit_synack", "SYN-ACK loss, the timer answers", "b", "RetransSegs"},
		{"inet_sock_set_state", "close with unread data", "b", "EstabResets"},
		{"tcp_send_reset", "refused connect", "b", "OutRsts"},
	} {
		t.Run(tt.program, func(t *testing.T) {
			t.Parallel()
			x := situationOf(t, tt.situation)
			lab := testlab.New(t)
			lab.PinNeighbours()
			if x.lab != nil {
				x.lab(lab)
			}
			s := stageIn(t, session.Config{}, lab)
			s.capA, s.capB = lab.A.Capture(testlab.IfName), lab.B.Capture(testlab.IfName)
			filter := filterWith(t, uint32(lab.A.Inode()))
			if !detachProgram(t, tt.program, filter) {
				t.Fatal("the program is not attached")
			}
			standClear()
			x.do(t, s)
			standClear()
			evs := s.stop()
			verdict := evs[len(evs)-1].Summary.Verdict
			if tt.program == "tcp_send_reset" && s.blind("resets sent without a socket") {
				// There the edge shows what the program would.
				if sent := pick(evs, events.TypeReset, in(lab.B)); len(sent) != 1 || verdict.State == evidence.Incomplete {
					t.Errorf("%d resets, verdict %+v", len(sent), verdict)
				}
				return
			}
			name := map[string]string{"a": lab.A.Name, "b": lab.B.Name}[tt.node]
			if verdict.State != evidence.Incomplete && len(evs[0].Session.CannotShow) == 0 {
				t.Errorf("verdict %+v", verdict)
			}
			if !slices.ContainsFunc(verdict.Reasons, func(r string) bool { return strings.HasPrefix(r, name+": "+tt.counter+": ") }) {
				t.Errorf("%q does not name %s of %s", verdict.Reasons, tt.counter, name)
			}
		})
	}
}

var linkProgram = regexp.MustCompile(`(?m)^prog_id:\t(\d+)$`)

// detachProgram takes a program of a session in this process off its hook: of
// the one that has the filter, or of any. The session's descriptor becomes one
// of /dev/null, so that it closes nothing of anyone else's.
func detachProgram(t *testing.T, name string, filter *ebpf.Map) bool {
	t.Helper()
	var of ebpf.MapID
	if filter != nil {
		info, err := filter.Info()
		if err != nil {
			t.Errorf("look at a map: %v", err)
			return true
		}
		of, _ = info.ID()
	}
	infos, err := filepath.Glob("/proc/self/fdinfo/*")
	if err != nil {
		t.Error(err)
		return true
	}
	for _, path := range infos {
		text, err := os.ReadFile(path)
		m := linkProgram.FindSubmatch(text)
		if err != nil || m == nil || !strings.Contains(string(text), "link_type:") {
			continue // it is gone, or no link
		}
		id, err := strconv.ParseUint(string(m[1]), 10, 32)
		if err != nil {
			t.Error(err)
			return true
		}
		prog, err := ebpf.NewProgramFromID(ebpf.ProgramID(id))
		if err != nil {
			continue
		}
		info, err := prog.Info()
		prog.Close()
		if err != nil || info.Name != name {
			continue
		}
		if maps, ok := info.MapIDs(); filter != nil && (!ok || !slices.Contains(maps, of)) {
			continue
		}
		fd, err := strconv.Atoi(filepath.Base(path))
		if err != nil {
			t.Error(err)
			return true
		}
		null, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Error(err)
			return true
		}
		defer unix.Close(null)
		if err := unix.Dup3(null, fd, unix.O_CLOEXEC); err != nil {
			t.Errorf("detach %s: %v", name, err)
		}
		return true
	}
	return false
}

// run runs a session to its end.
func run(t *testing.T, cfg session.Config, out sink.Sink, targets ...string) (*session.Result, error) {
	t.Helper()
	for _, name := range targets {
		spec, err := target.ParseSpec(name)
		if err != nil {
			t.Fatal(err)
		}
		cfg.Targets = append(cfg.Targets, spec)
	}
	cfg.Sinks = []sink.Sink{out}
	cfg.Notice = func(s string) { t.Log("notice: " + s) }
	ctx, cancel := context.WithTimeout(t.Context(), testlab.Slack(10*time.Second))
	defer cancel()
	res, err := session.Run(ctx, cfg)
	if res == nil && err == nil {
		err = errors.New("no result")
	}
	return res, err
}
