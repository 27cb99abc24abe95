package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// cgroup holds the processes of a node, so that they can be frozen and killed
// together: the freezer of cgroup v2 where the kernel has it, else that of v1.
type cgroup struct {
	dir string
}

// cgroupParent is the directory that holds the cgroups of all labs.
const cgroupParent = "sockwatch"

// cgroupEvery is how often a cgroup is looked at that does not tell of its
// changes.
const cgroupEvery = time.Millisecond

// freezer finds the directory where cgroups can be made that freeze. Those of
// v2 do since Linux 5.2.
func freezer() (string, error) {
	mounts, err := procfs.GetMounts()
	if err != nil {
		return "", fmt.Errorf("list mounts: %w", err)
	}
	v1 := ""
	for _, m := range mounts {
		if unix.Access(m.MountPoint, unix.W_OK) != nil {
			continue
		}
		switch _, isFreezer := m.SuperOptions["freezer"]; {
		case m.FSType == "cgroup2":
			return m.MountPoint, nil
		case m.FSType == "cgroup" && isFreezer:
			v1 = m.MountPoint
		}
	}
	if v1 == "" {
		return "", fmt.Errorf("%w: no cgroup file system with a freezer that can be written to is mounted", ErrUnsupported)
	}
	return v1, nil
}

func (g cgroup) file(name string) string { return filepath.Join(g.dir, name) }

func (g cgroup) write(name, value string) error {
	return os.WriteFile(g.file(name), []byte(value), 0)
}

func (g cgroup) v1() bool {
	_, err := os.Stat(g.file("freezer.state"))
	return err == nil
}

func (g cgroup) exists() bool {
	_, err := os.Stat(g.dir)
	return err == nil
}

func (g cgroup) make() error {
	for {
		err := os.MkdirAll(g.dir, 0o755)
		if errors.Is(err, os.ErrNotExist) {
			continue // the directory above has just gone, with the last lab in it
		}
		if err != nil {
			return fmt.Errorf("make cgroup: %w", err)
		}
		return nil
	}
}

// join moves this process, all threads of it, into the cgroup.
func (g cgroup) join() error {
	if err := g.write("cgroup.procs", "0"); err != nil {
		return fmt.Errorf("join cgroup: %w", err)
	}
	return nil
}

// procs lists the processes in the cgroup, zombies apart.
func (g cgroup) procs() ([]int, error) {
	b, err := os.ReadFile(g.file("cgroup.procs"))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list processes of cgroup: %w", err)
	}
	var pids []int
	for f := range strings.FieldsSeq(string(b)) {
		pid, err := strconv.Atoi(f)
		if err != nil {
			return nil, fmt.Errorf("list processes of cgroup: %w", err)
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// frozen says whether every process of the cgroup has stopped.
func (g cgroup) frozen() (bool, error) {
	if g.v1() {
		b, err := os.ReadFile(g.file("freezer.state"))
		return strings.TrimSpace(string(b)) == "FROZEN", err
	}
	b, err := os.ReadFile(g.file("cgroup.events"))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return bytes.Contains(b, []byte("frozen 1")), err
}

// freeze stops the processes of the cgroup, or lets them go on, and waits
// until they have.
func (g cgroup) freeze(ctx context.Context, frozen bool) error {
	if err := g.ask(frozen); err != nil {
		return err
	}
	return await(ctx, func() (bool, error) {
		now, err := g.frozen()
		if err != nil || now == frozen {
			return err == nil, err
		}
		if frozen && g.v1() {
			return false, g.ask(true) // what was forked meanwhile is caught by asking again
		}
		return false, nil
	})
}

func (g cgroup) ask(frozen bool) error {
	name, value := "cgroup.freeze", "0"
	if frozen {
		value = "1"
	}
	if g.v1() {
		name, value = "freezer.state", "THAWED"
		if frozen {
			value = "FROZEN"
		}
	}
	return g.write(name, value)
}

// kill ends every process of the cgroup with SIGKILL, frozen or not, and waits
// until there is none. The cgroup is thawed afterwards.
func (g cgroup) kill(ctx context.Context) error {
	if !g.exists() {
		return nil
	}
	if err := await(ctx, g.killed); err != nil {
		return err
	}
	return g.ask(false)
}

// killed kills what there is, and says whether there was nothing.
func (g cgroup) killed() (bool, error) {
	pids, err := g.procs()
	if err != nil || len(pids) == 0 {
		return err == nil, err
	}
	for _, pid := range pids {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return false, fmt.Errorf("kill process %d: %w", pid, err)
		}
	}
	if g.v1() {
		return false, g.ask(false) // only then do they die
	}
	return false, nil
}

// remove kills what is in the cgroup, also what joins it meanwhile, and
// removes it.
func (g cgroup) remove(ctx context.Context) error {
	return await(ctx, func() (bool, error) {
		if !g.exists() {
			return true, nil
		}
		if _, err := g.killed(); err != nil {
			return false, err
		}
		err := os.Remove(g.dir)
		if err == nil || errors.Is(err, unix.EBUSY) {
			return err == nil, nil
		}
		return false, fmt.Errorf("remove cgroup: %w", err)
	})
}

// await looks again and again until done says so.
func await(ctx context.Context, done func() (bool, error)) error {
	for {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(cgroupEvery):
		}
	}
}
