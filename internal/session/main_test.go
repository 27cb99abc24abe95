package session_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/sockwatch/sockwatch/internal/testlab"
)

// helperEnv names what a re-executed test binary does instead of testing.
const helperEnv = "SOCKWATCH_TEST_HELPER"

// helpers are programs for other processes: they own sockets, or observe.
var helpers = map[string]func(){}

func TestMain(m *testing.M) {
	if name := os.Getenv(helperEnv); name != "" {
		helpers[name]()
		os.Exit(0)
	}
	flag.Parse()
	// These tests wait for timers of the kernel, not for a processor.
	set := false
	flag.Visit(func(f *flag.Flag) { set = set || f.Name == "test.parallel" })
	if !set {
		if err := flag.Set("test.parallel", "8"); err != nil {
			panic(err)
		}
	}
	code := testlab.Main(m)
	left, err := filepath.Glob(fmt.Sprintf("/run/netns/sw-%d-*", os.Getpid()))
	if err != nil || len(left) > 0 {
		fmt.Fprintf(os.Stderr, "namespaces left behind: %v %v\n", left, err)
		code = 1
	}
	os.Exit(code)
}
