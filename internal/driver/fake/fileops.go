package fake

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/archive"
	"ringfence.dev/ringfence/internal/guestproto"
)

// lineWriter sends values, one a line.
type lineWriter struct {
	c        *call
	position uint64
}

func (w *lineWriter) put(v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(line, '\n'))
	return err
}

func (w *lineWriter) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	err := w.c.data(guestproto.TypeData, w.position, bytes.Clone(p))
	w.position += uint64(len(p))
	return len(p), err
}

func (c *call) fileMode(req guestproto.Open) (any, error) {
	var f guestproto.FileMode
	if err := params(req, &f); err != nil {
		return nil, err
	}
	name, u, err := pathOf(f.FilePath)
	if err != nil {
		return nil, err
	}
	owner, err := ownerOf(u, f.Owner)
	if err != nil {
		return nil, err
	}
	t := c.s.g.files
	t.mu.Lock()
	defer t.mu.Unlock()
	n, err := t.walk(u, name, true)
	if err != nil {
		return nil, err
	}
	var change func(n *node)
	change = func(n *node) {
		if f.Mode != nil && n.kind != kindLink {
			n.mode = *f.Mode
		}
		if f.Owner != "" {
			n.uid = owner.uid
		}
		if f.Recursive {
			for _, e := range n.entries {
				change(e)
			}
		}
	}
	change(n)
	return describe(clean(name), n), nil
}

func (c *call) fileCopy(req guestproto.Open) (any, error) {
	var f guestproto.FileCopy
	if err := params(req, &f); err != nil {
		return nil, err
	}
	from, u, err := pathOf(f.FilePath)
	if err != nil {
		return nil, err
	}
	to := f.To
	if len(f.ToBytes) > 0 {
		to = string(f.ToBytes)
	}
	owner, err := ownerOf(u, f.Owner)
	if err != nil {
		return nil, err
	}
	t := c.s.g.files
	t.mu.Lock()
	defer t.mu.Unlock()
	n, err := t.walk(u, from, false)
	if err != nil {
		return nil, err
	}
	if n.kind == kindDir && !f.Recursive {
		return nil, isDir(from)
	}
	parent, name, err := t.parent(u, to, &owner)
	if err != nil {
		return nil, err
	}
	if old := parent.entries[name]; old != nil && (n.kind == kindDir || old.kind == kindDir) {
		return nil, ringfence.Errorf(ringfence.CodeFileExists, "%s exists", to).WithField("to")
	}
	if err := t.charge(n.size()); err != nil {
		return nil, err
	}
	var double func(n *node) *node
	double = func(n *node) *node {
		d := &node{kind: n.kind, mode: n.mode, uid: owner.uid, gid: owner.gid, modified: time.Now(), data: bytes.Clone(n.data), target: n.target}
		if n.kind == kindDir {
			d.entries = map[string]*node{}
			for name, e := range n.entries {
				d.entries[name] = double(e)
			}
		}
		return d
	}
	parent.entries[name] = double(n)
	return describe(clean(to), parent.entries[name]), nil
}

func (c *call) fileSearch(req guestproto.Open) (any, error) {
	var f guestproto.FileSearch
	if err := params(req, &f); err != nil {
		return nil, err
	}
	name, u, err := pathOf(f.FilePath)
	if err != nil {
		return nil, err
	}
	expr := f.Content
	if !f.Regex {
		expr = regexp.QuoteMeta(expr)
	}
	if f.IgnoreCase {
		expr = "(?i)" + expr
	}
	content, err := regexp.Compile(expr)
	if err != nil {
		return nil, ringfence.Errorf(ringfence.CodeInvalidArgument, "the regular expression cannot be read: %v", err).WithField("content")
	}
	depth := f.Depth
	if depth == 0 {
		depth = 1000
	}
	entries, err := c.s.g.files.list(u, name, depth)
	if err != nil {
		return nil, err
	}
	w, left := &lineWriter{c: c}, f.Limit
	for _, e := range entries {
		if ok, _ := path.Match(f.Name, path.Base(e.Path)); !ok && f.Name != "" {
			continue
		}
		found := []guestproto.FileMatch{{Path: e.Path, PathBytes: e.PathBytes, Type: e.Type}}
		if f.Content != "" {
			found = nil
			_, data, err := c.s.g.files.read(u, e.Path)
			if err != nil {
				continue
			}
			for i, line := range strings.Split(strings.TrimSuffix(string(data), "\n"), "\n") {
				if at := content.FindStringIndex(line); at != nil {
					found = append(found, guestproto.FileMatch{Path: e.Path, PathBytes: e.PathBytes, Type: e.Type, Line: int64(i) + 1, Column: int64(at[0]) + 1, Text: line})
				}
			}
		}
		for _, m := range found {
			if left--; left < 0 {
				return guestproto.FileSearched{Truncated: true}, nil
			}
			if err := w.put(m); err != nil {
				return nil, err
			}
		}
	}
	return guestproto.FileSearched{}, nil
}

func (c *call) fileChecksum(req guestproto.Open) (any, error) {
	var f guestproto.FileChecksum
	if err := params(req, &f); err != nil {
		return nil, err
	}
	name, u, err := pathOf(f.FilePath)
	if err != nil {
		return nil, err
	}
	if f.Algorithm != "sha256" {
		return nil, ringfence.Errorf(ringfence.CodeNotYetSupported, "the fake agent knows sha256 alone").WithField("algorithm")
	}
	info, data, err := c.s.g.files.read(u, name)
	sum := sha256.Sum256(data)
	return guestproto.FileSum{Checksum: hex.EncodeToString(sum[:]), Size: int64(len(data)), ETag: info.ETag}, err
}

