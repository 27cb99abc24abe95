package report_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/evidence"
	"github.com/sockwatch/sockwatch/internal/report"
)

// parse reads evidence to edit it.
func parse(t testing.TB, file string) (evs []*events.Event) {
	t.Helper()
	r := evidence.NewReader(strings.NewReader(read(t, file)))
	for {
		e := new(events.Event)
		err := r.Next(e)
		if errors.Is(err, io.EOF) {
			return evs
		}
		if err != nil {
			t.Fatal(err)
		}
		evs = append(evs, e)
	}
}

// lines writes evidence that was edited, numbered anew within each session.
func lines(evs []*events.Event) string {
	var b []byte
	seq := uint64(0)
	for _, e := range evs {
		if e.Session != nil {
			seq = 0
		}
		seq++
		c := *e
		c.Seq = seq
		b = append(c.AppendJSON(b), '\n')
	}
	return string(b)
}

type file struct{ name, text string }

func tell(t testing.TB, o report.Options, files ...file) (*report.Report, string) {
	t.Helper()
	var c report.Collector
	for _, f := range files {
		load(t, &c, f.name, f.text)
	}
	r, err := c.Report(o)
	if err != nil {
		t.Fatal(err)
	}
	return r, string(r.AppendText(nil))
}

func has(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("no %q in\n%s", p, text)
		}
	}
}

func hasNot(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if strings.Contains(text, p) {
			t.Errorf("%q in\n%s", p, text)
		}
	}
}

// insert puts events where their time is.
func insert(evs []*events.Event, more ...*events.Event) []*events.Event {
	for _, m := range more {
		i := len(evs)
		for i > 0 && evs[i-1].MonoNS > m.MonoNS {
			i--
		}
		evs = slices.Insert(evs, i, m)
	}
	return evs
}

func first(t *testing.T, evs []*events.Event, f func(*events.Event) bool) (int, *events.Event) {
	t.Helper()
	i := slices.IndexFunc(evs, f)
	if i < 0 {
		t.Fatal("no such event")
	}
	return i, evs[i]
}

func ofType(typ events.Type) func(*events.Event) bool {
	return func(e *events.Event) bool { return e.Type == typ }
}

// Where records were lost, nothing is concluded from silence.
func TestLostRecords(t *testing.T) {
	client, worker := parse(t, "cut-client"), parse(t, "cut-worker")
	_, abort := first(t, worker, ofType(events.TypeAbort))
	client = insert(client, &events.Event{
		Type: events.TypeLost, MonoNS: abort.MonoNS + 1e9, Time: abort.Time + 1e9,
		Lost: &events.Lost{Count: 12, Total: 12, By: map[string]uint64{"tcp_receive_reset": 12}},
	})
	_, text := tell(t, report.Options{}, file{"client.jsonl", lines(client)}, file{"worker.jsonl", lines(worker)})
	has(t, text, "client.jsonl: the session lost 12 records", "12 records of client.jsonl were lost since", "whether client's end learned of it is not known", "worker's end gave up first")
	hasNot(t, text, "was not seen to arrive", "did not learn of it", "no acknowledgement;")

	// The end itself may be among them.
	client = slices.DeleteFunc(client, func(e *events.Event) bool {
		return e.MonoNS > abort.MonoNS+2e9 && e.Sock != nil
	})
	_, text = tell(t, report.Options{}, file{"client.jsonl", lines(client)})
	has(t, text, "whether client's end was still open when the session ended is not known: records were lost; when last seen it was ESTABLISHED with 3000 bytes not acknowledged")
}

// A file that was cut says nothing of what came after.
func TestCutFile(t *testing.T) {
	text := read(t, "cut-client")
	i := strings.Index(text, `"attempt":6`)
	_, told := tell(t, report.Options{}, file{"client.jsonl", text[:i]})
	has(t, told, "client.jsonl: the session was cut short: the last line breaks off, and there is no summary",
		"client's end retransmitted 5 times", "what became of client's end is not known: client.jsonl breaks off here, without a summary; when last seen it was ESTABLISHED with 3000 bytes not acknowledged")
	hasNot(t, told, "still open when", "no acknowledgement;")

	// Cut between the end and its reason.
	_, told = tell(t, report.Options{}, file{"client.jsonl", text[:strings.Index(text, `"type":"abort"`)]})
	has(t, told, "client's end received a RST", "client's end went from ESTABLISHED to CLOSE, and no line says why: client.jsonl breaks off before that")

	// Both ends, one of them cut: its silence is no evidence.
	_, told = tell(t, report.Options{}, file{"client.jsonl", text[:i]}, file{"worker.jsonl", read(t, "cut-worker")})
	has(t, told, "worker's end gave up first", "whether client's end learned of it is not known")
	hasNot(t, told, "was not seen to arrive", "did not learn of it")
}

