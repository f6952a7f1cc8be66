package guest

import (
	"path"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"ringfence.dev/ringfence/internal/guestproto"
)

// maxLinks is how many symbolic links are followed to the file that is replaced.
const maxLinks = 40

// replacement is a file that is being written beside the one that it will replace.
// File systems here have no unnamed files, so it has a name of its own, short
// whatever the length of the other, and the rename is what readers see.
type replacement struct {
	dir   int // the directory, open
	name  string
	temp  string
	fd    int
	owner *account     // of what is new; nil: the acting user
	given bool         // owner is for what is there, too
	old   *unix.Stat_t // the file that is there
	mode  uint32
	// ifMatch is the etag that the file that is there has to have; create: there must be none.
	ifMatch string
	create  bool
}

func writeFile(a *agent, ch *channel, f guestproto.FileWrite) (any, error) {
	p, u, err := a.target(f.FilePath)
	if err != nil {
		return nil, err
	}
	if f.Mode > 0o7777 {
		return nil, fail(codeInvalid, "mode", "the mode %#o has more than permission bits", f.Mode)
	}
	if f.IfMatch != "" && f.Create {
		return nil, fail(codeInvalid, "", "a write can depend on an etag or on the file's absence, not on both")
	}
	r := &replacement{dir: -1, fd: -1, mode: f.Mode, given: f.Owner != "", ifMatch: f.IfMatch, create: f.Create}
	if r.owner, err = a.newOwner(f.Owner, f.User); err != nil {
		return nil, err
	}
	err = a.ns.onFileThread(u, func() error { return r.open(p) })
	if err == nil {
		err = r.fill(ch)
	}
	if err == nil && f.Sync {
		err = unix.Fsync(r.fd)
	}
	var info guestproto.FileInfo
	// What is left to do is done as the user, too, and so is the cleaning up.
	finish := a.ns.onFileThread(u, func() error {
		defer r.close()
		if err != nil {
			r.discard()
			return nil
		}
		a.replacing.Lock()
		err := r.commit()
		a.replacing.Unlock()
		if err != nil {
			r.discard()
			return err
		}
		info, err = a.describePath(p)
		return err
	})
	if err == nil {
		err = finish
	}
	if err != nil {
		return nil, fileError("write", p, err)
	}
	return info, nil
}

