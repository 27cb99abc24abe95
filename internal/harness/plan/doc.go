// Package plan reads experiment plans: which captures a measurement makes, what
// is done to which node when, and what is predicted. It does no I/O.
//
// A plan is YAML and read strictly: what it does not know is an error with its
// line. Every time in it counts from the send, the moment at which the client
// starts.
package plan
