package guest

import (
	"bufio"
	"errors"
	"io"
	"path"
	"time"

	"golang.org/x/sys/unix"

	"ringfence.dev/ringfence/internal/archive"
	"ringfence.dev/ringfence/internal/guestproto"
)

// packer writes files into an archive.
type packer struct {
	a    *agent
	ch   *channel
	w    *archive.Writer
	last owners
}

func readArchive(a *agent, ch *channel, f guestproto.ArchiveRead) (any, error) {
	p, u, err := a.target(f.FilePath)
	if err != nil {
		return nil, err
	}
	format, ok := archive.ParseFormat(f.Format)
	if !ok {
		return nil, fail(codeInvalid, "format", "there is no archive format %q", f.Format)
	}
	err = a.ns.onFileThread(u, func() error {
		fd, err := openRetry(p, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		directory := st.Mode&unix.S_IFMT == unix.S_IFDIR
		if !directory {
			if err := regular(p, &st); err != nil {
				return err
			}
		}
		if err := ch.event(struct{}{}); err != nil {
			return err
		}
		out := bufio.NewWriterSize(channelWriter{ch}, guestproto.MaxPayload)
		k := &packer{a: a, ch: ch, w: archive.NewWriter(format, out)}
		if directory {
			err = k.dir(fd, "", 0)
		} else {
			err = k.file(fd, path.Base(path.Clean(p)), &st)
		}
		if err == nil {
			err = k.w.Close()
		}
		if err == nil {
			err = out.Flush()
		}
		return err
	})
	if err != nil {
		return nil, fileError("pack", p, err)
	}
	return struct{}{}, nil
}

// channelWriter sends what is written.
type channelWriter struct{ ch *channel }

func (w channelWriter) Write(p []byte) (int, error) {
	if err := w.ch.send(p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// dir packs what is in an open directory. prefix is its name in the archive, and a slash.
func (k *packer) dir(fd int, prefix string, depth int) error {
	if depth > maxTree {
		return unix.ELOOP
	}
	return eachName(fd, func(name string) error {
		if k.ch.gone() {
			return errGone
		}
		err := k.entry(fd, name, prefix+name, depth)
		if errors.Is(err, unix.ENOENT) {
			return nil // it went away meanwhile
		}
		return inEntry(err, prefix+name)
	})
}

// inEntry says which file an error is about.
func inEntry(err error, name string) error {
	if err == nil {
		return nil
	}
	return fileError("pack", name, err)
}

func (k *packer) entry(dir int, name, full string, depth int) error {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		e := k.describe(full, archive.Symlink, &st)
		if e.Target = readlinkAt(dir, name); e.Target == "" {
			return unix.ENOENT
		}
		return k.w.Add(e, nil)
	case unix.S_IFREG, unix.S_IFDIR:
	default:
		return nil // no archive that is unpacked again may hold a device, a socket, or a FIFO
	}
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) {
		return unix.ENOENT // a link by now
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return k.file(fd, full, &st)
	case unix.S_IFDIR:
		if err := k.w.Add(k.describe(full, archive.Dir, &st), nil); err != nil {
			return err
		}
		return k.dir(fd, full+"/", depth+1)
	}
	return nil
}

func (k *packer) file(fd int, name string, st *unix.Stat_t) error {
	e := k.describe(name, archive.File, st)
	e.Size = st.Size
	return k.w.Add(e, cancelable{k.ch, fdReader(fd)})
}

func (k *packer) describe(name string, kind archive.Kind, st *unix.Stat_t) *archive.Entry {
	if !k.last.known || k.last.uid != st.Uid || k.last.gid != st.Gid {
		k.last = k.a.ownersOf(st)
	}
	return &archive.Entry{
		Name: name, Kind: kind, Mode: st.Mode & 0o777, ModTime: time.Unix(st.Mtim.Sec, st.Mtim.Nsec),
		UID: int(st.Uid), GID: int(st.Gid), Owner: k.last.owner, Group: k.last.group,
	}
}

// cancelable stops reading when nobody waits any more.
type cancelable struct {
	ch *channel
	r  io.Reader
}

func (c cancelable) Read(p []byte) (int, error) {
	if c.ch.gone() {
		return 0, errGone
	}
	return c.r.Read(p)
}
