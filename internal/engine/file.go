package engine

import (
	"bufio"
	"context"
	"errors"
	"io"
	"path"
	"strings"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/guestlink"
	"ringfence.dev/ringfence/internal/guestproto"
)

// FileRef names a file of a sandbox, and who acts on it.
type FileRef struct {
	Project string
	Sandbox string
	Path    string // absolute; bytes
	User    string // who acts: root when empty
}

// Limits of a listing.
const (
	MaxListDepth   = 64
	MaxListEntries = 100_000 // without a limit
	MaxListPage    = 10_000
)

// call gives fn the link to a file's sandbox, and explains its error.
func (e *Engine) call(ctx context.Context, f FileRef, fn func(*guestlink.Conn) error) error {
	if err := validPath("path", f.Path); err != nil {
		return err
	}
	if f.User != "" && !userRule.MatchString(f.User) {
		return invalid("user", "user is neither a user's name nor a number")
	}
	b, err := e.reach(ctx, f.Project, f.Sandbox)
	if err != nil {
		return err
	}
	defer b.use()()
	conn, err := b.link(ctx)
	if err != nil {
		return err
	}
	return withHint(b.explain(fn(conn)))
}

// hints say what to do about what a guest reports about files.
var hints = map[ringfence.Code]string{
	ringfence.CodeFileNotFound:       "list its directory to see what is there",
	ringfence.CodeIsDirectory:        "name a file, or list the directory",
	ringfence.CodeNotDirectory:       "name a directory, or read the file",
	ringfence.CodeFileExists:         "remove it first, or choose another name",
	ringfence.CodeDirectoryNotEmpty:  "remove it with recursive",
	ringfence.CodeFilePermission:     "act as another user, such as root",
	ringfence.CodePreconditionFailed: "read it again, and decide anew",
	ringfence.CodeArchiveRefused:     "make the archive anew; what came before the fault is unpacked, all of it inside of the directory",
	ringfence.CodeDiskFull:           "remove files in the sandbox, or create one with more disk_mib",
}

func withHint(err error) error {
	var e *ringfence.Error
	if errors.As(err, &e) && e.Hint == "" {
		if e.Hint = hints[e.Code]; e.Field == "to" && e.Hint != "" {
			e.Hint = "choose another target, or make way for it first"
		}
	}
	return err
}

// ReadFile hands the file's description and then its bytes, or length of them from
// offset on (0: to its end), to fn. The bytes have to be read within fn; io.EOF is
// only ever the whole of what was asked for.
//
// Errors of all methods on files: invalid_argument (with the field), not_found,
// sandbox_ended, unavailable, and the codes for files.
func (e *Engine) ReadFile(ctx context.Context, f FileRef, offset, length int64, fn func(ringfence.FileInfo, io.Reader) error) error {
	return e.call(ctx, f, func(conn *guestlink.Conn) error {
		info, body, err := conn.ReadFile(ctx, guestproto.FileRead{FilePath: f.guest(), Offset: offset, Length: length})
		if err != nil {
			return err
		}
		defer body.Close() // it gives up what was not read
		return fn(fileInfo(info), body)
	})
}

// ContentLength returns how long the content of a whole file is whose body is at its
// begin, and what to read it from: -1 where only reading tells, as with those files of
// /proc that say they are empty.
func ContentLength(size int64, body io.Reader) (int64, io.Reader, error) {
	if size > 0 {
		return size, body, nil
	}
	buffered := bufio.NewReader(body)
	switch _, err := buffered.Peek(1); {
	case err == nil:
		return -1, buffered, nil
	case errors.Is(err, io.EOF):
		return 0, body, nil
	default:
		return 0, nil, err
	}
}

// WriteOptions says how a file is written.
type WriteOptions struct {
	Owner string // of what is new; empty: the user who was named, or else the sandbox's
	Mode  uint32 // permission bits; 0: those of an existing file, else 0644
	// IfMatch: only replace the file that has this etag. Create: only make a new file.
	// precondition_failed otherwise.
	IfMatch string
	Create  bool
}

// WriteFile replaces a file with what body gives, or leaves it as it was. Missing
// parents are made, unless the file has to be there.
func (e *Engine) WriteFile(ctx context.Context, f FileRef, o WriteOptions, body io.Reader) (info ringfence.FileInfo, err error) {
	if err := validOwner("owner", o.Owner); err != nil {
		return info, err
	}
	size := map[string]any{}
	defer e.changed(f, &err, ringfence.EventFileWritten, size)
	err = e.call(ctx, f, func(conn *guestlink.Conn) error {
		defer func() { size["size"] = info.Size }()
		got, err := conn.WriteFile(ctx, guestproto.FileWrite{FilePath: f.guest(), Owner: o.Owner, Mode: o.Mode, IfMatch: o.IfMatch, Create: o.Create}, body)
		info = fileInfo(got)
		return err
	})
	return info, err
}

func validOwner(field, name string) error {
	if name != "" && !userRule.MatchString(name) {
		return invalid(field, "%s is neither a name nor a number", field)
	}
	return nil
}

