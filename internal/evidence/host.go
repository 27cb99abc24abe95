package evidence

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/internal/events"
)

// HostFacts are the facts about this machine that a reader of the evidence
// needs to judge it.
type HostFacts struct {
	Kernel   string // uname -r
	Machine  string // uname -m
	Hostname string
	BootID   string // changes with each boot
	BTF      string // SHA-256 of /sys/kernel/btf/vmlinux, hex; empty if there is none
	HZ       uint32 // ticks a second
	Lockdown string // none, integrity, confidentiality or unknown
}

const (
	pathBootID   = "/proc/sys/kernel/random/boot_id"
	pathBTF      = "/sys/kernel/btf/vmlinux"
	pathLockdown = "/sys/kernel/security/lockdown"
)

// Host reads the facts. A kernel without BTF or without the lockdown file is
// not an error.
func Host() (HostFacts, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return HostFacts{}, fmt.Errorf("uname: %w", err)
	}
	f := HostFacts{
		Kernel:   unix.ByteSliceToString(u.Release[:]),
		Machine:  unix.ByteSliceToString(u.Machine[:]),
		Hostname: unix.ByteSliceToString(u.Nodename[:]),
	}

	id, err := os.ReadFile(pathBootID)
	if err != nil {
		return HostFacts{}, fmt.Errorf("read boot id: %w", err)
	}
	f.BootID = strings.TrimSpace(string(id))

	if f.BTF, err = HashFile(pathBTF); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return HostFacts{}, fmt.Errorf("hash kernel BTF: %w", err)
	}
	if f.HZ, err = hz(); err != nil {
		return HostFacts{}, err
	}
	f.Lockdown = lockdown(pathLockdown)
	return f, nil
}

// Fill copies the facts into a header.
func (f HostFacts) Fill(s *events.Session) {
	s.Kernel, s.Machine, s.Hostname = f.Kernel, f.Machine, f.Hostname
	s.BootID, s.BTF, s.HZ, s.Lockdown = f.BootID, f.BTF, f.HZ, f.Lockdown
}

// HashFile is the SHA-256 of a file, in hexadecimal.
func HashFile(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()

	h := sha256.New()
	if _, err := io.Copy(h, file); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// hz derives the tick rate from the resolution of a clock that moves once a
// tick; /proc does not show CONFIG_HZ everywhere.
func hz() (uint32, error) {
	var ts unix.Timespec
	if err := unix.ClockGetres(unix.CLOCK_REALTIME_COARSE, &ts); err != nil {
		return 0, fmt.Errorf("read the resolution of CLOCK_REALTIME_COARSE: %w", err)
	}
	res := ts.Nano()
	if res <= 0 {
		return 0, fmt.Errorf("resolution of CLOCK_REALTIME_COARSE is %d ns", res)
	}
	return uint32((1_000_000_000 + res/2) / res), nil
}

// lockdown picks the active mode, which the kernel puts in brackets:
// "none [integrity] confidentiality".
func lockdown(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return "unknown" // no securityfs, or not readable
	}
	for word := range strings.FieldsSeq(string(b)) {
		if mode, ok := strings.CutPrefix(word, "["); ok {
			return strings.TrimSuffix(mode, "]")
		}
	}
	return "unknown"
}
