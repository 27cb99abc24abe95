package main

import (
	"fmt"
	"os"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/sink"
)

// fileSink is a JSON Lines file that is opened by its first event. A session
// that fails before it begins leaves no empty file behind and, with --force,
// the old one untouched.
type fileSink struct {
	path   string
	mode   sink.Mode
	notice func(string)

	out *sink.JSONL
}

// check refuses early what opening would refuse later.
func (f *fileSink) check() error {
	info, err := os.Lstat(f.path)
	switch {
	case err != nil:
		return nil // opening says what is wrong, if anything
	case f.mode == sink.Create:
		return f.open()
	case !info.Mode().IsRegular():
		return fmt.Errorf("output %s: %w", f.path, sink.ErrNotRegular)
	}
	return nil
}

func (f *fileSink) open() error {
	file, err := sink.OpenFile(f.path, f.mode)
	if err != nil {
		return err
	}
	if file.Cut > 0 {
		f.notice(fmt.Sprintf("%s ended in the middle of a line; %d bytes were cut off", f.path, file.Cut))
	}
	f.out = sink.NewJSONL(file)
	return nil
}

func (f *fileSink) Write(e *events.Event) error {
	if f.out == nil {
		if err := f.open(); err != nil {
			return err
		}
	}
	return f.out.Write(e)
}

func (f *fileSink) Flush() error {
	if f.out == nil {
		return nil
	}
	return f.out.Flush()
}

func (f *fileSink) Close() error {
	if f.out == nil {
		return nil
	}
	return f.out.Close()
}
