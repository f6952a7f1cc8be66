package api

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"syscall"
	"testing"

	"ringfence.dev/ringfence"
)

// TestClientThatLeaves: whoever breaks connections off must not fill the log with
// faults that are not ours.
func TestClientThatLeaves(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("write tcp: %w", syscall.EPIPE), ""},
		{ringfence.Errorf(ringfence.CodeInternal, "cannot send").WithCause(fmt.Errorf("write: %w", syscall.ECONNRESET)), ""},
		{fmt.Errorf("cannot read the row"), "level=ERROR"},
		{ringfence.Errorf(ringfence.CodeUnavailable, "later"), "level=WARN"},
	} {
		var out bytes.Buffer
		s := &Server{Options: Options{Log: slog.New(slog.NewTextHandler(&out, nil))}}
		s.logFault(&answer{}, tt.err)
		if got := out.String(); (tt.want == "") != (got == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%v: logged %q, want %q", tt.err, got, tt.want)
		}
	}
}
