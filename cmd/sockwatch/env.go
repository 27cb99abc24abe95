package main

import (
	"errors"
	"io"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// environment is what a command may take from the system, so that nothing else
// in this package reaches for it.
type environment struct {
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer

	Args    []string // without the program's name
	Getenv  func(string) string
	Environ func() []string
	Geteuid func() int
	// IsTerminal says whether a reader or writer above is one.
	IsTerminal func(any) bool
	// Signals delivers SIGINT, SIGTERM and SIGHUP until stop is called.
	Signals func() (c <-chan os.Signal, stop func())
	// Exit ends the process at once.
	Exit func(status int)

	stdoutErr error // the first error of help and the like, see output
}

func systemEnv() *environment {
	// A reader that goes away is an error like any other, not a silent death.
	signal.Ignore(unix.SIGPIPE)
	return &environment{
		Stdin:  os.Stdin,
		Stdout: os.Stdout,
		Stderr: os.Stderr,

		Args:    os.Args[1:],
		Getenv:  os.Getenv,
		Environ: os.Environ,
		Geteuid: os.Geteuid,
		IsTerminal: func(f any) bool {
			fd, ok := f.(interface{ Fd() uintptr })
			return ok && term.IsTerminal(int(fd.Fd()))
		},
		Signals: func() (<-chan os.Signal, func()) {
			c := make(chan os.Signal, 2)
			signal.Notify(c, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
			return c, func() { signal.Stop(c) }
		},
		Exit: os.Exit,
	}
}

// colour says whether what is written to w should be coloured.
func (env *environment) colour(w io.Writer) bool {
	return env.IsTerminal(w) && env.Getenv("NO_COLOR") == "" && env.Getenv("TERM") != "dumb"
}

// output is Stdout for text that is printed in passing: cobra ignores write
// errors, so the first is kept for the end.
type output struct{ env *environment }

func (o output) Write(b []byte) (int, error) {
	n, err := o.env.Stdout.Write(b)
	if err != nil && o.env.stdoutErr == nil {
		var path *os.PathError
		if errors.As(err, &path) {
			err = path.Err
		}
		o.env.stdoutErr = err
	}
	return n, err
}
