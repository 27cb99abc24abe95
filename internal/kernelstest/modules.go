package kernelstest

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Module is one to be loaded, in the order of the slice it is in.
type Module struct {
	Name string // as modprobe(8) knows it, with underscores
	Data []byte // the uncompressed file
}

// LoadModules reads the named modules and all that they depend on, each after
// its dependencies. Names that the kernel has built in, or does not have, are
// passed over and returned in missing.
func LoadModules(dir string, names []string) (mods []Module, missing []string, err error) {
	files := make(map[string]string)
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if base, _, ok := strings.Cut(d.Name(), ".ko"); ok {
			files[moduleName(base)] = path
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	seen := make(map[string]bool)
	var visit func(name string) error
	visit = func(name string) error {
		name = moduleName(name)
		if seen[name] {
			return nil
		}
		seen[name] = true
		path, ok := files[name]
		if !ok {
			missing = append(missing, name)
			return nil
		}
		data, err := readModule(path)
		if err != nil {
			return err
		}
		needs, err := depends(data)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		for _, need := range needs {
			if err := visit(need); err != nil {
				return err
			}
		}
		mods = append(mods, Module{name, data})
		return nil
	}
	for _, name := range names {
		if err := visit(name); err != nil {
			return nil, nil, err
		}
	}
	return mods, missing, nil
}

func moduleName(s string) string { return strings.ReplaceAll(s, "-", "_") }

// readModule returns a module's ELF file. Its signature follows that, so
// decompressing is all that may be done to it.
func readModule(path string) ([]byte, error) {
	var tool string
	switch filepath.Ext(path) {
	case ".ko":
		return os.ReadFile(path)
	case ".xz":
		tool = "xz"
	case ".zst":
		tool = "zstd"
	case ".gz":
		tool = "gzip"
	default:
		return nil, fmt.Errorf("%s: unknown compression", path)
	}
	out, err := exec.Command(tool, "-dc", path).Output()
	if err != nil {
		return nil, fmt.Errorf("%s -dc %s: %w", tool, path, err)
	}
	return out, nil
}

// depends reads the names that .modinfo lists.
func depends(module []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(module))
	if err != nil {
		return nil, err
	}
	section := f.Section(".modinfo")
	if section == nil {
		return nil, fmt.Errorf("no .modinfo")
	}
	info, err := section.Data()
	if err != nil {
		return nil, err
	}
	for field := range bytes.SplitSeq(info, []byte{0}) {
		list, ok := strings.CutPrefix(string(field), "depends=")
		if !ok || list == "" {
			continue
		}
		return strings.Split(list, ","), nil
	}
	return nil, nil
}
