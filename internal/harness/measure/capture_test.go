package measure

import (
	"context"
	"errors"
	"fmt"
	"testing"
)

func TestJudge(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	broken := errors.New("the disk is full")
	bad := fmt.Errorf("capture: %w", invalidf("the version could not be read: %v", context.Canceled))
	for _, tt := range []struct {
		name string
		ctx  context.Context
		err  error
		why  string
		want error
	}{
		{"valid", t.Context(), nil, "", nil},
		{"invalid", t.Context(), bad, "the version could not be read: context canceled", nil},
		{"invalid because it was interrupted", ended, bad, "", context.Canceled},
		{"broken", t.Context(), broken, "", broken},
		{"broken while it ends", ended, broken, "", broken},
		{"over before it ended", ended, nil, "", nil},
	} {
		if why, err := judge(tt.ctx, tt.err); why != tt.why || !errors.Is(err, tt.want) || (err == nil) != (tt.want == nil) {
			t.Errorf("%s: %q, %v", tt.name, why, err)
		}
	}
}
