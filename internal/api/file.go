package api

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/engine"
)

type fileBody struct {
	Path       string             `json:"path"`
	Name       string             `json:"name"`
	Type       ringfence.FileType `json:"type"`
	Size       int64              `json:"size"`
	Mode       string             `json:"mode"`
	UID        uint32             `json:"uid"`
	GID        uint32             `json:"gid"`
	Owner      string             `json:"owner"`
	Group      string             `json:"group"`
	ModifiedAt *string            `json:"modified_at"`
	Target     *string            `json:"target"`
	ETag       string             `json:"etag"`
	PathBase64 *string            `json:"path_base64,omitempty"`
	Metadata   map[string]string  `json:"metadata,omitempty"`
}

func fileWire(i ringfence.FileInfo) fileBody {
	out := fileBody{
		Name: path.Base(i.Path), Type: i.Type, Size: i.Size, Mode: fmt.Sprintf("%04o", i.Mode),
		UID: i.UID, GID: i.GID, Owner: i.Owner, Group: i.Group, ModifiedAt: wireTime(i.ModifiedAt),
		ETag: etag(i), Metadata: i.Metadata,
	}
	out.Path, out.PathBase64 = text([]byte(i.Path))
	out.Name, _ = text([]byte(out.Name))
	target, _ := text([]byte(i.Target))
	out.Target = null(target)
	return out
}

// fileRef reads which file the query names.
func (c *call) fileRef() (engine.FileRef, error) {
	path, err := pathOf("path", c.query.Get("path"), c.query.Get("path_base64"))
	return c.file(path, c.query.Get("user")), err
}

// file names a file of the sandbox in the request's path.
func (c *call) file(path, user string) engine.FileRef {
	return engine.FileRef{Project: c.who.Project, Sandbox: c.r.PathValue("id"), Path: path, User: user}
}

// pathOf returns the bytes of a path that is given as text, or in base64 when it is none.
func pathOf(field, text, encoded string) (string, error) {
	switch {
	case encoded == "" && !utf8.ValidString(text):
		return "", invalid(field, "%s is not UTF-8", field).WithHint("give the bytes in %s_base64", field)
	case encoded == "":
		return text, nil
	case text != "":
		return "", invalid(field+"_base64", "exactly one of %s and %s_base64 is needed", field, field)
	}
	raw, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return "", invalid(field+"_base64", "%s_base64 is not base64", field)
	}
	return string(raw), nil
}

// mode reads permission bits in octal. Empty: 0.
func mode(s string) (uint32, error) {
	if s == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(s, 8, 32)
	if err != nil || n > 0o7777 || n == 0 {
		return 0, invalid("mode", "mode is %q, and has to be permission bits in octal, such as 0644", short(s))
	}
	return uint32(n), nil
}

func (c *call) statFile() error {
	f, err := c.fileRef()
	if err != nil {
		return err
	}
	info, err := c.Engine.StatFile(c.r.Context(), f)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, fileWire(info))
}

func (c *call) listFiles() error {
	f, err := c.fileRef()
	if err != nil {
		return err
	}
	o := engine.ListOptions{}
	if o.Depth, err = c.number("depth", 1, 1, engine.MaxListDepth); err != nil {
		return err
	}
	if o.Limit, err = c.number("limit", 0, 1, engine.MaxListPage); err != nil {
		return err
	}
	if o.Metadata, err = c.flag("metadata", false); err != nil {
		return err
	}
	if cursor := c.query.Get("cursor"); cursor != "" {
		after, err := base64.RawURLEncoding.DecodeString(cursor)
		if err != nil {
			return invalid("cursor", "the cursor is none that this API gave")
		}
		if o.After = string(after); o.Limit == 0 {
			o.Limit = defaultEntries
		}
	}
	entries, more, err := c.Engine.ListFiles(c.r.Context(), f, o)
	if err != nil {
		return err
	}
	out := struct {
		Entries    []fileBody `json:"entries"`
		NextCursor *string    `json:"next_cursor"`
	}{Entries: make([]fileBody, 0, len(entries))}
	for _, e := range entries {
		out.Entries = append(out.Entries, fileWire(e))
	}
	if more {
		out.NextCursor = null(base64.RawURLEncoding.EncodeToString([]byte(entries[len(entries)-1].Path)))
	}
	return c.reply(http.StatusOK, out)
}

