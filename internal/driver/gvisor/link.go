package gvisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// The named pipes of a sandbox: the agent's stdin, stdout and stderr. They stay in
// the sandbox's directory, so that a later daemon opens them again by path.
const (
	fifoToGuest   = "to-guest"
	fifoFromGuest = "from-guest"
	fifoStderr    = "stderr"

	fifoSize = 1 << 20 // bytes, of each direction of the link
)

// makeFifos makes the pipes for the sentry, which runs as nobody.
func makeFifos(dir string) error {
	for _, name := range []string{fifoToGuest, fifoFromGuest, fifoStderr} {
		path := filepath.Join(dir, name)
		if err := unix.Mkfifo(path, 0o600); err != nil {
			return fmt.Errorf("cannot make the pipe %s: %w", name, err)
		}
		if err := os.Chown(path, nobody, nobody); err != nil {
			return err
		}
	}
	return nil
}

// link is the host's end of the pipes to the agent.
type link struct {
	in, out *os.File
	once    sync.Once
	err     error
}

// openLink opens the pipes of a sandbox whose sentry lives: it holds both ends of
// each, so neither open blocks, and once it is dead reads end with io.EOF and
// writes with EPIPE.
func openLink(dir string) (*link, error) {
	out, err := os.OpenFile(filepath.Join(dir, fifoToGuest), os.O_WRONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open the link to the agent: %w", err)
	}
	in, err := os.OpenFile(filepath.Join(dir, fifoFromGuest), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		out.Close()
		return nil, fmt.Errorf("cannot open the link from the agent: %w", err)
	}
	for _, f := range []*os.File{in, out} {
		// Best effort: an operator may have lowered the system's limit.
		if conn, err := f.SyscallConn(); err == nil {
			conn.Control(func(fd uintptr) { unix.FcntlInt(fd, unix.F_SETPIPE_SZ, fifoSize) })
		}
	}
	return &link{in: in, out: out}, nil
}

func (l *link) Read(p []byte) (int, error)  { return l.in.Read(p) }
func (l *link) Write(p []byte) (int, error) { return l.out.Write(p) }

// Close ends the link on this side; blocked reads and writes return.
func (l *link) Close() error {
	l.once.Do(func() { l.err = errors.Join(l.in.Close(), l.out.Close()) })
	return l.err
}
