package testlab

import (
	"os"
	"time"
)

// Emulated says that this is a machine of package kernelstest, where everything
// takes many times as long as on a processor.
func Emulated() bool { return os.Getenv("SOCKWATCH_EMULATED") != "" }

// Slack is how long something may take that takes at most d on a real machine.
func Slack(d time.Duration) time.Duration {
	if Emulated() {
		return 3*d + 100*time.Millisecond
	}
	return d
}
