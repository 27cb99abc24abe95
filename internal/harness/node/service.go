package node

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"
)

// The methods have the names that the original's have, so that their headers
// have the same size.
const (
	machineService = "machine.MachineService"
	stateService   = "cosi.resource.State"
	applyMethod    = "/" + machineService + "/ApplyConfiguration"
	getMethod      = "/" + stateService + "/Get"
)

// machine is what machined serves. Requests and replies are well-known types:
// a reply is a list, so that the proxy can append the replies of several nodes
// as it does with the original's.
type machine interface {
	apply(ctx context.Context, req *structpb.Struct) (*structpb.ListValue, error)
	get(ctx context.Context) (*structpb.ListValue, error)
}

// register makes server serve m.
func register(server *grpc.Server, m machine) {
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: machineService,
		HandlerType: (*machine)(nil),
		Methods: []grpc.MethodDesc{{
			MethodName: "ApplyConfiguration",
			Handler: unary(applyMethod, func(m machine, ctx context.Context, req *structpb.Struct) (*structpb.ListValue, error) {
				return m.apply(ctx, req)
			}),
		}},
	}, m)
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: stateService,
		HandlerType: (*machine)(nil),
		Methods: []grpc.MethodDesc{{
			MethodName: "Get",
			Handler: unary(getMethod, func(m machine, ctx context.Context, _ *structpb.Struct) (*structpb.ListValue, error) {
				return m.get(ctx)
			}),
		}},
	}, m)
}

// unary is what generated code has for each method.
func unary(method string, call func(machine, context.Context, *structpb.Struct) (*structpb.ListValue, error)) grpc.MethodHandler {
	return func(srv any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
		req := new(structpb.Struct)
		if err := decode(req); err != nil {
			return nil, err
		}
		if interceptor == nil {
			return call(srv.(machine), ctx, req)
		}
		return interceptor(ctx, req, &grpc.UnaryServerInfo{Server: srv, FullMethod: method}, func(ctx context.Context, req any) (any, error) {
			return call(srv.(machine), ctx, req.(*structpb.Struct))
		})
	}
}

func request(fields map[string]string) *structpb.Struct {
	s := &structpb.Struct{Fields: make(map[string]*structpb.Value)}
	for k, v := range fields {
		s.Fields[k] = structpb.NewStringValue(v)
	}
	return s
}

func reply(fields map[string]string) *structpb.ListValue {
	return &structpb.ListValue{Values: []*structpb.Value{structpb.NewStructValue(request(fields))}}
}

// field of a request or of one reply; empty if it has none.
func field(s *structpb.Struct, name string) string { return s.GetFields()[name].GetStringValue() }

// The fields of replies. hostField and errorField are the proxy's.
const (
	hostField    = "hostname"
	errorField   = "error"
	codeField    = "code"
	versionField = "version"
	updatedField = "updated"
	labelField   = "label"
	bootField    = "boot_ns"
)

// Reading is what a machine says of its configuration.
type Reading struct {
	Version int       `json:"version"` // 1 when machined starts, one more with each configuration applied
	Updated time.Time `json:"updated"` // of that version, whole seconds
	Label   string    `json:"label"`   // of the configuration, see Artifact; kept over restarts
	BootNS  uint64    `json:"boot_ns"` // when machined started, CLOCK_MONOTONIC
}

func (r Reading) fields() map[string]string {
	return map[string]string{
		versionField: strconv.Itoa(r.Version),
		updatedField: r.Updated.Format(time.RFC3339),
		labelField:   r.Label,
		bootField:    strconv.FormatUint(r.BootNS, 10),
	}
}

func parseReading(s *structpb.Struct) (r Reading, err error) {
	if r.Version, err = strconv.Atoi(field(s, versionField)); err != nil {
		return r, fmt.Errorf("version of the reply: %w", err)
	}
	if r.Updated, err = time.Parse(time.RFC3339, field(s, updatedField)); err != nil {
		return r, fmt.Errorf("time of the reply: %w", err)
	}
	if r.BootNS, err = strconv.ParseUint(field(s, bootField), 10, 64); err != nil {
		return r, fmt.Errorf("start in the reply: %w", err)
	}
	r.Label = field(s, labelField)
	return r, nil
}