// Where the kernel counted a retransmission that is not there, which one was
// answered is what was seen, and no more.
func TestUncounted(t *testing.T) {
	evs := parse(t, "heal")
	sum := evs[len(evs)-1].Summary
	sum.Verdict = events.Verdict{State: "incomplete", By: 1, Reasons: []string{"client: RetransSegs: 1 are not in the events"}}
	for i := range sum.Namespaces {
		n := &sum.Namespaces[i]
		if n.Netns.Name != "client" {
			continue
		}
		for j := range n.Ledger.Lines {
			if l := &n.Ledger.Lines[j]; l.Counter == "RetransSegs" {
				l.Kernel, l.Difference, l.Result = l.Kernel+1, 1, "incomplete"
			}
		}
	}
	_, text := tell(t, report.Options{}, file{"heal.jsonl", lines(evs)})
	has(t, text, "client's end retransmitted 5 times until +3.127 s (4 rto, 1 tlp), by what was seen; the next was due",
		"the 6th retransmission of client's end, by what was seen, was answered", "client's end retransmitted 2 times in 2 runs until +6.692 s (loss-recovery), by what was seen, each answered")

	// What another namespace misses is not this one's.
	for i := range sum.Namespaces {
		sum.Namespaces[i].Netns.Name += "2"
	}
	_, text = tell(t, report.Options{}, file{"heal.jsonl", lines(evs)})
	hasNot(t, text, "by what was seen")
}

// What a namespace saw nothing of is known only if it was watched all the
// while, has the address and nobody else does.
func TestUnheard(t *testing.T) {
	const known, listens, arrived = "was no socket: worker has that address and was watched all the while", ", though one listened on that port", "a SYN that arrived and was not answered would not show"
	evs := parse(t, "unheard")
	_, text := tell(t, report.Options{}, file{"unheard.jsonl", lines(evs)})
	has(t, text, known, listens, "2 segments of client's end were dropped in worker")
	hasNot(t, text, arrived)
	evs = slices.DeleteFunc(evs, func(e *events.Event) bool { return e.Drop != nil })
	_, text = tell(t, report.Options{}, file{"unheard.jsonl", lines(evs)})
	has(t, text, known, listens, arrived)

	_, listen := first(t, evs, func(e *events.Event) bool { return e.State != nil && e.State.New == "LISTEN" })
	quiet := slices.DeleteFunc(slices.Clone(evs), func(e *events.Event) bool { return e == listen })
	_, text = tell(t, report.Options{}, file{"unheard.jsonl", lines(quiet)})
	has(t, text, known)
	hasNot(t, text, listens)

	// It was gone before the connection was.
	_, cancelled := first(t, evs, ofType(events.TypeAbort))
	_, w := first(t, evs, func(e *events.Event) bool { return e.Netns != nil && e.Netns.Name == "worker" })
	left := insert(slices.Clone(evs), &events.Event{
		Type: events.TypeTarget, MonoNS: cancelled.MonoNS - 5e8, Netns: w.Netns, Target: &events.Target{Change: "gone", Detail: "name deleted"},
	})
	_, text = tell(t, report.Options{}, file{"unheard.jsonl", lines(left)})
	has(t, text, "is not in these files: worker has that address, but was not watched all the while, or something is missing")

	// A twin has the address too.
	twin := slices.Clone(evs)
	for _, e := range evs {
		if e.Netns == nil || e.Netns.Name != "worker" || e.Sock == nil {
			continue
		}
		c, ns := *e, *e.Netns
		ns.Name, ns.Cookie, ns.Inode = "twin", 777, 777
		c.Netns = &ns
		twin = insert(twin, &c)
	}
	_, text = tell(t, report.Options{}, file{"unheard.jsonl", lines(twin)})
	has(t, text, "is not in these files: what it did is not known")
}

