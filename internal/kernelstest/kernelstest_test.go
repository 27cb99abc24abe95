package kernelstest

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestNewest(t *testing.T) {
	packages := []string{
		"linux-image-5.10.0-9-cloud-amd64", "linux-image-5.10.0-46-cloud-amd64", "linux-image-5.10.0-46-amd64",
		"linux-image-6.1.0-57-cloud-amd64", "linux-image-6.1.0-0.deb11.52-cloud-amd64", "linux-image-6.1-cloud-amd64",
		"linux-image-6.12.118+deb13-cloud-amd64", "linux-image-6.12.118+deb13-cloud-amd64-dbg", "linux-image-6.12.90+deb13.1-cloud-amd64",
		"linux-image-cloud-amd64", "linux-binary-7.3.4+deb13-cloud-amd64", "linux-image-7.2.13+deb13-cloud-amd64",
	}
	for series, want := range map[string]string{
		"5.10": "5.10.0-46",
		"6.1":  "6.1.0-57",
		"6.12": "6.12.118+deb13",
		"":     "7.3.4+deb13",
		"6.18": "",
	} {
		if got := newest(packages, series); got != want {
			t.Errorf("newest of %q is %q, want %q", series, got, want)
		}
	}
}

func TestHostMirrors(t *testing.T) {
	etc := t.TempDir()
	if err := os.Mkdir(filepath.Join(etc, "sources.list.d"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"sources.list":                  "# deb http://commented.example/debian bookworm main\ndeb [signed-by=/k] http://mirror.example/debian/ bookworm main\ndeb http://other.example/apt x main\n",
		"sources.list.d/debian.sources": "Types: deb\n# http://snapshot.example/debian\nURIs: http://security.example/debian-security\nSuites: bookworm-security\n",
	} {
		if err := os.WriteFile(filepath.Join(etc, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := HostMirrors(etc), (Mirrors{"http://mirror.example/debian", "http://security.example/debian-security"}); got != want {
		t.Errorf("mirrors %+v, want %+v", got, want)
	}
	if got := HostMirrors(t.TempDir()); got.Debian == "" || got.Security == "" {
		t.Errorf("no default: %+v", got)
	}
}

// TestInitramfs reads the archive as the kernel does.
func TestInitramfs(t *testing.T) {
	var r Initramfs
	r.Add("/bin/a", []byte("abc"), 0o755)
	r.Link("/bin/b", "a")
	mods := []Module{{"veth", []byte("elf")}}
	if err := r.SetPlan(Plan{Tests: []Test{{Name: "x", Args: []string{"-v"}}}, Lockdown: true}, mods); err != nil {
		t.Fatal(err)
	}
	var got []string
	data := r.Bytes()
	if len(data)%4 != 0 {
		t.Errorf("%d bytes are no multiple of 4", len(data))
	}
	for rest := data; len(rest) >= 110; {
		var h [13]uint32
		for i := range h {
			if _, err := fmt.Sscanf(string(rest[6+8*i:14+8*i]), "%08x", &h[i]); err != nil {
				t.Fatal(err)
			}
		}
		mode, size, nameLen := h[1], h[6], h[11]
		name := string(rest[110 : 110+nameLen-1])
		body := rest[align(110+nameLen):][:size]
		rest = rest[align(110+nameLen)+align(size):]
		if name == "TRAILER!!!" {
			break
		}
		if name == "plan.json" {
			var plan Plan
			if err := json.Unmarshal(body, &plan); err != nil || !plan.Lockdown || !slices.Equal(plan.Modules, []string{"veth"}) || plan.Tests[0].Name != "x" {
				t.Errorf("plan %s: %v", body, err)
			}
			continue
		}
		got = append(got, fmt.Sprintf("%o %s %s", mode, name, body))
	}
	want := []string{"40755 bin ", "100755 bin/a abc", "120777 bin/b a", "40755 modules ", "100644 modules/veth elf"}
	if !slices.Equal(got, want) {
		t.Errorf("archive holds\n%q\nwant\n%q", got, want)
	}
}

func align(n uint32) uint32 { return (n + 3) &^ 3 }

func TestLoadModules(t *testing.T) {
	dir := t.TempDir()
	for name, depends := range map[string]string{
		"net/a.ko": "b-one,c", "net/b-one.ko": "c", "c.ko": "", "unused.ko": "",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, object("license=GPL\x00depends="+depends+"\x00"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := exec.LookPath("xz"); err == nil {
		if out, err := exec.Command("xz", filepath.Join(dir, "c.ko")).CombinedOutput(); err != nil {
			t.Fatalf("xz: %v: %s", err, out)
		}
	}
	mods, missing, err := LoadModules(dir, []string{"a", "c", "built-in"})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range mods {
		names = append(names, m.Name)
	}
	if got := strings.Join(names, " "); got != "c b_one a" {
		t.Errorf("order %q, want c b_one a", got)
	}
	if !slices.Equal(missing, []string{"built_in"}) {
		t.Errorf("missing %q", missing)
	}
}

// object is a relocatable file with a section .modinfo.
func object(modinfo string) []byte {
	const strtab = "\x00.modinfo\x00.shstrtab\x00"
	var b bytes.Buffer
	w := func(v ...any) {
		for _, v := range v {
			_ = binary.Write(&b, binary.LittleEndian, v)
		}
	}
	b.WriteString("\x7fELF\x02\x01\x01" + strings.Repeat("\x00", 9))
	shoff := uint64(64 + len(modinfo) + len(strtab))
	w(uint16(1), uint16(62), uint32(1), uint64(0), uint64(0), shoff, uint32(0), uint16(64), uint16(0), uint16(0), uint16(64), uint16(3), uint16(2))
	b.WriteString(modinfo + strtab)
	section := func(name, typ uint32, off, size uint64) {
		w(name, typ, uint64(0), uint64(0), off, size, uint32(0), uint32(0), uint64(1), uint64(0))
	}
	section(0, 0, 0, 0)
	section(1, 1, 64, uint64(len(modinfo)))
	section(10, 3, uint64(64+len(modinfo)), uint64(len(strtab)))
	return b.Bytes()
}
