package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
)

// Write makes or replaces a file with what r holds, and makes its parents. The file
// is replaced at once when all bytes are there: a reader sees the old or the new one,
// and a write that fails leaves the old one. It is never sent twice.
//
// Errors: invalid_argument, is_directory, file_permission, disk_full, too_large, precondition_failed.
func (f Files) Write(ctx context.Context, path string, r io.Reader, o WriteOptions) (FileInfo, error) {
	query := f.query(path)
	if o.Owner != "" {
		query.Set("owner", o.Owner)
	}
	if o.Mode != 0 {
		query.Set("mode", formatMode(o.Mode))
	}
	watched := &source{r: r}
	req := request{method: http.MethodPut, path: f.s.path("/files"), query: query, stream: r, size: sizeOf(r), what: "write a file", header: http.Header{}}
	if o.IfMatch != "" {
		req.header.Set("If-Match", o.IfMatch)
	}
	if o.CreateOnly {
		req.header.Set("If-None-Match", "*")
	}
	if req.size < 0 {
		req.stream = watched // else the reader itself, which the kernel may copy from
	}
	var w wireFile
	if err := f.s.c.call(ctx, req, &w); err != nil {
		if watched.err != nil && ctx.Err() == nil {
			return FileInfo{}, fmt.Errorf("cannot read what was to be written: %w", watched.err)
		}
		return FileInfo{}, err
	}
	return w.info()
}

// source remembers a reader's own error, which would look like a broken connection.
type source struct {
	r   io.Reader
	err error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

// sizeOf returns how many bytes r still holds, or −1 if that is not known.
func sizeOf(r io.Reader) int64 {
	switch r := r.(type) {
	case *bytes.Reader:
		return int64(r.Len())
	case *bytes.Buffer:
		return int64(r.Len())
	case *strings.Reader:
		return int64(r.Len())
	case *io.SectionReader:
		if at, err := r.Seek(0, io.SeekCurrent); err == nil {
			return max(r.Size()-at, 0)
		}
	case *io.LimitedReader:
		if inner := sizeOf(r.R); inner >= 0 {
			return min(inner, r.N)
		}
	case *os.File:
		info, err := r.Stat()
		if err != nil || !info.Mode().IsRegular() {
			return -1
		}
		at, err := r.Seek(0, io.SeekCurrent)
		if err != nil || at > info.Size() || info.Size() == 0 {
			return -1 // files in /proc have bytes and no size
		}
		return info.Size() - at
	}
	return -1
}

// FileData is one file to write.
type FileData struct {
	Path string
	Data io.Reader
	WriteOptions
}

// WriteMany writes files one after the other and returns what they became. It stops
// at the first error; the files before it are written and returned.
func (f Files) WriteMany(ctx context.Context, files []FileData) ([]FileInfo, error) {
	written := make([]FileInfo, 0, len(files))
	for _, file := range files {
		info, err := f.Write(ctx, file.Path, file.Data, file.WriteOptions)
		if err != nil {
			return written, err
		}
		written = append(written, info)
	}
	return written, nil
}
