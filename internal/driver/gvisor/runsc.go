package gvisor

import (
	"os"
	"runtime/debug"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/cli/maincli"
)

// gatedArgv0 is the argv[0] under which the driver starts the sentry. File
// descriptor gateFD is then a pipe on which the process waits for one byte, so
// that it is in its control group, and its start is on record, before it does
// anything. The byte is the number of descriptors that it was given, from gateFD on.
// When the pipe closes without it, the daemon died: the process exits.
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
		given := make([]byte, 1)
		if n, err := gate.Read(given); n != 1 || err != nil {
			os.Exit(1)
		}
		gate.Close()
		if err := closeInherited(gateFD + int(given[0])); err != nil {
			os.Exit(1)
		}
		os.Args[0] = "runsc-sandbox"
		collectAsUsual()
	case "runsc-sandbox":
		collectAsUsual() // it starts itself again with fewer rights
	case "runsc-gofer", "runsc-exec":
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

// bootTime is longer than a sentry takes to boot or to load a small snapshot.
const bootTime = 3 * time.Second

// collectAsUsual ends what GOGC in the environment set for the time of the boot.
func collectAsUsual() {
	time.AfterFunc(bootTime, func() { debug.SetGCPercent(100) })
}

// closeInherited closes the descriptors from first on that the daemon did not mean
// to pass on: gVisor's control client makes sockets and event descriptors that are
// not close-on-exec, and a sentry that starts meanwhile would keep the way to
// another sandbox's sentry. The Go runtime's own are close-on-exec and stay.
func closeInherited(first int) error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, entry := range entries {
		fd, err := strconv.Atoi(entry.Name())
		if err != nil || fd < first {
			continue
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			unix.Close(fd)
		}
	}
	return nil
}
