package testlab

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// pollInterval is short against what tests wait for and long against what
// asking costs.
const pollInterval = 2 * time.Millisecond

// Eventually polls cond until it holds, and ends the test if it does not
// within the deadline. It returns at once when it holds already.
func Eventually(t testing.TB, deadline time.Duration, cond func() bool) {
	t.Helper()

	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	if Until(ctx, cond) != nil {
		t.Fatalf("condition did not hold within %v", deadline)
	}
}

// Until polls cond until it holds or ctx ends. It asks at least once.
func Until(ctx context.Context, cond func() bool) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()

	for {
		if cond() {
			return nil
		}
		select {
		case <-ctx.Done():
			// Time may have passed between the last question and now.
			if cond() {
				return nil
			}
			return fmt.Errorf("wait for a condition: %w", context.Cause(ctx))
		case <-tick.C:
		}
	}
}
