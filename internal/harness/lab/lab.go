package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/sockwatch/sockwatch/internal/harness/node"
)

// The backends.
const (
	Netns  = "netns"
	Docker = "docker"
)

// The roles of the nodes.
const (
	Client       = "client"
	Controlplane = "controlplane"
	Worker       = "worker"
)

// Roles of the nodes of every lab.
var Roles = []string{Client, Controlplane, Worker}

// DefaultStateDir is where labs are written down.
const DefaultStateDir = "/run/sockwatch/labs"

// What can be wrong with a lab. The error says which one and what exactly.
var (
	ErrName        = errors.New("not a name for a lab")
	ErrExists      = errors.New("the lab exists")
	ErrNotFound    = errors.New("no such lab")
	ErrNode        = errors.New("no such node")
	ErrBackend     = errors.New("no such backend")
	ErrEngine      = errors.New("the Docker engine is not available")
	ErrUnsupported = errors.New("not possible here")
	ErrNotReady    = errors.New("the lab did not come up")
)

// Spec says how to make a lab.
type Spec struct {
	Name     string // lower case letters, digits and dashes, a letter first, at most 32
	Backend  string // Netns, the default, or Docker
	StateDir string // DefaultStateDir if empty
	Binary   string // the sockwatch that the nodes run, this program if empty
}

// Lab is a lab that is up, or was.
type Lab struct {
	Name    string
	Backend string
	Binary  string
	Dir     string // what is written down of it, with its secrets: 0700

	marked  string // Dir as what was made is marked with: there are other ways to write it
	nodes   []*Node
	backend backend
}

// Status is what is known of a lab without looking at its nodes.
type Status struct {
	Name    string    `json:"name"`
	Backend string    `json:"backend"`
	Phase   Phase     `json:"phase"`
	Made    time.Time `json:"made"`
	Dir     string    `json:"dir"`
}

// Phase of a lab's life.
type Phase string

// The phases. A lab that is making or removing while no process does so was
// left half way; [Remove] removes it.
const (
	Making   Phase = "making"
	Ready    Phase = "up"
	Removing Phase = "removing"

	// Left is not written down any more, but something of it is still there.
	Left Phase = "left"
)

// backend makes and takes away what a lab consists of. Each method is called
// under the lab's lock. Each of them may find its work done already, or half
// done.
type backend interface {
	check(ctx context.Context) error // whether it can be had at all
	make(ctx context.Context) error
	remove(ctx context.Context) error
	target(n *Node) string

	start(ctx context.Context, n *Node) error
	kill(ctx context.Context, n *Node) error
	freeze(ctx context.Context, n *Node, frozen bool) error
	plug(ctx context.Context, n *Node, o PlugOptions) error
	unplug(ctx context.Context, n *Node) error
	setPort(ctx context.Context, n *Node, up bool) error
	dropOnBridge(ctx context.Context, n *Node, d Direction) error
	dropOutput(ctx context.Context, n *Node, drop bool) error
	condition(ctx context.Context, n *Node) (Condition, error)
	log(ctx context.Context, n *Node) ([]byte, error)
	running(ctx context.Context, n *Node) (bool, error)
	enter(ctx context.Context, n *Node) error
	config(n *Node) (node.Config, error)
}

var nameRule = regexp.MustCompile(`^[a-z][a-z0-9-]{0,30}[a-z0-9]$|^[a-z]$`)

func checkName(name string) error {
	if !nameRule.MatchString(name) {
		return fmt.Errorf("%w: %q; it takes lower case letters, digits and dashes, at most 32, a letter first", ErrName, name)
	}
	return nil
}

// addr is a node's address, in a network with this prefix.
func addr(network netip.Prefix, role string) netip.Addr {
	a := network.Masked().Addr().As4()
	a[3] = byte(2 + slices.Index(Roles, role))
	return netip.AddrFrom4(a)
}

