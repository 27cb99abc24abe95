package kernelstest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"slices"
)

// Plan tells the guest what to do; it is /plan.json in the initramfs.
type Plan struct {
	Modules  []string `json:"modules"` // file names under /modules, in order
	Tests    []Test   `json:"tests"`
	Lockdown bool     `json:"lockdown"` // that the kernel is locked down has to be checked
}

// Test is one static test binary.
type Test struct {
	Name string   `json:"name"` // also its path: /tests/NAME
	Args []string `json:"args"`
}

// Initramfs is a cpio archive in the kernel's newc format.
type Initramfs struct {
	buf  bytes.Buffer
	ino  uint32
	dirs []string
}

// The parts of st_mode that a cpio entry needs.
const (
	modeDir  = 0o040000
	modeFile = 0o100000
	modeLink = 0o120000
)

// Add adds a file with its directories. name is absolute.
func (r *Initramfs) Add(name string, data []byte, perm uint32) {
	r.parents(name)
	r.entry(name, modeFile|perm, data)
}

// AddFile adds a copy of an existing file.
func (r *Initramfs) AddFile(name, from string, perm uint32) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	r.Add(name, data, perm)
	return nil
}

// Link adds a symbolic link.
func (r *Initramfs) Link(name, target string) {
	r.parents(name)
	r.entry(name, modeLink|0o777, []byte(target))
}

// Dir adds a directory and those above it.
func (r *Initramfs) Dir(name string) {
	if name == "/" || slices.Contains(r.dirs, name) {
		return
	}
	r.parents(name)
	r.dirs = append(r.dirs, name)
	r.entry(name, modeDir|0o755, nil)
}

func (r *Initramfs) parents(name string) { r.Dir(path.Dir(name)) }

func (r *Initramfs) entry(name string, mode uint32, data []byte) {
	r.ino++
	name = name[1:] // relative to the root
	fmt.Fprintf(&r.buf, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		r.ino, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name)+1, 0, name)
	r.pad()
	r.buf.Write(data)
	r.pad()
}

// pad aligns to four bytes.
func (r *Initramfs) pad() {
	for r.buf.Len()%4 != 0 {
		r.buf.WriteByte(0)
	}
}

// SetPlan adds the modules and the plan, which then names them.
func (r *Initramfs) SetPlan(plan Plan, mods []Module) error {
	for _, m := range mods {
		r.Add("/modules/"+m.Name, m.Data, 0o644)
		plan.Modules = append(plan.Modules, m.Name)
	}
	text, err := json.Marshal(plan)
	if err != nil {
		return err
	}
	r.Add("/plan.json", text, 0o644)
	return nil
}

// Bytes ends the archive and returns it.
func (r *Initramfs) Bytes() []byte {
	r.entry("/TRAILER!!!", 0, nil)
	return r.buf.Bytes()
}
