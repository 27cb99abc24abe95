// Package report tells what saved evidence says: of each connection that had
// trouble, its story, from both of its ends where both are there.
//
// A [Collector] takes the events of all files; [Collector.Report] makes the
// stories of them; [Report.AppendText] and encoding/json write them. All of it
// is a pure function of the events: nothing does I/O, and the same files give
// the same stories.
//
// A story says what the events say and no more. What does not follow from
// them by itself is marked as inferred, and what they cannot show is said to
// be unknown.
package report
