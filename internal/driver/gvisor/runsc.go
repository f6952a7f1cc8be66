package gvisor

import (
	"os"

	"gvisor.dev/gvisor/runsc/cli/maincli"
)

// gatedArgv0 is the argv[0] under which the driver starts the sentry. File
// descriptor gateFD is then a pipe on which the process waits for one byte, so
// that it is in its control group, and its start is on record, before it does
// anything. When the pipe closes without that byte, the daemon died: it exits.
const (
	gatedArgv0 = "ringfence-sandbox"
	gateFD     = 3
)

// MaybeRunsc turns the process into a part of gVisor if its arguments say that it
// was started as one, and does not return then. The sentry is this very binary,
// started again through /proc/self/exe, so main has to call MaybeRunsc before
// anything else, and so has TestMain of every test that starts a sandbox.
func MaybeRunsc() {
	if len(os.Args) == 0 {
		return
	}
	switch os.Args[0] {
	case gatedArgv0:
		gate := os.NewFile(gateFD, "gate")
		if n, err := gate.Read(make([]byte, 1)); n != 1 || err != nil {
			os.Exit(1)
		}
		gate.Close()
		os.Args[0] = "runsc-sandbox"
	case "runsc-sandbox", "runsc-gofer", "runsc-exec":
	case "/proc/self/exe":
		// The sentry starts this to take its own /proc away.
		if len(os.Args) < 2 || os.Args[1] != "umount" {
			return
		}
	default:
		return
	}
	maincli.Main()
	os.Exit(0)
}
