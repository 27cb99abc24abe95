package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// Run is the first process of the node whose files are in dir. On the client
// it does nothing; elsewhere it is machined, and starts apid, without which it
// ends. Self is the program that both are. It returns when ctx ends.
func Run(ctx context.Context, dir, self string, out io.Writer) error {
	c, err := ReadConfig(dir)
	if err != nil {
		return err
	}
	log := newLog(out, "machined")
	if c.Role == "client" {
		log.Info(MsgServing, "role", c.Role)
		<-ctx.Done()
		return nil
	}
	m, err := newMachined(dir, log)
	if err != nil {
		return err
	}
	l, err := net.Listen("unix", "@"+localSocket)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	// apid finds machined listening: a call that does not is refused for a second.
	// It ends with the thread that started it.
	runtime.LockOSThread()
	apid := exec.CommandContext(ctx, self, "node", "apid", dir)
	apid.Stdout, apid.Stderr = out, out
	apid.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := apid.Start(); err != nil {
		return fmt.Errorf("start apid: %w", err)
	}
	go func() {
		err := apid.Wait()
		if err == nil {
			err = fmt.Errorf("exit status 0")
		}
		cancel(fmt.Errorf("apid ended: %w", err))
	}()
	served := make(chan error, 1)
	go func() { served <- m.serve(ctx, l) }()
	select {
	case err = <-served:
	case <-ctx.Done():
	}
	if cause := context.Cause(ctx); err == nil && !errors.Is(cause, ctx.Err()) {
		err = cause
	}
	return err
}

// RunAPID is the proxy of the node whose files are in dir. It returns when ctx
// ends.
func RunAPID(ctx context.Context, dir string, out io.Writer) error {
	c, err := ReadConfig(dir)
	if err != nil {
		return err
	}
	return serveAPID(ctx, c, newLog(out, "apid"))
}

// Outcome is a line of what a client's program writes: one when it begins, one
// when it ends.
type Outcome struct {
	Event   string   `json:"event"` // begin or end
	MonoNS  uint64   `json:"mono_ns"`
	Code    string   `json:"code,omitempty"` // of the end, in grpc's words
	Error   string   `json:"error,omitempty"`
	Reading *Reading `json:"reading,omitempty"`
}

// RunRead is the client's program that asks for the version.
func RunRead(ctx context.Context, dir string, route Route, out io.Writer) error {
	return outcome(out, func() (*Reading, error) {
		c, err := ReadConfig(dir)
		if err != nil {
			return nil, err
		}
		r, err := ReadVersion(ctx, c, route, nil)
		if err != nil {
			return nil, err
		}
		return &r, nil
	})
}

// RunApply is the client's program that applies an artifact.
func RunApply(ctx context.Context, dir string, route Route, artifact []byte, out io.Writer) error {
	return outcome(out, func() (*Reading, error) {
		c, err := ReadConfig(dir)
		if err != nil {
			return nil, err
		}
		return nil, Apply(ctx, c, route, artifact)
	})
}

func outcome(out io.Writer, f func() (*Reading, error)) error {
	w := json.NewEncoder(out)
	if err := w.Encode(Outcome{Event: "begin", MonoNS: MonoNS()}); err != nil {
		return err
	}
	r, err := f()
	o := Outcome{Event: "end", MonoNS: MonoNS(), Code: code(err), Reading: r}
	if err != nil {
		o.Error = err.Error()
	}
	if e := w.Encode(o); e != nil {
		return e
	}
	return err
}
