package verify

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	observation "github.com/sockwatch/sockwatch/internal/session"
	"github.com/sockwatch/sockwatch/internal/sink"
	"github.com/sockwatch/sockwatch/internal/target"
	"github.com/sockwatch/sockwatch/internal/testlab"
)

var record = flag.Bool("record", false, "write what TestLive observes to testdata")

// observed is a session that watches one node.
type observed struct {
	out    bytes.Buffer
	cancel context.CancelFunc
	done   chan error
}

type buffer struct{ *bytes.Buffer }

func (buffer) Close() error { return nil }

func observe(t *testing.T, n *testlab.Node) *observed {
	t.Helper()
	spec, err := target.ParseSpec(n.Name)
	if err != nil {
		t.Fatal(err)
	}
	o := &observed{done: make(chan error, 1)}
	ready := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	o.cancel = cancel
	go func() {
		_, err := observation.Run(ctx, observation.Config{
			Targets: []target.Spec{spec}, Sinks: []sink.Sink{sink.NewJSONL(buffer{&o.out})}, Version: "test", Commit: "0",
			Command: []string{"sockwatch", "--netns", n.Name}, OnReady: func() error { close(ready); return nil },
		})
		o.done <- err
	}()
	select {
	case <-ready:
	case err := <-o.done:
		t.Fatalf("the session ended before it was ready: %v", err)
	}
	return o
}

func (o *observed) stop(t *testing.T) string {
	t.Helper()
	o.cancel()
	if err := <-o.done; err != nil {
		t.Fatal(err)
	}
	return o.out.String()
}

// TestLive watches both ends of connections that end well and badly, with a
// session each, and verifies the two files together.
func TestLive(t *testing.T) {
	testlab.Privileged(t)
	p := testlab.New(t)
	p.PinNeighbours()
	const port = 8080
	a, b := observe(t, p.A), observe(t, p.B)
	l := p.B.Listen("tcp4", p.B.Addr(port).String())

	exchange := func(client, server *net.TCPConn, n int) {
		t.Helper()
		for _, way := range [][2]*net.TCPConn{{client, server}, {server, client}} {
			if _, err := way[0].Write(make([]byte, n)); err != nil {
				t.Fatal(err)
			}
			if err := way[1].SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(way[1], make([]byte, n)); err != nil {
				t.Fatal(err)
			}
		}
	}
	over := func(c *net.TCPConn, want error) {
		t.Helper()
		if err := c.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, want) {
			t.Fatalf("the connection ended with %v, want %v", err, want)
		}
	}

	// The first connection lasts: segments are lost at its beginning and at its
	// end, so that what happens between is far from the readings of counters.
	first, firstServer := p.A.Connect(p.B, l)
	exchange(first, firstServer, 1000)
	lossy := func(nth ...int) {
		t.Helper()
		loss := p.B.Lose(testlab.Loss{DstPort: port, Mask: testlab.SYN, Nth: nth})
		exchange(first, firstServer, 500)
		loss.Undo()
		exchange(first, firstServer, 10)
	}
	lossy(1, 2)

	// The server closes with data unread, then the client with a linger of 0.
	client, server := p.A.Connect(p.B, l)
	exchange(client, server, 10)
	if _, err := client.Write(make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	testlab.Eventually(t, 5*time.Second, func() bool {
		info, err := testlab.Info(server)
		return err == nil && info.Bytes_received >= 15
	})
	server.Close()
	over(client, unix.ECONNRESET)
	client, server = p.A.Connect(p.B, l, testlab.Linger(0))
	exchange(client, server, 10)
	client.Close()
	over(server, unix.ECONNRESET)

	// Nobody listens.
	l.Close()
	if _, err := p.A.DialContext(t.Context(), "tcp4", p.B.Addr(port).String()); !errors.Is(err, unix.ECONNREFUSED) {
		t.Fatal(err)
	}

	lossy(1)
	first.Close()
	over(firstServer, io.EOF)
	firstServer.Close()

	names := strings.NewReplacer(p.A.Name, "client", p.B.Name, "worker")
	files := map[string]string{"client": names.Replace(a.stop(t)), "worker": names.Replace(b.stop(t))}
	r := verifyTexts(t, files["client"], files["worker"])
	for _, line := range r.Text() {
		t.Log(line)
	}
	if r.Result != ResultHolds || r.Ends.Connections != 3 || r.Ends.Resets != 2 || r.Ends.Compared < 10 || len(r.Findings) != 0 {
		t.Errorf("%s, ends %+v", r.Result, r.Ends)
	}
	if *record {
		for name, text := range files {
			if err := os.WriteFile(filepath.Join("testdata", name+".jsonl"), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}