// StatFile describes a file; a symbolic link is described and not followed.
func (e *Engine) StatFile(ctx context.Context, f FileRef) (info ringfence.FileInfo, err error) {
	err = e.call(ctx, f, func(conn *guestlink.Conn) error {
		got, err := conn.StatFile(ctx, f.guest())
		info = fileInfo(got)
		return err
	})
	return info, err
}

// ListOptions says what of a directory is listed.
type ListOptions struct {
	Depth int // from 1, its own entries, to MaxListDepth
	// Limit is how many entries come at most, up to MaxListPage. 0: all, of which more
	// than MaxListEntries are refused.
	Limit int
	// After is the path of the last entry of the page before.
	After    string
	Metadata bool // with each entry's
}

// ListFiles lists a directory in the order of names; a directory comes before what is in
// it. more: there are entries after these.
func (e *Engine) ListFiles(ctx context.Context, f FileRef, o ListOptions) (entries []ringfence.FileInfo, more bool, err error) {
	switch {
	case o.Depth < 1 || o.Depth > MaxListDepth:
		return nil, false, invalid("depth", "depth has to be from 1 to %d", MaxListDepth)
	case o.Limit < 0 || o.Limit > MaxListPage:
		return nil, false, invalid("limit", "limit has to be from 1 to %d", MaxListPage)
	}
	ask := guestproto.FileList{FilePath: f.guest(), Depth: o.Depth, Metadata: o.Metadata}
	if o.Limit > 0 {
		ask.Limit = o.Limit + 1
	}
	if o.After != "" {
		rest, ok := strings.CutPrefix(o.After, strings.TrimRight(path.Clean(f.Path), "/")+"/")
		if !ok || rest == "" {
			return nil, false, invalid("cursor", "the cursor is of another directory")
		}
		ask.After = []byte(rest)
	}
	errMore := errors.New("there is more")
	err = e.call(ctx, f, func(conn *guestlink.Conn) error {
		err := conn.ListFiles(ctx, ask, func(got guestproto.FileInfo) error {
			if o.Limit > 0 && len(entries) == o.Limit {
				return errMore
			}
			if o.Limit == 0 && len(entries) == MaxListEntries {
				return invalid("depth", "there are more than %d entries", MaxListEntries).
					WithHint("list them in pages with limit, or fewer levels at a time")
			}
			entries = append(entries, fileInfo(got))
			return nil
		})
		if errors.Is(err, errMore) {
			more, err = true, nil
		}
		return err
	})
	return entries, more, err
}

// Mkdir makes a directory with its parents; one that exists is no error.
func (e *Engine) Mkdir(ctx context.Context, f FileRef, owner string, mode uint32) (info ringfence.FileInfo, err error) {
	if err := validOwner("owner", owner); err != nil {
		return info, err
	}
	defer e.changed(f, &err, ringfence.EventDirectoryMade, map[string]any{})
	err = e.call(ctx, f, func(conn *guestlink.Conn) error {
		got, err := conn.Mkdir(ctx, guestproto.FileMkdir{FilePath: f.guest(), Owner: owner, Mode: mode})
		info = fileInfo(got)
		return err
	})
	return info, err
}

// Rename moves a file or a directory, and replaces a file that is there.
func (e *Engine) Rename(ctx context.Context, f FileRef, to string) (info ringfence.FileInfo, err error) {
	if err := validPath("to", to); err != nil {
		return info, err
	}
	defer e.changed(f, &err, ringfence.EventFileRenamed, map[string]any{"to": to})
	err = e.call(ctx, f, func(conn *guestlink.Conn) error {
		got, err := conn.Rename(ctx, guestproto.FileRename{FilePath: f.guest(), To: to})
		info = fileInfo(got)
		return err
	})
	return info, err
}

// Remove removes a file, or with recursive a directory and all that is in it.
func (e *Engine) Remove(ctx context.Context, f FileRef, recursive bool) (err error) {
	defer e.changed(f, &err, ringfence.EventFileRemoved, map[string]any{})
	return e.call(ctx, f, func(conn *guestlink.Conn) error {
		return conn.Remove(ctx, guestproto.FileRemove{FilePath: f.guest(), Recursive: recursive})
	})
}

func (f FileRef) guest() guestproto.FilePath {
	return guestproto.FilePath{Path: f.Path, User: f.User}
}

func fileInfo(i guestproto.FileInfo) ringfence.FileInfo {
	return ringfence.FileInfo{
		Path: i.Path, Type: ringfence.FileType(i.Type), Size: i.Size, Mode: i.Mode, UID: i.UID, GID: i.GID,
		Owner: i.Owner, Group: i.Group, ModifiedAt: time.UnixMicro(i.ModTime).UTC(), Target: i.Target,
		ETag: i.ETag, Metadata: i.Metadata,
	}
}

func validPath(field, path string) error {
	switch {
	case path == "":
		return invalid(field, "%s is missing", field)
	case path[0] != '/':
		return invalid(field, "%s is %s, which is not absolute", field, quoteShort(path)).WithHint("begin it with a slash")
	case len(path) > ringfence.MaxPathBytes:
		return invalid(field, "%s has %d bytes, at most %d fit", field, len(path), ringfence.MaxPathBytes)
	case strings.IndexByte(path, 0) >= 0:
		return invalid(field, "%s holds a zero byte", field)
	}
	return nil
}
