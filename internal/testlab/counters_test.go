package testlab

import (
	"context"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

func TestCountersOfNamespace(t *testing.T) {
	p := New(t)
	a, b := p.A.Counters(), p.B.Counters()
	p.A.Connect(p.B, p.B.Listen("tcp", p.B.AddrV6(7000).String()))
	da, db := p.A.Counters().Sub(a), p.B.Counters().Sub(b)
	if da.Get(t, "TcpActiveOpens") != 1 || da.Get(t, "TcpPassiveOpens") != 0 {
		t.Errorf("client: %v", da.NonZero())
	}
	if db.Get(t, "TcpActiveOpens") != 0 || db.Get(t, "TcpPassiveOpens") != 1 || db.Get(t, "Ip6InReceives") == 0 {
		t.Errorf("server: %v", db.NonZero())
	}
	if _, ok := da.NonZero()["TcpPassiveOpens"]; ok {
		t.Error("NonZero has a zero")
	}
}

// Package procfs, which does not know all of them, reads the same values.
func TestCountersAgreeWithProcfs(t *testing.T) {
	p := New(t)
	p.A.Connect(p.B, p.B.Listen("tcp", p.B.Addr(7000).String()))
	var snmp procfs.ProcSnmp
	var netstat procfs.ProcNetstat
	err := p.A.Do(func() error {
		proc, err := procfs.NewProc(unix.Gettid())
		if err != nil {
			return err
		}
		if snmp, err = proc.Snmp(); err != nil {
			return err
		}
		netstat, err = proc.Netstat()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	c := p.A.Counters()
	compared := 0
	for table, v := range map[string]reflect.Value{
		"Tcp": reflect.ValueOf(snmp.Tcp), "TcpExt": reflect.ValueOf(netstat.TcpExt),
	} {
		for i := range v.NumField() {
			want := v.Field(i).Interface().(*float64)
			name := table + v.Type().Field(i).Name
			if got, ok := c[name]; ok && want != nil {
				compared++
				if got != uint64(*want) {
					t.Errorf("%s is %d, want %v", name, got, *want)
				}
			}
		}
	}
	if compared < 90 || c.Get(t, "TcpActiveOpens") != 1 {
		t.Errorf("only %d counters compared, of %v", compared, c.NonZero())
	}
}

func TestCountersComplete(t *testing.T) {
	c := NewNodes(t, 1)[0].Counters()
	for _, name := range []string{
		"TcpRetransSegs", "TcpOutRsts", "TcpEstabResets", "TcpAttemptFails", "TcpActiveOpens", "TcpPassiveOpens",
		"TcpExtTCPSynRetrans", "TcpExtTCPTimeouts", "TcpExtTCPLossProbes", "TcpExtTCPFastRetrans",
		"TcpExtTCPSlowStartRetrans", "TcpExtTCPRetransFail", "TcpExtTCPAbortOnTimeout", "TcpExtTCPAbortOnData",
		"TcpExtTCPAbortOnClose", "TcpExtTCPAbortOnMemory", "TcpExtTCPAbortOnLinger", "TcpExtTCPKeepAlive",
	} {
		c.Get(t, name)
	}
}

func TestCountersMalformed(t *testing.T) {
	c := make(Counters)
	for _, text := range []string{"Tcp: A B\nTcp: 1\n", "Tcp: A\n", "Tcp: A\nUdp: 1\n", "Tcp: A\nTcp: x\n"} {
		if err := c.addTables(text); err == nil {
			t.Errorf("%q was accepted", text)
		}
	}
	for _, text := range []string{"A\n", "A x\n"} {
		if err := c.addList(text); err == nil {
			t.Errorf("%q was accepted", text)
		}
	}
}

func TestEventually(t *testing.T) {
	calls := 0
	Eventually(t, time.Second, func() bool { calls++; return calls == 3 })
	if calls != 3 {
		t.Errorf("asked %d times", calls)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Until(ctx, func() bool { return false }); err == nil {
		t.Error("no error from a context that ended")
	}
	if err := Until(ctx, func() bool { return true }); err != nil {
		t.Errorf("got %v for a condition that holds", err)
	}
}

// Exit status 1 and no skip where CI is set.
func TestPrivilegedWithoutPrivilege(t *testing.T) {
	if missingCapabilities() != "" {
		t.Skip("the other tests show it")
	}
	setpriv, err := exec.LookPath("setpriv")
	if err != nil {
		t.Skip("setpriv(1) is not installed")
	}
	for _, tt := range []struct {
		ci, want string
	}{
		{"", "--- SKIP: TestPrivileged "},
		{"CI=1", "--- FAIL: TestPrivileged "},
	} {
		cmd := exec.Command(setpriv, "--bounding-set=-net_admin", "--inh-caps=-net_admin",
			testBinary(t), "-test.run=^TestPrivileged$", "-test.v")
		cmd.Env = []string{tt.ci}
		out, err := cmd.CombinedOutput()
		if !strings.Contains(string(out), tt.want) || (err != nil) != (tt.ci != "") {
			t.Errorf("%q: %v\n%s", tt.ci, err, out)
		}
	}
}

func testBinary(t *testing.T) string {
	t.Helper()

	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}