func (c *call) fileMetadata(req guestproto.Open) (any, error) {
	var f guestproto.FileMetadata
	if err := params(req, &f); err != nil {
		return nil, err
	}
	name, u, err := pathOf(f.FilePath)
	if err != nil {
		return nil, err
	}
	t := c.s.g.files
	t.mu.Lock()
	defer t.mu.Unlock()
	n, err := t.walk(u, name, true)
	if err != nil {
		return nil, err
	}
	if n.metadata == nil {
		n.metadata = map[string]string{}
	}
	maps.Copy(n.metadata, f.Set)
	for _, key := range f.Remove {
		delete(n.metadata, key)
	}
	return describe(clean(name), n), nil
}

// watchEvery is how often the fake looks whether something changed: it has no kernel
// that would tell.
const watchEvery = 10 * time.Millisecond

func (c *call) fileWatch(req guestproto.Open) error {
	var f guestproto.FileWatch
	if err := params(req, &f); err != nil {
		return err
	}
	name, u, err := pathOf(f.FilePath)
	if err != nil {
		return err
	}
	depth := 1
	if f.Recursive {
		depth = 1000
	}
	look := func() (map[string]guestproto.FileInfo, error) {
		seen := map[string]guestproto.FileInfo{}
		info, err := c.s.g.files.stat(u, name)
		if err != nil {
			return nil, err
		}
		if info.Type != "directory" {
			seen[info.Path] = info
			return seen, nil
		}
		entries, err := c.s.g.files.list(u, name, depth)
		for _, e := range entries {
			seen[e.Path] = e
		}
		return seen, err
	}
	before, err := look()
	if err != nil {
		return err
	}
	c.event(struct{}{})
	w := &lineWriter{c: c}
	for tick := time.NewTicker(watchEvery); ; {
		select {
		case <-c.done:
			tick.Stop()
			return errCanceled
		case <-tick.C:
		}
		after, err := look()
		if err != nil {
			tick.Stop()
			return nil // what was watched is gone
		}
		for _, p := range slices.Sorted(maps.Keys(before)) {
			if _, ok := after[p]; !ok {
				w.put(guestproto.FileChange{Type: guestproto.ChangeRemove, Path: p, IsDir: before[p].Type == "directory"}) // an error is seen above
			}
		}
		for _, p := range slices.Sorted(maps.Keys(after)) {
			change := guestproto.FileChange{Path: p, IsDir: after[p].Type == "directory", Type: guestproto.ChangeModify}
			if old, ok := before[p]; !ok {
				change.Type = guestproto.ChangeCreate
			} else if old.ETag == after[p].ETag || change.IsDir {
				continue
			}
			w.put(change) // likewise
		}
		before = after
	}
}

func (c *call) archiveRead(req guestproto.Open) error {
	var f guestproto.ArchiveRead
	if err := params(req, &f); err != nil {
		return err
	}
	name, u, err := pathOf(f.FilePath)
	if err != nil {
		return err
	}
	entries, err := c.s.g.files.list(u, name, 1000)
	if err != nil {
		return err
	}
	c.event(struct{}{})
	w := archive.NewWriter(archive.Format(f.Format), &lineWriter{c: c})
	for _, i := range entries {
		e := &archive.Entry{Name: strings.TrimPrefix(strings.TrimPrefix(i.Path, clean(name)), "/"), Mode: i.Mode, ModTime: time.UnixMicro(i.ModTime), Target: i.Target}
		var data []byte
		switch i.Type {
		case "directory":
			e.Kind = archive.Dir
		case "symlink":
			e.Kind = archive.Symlink
		default:
			if _, data, err = c.s.g.files.read(u, i.Path); err != nil {
				return err
			}
			e.Size = int64(len(data))
		}
		if err := w.Add(e, bytes.NewReader(data)); err != nil {
			return err
		}
	}
	return w.Close()
}

func (c *call) archiveWrite(req guestproto.Open) (any, error) {
	var f guestproto.ArchiveWrite
	if err := params(req, &f); err != nil {
		return nil, err
	}
	name, u, err := pathOf(f.FilePath)
	if err != nil {
		return nil, err
	}
	t := c.s.g.files
	if _, err := t.mkdir(u, name, f.Owner, 0); err != nil {
		return nil, err
	}
	var got guestproto.ArchiveWritten
	add := func(e *archive.Entry, content io.Reader) error {
		at := clean(name) + "/" + e.Name
		switch e.Kind {
		case archive.Dir:
			got.Directories++
			_, err := t.mkdir(u, at, f.Owner, e.Mode)
			return err
		case archive.File:
			data, err := io.ReadAll(content)
			if err != nil {
				return err
			}
			got.Files++
			got.Bytes += int64(len(data))
			_, err = t.write(u, at, data, guestproto.FileWrite{Owner: f.Owner, Mode: e.Mode})
			return err
		}
		return ringfence.Errorf(ringfence.CodeNotYetSupported, "the fake agent unpacks no links")
	}
	if format := archive.Format(f.Format); format != archive.Zip {
		return &got, archive.Read(format, c, archive.Limits{}, add)
	}
	data, err := io.ReadAll(io.LimitReader(c, t.limit))
	if err == nil {
		err = archive.ReadZip(bytes.NewReader(data), int64(len(data)), archive.Limits{}, add)
	}
	return got, err
}
