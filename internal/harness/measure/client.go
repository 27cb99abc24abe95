package measure

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/sockwatch/sockwatch/internal/harness/lab"
	"github.com/sockwatch/sockwatch/internal/harness/node"
)

// client is the process that sends the request.
type client struct {
	cmd   *exec.Cmd
	out   bytes.Buffer
	timer *time.Timer
	done  chan struct{}
	ended uint64
}

// send starts the client, which is killed at the deadline.
func (c *capture) send(ctx context.Context) (*client, error) {
	n, err := c.lab.Node(lab.Client)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(c.lab.Dir, "artifact.yaml")
	if err := os.WriteFile(file, c.artifact, 0o600); err != nil {
		return nil, err
	}
	if c.facts.Pinned != nil {
		from, err := c.lab.Node(lab.Controlplane)
		if err != nil {
			return nil, err
		}
		for range c.Cell.Faults {
			c.queued = append(c.queued, c.obs.watch.expect(queued(from, *c.facts.Pinned, len(c.artifact))))
		}
	}
	cl := &client{done: make(chan struct{})}
	// Not ctx: it is killed at its deadline, or with its lab.
	cl.cmd = n.Command(context.WithoutCancel(ctx), c.lab.Binary, "node", "apply", "--route", string(c.Cell.Route), file)
	cl.cmd.Stdout, cl.cmd.Stderr = &cl.out, &cl.out
	c.facts.Sent = monoNow()
	if err := cl.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the client: %w", err)
	}
	cl.timer = time.AfterFunc(c.run.Plan.Deadline, func() { _ = cl.cmd.Process.Kill() })
	go func() {
		_ = cl.cmd.Wait()
		cl.ended = monoNow()
		close(cl.done)
	}()
	c.row.SentNS = c.facts.Sent
	c.row.Sent = time.Now().UTC().Add(-time.Duration(monoNow() - c.facts.Sent)).Format(time.RFC3339Nano)
	c.markAt(c.facts.Sent, "sent: the client starts")
	return cl, nil
}

func (cl *client) stop() {
	cl.timer.Stop()
	_ = cl.cmd.Process.Kill()
	<-cl.done
}

func (cl *client) wait(ctx context.Context) error {
	select {
	case <-cl.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// ended takes down how the client ended.
func (c *capture) ended(cl *client) {
	c.facts.Ended = cl.ended
	c.row.Ended = c.facts.after(cl.ended)
	state := cl.cmd.ProcessState
	c.row.RC = state.ExitCode()
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		c.row.RC = 128 + int(ws.Signal())
	}
	c.markAt(cl.ended, fmt.Sprintf("the client ended, status %d", c.row.RC))
	for line := range bytes.Lines(cl.out.Bytes()) {
		c.script.say("client: %s", bytes.TrimSpace(line))
		var o node.Outcome
		if json.Unmarshal(line, &o) == nil && o.Event == "end" {
			c.row.Client = strings.TrimSpace(o.Code + " " + o.Error)
		}
	}
}
