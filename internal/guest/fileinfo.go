package guest

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"path"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"ringfence.dev/ringfence/internal/guestproto"
)

// maxPath is the longest path that a call may name, in bytes.
const maxPath = 4096

// pathOf returns the bytes of a path that came as text or as bytes.
func pathOf(text string, raw []byte, field string) (string, error) {
	p := text
	if len(raw) > 0 {
		p = string(raw)
	}
	switch {
	case !path.IsAbs(p):
		return "", fail(codeInvalid, field, "the path %q is not absolute", p)
	case strings.IndexByte(p, 0) >= 0:
		return "", fail(codeInvalid, field, "a path cannot hold a NUL byte")
	case len(p) > maxPath:
		return "", fail(codeInvalid, field, "the path has %d bytes, at most %d are possible", len(p), maxPath)
	}
	return p, nil
}

// target returns the path of a call and who acts.
func (a *agent) target(f guestproto.FilePath) (string, account, error) {
	p, err := pathOf(f.Path, f.PathBytes, "path")
	if err != nil {
		return "", account{}, err
	}
	u, err := a.users.lookup(f.User, "user")
	return p, u, err
}

// newOwner returns who will own what a call makes: who was named, or else the sandbox's
// user, whose commands are to work with it. nil: the acting user, who was named himself or
// is the same.
func (a *agent) newOwner(named, acting string) (*account, error) {
	if named != "" {
		owner, err := a.users.lookup(named, "owner")
		return &owner, err
	}
	if acting != "" {
		return nil, nil
	}
	owner, err := a.users.lookup(a.currentIdentity().User, "owner")
	if err != nil || owner.uid == 0 && owner.gid == 0 {
		return nil, nil // a template may have lost its user; root acts
	}
	return &owner, nil
}

// tempName returns a name for a file that will take another's place.
func tempName() string {
	var random [tempRandom]byte
	rand.Read(random[:]) // never fails since Go 1.24
	return tempPrefix + hex.EncodeToString(random[:])
}

const (
	tempPrefix = ".rf-"
	tempRandom = 12
)

// isTemp reports whether a name is one of tempName's.
func isTemp(name string) bool {
	digits, ok := strings.CutPrefix(name, tempPrefix)
	if !ok || len(digits) != 2*tempRandom {
		return false
	}
	_, err := hex.DecodeString(digits)
	return err == nil
}

// owners are the names of a file's owner and group. To find them costs two system
// calls, since the files that hold them may have changed.
type owners struct {
	known        bool
	uid, gid     uint32
	owner, group string
}

func (a *agent) ownersOf(st *unix.Stat_t) owners {
	o := owners{known: true, uid: st.Uid, gid: st.Gid}
	o.owner, o.group = a.users.names(st.Uid, st.Gid)
	return o
}

// describe turns a stat into what the host gets. name is the whole path.
func describe(name string, st *unix.Stat_t, target string, o owners) guestproto.FileInfo {
	info := guestproto.FileInfo{
		Path:    name,
		Type:    "other",
		Size:    st.Size,
		Mode:    st.Mode & 0o7777,
		UID:     st.Uid,
		GID:     st.Gid,
		ModTime: st.Mtim.Sec*1e6 + st.Mtim.Nsec/1e3,
		Target:  target,
		Owner:   o.owner,
		Group:   o.group,
		ETag:    etag(st),
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		info.Type = "file"
	case unix.S_IFDIR:
		info.Type = "directory"
	case unix.S_IFLNK:
		info.Type = "symlink"
	}
	if !utf8.ValidString(name) {
		info.PathBytes = []byte(name)
	}
	if !utf8.ValidString(target) {
		info.TargetBytes = []byte(target)
	}
	return info
}

// etag names one state of one file. The time of change is in it, which no program can
// set: not even a write that keeps size and time of modification goes unseen.
func etag(st *unix.Stat_t) string {
	return fmt.Sprintf("%x-%x-%x-%x", st.Ino, st.Size, st.Mtim.Nano(), st.Ctim.Nano())
}

// describePath describes what stands at a path itself; links are not followed. It
// runs on a file thread.
func (a *agent) describePath(p string) (guestproto.FileInfo, error) {
	var st unix.Stat_t
	if err := unix.Lstat(p, &st); err != nil {
		return guestproto.FileInfo{}, err
	}
	target := ""
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		target = readlinkAt(unix.AT_FDCWD, p)
	}
	return describe(path.Clean(p), &st, target, a.ownersOf(&st)), nil
}

// readlinkAt returns where a link points to; "" when it cannot be read.
func readlinkAt(dir int, name string) string {
	buf := make([]byte, maxPath)
	n, err := unix.Readlinkat(dir, name, buf)
	if err != nil {
		return ""
	}
	return string(buf[:n])
}

func statFile(a *agent, _ *channel, f guestproto.FilePath) (any, error) {
	p, u, err := a.target(f)
	if err != nil {
		return nil, err
	}
	var info guestproto.FileInfo
	err = a.ns.onFileThread(u, func() (err error) {
		if info, err = a.describePath(p); err == nil {
			info.Metadata = metadataOf(p, info.Type)
		}
		return err
	})
	if err != nil {
		return nil, fileError("look at", p, err)
	}
	return info, nil
}

// openDirAt opens a directory in an open one, and follows no link. In gVisor O_DIRECTORY
// makes O_NOFOLLOW ineffective: a link to a directory is followed. So what was opened
// is looked at instead.
func openDirAt(dir int, name string) (int, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err == unix.ENXIO { // a socket
		return -1, unix.ENOTDIR
	}
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		err = unix.ENOTDIR
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}
