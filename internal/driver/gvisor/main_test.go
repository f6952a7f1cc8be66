package gvisor_test

import (
	"os"
	"testing"

	"ringfence.dev/ringfence/internal/driver/gvisor"
)

// The sentry is this test binary, started again: build with CGO_ENABLED=0.
func TestMain(m *testing.M) {
	gvisor.MaybeRunsc()
	os.Exit(m.Run())
}
