// Package node has the programs that run inside a lab's nodes.
//
// A node other than the client runs a daemon, machined, that holds the
// machine's configuration, and in front of it a proxy, apid, which is the only
// one to listen on the network. A request for another node is forwarded to
// that node's apid, which forwards it to its machined over a local socket:
//
//	client ── apid of the controlplane ── apid of the worker ── machined of the worker
//
// The proxy is github.com/siderolabs/grpc-proxy, the transport grpc-go, both
// with the options that Talos gives them. Nothing of what the transport does by
// default is set here: when its defaults change, so does the lab.
//
// Every program is `sockwatch node PROGRAM`, and writes JSON Lines.
package node
