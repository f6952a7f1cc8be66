package guest

import (
	"syscall"

	"golang.org/x/sys/unix"

	"ringfence.dev/ringfence/internal/guestproto"
)

func readFile(a *agent, ch *channel, f guestproto.FileRead) (any, error) {
	p, u, err := a.target(f.FilePath)
	if err != nil {
		return nil, err
	}
	if f.Offset < 0 || f.Length < 0 {
		return nil, fail(codeRange, "", "a range of a file has neither a negative offset nor a negative length")
	}
	fd := -1
	var info guestproto.FileInfo
	err = a.ns.onFileThread(u, func() error {
		// Without O_NONBLOCK, opening a FIFO waits for a writer.
		var err error
		fd, err = openRetry(p, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		if err := regular(p, &st); err != nil {
			return err
		}
		info = describe(p, &st, "", a.ownersOf(&st))
		return nil
	})
	if fd >= 0 {
		defer unix.Close(fd)
	}
	if err != nil {
		return nil, fileError("read", p, err)
	}
	if f.Offset > info.Size && info.Size > 0 {
		return nil, fail(codeRange, "", "cannot read %q from byte %d on: the file has %d bytes", p, f.Offset, info.Size)
	}
	if err := ch.event(info); err != nil {
		return nil, err
	}
	// A file that says it is empty is read to its end: those in /proc say so. Any other
	// is cut at the size that the host was told.
	left := int64(1) << 62
	if info.Size > 0 {
		left = info.Size - f.Offset
	}
	whole := info.Size > 0
	if f.Length > 0 && f.Length < left {
		left = f.Length
	}
	buf := ch.link.free.get(guestproto.MaxPayload)
	defer func() { ch.link.free.put(buf) }()
	for offset := f.Offset; left > 0; {
		n, err := syscall.Pread(fd, buf[:min(int64(len(buf)), left)], offset)
		switch {
		case err == syscall.EINTR:
			continue
		case err != nil:
			return nil, fileError("read", p, err)
		case n == 0 && whole:
			return nil, fail(codePrecondition, "path", "cannot read %q: the file shrank while it was read", p)
		case n == 0:
			return struct{}{}, nil
		}
		if err := ch.send(buf[:n]); err != nil {
			return nil, err
		}
		offset += int64(n)
		left -= int64(n)
	}
	return struct{}{}, nil
}

// regular refuses what is no regular file, and says what it is.
func regular(p string, st *unix.Stat_t) error {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return nil
	case unix.S_IFDIR:
		return unix.EISDIR
	case unix.S_IFIFO:
		return fail(codeInvalid, "path", "%q is a FIFO, not a regular file", p)
	case unix.S_IFSOCK:
		return fail(codeInvalid, "path", "%q is a socket, not a regular file", p)
	}
	return fail(codeInvalid, "path", "%q is a device, not a regular file", p)
}

// openRetry opens a file, again when a signal came between.
func openRetry(p string, flags int, mode uint32) (int, error) {
	for {
		fd, err := unix.Open(p, flags, mode)
		if err != unix.EINTR {
			return fd, err
		}
	}
}
