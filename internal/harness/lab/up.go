package lab

import (
	"context"
	"fmt"
)

func newBackend(l *Lab) (backend, error) {
	switch l.Backend {
	default:
		return nil, fmt.Errorf("%w: %q; there is %s and %s", ErrBackend, l.Backend, Netns, Docker)
	}
}

// Up makes a lab and waits until its nodes serve. What it makes is written
// down beforehand. On an error nothing is left of it.
func Up(_ context.Context, s Spec) (*Lab, error) {
	return nil, fmt.Errorf("%w: %q", ErrBackend, s.Backend)
}

// Down takes the lab away, whatever of it there is. It does nothing where
// there is nothing left.
func (l *Lab) Down(ctx context.Context) error {
	return l.backend.remove(ctx)
}

// waitServing waits until the node's programs answer.
func (n *Node) waitServing(context.Context) error { return nil }
