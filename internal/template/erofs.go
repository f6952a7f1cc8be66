package template

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/erofs"
)

// pack writes the tree at root as an image and returns its hash. The options are
// what gVisor can read: no compression, no data inside of inodes (a program's pages
// must lie on page boundaries), no extended attributes.
func pack(ctx context.Context, root, image string, line func(string)) (hash string, err error) {
	j := jail{
		Dir:  "/",
		Env:  []string{"PATH=" + toolPath, "LC_ALL=C.UTF-8"},
		Args: []string{"mkfs.erofs", "-d0", "-Enoinline_data", "-x-1", image, root},
	}
	if err := j.run(ctx, "make the image", line); err != nil {
		return "", err
	}
	f, err := os.Open(image)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.CopyBuffer(h, struct{ io.Reader }{f}, make([]byte, 1<<20)); err != nil {
		return "", err
	}
	if err := f.Sync(); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// unpack writes the tree of an image to dir, which must exist and be empty. It
// reads the image itself, so that the host's kernel need not know the format.
func unpack(ctx context.Context, image, dir string) error {
	f, err := os.Open(image)
	if err != nil {
		return err
	}
	img, err := erofs.OpenImage(f)
	if err != nil {
		f.Close()
		return fmt.Errorf("cannot read the image %s: %w", image, err)
	}
	defer img.Close()
	u := unpacker{ctx: ctx, img: img, links: map[uint64]string{}}
	if err := u.tree(img.RootNid(), dir); err != nil {
		return fmt.Errorf("cannot unpack the image %s: %w", image, err)
	}
	return nil
}

type unpacker struct {
	ctx   context.Context
	img   *erofs.Image
	links map[uint64]string // first path of each file that has several
}

// tree fills dir, which exists, with what the directory nid holds.
func (u *unpacker) tree(nid uint64, dir string) error {
	if err := u.ctx.Err(); err != nil {
		return err
	}
	ino, err := u.img.Inode(nid)
	if err != nil {
		return err
	}
	type entry struct {
		name string
		nid  uint64
	}
	var entries []entry
	err = ino.IterDirents(func(name string, _ uint8, nid uint64) error {
		if name != "." && name != ".." {
			entries = append(entries, entry{name, nid})
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := u.node(e.nid, filepath.Join(dir, e.name)); err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
	}
	return u.attributes(&ino, dir) // last: writing into dir changes its time
}

func (u *unpacker) node(nid uint64, path string) error {
	ino, err := u.img.Inode(nid)
	if err != nil {
		return err
	}
	if first, ok := u.links[nid]; ok {
		return os.Link(first, path)
	}
	switch {
	case ino.IsDir():
		if err := os.Mkdir(path, 0o700); err != nil {
			return err
		}
		return u.tree(nid, path)
	case ino.IsSymlink():
		target, err := ino.Readlink()
		if err != nil {
			return err
		}
		if err := os.Symlink(target, path); err != nil {
			return err
		}
		return u.attributes(&ino, path)
	case ino.IsRegular():
		if err := u.file(&ino, path); err != nil {
			return err
		}
	default:
		return fmt.Errorf("%s is neither a file, a directory nor a link", path)
	}
	if ino.Nlink() > 1 {
		u.links[nid] = path
	}
	return u.attributes(&ino, path)
}

func (u *unpacker) file(ino *erofs.Inode, path string) error {
	out, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	ranges, err := ino.DataRanges()
	if err != nil {
		return err
	}
	for _, r := range ranges {
		if _, err := out.Write(r.Bytes); err != nil {
			return err
		}
	}
	return out.Close()
}

func (u *unpacker) attributes(ino *erofs.Inode, path string) error {
	if err := os.Lchown(path, int(ino.UID()), int(ino.GID())); err != nil {
		return err
	}
	if !ino.IsSymlink() {
		// After chown, which takes the set-user-ID bit away.
		if err := unix.Chmod(path, uint32(ino.Mode())&0o7777); err != nil {
			return err
		}
	}
	t := unix.NsecToTimespec(time.Unix(int64(ino.Mtime()), int64(ino.MtimeNsec())).UnixNano())
	return unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{t, t}, unix.AT_SYMLINK_NOFOLLOW)
}
