package testlab

import (
	"bufio"
	"errors"
	"fmt"
	"io"
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
// again, by itself. A race or a panic is final.
func Main(m *testing.M) int {
	if os.Getenv(againEnv) != "" || !SparesInit() {
		return m.Run()
	}
	args := os.Args[1:]
	for run := 1; ; run++ {
		status, failed := runTests(args)
		if status == 0 || len(failed) == 0 || run == maxRuns {
			return status
		}
		fmt.Fprintf(os.Stderr, "this kernel runs no tracing programs while process 1 does; run %d of %d for %s\n",
			run+1, maxRuns, strings.Join(failed, ", "))
		args = append(slices.Clip(os.Args[1:]), "-test.run=^("+strings.Join(failed, "|")+")$", "-test.bench=^$", "-test.fuzz=")
	}
}

var failLine = regexp.MustCompile(`^\x16?--- FAIL: (\S+) `)

// runTests runs the tests in a process of their own and returns its status and
// the names of the tests that failed; none if running them again is no use.
func runTests(args []string) (status int, failed []string) {
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
	r := bufio.NewReader(out)
	for {
		line, err := r.ReadString('\n')
		os.Stdout.WriteString(line)
		if name := failLine.FindStringSubmatch(line); name != nil && !slices.Contains(failed, name[1]) {
			failed = append(failed, name[1])
		}
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
