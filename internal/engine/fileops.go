package engine

import (
	"context"
	"errors"
	"io"
	"strings"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/archive"
	"ringfence.dev/ringfence/internal/guestlink"
	"ringfence.dev/ringfence/internal/guestproto"
)

// infoCall makes a call that answers with a file.
func (e *Engine) infoCall(ctx context.Context, f FileRef, fn func(*guestlink.Conn) (guestproto.FileInfo, error)) (info ringfence.FileInfo, err error) {
	err = e.call(ctx, f, func(conn *guestlink.Conn) error {
		got, err := fn(conn)
		info = fileInfo(got)
		return err
	})
	return info, err
}

// ModeChange is what ChangeMode changes; nil and empty: as it is.
type ModeChange struct {
	Mode         *uint32 // permission bits
	Owner, Group string
	Recursive    bool // also all that is in a directory
}

// ChangeMode changes the permissions and the owner of a file. Links are followed; those
// in a directory are not.
func (e *Engine) ChangeMode(ctx context.Context, f FileRef, m ModeChange) (info ringfence.FileInfo, err error) {
	if m.Mode == nil && m.Owner == "" && m.Group == "" {
		return info, invalid("mode", "nothing is to be changed").WithHint("give a mode, an owner or a group")
	}
	if err := validOwner("owner", m.Owner); err != nil {
		return info, err
	}
	if err := validOwner("group", m.Group); err != nil {
		return info, err
	}
	defer e.changed(f, &err, ringfence.EventFileChanged, map[string]any{})
	return e.infoCall(ctx, f, func(conn *guestlink.Conn) (guestproto.FileInfo, error) {
		return conn.ChangeMode(ctx, guestproto.FileMode{FilePath: f.guest(), Mode: m.Mode, Owner: m.Owner, Group: m.Group, Recursive: m.Recursive})
	})
}

// CopyFile copies a file, which replaces another one, or with recursive a directory,
// which must not exist. owner will own what is new; empty: the user who was
// named, or else the sandbox's.
func (e *Engine) CopyFile(ctx context.Context, f FileRef, to string, recursive bool, owner string) (info ringfence.FileInfo, err error) {
	if err := validPath("to", to); err != nil {
		return info, err
	}
	if err := validOwner("owner", owner); err != nil {
		return info, err
	}
	defer e.changed(f, &err, ringfence.EventFileCopied, map[string]any{"to": to})
	return e.infoCall(ctx, f, func(conn *guestlink.Conn) (guestproto.FileInfo, error) {
		got, err := conn.CopyFile(ctx, guestproto.FileCopy{FilePath: f.guest(), To: to, Recursive: recursive, Owner: owner})
		return got, hintFor(err, ringfence.CodeIsDirectory, "path", "copy it with recursive")
	})
}

// hintFor says what to do about an error that means another thing in this operation than
// in most.
func hintFor(err error, code ringfence.Code, field, hint string) error {
	var e *ringfence.Error
	if errors.As(err, &e) && e.Code == code && e.Field == field && e.Hint == "" {
		e.Hint = hint
	}
	return err
}

// ChangeMetadata sets and removes metadata of a file: text by keys.
func (e *Engine) ChangeMetadata(ctx context.Context, f FileRef, set map[string]string, remove []string) (info ringfence.FileInfo, err error) {
	defer e.changed(f, &err, ringfence.EventFileChanged, map[string]any{})
	return e.infoCall(ctx, f, func(conn *guestlink.Conn) (guestproto.FileInfo, error) {
		return conn.ChangeMetadata(ctx, guestproto.FileMetadata{FilePath: f.guest(), Set: set, Remove: remove})
	})
}

// Algorithms are the checksums that there are.
var Algorithms = []string{"sha256", "sha512", "sha1", "md5", "crc32c"}

// Checksum returns the checksum of a file, as the sandbox says.
func (e *Engine) Checksum(ctx context.Context, f FileRef, algorithm string) (sum ringfence.FileChecksum, err error) {
	known := false
	for _, a := range Algorithms {
		known = known || a == algorithm
	}
	if !known {
		return sum, invalid("algorithm", "there is no checksum %s", quoteShort(algorithm)).WithHint("there are %s", strings.Join(Algorithms, ", "))
	}
	err = e.call(ctx, f, func(conn *guestlink.Conn) error {
		got, err := conn.Checksum(ctx, guestproto.FileChecksum{FilePath: f.guest(), Algorithm: algorithm})
		sum = ringfence.FileChecksum{Algorithm: algorithm, Checksum: got.Checksum, Size: got.Size, ETag: got.ETag}
		return err
	})
	return sum, err
}

