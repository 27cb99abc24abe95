package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/sockwatch/sockwatch/internal/harness/node"
)

// answerWithin bounds the wait for a node's first answer.
const answerWithin = 20 * time.Second

// Dial makes a connection from the node, as [net.Dialer.DialContext] does, to
// a numeric address.
func (n *Node) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	var conn net.Conn
	err := n.do(ctx, func() (err error) {
		var d net.Dialer
		conn, err = d.DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// ReadVersion asks the worker for its configuration's version, from the
// client, over a connection of its own. It is what `sockwatch node read` does
// there, without a process.
func (l *Lab) ReadVersion(ctx context.Context, route node.Route) (node.Reading, error) {
	client, err := l.Node(Client)
	if err != nil {
		return node.Reading{}, err
	}
	c, err := l.backend.config(client)
	if err != nil {
		return node.Reading{}, err
	}
	return node.ReadVersion(ctx, c, route, client.Dial)
}

// waitServing waits until the node's programs answer. It asks over loopback,
// so that neither a fault nor the network matters, and no node's connection to
// another is made.
func (n *Node) waitServing(ctx context.Context) error {
	if n.Role == Client {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	if err := n.waitListening(ctx); err != nil {
		return n.notReady(ctx, err)
	}
	c, err := n.lab.backend.config(n)
	if err != nil {
		return n.notReady(ctx, err)
	}
	if _, err := node.ReadOwn(ctx, c, loopback, n.Dial); err != nil {
		return n.notReady(ctx, err)
	}
	return nil
}

var errEnded = errors.New("its programs have ended")

// waitListening waits until apid listens. It looks and does not knock: a
// connection from within that comes too early may be given the very port that
// it asks for, and then apid finds it taken.
func (n *Node) waitListening(ctx context.Context) error {
	return await(ctx, func() (bool, error) {
		ok := false
		err := n.do(ctx, func() (err error) {
			ok, err = listening(node.Port)
			return err
		})
		if ok {
			return true, nil
		}
		if running, e := n.lab.backend.running(ctx, n); e != nil || !running {
			return false, errors.Join(e, errEnded)
		}
		return false, err
	})
}

// notReady adds what the node's programs said when they ended: what is in the
// log and no line of theirs.
func (n *Node) notReady(ctx context.Context, err error) error {
	var said []string
	if b, e := n.lab.backend.log(context.WithoutCancel(ctx), n); e == nil {
		for _, l := range node.ParseLog(b) {
			if l.Program == "" {
				said = append(said, l.Msg)
			}
		}
	}
	if len(said) == 0 {
		return fmt.Errorf("%w: node %s: %w", ErrNotReady, n.Role, err)
	}
	// What the one that failed said, and the one that ended because of it.
	said = said[max(0, len(said)-2):]
	return fmt.Errorf("%w: node %s: %w; they said: %s", ErrNotReady, n.Role, err, strings.Join(said, "; "))
}
