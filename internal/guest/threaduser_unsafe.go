package guest

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// keep leaves an id as it is.
const keep = ^uintptr(0)

// threadUser sets the calling thread's supplementary groups and effective ids. Real
// and saved ids stay root's, so that it can go back; the kernel takes the effective
// capabilities away with uid 0 and gives the permitted ones back with it.
func threadUser(groups []uint32, gid, uid uint32) error {
	if uid == 0 {
		if err := rawThreadCall(unix.SYS_SETRESUID, keep, 0, keep); err != nil {
			return err
		}
	}
	var first unsafe.Pointer
	if len(groups) > 0 {
		first = unsafe.Pointer(&groups[0])
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(first), 0); errno != 0 {
		return errno
	}
	if err := rawThreadCall(unix.SYS_SETRESGID, keep, uintptr(gid), keep); err != nil {
		return err
	}
	if uid != 0 {
		return rawThreadCall(unix.SYS_SETRESUID, keep, uintptr(uid), keep)
	}
	return nil
}

func rawThreadCall(trap, a, b, c uintptr) error {
	if _, _, errno := unix.RawSyscall(trap, a, b, c); errno != 0 {
		return errno
	}
	return nil
}