func TestMissingLine(t *testing.T) {
	evs := parse(t, "cut-client")
	i, _ := first(t, evs, func(e *events.Event) bool { return e.Retransmit != nil && e.Retransmit.Attempt == 3 })
	var b []byte
	for _, e := range slices.Delete(evs, i, i+1) {
		b = append(e.AppendJSON(b), '\n')
	}
	r, text := tell(t, report.Options{}, file{"client.jsonl", string(b)})
	has(t, text, "client.jsonl: line 9: seq is 10, not 9", "note: client.jsonl is damaged", "retransmitted 7 times")
	if len(r.Files[0].Damage) != 1 {
		t.Errorf("damage: %q", r.Files[0].Damage)
	}
	// A line that is no event is passed over.
	bad := strings.Replace(read(t, "cut-client"), `"type":"mark"`, `"type":"mark`, 1)
	_, text = tell(t, report.Options{}, file{"client.jsonl", bad})
	has(t, text, "client.jsonl: line 6: not an event", "client's end was reset")
}

// The name comes back with another namespace, in which the same addresses are
// used again.
func TestGenerations(t *testing.T) {
	client, worker := parse(t, "cut-client"), parse(t, "cut-worker")
	_, last := first(t, client, ofType(events.TypeAbort))
	next := events.Netns{Name: "worker", Generation: 2, Inode: 4026599999, Cookie: 999_999}
	_, probe := first(t, worker, ofType(events.TypeProbe))
	old := *probe.Netns
	// The first generation ends before it gives up.
	kept := slices.DeleteFunc(worker, func(e *events.Event) bool {
		return e.MonoNS > probe.MonoNS && (e.Sock != nil && e.Reset == nil || e.Abort != nil || e.Reset != nil && e.Reset.Socket)
	})
	for _, e := range kept {
		if e.Reset != nil {
			e.Netns = &next
		}
	}
	at := probe.MonoNS + 5e9
	kept = insert(
		kept,
		&events.Event{Type: events.TypeTarget, MonoNS: at, Netns: &old, Target: &events.Target{Change: "gone", Detail: "container stopped"}},
		&events.Event{Type: events.TypeTarget, MonoNS: at + 1e9, Netns: &next, Target: &events.Target{Change: "attached", Detail: "container started", BlindNS: 1e9}},
	)
	r, text := tell(t, report.Options{}, file{"client.jsonl", lines(client)}, file{"worker.jsonl", lines(kept)})
	has(t, text, "worker was no longer watched (container stopped): what worker's end did from here on was not seen",
		"worker came back as another namespace (container started); nothing was seen of it for 1 s",
		"the 9th retransmission (rto) of client's end reached worker/2 and found no socket", "client's end was reset: it accepted a RST sent by worker/2 (NO_SOCKET)", "1 connection in 2 files")
	hasNot(t, text, "worker's end gave up", "had received none")
	if end := r.Stories[0].Ends[1]; end.Ending != report.EndingGone || end.EndedNS != at || r.Stories[0].Ends[0].EndedNS != last.MonoNS {
		t.Errorf("ends: %+v", r.Stories[0].Ends)
	}
}

// A RST that arrives and is not accepted tells the other end nothing.
func TestResetNotAccepted(t *testing.T) {
	client, worker := parse(t, "cut-client"), parse(t, "cut-worker")
	_, sent := first(t, worker, ofType(events.TypeReset))
	_, r := first(t, client, ofType(events.TypeReset))
	got := *r
	sock := *r.Sock
	sock.Cookie = 0
	got.MonoNS, got.Sock, got.TCP, got.Owner = sent.MonoNS+50_000, &sock, nil, nil
	got.Reset = &events.Reset{Direction: "received", Segment: sent.Reset.Segment, SeenBy: "wire"}
	client = insert(client, &got)
	_, text := tell(t, report.Options{}, file{"client.jsonl", lines(client)}, file{"worker.jsonl", lines(worker)})
	has(t, text, "client's end did not learn of it: the RST arrived in client, but no socket accepted it, and it stayed open for 24.6 s more",
		"a RST arrived in client that no socket accepted; client's end stays open", "accepted a RST sent by worker (NO_SOCKET)")
	hasNot(t, text, "was not seen to arrive in client, and")
}

