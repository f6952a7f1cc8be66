package client

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"ringfence.dev/ringfence"
)

// Files reads and changes the files of one sandbox. Every path is absolute and may
// hold any bytes but NUL.
type Files struct {
	s    *Sandbox
	user string
}

// As returns the same files with user acting on them, whose permissions count. It is
// the sandbox's own user otherwise.
func (f Files) As(user string) Files {
	f.user = user
	return f
}

// What a FileInfo's Type can be.
const (
	TypeFile      = "file"
	TypeDirectory = "directory"
	TypeSymlink   = "symlink"
	TypeOther     = "other" // device, socket, named pipe
)

// FileInfo describes a file.
type FileInfo struct {
	Path       string // absolute; its exact bytes
	Name       string // the last element of Path
	Type       string // one of the Type constants
	Size       int64  // bytes
	Mode       uint32 // permission bits, with setuid 04000, setgid 02000 and sticky 01000
	UID, GID   uint32
	Owner      string // name, or the number where there is none
	Group      string
	ModifiedAt time.Time
	Target     string // of a symlink
	// ETag changes with the content, the permissions, and when another file takes its
	// place; WriteOptions.IfMatch takes it.
	ETag string
	// Metadata is text by keys; nil when there is none, and in a list unless it was asked for.
	Metadata map[string]string
}

// IsDir reports whether the file is a directory.
func (i FileInfo) IsDir() bool { return i.Type == TypeDirectory }

// WriteOptions says how a file is written. The zero value is fine.
type WriteOptions struct {
	// Owner will own the file and the parents that are made. Empty: User, or without one the
	// sandbox's user; a file that is there keeps its owner.
	Owner string
	// Mode is the permission bits; 0: those of the file that is replaced, else 0644.
	Mode uint32
	// IfMatch replaces only the file that has this ETag, CreateOnly only makes a new
	// file: precondition_failed otherwise.
	IfMatch    string
	CreateOnly bool
}

// MkdirOptions says how a directory is made.
type MkdirOptions struct {
	Owner string // empty: User, or without one the sandbox's user
	Mode  uint32 // 0: 0755
}

// Read opens a file for reading. The caller closes it. A read that ends early gives
// an error, never a short file.
//
// Errors: file_not_found, is_directory, file_permission, invalid_argument.
func (f Files) Read(ctx context.Context, path string) (io.ReadCloser, error) {
	return f.read(ctx, path, "")
}

// ReadRange opens length bytes of a file from offset on; a negative length reads to
// the end. Fewer bytes come when the file ends before. Errors: as Read, and
// range_invalid when offset is at or beyond the end.
func (f Files) ReadRange(ctx context.Context, path string, offset, length int64) (io.ReadCloser, error) {
	switch {
	case offset < 0:
		return nil, ringfence.Errorf(ringfence.CodeRangeInvalid, "the offset %d is negative", offset).WithField("offset")
	case length == 0:
		return io.NopCloser(strings.NewReader("")), nil
	case length < 0:
		return f.read(ctx, path, fmt.Sprintf("bytes=%d-", offset))
	}
	return f.read(ctx, path, fmt.Sprintf("bytes=%d-%d", offset, offset+length-1))
}

