package lab

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/procfs"

	"github.com/sockwatch/sockwatch/internal/testlab"
)

// freezers finds the freezer of each version that the machine has.
func freezers(t *testing.T) map[string]string {
	t.Helper()
	mounts, err := procfs.GetMounts()
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string]string)
	for _, m := range mounts {
		if _, ok := m.SuperOptions["freezer"]; ok && m.FSType == "cgroup" {
			found["v1"] = m.MountPoint
		}
		if m.FSType == "cgroup2" {
			found["v2"] = m.MountPoint
		}
	}
	if len(found) == 0 {
		t.Fatal("no freezer is mounted")
	}
	return found
}

// Processes stop, go on, and die whether they had stopped or not.
func TestCgroup(t *testing.T) {
	testlab.Privileged(t)
	for version, root := range freezers(t) {
		t.Run(version, func(t *testing.T) {
			g := cgroup{filepath.Join(root, "sockwatch-test-"+itoa(os.Getpid()))}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			if err := g.make(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { g.remove(context.Background()) })
			if g.v1() != (version == "v1") {
				t.Errorf("v1 is %t", g.v1())
			}

			// A process that forks and tells of itself.
			cmd := exec.CommandContext(ctx, "sh", "-c", `echo 0 >"$0"/cgroup.procs; while :; do echo x; sleep 0.01; done`, g.dir)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			lines := make(chan bool, 1000)
			go func() {
				for s := bufio.NewScanner(out); s.Scan(); {
					lines <- true
				}
				close(lines)
			}()
			for range 3 {
				<-lines
			}
			for range 5 {
				if err := g.freeze(ctx, true); err != nil {
					t.Fatal(err)
				}
				if frozen, err := g.frozen(); err != nil || !frozen {
					t.Fatalf("frozen %t, %v", frozen, err)
				}
				for len(lines) > 0 {
					<-lines
				}
				select {
				case <-lines:
					// One may have been on its way.
					select {
					case <-lines:
						t.Fatal("a frozen process writes")
					case <-time.After(100 * time.Millisecond):
					}
				case <-time.After(100 * time.Millisecond):
				}
				if err := g.freeze(ctx, false); err != nil {
					t.Fatal(err)
				}
				<-lines
			}
			if pids, err := g.procs(); err != nil || len(pids) == 0 {
				t.Errorf("processes %v, %v", pids, err)
			}

			if err := g.freeze(ctx, true); err != nil {
				t.Fatal(err)
			}
			if err := g.kill(ctx); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != -1 {
				t.Errorf("the process ended with %v", err)
			}
			if frozen, err := g.frozen(); err != nil || frozen {
				t.Errorf("killed, the cgroup is frozen: %t, %v", frozen, err)
			}
			for range 2 {
				if err := g.remove(ctx); err != nil {
					t.Fatal(err)
				}
			}
			if g.exists() {
				t.Error("it is still there")
			}
			if pids, err := g.procs(); err != nil || len(pids) != 0 {
				t.Errorf("processes %v, %v of a cgroup that is gone", pids, err)
			}
		})
	}
}

// A wait ends with its context.
func TestAwait(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	tries := 0
	err := await(ctx, func() (bool, error) {
		if tries++; tries == 3 {
			cancel()
		}
		return false, nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