// Both ends in one namespace are told apart by their addresses.
func TestLoopback(t *testing.T) {
	evs := parse(t, "ends")
	_, e := first(t, evs, func(e *events.Event) bool { return e.Netns != nil && e.Netns.Name == "client" })
	ns := *e.Netns
	for _, e := range evs {
		if e.Netns != nil {
			e.Netns = &ns
		}
	}
	_, text := tell(t, report.Options{}, file{"ends.jsonl", lines(evs)})
	has(t, text, "198.18.9.2:8080's end was closed by its process with 4344 bytes unread", "3 connections in 1 file",
		"'s end was reset: it accepted a RST sent by 198.18.9.2:8080's end (TCP_ABORT_ON_CLOSE)", "all of them arrived in 198.18.9.2:8080")
}

// Old kernels have no cookies of namespaces, and a connection that leaves its
// listener has none.
func TestNoCookies(t *testing.T) {
	evs := parse(t, "handshake")
	for _, e := range evs {
		if e.Netns != nil {
			e.Netns.Cookie = 0
		}
		if e.State != nil && e.State.Old == "LISTEN" && e.State.New == "SYN_RECV" {
			e.Sock.Cookie, e.Sock.Remote = 0, netip.AddrPort{}
		}
	}
	_, text := tell(t, report.Options{}, file{"handshake.jsonl", lines(evs)})
	want, err := os.ReadFile("testdata/handshake.txt")
	if err != nil {
		t.Fatal(err)
	}
	if text != string(want) {
		t.Errorf("got\n%s\nwant\n%s", text, want)
	}
}

// A request that is never accepted has no socket.
func TestNeverAccepted(t *testing.T) {
	evs := slices.DeleteFunc(parse(t, "handshake"), func(e *events.Event) bool {
		return e.Sock != nil && (e.Netns.Name == "client" || e.Sock.Cookie != 0 || e.Retransmit == nil)
	})
	_, text := tell(t, report.Options{}, file{"handshake.jsonl", lines(evs)})
	has(t, text, "198.18.3.2:8080 (no socket, in worker) ← 198.18.3.1:56692",
		"worker retransmitted its SYN-ACK 2 times until +0.000 s, 1 of them because the SYN came again; the next was due 2 s after the last; no connection came of it")
}

// Without sequence numbers, namespaces with the same addresses cannot be told
// apart, and are not.
func TestAmbiguous(t *testing.T) {
	evs := parse(t, "twins")
	for _, e := range evs {
		e.TCP = nil
	}
	r, text := tell(t, report.Options{}, file{"twins.jsonl", lines(evs)})
	has(t, text, "note: the other end is not joined: it could be any of 2 (198.18.",
		"in worker, 198.18.", "in worker2)", "2 with trouble, 2 without")
	for _, st := range r.Stories {
		if len(st.Ends) != 1 || st.JoinedBy != "" {
			t.Errorf("joined: %+v", st.Ends)
		}
	}
	// One pair alone is joined, and the story says by what.
	evs = slices.DeleteFunc(evs, func(e *events.Event) bool { return e.Netns != nil && strings.HasSuffix(e.Netns.Name, "2") })
	_, text = tell(t, report.Options{}, file{"twins.jsonl", lines(evs)})
	has(t, text, "in client) →", "in worker)\n", "note: the two ends are taken for one connection because of their addresses and times")
	// A third that has the client's addresses makes it uncertain again.
	third := slices.Clone(evs)
	for _, e := range evs {
		if e.Netns == nil || e.Netns.Name != "client" || e.Sock == nil {
			continue
		}
		c, ns, sock := *e, *e.Netns, *e.Sock
		ns.Name, ns.Cookie, ns.Inode = "other", 777, 777
		sock.Cookie++
		c.Netns, c.Sock = &ns, &sock
		third = insert(third, &c)
	}
	_, text = tell(t, report.Options{}, file{"twins.jsonl", lines(third)})
	has(t, text, "could be the other end of several (198.18.")
}

