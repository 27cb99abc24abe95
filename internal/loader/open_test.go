package loader_test

import (
	"testing"
	"time"

	"github.com/sockwatch/sockwatch/internal/loader"
	"github.com/sockwatch/sockwatch/internal/testlab"
)

// Loading and attaching is fast, whichever way the edge is watched.
func TestOpenIsFast(t *testing.T) {
	testlab.Privileged(t)
	node := testlab.NewNodes(t, 1)[0]
	for _, wire := range []string{"", loader.MethodPacket} {
		start := time.Now()
		o, err := loader.Open(loader.Options{HZ: 250, ArrivalThreshold: time.Second, Wire: wire})
		if err != nil {
			t.Fatal(err)
		}
		err = node.Do(func() error {
			w, err := o.Watch(uint32(node.Inode()), 0)
			if err == nil {
				defer w.Close()
			}
			return err
		})
		took := time.Since(start)
		method := o.WireMethod()
		o.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %v", method, took)
		if took > 2*time.Second && !testlab.Emulated() {
			t.Errorf("loading and attaching (%s) took %v, more than 2 s", method, took)
		}
	}
}
