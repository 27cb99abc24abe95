package target

import (
	"slices"
	"testing"

	"github.com/sockwatch/sockwatch/internal/testlab"
)

func TestCandidates(t *testing.T) {
	testlab.Privileged(t)
	t.Setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
	node := testlab.NewNodes(t, 1)[0]

	got := Candidates(t.Context())
	if len(got) == 0 || got[0] != "host" {
		t.Errorf("first of %q is not host", got)
	}
	if !slices.Contains(got, node.Name) {
		t.Errorf("%q has no %q", got, node.Name)
	}
	for _, c := range got {
		if _, err := ParseSpec(c); err != nil {
			t.Errorf("%q cannot be given: %v", c, err)
		}
	}
}

func TestCandidatesOfEngine(t *testing.T) {
	testlab.Privileged(t)
	d := testlab.NewDocker(t)
	node := testlab.NewNodes(t, 1)[0]
	// One of its own name, and one that has the name of a namespace.
	image := d.ImportBinary(testlab.Sleeper)
	own := d.CreateContainer(testlab.ContainerOptions{Image: image})
	same := d.CreateContainer(testlab.ContainerOptions{Image: image})
	same.Rename(node.Name)

	got := Candidates(t.Context())
	for _, want := range []string{own.Name(), "netns:" + node.Name, "docker:" + node.Name} {
		if !slices.Contains(got, want) {
			t.Errorf("%q has no %q", got, want)
		}
	}
	if slices.Contains(got, node.Name) {
		t.Errorf("%q has %q, which is ambiguous", got, node.Name)
	}
}
