package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
)

// localSocket is where machined listens: an abstract name, so that it belongs
// to the node's network namespace and ends with it.
const localSocket = "sockwatch-machined"

// machined holds the configuration of a machine.
type machined struct {
	log  *slog.Logger
	path string // of the configuration

	applying sync.Mutex

	mu  sync.Mutex
	now Reading
}

func newMachined(dir string, log *slog.Logger) (*machined, error) {
	m := &machined{
		log:  log,
		path: filepath.Join(dir, MachineFile),
		now:  Reading{Version: 1, Updated: seconds(), BootNS: MonoNS()},
	}
	config, err := os.ReadFile(m.path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	m.now.Label = LabelOf(config)
	return m, nil
}

func seconds() time.Time { return time.Now().UTC().Truncate(time.Second) }

// serve answers on the local socket until ctx ends.
func (m *machined) serve(ctx context.Context, l net.Listener) error {
	server := grpc.NewServer()
	register(server, m)
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	m.log.Info(MsgServing, "address", l.Addr().String())
	if err := server.Serve(l); err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}

// apply makes the request's configuration the machine's. Two at a time are
// refused. Once it has begun, nobody asks whether the caller is still there.
func (m *machined) apply(ctx context.Context, req *structpb.Struct) (*structpb.ListValue, error) {
	if !m.applying.TryLock() {
		return nil, status.Error(codes.FailedPrecondition, "another configuration is being applied")
	}
	defer m.applying.Unlock()

	config := []byte(field(req, "data"))
	label := LabelOf(config)
	if label == "" {
		return nil, status.Errorf(codes.InvalidArgument, "the configuration has no label %s", labelName)
	}
	if mode := field(req, "mode"); mode != "no-reboot" {
		return nil, status.Errorf(codes.InvalidArgument, "the configuration cannot be applied in mode %q", mode)
	}
	if err := m.keep(config); err != nil {
		return nil, status.Errorf(codes.Internal, "keep the configuration: %v", err)
	}

	m.mu.Lock()
	m.now.Version++
	m.now.Updated = seconds()
	m.now.Label = label
	now := m.now
	m.mu.Unlock()

	m.log.Info(MsgApplied, "version", now.Version, "updated", now.Updated, "label", label,
		"bytes", len(config), "caller_gone", ctx.Err() != nil)
	return reply(map[string]string{"mode": "no-reboot", "details": "applied without a reboot"}), nil
}

// keep writes the configuration where the next start finds it.
func (m *machined) keep(config []byte) error {
	next := m.path + ".next"
	if err := os.WriteFile(next, config, 0o600); err != nil {
		return err
	}
	return os.Rename(next, m.path)
}

func (m *machined) get(context.Context) (*structpb.ListValue, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return reply(m.now.fields()), nil
}
