package guestlink

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"unicode/utf8"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/guestproto"
)

// What bounds a guest's answers about files, in bytes.
const (
	maxETag     = 128
	maxMetadata = 256 << 10
	maxText     = 4 << 10
)

// ChangeMode changes the permissions or the owner of a file.
func (c *Conn) ChangeMode(ctx context.Context, f guestproto.FileMode) (guestproto.FileInfo, error) {
	encodePath(&f.FilePath)
	return c.infoCall(ctx, guestproto.MethodFileMode, f)
}

// CopyFile copies a file or a directory.
func (c *Conn) CopyFile(ctx context.Context, f guestproto.FileCopy) (guestproto.FileInfo, error) {
	encodePath(&f.FilePath)
	if f.ToBytes = nil; !utf8.ValidString(f.To) {
		f.ToBytes = []byte(f.To)
	}
	return c.infoCall(ctx, guestproto.MethodFileCopy, f)
}

// ChangeMetadata changes a file's metadata.
func (c *Conn) ChangeMetadata(ctx context.Context, f guestproto.FileMetadata) (guestproto.FileInfo, error) {
	encodePath(&f.FilePath)
	return c.infoCall(ctx, guestproto.MethodFileMetadata, f)
}

// Checksum returns the checksum of a file. It is the guest's word.
func (c *Conn) Checksum(ctx context.Context, f guestproto.FileChecksum) (guestproto.FileSum, error) {
	encodePath(&f.FilePath)
	var sum guestproto.FileSum
	if err := c.call(ctx, guestproto.MethodFileChecksum, f, &sum); err != nil {
		return sum, err
	}
	if raw, err := hex.DecodeString(sum.Checksum); err != nil || len(raw) > 64 || sum.Size < 0 || !validETag(sum.ETag) {
		return guestproto.FileSum{}, badAnswer(errors.New("a checksum that is none"))
	}
	return sum, nil
}

// SearchFiles calls each for what a search finds, and reports whether there is more
// than was asked for. An error of each ends it and is returned.
func (c *Conn) SearchFiles(ctx context.Context, f guestproto.FileSearch, each func(guestproto.FileMatch) error) (truncated bool, err error) {
	encodePath(&f.FilePath)
	var end guestproto.FileSearched
	err = c.linesAnd(ctx, guestproto.MethodFileSearch, f, &end, nil, func(line []byte) error {
		var m guestproto.FileMatch
		if err := json.Unmarshal(line, &m); err != nil {
			return badAnswer(err)
		}
		if len(m.PathBytes) > 0 {
			m.Path, m.PathBytes = string(m.PathBytes), nil
		}
		if !validName(m.Path) || !validType(m.Type) || m.Line < 0 || m.Column < 0 || len(m.Text) > maxText {
			return badAnswer(errors.New("a match that is out of bounds"))
		}
		return each(m)
	})
	return end.Truncated, err
}

// WatchFiles calls ready when the guest watches, and each for every change. It returns
// nil when what was watched is gone. An error of either ends it and is returned.
func (c *Conn) WatchFiles(ctx context.Context, f guestproto.FileWatch, ready func() error, each func(guestproto.FileChange) error) error {
	encodePath(&f.FilePath)
	return c.linesAnd(ctx, guestproto.MethodFileWatch, f, nil, ready, func(line []byte) error {
		var change guestproto.FileChange
		if err := json.Unmarshal(line, &change); err != nil {
			return badAnswer(err)
		}
		if len(change.PathBytes) > 0 {
			change.Path, change.PathBytes = string(change.PathBytes), nil
		}
		ok := validName(change.Path)
		switch change.Type {
		case guestproto.ChangeOverflow:
			ok, change.Path = true, ""
		case guestproto.ChangeCreate, guestproto.ChangeModify, guestproto.ChangeRemove, guestproto.ChangeRenameFrom,
			guestproto.ChangeRenameTo, guestproto.ChangeAttrib:
		default:
			ok = false
		}
		if !ok {
			return badAnswer(errors.New("a change that is none"))
		}
		return each(change)
	})
}

// ReadArchive opens a directory as an archive, in the format that the guest was asked
// for and whose bytes are the guest's. The reader is as that of ReadFile.
func (c *Conn) ReadArchive(ctx context.Context, f guestproto.ArchiveRead) (io.ReadCloser, error) {
	encodePath(&f.FilePath)
	ch, err := c.open(ctx, guestproto.MethodArchiveRead, f)
	if err != nil {
		return nil, err
	}
	it, err := ch.recv(ctx)
	if err == nil {
		switch it.typ {
		case guestproto.TypeEvent:
			it.buf.release()
		case guestproto.TypeResult:
			if err = it.result(nil); err == nil {
				err = badAnswer(errors.New("a result before the archive"))
			}
		default:
			it.buf.release()
			err = badAnswer(errors.New("data before the archive"))
		}
	}
	if err != nil {
		ch.cancel(err)
		return nil, err
	}
	return &fileReader{ctx: ctx, ch: ch}, nil
}

// WriteArchive unpacks what r gives. When r fails, what was unpacked by then stays, and
// r's error is returned.
func (c *Conn) WriteArchive(ctx context.Context, f guestproto.ArchiveWrite, r io.Reader) (guestproto.ArchiveWritten, error) {
	encodePath(&f.FilePath)
	ch, err := c.callFrom(ctx, guestproto.MethodArchiveWrite, f, r)
	if err != nil {
		return guestproto.ArchiveWritten{}, err
	}
	var got guestproto.ArchiveWritten
	if err := ch.await(ctx, &got); err != nil {
		return guestproto.ArchiveWritten{}, err
	}
	if got.Files < 0 || got.Directories < 0 || got.Bytes < 0 {
		return guestproto.ArchiveWritten{}, badAnswer(errors.New("an archive of fewer than no files"))
	}
	return got, nil
}

func validName(p string) bool {
	return strings.HasPrefix(p, "/") && len(p) <= 2*ringfence.MaxPathBytes
}

func validType(t string) bool {
	switch t {
	case "file", "directory", "symlink", "other":
		return true
	}
	return false
}

// validETag reports whether a guest's etag can stand in a header as it is.
func validETag(tag string) bool {
	if len(tag) > maxETag {
		return false
	}
	for i := range len(tag) {
		if c := tag[i]; c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z') {
			return false
		}
	}
	return true
}

func validMetadata(m map[string]string) bool {
	total := 0
	for k, v := range m {
		total += len(k) + len(v)
	}
	return total <= maxMetadata
}
