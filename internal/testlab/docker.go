package testlab

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/client"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const (
	// dockerLabel marks what tests made; its value is the pid of the test.
	dockerLabel = "sockwatch-test"
	// dockerTimeout bounds one request. A start takes most of a second here.
	dockerTimeout = 60 * time.Second
)

var (
	dockerNames  atomic.Uint32
	dockerSweeps sync.Once
)

// Docker is the engine as one test uses it. What is made through it is removed
// when the test ends.
type Docker struct {
	t   testing.TB
	cli *client.Client
}

// NewDocker connects to the engine of DOCKER_HOST or the default socket.
// Without one the test fails where CI is set and is skipped elsewhere.
func NewDocker(t testing.TB) *Docker {
	t.Helper()

	cli, err := client.NewClientWithOpts(client.FromEnv, client.WithAPIVersionNegotiation())
	if err == nil {
		t.Cleanup(func() { cli.Close() })
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_, err = cli.Ping(ctx)
	}
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("no Docker engine, which CI must have: %v", err)
		}
		t.Skipf("no Docker engine: %v", err)
	}
	d := &Docker{t: t, cli: cli}
	dockerSweeps.Do(d.sweep)
	return d
}

// do runs f with a deadline and ends the test when it fails.
func (d *Docker) do(what string, f func(ctx context.Context) error) {
	d.t.Helper()

	ctx, cancel := context.WithTimeout(context.Background(), dockerTimeout)
	defer cancel()
	if err := f(ctx); err != nil {
		d.t.Fatalf("docker: %s: %v", what, err)
	}
}

// undo runs f when the test ends; what is gone already is fine.
func (d *Docker) undo(what string, f func(ctx context.Context) error) {
	d.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), dockerTimeout)
		defer cancel()
		if err := f(ctx); err != nil && !errdefs.IsNotFound(err) {
			d.t.Errorf("docker: %s: %v", what, err)
		}
	})
}

func (d *Docker) labels() map[string]string {
	return map[string]string{dockerLabel: strconv.Itoa(os.Getpid())}
}

// UniqueName is a name for a container or network that no other test uses.
func (d *Docker) UniqueName() string {
	return fmt.Sprintf("sockwatch-test-%d-%d", os.Getpid(), dockerNames.Add(1))
}

// sweep removes what tests left that were killed.
func (d *Docker) sweep() {
	dead := func(labels map[string]string) bool {
		pid, err := strconv.Atoi(labels[dockerLabel])
		return err == nil && unix.Kill(pid, 0) == unix.ESRCH
	}
	ctx, cancel := context.WithTimeout(context.Background(), dockerTimeout)
	defer cancel()
	ours := filters.NewArgs(filters.Arg("label", dockerLabel))
	if all, err := d.cli.ContainerList(ctx, container.ListOptions{All: true, Filters: ours}); err == nil {
		for _, c := range all {
			if dead(c.Labels) {
				d.t.Logf("docker: removing container %v of a test that was killed", c.Names)
				d.cli.ContainerRemove(ctx, c.ID, container.RemoveOptions{Force: true})
			}
		}
	}
	if all, err := d.cli.NetworkList(ctx, network.ListOptions{Filters: ours}); err == nil {
		for _, n := range all {
			if dead(n.Labels) {
				d.cli.NetworkRemove(ctx, n.ID)
			}
		}
	}
	if all, err := d.cli.ImageList(ctx, image.ListOptions{Filters: ours}); err == nil {
		for _, i := range all {
			if dead(i.Labels) {
				d.cli.ImageRemove(ctx, i.ID, image.RemoveOptions{Force: true})
			}
		}
	}
}

// Sleeper is the source of a program that waits to be told to end.
const Sleeper = `package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGTERM)
	<-c
}
`

