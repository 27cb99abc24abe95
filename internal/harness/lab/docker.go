package lab

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/api/types/versions"
	"github.com/docker/docker/client"
	"github.com/docker/docker/pkg/stdcopy"
)

// Everything that needs the Docker client is in this file: the module has a
// successor, and this is what there is to port.

// The labels of everything that a lab makes in the engine.
const (
	labelLab = "sockwatch.lab"     // its name
	labelDir = "sockwatch.lab.dir" // where it is written down
)

// engine is the Docker engine, where DOCKER_HOST or the default says.
type engine struct {
	cli    *client.Client
	labels map[string]string // of what it makes
}

func newEngine(l *Lab) (*engine, error) {
	cli, err := client.NewClientWithOpts(client.FromEnv, client.WithAPIVersionNegotiation())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrEngine, err)
	}
	return &engine{cli, map[string]string{labelLab: l.Name, labelDir: l.marked}}, nil
}

func (e *engine) close() { e.cli.Close() }

// ping asks whether the engine is there.
func (e *engine) ping(ctx context.Context) error {
	_, err := e.cli.Ping(ctx)
	return e.fail(err)
}

// fail says in one line what went wrong, and whether it was the engine.
func (e *engine) fail(err error) error {
	if err == nil {
		return nil
	}
	if client.IsErrConnectionFailed(err) {
		return fmt.Errorf("%w: nothing answers at %s", ErrEngine, e.cli.DaemonHost())
	}
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	return err
}

// ours selects what belongs to the lab of the engine's labels.
func (e *engine) ours() filters.Args {
	args := filters.NewArgs()
	for k, v := range e.labels {
		args.Add("label", k+"="+v)
	}
	return args
}

// owners gives the directories of the labs that have a name, or of all, by
// name, with every kind of thing that may be left of them.
func (e *engine) owners(ctx context.Context, name string) (map[string][]string, error) {
	label := labelLab
	if name != "" {
		label += "=" + name
	}
	args := filters.NewArgs(filters.Arg("label", label))
	all := make(map[string][]string)
	add := func(labels map[string]string) {
		lab, dir := labels[labelLab], labels[labelDir]
		if !slices.Contains(all[lab], dir) {
			all[lab] = append(all[lab], dir)
		}
	}
	containers, err := e.cli.ContainerList(ctx, container.ListOptions{All: true, Filters: args})
	if err != nil {
		return nil, e.fail(err)
	}
	for _, c := range containers {
		add(c.Labels)
	}
	networks, err := e.cli.NetworkList(ctx, network.ListOptions{Filters: args})
	if err != nil {
		return nil, e.fail(err)
	}
	for _, n := range networks {
		add(n.Labels)
	}
	images, err := e.cli.ImageList(ctx, image.ListOptions{Filters: args})
	if err != nil {
		return nil, e.fail(err)
	}
	for _, i := range images {
		add(i.Labels)
	}
	return all, nil
}

// importImage makes an image of one file, a static binary.
func (e *engine) importImage(ctx context.Context, name, binary string) error {
	content, err := os.ReadFile(binary)
	if err != nil {
		return err
	}
	layer, err := archive(map[string][]byte{binaryInImage: content}, 0o755)
	if err != nil {
		return err
	}
	var changes []string
	for k, v := range e.labels {
		changes = append(changes, fmt.Sprintf("LABEL %q=%q", k, v))
	}
	changes = append(changes, fmt.Sprintf("ENTRYPOINT [%q]", "/"+binaryInImage))
	r, err := e.cli.ImageImport(ctx, image.ImportSource{Source: layer, SourceName: "-"}, name, image.ImportOptions{Changes: changes})
	if err != nil {
		return e.fail(err)
	}
	defer r.Close()
	_, err = io.Copy(io.Discard, r)
	return err
}

// archive is a tar of some files.
func archive(files map[string][]byte, mode int64) (io.Reader, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for name, content := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(content))}); err != nil {
			return nil, err
		}
		if _, err := w.Write(content); err != nil {
			return nil, err
		}
	}
	return &b, w.Close()
}

// createNetwork makes a bridge network. It reports whether the range was free.
func (e *engine) createNetwork(ctx context.Context, name string, p netip.Prefix) (free bool, err error) {
	_, err = e.cli.NetworkCreate(ctx, name, network.CreateOptions{
		Driver: "bridge",
		IPAM:   &network.IPAM{Config: []network.IPAMConfig{{Subnet: p.String(), Gateway: p.Addr().Next().String()}}},
		Labels: e.labels,
	})
	if err != nil && strings.Contains(strings.ToLower(err.Error()), "overlap") {
		return false, nil
	}
	return true, e.fail(err)
}

// createContainer makes a container with an address on a network.
func (e *engine) createContainer(ctx context.Context, name, imageName, net string, ip netip.Addr, mac string, args []string) error {
	_, err := e.cli.ContainerCreate(ctx,
		&container.Config{Image: imageName, Hostname: name, Cmd: args, Labels: e.labels},
		&container.HostConfig{NetworkMode: container.NetworkMode(net), LogConfig: container.LogConfig{Type: "json-file"}},
		&network.NetworkingConfig{EndpointsConfig: map[string]*network.EndpointSettings{net: e.endpoint(ctx, ip, mac)}},
		nil, name)
	if errdefs.IsConflict(err) {
		return fmt.Errorf("%w: container %s is not a lab's", ErrExists, name)
	}
	return e.fail(err)
}

