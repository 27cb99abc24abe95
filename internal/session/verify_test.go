package session_test

import (
	"bytes"
	"io"
	"testing"

	"github.com/sockwatch/sockwatch/internal/verify"
)

// verifies holds what a session wrote against itself, as sockwatch verify
// does: nothing in it may contradict the rest.
func verifies(t *testing.T, lines [][]byte) {
	t.Helper()
	file := append(bytes.Join(lines, []byte("\n")), '\n')
	r, err := verify.Files([]verify.Source{{Name: "session", Open: func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(file)), nil
	}}}, verify.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if r.Result == verify.ResultContradicts {
		t.Error("what the session wrote contradicts itself")
	}
	for _, line := range r.Text() {
		t.Log("verify: " + line)
	}
}
