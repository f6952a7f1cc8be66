package client

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/archive"
)

// The formats of archives.
const (
	FormatTar     = "tar"
	FormatTarGzip = "tar.gz"
	FormatZip     = "zip"
)

// ReadArchive opens a directory of the sandbox, or one file, as an archive, whose names
// are relative to the directory. The caller closes it; an archive that ends early gives
// an error. It comes out of a sandbox and has to be taken for hostile: DownloadDir
// unpacks one safely.
//
// Errors: file_not_found, file_permission, invalid_argument.
func (f Files) ReadArchive(ctx context.Context, path, format string) (io.ReadCloser, error) {
	query := f.query(path)
	query.Set("format", first(format, FormatTar))
	r := request{method: http.MethodGet, path: f.s.path("/files/archive"), query: query, accept: "*/*", idempotent: true, what: "read an archive"}
	resp, err := f.s.c.send(ctx, r) //nolint:bodyclose // content closes it
	if err != nil {
		return nil, err
	}
	return &content{ctx: ctx, r: r, resp: resp}, nil
}

// Unpacked is what was unpacked.
type Unpacked struct {
	Files       int64 `json:"files"`       // links among them
	Directories int64 `json:"directories"` // that were made
	Bytes       int64 `json:"bytes"`
}

// WriteArchive unpacks an archive into a directory of the sandbox, which is made when it
// is not there. owner will own what is new; empty: the user of [Files.As], or without one
// the sandbox's user. When it fails, what was unpacked by then stays.
//
// Errors: archive_refused (with the entry), not_directory, file_permission, disk_full.
func (f Files) WriteArchive(ctx context.Context, path, format string, r io.Reader, owner string) (Unpacked, error) {
	query := f.query(path)
	query.Set("format", first(format, FormatTar))
	if owner != "" {
		query.Set("owner", owner)
	}
	var got Unpacked
	watched := &source{r: r}
	req := request{method: http.MethodPut, path: f.s.path("/files/archive"), query: query, stream: watched, size: sizeOf(r), what: "write an archive"}
	err := f.s.c.call(ctx, req, &got)
	if err != nil && watched.err != nil && ctx.Err() == nil {
		err = watched.err
	}
	return got, err
}

// UploadDir copies a local directory into a directory of the sandbox, which is made when
// it is not there; what is there and has another name stays. Links are copied as links,
// and those that lead out of the directory are refused. Errors: as WriteArchive.
func (f Files) UploadDir(ctx context.Context, localDir, path, owner string) (Unpacked, error) {
	r, w := io.Pipe()
	packed := make(chan struct{})
	go func() {
		defer close(packed)
		w.CloseWithError(pack(ctx, localDir, w))
	}()
	got, err := f.WriteArchive(ctx, path, FormatTar, r, owner)
	r.CloseWithError(errors.New("nobody reads the archive any more"))
	<-packed
	return got, err
}

// pack writes a local directory as a tar archive.
func pack(ctx context.Context, dir string, to io.Writer) error {
	w := archive.NewWriter(archive.Tar, to)
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, p)
		if err != nil || name == "." {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		e := &archive.Entry{Name: filepath.ToSlash(name), Mode: uint32(info.Mode().Perm()), ModTime: info.ModTime()}
		switch info.Mode().Type() {
		case fs.ModeDir:
			e.Kind = archive.Dir
			return w.Add(e, nil)
		case fs.ModeSymlink:
			e.Kind = archive.Symlink
			target, err := os.Readlink(p)
			e.Target = filepath.ToSlash(target)
			if err != nil {
				return err
			}
			return w.Add(e, nil)
		case 0:
		default:
			return ringfence.Errorf(ringfence.CodeInvalidArgument, "%q is a device, a socket or a named pipe, which cannot be copied", p)
		}
		file, err := os.Open(p)
		if err != nil {
			return err
		}
		defer file.Close()
		if info, err = file.Stat(); err != nil {
			return err
		}
		e.Size = info.Size()
		return w.Add(e, file)
	})
	if err != nil {
		return err
	}
	return w.Close()
}

// DownloadOptions bounds what a directory of a sandbox may become here. The zero value
// is fine.
type DownloadOptions struct {
	MaxEntries int64 // 0: 1,000,000
	MaxBytes   int64 // of all files; 0: 64 GiB
	// LeadsOut, when not nil, is told of symbolic links that lead out of the directory,
	// which are then left out. When it is nil they are refused.
	LeadsOut func(name, target string)
}

const defaultMaxBytes = 64 << 30

