package node

import (
	"bytes"
	"strings"
	"testing"
)

func TestArtifact(t *testing.T) {
	a, err := Artifact("control-01")
	if err != nil {
		t.Fatal(err)
	}
	b, err := Artifact("netsplit-20-05")
	if err != nil {
		t.Fatal(err)
	}
	if len(a) < 2800 || len(a) > 3200 {
		t.Errorf("an artifact has %d bytes, want about 3000", len(a))
	}
	if LabelOf(a) != "control-01" || LabelOf(b) != "netsplit-20-05" {
		t.Errorf("labels %q and %q", LabelOf(a), LabelOf(b))
	}
	if !bytes.Equal(bytes.Replace(a, []byte("control-01"), []byte("netsplit-20-05"), 1), b) {
		t.Error("two artifacts differ in more than the label")
	}
	for _, bad := range []string{"", "a b", `a"`, "a\nb: c", "-a", strings.Repeat("a", 64)} {
		if _, err := Artifact(bad); err == nil {
			t.Errorf("label %q is accepted", bad)
		}
	}
	if got := LabelOf([]byte("machine: {}\n")); got != "" {
		t.Errorf("label %q of what has none", got)
	}
}

func TestParseLog(t *testing.T) {
	var b bytes.Buffer
	log := newLog(&b, "machined")
	log.Info(MsgApplied, "version", 3, "label", "x", "caller_gone", true)
	b.WriteString("panic: what\n{\"time\":\"20")
	got := ParseLog(b.Bytes())
	if len(got) != 3 {
		t.Fatalf("%d lines, want 3: %+v", len(got), got)
	}
	if l := got[0]; l.Program != "machined" || l.Msg != MsgApplied || l.Version != 3 || l.Label != "x" || !l.CallerGone || l.MonoNS == 0 {
		t.Errorf("first line is %+v", l)
	}
	if got[1].Msg != "panic: what" || got[1].Program != "" {
		t.Errorf("second line is %+v", got[1])
	}
}
