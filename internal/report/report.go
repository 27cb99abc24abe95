package report

import (
	"github.com/sockwatch/sockwatch/internal/events"
)

// Report is what a set of files says.
type Report struct {
	Since       *Since   `json:"since,omitempty"`
	Files       []File   `json:"files"`
	Notes       []string `json:"notes"`
	Connections int      `json:"connections"`
	Troubled    int      `json:"troubled"`
	Stories     []Story  `json:"stories"`

	selected bool
}

// Since is the event that times are relative to, where one was asked for.
type Since struct {
	Line   Line            `json:"line"`
	MonoNS uint64          `json:"mono_ns"`
	Time   events.WallTime `json:"time"`
	What   string          `json:"what"`
	boot   string
}

// File is one evidence file.
type File struct {
	Name     string        `json:"name"`
	Sessions []SessionInfo `json:"sessions"`
	Cut      bool          `json:"cut"`
	Damage   []string      `json:"damage"`
}

// SessionInfo is one session of a file.
type SessionInfo struct {
	BootID  string   `json:"boot_id"`
	Targets []string `json:"targets"`
	FirstNS uint64   `json:"first_mono_ns"`
	LastNS  uint64   `json:"last_mono_ns"`
	Closed  bool     `json:"closed"`
	Lost    uint64   `json:"lost"`
	Verdict string   `json:"verdict"`
	Reasons []string `json:"reasons"`
}

// Line names a line of a file.
type Line struct {
	File int    `json:"file"`
	Line int    `json:"line"`
	Seq  uint64 `json:"seq"`
}

// Story is what happened to one connection.
type Story struct {
	Ends     []End           `json:"ends"`
	JoinedBy string          `json:"joined_by"`
	ZeroNS   uint64          `json:"zero_mono_ns"`
	ZeroTime events.WallTime `json:"zero_time"`
	Zero     string          `json:"zero"`
	Trouble  bool            `json:"trouble"`
	First    int             `json:"first_to_give_up"`
	Notes    []string        `json:"notes"`
	Steps    []Step          `json:"steps"`

	boot  int // file that tells it
	order uint64
}

// End is one end of a connection: a socket in a watched namespace.
type End struct {
	Label      string        `json:"label"`
	File       int           `json:"file"`
	Netns      events.Netns  `json:"netns"`
	Sock       events.Sock   `json:"sock"`
	Owner      *events.Owner `json:"owner,omitempty"`
	Socket     bool          `json:"socket"`
	Role       string        `json:"role"`
	BornBefore bool          `json:"born_before_trace"`
	OpenedNS   uint64        `json:"opened_mono_ns"`
	EndedNS    uint64        `json:"ended_mono_ns"`
	Ending     string        `json:"ending"`
	Totals     Totals        `json:"totals"`
}

// The endings of an end.
const (
	EndingFIN       = "fin"         // closed in order
	EndingAbort     = "abort"       // see the step
	EndingOpen      = "open"        // when its session ended
	EndingGone      = "not-watched" // its namespace was gone before it
	EndingUnknown   = "unknown"     // the file breaks off, or says nothing of it
	EndingNoSocket  = "no-socket"   // there never was one
	EndingUnmatched = "closed"      // it closed in a way that wants an abort, and there is none
)

// The roles of an end.
const (
	RoleOpened   = "opened"   // it connected
	RoleAccepted = "accepted" // it came from a listener
	RoleUnknown  = "unknown"
)

// Totals are counts over the life of an end, as far as seen.
type Totals struct {
	Retransmissions int            `json:"retransmissions"`
	Segments        uint64         `json:"segments"`
	Causes          map[string]int `json:"causes"`
	Probes          int            `json:"probes"`
	StalledUs       uint64         `json:"longest_stall_us"`
}