// ImportBinary builds a static Go program and makes an image of it, with the
// program as entry point. Source is the directory of a main package, or the
// text of one that needs only the standard library. It returns the image's
// name.
func (d *Docker) ImportBinary(source string) string {
	d.t.Helper()

	bin := buildStatic(d.t, source)
	info, err := os.Stat(bin)
	if err != nil {
		d.t.Fatal(err)
	}
	content, err := os.ReadFile(bin)
	if err != nil {
		d.t.Fatal(err)
	}
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	for _, dir := range []string{"tmp/", "run/"} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o1777}); err != nil {
			d.t.Fatal(err)
		}
	}
	if err := w.WriteHeader(&tar.Header{Name: "app", Mode: 0o755, Size: info.Size()}); err != nil {
		d.t.Fatal(err)
	}
	if _, err := w.Write(content); err != nil {
		d.t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		d.t.Fatal(err)
	}
	name := d.UniqueName() + ":test"
	d.do("import image", func(ctx context.Context) error {
		r, err := d.cli.ImageImport(ctx, image.ImportSource{Source: &layer, SourceName: "-"}, name, image.ImportOptions{
			Changes: []string{`ENTRYPOINT ["/app"]`, fmt.Sprintf("LABEL %s=%d", dockerLabel, os.Getpid())},
		})
		if err != nil {
			return err
		}
		defer r.Close()
		_, err = io.Copy(io.Discard, r)
		return err
	})
	d.undo("remove image", func(ctx context.Context) error {
		_, err := d.cli.ImageRemove(ctx, name, image.RemoveOptions{Force: true})
		return err
	})
	return name
}