// Sequence numbers of another connection are no match.
func TestMisfit(t *testing.T) {
	worker := parse(t, "cut-worker")
	for _, e := range worker {
		if e.TCP != nil && e.TCP.RcvNxt != 0 {
			e.TCP.RcvNxt += 1000
			e.TCP.CopiedSeq += 1000
		}
	}
	_, text := tell(t, report.Options{}, file{"client.jsonl", read(t, "cut-client")}, file{"worker.jsonl", lines(worker)})
	has(t, text, "is not in these files: worker has a socket with these addresses, but what it sent and received does not fit", "2 connections in 2 files")
}

// The clocks of two machines have nothing to do with each other.
func TestOtherBoot(t *testing.T) {
	worker := parse(t, "cut-worker")
	worker[0].Session.BootID = "another"
	_, text := tell(t, report.Options{Since: "link healed"}, file{"client.jsonl", read(t, "cut-client")}, file{"worker.jsonl", lines(worker)})
	has(t, text, "2 connections in 2 files: 2 with trouble", `note: the mark "link healed" (healed), the first of 2 that match was on another machine, or before a reboot`)
	if n := strings.Count(text, "mark, healed: link healed"); n != 2 {
		t.Errorf("%d marks, want one in each story:\n%s", n, text)
	}
}

// The same file twice, or two that watched the same at once, say it once.
func TestWatchedTwice(t *testing.T) {
	one, alone := tell(t, report.Options{}, file{"heal.jsonl", read(t, "heal")})
	r, text := tell(t, report.Options{}, file{"heal.jsonl", read(t, "heal")}, file{"copy.jsonl", read(t, "heal")})
	has(t, text, "heal.jsonl and copy.jsonl watched client at the same time: it is told from heal.jsonl")
	if r.Connections != 1 || len(r.Stories) != 1 || !slices.EqualFunc(r.Stories[0].Steps, one.Stories[0].Steps, func(a, b report.Step) bool { return a.Text == b.Text }) {
		t.Errorf("got\n%s\nwant\n%s", text, alone)
	}
}

// A second session goes on with the sockets of the first.
func TestAppended(t *testing.T) {
	evs := parse(t, "heal")
	i, mark := first(t, evs, func(e *events.Event) bool { return e.Mark != nil && e.Mark.Kind == "healed" })
	_, abort := first(t, evs, func(e *events.Event) bool { return e.Retransmit != nil && e.Retransmit.Attempt == 5 })
	header := *evs[0]
	header.MonoNS = mark.MonoNS - 1
	inventory := *abort
	inventory.Type, inventory.Retransmit, inventory.Inventory = events.TypeInventory, nil, &events.Inventory{Inode: 1}
	inventory.MonoNS = mark.MonoNS
	evs = slices.Insert(evs, i, &header, &inventory)
	_, text := tell(t, report.Options{}, file{"heal.jsonl", lines(evs)})
	has(t, text, "heal.jsonl: the 1st session was cut short: there is no summary", "client's end is watched again, by heal.jsonl; it was not since +3.127 s",
		"the 6th retransmission of client's end was answered", "closed in order")
	hasNot(t, text, "older than the trace")
}

