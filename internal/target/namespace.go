package target

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// netnsDir is where ip-netns(8) keeps its names.
const netnsDir = "/run/netns"

// errNotNamespace is returned for a file that is not of the nsfs file system,
// such as a name of ip-netns(8) between its creation and its mount.
var errNotNamespace = errors.New("not a namespace file")

// errOtherKind is returned for a namespace that is not a network namespace.
type errOtherKind struct{ kind int }

func (e errOtherKind) Error() string {
	names := map[int]string{
		unix.CLONE_NEWCGROUP: "cgroup", unix.CLONE_NEWIPC: "ipc", unix.CLONE_NEWNS: "mount", unix.CLONE_NEWPID: "pid",
		unix.CLONE_NEWTIME: "time", unix.CLONE_NEWUSER: "user", unix.CLONE_NEWUTS: "uts",
	}
	if name, ok := names[e.kind]; ok {
		return "a " + name + " namespace, not a network namespace"
	}
	return "a namespace of another kind, not a network namespace"
}

// Namespace is an open network namespace. As long as it is open the kernel
// keeps the namespace, even if its name and its processes are gone.
type Namespace struct {
	Name       string // the target, as given
	Generation int    // 1 for the first namespace seen under this name, then one more each time
	Dev        uint64 // of nsfs
	Inode      uint32 // net->ns.inum; reused by the kernel after the end
	Cookie     uint64 // SO_NETNS_COOKIE, unique until reboot; 0 before Linux 5.14
	Container  string // full container id, for a container
	PID        int    // process it was reached by, for a pid or a container

	f *os.File
}

// File is the open namespace. It stays owned by n and ends with Close.
func (n *Namespace) File() *os.File { return n.f }

// Close lets the kernel's namespace go.
func (n *Namespace) Close() error { return n.f.Close() }

// Do runs f in the namespace, on an operating system thread of its own, and
// returns f's error. A thread that cannot return to where it came from is
// ended, never reused. Goroutines that f starts run outside.
func (n *Namespace) Do(f func() error) error {
	errc := make(chan error, 1)
	go func() {
		defer close(errc)
		// Never unlocked unless the thread is back: the runtime ends the thread
		// of a goroutine that exits locked.
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			// The main thread cannot be ended, and /proc/self is its view.
			// While it is held here another thread is used.
			errc <- n.Do(f)
			runtime.UnlockOSThread()
			return
		}
		orig, err := netns.Get()
		if err != nil {
			runtime.UnlockOSThread()
			errc <- fdError("open the namespace of this thread", err)
			return
		}
		defer orig.Close()
		if err := netns.Set(netns.NsHandle(n.f.Fd())); err != nil {
			runtime.UnlockOSThread()
			errc <- fdError("enter namespace "+n.Name, err)
			return
		}
		err = f()
		if netns.Set(orig) == nil {
			runtime.UnlockOSThread()
		}
		errc <- err
	}()
	err, ok := <-errc
	if !ok {
		return fmt.Errorf("run in namespace %s: the function ended its goroutine", n.Name)
	}
	return err
}

// openNamespace opens the network namespace that path leads to.
func openNamespace(path string) (*Namespace, error) {
	// O_PATH first: opening an arbitrary file may block or act on a device.
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fdError("open "+path, err)
	}
	defer unix.Close(fd)
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return nil, fmt.Errorf("statfs %s: %w", path, err)
	}
	if fs.Type != unix.NSFS_MAGIC {
		return nil, fmt.Errorf("open %s: %w", path, errNotNamespace)
	}
	// Through the descriptor, so that what was checked is what is opened.
	h, err := netns.GetFromPath("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil {
		return nil, fdError("open "+path, err)
	}
	n := &Namespace{Name: path, f: os.NewFile(uintptr(h), path)}
	if err := n.identify(); err != nil {
		n.Close()
		return nil, err
	}
	return n, nil
}

// identify fills in what the kernel knows of n.
func (n *Namespace) identify() error {
	fd := int(n.f.Fd())
	kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE)
	if err != nil {
		return fmt.Errorf("read the type of namespace %s: %w", n.Name, err)
	}
	if kind != unix.CLONE_NEWNET {
		return errOtherKind{kind}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("stat %s: %w", n.Name, err)
	}
	n.Dev, n.Inode = st.Dev, uint32(st.Ino)
	return n.Do(func() error {
		s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fdError("make a socket in namespace "+n.Name, err)
		}
		defer unix.Close(s)
		n.Cookie, err = unix.GetsockoptUint64(s, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		if err != nil && !errors.Is(err, unix.ENOPROTOOPT) {
			return fmt.Errorf("read the cookie of namespace %s: %w", n.Name, err)
		}
		return nil
	})
}

// fileID is the identity of the namespace file at path, without opening it.
// ok is false where there is none.
func fileID(path string) (id nsID, ok bool) {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil || st.Dev != nsfsDev() {
		return nsID{}, false
	}
	return nsID{st.Dev, uint32(st.Ino)}, true
}

// nsID identifies a namespace while it is open.
type nsID struct {
	dev   uint64
	inode uint32
}

func (n *Namespace) id() nsID { return nsID{n.Dev, n.Inode} }

// nsfsDev is the device of nsfs, which the kernel mounts once.
var nsfsDev = sync.OnceValue(func() uint64 {
	var st unix.Stat_t
	if unix.Stat("/proc/self/ns/net", &st) != nil {
		return 0
	}
	return st.Dev
})

func namedPath(name string) string { return filepath.Join(netnsDir, name) }

func procPath(pid int) string { return "/proc/" + strconv.Itoa(pid) + "/ns/net" }

// hostPath is the file of the host's namespace. In a sandbox root may not look
// at process 1; there this process stands for it.
func hostPath() string {
	if _, ok := fileID(procPath(1)); ok {
		return procPath(1)
	}
	return "/proc/self/ns/net"
}

const (
	// initPIDInode is the inode of the initial pid namespace, PROC_PID_INIT_INO.
	initPIDInode = 0xEFFFFFFC
	// initCookie is that of the initial network namespace: it is the first.
	initCookie = 1
)

// nested reports whether process 1 of /proc is not the machine's.
func nested() bool {
	for _, of := range []string{"self", "1"} {
		if id, ok := fileID("/proc/" + of + "/ns/pid"); ok && id.inode == initPIDInode {
			return false
		}
	}
	return true
}

// named lists the named namespaces, and not what else lies beside them.
func named() []string {
	entries, err := os.ReadDir(netnsDir)
	if err != nil {
		return nil // no directory: none was ever made
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		if _, ok := fileID(namedPath(e.Name())); ok {
			names = append(names, e.Name())
		}
	}
	return names
}

// monoNow reads CLOCK_MONOTONIC in nanoseconds.
func monoNow() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // cannot fail on Linux
	}
	return uint64(ts.Nano())
}
