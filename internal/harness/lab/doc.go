// Package lab makes the three nodes that fault experiments run on, breaks and
// repairs them, and takes them away again.
//
// A lab is a client, a controlplane and a worker with addresses of their own
// on one bridge. They run the programs of package node. A [Lab] belongs to no
// process: what it consists of is written down before it is made, and any
// process can open it by its name, change it, or take it down, also one that
// was half made when its maker was killed.
//
// There are two backends. "netns" makes a network namespace for each node, and
// one more that holds the bridge, so that the namespace of the host is never
// touched and every lab can use the same addresses; the processes of a node
// live in a cgroup of their own. "docker" makes a container for each node, on a
// network of their own.
//
// Every way to break a node is undone by another, every one of them does
// nothing where there is nothing left to do, and what holds is read back from
// the kernel ([Node.Condition]), not remembered.
package lab