// What befell a namespace stands between what befell its sockets.
func TestTargets(t *testing.T) {
	evs := parse(t, "heal")
	_, e := first(t, evs, func(e *events.Event) bool { return e.Retransmit != nil && e.Retransmit.Attempt == 2 })
	_, w := first(t, evs, func(e *events.Event) bool { return e.Netns != nil && e.Netns.Name == "worker" })
	ns := *w.Netns
	other := events.Netns{Name: "elsewhere", Generation: 1, Inode: 1, Cookie: 1}
	evs = insert(
		evs,
		&events.Event{Type: events.TypeTarget, MonoNS: e.MonoNS + 1, Netns: &ns, Target: &events.Target{Change: "paused"}},
		&events.Event{Type: events.TypeTarget, MonoNS: e.MonoNS + 2, Netns: &ns, Target: &events.Target{Change: "disconnected", Detail: "lab_default"}},
		&events.Event{Type: events.TypeTarget, MonoNS: e.MonoNS + 3, Netns: &other, Target: &events.Target{Change: "paused"}},
	)
	_, text := tell(t, report.Options{}, file{"heal.jsonl", lines(evs)})
	has(t, text, "client's end retransmitted 2 times until", "worker was paused\n", "worker was disconnected from a network (lab_default)\n", "retransmitted 3 more times until +3.127 s, for the 3rd to the 5th time (rto)")
	hasNot(t, text, "elsewhere")

	// What is still in force when the trouble begins is told, however many
	// marks came after it.
	evs = parse(t, "heal")
	_, e = first(t, evs, ofType(events.TypeRetransmit))
	for i, change := range []string{"paused", "unpaused", "disconnected"} {
		evs = insert(evs, &events.Event{Type: events.TypeTarget, MonoNS: e.MonoNS - 1000 + uint64(i), Netns: &ns, Target: &events.Target{Change: change}})
	}
	for i := range 3 {
		evs = insert(evs, &events.Event{Type: events.TypeMark, MonoNS: e.MonoNS - 500 + uint64(i), Mark: &events.Mark{Kind: "note", Text: fmt.Sprint(i)}})
	}
	_, text = tell(t, report.Options{}, file{"heal.jsonl", lines(evs)})
	has(t, text, "worker was disconnected from a network\n", "mark, note: 0")
	hasNot(t, text, "paused", "link cut")
}

func TestNoTrouble(t *testing.T) {
	evs := slices.DeleteFunc(parse(t, "heal"), func(e *events.Event) bool { return e.Retransmit != nil || e.Recovered != nil })
	text := lines(evs)
	r, told := tell(t, report.Options{}, file{"heal.jsonl", text})
	if told != "1 connection in 1 file, none had trouble\n" || len(r.Stories) != 0 {
		t.Errorf("told %q", told)
	}
	for _, sock := range []string{"198.18.1.1", "198.18.1.2:8080", "198.18.1.1:48384", fmt.Sprint(parseCookie(t, evs))} {
		_, told = tell(t, report.Options{Sock: sock}, file{"heal.jsonl", text})
		has(t, told, "client's end began to connect", "client's end is connected", "closed first, at least for sending, by its process", "1 told as asked")
	}
	_, told = tell(t, report.Options{}, file{"heal.jsonl", lines(evs[:2])})
	if told != "heal.jsonl: the session was cut short: there is no summary\n\nno connection in 1 file\n" {
		t.Errorf("told %q", told)
	}
}

// A firewall is inferred only where TCP's own would be known.
func TestFirewall(t *testing.T) {
	const inferred = "that its TCP did not send"
	evs := parse(t, "reject")
	_, text := tell(t, report.Options{}, file{"reject.jsonl", lines(evs)})
	has(t, text, inferred)
	_, rst := first(t, evs, func(e *events.Event) bool { return e.Reset != nil && e.Reset.Direction == "sent" })
	own := *rst
	own.MonoNS += 1000
	own.Reset = &events.Reset{Direction: "sent", Reason: "NO_SOCKET", SeenBy: "tcp_send_reset"}
	_, text = tell(t, report.Options{}, file{"reject.jsonl", lines(insert(slices.Clone(evs), &own))})
	hasNot(t, text, inferred)
	evs[0].Session.CannotShow = []string{"resets-without-socket"}
	_, text = tell(t, report.Options{}, file{"reject.jsonl", lines(evs)})
	has(t, text, "a RST left worker that no socket sent")
	hasNot(t, text, inferred)
}

