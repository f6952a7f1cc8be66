package guest

import (
	"errors"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"ringfence.dev/ringfence/internal/guestproto"
)

func makeDir(a *agent, _ *channel, f guestproto.FileMkdir) (any, error) {
	p, u, err := a.target(f.FilePath)
	if err != nil {
		return nil, err
	}
	if f.Mode > 0o7777 {
		return nil, fail(codeInvalid, "mode", "the mode %#o has more than permission bits", f.Mode)
	}
	owner, err := a.newOwner(f.Owner, f.User)
	if err != nil {
		return nil, err
	}
	mode := f.Mode
	if mode == 0 {
		mode = 0o755
	}
	dir := strings.TrimRight(p, "/")
	var info guestproto.FileInfo
	err = a.ns.onFileThread(u, func() error {
		if dir != "" {
			if err := makeParents(path.Dir(dir), owner); err != nil {
				return err
			}
			if err := makeOne(dir, mode, owner); err != nil {
				return err
			}
		}
		var err error
		info, err = a.describePath(p)
		return err
	})
	if err != nil {
		return nil, fileError("make the directory", p, err)
	}
	return info, nil
}

func renameFile(a *agent, _ *channel, f guestproto.FileRename) (any, error) {
	from, u, err := a.target(f.FilePath)
	if err != nil {
		return nil, err
	}
	to, err := pathOf(f.To, f.ToBytes, "to")
	if err != nil {
		return nil, err
	}
	var info guestproto.FileInfo
	err = a.ns.onFileThread(u, func() error {
		if err := unix.Rename(from, to); err != nil {
			if err := whyNotRenamed(err, from, to); err != nil {
				return err
			}
		}
		var err error
		info, err = a.describePath(to)
		return err
	})
	if err != nil {
		return nil, fileError("rename", from, err)
	}
	return info, nil
}

// whyNotRenamed says of an error of rename(2) which of the two names is at fault. nil:
// both are the same file, which is a success, also where the kernel calls it one of
// the errors of a directory that is in the way.
func whyNotRenamed(err error, from, to string) error {
	var source, target unix.Stat_t
	there := unix.Lstat(to, &target) == nil
	if unix.Lstat(from, &source) != nil {
		return err
	}
	if there && source.Dev == target.Dev && source.Ino == target.Ino {
		return nil
	}
	switch {
	case errors.Is(err, unix.EXDEV):
		return fail(codeInvalid, "to", "cannot rename %q to %q: they are on different file systems; copy it and remove the old one", from, to)
	case errors.Is(err, unix.EINVAL):
		return fail(codeInvalid, "to", "cannot rename %q to %q: a directory cannot be moved into itself", from, to)
	case errors.Is(err, unix.ENOENT):
		return fail(codeFileNotFound, "to", "cannot rename %q to %q: the target's directory does not exist", from, to)
	case errors.Is(err, unix.EISDIR):
		return fail(codeIsDirectory, "to", "cannot rename %q to %q: there is a directory of that name, and a file cannot replace it", from, to)
	case errors.Is(err, unix.ENOTDIR) && there && source.Mode&unix.S_IFMT == unix.S_IFDIR:
		return fail(codeNotDirectory, "to", "cannot rename %q to %q: there is something of that name, and a directory cannot replace it", from, to)
	case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST):
		return fail(codeNotEmpty, "to", "cannot rename %q to %q: there is a directory of that name that holds something", from, to)
	}
	return err
}

func removeFile(a *agent, ch *channel, f guestproto.FileRemove) (any, error) {
	p, u, err := a.target(f.FilePath)
	if err != nil {
		return nil, err
	}
	err = a.ns.onFileThread(u, func() error {
		dir, name := path.Split(strings.TrimRight(p, "/"))
		if name == "" || name == "." || name == ".." {
			return fail(codeInvalid, "path", "cannot remove %q: it names no entry of a directory", p)
		}
		fd, err := openRetry(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		var st unix.Stat_t
		if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			if strings.HasSuffix(p, "/") {
				return unix.ENOTDIR
			}
			return unix.Unlinkat(fd, name, 0)
		}
		if !f.Recursive {
			return unix.Unlinkat(fd, name, unix.AT_REMOVEDIR)
		}
		return removeTree(ch, fd, name, 0)
	})
	if err != nil {
		return nil, fileError("remove", p, err)
	}
	return struct{}{}, nil
}

// maxTree bounds how deep a directory is removed: each level holds one open.
const maxTree = 10000

// removeTree removes a directory and what is in it, and follows no link: everything
// is named relative to an open directory.
func removeTree(ch *channel, parent int, name string, depth int) error {
	if ch.gone() {
		return errGone
	}
	if depth > maxTree {
		return unix.ELOOP
	}
	fd, err := openDirAt(parent, name)
	if err != nil {
		return err
	}
	err = removeEntries(ch, fd, depth)
	unix.Close(fd)
	if err != nil {
		return err
	}
	err = unix.Unlinkat(parent, name, unix.AT_REMOVEDIR)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

func removeEntries(ch *channel, fd, depth int) error {
	block := make([]byte, 8<<10)
	for removed := true; removed; {
		// From the beginning each time: removing moves what is left.
		if _, err := unix.Seek(fd, 0, unix.SEEK_SET); err != nil {
			return err
		}
		removed = false
		for {
			n, err := unix.ReadDirent(fd, block)
			if err == unix.EINTR {
				continue
			}
			if err != nil {
				return err
			}
			if n == 0 {
				break
			}
			var names []string
			_, _, names = unix.ParseDirent(block[:n], -1, names)
			for _, name := range names {
				removed = true
				err := unix.Unlinkat(fd, name, 0)
				if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) {
					err = removeTree(ch, fd, name, depth+1)
				}
				if err != nil && !errors.Is(err, unix.ENOENT) {
					return err
				}
			}
		}
	}
	return nil
}
