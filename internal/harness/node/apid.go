package node

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/siderolabs/grpc-proxy/proxy"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// What the proxy's connections to other nodes are made with; everything else
// is grpc-go's default. There is no keepalive among it.
const (
	// The call that waits for a connection gives up with it, unless the caller
	// does first.
	minConnectTimeout = 20 * time.Second
	idleTimeout       = 15 * time.Minute
	maxBackoff        = 15 * time.Second
	streamWindow      = 65535 * 32
	connWindow        = 65535 * 16
)

// apid is a proxy: to the machined of its own node, or to the apid of another.
type apid struct {
	log   *slog.Logger
	creds credentials.TransportCredentials // as a client
	local *backend

	mu     sync.Mutex
	remote map[string]*backend // by node
}

// serveAPID runs the proxy of the node until ctx ends.
func serveAPID(ctx context.Context, c Config, log *slog.Logger) error {
	serverTLS, clientTLS, err := c.tls()
	if err != nil {
		return fmt.Errorf("read the certificates: %w", err)
	}
	a := &apid{
		log:    log,
		creds:  credentials.NewTLS(clientTLS),
		local:  &backend{dial: dialLocal},
		remote: make(map[string]*backend),
	}
	l, err := net.Listen("tcp", ":"+strconv.Itoa(Port))
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	server := grpc.NewServer(
		grpc.Creds(credentials.NewTLS(serverTLS)),
		grpc.ForceServerCodecV2(proxy.Codec()),
		grpc.UnknownServiceHandler(proxy.TransparentHandler(a.direct)),
		grpc.StreamInterceptor(a.logCall),
	)
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	log.Info(MsgServing, "address", l.Addr().String())
	if err := server.Serve(l); err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}

// direct decides where a call goes. One that a proxy has marked goes no
// further than this node. "nodes" wants the replies, and the errors, of each
// node in one reply, "node" those of one node as they are.
func (a *apid) direct(ctx context.Context, _ string) (proxy.Mode, []proxy.Backend, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	local := []proxy.Backend{a.local}
	switch {
	case len(md["proxyfrom"]) > 0:
		return proxy.One2One, local, nil
	case len(md["nodes"]) > 0:
		var all []proxy.Backend
		for _, n := range md["nodes"] {
			b, err := a.to(n)
			if err != nil {
				return proxy.One2Many, nil, err
			}
			all = append(all, b)
		}
		return proxy.One2Many, all, nil
	case len(md["node"]) == 1:
		b, err := a.to(md["node"][0])
		if err != nil {
			return proxy.One2One, nil, err
		}
		return proxy.One2One, []proxy.Backend{b}, nil
	}
	return proxy.One2One, local, nil
}

// to is the backend for a node: always the same, with one connection.
func (a *apid) to(node string) (*backend, error) {
	addr, err := netip.ParseAddr(node)
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "node %q: %v", node, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	b := a.remote[node]
	if b == nil {
		b = &backend{node: node, dial: func() (*grpc.ClientConn, error) { return dialNode(addr, a.creds) }}
		a.remote[node] = b
	}
	return b, nil
}

func dialNode(addr netip.Addr, creds credentials.TransportCredentials) (*grpc.ClientConn, error) {
	delays := backoff.DefaultConfig
	delays.MaxDelay = maxBackoff
	return grpc.NewClient(
		netip.AddrPortFrom(addr, Port).String(),
		grpc.WithInitialWindowSize(streamWindow),
		grpc.WithInitialConnWindowSize(connWindow),
		grpc.WithTransportCredentials(creds),
		grpc.WithIdleTimeout(idleTimeout),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: delays, MinConnectTimeout: minConnectTimeout}),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(proxy.Codec())),
	)
}

func dialLocal() (*grpc.ClientConn, error) {
	return grpc.NewClient(
		"unix-abstract:"+localSocket,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(proxy.Codec())),
	)
}

// backend is where calls are forwarded to, over one connection that is made
// by the first call and kept.
type backend struct {
	node string // empty for this node's machined
	dial func() (*grpc.ClientConn, error)

	mu   sync.Mutex
	conn *grpc.ClientConn
}

// String names the backend in errors.
func (b *backend) String() string {
	if b.node == "" {
		return "machined"
	}
	return b.node
}

// GetConnection gives the connection, and the context for the call on it: it
// ends with the caller's, and has its metadata with the mark that the call
// was forwarded.
func (b *backend) GetConnection(ctx context.Context, _ string) (context.Context, *grpc.ClientConn, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	md = md.Copy()
	if b.node != "" {
		from := md[":authority"]
		if len(from) == 0 {
			from = []string{"unknown"}
		}
		md.Set("proxyfrom", from...)
		delete(md, "nodes")
		delete(md, "node")
	}
	delete(md, ":authority")
	ctx = metadata.NewOutgoingContext(ctx, md)

	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conn == nil {
		conn, err := b.dial()
		if err != nil {
			return ctx, nil, err
		}
		b.conn = conn
	}
	return ctx, b.conn, nil
}

// AppendInfo adds the node's name to its reply, when there may be several.
func (b *backend) AppendInfo(_ bool, resp []byte) ([]byte, error) {
	var list structpb.ListValue
	if err := proto.Unmarshal(resp, &list); err != nil {
		return nil, err
	}
	for _, v := range list.GetValues() {
		if s := v.GetStructValue(); s != nil {
			s.Fields[hostField] = structpb.NewStringValue(b.String())
		}
	}
	return proto.Marshal(&list)
}

// BuildError makes a reply of a node's error, so that the call as a whole
// succeeds.
func (b *backend) BuildError(_ bool, err error) ([]byte, error) {
	s := status.Convert(err)
	return proto.Marshal(reply(map[string]string{hostField: b.String(), errorField: s.Message(), codeField: s.Code().String()}))
}

// logCall writes a line for each call, when it ends.
func (a *apid) logCall(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	started := MonoNS()
	err := handler(srv, stream)
	line := []any{"method", info.FullMethod, "code", status.Code(err).String(), "started_ns", started}
	if p, ok := peer.FromContext(stream.Context()); ok {
		line = append(line, "peer", p.Addr.String())
	}
	if md, _ := metadata.FromIncomingContext(stream.Context()); len(md["proxyfrom"]) > 0 {
		line = append(line, "proxyfrom", md["proxyfrom"][0])
	}
	if err != nil {
		line = append(line, "error", status.Convert(err).Message())
	}
	a.log.Info(MsgCall, line...)
	return err
}
