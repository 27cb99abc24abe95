// Package durable writes files that must be whole after whatever happens.
package durable

import (
	"fmt"
	"os"
	"path/filepath"
)

// WriteFile makes or replaces a file that only root may read, whole or not at
// all: its content and its name are on disk when it returns. A process that is
// killed meanwhile leaves at most path.next, which the next write replaces.
func WriteFile(path string, b []byte) error {
	next := path + ".next"
	if err := write(next, path, b); err != nil {
		os.Remove(next)
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

func write(next, path string, b []byte) error {
	f, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(next, path)
	}
	if err == nil {
		err = SyncDir(filepath.Dir(path))
	}
	return err
}

// SyncDir puts on disk which names a directory has.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
