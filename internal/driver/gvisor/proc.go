package gvisor

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// startTime returns when a process started, in clock ticks since boot. Together
// with the boot id it tells a process from a later one with the same number.
func startTime(pid int) (uint64, error) {
	fields, err := statFields(pid)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(fields[19], 10, 64)
}

// isChild reports whether a process is this one's child, which has to reap it.
func isChild(pid int) bool {
	fields, err := statFields(pid)
	return err == nil && fields[1] == strconv.Itoa(os.Getpid())
}

// statFields returns what /proc/PID/stat says behind the name: state, parent, …
func statFields(pid int) ([]string, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	// The command's name is in parentheses and may hold anything.
	_, rest, ok := strings.Cut(string(raw[max(bytes.LastIndexByte(raw, ')'), 0):]), " ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 20 {
		return nil, fmt.Errorf("cannot read the state of process %d", pid)
	}
	return fields, nil
}

// bootID identifies this run of the host's kernel.
func bootID() (string, error) {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(raw)), err
}

// hostMemory returns the host's memory in bytes.
func hostMemory() (int64, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0, err
	}
	return int64(info.Totalram) * int64(info.Unit), nil
}

// ended reports whether the process behind a pidfd has ended, reaped or not.
func ended(pidfd int) bool {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return n > 0 || (err != nil && err != unix.EINTR)
}

// waitPidfd blocks until the process behind f has ended. It uses the runtime's
// poller, so that a thousand waits cost no threads.
func waitPidfd(f *os.File) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	return conn.Read(func(fd uintptr) bool { return ended(int(fd)) })
}

// reap collects this process's dead child pid and returns how it ended; known is
// false when that cannot be told.
func reap(pid int) (ws unix.WaitStatus, known bool) {
	for {
		got, err := unix.Wait4(pid, &ws, unix.WNOHANG, nil)
		if err == unix.EINTR {
			continue
		}
		return ws, err == nil && got == pid
	}
}

// lastLines returns the end of a log for an error message.
func lastLines(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return "no log"
	}
	defer f.Close()
	const tail = 2048
	if st, err := f.Stat(); err == nil && st.Size() > tail {
		f.Seek(-tail, 2)
	}
	buf := make([]byte, tail)
	n, _ := f.Read(buf)
	if n == 0 {
		return "its log is empty"
	}
	return strings.TrimSpace(string(buf[:n]))
}
