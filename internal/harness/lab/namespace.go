package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// netnsDir is where ip-netns(8) keeps its names.
const netnsDir = "/run/netns"

// markPrefix begins the alias of a namespace's loopback interface, which says
// whose namespace it is.
const markPrefix = "sockwatch lab "

// notALab stands for the mark of a namespace that has none.
const notALab = "not a lab's"

// makeNamespace makes a named network namespace. It bears the mark before it
// has the name, so that whatever has the name and not the mark is not a lab's.
func makeNamespace(name, mark string) error {
	if err := os.MkdirAll(netnsDir, 0o755); err != nil {
		return fmt.Errorf("make %s: %w", netnsDir, err)
	}
	path := filepath.Join(netnsDir, name)
	f, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE|os.O_EXCL, 0)
	if err != nil {
		return fmt.Errorf("make namespace: %w", err)
	}
	f.Close()
	err = onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make namespace %s: %w", name, err)
		}
		if err := prepare(mark); err != nil {
			return fmt.Errorf("prepare namespace %s: %w", name, err)
		}
		if err := unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("name namespace %s: %w", name, err)
		}
		return nil
	})
	if err != nil {
		os.Remove(path)
	}
	return err
}

// prepare sets up the namespace that this thread is in: marked, loopback up,
// without IPv6, as a container on a network without it.
func prepare(mark string) error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	lo, err := h.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	if err := h.LinkSetAlias(lo, mark); err != nil {
		return fmt.Errorf("mark lo: %w", err)
	}
	if err := h.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	for _, conf := range []string{"all", "default"} {
		err := os.WriteFile("/proc/sys/net/ipv6/conf/"+conf+"/disable_ipv6", []byte("1"), 0)
		if err != nil && !errors.Is(err, os.ErrNotExist) { // a kernel without IPv6
			return err
		}
	}
	return nil
}

// removeNamespace takes away the name, and with it the namespace once nothing
// uses it any more.
func removeNamespace(name string) error {
	path := filepath.Join(netnsDir, name)
	for {
		err := unix.Unmount(path, unix.MNT_DETACH)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			break // not mounted, or not any more
		}
		if err != nil {
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// markOf reads whose namespace the named one is. It is empty where there is
// none, or where it is nobody's yet.
func markOf(name string) (string, error) {
	ns, err := openNamespace(name)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.EINVAL) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer ns.Close()
	h, err := netlinkAt(ns)
	if err != nil {
		return "", err
	}
	defer h.Close()
	lo, err := h.LinkByName("lo")
	if err != nil {
		return "", fmt.Errorf("find lo in %s: %w", name, err)
	}
	if alias := lo.Attrs().Alias; strings.HasPrefix(alias, markPrefix) {
		return alias, nil
	}
	return notALab, nil
}

// openNamespace opens a named namespace. A name that is no namespace is
// EINVAL.
func openNamespace(name string) (netns.NsHandle, error) {
	path := filepath.Join(netnsDir, name)
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return netns.None(), fmt.Errorf("open namespace %s: %w", name, err)
	}
	if fs.Type != unix.NSFS_MAGIC {
		return netns.None(), fmt.Errorf("open namespace %s: %w", name, unix.EINVAL)
	}
	h, err := netns.GetFromPath(path)
	if err != nil {
		return h, fmt.Errorf("open namespace %s: %w", name, err)
	}
	return h, nil
}

func netlinkAt(ns netns.NsHandle) (*netlink.Handle, error) {
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	return h, nil
}

// onThread runs f on a thread that is thrown away afterwards.
func onThread(f func() error) error {
	errc := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			// The main thread cannot be thrown away. While it is held here, another
			// one is used.
			errc <- onThread(f)
			runtime.UnlockOSThread()
			return
		}
		errc <- f()
	}()
	return <-errc
}
