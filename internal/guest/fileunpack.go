package guest

import (
	"errors"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"ringfence.dev/ringfence/internal/archive"
	"ringfence.dev/ringfence/internal/guestproto"
)

// unpacker puts what is in an archive into a directory. Programs of the sandbox may
// rename and replace things in it at the same time: so every name is looked up element
// by element from the open directory on, and no link is ever followed. A thing that is
// moved away meanwhile is still one of the directory's own.
type unpacker struct {
	ch    *channel
	root  int
	owner *account // of what is new; nil: the acting user
	buf   []byte
	got   guestproto.ArchiveWritten

	last   string // the directory that was used last …
	lastFD int    // … open; -1: none

	modes []dirMode // to be set in the end
}

// dirMode is the mode of a directory that its owner could not have filled with it.
type dirMode struct {
	name string
	mode uint32
}

// maxDirModes bounds the modes that are remembered.
const maxDirModes = 10_000

func writeArchive(a *agent, ch *channel, f guestproto.ArchiveWrite) (any, error) {
	p, u, err := a.target(f.FilePath)
	if err != nil {
		return nil, err
	}
	format, ok := archive.ParseFormat(f.Format)
	if !ok {
		return nil, fail(codeInvalid, "format", "there is no archive format %q", f.Format)
	}
	x := &unpacker{ch: ch, lastFD: -1}
	if x.owner, err = a.newOwner(f.Owner, f.User); err != nil {
		return nil, err
	}
	x.buf = ch.link.free.get(guestproto.MaxPayload)
	defer func() { ch.link.free.put(x.buf) }()
	err = a.ns.onFileThread(u, func() error {
		dir := strings.TrimRight(p, "/") + "/"
		if err := makeParents(dir, x.owner); err != nil {
			return err
		}
		var err error
		if x.root, err = openRetry(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
			return err
		}
		defer unix.Close(x.root)
		defer x.forget()
		body := &channelReader{ch: ch}
		defer body.close()
		if format == archive.Zip {
			err = x.zip(body)
		} else {
			err = archive.Read(format, body, archive.Limits{}, x.add)
		}
		if err == nil {
			err = x.setModes()
		}
		return err
	})
	if err != nil {
		return nil, fileError("unpack into", p, err)
	}
	return x.got, nil
}

// channelReader is the data of a call.
type channelReader struct {
	ch         *channel
	data, rest []byte
}

func (r *channelReader) Read(p []byte) (int, error) {
	if len(r.rest) == 0 {
		if r.data != nil {
			data := r.data
			r.data = nil
			if err := r.ch.release(data); err != nil {
				return 0, err
			}
		}
		data, err := r.ch.receive()
		if err != nil {
			return 0, err
		}
		if data == nil {
			return 0, io.EOF
		}
		r.data, r.rest = data, data
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

func (r *channelReader) close() {
	if r.data != nil {
		r.ch.link.free.put(r.data)
		r.data = nil
	}
}

// zip reads an archive whose directory comes last: it is kept on the disk, without a
// name, until it is unpacked.
func (x *unpacker) zip(body io.Reader) error {
	temp := tempName()
	fd, err := unix.Openat(x.root, temp, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), temp)
	defer file.Close()
	if err := unix.Unlinkat(x.root, temp, 0); err != nil {
		return err
	}
	size, err := io.CopyBuffer(struct{ io.Writer }{file}, body, x.buf)
	if err != nil {
		return err
	}
	return archive.ReadZip(file, size, archive.Limits{}, x.add)
}

// forget closes the directory that was used last.
func (x *unpacker) forget() {
	if x.lastFD >= 0 {
		unix.Close(x.lastFD)
		x.last, x.lastFD = "", -1
	}
}

// open opens a directory below the first one, and makes it with its parents.
func (x *unpacker) open(name string) (int, error) {
	if name == "" {
		return x.root, nil
	}
	if x.lastFD >= 0 && name == x.last {
		return x.lastFD, nil
	}
	at := x.root
	for part := range strings.SplitSeq(name, "/") {
		next, err := x.step(at, part)
		if at != x.root {
			unix.Close(at)
		}
		if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			return -1, archive.Refuse(name, "%q on its way is there and is no directory", part)
		}
		if err != nil {
			return -1, err
		}
		at = next
	}
	x.forget()
	x.last, x.lastFD = name, at
	return at, nil
}

// step opens a directory in another one, or makes it.
func (x *unpacker) step(dir int, name string) (int, error) {
	for try := 0; ; try++ {
		fd, err := openDirAt(dir, name)
		if !errors.Is(err, unix.ENOENT) || try == maxTries {
			return fd, err
		}
		err = unix.Mkdirat(dir, name, 0o755)
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return -1, err
		}
		if err == nil {
			x.got.Directories++
			if err := x.give(dir, name); err != nil {
				return -1, err
			}
		}
	}
}