// Limits of a search.
const (
	MaxSearchMatches   = 10_000
	MaxSearchPattern   = 4096 // bytes
	MaxSearchDirLevels = 1000
)

// Search is what is searched for: at least one of Name and Content.
type Search struct {
	Name       string // pattern with *, ?, []; with a slash, ** is any number of directories
	Content    string // text in a line, or with Regex a regular expression of RE2
	Regex      bool
	IgnoreCase bool
	Depth      int // from 1; 0: any
	Limit      int // from 1 to MaxSearchMatches
}

// SearchFiles searches a directory, or the lines of one file. truncated: there is more.
func (e *Engine) SearchFiles(ctx context.Context, f FileRef, s Search) (matches []ringfence.FileMatch, truncated bool, err error) {
	switch {
	case s.Name == "" && s.Content == "":
		return nil, false, invalid("name", "name or content is needed")
	case len(s.Name) > MaxSearchPattern:
		return nil, false, invalid("name", "name has %d bytes, at most %d are possible", len(s.Name), MaxSearchPattern)
	case len(s.Content) > MaxSearchPattern:
		return nil, false, invalid("content", "content has %d bytes, at most %d are possible", len(s.Content), MaxSearchPattern)
	case s.Limit < 1 || s.Limit > MaxSearchMatches:
		return nil, false, invalid("limit", "limit has to be from 1 to %d", MaxSearchMatches)
	case s.Depth < 0 || s.Depth > MaxSearchDirLevels:
		return nil, false, invalid("depth", "depth has to be from 1 to %d", MaxSearchDirLevels)
	}
	err = e.call(ctx, f, func(conn *guestlink.Conn) error {
		var err error
		truncated, err = conn.SearchFiles(ctx, guestproto.FileSearch{
			FilePath: f.guest(), Name: s.Name, Content: s.Content, Regex: s.Regex, IgnoreCase: s.IgnoreCase, Depth: s.Depth, Limit: s.Limit,
		}, func(m guestproto.FileMatch) error {
			if len(matches) == s.Limit {
				return ringfence.Errorf(ringfence.CodeInternal, "the sandbox found more than it was asked for")
			}
			matches = append(matches, ringfence.FileMatch{Path: m.Path, Type: ringfence.FileType(m.Type), Line: m.Line, Column: m.Column, Text: m.Text})
			return nil
		})
		return err
	})
	return matches, truncated, err
}

// WatchFiles calls ready when the sandbox watches a directory or a file, and each for
// every change. It returns nil when the directory is gone; an error of either function
// ends it and is returned.
func (e *Engine) WatchFiles(ctx context.Context, f FileRef, recursive bool, ready func() error, each func(ringfence.FileChange) error) error {
	return e.call(ctx, f, func(conn *guestlink.Conn) error {
		return conn.WatchFiles(ctx, guestproto.FileWatch{FilePath: f.guest(), Recursive: recursive}, ready, func(c guestproto.FileChange) error {
			return each(ringfence.FileChange{Type: ringfence.ChangeType(c.Type), Path: c.Path, IsDir: c.IsDir, Cookie: c.Cookie})
		})
	})
}

// ReadArchive hands a directory, or one file, as an archive to fn. The bytes have to be
// read within fn; io.EOF is only ever the end of a whole archive.
func (e *Engine) ReadArchive(ctx context.Context, f FileRef, format archive.Format, fn func(io.Reader) error) error {
	return e.call(ctx, f, func(conn *guestlink.Conn) error {
		body, err := conn.ReadArchive(ctx, guestproto.ArchiveRead{FilePath: f.guest(), Format: string(format)})
		if err != nil {
			return err
		}
		defer body.Close() // it gives up what was not read
		return fn(body)
	})
}

// WriteArchive unpacks an archive into a directory, inside the sandbox. owner will own
// what is new, as in CopyFile. archive_refused names the entry at fault.
func (e *Engine) WriteArchive(ctx context.Context, f FileRef, format archive.Format, owner string, body io.Reader) (counts ringfence.ArchiveCounts, err error) {
	if err := validOwner("owner", owner); err != nil {
		return counts, err
	}
	defer e.changed(f, &err, ringfence.EventArchiveUnpacked, map[string]any{})
	err = e.call(ctx, f, func(conn *guestlink.Conn) error {
		got, err := conn.WriteArchive(ctx, guestproto.ArchiveWrite{FilePath: f.guest(), Format: string(format), Owner: owner}, body)
		counts = ringfence.ArchiveCounts(got)
		return hintFor(err, ringfence.CodeIsDirectory, "path", "remove the directory that is in a file's place, or unpack into another one")
	})
	return counts, err
}
