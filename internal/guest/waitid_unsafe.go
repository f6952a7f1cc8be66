package guest

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// siginfo is as much of the kernel's siginfo_t for SIGCHLD as is used here.
type siginfo struct {
	signo, errno, code int32
	_                  int32
	pid                int32
	_                  [128 - 5*4]byte
}

// waitAny looks for a child that has ended, and leaves it to be collected. The PID is 0
// when there is none.
func waitAny(info *siginfo) error {
	_, _, errno := unix.Syscall6(unix.SYS_WAITID, unix.P_ALL, 0, uintptr(unsafe.Pointer(info)), unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