// open finds the file to replace and makes the new one beside it.
func (r *replacement) open(p string) error {
	dir, name, err := r.locate(p)
	if err != nil {
		return err
	}
	if r.ifMatch == "" {
		if err := makeParents(dir, r.owner); err != nil {
			return err
		}
	}
	if r.dir, err = openRetry(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return err
	}
	r.name = name
	if err := r.probe(p); err != nil {
		return err
	}
	if err := r.allowed(r.old); err != nil { // before the bytes come, which may be many
		return err
	}
	temp := tempName()
	r.fd, err = unix.Openat(r.dir, temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	r.temp = temp
	return nil
}

// locate follows links at the end of a path, as opening it would: the file that they
// lead to is replaced and the links stay.
func (r *replacement) locate(p string) (dir, name string, err error) {
	if strings.HasSuffix(p, "/") {
		return "", "", unix.EISDIR
	}
	for range maxLinks {
		dir, name = path.Split(p)
		if name == "." || name == ".." {
			return "", "", unix.EISDIR
		}
		var st unix.Stat_t
		if unix.Lstat(p, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFLNK {
			return dir, name, nil
		}
		target := readlinkAt(unix.AT_FDCWD, p)
		if target == "" {
			return "", "", unix.EACCES
		}
		if p = target; !path.IsAbs(target) {
			p = dir + target
		}
	}
	return "", "", unix.ELOOP
}

// probe looks at the file that is there: the user has to be allowed to write it, as
// if it were written in place.
func (r *replacement) probe(p string) error {
	fd, err := unix.Openat(r.dir, r.name, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	var st unix.Stat_t
	switch err {
	case nil:
		defer unix.Close(fd)
		err = unix.Fstat(fd, &st)
	case unix.ENOENT:
		return nil
	case unix.ETXTBSY, unix.ENXIO: // a program that runs; a FIFO without a reader
		err = unix.Fstatat(r.dir, r.name, &st, unix.AT_SYMLINK_NOFOLLOW)
	}
	if err != nil {
		return err
	}
	r.old = &st
	return regular(p, &st)
}

// allowed says whether the write's condition holds with the file that is there, or with
// none.
func (r *replacement) allowed(old *unix.Stat_t) error {
	switch {
	case r.create && old != nil:
		return fail(codePreconditionFailed, "path", "%q exists already", r.name)
	case r.ifMatch != "" && old == nil:
		return fail(codePreconditionFailed, "path", "%q does not exist", r.name)
	case r.ifMatch != "" && etag(old) != r.ifMatch:
		return fail(codePreconditionFailed, "path", "%q has changed", r.name)
	}
	return nil
}

// fill writes what the host sends. It does not need the user's rights any more.
func (r *replacement) fill(ch *channel) error {
	for {
		data, err := ch.receive()
		if err != nil {
			return err
		}
		if data == nil {
			return nil
		}
		for rest := data; len(rest) > 0; {
			n, err := syscall.Write(r.fd, rest)
			if n > 0 {
				rest = rest[n:]
			}
			if err != nil && err != syscall.EINTR {
				return err
			}
		}
		if err := ch.release(data); err != nil {
			return err
		}
	}
}

// commit gives the new file its owner and mode and puts it in the old one's place.
func (r *replacement) commit() error {
	mode := r.mode
	switch {
	case r.owner != nil && (r.given || r.old == nil):
		if err := unix.Fchown(r.fd, int(r.owner.uid), int(r.owner.gid)); err != nil {
			return err
		}
	case r.old != nil:
		// Only root may give files away. For anyone else the new file is his own.
		if err := unix.Fchown(r.fd, int(r.old.Uid), int(r.old.Gid)); err != nil && err != unix.EPERM {
			return err
		}
	}
	if mode == 0 {
		if mode = 0o644; r.old != nil {
			mode = r.old.Mode & 0o7777
		}
	}
	// After the change of owner, which takes setuid and setgid away.
	if err := unix.Fchmod(r.fd, mode); err != nil {
		return err
	}
	if err := r.rename(); err != nil {
		return err
	}
	r.temp = ""
	return nil
}

// rename puts the new file in its place if the condition still holds.
func (r *replacement) rename() error {
	if r.create {
		// The kernel refuses it when something is there, whoever made that.
		err := unix.Renameat2(r.dir, r.temp, r.dir, r.name, unix.RENAME_NOREPLACE)
		if err == unix.EEXIST {
			return fail(codePreconditionFailed, "path", "%q exists already", r.name)
		}
		return err
	}
	if r.ifMatch != "" {
		var st unix.Stat_t
		old := &st
		if err := unix.Fstatat(r.dir, r.name, old, unix.AT_SYMLINK_NOFOLLOW); err == unix.ENOENT {
			old = nil
		} else if err != nil {
			return err
		}
		if err := r.allowed(old); err != nil {
			return err
		}
	}
	return unix.Renameat(r.dir, r.temp, r.dir, r.name)
}

// discard removes the new file.
func (r *replacement) discard() {
	if r.temp != "" {
		_ = unix.Unlinkat(r.dir, r.temp, 0) // there is a first error to report
	}
}

func (r *replacement) close() {
	for _, fd := range []int{r.fd, r.dir} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// makeParents makes a directory and those above it; what is new gets an owner.
func makeParents(dir string, owner *account) error {
	dir = strings.TrimRight(dir, "/")
	if dir == "" {
		return nil
	}
	var st unix.Stat_t
	switch err := unix.Stat(dir, &st); {
	case err == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return unix.ENOTDIR
	case err == nil:
		return nil
	case err != unix.ENOENT:
		return err
	}
	if err := makeParents(path.Dir(dir), owner); err != nil {
		return err
	}
	return makeOne(dir, 0o755, owner)
}

// makeOne makes one directory; one that is there already is no error.
func makeOne(dir string, mode uint32, owner *account) error {
	err := unix.Mkdir(dir, mode)
	if err == unix.EEXIST {
		var st unix.Stat_t
		if err := unix.Stat(dir, &st); err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return unix.EEXIST
		}
		return nil
	}
	if err != nil {
		return err
	}
	if owner != nil {
		if err := unix.Chown(dir, int(owner.uid), int(owner.gid)); err != nil {
			return err
		}
	}
	if mode&0o7000 != 0 {
		return unix.Chmod(dir, mode) // mkdir leaves these bits out
	}
	return nil
}
