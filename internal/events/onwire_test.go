package events

import "testing"

func TestOnWire(t *testing.T) {
	for _, tt := range []struct {
		trigger, want Segment
	}{
		{Segment{SeqStart: 10, SeqEnd: 20, Ack: 7, Flags: "PSH,ACK"}, Segment{SeqStart: 7, SeqEnd: 7, Flags: "RST"}},
		{Segment{SeqStart: 10, SeqEnd: 11, Flags: "SYN"}, Segment{Ack: 11, Flags: "RST,ACK"}},
	} {
		other := Segment{SeqStart: 99, Flags: "RST,ACK"}
		if got := (&Reset{Trigger: &tt.trigger, Segment: &other}).OnWire(); *got != tt.want {
			t.Errorf("answer to %+v: %+v, want %+v", tt.trigger, *got, tt.want)
		}
	}
	if got := new(Reset).OnWire(); got != nil {
		t.Errorf("of nothing: %+v", got)
	}
}

func TestSameReset(t *testing.T) {
	got := Segment{SeqStart: 7, SeqEnd: 7, Flags: "RST"}
	sent := Reset{Trigger: &Segment{SeqStart: 10, SeqEnd: 20, Ack: 7, Flags: "PSH,ACK"}}
	if same, known := SameReset(&sent, &Reset{Segment: &got}); !same || !known {
		t.Errorf("the answer to a segment: %t, %t", same, known)
	}
	other := got
	other.SeqStart++
	if same, known := SameReset(&sent, &Reset{Segment: &other}); same || !known {
		t.Errorf("one byte on: %t, %t", same, known)
	}
	if same, known := SameReset(&sent, new(Reset)); !same || known {
		t.Errorf("one without a header: %t, %t", same, known)
	}
}
