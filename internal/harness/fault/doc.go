// Package fault breaks a node of a lab and repairs it again, also when the
// process that broke it does not live to do so.
//
// A fault has one life: intended; its undo journalled and on disk; the watchdog
// armed; applied; its effect verified; held; the heal intended; healed; the
// recovery verified; its journal entry removed. Each step that matters to the
// evidence is a mark with the time at which it was done, on the kernel's clock.
//
// The watchdog ([Watch]) is a process of its own, in a session of its own. It
// holds one end of a pipe, whose other end only the process that it guards has
// open. However that process ends, the pipe ends with it, and the watchdog
// undoes what is in the journal: at once, with nothing to wait for.
//
// What both of them leave behind, because both were killed, the next one
// removes ([Sweep]).
package fault
