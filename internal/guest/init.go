package guest

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// initReady is what the first process of the namespaces says when they are set up.
const initReady = "ready"

// initWaitArg is InitArg's second stage.
const initWaitArg = "init-wait"

// RunInit is the first process of the commands' namespaces. Its first stage gives
// them a /proc of their own and hides what is the agent's; the second, the same
// program executed again without the rights that this took, collects orphans until
// it is killed. It returns only an error.
func RunInit(stage string) error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return err
	}
	ready := os.NewFile(3, "ready")
	if stage == InitArg {
		runtime.LockOSThread() // capabilities are a thread's, and exec keeps the caller's
		err := prepareNamespaces()
		if err == nil {
			err = boundThread()
		}
		if err == nil {
			err = unix.Exec("/proc/self/exe", []string{os.Args[0], initWaitArg}, os.Environ())
		}
		fmt.Fprint(ready, err)
		return err
	}
	signal.Ignore() // all that a command may send by mistake; SIGKILL cannot be helped
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	fmt.Fprint(ready, initReady)
	ready.Close()
	for range children {
		for {
			if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); err != unix.EINTR && pid <= 0 {
				break
			}
		}
	}
	return nil
}

// IsInit reports whether arg asks for RunInit.
func IsInit(arg string) bool { return arg == InitArg || arg == initWaitArg }

func prepareNamespaces() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return err
	}
	// What is mounted here must not appear in the agent's namespace.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("cannot make mounts private: %w", err)
	}
	mounts, err := mountPoints()
	if err != nil {
		return err
	}
	// Unmounted, and not covered: who gets a user namespace could uncover it.
	for i := len(mounts) - 1; i >= 0; i-- {
		p := mounts[i]
		if p == "/proc" || strings.HasPrefix(p, "/proc/") || p == CgroupMount || strings.HasPrefix(p, CgroupMount+"/") {
			if err := unix.Unmount(p, unix.MNT_DETACH); err != nil && err != unix.EINVAL {
				return fmt.Errorf("cannot hide %s: %w", p, err)
			}
		}
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("cannot mount /proc: %w", err)
	}
	// gVisor's /dev is a tmpfs that takes no size: files in it would be memory that no
	// process owns. Devices can be written to on a read-only mount, and /dev/shm and
	// /dev/pts are mounts of their own.
	if err := unix.Mount("", "/dev", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID, ""); err != nil {
		return fmt.Errorf("cannot make /dev read-only: %w", err)
	}
	return nil
}

// mountPoints lists where something is mounted, in the order of mounting.
func mountPoints() ([]string, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var points []string
	for _, line := range strings.Split(string(b), "\n") {
		if f := strings.Fields(line); len(f) > 4 {
			points = append(points, f[4])
		}
	}
	return points, nil
}
