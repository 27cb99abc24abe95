package testlab_test

import (
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/sockwatch/sockwatch/internal/testlab"
)

// The test of the package documentation.
func TestRetransmit(t *testing.T) {
	p := testlab.New(t)
	l := p.B.Listen("tcp", p.B.Addr(7000).String())
	client, server := p.A.Connect(p.B, l, testlab.UserTimeout(20*time.Second))

	capture, before := p.A.Capture(testlab.IfName), p.A.Counters()
	loss := p.B.Lose(testlab.Loss{DstPort: 7000, Nth: []int{1}})
	fmt.Fprint(client, "x")
	if _, err := io.ReadFull(server, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	loss.Undo()

	capture.Stop()
	sent := capture.Filter(func(p testlab.Packet) bool { return p.Outgoing && p.Len > 0 })
	again := p.A.Counters().Sub(before).Get(t, "TcpRetransSegs")
	if uint64(len(sent)) != 1+again || loss.Lost() != 1 {
		t.Errorf("sent %v, %d again, %d lost", sent, again, loss.Lost())
	}
}
