package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/testlab"
)

// BenchmarkRate runs the real command with its default settings beside a flood
// of SYN segments to a closed port, for ten seconds a rate: each SYN is two
// records (the reset, and the RST at the namespace's edge) and one event.
func BenchmarkRate(b *testing.B) {
	testlab.Privileged(b)
	bin := filepath.Join(b.TempDir(), "sockwatch")
	if out, err := exec.Command("go", "build", "-o", bin, ".").CombinedOutput(); err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	for _, rate := range []int{10_000, 50_000, 100_000} {
		b.Run(fmt.Sprintf("syn=%d", rate), func(b *testing.B) {
			for b.Loop() {
				runRate(b, bin, rate)
			}
		})
	}
}

func runRate(b *testing.B, bin string, rate int) {
	lab := testlab.New(b)
	lab.PinNeighbours()
	dir := b.TempDir()
	out, ready := filepath.Join(dir, "out.jsonl"), filepath.Join(dir, "ready")
	cmd := exec.Command(bin, "--netns", lab.B.Name, "-o", out, "--ready-file", ready)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	defer cmd.Process.Kill()
	testlab.Eventually(b, 20*time.Second, func() bool { _, err := os.Stat(ready); return err == nil })

	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	done, err := lab.BlastSYN(ctx, testlab.Blast{Port: 9, Rate: rate, Count: rate * 10})
	if err != nil {
		b.Fatal(err)
	}
	peak := residentPeak(b, cmd.Process.Pid)
	if err := cmd.Process.Signal(unix.SIGINT); err != nil {
		b.Fatal(err)
	}
	waitErr := cmd.Wait()
	sum := lastLine(b, out)
	b.ReportMetric(done.Rate(), "syn/s")
	b.ReportMetric(float64(sum.Kernel.Produced)/done.Elapsed.Seconds(), "records/s")
	b.ReportMetric(float64(sum.Kernel.Lost), "lost")
	b.ReportMetric(float64(peak)/(1<<20), "peak-MiB")
	b.ReportMetric((cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime()).Seconds()/done.Elapsed.Seconds(), "cpu-cores")
	if waitErr != nil && sum.Kernel.Lost == 0 {
		b.Fatal(waitErr)
	}
}

// residentPeak is the most memory a process had resident, in bytes.
func residentPeak(tb testing.TB, pid int) int64 {
	f, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		tb.Fatal(err)
	}
	for line := range strings.Lines(string(f)) {
		if v, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, err := strconv.ParseInt(strings.Fields(v)[0], 10, 64)
			if err != nil {
				tb.Fatal(err)
			}
			return kb << 10
		}
	}
	tb.Fatal("no VmHWM in /proc/PID/status")
	return 0
}

func lastLine(tb testing.TB, path string) *events.Summary {
	f, err := os.Open(path)
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	var last []byte
	for sc.Scan() {
		last = append(last[:0], sc.Bytes()...)
	}
	var e events.Event
	if err := json.Unmarshal(last, &e); err != nil || e.Summary == nil {
		tb.Fatalf("no summary at the end of the file: %v", err)
	}
	return e.Summary
}