// defaultEntries is how many entries come after a cursor when no limit is given.
const defaultEntries = 1000

func (c *call) makeDir() error {
	var in struct {
		Path       string `json:"path"`
		PathBase64 string `json:"path_base64"`
		User       string `json:"user"`
		Owner      string `json:"owner"`
		Mode       string `json:"mode"`
	}
	if err := c.decode(&in); err != nil {
		return err
	}
	path, err := pathOf("path", in.Path, in.PathBase64)
	if err != nil {
		return err
	}
	bits, err := mode(in.Mode)
	if err != nil {
		return err
	}
	info, err := c.Engine.Mkdir(c.r.Context(), c.file(path, in.User), in.Owner, bits)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, fileWire(info))
}

func (c *call) renameFile() error {
	var in struct {
		fromTo
		User string `json:"user"`
	}
	if err := c.decode(&in); err != nil {
		return err
	}
	from, to, err := in.paths()
	if err != nil {
		return err
	}
	info, err := c.Engine.Rename(c.r.Context(), c.file(from, in.User), to)
	if err != nil {
		return fromField(err)
	}
	return c.reply(http.StatusOK, fileWire(info))
}

func (c *call) removeFile() error {
	f, err := c.fileRef()
	if err != nil {
		return err
	}
	recursive, err := c.flag("recursive", false)
	if err != nil {
		return err
	}
	if err := c.Engine.Remove(c.r.Context(), f, recursive); err != nil {
		return err
	}
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

func (c *call) writeFile() error {
	f, err := c.fileRef()
	if err != nil {
		return err
	}
	bits, err := mode(c.query.Get("mode"))
	if err != nil {
		return err
	}
	o := engine.WriteOptions{Owner: c.query.Get("owner"), Mode: bits}
	if o.IfMatch, o.Create, err = c.writeCondition(); err != nil {
		return err
	}
	body := c.body(c.r.Body)
	info, err := c.Engine.WriteFile(c.r.Context(), f, o, uploadBody{body})
	if err != nil {
		return err
	}
	body.done()
	return c.reply(http.StatusOK, fileWire(info))
}

// writeCondition reads on what a write depends.
func (c *call) writeCondition() (ifMatch string, create bool, err error) {
	match, none := c.r.Header.Get("If-Match"), c.r.Header.Get("If-None-Match")
	switch {
	case none != "" && none != "*":
		return "", false, invalid("If-None-Match", "a write takes `If-None-Match: *` alone, which makes a new file only")
	case none != "" && match != "":
		return "", false, invalid("If-Match", "a write takes If-Match or If-None-Match, not both")
	case match == "":
		return "", none == "*", nil
	}
	tag, ok := strings.CutPrefix(match, `"`)
	tag, end := strings.CutSuffix(tag, `"`)
	if !ok || !end || strings.Contains(tag, `"`) || tag == "" {
		return "", false, invalid("If-Match", "If-Match has to be one etag in double quotes")
	}
	return tag, false, nil
}

// uploadForm writes what a form of a web page uploads: the first file of it.
func (c *call) uploadForm() error {
	f, err := c.fileRef()
	if err != nil {
		return err
	}
	parts, err := c.r.MultipartReader()
	if err != nil {
		return ringfence.Errorf(ringfence.CodeInvalidArgument, "the body is no form with files").
			WithHint("send multipart/form-data, or the bytes of the file with PUT")
	}
	for {
		_ = c.w.control.SetReadDeadline(time.Now().Add(stall))
		part, err := parts.NextPart()
		if errors.Is(err, io.EOF) {
			return ringfence.Errorf(ringfence.CodeInvalidArgument, "the form holds no file")
		}
		if err != nil {
			return ringfence.Errorf(ringfence.CodeInvalidArgument, "the body did not come to its end").WithCause(err)
		}
		if part.FileName() == "" {
			continue
		}
		body := c.body(part)
		info, err := c.Engine.WriteFile(c.r.Context(), f, engine.WriteOptions{}, uploadBody{body})
		if err != nil {
			return err
		}
		body.done()
		return c.reply(http.StatusOK, fileWire(info))
	}
}

// uploadBody says what went wrong in the caller's words.
type uploadBody struct{ io.Reader }

func (b uploadBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = ringfence.Errorf(ringfence.CodeInvalidArgument, "the body did not come to its end").WithCause(err)
	}
	return n, err
}
