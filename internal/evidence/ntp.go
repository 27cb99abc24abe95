package evidence

import (
	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/internal/events"
)

// statusFlags are the names of adjtimex's status, from its lowest bit on.
var statusFlags = [...]string{
	"PLL", "PPSFREQ", "PPSTIME", "FLL", "INS", "DEL", "UNSYNC", "FREQHOLD",
	"PPSSIGNAL", "PPSJITTER", "PPSWANDER", "PPSERROR", "CLOCKERR", "NANO", "MODE", "CLK",
}

var timeStates = [...]string{"ok", "ins", "del", "oop", "wait", "error"}

// ReadNTP asks the kernel how well wall time is kept; nil where that is not
// allowed.
func ReadNTP() *events.NTP {
	var x unix.Timex
	state, err := unix.Adjtimex(&x)
	if err != nil || state < 0 || state >= len(timeStates) {
		return nil
	}
	return ntp(state, &x)
}

func ntp(state int, x *unix.Timex) *events.NTP {
	n := &events.NTP{
		State: timeStates[state], Status: []string{}, OffsetNS: x.Offset, FreqPPB: x.Freq * 1000 >> 16,
		TickUs: x.Tick, MaxErrorUs: x.Maxerror, EstErrorUs: x.Esterror,
	}
	for bit, name := range statusFlags {
		if x.Status&(1<<bit) != 0 {
			n.Status = append(n.Status, name)
		}
	}
	if x.Status&unix.STA_NANO == 0 {
		n.OffsetNS *= 1000
	}
	return n
}