// maxTries bounds how often something is tried again that a program in the sandbox
// undoes each time.
const maxTries = 10

func (x *unpacker) give(dir int, name string) error {
	if x.owner == nil {
		return nil
	}
	return unix.Fchownat(dir, name, int(x.owner.uid), int(x.owner.gid), unix.AT_SYMLINK_NOFOLLOW)
}

func (x *unpacker) add(e *archive.Entry, content io.Reader) error {
	if x.ch.gone() {
		return errGone
	}
	err := x.entry(e, content)
	if err == nil || errors.Is(err, errGone) {
		return err
	}
	return fileError("unpack", e.Name, err)
}

func (x *unpacker) entry(e *archive.Entry, content io.Reader) error {
	if e.Kind == archive.Dir {
		fd, err := x.open(e.Name)
		if err != nil {
			return err
		}
		mode := e.Mode & 0o777
		if mode&0o300 != 0o300 && len(x.modes) < maxDirModes {
			x.modes = append(x.modes, dirMode{e.Name, mode})
			mode |= 0o700
		}
		return unix.Fchmod(fd, mode)
	}
	parent, name := path.Split(e.Name)
	dir, err := x.open(strings.TrimSuffix(parent, "/"))
	if err != nil {
		return err
	}
	switch e.Kind {
	case archive.Symlink:
		err = x.replace(dir, name, func() error { return unix.Symlinkat(e.Target, dir, name) })
		if err == nil {
			err = x.give(dir, name)
		}
	case archive.Hardlink:
		err = x.hardlink(e, dir, name)
	default:
		err = x.file(e, dir, name, content)
	}
	if err == nil {
		x.got.Files++
	}
	return err
}

// replace makes something that must not be there yet, in the place of what is there.
func (x *unpacker) replace(dir int, name string, create func() error) error {
	for try := 0; ; try++ {
		err := create()
		if !errors.Is(err, unix.EEXIST) || try == maxTries {
			return err
		}
		err = unix.Unlinkat(dir, name, 0)
		if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) {
			var st unix.Stat_t
			if unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
				return unix.EISDIR
			}
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
}

// hardlink makes another name of a file that was unpacked before. A link is refused: at
// another depth it would lead elsewhere.
func (x *unpacker) hardlink(e *archive.Entry, dir int, name string) error {
	own, err := unix.FcntlInt(uintptr(dir), unix.F_DUPFD_CLOEXEC, 0) // the next one may close it
	if err != nil {
		return err
	}
	defer unix.Close(own)
	parent, target := path.Split(e.Target)
	from, err := x.open(strings.TrimSuffix(parent, "/"))
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstatat(from, target, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return archive.Refuse(e.Name, "it is a hard link to %q, which is not there", e.Target)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return archive.Refuse(e.Name, "it is a hard link to %q, which is no file", e.Target)
	}
	return x.replace(own, name, func() error { return unix.Linkat(from, target, own, name, 0) })
}

func (x *unpacker) file(e *archive.Entry, dir int, name string, content io.Reader) (err error) {
	fd := -1
	err = x.replace(dir, name, func() (err error) {
		fd, err = unix.Openat(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		return err
	})
	if err != nil {
		return err
	}
	defer func() {
		unix.Close(fd)
		if err != nil {
			_ = unix.Unlinkat(dir, name, 0) // half a file is none; there is a first error to report
		}
	}()
	n, err := io.CopyBuffer(fdWriter(fd), cancelable{x.ch, content}, x.buf)
	if err != nil {
		return err
	}
	x.got.Bytes += n
	if x.owner != nil {
		if err := unix.Fchown(fd, int(x.owner.uid), int(x.owner.gid)); err != nil {
			return err
		}
	}
	if err := unix.Fchmod(fd, e.Mode&0o777); err != nil {
		return err
	}
	if e.ModTime.IsZero() {
		return nil
	}
	stamp := unix.NsecToTimespec(e.ModTime.UnixNano())
	// A time that the file system does not have is no loss.
	_ = unix.UtimesNanoAt(dir, name, []unix.Timespec{stamp, stamp}, unix.AT_SYMLINK_NOFOLLOW)
	return nil
}

// setModes gives the directories the modes that would have kept their owner out.
func (x *unpacker) setModes() error {
	for i := len(x.modes) - 1; i >= 0; i-- {
		fd, err := x.open(x.modes[i].name)
		if err == nil {
			err = unix.Fchmod(fd, x.modes[i].mode)
		}
		if err != nil {
			return fileError("unpack", x.modes[i].name, err)
		}
	}
	return nil
}

// fdWriter writes to an open file with plain system calls.
type fdWriter int

func (w fdWriter) Write(p []byte) (int, error) {
	if err := writeAll(int(w), p); err != nil {
		return 0, err
	}
	return len(p), nil
}