// choosesMAC says whether the engine takes a hardware address for an
// endpoint. Before, it makes one of the IP address.
func (e *engine) choosesMAC(ctx context.Context) bool {
	e.cli.NegotiateAPIVersion(ctx)
	return versions.GreaterThanOrEqualTo(e.cli.ClientVersion(), "1.44")
}

func (e *engine) endpoint(ctx context.Context, ip netip.Addr, mac string) *network.EndpointSettings {
	s := &network.EndpointSettings{IPAMConfig: &network.EndpointIPAMConfig{IPv4Address: ip.String()}}
	if e.choosesMAC(ctx) {
		s.MacAddress = mac
	}
	return s
}

// copyFiles puts files, which only root may read, into a container.
func (e *engine) copyFiles(ctx context.Context, name string, files map[string][]byte) error {
	content, err := archive(files, 0o600)
	if err != nil {
		return err
	}
	return e.fail(e.cli.CopyToContainer(ctx, name, "/", content, container.CopyToContainerOptions{}))
}

// ctr is what the engine says of a container.
type ctr struct {
	exists, paused bool
	pid            int  // 0 unless it runs
	connected      bool // to the lab's network
}

func (e *engine) inspect(ctx context.Context, name, net string) (ctr, error) {
	r, err := e.cli.ContainerInspect(ctx, name)
	if errdefs.IsNotFound(err) {
		return ctr{}, nil
	}
	if err != nil {
		return ctr{}, e.fail(err)
	}
	if r.ContainerJSONBase == nil || r.State == nil || r.NetworkSettings == nil {
		return ctr{}, fmt.Errorf("%w: it tells nothing of the state of container %s", ErrEngine, name)
	}
	c := ctr{exists: true, paused: r.State.Paused}
	if r.State.Running {
		c.pid = r.State.Pid
	}
	_, c.connected = r.NetworkSettings.Networks[net]
	return c, nil
}

func (e *engine) start(ctx context.Context, name string) error {
	return e.fail(e.cli.ContainerStart(ctx, name, container.StartOptions{}))
}

// kill sends SIGKILL and waits until the container has ended.
func (e *engine) kill(ctx context.Context, name string) error {
	ended, errs := e.cli.ContainerWait(ctx, name, container.WaitConditionNotRunning)
	if err := e.cli.ContainerKill(ctx, name, "KILL"); err != nil && !errdefs.IsConflict(err) {
		return e.fail(err)
	}
	select {
	case <-ended:
		return nil
	case err := <-errs:
		return e.fail(err)
	}
}

func (e *engine) pause(ctx context.Context, name string) error {
	return e.fail(e.cli.ContainerPause(ctx, name))
}

func (e *engine) unpause(ctx context.Context, name string) error {
	return e.fail(e.cli.ContainerUnpause(ctx, name))
}

func (e *engine) connect(ctx context.Context, net, name string, ip netip.Addr, mac string) error {
	return e.fail(e.cli.NetworkConnect(ctx, net, name, e.endpoint(ctx, ip, mac)))
}

func (e *engine) disconnect(ctx context.Context, net, name string) error {
	return e.fail(e.cli.NetworkDisconnect(ctx, net, name, false))
}

func (e *engine) logs(ctx context.Context, name string) ([]byte, error) {
	r, err := e.cli.ContainerLogs(ctx, name, container.LogsOptions{ShowStdout: true, ShowStderr: true})
	if errdefs.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, e.fail(err)
	}
	defer r.Close()
	var b bytes.Buffer
	_, err = stdcopy.StdCopy(&b, &b, r)
	return b.Bytes(), err
}

// removeOurs removes what has the engine's labels: containers, then what they
// used.
func (e *engine) removeOurs(ctx context.Context) error {
	containers, err := e.cli.ContainerList(ctx, container.ListOptions{All: true, Filters: e.ours()})
	if err != nil {
		return e.fail(err)
	}
	for _, c := range containers {
		err := e.cli.ContainerRemove(ctx, c.ID, container.RemoveOptions{Force: true, RemoveVolumes: true})
		if err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("remove container %v: %w", c.Names, e.fail(err))
		}
	}
	networks, err := e.cli.NetworkList(ctx, network.ListOptions{Filters: e.ours()})
	if err != nil {
		return e.fail(err)
	}
	for _, n := range networks {
		if err := e.cli.NetworkRemove(ctx, n.ID); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("remove network %s: %w", n.Name, e.fail(err))
		}
	}
	images, err := e.cli.ImageList(ctx, image.ListOptions{Filters: e.ours()})
	if err != nil {
		return e.fail(err)
	}
	for _, i := range images {
		_, err := e.cli.ImageRemove(ctx, i.ID, image.RemoveOptions{Force: true})
		if err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("remove image %v: %w", i.RepoTags, e.fail(err))
		}
	}
	return nil
}
