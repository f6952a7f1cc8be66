package superserve

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"path"
	"strconv"
	"strings"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/archive"
	"ringfence.dev/ringfence/internal/dialect"
	"ringfence.dev/ringfence/internal/engine"
)

func (c *call) file() engine.FileRef {
	return engine.FileRef{Project: c.who.Project, Sandbox: c.sandbox, Path: c.r.URL.Query().Get("path")}
}

// readFile answers with a file, with a directory as a zip archive, or with its list.
func (c *call) readFile() error {
	f := c.file()
	switch format := c.r.URL.Query().Get("format"); format {
	case "":
		return c.sendFile(f)
	case "json":
		return c.listFiles()
	case "zip":
		info, err := c.Engine.StatFile(c.r.Context(), f)
		if err == nil && info.Type == ringfence.TypeDirectory {
			return c.sendZip(f)
		}
		if err != nil {
			return err
		}
		return c.sendFile(f) // a link to a directory is refused there
	default:
		return invalid("format", "there is no format %q", cut(format)).WithHint("there are zip and json")
	}
}

func (c *call) sendFile(f engine.FileRef) error {
	return c.Engine.ReadFile(c.r.Context(), f, 0, 0, func(info ringfence.FileInfo, body io.Reader) error {
		c.w.Header().Set("Content-Type", "application/octet-stream")
		length, body, err := engine.ContentLength(info.Size, body)
		if err != nil {
			return err
		}
		if length >= 0 {
			c.w.Header().Set("Content-Length", strconv.FormatInt(length, 10))
		}
		c.w.WriteHeader(http.StatusOK)
		n, err := io.Copy(c.w, body)
		if err == nil && length >= 0 && n != length {
			err = ringfence.Errorf(ringfence.CodeUnavailable, "the file changed while it was read")
		}
		return err
	})
}

// sendZip sends a directory without its links, below its own name.
func (c *call) sendZip(f engine.FileRef) error {
	base := path.Base(path.Clean(f.Path))
	if base == "/" {
		base = "root"
	}
	return c.Engine.ReadArchive(c.r.Context(), f, archive.Tar, func(body io.Reader) error {
		c.w.Header().Set("Content-Type", "application/zip")
		out := bufio.NewWriterSize(c.w, 64<<10)
		zip := archive.NewWriter(archive.Zip, out)
		err := zip.Add(&archive.Entry{Name: base, Kind: archive.Dir, Mode: 0o755}, nil)
		if err == nil {
			// Not hostile to who unpacks it: names stay below the directory, and there are no links.
			err = archive.Read(archive.Tar, body, archive.Limits{LeadsOut: func(*archive.Entry) {}}, func(e *archive.Entry, content io.Reader) error {
				if e.Kind != archive.File && e.Kind != archive.Dir {
					return nil
				}
				e.Name = base + "/" + e.Name
				return zip.Add(e, content)
			})
		}
		return errors.Join(err, zip.Close(), out.Flush())
	})
}

type entryBody struct {
	Name     string `json:"name"`
	IsDir    bool   `json:"is_dir"`
	Size     int64  `json:"size"`
	Modified int64  `json:"modified_unix"`
}

func (c *call) listFiles() error {
	entries, _, err := c.Engine.ListFiles(c.r.Context(), c.file(), engine.ListOptions{Depth: 1})
	if err != nil {
		return err
	}
	out := struct {
		Entries []entryBody `json:"entries"`
	}{Entries: []entryBody{}}
	for _, e := range entries {
		out.Entries = append(out.Entries, entryBody{
			Name: strings.ToValidUTF8(path.Base(e.Path), "\uFFFD"), IsDir: e.Type == ringfence.TypeDirectory, Size: e.Size, Modified: e.ModifiedAt.Unix(),
		})
	}
	return dialect.Reply(c.w, http.StatusOK, out)
}

// writeFile replaces a file with the body, and makes its directories.
func (c *call) writeFile() error {
	f := c.file()
	switch first, _, _ := strings.Cut(strings.TrimPrefix(path.Clean(f.Path), "/"), "/"); first {
	case "", "proc", "sys", "dev":
		return invalid("path", "path is %q, which is not for files", cut(f.Path))
	}
	info, err := c.Engine.WriteFile(c.r.Context(), f, engine.WriteOptions{}, upload{c.r.Body})
	if err != nil {
		return err
	}
	return dialect.Reply(c.w, http.StatusOK, map[string]any{"path": f.Path, "size": info.Size})
}

// upload says in the caller's words that a body broke off.
type upload struct{ io.Reader }

func (u upload) Read(p []byte) (int, error) {
	n, err := u.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = ringfence.Errorf(ringfence.CodeInvalidArgument, "the body did not come to its end").WithCause(err)
	}
	return n, err
}