// Brief stories of one kind are told once, unless they are asked for, or are
// only two, or one of them is another.
func TestBrief(t *testing.T) {
	const more = "more connections of this kind"
	evs := parse(t, "tries")
	refused := func(o report.Options, evs []*events.Event) (int, string) {
		r, text := tell(t, o, file{"tries.jsonl", lines(evs)})
		if o.Sock == "" && len(r.Stories) != r.Troubled {
			t.Errorf("%d stories of %d with trouble", len(r.Stories), r.Troubled)
		}
		return strings.Count(text, "'s end was refused"), text
	}
	if n, text := refused(report.Options{}, evs); n != 1 || !strings.Contains(text, "  4 "+more) {
		t.Errorf("%d told of 5:\n%s", n, text)
	}
	_, e := first(t, evs, ofType(events.TypeReset))
	if n, text := refused(report.Options{Sock: netip.AddrPortFrom(e.Sock.Local.Addr(), 8080).String()}, evs); n != 5 || strings.Contains(text, more) {
		t.Errorf("%d told of 5 that were asked for:\n%s", n, text)
	}
	// One of another process is told by itself.
	var socks []uint64
	for _, e := range evs {
		if e.Abort != nil {
			socks = append(socks, e.Sock.Cookie)
		}
	}
	for _, e := range evs {
		if e.Sock != nil && e.Sock.Cookie == socks[2] && e.Owner != nil {
			o := *e.Owner
			o.Comm = "another"
			e.Owner = &o
		}
	}
	if n, text := refused(report.Options{}, evs); n != 2 || !strings.Contains(text, "  3 "+more) {
		t.Errorf("%d told of 4 and 1:\n%s", n, text)
	}
	two := slices.DeleteFunc(evs, func(e *events.Event) bool {
		return e.Sock != nil && e.Sock.Cookie != 0 && slices.Contains(socks[2:], e.Sock.Cookie)
	})
	if n, text := refused(report.Options{}, two); n != 2 || strings.Contains(text, "ECONNREFUSED\n  ") {
		t.Errorf("%d told of 2:\n%s", n, text)
	}
}

func parseCookie(t *testing.T, evs []*events.Event) uint64 {
	_, e := first(t, evs, func(e *events.Event) bool { return e.Netns != nil && e.Netns.Name == "client" && e.Sock != nil })
	return e.Sock.Cookie
}

func TestOptions(t *testing.T) {
	var c report.Collector
	load(t, &c, "client.jsonl", read(t, "cut-client"))
	for _, tt := range []struct {
		o    report.Options
		err  error
		zero string
	}{
		{o: report.Options{}, zero: "the first trouble"},
		{o: report.Options{Since: "link cut"}, zero: `the mark "link cut" (applied)`},
		{o: report.Options{Since: "healed"}, zero: `the mark "link healed" (healed)`},
		{o: report.Options{Since: "7"}, zero: "line 7 of client.jsonl (retransmit)"},
		{o: report.Options{Since: "7000"}, err: report.ErrNoSince},
		{o: report.Options{Since: "nothing"}, err: report.ErrNoSince},
		{o: report.Options{Sock: "198.18.1.1:1"}, err: report.ErrNoMatch},
		{o: report.Options{Sock: "::ffff:198.18.1.1"}, zero: "the first trouble"},
		{o: report.Options{Sock: "1"}, err: report.ErrNoMatch},
	} {
		r, err := c.Report(tt.o)
		switch {
		case !errors.Is(err, tt.err):
			t.Errorf("%+v: %v, want %v", tt.o, err, tt.err)
		case err == nil && r.Stories[0].Zero != tt.zero:
			t.Errorf("%+v: times since %q, want %q", tt.o, r.Stories[0].Zero, tt.zero)
		}
	}
	if _, err := c.Report(report.Options{Since: "nothing"}); !strings.Contains(err.Error(), `"link cut" (applied), "link healed" (healed)`) {
		t.Errorf("the marks there are: %v", err)
	}
	for _, bad := range []string{"localhost", "198.18.0.1:", "-1", "0"} {
		if _, err := c.Report(report.Options{Sock: bad}); err == nil || errors.Is(err, report.ErrNoMatch) || report.CheckSock(bad) == nil {
			t.Errorf("--sock %q: %v", bad, err)
		}
	}
}

// No name in a file can drive a terminal or forge a line.
func TestUntrusted(t *testing.T) {
	const evil = "x\x1b[2J\nforged\u202e\u009b"
	evs := parse(t, "cut-worker")
	for _, e := range evs {
		switch {
		case e.Mark != nil:
			e.Mark.Text, e.Mark.By = evil, evil
		case e.Abort != nil:
			e.Abort.Cause, e.Abort.Why = "undecided", evil
		case e.Reset != nil:
			e.Reset.Reason = evil
		}
		if e.Netns != nil {
			e.Netns.Name = evil
		}
		if e.Owner != nil {
			e.Owner.Comm = evil
		}
	}
	_, text := tell(t, report.Options{}, file{evil, lines(evs)})
	if i := strings.IndexFunc(strings.ReplaceAll(text, "\n", ""), func(r rune) bool { return r < ' ' || r >= 0x7f && r < 0xa0 || r == 0x202e }); i >= 0 {
		t.Errorf("control character in %q", text)
	}
	if strings.Contains(text, "\nforged") {
		t.Errorf("forged line in\n%s", text)
	}
}

