package guest

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"ringfence.dev/ringfence/internal/guestproto"
)

// defaultTerm is TERM on a terminal whose type nobody said.
const defaultTerm = "xterm-256color"

// openTerminal makes a terminal in the commands' namespace, which belongs to the user.
// It runs on a file thread.
func openTerminal(size guestproto.Terminal) (master, slave int, err error) {
	master, err = unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, -1, fmt.Errorf("cannot open /dev/ptmx: %w", err)
	}
	slave = -1
	defer func() {
		if err != nil {
			unix.Close(master)
		}
	}()
	if err = unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return master, slave, fmt.Errorf("cannot unlock a terminal: %w", err)
	}
	n, err := unix.IoctlGetInt(master, unix.TIOCGPTN)
	if err != nil {
		return master, slave, fmt.Errorf("cannot find a terminal's name: %w", err)
	}
	if err = resizeTerminal(master, size.Cols, size.Rows); err != nil {
		return master, slave, err
	}
	slave, err = unix.Open("/dev/pts/"+strconv.Itoa(n), unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return master, slave, fmt.Errorf("cannot open a terminal: %w", err)
	}
	return master, slave, nil
}

func resizeTerminal(fd int, cols, rows uint16) error {
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Col: cols, Row: rows}); err != nil {
		return fmt.Errorf("cannot set a terminal's size: %w", err)
	}
	return nil
}

// openPTY gives the process a terminal, and returns its end for the process.
func (p *process) openPTY(a *agent, user account, size guestproto.Terminal) (files []uintptr, err error) {
	var master, slave int
	err = a.ns.onFileThread(user, func() error {
		var err error
		master, slave, err = openTerminal(size)
		return err
	})
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(master), "terminal")
	p.terminal = file
	p.input = newInput(file, true, p.log.free)
	p.streams = []*stream{{typ: guestproto.TypeStdout, file: file, drained: make(chan struct{}), tty: true}}
	return []uintptr{uintptr(slave), uintptr(slave), uintptr(slave)}, nil
}

// resizeProcess changes the size of a process's terminal; the kernel tells the programs.
func resizeProcess(a *agent, _ *channel, req guestproto.ProcessResize) (any, error) {
	p, err := a.procs.find(req.ID)
	if err != nil {
		return nil, err
	}
	switch {
	case p.terminal == nil:
		return nil, fail(codePrecondition, "", "the process %q has no terminal", p.id)
	case req.Cols == 0 || req.Rows == 0:
		return nil, fail(codeInvalid, "cols", "a terminal has at least one column and one row")
	case p.hasEnded():
		return nil, errProcessEnded(p.id)
	}
	conn, err := p.terminal.SyscallConn()
	if err == nil {
		var inner error
		if err = conn.Control(func(fd uintptr) { inner = resizeTerminal(int(fd), req.Cols, req.Rows) }); err == nil {
			err = inner
		}
	}
	if err != nil {
		if p.exited.Load() {
			return nil, errProcessEnded(p.id)
		}
		return nil, fail(codeInternal, "", "%v", err)
	}
	return struct{}{}, nil
}
