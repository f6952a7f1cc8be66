package guest

import (
	"errors"
	"path"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/guestproto"
)

// copier copies files. Everything is named relative to an open directory, and no link
// below the two paths is followed.
type copier struct {
	a     *agent
	ch    *channel
	owner *account // of what is new; nil: the acting user
	buf   []byte
}

func copyFile(a *agent, ch *channel, f guestproto.FileCopy) (any, error) {
	from, u, err := a.target(f.FilePath)
	if err != nil {
		return nil, err
	}
	to, err := pathOf(f.To, f.ToBytes, "to")
	if err != nil {
		return nil, err
	}
	c := &copier{a: a, ch: ch}
	if c.owner, err = a.newOwner(f.Owner, f.User); err != nil {
		return nil, err
	}
	c.buf = ch.link.free.get(guestproto.MaxPayload)
	defer func() { ch.link.free.put(c.buf) }()
	var info guestproto.FileInfo
	err = a.ns.onFileThread(u, func() error {
		if err := c.copy(from, to, f.Recursive); err != nil {
			return err
		}
		var err error
		info, err = a.describePath(strings.TrimRight(to, "/"))
		return err
	})
	if err != nil {
		return nil, fileError("copy", from, err)
	}
	return info, nil
}

func (c *copier) copy(from, to string, recursive bool) error {
	var st unix.Stat_t
	if err := unix.Lstat(from, &st); err != nil {
		return err
	}
	kind := st.Mode & unix.S_IFMT
	if kind == unix.S_IFDIR && !recursive {
		return fail(codeIsDirectory, "path", "%q is a directory; copying it needs recursive", from)
	}
	clean := strings.TrimRight(to, "/")
	dir, name := path.Split(clean)
	if name == "" || name == "." || name == ".." || clean != to && kind != unix.S_IFDIR {
		return fail(codeIsDirectory, "to", "%q is a directory, or names one", to)
	}
	if err := makeParents(dir, c.owner); err != nil {
		return inField(err, "to", to)
	}
	target, err := openRetry(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return inField(err, "to", to)
	}
	defer unix.Close(target)
	if kind == unix.S_IFDIR {
		if err := c.outside(from, dir, name); err != nil {
			return err
		}
	}
	source, base := path.Split(strings.TrimRight(from, "/"))
	if base == "" {
		base = "."
	}
	parent, err := openRetry(source, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	if kind == unix.S_IFREG || kind == unix.S_IFLNK {
		// Beside the file that is there, which it replaces at once.
		var old unix.Stat_t
		if err := unix.Fstatat(target, name, &old, unix.AT_SYMLINK_NOFOLLOW); err == nil && old.Mode&unix.S_IFMT == unix.S_IFDIR {
			return fail(codeIsDirectory, "to", "%q is a directory", to)
		}
		temp := tempName()
		err := c.entry(parent, base, target, temp, 0)
		if err == nil {
			c.a.replacing.Lock()
			err = unix.Renameat(target, temp, target, name)
			c.a.replacing.Unlock()
		}
		if err != nil {
			_ = unix.Unlinkat(target, temp, 0) // there is a first error to report
		}
		return err
	}
	err = c.entry(parent, base, target, name, 0)
	if errors.Is(err, unix.EEXIST) {
		return fail(codeFileExists, "to", "%q exists already", to)
	}
	return err
}

// outside refuses to copy a directory into itself, which would have no end.
func (c *copier) outside(from, dir, name string) error {
	var top unix.Stat_t
	if err := unix.Stat(from, &top); err != nil {
		return err
	}
	fd, err := openRetry(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for err == nil {
		var st unix.Stat_t
		if err = unix.Fstat(fd, &st); err != nil {
			break
		}
		if st.Ino == top.Ino && st.Dev == top.Dev {
			unix.Close(fd)
			return fail(codeInvalid, "to", "a directory cannot be copied into itself")
		}
		up, uerr := unix.Openat(fd, "..", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		var above unix.Stat_t
		if uerr == nil {
			uerr = unix.Fstat(up, &above)
		}
		unix.Close(fd)
		if err, fd = uerr, up; err == nil && above.Ino == st.Ino && above.Dev == st.Dev {
			unix.Close(fd)
			return nil // the root
		}
	}
	if fd >= 0 {
		unix.Close(fd)
	}
	return err
}

// entry copies one file, link, or directory with what is in it.
func (c *copier) entry(from int, name string, to int, as string, depth int) error {
	if c.ch.gone() {
		return errGone
	}
	if depth > maxTree {
		return unix.ELOOP
	}
	var st unix.Stat_t
	if err := unix.Fstatat(from, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		if err := unix.Symlinkat(readlinkAt(from, name), to, as); err != nil {
			return err
		}
		return c.give(to, as, unix.AT_SYMLINK_NOFOLLOW)
	case unix.S_IFREG:
		return c.file(from, name, to, as)
	case unix.S_IFDIR:
		return c.dir(from, name, to, as, depth)
	}
	return fail(codeInvalid, "path", "%q is a device, a socket or a named pipe, which cannot be copied", name)
}

func (c *copier) give(dir int, name string, flags int) error {
	if c.owner == nil {
		return nil
	}
	return unix.Fchownat(dir, name, int(c.owner.uid), int(c.owner.gid), flags)
}

func (c *copier) file(from int, name string, to int, as string) error {
	in, err := unix.Openat(from, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(in)
	var st unix.Stat_t
	if err := unix.Fstat(in, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return unix.EINVAL // another thing by now
	}
	out, err := unix.Openat(to, as, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer unix.Close(out)
	for {
		if c.ch.gone() {
			return errGone
		}
		n, err := syscall.Read(in, c.buf)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
		if err := writeAll(out, c.buf[:n]); err != nil {
			return err
		}
	}
	if c.owner != nil {
		if err := unix.Fchown(out, int(c.owner.uid), int(c.owner.gid)); err != nil {
			return err
		}
	}
	return unix.Fchmod(out, st.Mode&0o777)
}

func (c *copier) dir(from int, name string, to int, as string, depth int) error {
	in, err := openDirAt(from, name)
	if err != nil {
		return err
	}
	defer unix.Close(in)
	var st unix.Stat_t
	if err := unix.Fstat(in, &st); err != nil {
		return err
	}
	if err := unix.Mkdirat(to, as, 0o700); err != nil {
		return err
	}
	out, err := openDirAt(to, as)
	if err != nil {
		return err
	}
	defer unix.Close(out)
	if c.owner != nil {
		if err := unix.Fchown(out, int(c.owner.uid), int(c.owner.gid)); err != nil {
			return err
		}
	}
	err = eachName(in, func(name string) error {
		err := c.entry(in, name, out, name, depth+1)
		if errors.Is(err, unix.ENOENT) {
			return nil // it went away meanwhile
		}
		return err
	})
	if err != nil {
		return err
	}
	return unix.Fchmod(out, st.Mode&0o777)
}

// inField says that the error is about another path than the first one.
func inField(err error, field, p string) error {
	err = fileError("make", p, err)
	var e *ringfence.Error
	if errors.As(err, &e) {
		e.Field = field
	}
	return err
}
