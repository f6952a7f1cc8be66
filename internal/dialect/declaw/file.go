package declaw

import (
	"errors"
	"io"
	"net/http"
	"path"
	"strconv"
	"strings"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/engine"
)

// maxLinks is how many links of one listing are followed to see what they lead to.
const maxLinks = 256

type entryBody struct {
	Name string `json:"name"`
	Path string `json:"path"`
	Type string `json:"type"`
	Size int64  `json:"size"`
}

type writtenBody struct {
	Path string `json:"path"`
	Size int64  `json:"size"`
}

// file names a file. Root acts: a user's name says whose a new file is, not who may write.
func (c *call) file(path string) engine.FileRef {
	return engine.FileRef{Project: c.who.Project, Sandbox: c.id(), Path: path}
}

func (c *call) queried() (engine.FileRef, string) {
	query := c.r.URL.Query()
	return c.file(query.Get("path")), orUser(query.Get("username"))
}

// entry describes a file in Declaw's words. There are files and directories: a link is
// what it leads to.
func (c *call) entry(info ringfence.FileInfo, follow bool) (entryBody, error) {
	out := entryBody{Name: clean([]byte(path.Base(info.Path))), Path: clean([]byte(info.Path)), Type: "file", Size: info.Size}
	directory := info.Type == ringfence.TypeDirectory
	if info.Type == ringfence.TypeSymlink && follow {
		_, _, err := c.Engine.ListFiles(c.ctx(), c.file(info.Path), engine.ListOptions{Depth: 1, Limit: 1})
		switch ringfence.CodeOf(err) {
		case "":
			directory = true
		case ringfence.CodeSandboxEnded, ringfence.CodeSandboxPaused, ringfence.CodeUnavailable, ringfence.CodeCanceled:
			return out, err
		}
	}
	if directory {
		out.Type, out.Size = "dir", 0
	}
	return out, nil
}

func (c *call) readFile() error {
	f, _ := c.queried()
	return c.Engine.ReadFile(c.ctx(), f, 0, 0, func(info ringfence.FileInfo, body io.Reader) error {
		kind := "text/plain; charset=utf-8"
		if strings.HasSuffix(c.r.URL.Path, "/raw") {
			kind = "application/octet-stream"
		}
		h := c.w.Header()
		h.Set("Content-Type", kind)
		h.Set("Content-Length", strconv.FormatInt(info.Size, 10))
		c.w.WriteHeader(http.StatusOK)
		_, err := io.Copy(c.w, body)
		return err
	})
}

func (c *call) write(f engine.FileRef, owner string, body io.Reader) (writtenBody, error) {
	info, err := c.Engine.WriteFile(c.ctx(), f, engine.WriteOptions{Owner: owner}, body)
	return writtenBody{clean([]byte(info.Path)), info.Size}, err
}

func (c *call) writeText() error {
	var in struct {
		Path     string `json:"path"`
		Data     string `json:"data"`
		Username string `json:"username"`
	}
	if err := c.decode(&in); err != nil {
		return err
	}
	out, err := c.write(c.file(in.Path), orUser(in.Username), strings.NewReader(in.Data))
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, out)
}

// body says in the caller's words when it does not come to its end.
type body struct{ io.Reader }

func (b body) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = ringfence.Errorf(ringfence.CodeInvalidArgument, "the body did not come to its end").WithCause(err)
	}
	return n, err
}

func (c *call) writeRaw() error {
	f, owner := c.queried()
	out, err := c.write(f, owner, body{c.r.Body})
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, out)
}

func (c *call) writeBatch() error {
	var in struct {
		Username string `json:"username"`
		Files    []struct {
			Path     string `json:"path"`
			Data     string `json:"data"`
			Username string `json:"username"`
		} `json:"files"`
	}
	if err := c.decode(&in); err != nil {
		return err
	}
	out := []writtenBody{}
	for _, f := range in.Files {
		owner := f.Username
		if owner == "" {
			owner = in.Username
		}
		written, err := c.write(c.file(f.Path), orUser(owner), strings.NewReader(f.Data))
		if err != nil {
			return err
		}
		out = append(out, written)
	}
	return c.reply(http.StatusOK, out)
}

func (c *call) listFiles() error {
	f, _ := c.queried()
	depth := 1
	if text := c.r.URL.Query().Get("depth"); text != "" {
		var err error
		if depth, err = strconv.Atoi(text); err != nil {
			return invalid("depth", "depth has to be a whole number")
		}
	}
	found, _, err := c.Engine.ListFiles(c.ctx(), f, engine.ListOptions{Depth: depth})
	if err != nil {
		return err
	}
	out := []entryBody{}
	links := 0
	for _, info := range found {
		if info.Type == ringfence.TypeSymlink {
			links++
		}
		e, err := c.entry(info, links <= maxLinks)
		if err != nil {
			return err
		}
		out = append(out, e)
	}
	return c.reply(http.StatusOK, out)
}

func (c *call) fileExists() error {
	f, _ := c.queried()
	exists, err := c.exists(f)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, map[string]bool{"exists": exists})
}

func (c *call) exists(f engine.FileRef) (bool, error) {
	_, err := c.Engine.StatFile(c.ctx(), f)
	switch ringfence.CodeOf(err) {
	case ringfence.CodeFileNotFound, ringfence.CodeNotDirectory:
		return false, nil
	}
	return err == nil, err
}

func (c *call) fileInfo() error {
	f, _ := c.queried()
	info, err := c.Engine.StatFile(c.ctx(), f)
	if err != nil {
		return err
	}
	out, err := c.entry(info, true)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, out)
}

func (c *call) removeFile() error {
	f, _ := c.queried()
	err := c.Engine.Remove(c.ctx(), f, true)
	if err != nil && ringfence.CodeOf(err) != ringfence.CodeFileNotFound {
		return err
	}
	return c.nothing()
}

func (c *call) renameFile() error {
	var in struct {
		OldPath  string `json:"old_path"`
		NewPath  string `json:"new_path"`
		Username string `json:"username"`
	}
	if err := c.decode(&in); err != nil {
		return err
	}
	if _, err := c.Engine.StatFile(c.ctx(), c.file(in.OldPath)); err != nil {
		return err // before directories are made for nothing
	}
	if in.NewPath == "" {
		return invalid("new_path", "new_path is needed")
	}
	if _, err := c.Engine.Mkdir(c.ctx(), c.file(path.Dir(in.NewPath)), orUser(in.Username), 0); err != nil {
		return err
	}
	info, err := c.Engine.Rename(c.ctx(), c.file(in.OldPath), in.NewPath)
	if err != nil {
		return err
	}
	out, err := c.entry(info, true)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, out)
}

func (c *call) makeDir() error {
	f, owner, err := c.pathAndOwner()
	if err != nil {
		return err
	}
	existed, err := c.exists(f)
	if err == nil {
		_, err = c.Engine.Mkdir(c.ctx(), f, owner, 0)
	}
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, map[string]bool{"created": !existed})
}

func (c *call) pathAndOwner() (engine.FileRef, string, error) {
	var in struct {
		Path     string `json:"path"`
		Username string `json:"username"`
	}
	err := c.decode(&in)
	return c.file(in.Path), orUser(in.Username), err
}

// watchDir says that a directory is there. The SDKs never ask what happens in it.
func (c *call) watchDir() error {
	f, _, err := c.pathAndOwner()
	if err == nil {
		_, _, err = c.Engine.ListFiles(c.ctx(), f, engine.ListOptions{Depth: 1, Limit: 1})
	}
	if err != nil {
		return err
	}
	return c.nothing()
}
