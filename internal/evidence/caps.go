package evidence

import (
	"fmt"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"
)

// DropCapabilities gives up every capability of this process but keep, in all
// its threads, for good: the bounding set is emptied of the others as well
// (where CAP_SETPCAP allows it) and no_new_privs is set, so that no program it
// executes gets them back either. What is not permitted now stays so, even if
// it is in keep.
func DropCapabilities(keep ...cap.Value) error {
	now := cap.GetProc()
	next := cap.NewSet()
	var have []cap.Value
	for _, v := range keep {
		ok, err := now.GetFlag(cap.Permitted, v)
		if err != nil {
			return fmt.Errorf("look up capability %v: %w", v, err)
		}
		if ok {
			have = append(have, v)
		}
	}
	for _, f := range []cap.Flag{cap.Permitted, cap.Effective} {
		if err := next.SetFlag(f, true, have...); err != nil {
			return fmt.Errorf("build capability set: %w", err)
		}
	}

	if _, err := cap.Prctlw(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}

	// The bounding set can be changed only while CAP_SETPCAP is effective.
	if ok, err := now.GetFlag(cap.Effective, cap.SETPCAP); err == nil && ok {
		kept := make(map[cap.Value]bool, len(have))
		for _, v := range have {
			kept[v] = true
		}
		for v := range cap.MaxBits() {
			if in, err := cap.GetBound(v); err != nil || !in || kept[v] {
				continue
			}
			if err := cap.DropBound(v); err != nil {
				return fmt.Errorf("drop %v from the bounding set: %w", v, err)
			}
		}
	}

	if err := cap.ResetAmbient(); err != nil {
		return fmt.Errorf("clear ambient capabilities: %w", err)
	}
	if err := next.SetProc(); err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	return nil
}