// Whatever is missing, there is a story, and the same one each time.
func TestAnyLineMissing(t *testing.T) {
	for _, name := range []string{"cut-client", "cut-worker", "heal", "handshake", "ends", "twins", "born-before", "gone", "reuse", "lossy", "killed", "unsent", "unheard", "restart"} {
		evs := parse(t, name)
		for i := range evs {
			for _, left := range [][]*events.Event{slices.Concat(evs[:i], evs[i+1:]), evs[:i], evs[i:]} {
				r, text := tell(t, report.Options{}, file{"a.jsonl", lines(left)})
				for _, st := range r.Stories {
					for j, s := range st.Steps {
						if s.Text == "" || len(s.Lines) == 0 || (j > 0 && s.MonoNS < st.Steps[j-1].MonoNS) {
							t.Fatalf("%s without line %d: step %+v", name, i+1, s)
						}
					}
				}
				if _, again := tell(t, report.Options{}, file{"a.jsonl", lines(left)}); again != text {
					t.Fatalf("%s without line %d: told in two ways:\n%s\n%s", name, i+1, text, again)
				}
			}
		}
	}
}

// edit changes evidence as the bytes say: three for a line, an operation and
// another line.
func edit(evs []*events.Event, ops []byte) []*events.Event {
	out := slices.Clone(evs)
	for ; len(ops) >= 3 && len(out) > 0; ops = ops[3:] {
		i, j := int(ops[0])%len(out), int(ops[2])%len(out)
		e := *out[i]
		switch other := out[j]; ops[1] % 12 {
		case 0:
			out = slices.Delete(out, i, i+1)
			continue
		case 1:
			out = slices.Insert(out, j, &e)
			continue
		case 2:
			out[i], out[j] = out[j], out[i]
			continue
		case 3:
			e.TCP = other.TCP
		case 4:
			e.Owner = other.Owner
		case 5:
			e.MonoNS = other.MonoNS
		case 6:
			e.Netns = other.Netns
		case 7:
			e.Sock = other.Sock
		case 8:
			if e.Sock != nil {
				s := *e.Sock
				s.Cookie = uint64(ops[2] % 3)
				e.Sock = &s
			}
		case 9:
			if e.Sock != nil {
				s := *e.Sock
				s.Local, s.Remote = s.Remote, s.Local
				e.Sock = &s
			}
		case 10:
			if e.Reset != nil {
				r := *e.Reset
				r.Segment, r.Trigger = r.Trigger, r.Segment
				e.Reset = &r
			}
		case 11:
			if e.State != nil {
				s := *e.State
				s.Old, s.New = s.New, s.Old
				e.State = &s
			}
		}
		out[i] = &e
	}
	return out
}

// FuzzEdits tells evidence that makes no sense.
func FuzzEdits(f *testing.F) {
	names := []string{"cut-client", "cut-worker", "handshake", "ends", "gone", "reuse", "born-before", "killed", "unheard", "restart"}
	all := make([][]*events.Event, len(names))
	for i, n := range names {
		all[i] = parse(f, n)
		f.Add(uint8(i), []byte{})
		for op := range byte(12) {
			f.Add(uint8(i), []byte{5, op, 9, 12, op, 3, 20, op, 6})
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, ops []byte) {
		var c report.Collector
		for n := range 2 { // the second file is whole
			fr := c.File("f")
			evs := all[(int(which)+n)%len(all)]
			if n == 0 {
				evs = edit(evs, ops)
			}
			for i, e := range evs {
				fr.Add(i+1, e)
			}
		}
		r, err := c.Report(report.Options{})
		if err != nil {
			t.Fatal(err)
		}
		r.AppendText(nil)
		if _, err := json.Marshal(r); err != nil {
			t.Fatal(err)
		}
	})
}
