// Package measure runs an experiment plan and writes down what came of it.
//
// Each capture has a lab, an observer and a directory of its own, so that
// captures side by side share nothing but the machine: artifact, version, warm
// or cold connection, fault, send, kill at the deadline, heal, a minute of
// reading the version; then the observer is stopped, and what happened is
// explained from its evidence, not from the clock of this program.
//
// Everything that a capture leaves is written when it is over. A run that was
// cut short goes on where it stopped.
package measure
