package guest

import (
	"encoding/json"
	"errors"
	"path"

	"golang.org/x/sys/unix"

	"ringfence.dev/ringfence/internal/guestproto"
)

const (
	// maxDepth bounds a listing: each level holds a directory open.
	maxDepth = 64
	// listBatch is how much of a listing is put into one frame, in bytes.
	listBatch = 64 << 10
)

// lister walks a directory and sends what it finds, with memory for one directory
// block a level, however many entries there are.
type lister struct {
	a     *agent
	ch    *channel
	batch []byte
	last  owners // of the entry before, which the next one mostly has, too
}

func listFiles(a *agent, ch *channel, f guestproto.FileList) (any, error) {
	p, u, err := a.target(f.FilePath)
	if err != nil {
		return nil, err
	}
	depth := max(f.Depth, 1)
	if depth > maxDepth {
		return nil, fail(codeInvalid, "depth", "a listing goes %d levels deep at most", maxDepth)
	}
	l := lister{a: a, ch: ch}
	err = a.ns.onFileThread(u, func() error {
		fd, err := openRetry(p, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		return l.walk(fd, path.Clean(p), depth)
	})
	if err == nil {
		err = l.flush()
	}
	if err != nil {
		return nil, fileError("list", p, err)
	}
	return struct{}{}, nil
}

// walk lists an open directory and closes it.
func (l *lister) walk(fd int, name string, depth int) error {
	defer unix.Close(fd)
	block := make([]byte, 16<<10)
	for {
		n, err := unix.ReadDirent(fd, block)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		if n == 0 {
			return nil
		}
		var names []string
		_, _, names = unix.ParseDirent(block[:n], -1, names)
		for _, entry := range names {
			if err := l.entry(fd, name, entry, depth); err != nil {
				return err
			}
		}
	}
}

func (l *lister) entry(fd int, dir, name string, depth int) error {
	var st unix.Stat_t
	if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		if err == unix.ENOENT {
			return nil // it went away meanwhile
		}
		return err
	}
	target := ""
	kind := st.Mode & unix.S_IFMT
	if kind == unix.S_IFLNK {
		target = readlinkAt(fd, name)
	}
	full := path.Join(dir, name)
	if !l.last.known || l.last.uid != st.Uid || l.last.gid != st.Gid {
		l.last = l.a.ownersOf(&st)
	}
	line, err := json.Marshal(describe(full, &st, target, l.last))
	if err != nil {
		return err
	}
	l.batch = append(append(l.batch, line...), '\n')
	if len(l.batch) >= listBatch {
		if err := l.flush(); err != nil {
			return err
		}
	}
	if kind != unix.S_IFDIR || depth <= 1 {
		return nil
	}
	sub, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err == nil {
		return l.walk(sub, full, depth-1)
	}
	for _, gone := range []error{unix.EACCES, unix.EPERM, unix.ENOENT, unix.ENOTDIR, unix.ELOOP} {
		if errors.Is(err, gone) {
			return nil // not for this user, or another thing by now; the entry itself is listed
		}
	}
	return err
}

func (l *lister) flush() error {
	err := l.ch.send(l.batch)
	l.batch = l.batch[:0]
	return err
}
