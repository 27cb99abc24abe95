package kernelstest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// listsFresh is how long apt's lists are used before they are asked for again.
const listsFresh = 12 * time.Hour

// suites hold, together, one kernel of each series.
var suites = []string{
	"bullseye", "bullseye-security",
	"bookworm", "bookworm-security", "bookworm-backports",
	"trixie", "trixie-security", "trixie-backports",
}

// Mirrors are the archives that packages come from.
type Mirrors struct {
	Debian   string // http://deb.debian.org/debian
	Security string // http://deb.debian.org/debian-security
}

// HostMirrors reads the mirrors this machine is configured with under etc
// (/etc/apt). Debian's own stand in for those it has none of.
func HostMirrors(etc string) Mirrors {
	m := Mirrors{Debian: "http://deb.debian.org/debian", Security: "http://deb.debian.org/debian-security"}
	files, _ := filepath.Glob(filepath.Join(etc, "sources.list.d", "*"))
	for _, name := range append([]string{filepath.Join(etc, "sources.list")}, files...) {
		text, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		for _, uri := range sourceURIs(string(text)) {
			switch path := strings.TrimRight(uri, "/"); {
			case strings.HasSuffix(path, "/debian"):
				m.Debian = path
			case strings.HasSuffix(path, "/debian-security"):
				m.Security = path
			}
		}
	}
	return m
}

// sourceURIs returns the URIs of a sources.list in either format.
func sourceURIs(text string) (uris []string) {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), "#") {
			continue
		}
		if rest, ok := strings.CutPrefix(line, "URIs:"); ok {
			uris = append(uris, strings.Fields(rest)...)
			continue
		}
		for _, word := range strings.Fields(line) {
			if strings.Contains(word, "://") {
				uris = append(uris, word)
			}
		}
	}
	return uris
}

// Archive is Debian's, as seen through an apt configuration of our own.
type Archive struct {
	dir   string
	log   io.Writer
	names []string // of every package
}

// OpenArchive prepares the configuration in dir and brings its lists up to date.
// apt's progress goes to log.
func OpenArchive(dir string, m Mirrors, log io.Writer) (*Archive, error) {
	a := &Archive{dir: filepath.Join(dir, "apt"), log: log}
	if err := a.configure(m); err != nil {
		return nil, fmt.Errorf("prepare apt in %s: %w", a.dir, err)
	}
	if st, err := os.Stat(a.stamp()); err != nil || time.Since(st.ModTime()) > listsFresh {
		// A suite that left the mirror fails the update; whether anything is
		// missed shows when its kernel is looked for.
		if err := a.run(log, "apt-get", "update"); err != nil {
			fmt.Fprintf(log, "apt-get update: %v: using what there is\n", err)
		} else if err := os.WriteFile(a.stamp(), nil, 0o644); err != nil {
			return nil, err
		}
	}
	var out bytes.Buffer
	if err := a.run(&out, "apt-cache", "pkgnames", "linux-"); err != nil {
		return nil, fmt.Errorf("list kernel packages: %w", err)
	}
	a.names = strings.Fields(out.String())
	return a, nil
}

func (a *Archive) stamp() string { return filepath.Join(a.dir, "updated") }

func (a *Archive) configure(m Mirrors) error {
	for _, d := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(a.dir, d), 0o755); err != nil {
			return err
		}
	}
	const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
	if _, err := os.Stat(keyring); err != nil {
		return fmt.Errorf("%w: install debian-archive-keyring", err)
	}
	var list strings.Builder
	for _, s := range suites {
		uri := m.Debian
		if strings.HasSuffix(s, "-security") {
			uri = m.Security
		}
		fmt.Fprintf(&list, "deb [signed-by=%s arch=amd64] %s %s main\n", keyring, uri, s)
	}
	sources := filepath.Join(a.dir, "sources.list")
	if old, err := os.ReadFile(sources); err != nil || string(old) != list.String() {
		_ = os.Remove(a.stamp())
	}
	if err := os.WriteFile(sources, []byte(list.String()), 0o644); err != nil {
		return err
	}
	conf := fmt.Sprintf(`Dir::State::Lists "%[1]s/lists";
Dir::State::Status "/dev/null";
Dir::Cache "%[1]s/cache";
Dir::Etc::SourceList "%[1]s/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "/dev/null";
APT::Architecture "amd64";
APT::Architectures { "amd64"; };
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::Retries "3";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
`, a.dir)
	return os.WriteFile(filepath.Join(a.dir, "apt.conf"), []byte(conf), 0o644)
}

func (a *Archive) run(out io.Writer, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "APT_CONFIG="+filepath.Join(a.dir, "apt.conf"), "LC_ALL=C")
	cmd.Dir = a.dir
	cmd.Stdout, cmd.Stderr = out, a.log
	return cmd.Run()
}

// cloudKernel is the package name of a kernel; those from 6.19 on have the
// files in linux-binary and linux-modules.
var cloudKernel = regexp.MustCompile(`^linux-(?:image|binary)-([0-9.]+[-+0-9.a-z]*)-cloud-amd64$`)