// buildStatic builds source and returns the path of the binary.
func buildStatic(t testing.TB, source string) string {
	t.Helper()

	dir := source
	if strings.HasPrefix(source, "package ") {
		dir = t.TempDir()
		for name, text := range map[string]string{"main.go": source, "go.mod": "module program\n"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	bin := filepath.Join(t.TempDir(), "app")
	cmd := exec.Command("go", "build", "-ldflags=-s -w", "-o", bin, ".")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", dir, err, out)
	}
	return bin
}

// Network makes a bridge network in a free /24 of 198.18.0.0/15 and returns
// its name and the first three octets of its addresses, dot included. Hosts
// have numbers from 2.
func (d *Docker) Network() (name, prefix string) {
	d.t.Helper()

	name = d.UniqueName()
	d.do("create network", func(ctx context.Context) error {
		var err error
		// Taken ranges are refused, so try others; start where other tests that
		// run now do not.
		for i := range 64 {
			prefix = fmt.Sprintf("198.18.%d.", (os.Getpid()+i*37)%256)
			_, err = d.cli.NetworkCreate(ctx, name, network.CreateOptions{
				Driver: "bridge",
				IPAM:   &network.IPAM{Config: []network.IPAMConfig{{Subnet: prefix + "0/24", Gateway: prefix + "1"}}},
				Labels: d.labels(),
			})
			if err == nil || !strings.Contains(strings.ToLower(err.Error()), "overlap") {
				return err
			}
		}
		return err
	})
	d.undo("remove network", func(ctx context.Context) error { return d.cli.NetworkRemove(ctx, name) })
	return name, prefix
}

// ContainerOptions say how a container is made. Only Image is needed.
type ContainerOptions struct {
	Image   string
	Name    string   // UniqueName if empty
	Network string   // none if empty; a network, host, or container:NAME
	IP      string   // address on Network
	Args    []string // of the program
}

// Container is a container of a test.
type Container struct {
	ID string
	d  *Docker
}

// CreateContainer makes a container and does not start it.
func (d *Docker) CreateContainer(o ContainerOptions) *Container {
	d.t.Helper()

	if o.Name == "" {
		o.Name = d.UniqueName()
	}
	if o.Network == "" {
		o.Network = "none"
	}
	var nets *network.NetworkingConfig
	if o.IP != "" {
		nets = &network.NetworkingConfig{EndpointsConfig: map[string]*network.EndpointSettings{
			o.Network: {IPAMConfig: &network.EndpointIPAMConfig{IPv4Address: o.IP}},
		}}
	}
	c := &Container{d: d}
	d.do("create container "+o.Name, func(ctx context.Context) error {
		// A terminal, so that the log is plain text.
		conf := &container.Config{Image: o.Image, Cmd: o.Args, Labels: d.labels(), Tty: true}
		r, err := d.cli.ContainerCreate(ctx, conf, &container.HostConfig{NetworkMode: container.NetworkMode(o.Network)}, nets, nil, o.Name)
		c.ID = r.ID
		return err
	})
	d.undo("remove container", func(ctx context.Context) error {
		return d.cli.ContainerRemove(ctx, c.ID, container.RemoveOptions{Force: true})
	})
	return c
}

// StartContainer makes a container and starts it.
func (d *Docker) StartContainer(o ContainerOptions) *Container {
	d.t.Helper()

	c := d.CreateContainer(o)
	c.Start()
	return c
}

// Start starts c, which was created, stopped or killed.
func (c *Container) Start() {
	c.d.t.Helper()
	c.d.do("start", func(ctx context.Context) error {
		return c.d.cli.ContainerStart(ctx, c.ID, container.StartOptions{})
	})
}

// Stop ends c with SIGTERM, and SIGKILL after a second.
func (c *Container) Stop() {
	c.d.t.Helper()
	c.d.do("stop", func(ctx context.Context) error {
		second := 1
		return c.d.cli.ContainerStop(ctx, c.ID, container.StopOptions{Timeout: &second})
	})
}

// Restart stops and starts c.
func (c *Container) Restart() {
	c.d.t.Helper()
	c.d.do("restart", func(ctx context.Context) error {
		second := 1
		return c.d.cli.ContainerRestart(ctx, c.ID, container.StopOptions{Timeout: &second})
	})
}

// Kill sends SIGKILL.
func (c *Container) Kill() {
	c.d.t.Helper()
	c.d.do("kill", func(ctx context.Context) error { return c.d.cli.ContainerKill(ctx, c.ID, "KILL") })
}

// Pause freezes the processes of c.
func (c *Container) Pause() {
	c.d.t.Helper()
	c.d.do("pause", func(ctx context.Context) error { return c.d.cli.ContainerPause(ctx, c.ID) })
}

// Unpause lets them run again.
func (c *Container) Unpause() {
	c.d.t.Helper()
	c.d.do("unpause", func(ctx context.Context) error { return c.d.cli.ContainerUnpause(ctx, c.ID) })
}

// Rename gives c another name.
func (c *Container) Rename(name string) {
	c.d.t.Helper()
	c.d.do("rename", func(ctx context.Context) error { return c.d.cli.ContainerRename(ctx, c.ID, name) })
}

// Remove kills and removes c.
func (c *Container) Remove() {
	c.d.t.Helper()
	c.d.do("remove", func(ctx context.Context) error {
		return c.d.cli.ContainerRemove(ctx, c.ID, container.RemoveOptions{Force: true})
	})
}

// Disconnect takes c off a network; its interface there is removed.
func (c *Container) Disconnect(net string) {
	c.d.t.Helper()
	c.d.do("disconnect", func(ctx context.Context) error { return c.d.cli.NetworkDisconnect(ctx, net, c.ID, false) })
}

// Connect puts c on a network, with address ip unless that is empty.
func (c *Container) Connect(net, ip string) {
	c.d.t.Helper()
	c.d.do("connect", func(ctx context.Context) error {
		var s *network.EndpointSettings
		if ip != "" {
			s = &network.EndpointSettings{IPAMConfig: &network.EndpointIPAMConfig{IPv4Address: ip}}
		}
		return c.d.cli.NetworkConnect(ctx, net, c.ID, s)
	})
}

// Inspect is what the engine says of c.
func (c *Container) Inspect() container.InspectResponse {
	c.d.t.Helper()
	var r container.InspectResponse
	c.d.do("inspect", func(ctx context.Context) (err error) {
		r, err = c.d.cli.ContainerInspect(ctx, c.ID)
		return err
	})
	return r
}

// Name of c, without the engine's slash.
func (c *Container) Name() string {
	c.d.t.Helper()
	return strings.TrimPrefix(c.Inspect().Name, "/")
}

// PID of c's first process, in the host's pid namespace.
func (c *Container) PID() int {
	c.d.t.Helper()
	return c.Inspect().State.Pid
}

// Do is [Node.Do] in the network namespace of c, which must run.
func (c *Container) Do(fn func() error) error {
	ns, err := netns.GetFromPid(c.PID())
	if err != nil {
		return fmt.Errorf("open network namespace of container %s: %w", c.ID, err)
	}
	defer ns.Close()
	return onThread(ns, fn)
}

// Logs is what c has written, stdout and stderr together.
func (c *Container) Logs() string {
	c.d.t.Helper()
	var out []byte
	c.d.do("logs", func(ctx context.Context) error {
		r, err := c.d.cli.ContainerLogs(ctx, c.ID, container.LogsOptions{ShowStdout: true, ShowStderr: true})
		if err != nil {
			return err
		}
		defer r.Close()
		out, err = io.ReadAll(r)
		return err
	})
	return string(out)
}
