// Package evidence gathers the parts of an evidence file that are not socket
// events, and reads saved files.
//
// A file begins with who looked, on what machine ([Host]), under which
// settings ([Sysctls]), and it pairs the kernel's clocks as it goes
// ([ClockPair], [Clock]). Sockets that were there before the trace get their
// owner from /proc ([SocketOwners]). Limits and privileges of the observing
// process are here as well, because they decide what it can see
// ([RaiseLimits], [DropCapabilities]).
//
// [Reader] and [ReadFile] read a saved file back, say where it is broken, and
// show what is missing from it.
package evidence