// Newest is the newest release of a series such as "6.12", or of all of them
// if series is empty.
func (a *Archive) Newest(series string) (release string, err error) {
	release = newest(a.names, series)
	if release == "" {
		return "", fmt.Errorf("no cloud kernel of series %q in the mirror's suites %s", series, strings.Join(suites, ", "))
	}
	return release, nil
}

func newest(packages []string, series string) (release string) {
	for _, name := range packages {
		m := cloudKernel.FindStringSubmatch(name)
		if m == nil || (series != "" && !strings.HasPrefix(m[1], series+".")) {
			continue
		}
		if release == "" || slices.Compare(numbers(m[1]), numbers(release)) > 0 {
			release = m[1]
		}
	}
	return release
}

// numbers splits a release into the numbers that order it.
func numbers(release string) (ns []int) {
	for _, f := range strings.FieldsFunc(release, func(r rune) bool { return r < '0' || r > '9' }) {
		n, err := strconv.Atoi(f)
		if err != nil {
			return ns
		}
		ns = append(ns, n)
	}
	return ns
}

// Kernel is one that was unpacked.
type Kernel struct {
	Release string // uname -r without "-cloud-amd64"
	Image   string // vmlinuz
	Modules string // directory of its modules
}

// Kernel fetches and unpacks the packages of a release, unless that was done
// before. Others of the same series are removed.
func (a *Archive) Kernel(release string) (Kernel, error) {
	dir := filepath.Join(a.dir, "..", "kernels", release)
	if k, err := openKernel(dir, release); err == nil {
		return k, nil
	}
	var packages []string
	for _, part := range []string{"image", "binary", "modules", "base"} {
		if name := fmt.Sprintf("linux-%s-%s-cloud-amd64", part, release); slices.Contains(a.names, name) {
			packages = append(packages, name)
		}
	}
	if err := a.unpack(dir, packages...); err != nil {
		return Kernel{}, fmt.Errorf("fetch kernel %s: %w", release, err)
	}
	return openKernel(dir, release)
}

// Busybox fetches a static busybox, the tools that tests start.
func (a *Archive) Busybox() (string, error) {
	dir := filepath.Join(a.dir, "..", "busybox")
	for range 2 {
		found, _ := filepath.Glob(filepath.Join(dir, "**/bin/busybox"))
		if found = append(found, glob(dir, "bin/busybox")...); len(found) > 0 {
			return found[0], nil
		}
		if err := a.unpack(dir, "busybox-static"); err != nil {
			return "", fmt.Errorf("fetch busybox: %w", err)
		}
	}
	return "", errors.New("fetch busybox: the package has no bin/busybox")
}

func glob(dir, pattern string) []string {
	found, _ := filepath.Glob(filepath.Join(dir, pattern))
	return found
}

// unpack puts the files of packages into dir: all of them or none.
func (a *Archive) unpack(dir string, packages ...string) error {
	debs, err := os.MkdirTemp(a.dir, "debs-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(debs)
	get := exec.Command("apt-get", append([]string{"download"}, packages...)...)
	get.Env = append(os.Environ(), "APT_CONFIG="+filepath.Join(a.dir, "apt.conf"), "LC_ALL=C")
	get.Dir, get.Stdout, get.Stderr = debs, a.log, a.log
	if err := get.Run(); err != nil {
		return fmt.Errorf("apt-get download %s: %w", strings.Join(packages, " "), err)
	}
	fresh := dir + ".new"
	if err := os.RemoveAll(fresh); err != nil {
		return err
	}
	for _, deb := range glob(debs, "*.deb") {
		if err := os.MkdirAll(fresh, 0o755); err != nil {
			return err
		}
		if out, err := exec.Command("dpkg-deb", "-x", deb, fresh).CombinedOutput(); err != nil {
			return fmt.Errorf("dpkg-deb -x %s: %w: %s", filepath.Base(deb), err, out)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return os.Rename(fresh, dir)
}

func openKernel(dir, release string) (Kernel, error) {
	k := Kernel{Release: release}
	full := release + "-cloud-amd64"
	for _, path := range []string{"boot/vmlinuz-" + full, "usr/lib/modules/" + full + "/vmlinuz", "lib/modules/" + full + "/vmlinuz"} {
		if _, err := os.Stat(filepath.Join(dir, path)); err == nil {
			k.Image = filepath.Join(dir, path)
			break
		}
	}
	for _, path := range []string{"usr/lib/modules/" + full, "lib/modules/" + full} {
		if _, err := os.Stat(filepath.Join(dir, path, "kernel")); err == nil {
			k.Modules = filepath.Join(dir, path)
			break
		}
	}
	if k.Image == "" || k.Modules == "" {
		return k, fmt.Errorf("kernel %s: no image or no modules in %s", release, dir)
	}
	return k, nil
}

// lines calls f for each line of r.
func lines(r io.Reader, f func(string)) error {
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		f(sc.Text())
	}
	return sc.Err()
}
