package guest_test

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

const nonblock = unix.O_NONBLOCK

func mkfifo(path string) error { return unix.Mkfifo(path, 0o600) }

// openBlocking opens a pipe for the agent, at both ends so that it never sees its end.
func openBlocking(t testing.TB, path string) *os.File {
	t.Helper()
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fd), path)
}

func growPipe(f *os.File) {
	conn, err := f.SyscallConn()
	if err == nil {
		conn.Control(func(fd uintptr) { unix.FcntlInt(fd, unix.F_SETPIPE_SZ, 1<<20) })
	}
}
