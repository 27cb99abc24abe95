package evidence_test

import (
	"strings"
	"testing"

	"github.com/sockwatch/sockwatch/internal/evidence"
	"github.com/sockwatch/sockwatch/internal/testlab"
)

// TestReadCounters holds what is read in a namespace against what stands in
// its files, after some of it has been counted.
func TestReadCounters(t *testing.T) {
	p := testlab.New(t)
	p.A.Connect(p.B, p.B.Listen("tcp", p.B.Addr(7000).String()))
	var got evidence.Counters
	before := testlab.MonoNow()
	err := p.A.Do(func() (err error) {
		got, err = evidence.ReadCounters()
		return err
	})
	after := testlab.MonoNow()
	if err != nil {
		t.Fatal(err)
	}
	if got.StartNS < before || got.EndNS < got.StartNS || after < got.EndNS {
		t.Errorf("read from %d to %d, between %d and %d", got.StartNS, got.EndNS, before, after)
	}
	want := p.A.Counters()
	for name, value := range got.Values {
		full := "Tcp" + name
		switch {
		case strings.HasPrefix(name, "TCP"), name == "EmbryonicRsts":
			full = "TcpExt" + name
		case name == "Ip6OutNoRoutes":
			full = name
		case name == "OutNoRoutes":
			full = "Ip" + name
		}
		if value != want.Get(t, full) {
			t.Errorf("%s is %d, want %d", name, value, want.Get(t, full))
		}
	}
	if len(got.Values) != 22 {
		t.Errorf("%d counters, want 22: %v", len(got.Values), got.Values)
	}
	if got.Values["ActiveOpens"] != 1 {
		t.Errorf("ActiveOpens is %d", got.Values["ActiveOpens"])
	}
}
