package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
)

// Route is the way a request takes to the worker.
type Route string

// Through the controlplane's proxy, or to the worker's own endpoint.
const (
	Proxied Route = "proxied"
	Direct  Route = "direct"
)

// Routes that there are.
var Routes = []Route{Proxied, Direct}

// Dial makes a connection, as [net.Dialer.DialContext] does.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// ReadVersion asks the worker for its configuration's version. It does not
// wait for what cannot be reached, but for an answer until ctx ends. Dial may
// be nil: a connection from where this process is.
func ReadVersion(ctx context.Context, c Config, route Route, dial Dial) (Reading, error) {
	conn, ctx, err := connect(ctx, c, route, "node", dial)
	if err != nil {
		return Reading{}, err
	}
	defer conn.Close()
	var list structpb.ListValue
	if err := conn.Invoke(ctx, getMethod, new(structpb.Struct), &list); err != nil {
		return Reading{}, err
	}
	s, err := single(&list)
	if err != nil {
		return Reading{}, err
	}
	return parseReading(s)
}

// ReadOwn asks the node at addr for the version of its own configuration.
func ReadOwn(ctx context.Context, c Config, addr netip.Addr, dial Dial) (Reading, error) {
	c.Worker = addr
	return ReadVersion(ctx, c, Direct, dial)
}

// Apply sends the worker a configuration. It waits for the answer until ctx
// ends.
func Apply(ctx context.Context, c Config, route Route, artifact []byte) error {
	conn, ctx, err := connect(ctx, c, route, "nodes", nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	var list structpb.ListValue
	req := request(map[string]string{"data": string(artifact), "mode": "no-reboot"})
	if err := conn.Invoke(ctx, applyMethod, req, &list); err != nil {
		return err
	}
	_, err = single(&list)
	return err
}

// connect makes a connection of its own, as a program that is started for each
// request does, and marks the context for the route.
func connect(ctx context.Context, c Config, route Route, mark string, dial Dial) (*grpc.ClientConn, context.Context, error) {
	endpoint := c.Worker
	switch route {
	case Proxied:
		endpoint = c.Controlplane
		ctx = metadata.AppendToOutgoingContext(ctx, mark, c.Worker.String())
	case Direct:
	default:
		return nil, nil, fmt.Errorf("no such route: %q; there is %s and %s", route, Proxied, Direct)
	}
	_, clientTLS, err := c.tls()
	if err != nil {
		return nil, nil, fmt.Errorf("read the certificates: %w", err)
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(credentials.NewTLS(clientTLS)),
		grpc.WithInitialWindowSize(streamWindow),
		grpc.WithInitialConnWindowSize(connWindow),
		grpc.WithNoProxy(),
	}
	if dial != nil {
		options = append(options, grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return dial(ctx, "tcp", address)
		}))
	}
	conn, err := grpc.NewClient("dns:///"+netip.AddrPortFrom(endpoint, Port).String(), options...)
	return conn, ctx, err
}

// single is the only reply of a list, or the error that it carries.
func single(list *structpb.ListValue) (*structpb.Struct, error) {
	if n := len(list.GetValues()); n != 1 {
		return nil, fmt.Errorf("%d replies instead of one", n)
	}
	s := list.GetValues()[0].GetStructValue()
	if e := field(s, errorField); e != "" {
		return nil, &RemoteError{Node: field(s, hostField), Code: field(s, codeField), Message: e}
	}
	return s, nil
}

// RemoteError is an error that a proxy had with a node, which came as a reply.
type RemoteError struct {
	Node, Code, Message string
}

func (e *RemoteError) Error() string {
	return fmt.Sprintf("node %s: %s: %s", e.Node, e.Code, e.Message)
}

// code of err in grpc's words.
func code(err error) string {
	if e, ok := errors.AsType[*RemoteError](err); ok {
		return e.Code
	}
	return status.Code(err).String()
}
