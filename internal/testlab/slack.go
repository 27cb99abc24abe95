package testlab

import (
	"os"
	"time"
)

// emulated is set in a machine of package kernelstest, where everything takes
// many times as long as on a processor.
var emulated = os.Getenv("SOCKWATCH_EMULATED") != ""

// Slack is how long something may take that takes at most d on a real machine.
func Slack(d time.Duration) time.Duration {
	if emulated {
		return 3*d + 100*time.Millisecond
	}
	return d
}
