package testlab

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

// SparesInit says that this kernel is built to run no tracing programs while
// process 1 is on the processor, as some sandboxes have it: what a timer or a
// packet does there passes every observer by.
var SparesInit = sync.OnceValue(func() bool {
	spec, err := btf.LoadKernelSpec()
	if err != nil {
		return false
	}
	var aux *btf.Struct
	return spec.TypeByName("bpf_prog_aux", &aux) == nil &&
		slices.ContainsFunc(aux.Members, func(m btf.Member) bool { return m.Name == "init_owned" })
})

// againEnv is set in the process that really runs the tests.
const againEnv = "SOCKWATCH_TEST_AGAIN"

// maxRuns is how often a test may run where the kernel spares process 1.
const maxRuns = 3

// Main runs the tests of a package that wants every event, and returns the
// status for os.Exit. It is [testing.M.Run], except where [SparesInit]: there
// a test that failed may have missed what no program could see, so it runs
// again, by itself; of one that failed in some of its subtests, only those. A
// race or a panic is final.
func Main(m *testing.M) int {
	if os.Getenv(againEnv) != "" || !SparesInit() {
		return m.Run()
	}
	status, failed := runTests(os.Args[1:])
	for run := 2; len(failed) > 0 && run <= maxRuns; run++ {
		patterns := failed.patterns()
		fmt.Fprintf(os.Stderr, "this kernel runs no tracing programs while process 1 does; run %d of %d for %s\n",
			run, maxRuns, strings.Join(patterns, " "))
		status, failed = 0, make(failures)
		for _, pattern := range patterns {
			s, f := runTests(append(slices.Clip(os.Args[1:]), "-test.run="+pattern, "-test.bench=^$", "-test.fuzz="))
			if s != 0 && len(f) == 0 {
				return s
			}
			status = max(status, s)
			maps.Copy(failed, f)
		}
	}
	return status
}

// failures are the tests that failed, each with those of its subtests that did.
type failures map[string][]string

var failLine = regexp.MustCompile(`^\x16?(?: {4})?--- FAIL: ([^\s/]+)(?:/([^\s/]+)\S*)? `)

// add takes a line of the tests' output.
func (f failures) add(line string) {
	m := failLine.FindStringSubmatch(line)
	if m == nil {
		return
	}
	if _, ok := f[m[1]]; !ok {
		f[m[1]] = nil
	}
	if m[2] != "" && !slices.Contains(f[m[1]], m[2]) {
		f[m[1]] = append(f[m[1]], m[2])
	}
}

// patterns select what failed: one for each test with subtests, which would
// select among those of the others, and one for all the rest.
func (f failures) patterns() (patterns []string) {
	var whole []string
	for _, test := range slices.Sorted(maps.Keys(f)) {
		if len(f[test]) == 0 {
			whole = append(whole, test)
			continue
		}
		var subs []string
		for _, s := range f[test] {
			subs = append(subs, regexp.QuoteMeta(s))
		}
		patterns = append(patterns, fmt.Sprintf("^%s$/^(%s)$", test, strings.Join(subs, "|")))
	}
	if len(whole) > 0 {
		patterns = append(patterns, fmt.Sprintf("^(%s)$", strings.Join(whole, "|")))
	}
	return patterns
}

// runTests runs the tests in a process of their own and returns its status and
// what failed; nothing if running it again is no use.
func runTests(args []string) (status int, failed failures) {
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintf(os.Stderr, "run the tests: %v\n", err)
		return 1, nil
	}
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), againEnv+"=1")
	cmd.Stdin, cmd.Stderr = os.Stdin, os.Stderr
	// Tests run on other threads than the main one: this one stays.
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "run the tests: %v\n", err)
		return 1, nil
	}
	race := false
	failed = make(failures)
	r := bufio.NewReader(out)
	for {
		line, err := r.ReadString('\n')
		os.Stdout.WriteString(line)
		failed.add(line)
		race = race || strings.Contains(line, "race detected during execution of test")
		if err != nil {
			if !errors.Is(err, io.EOF) {
				fmt.Fprintf(os.Stderr, "read the tests' output: %v\n", err)
			}
			break
		}
	}
	err = cmd.Wait()
	if err == nil {
		return 0, nil
	}
	status = cmd.ProcessState.ExitCode()
	if status != 1 || race { // a panic has another
		failed = nil
	}
	return max(1, status), failed
}