// Step is one thing that happened, or a run of them.
type Step struct {
	Kind     string `json:"kind"`
	MonoNS   uint64 `json:"mono_ns"`
	UntilNS  uint64 `json:"until_mono_ns,omitempty"`
	OffsetUs int64  `json:"offset_us"`
	End      *int   `json:"end,omitempty"`
	Text     string `json:"text"`
	Inferred bool   `json:"inferred,omitempty"`
	Lines    []Line `json:"lines"`

	Outstanding     *Outstanding      `json:"outstanding,omitempty"`
	Retransmissions *Retransmissions  `json:"retransmissions,omitempty"`
	Probes          *Probes           `json:"probes,omitempty"`
	Recovered       *events.Recovered `json:"recovered,omitempty"`
	Ended           *Ended            `json:"abort,omitempty"`
	Reset           *Reset            `json:"reset,omitempty"`
	Arrival         *events.Arrival   `json:"arrival,omitempty"`
	Error           *events.Error     `json:"error,omitempty"`
	Mark            *events.Mark      `json:"mark,omitempty"`
	Target          *events.Target    `json:"target,omitempty"`
	Lost            *events.Lost      `json:"lost,omitempty"`
	Drops           *Drops            `json:"drops,omitempty"`
	ICMP            *events.ICMP      `json:"icmp,omitempty"`
	Neighbour       *events.Neighbour `json:"neighbour,omitempty"`
	Calls           *Calls            `json:"calls,omitempty"`

	rank int // among steps of the same time
}

// The kinds of steps.
const (
	KindOpened          = "opened"
	KindBornBefore      = "born-before"
	KindWatchedAgain    = "watched-again"
	KindOutstanding     = "outstanding"
	KindRetransmissions = "retransmissions"
	KindProbes          = "probes"
	KindRecovered       = "recovered"
	KindArrival         = "arrival"
	KindClosing         = "closing"
	KindClosed          = "closed"
	KindAborted         = "aborted"
	KindUnaware         = "unaware"
	KindLate            = "late-segment"
	KindReset           = "reset"
	KindError           = "error"
	KindDropped         = "dropped"
	KindICMP            = "icmp"
	KindNeighbour       = "neighbour"
	KindIO              = "io"
	KindMark            = "mark"
	KindTarget          = "target"
	KindLost            = "lost"
	KindEnd             = "end"
)

// Outstanding is what an end had on its hands.
type Outstanding struct {
	UnackedBytes   uint32 `json:"unacked_bytes"`
	UnsentBytes    uint32 `json:"unsent_bytes"`
	UnreadBytes    uint32 `json:"unread_bytes"`
	SinceLastAckUs int64  `json:"since_last_ack_us"`
}

// Retransmissions is a run of them, or a part of one.
type Retransmissions struct {
	Count        int            `json:"count"`
	Segments     uint64         `json:"segments"`
	Causes       map[string]int `json:"causes"`
	FirstAttempt uint32         `json:"first_attempt"`
	LastAttempt  uint32         `json:"last_attempt"`
	Runs         int            `json:"runs"`
	SendErrors   map[string]int `json:"send_errors"`
	NextDueMs    int64          `json:"next_due_ms"`
	Answered     bool           `json:"answered"`
	PeerGone     bool           `json:"peer_gone"`
	AckedBytes   uint64         `json:"acked_bytes"`
	StalledUs    uint64         `json:"longest_stall_us"`
}

// Probes is a run of them, or a part of one.
type Probes struct {
	Kind        string `json:"kind"`
	Direction   string `json:"direction"`
	Count       int    `json:"count"`
	FirstNumber uint32 `json:"first_number"`
	LastNumber  uint32 `json:"last_number"`
	Arrived     int    `json:"arrived"`
}

// Ended is how an end ended other than by FIN.
type Ended struct {
	events.Abort
	First        bool         `json:"first"`
	Outstanding  *Outstanding `json:"outstanding,omitempty"`
	PeerReceived int64        `json:"peer_received_bytes"`
	Reset        *Reset       `json:"reset,omitempty"`
	Reported     string       `json:"reported"`
}

// Reset is a RST, and what became of it.
type Reset struct {
	events.Reset
	Arrived       string          `json:"arrived"`
	Retransmitted *Retransmission `json:"retransmission,omitempty"`
}

// Retransmission is the one that a reset answered.
type Retransmission struct {
	Attempt uint32 `json:"attempt"`
	Cause   string `json:"cause"`
	MonoNS  uint64 `json:"mono_ns"`
}

// What became of a RST.
const (
	ArrivedYes     = "yes"         // it was seen at the other end
	ArrivedNotSeen = "not-seen"    // nothing like it was, though the namespace was watched
	ArrivedUnknown = "not-watched" // the other end is not in the files, or records were lost
)