// DownloadDir copies a directory of the sandbox into a local one, which is made when it
// is not there; what is there and has another name stays. Whatever the sandbox sends,
// nothing outside the local directory is touched: absolute names, "..", links that lead
// out, devices and bombs are refused with archive_refused. Files get the permissions of
// any new file, and keep the right to be executed.
//
// Errors: file_not_found, not_directory, archive_refused, unavailable, and those of the
// local file system. When it fails, what was copied by then stays.
func (f Files) DownloadDir(ctx context.Context, path, localDir string, o DownloadOptions) (Unpacked, error) {
	info, err := f.Stat(ctx, path)
	if err != nil {
		return Unpacked{}, err
	}
	if info.Type == TypeFile || info.Type == TypeOther {
		return Unpacked{}, ringfence.Errorf(ringfence.CodeNotDirectory, "%q is no directory", path).WithField("path").WithHint("read the file")
	}
	body, err := f.ReadArchive(ctx, path, FormatTar)
	if err != nil {
		return Unpacked{}, err
	}
	defer body.Close()
	return unpack(body, localDir, o)
}

// unpack unpacks a hostile tar archive. os.Root keeps every operation below the
// directory, whatever the names are; that no link is followed within it either is
// checked here, which is enough where nothing else changes the directory meanwhile.
func unpack(r io.Reader, localDir string, o DownloadOptions) (Unpacked, error) {
	if err := os.MkdirAll(localDir, 0o777); err != nil {
		return Unpacked{}, err
	}
	root, err := os.OpenRoot(localDir)
	if err != nil {
		return Unpacked{}, err
	}
	defer root.Close()
	x := &unpacker{root: root}
	limits := archive.Limits{Entries: o.MaxEntries, Bytes: o.MaxBytes}
	if limits.Bytes == 0 {
		limits.Bytes = defaultMaxBytes
	}
	if o.LeadsOut != nil {
		limits.LeadsOut = func(e *archive.Entry) { o.LeadsOut(e.Name, e.Target) }
	}
	err = archive.Read(archive.Tar, r, limits, x.add)
	return x.got, err
}

type unpacker struct {
	root *os.Root
	last string // directory that was checked last
	got  Unpacked
}

func (x *unpacker) add(e *archive.Entry, r io.Reader) error {
	name := filepath.FromSlash(e.Name)
	if !filepath.IsLocal(name) {
		return archive.Refuse(e.Name, "its name means something else on this machine")
	}
	if e.Kind == archive.Dir {
		return x.dir(e, name)
	}
	if err := x.dir(e, filepath.Dir(name)); err != nil {
		return err
	}
	if info, err := x.root.Lstat(name); err == nil {
		if info.IsDir() {
			return archive.Refuse(e.Name, "a directory is in its place")
		}
		if err := x.root.Remove(name); err != nil {
			return err
		}
	}
	x.got.Files++
	switch e.Kind {
	case archive.Symlink:
		return x.root.Symlink(filepath.FromSlash(e.Target), name)
	case archive.Hardlink:
		target := filepath.FromSlash(e.Target)
		if err := x.dir(e, filepath.Dir(target)); err != nil {
			return err
		}
		if info, err := x.root.Lstat(target); err != nil || !info.Mode().IsRegular() {
			return archive.Refuse(e.Name, "it is a hard link to %q, which is no file", e.Target)
		}
		return x.root.Link(target, name)
	}
	perm := fs.FileMode(0o666)
	if e.Mode&0o100 != 0 {
		perm = 0o777
	}
	file, err := x.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return err
	}
	buf := copyBuffers.Get().(*[]byte)
	n, err := io.CopyBuffer(struct{ io.Writer }{file}, r, *buf)
	copyBuffers.Put(buf)
	if cerr := file.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		_ = x.root.Remove(name) // half a file is none; there is a first error to report
		return err
	}
	x.got.Bytes += n
	if !e.ModTime.IsZero() {
		_ = x.root.Chtimes(name, e.ModTime, e.ModTime) // a time that the file system does not have is no loss
	}
	return nil
}

// dir makes a directory with its parents, and refuses a way that leads through
// anything else.
func (x *unpacker) dir(e *archive.Entry, name string) error {
	if name == "." || name == x.last {
		return nil
	}
	at := ""
	for part := range strings.SplitSeq(name, string(filepath.Separator)) {
		at = filepath.Join(at, part)
		info, err := x.root.Lstat(at)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			if err := x.root.Mkdir(at, 0o777); err != nil {
				return err
			}
			x.got.Directories++
		case err != nil:
			return err
		case !info.IsDir():
			return archive.Refuse(e.Name, "%q on its way is there and is no directory", at)
		}
	}
	x.last = name
	return nil
}
