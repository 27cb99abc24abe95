package evidence

import "golang.org/x/sys/unix"

// initPIDNamespace is the inode of the initial pid namespace, PROC_PID_INIT_INO.
const initPIDNamespace = 0xEFFFFFFC

// ForeignPIDs names the blind spot of a process that runs in a pid namespace of
// its own, or "". The kernel's records have process ids of the initial pid
// namespace, /proc has those of its own: one process would have two numbers.
func ForeignPIDs() string {
	for _, path := range []string{
		"/proc/self/ns/pid",
		"/proc/1/ns/pid", // a /proc of the initial namespace, mounted in another
	} {
		var st unix.Stat_t
		if unix.Stat(path, &st) == nil && st.Ino == initPIDNamespace {
			return ""
		}
	}
	return "owners from /proc: sockwatch ran in a pid namespace of its own, whose process ids are not those of the records; " +
		"a socket born before the session has no owner until it is used"
}
