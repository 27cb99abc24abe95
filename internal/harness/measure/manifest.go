package measure

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sockwatch/sockwatch/internal/evidence"
	"github.com/sockwatch/sockwatch/internal/harness/durable"
)

// ManifestName is the file that has the SHA-256 of every other, as sha256sum
// reads it.
const ManifestName = "SHA256SUMS"

// writeManifest lists what is in dir.
func writeManifest(dir string) error {
	files, err := list(dir)
	if err != nil {
		return err
	}
	var b strings.Builder
	for _, name := range files {
		sum, err := evidence.HashFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%s  %s\n", sum, name)
	}
	return durable.WriteFile(filepath.Join(dir, ManifestName), []byte(b.String()))
}

// list names the files in dir but the manifest, sorted, with slashes.
func list(dir string) ([]string, error) {
	var files []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		if rel != ManifestName {
			files = append(files, filepath.ToSlash(rel))
		}
		return err
	})
	slices.Sort(files)
	return files, err
}

// CheckManifest compares dir with its manifest and says what differs; nothing
// if it holds. An error means that there is no manifest that can be read.
func CheckManifest(dir string) (files []string, differs []string, err error) {
	f, err := os.Open(filepath.Join(dir, ManifestName))
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	want := make(map[string]string)
	s := bufio.NewScanner(f)
	for n := 1; s.Scan(); n++ {
		sum, name, ok := strings.Cut(s.Text(), "  ")
		if raw, err := hex.DecodeString(sum); !ok || err != nil || len(raw) != sha256.Size || !filepath.IsLocal(filepath.FromSlash(name)) {
			return nil, nil, fmt.Errorf("%s: line %d is no checksum and name", ManifestName, n)
		}
		if _, twice := want[name]; twice {
			return nil, nil, fmt.Errorf("%s: line %d names %s again", ManifestName, n, name)
		}
		want[name] = sum
	}
	if err := s.Err(); err != nil {
		return nil, nil, err
	}
	there, err := list(dir)
	if err != nil {
		return nil, nil, err
	}
	for name, sum := range want {
		files = append(files, name)
		got, err := evidence.HashFile(filepath.Join(dir, filepath.FromSlash(name)))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			differs = append(differs, name+": missing")
		case err != nil:
			return nil, nil, err
		case got != sum:
			differs = append(differs, name+": changed")
		}
	}
	for _, name := range there {
		if _, ok := want[name]; !ok {
			differs = append(differs, name+": not in the manifest")
		}
	}
	slices.Sort(files)
	slices.Sort(differs)
	return files, differs, nil
}