// ReadFile returns the whole of a file. It holds it in memory: use Read for large ones.
func (f Files) ReadFile(ctx context.Context, path string) ([]byte, error) {
	r, err := f.Read(ctx, path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	var b bytes.Buffer
	if _, err := io.Copy(&b, r); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

func (f Files) read(ctx context.Context, path, span string) (io.ReadCloser, error) {
	r := request{method: http.MethodGet, path: f.s.path("/files"), query: f.query(path), accept: "application/octet-stream",
		idempotent: true, what: "read a file"}
	if span != "" {
		r.header = http.Header{"Range": {span}}
	}
	resp, err := f.s.c.send(ctx, r)
	if err != nil {
		return nil, err
	}
	if span != "" && resp.StatusCode != http.StatusPartialContent {
		resp.Body.Close()
		return nil, &ringfence.Error{Code: ringfence.CodeInternal, Message: "the server sent a whole file where a part was asked for",
			RequestID: resp.Header.Get("X-Request-Id")}
	}
	return &content{ctx: ctx, r: r, resp: resp}, nil
}

// content is the body of a file that is read.
type content struct {
	ctx  context.Context
	r    request
	resp *http.Response
}

func (c *content) Read(p []byte) (int, error) {
	n, err := c.resp.Body.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = c.broken(err)
	}
	return n, err
}

var copyBuffers = sync.Pool{New: func() any { b := make([]byte, 2*bufferBytes); return &b }}

// WriteTo implements io.WriterTo with a buffer that suits large files: io.Copy's own
// is small.
func (c *content) WriteTo(w io.Writer) (int64, error) {
	buf := copyBuffers.Get().(*[]byte)
	defer copyBuffers.Put(buf)
	var total int64
	for {
		n, err := c.resp.Body.Read(*buf)
		if n > 0 {
			m, werr := w.Write((*buf)[:n])
			total += int64(m)
			if werr == nil && m < n {
				werr = io.ErrShortWrite
			}
			if werr != nil {
				return total, werr
			}
		}
		if errors.Is(err, io.EOF) {
			return total, nil
		}
		if err != nil {
			return total, c.broken(err)
		}
	}
}

func (c *content) broken(err error) error {
	if e := contextError(c.ctx, c.r); e != nil {
		return e
	}
	return brokenStream(c.resp.Header.Get("X-Request-Id"), err)
}

func (c *content) Close() error { return c.resp.Body.Close() }

// Stat describes a file. A symlink itself is described, not its target. Errors: file_not_found.
func (f Files) Stat(ctx context.Context, path string) (FileInfo, error) {
	var w wireFile
	err := f.s.c.call(ctx, request{method: http.MethodGet, path: f.s.path("/files/stat"), query: f.query(path), idempotent: true}, &w)
	if err != nil {
		return FileInfo{}, err
	}
	return w.info()
}

// Exists reports whether there is a file, directory or anything else at path.
func (f Files) Exists(ctx context.Context, path string) (bool, error) {
	_, err := f.Stat(ctx, path)
	switch ringfence.CodeOf(err) {
	case "":
		return true, nil
	case ringfence.CodeFileNotFound, ringfence.CodeNotDirectory:
		return false, nil
	}
	return false, err
}

// List lists a directory: depth 1 is its entries, 2 theirs as well, up to 64; 0 is 1.
// Errors: file_not_found, not_directory, invalid_argument (more than 100,000 entries; Walk takes any number).
func (f Files) List(ctx context.Context, path string, depth int) ([]FileInfo, error) {
	query := f.query(path)
	if depth != 0 {
		query.Set("depth", strconv.Itoa(depth))
	}
	var w struct {
		Entries []wireFile `json:"entries"`
	}
	if err := f.s.c.call(ctx, request{method: http.MethodGet, path: f.s.path("/files/list"), query: query, idempotent: true}, &w); err != nil {
		return nil, err
	}
	entries := make([]FileInfo, len(w.Entries))
	for i := range w.Entries {
		var err error
		if entries[i], err = w.Entries[i].info(); err != nil {
			return nil, err
		}
	}
	return entries, nil
}

// Mkdir makes a directory and its parents. One that exists is no error. Errors:
// not_directory, file_exists, file_permission.
func (f Files) Mkdir(ctx context.Context, path string, o MkdirOptions) (FileInfo, error) {
	body := map[string]string{}
	putPath(body, "path", path)
	f.who(body, o.Owner)
	if o.Mode != 0 {
		body["mode"] = formatMode(o.Mode)
	}
	return f.post(ctx, "/files/mkdir", body, "make a directory")
}

// Rename moves a file or directory; it replaces a file that is at the new path.
// Errors: file_not_found, file_permission, is_directory, directory_not_empty.
func (f Files) Rename(ctx context.Context, from, to string) (FileInfo, error) {
	body := map[string]string{}
	putPath(body, "from", from)
	putPath(body, "to", to)
	f.who(body, "")
	return f.post(ctx, "/files/rename", body, "rename a file")
}

// Remove removes a file or an empty directory. Errors: file_not_found,
// directory_not_empty, file_permission.
func (f Files) Remove(ctx context.Context, path string) error { return f.remove(ctx, path, false) }

// RemoveAll removes a file, or a directory with all that is in it. Errors:
// file_not_found, file_permission.
func (f Files) RemoveAll(ctx context.Context, path string) error { return f.remove(ctx, path, true) }

func (f Files) remove(ctx context.Context, path string, recursive bool) error {
	query := f.query(path)
	if recursive {
		query.Set("recursive", "true")
	}
	return f.s.c.call(ctx, request{method: http.MethodDelete, path: f.s.path("/files"), query: query, idempotent: true,
		goneOK: ringfence.CodeFileNotFound}, nil)
}

func (f Files) post(ctx context.Context, path string, body any, what string) (FileInfo, error) {
	var w wireFile
	if err := f.s.c.call(ctx, request{method: http.MethodPost, path: f.s.path(path), body: body, what: what}, &w); err != nil {
		return FileInfo{}, err
	}
	return w.info()
}

// query returns the parameters that name a file and who acts on it.
func (f Files) query(path string) url.Values {
	query := url.Values{}
	if utf8.ValidString(path) {
		query.Set("path", path)
	} else {
		query.Set("path_base64", base64.StdEncoding.EncodeToString([]byte(path)))
	}
	if f.user != "" {
		query.Set("user", f.user)
	}
	return query
}

func (f Files) who(body map[string]string, owner string) {
	if f.user != "" {
		body["user"] = f.user
	}
	if owner != "" {
		body["owner"] = owner
	}
}

// putPath puts a path into a body, as text if it is some.
func putPath(body map[string]string, name, path string) {
	if utf8.ValidString(path) {
		body[name] = path
	} else {
		body[name+"_base64"] = base64.StdEncoding.EncodeToString([]byte(path))
	}
}

func formatMode(mode uint32) string { return fmt.Sprintf("%04o", mode) }

type wireFile struct {
	Path       string   `json:"path"`
	PathBase64 *string  `json:"path_base64"`
	Name       string   `json:"name"`
	Type       string   `json:"type"`
	Size       int64    `json:"size"`
	Mode       string   `json:"mode"`
	UID        uint32   `json:"uid"`
	GID        uint32   `json:"gid"`
	Owner      string   `json:"owner"`
	Group      string   `json:"group"`
	ModifiedAt wireTime `json:"modified_at"`
	Target     string   `json:"target"`
	ETag       string   `json:"etag"`

	Metadata map[string]string `json:"metadata"`
}

func (w *wireFile) info() (FileInfo, error) {
	info := FileInfo{
		Path: w.Path, Name: w.Name, Type: w.Type, Size: w.Size, UID: w.UID, GID: w.GID,
		Owner: w.Owner, Group: w.Group, ModifiedAt: w.ModifiedAt.Time, Target: w.Target,
		ETag: w.ETag, Metadata: w.Metadata,
	}
	mode, err := strconv.ParseUint(w.Mode, 8, 32)
	if err != nil {
		return FileInfo{}, &ringfence.Error{Code: ringfence.CodeInternal, Message: fmt.Sprintf("the server's answer holds %q as a file's mode", w.Mode)}
	}
	info.Mode = uint32(mode)
	if w.PathBase64 != nil {
		path, err := base64.StdEncoding.DecodeString(*w.PathBase64)
		if err != nil {
			return FileInfo{}, &ringfence.Error{Code: ringfence.CodeInternal, Message: "the server's answer holds a path that is not base64", Err: err}
		}
		info.Path = string(path)
		info.Name = info.Path[strings.LastIndexByte(info.Path, '/')+1:]
	}
	return info, nil
}