// Open finds a lab by its name. It may be half made.
func Open(stateDir, name string) (*Lab, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	if stateDir == "" {
		stateDir = DefaultStateDir
	}
	s, err := readState(filepath.Join(stateDir, name))
	if errors.Is(err, os.ErrNotExist) {
		return nil, notFound(stateDir, name)
	}
	if err != nil {
		return nil, err
	}
	return newLab(filepath.Join(stateDir, name), s)
}

func notFound(stateDir, name string) error {
	all, err := List(stateDir)
	if err != nil || len(all) == 0 {
		return fmt.Errorf("%w: %s; there is none", ErrNotFound, name)
	}
	var names []string
	for _, s := range all {
		names = append(names, s.Name)
	}
	return fmt.Errorf("%w: %s; there is %s", ErrNotFound, name, strings.Join(names, ", "))
}

func newLab(dir string, s state) (*Lab, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	l := &Lab{Name: s.Name, Backend: s.Backend, Binary: s.Binary, Dir: dir, marked: cmp.Or(s.Dir, dir)}
	for _, role := range Roles {
		n := &Node{Role: role, Name: "sw-" + s.Name + "-" + role, lab: l}
		if s.Network.IsValid() {
			n.Addr = addr(s.Network, role)
		}
		l.nodes = append(l.nodes, n)
	}
	l.backend, err = newBackend(l, s)
	return l, err
}

// Node finds a node by its role.
func (l *Lab) Node(role string) (*Node, error) {
	for _, n := range l.nodes {
		if n.Role == role {
			return n, nil
		}
	}
	return nil, fmt.Errorf("%w in lab %s: %q; there is %s", ErrNode, l.Name, role, strings.Join(Roles, ", "))
}

// Nodes of the lab, in the order of [Roles].
func (l *Lab) Nodes() []*Node { return slices.Clone(l.nodes) }

// Status of the lab as it is written down now.
func (l *Lab) Status() (Status, error) {
	s, err := readState(l.Dir)
	if errors.Is(err, os.ErrNotExist) {
		return Status{}, fmt.Errorf("%w: %s", ErrNotFound, l.Name)
	}
	return s.status(l.Dir), err
}

// List gives the labs that are written down in stateDir, by name, and after
// them those of which something is left although nothing is written down, in
// stateDir or elsewhere.
func List(stateDir string) ([]Status, error) {
	if stateDir == "" {
		stateDir = DefaultStateDir
	}
	entries, err := os.ReadDir(stateDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("list labs: %w", err)
	}
	var all []Status
	for _, e := range entries {
		if !e.IsDir() || checkName(e.Name()) != nil {
			continue
		}
		dir := filepath.Join(stateDir, e.Name())
		s, err := readState(dir)
		if errors.Is(err, os.ErrNotExist) {
			continue // it has just gone
		}
		if err != nil {
			return nil, err
		}
		all = append(all, s.status(dir))
	}
	left, err := leftNamespaces()
	return slices.Concat(all, left, leftContainers()), err
}

// Remove takes a lab away, or what is left of one that is written down nowhere
// any more.
func Remove(ctx context.Context, stateDir, name string) error {
	if stateDir == "" {
		stateDir = DefaultStateDir
	}
	l, err := Open(stateDir, name)
	if err == nil {
		return l.Down(ctx)
	}
	if !errors.Is(err, ErrNotFound) {
		return err
	}
	all, e := List(stateDir)
	for _, s := range all {
		if s.Name == name && s.Phase == Left {
			return removeLeft(ctx, s)
		}
	}
	if e == nil && len(all) == 0 {
		os.Remove(stateDir) // made for a lab that its maker did not live to make
	}
	return errors.Join(err, e)
}

// removeLeft removes what is left of a lab.
func removeLeft(ctx context.Context, s Status) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	w, err := plan(Spec{Name: s.Name, Backend: s.Backend}, s.Dir)
	if err != nil {
		return err
	}
	l, err := newLab(s.Dir, w)
	if err != nil {
		return err
	}
	return l.backend.remove(ctx)
}
