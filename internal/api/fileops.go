package api

import (
	"errors"
	"io"
	"net/http"
	"path"
	"strings"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/archive"
	"ringfence.dev/ringfence/internal/engine"
)

// fromTo is the part of a request that names two paths.
type fromTo struct {
	From       string `json:"from"`
	FromBase64 string `json:"from_base64"`
	To         string `json:"to"`
	ToBase64   string `json:"to_base64"`
}

func (f fromTo) paths() (from, to string, err error) {
	if from, err = pathOf("from", f.From, f.FromBase64); err != nil {
		return "", "", err
	}
	to, err = pathOf("to", f.To, f.ToBase64)
	return from, to, err
}

func (c *call) copyFile() error {
	var in struct {
		fromTo
		Recursive bool   `json:"recursive"`
		User      string `json:"user"`
		Owner     string `json:"owner"`
	}
	if err := c.decode(&in); err != nil {
		return err
	}
	from, to, err := in.paths()
	if err != nil {
		return err
	}
	info, err := c.Engine.CopyFile(c.r.Context(), c.file(from, in.User), to, in.Recursive, in.Owner)
	if err != nil {
		return fromField(err)
	}
	return c.reply(http.StatusOK, fileWire(info))
}

// fromField names the path of a call that has two by the name that its caller knows.
func fromField(err error) error {
	var e *ringfence.Error
	if errors.As(err, &e) && e.Field == "path" {
		e.Field, e.Message = "from", strings.Replace(e.Message, "path is", "from is", 1)
	}
	return err
}

func (c *call) changeMode() error {
	var in struct {
		Path       string `json:"path"`
		PathBase64 string `json:"path_base64"`
		Mode       string `json:"mode"`
		Owner      string `json:"owner"`
		Group      string `json:"group"`
		Recursive  bool   `json:"recursive"`
		User       string `json:"user"`
	}
	if err := c.decode(&in); err != nil {
		return err
	}
	path, err := pathOf("path", in.Path, in.PathBase64)
	if err != nil {
		return err
	}
	m := engine.ModeChange{Owner: in.Owner, Group: in.Group, Recursive: in.Recursive}
	if in.Mode != "" {
		bits := uint32(0)
		if strings.Trim(in.Mode, "0") != "" { // here 0 is a mode and not the absence of one
			if bits, err = mode(in.Mode); err != nil {
				return err
			}
		}
		m.Mode = &bits
	}
	info, err := c.Engine.ChangeMode(c.r.Context(), c.file(path, in.User), m)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, fileWire(info))
}

func (c *call) changeMetadata() error {
	var in struct {
		Path       string            `json:"path"`
		PathBase64 string            `json:"path_base64"`
		Set        map[string]string `json:"set"`
		Remove     []string          `json:"remove"`
		User       string            `json:"user"`
	}
	if err := c.decode(&in); err != nil {
		return err
	}
	path, err := pathOf("path", in.Path, in.PathBase64)
	if err != nil {
		return err
	}
	info, err := c.Engine.ChangeMetadata(c.r.Context(), c.file(path, in.User), in.Set, in.Remove)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, fileWire(info))
}

type matchBody struct {
	Path       string             `json:"path"`
	PathBase64 *string            `json:"path_base64,omitempty"`
	Type       ringfence.FileType `json:"type"`
	Line       int64              `json:"line,omitempty"`
	Column     int64              `json:"column,omitempty"`
	Text       *string            `json:"text,omitempty"`
}

const defaultMatches = 1000

func (c *call) searchFiles() error {
	f, err := c.fileRef()
	if err != nil {
		return err
	}
	s := engine.Search{Name: c.query.Get("name"), Content: c.query.Get("content")}
	if s.Regex, err = c.flag("regex", false); err != nil {
		return err
	}
	if s.IgnoreCase, err = c.flag("ignore_case", false); err != nil {
		return err
	}
	if s.Depth, err = c.number("depth", 0, 1, engine.MaxSearchDirLevels); err != nil {
		return err
	}
	if s.Limit, err = c.number("limit", defaultMatches, 1, engine.MaxSearchMatches); err != nil {
		return err
	}
	matches, truncated, err := c.Engine.SearchFiles(c.r.Context(), f, s)
	if err != nil {
		return err
	}
	out := struct {
		Matches   []matchBody `json:"matches"`
		Truncated bool        `json:"truncated"`
	}{make([]matchBody, 0, len(matches)), truncated}
	for _, m := range matches {
		b := matchBody{Type: m.Type, Line: m.Line, Column: m.Column}
		if b.Path, b.PathBase64 = text([]byte(m.Path)); m.Line > 0 {
			line := strings.ToValidUTF8(m.Text, "\uFFFD")
			b.Text = &line
		}
		out.Matches = append(out.Matches, b)
	}
	return c.reply(http.StatusOK, out)
}

func (c *call) checksumFile() error {
	f, err := c.fileRef()
	if err != nil {
		return err
	}
	algorithm := c.query.Get("algorithm")
	if algorithm == "" {
		algorithm = engine.Algorithms[0]
	}
	sum, err := c.Engine.Checksum(c.r.Context(), f, algorithm)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, struct {
		Algorithm string `json:"algorithm"`
		Checksum  string `json:"checksum"`
		Size      int64  `json:"size"`
		ETag      string `json:"etag"`
	}{sum.Algorithm, sum.Checksum, sum.Size, `"` + sum.ETag + `"`})
}

func (c *call) format() (archive.Format, error) {
	name := c.query.Get("format")
	format, ok := archive.ParseFormat(name)
	if !ok {
		return "", invalid("format", "there is no archive format %q", short(name)).WithHint("there are tar, tar.gz and zip")
	}
	return format, nil
}

func (c *call) readArchive() error {
	f, err := c.fileRef()
	if err != nil {
		return err
	}
	format, err := c.format()
	if err != nil {
		return err
	}
	return c.Engine.ReadArchive(c.r.Context(), f, format, func(body io.Reader) error {
		h := c.w.Header()
		h.Set("Content-Type", format.ContentType())
		h.Set("Content-Disposition", attachment(strings.Trim(path.Base(path.Clean(f.Path)), "/")+"."+string(format)))
		c.w.WriteHeader(http.StatusOK)
		if c.r.Method == http.MethodHead {
			return nil
		}
		_, err := io.Copy(c.w, body)
		return err
	})
}

func (c *call) writeArchive() error {
	f, err := c.fileRef()
	if err != nil {
		return err
	}
	format, err := c.format()
	if err != nil {
		return err
	}
	body := c.body(c.r.Body)
	counts, err := c.Engine.WriteArchive(c.r.Context(), f, format, c.query.Get("owner"), uploadBody{body})
	if err != nil {
		return err
	}
	body.done()
	return c.reply(http.StatusOK, struct {
		Files       int64 `json:"files"`
		Directories int64 `json:"directories"`
		Bytes       int64 `json:"bytes"`
	}(counts))
}
