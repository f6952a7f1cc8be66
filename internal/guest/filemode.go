package guest

import (
	"errors"

	"golang.org/x/sys/unix"

	"ringfence.dev/ringfence/internal/guestproto"
)

// moder changes permissions and owners.
type moder struct {
	ch       *channel
	mode     *uint32
	uid, gid int // -1: as it is
}

func changeMode(a *agent, ch *channel, f guestproto.FileMode) (any, error) {
	p, u, err := a.target(f.FilePath)
	if err != nil {
		return nil, err
	}
	m := moder{ch: ch, mode: f.Mode, uid: -1, gid: -1}
	if f.Mode != nil && *f.Mode > 0o7777 {
		return nil, fail(codeInvalid, "mode", "the mode %#o has more than permission bits", *f.Mode)
	}
	if f.Owner != "" {
		owner, err := a.users.lookup(f.Owner, "owner")
		if err != nil {
			return nil, err
		}
		m.uid = int(owner.uid)
	}
	if f.Group != "" {
		if m.gid, err = a.users.groupID(f.Group, "group"); err != nil {
			return nil, err
		}
	}
	var info guestproto.FileInfo
	err = a.ns.onFileThread(u, func() error {
		var st unix.Stat_t
		if err := unix.Stat(p, &st); err != nil {
			return err
		}
		if f.Recursive && st.Mode&unix.S_IFMT == unix.S_IFDIR {
			fd, err := openRetry(p, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			if err := m.inside(fd, 0); err != nil {
				return err
			}
		}
		if err := m.chown(unix.AT_FDCWD, p, 0); err != nil {
			return err
		}
		if m.mode != nil {
			if err := unix.Chmod(p, *m.mode); err != nil {
				return err
			}
		}
		if err := unix.Stat(p, &st); err != nil {
			return err
		}
		info = describe(p, &st, "", a.ownersOf(&st))
		return nil
	})
	if err != nil {
		return nil, fileError("change", p, err)
	}
	return info, nil
}

func (m *moder) chown(dir int, name string, flags int) error {
	if m.uid < 0 && m.gid < 0 {
		return nil
	}
	return unix.Fchownat(dir, name, m.uid, m.gid, flags)
}

// inside changes what is in an open directory, which it closes, from the deepest on: a
// mode may take the right to look into it away.
func (m *moder) inside(fd, depth int) error {
	defer unix.Close(fd)
	if m.ch.gone() {
		return errGone
	}
	if depth > maxTree {
		return unix.ELOOP
	}
	return eachName(fd, func(name string) error {
		err := m.entry(fd, name, depth)
		if errors.Is(err, unix.ENOENT) {
			return nil // it went away meanwhile
		}
		return err
	})
}

func (m *moder) entry(dir int, name string, depth int) error {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	kind := st.Mode & unix.S_IFMT
	if kind == unix.S_IFDIR {
		fd, err := openDirAt(dir, name)
		if err != nil {
			return err
		}
		if err := m.inside(fd, depth+1); err != nil {
			return err
		}
	}
	// The owner comes first: a change of it takes setuid and setgid away.
	if err := m.chown(dir, name, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if m.mode == nil || kind == unix.S_IFLNK {
		return nil
	}
	if kind == unix.S_IFREG || kind == unix.S_IFDIR {
		// Through an open file no link can come between. Its owner may not be allowed to
		// open it; he has only his own rights to lose.
		fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
		if err == nil {
			defer unix.Close(fd)
			return unix.Fchmod(fd, *m.mode)
		}
		if !errors.Is(err, unix.EACCES) {
			return err
		}
	}
	return unix.Fchmodat(dir, name, *m.mode, 0)
}

// eachName calls f for the names in an open directory.
func eachName(fd int, f func(name string) error) error {
	block := make([]byte, 16<<10)
	for {
		n, err := unix.ReadDirent(fd, block)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return err
		}
		var names []string
		_, _, names = unix.ParseDirent(block[:n], -1, names)
		for _, name := range names {
			if err := f(name); err != nil {
				return err
			}
		}
	}
}
