// Package target turns a name on the command line into a network namespace
// and follows it over time.
//
// A [Spec] is what the user typed. [Resolve] answers once; [Watch] keeps
// answering: a named namespace that is deleted and added again, or a
// container that is restarted, is the next generation of the same target.
//
// Nothing is polled where the kernel tells. A named namespace is a bind
// mount, so the mount table of this process says when one comes or goes: poll
// on /proc/self/mountinfo wakes for both, whether or not /run/netns exists
// yet, and needs no inotify instance. The end of a process is a readable
// pidfd. The Docker engine tells of containers by its event stream. Only what
// has no event is checked four times a second: a pid that does not exist yet
// or changes its namespace, and symbolic links on the way of a path.
//
// An open [Namespace] keeps the kernel's namespace alive, and so do BPF links
// made inside it. Whoever receives a [Gone] must close both promptly, or what
// the user deleted lives on.
package target
