package fake

import (
	"fmt"
	"maps"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/guestproto"
)

type kind byte

const (
	kindFile kind = iota
	kindDir
	kindLink
)

// maxName is the longest name of a file, in bytes.
const maxName = 255

// node is a file, a directory or a symbolic link.
type node struct {
	kind     kind
	mode     uint32
	uid, gid uint32
	modified time.Time
	data     []byte           // only ever grows in place: readers hold parts of it
	entries  map[string]*node // of a directory
	target   string           // of a link
	metadata map[string]string
}

// tree is a file system with a size.
type tree struct {
	limit int64
	used  atomic.Int64

	mu   sync.Mutex
	root *node // all nodes are guarded by mu
}

func newTree(limit int64) *tree {
	t := &tree{limit: limit, root: newDir(rootUser, 0o755)}
	add := func(path string, n *node) {
		dir, name := split(path)
		d, _ := t.walk(rootUser, dir, true)
		d.entries[name] = n
	}
	for _, p := range []string{"/bin", "/etc", "/home", "/root", "/usr", "/usr/bin", "/var", "/dev"} {
		add(p, newDir(rootUser, 0o755))
	}
	add("/tmp", newDir(rootUser, 0o1777))
	add("/home/user", newDir(users[1], 0o755))
	add("/workspace", newDir(users[1], 0o755))
	passwd := "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n"
	add("/etc/passwd", &node{mode: 0o644, modified: time.Now(), data: []byte(passwd)})
	return t
}

func newDir(u user, mode uint32) *node {
	return &node{kind: kindDir, mode: mode, uid: u.uid, gid: u.gid, modified: time.Now(), entries: map[string]*node{}}
}

// split cuts a clean path into its directory and last name.
func split(path string) (dir, name string) {
	path = strings.TrimRight(path, "/")
	i := strings.LastIndexByte(path, '/')
	return path[:i+1], path[i+1:]
}

func missing(path string) error {
	return ringfence.Errorf(ringfence.CodeFileNotFound, "%s: no such file or directory", path).WithField("path")
}

func denied(path string) error {
	return ringfence.Errorf(ringfence.CodeFilePermission, "%s: permission denied", path).WithField("path")
}

func notDir(path string) error {
	return ringfence.Errorf(ringfence.CodeNotDirectory, "%s: not a directory", path).WithField("path")
}

func isDir(path string) error {
	return ringfence.Errorf(ringfence.CodeIsDirectory, "%s: is a directory", path).WithField("path")
}

// may reports whether u has all of want (4 read, 2 write, 1 search) on n.
func (n *node) may(u user, want uint32) bool {
	switch {
	case u.uid == 0:
		return true
	case u.uid == n.uid:
		return n.mode>>6&want == want
	case u.gid == n.gid:
		return n.mode>>3&want == want
	}
	return n.mode&want == want
}

// walk finds a node. follow says whether a link at the end is followed. The caller
// holds t.mu, or has the tree to itself.
func (t *tree) walk(u user, path string, follow bool) (*node, error) {
	return t.walkFrom(u, path, follow, 40)
}

func (t *tree) walkFrom(u user, path string, follow bool, links int) (*node, error) {
	stack := []*node{t.root}
	parts := strings.Split(path, "/")
	for i := 0; i < len(parts); i++ {
		part := parts[i]
		cur := stack[len(stack)-1]
		if cur.kind != kindDir {
			return nil, notDir(path)
		}
		if part == "" || part == "." {
			continue
		}
		if !cur.may(u, 1) {
			return nil, denied(path)
		}
		if part == ".." {
			stack = stack[:max(len(stack)-1, 1)]
			continue
		}
		if len(part) > maxName {
			return nil, ringfence.Errorf(ringfence.CodeInvalidArgument, "a name in the path is longer than %d bytes", maxName).WithField("path")
		}
		next := cur.entries[part]
		if next == nil {
			return nil, missing(path)
		}
		last := true
		for _, rest := range parts[i+1:] {
			last = last && rest == ""
		}
		if next.kind == kindLink && (!last || follow) {
			if links--; links < 0 {
				return nil, ringfence.Errorf(ringfence.CodeInvalidArgument, "%s: too many links", path).WithField("path")
			}
			parts = append(strings.Split(next.target, "/"), parts[i+1:]...)
			if strings.HasPrefix(next.target, "/") {
				stack = stack[:1]
			}
			i = -1
			continue
		}
		stack = append(stack, next)
	}
	return stack[len(stack)-1], nil
}

// find is walk for who does not hold t.mu.
func (t *tree) find(u user, path string, follow bool) (*node, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.walk(u, path, follow)
}

// parent returns the directory of path, and makes it and its parents when owner is
// not nil. The caller holds t.mu.
func (t *tree) parent(u user, path string, owner *user) (*node, string, error) {
	dir, name := split(path)
	if name == "" || name == "." || name == ".." {
		return nil, "", ringfence.Errorf(ringfence.CodeInvalidArgument, "%s does not name a file", path).WithField("path")
	}
	if len(name) > maxName {
		return nil, "", ringfence.Errorf(ringfence.CodeInvalidArgument, "the name is longer than %d bytes", maxName).WithField("path")
	}
	n, err := t.walk(u, dir, true)
	if ringfence.CodeOf(err) == ringfence.CodeFileNotFound && owner != nil {
		n, err = t.makeDir(u, strings.TrimRight(dir, "/"), *owner, 0o755)
	}
	if err != nil {
		return nil, "", err
	}
	if n.kind != kindDir {
		return nil, "", notDir(path)
	}
	return n, name, nil
}

// makeDir makes a directory and its parents. The caller holds t.mu.
func (t *tree) makeDir(u user, path string, owner user, mode uint32) (*node, error) {
	n, err := t.walk(u, path, true)
	if err == nil {
		if n.kind != kindDir {
			return nil, ringfence.Errorf(ringfence.CodeFileExists, "%s exists and is not a directory", path).WithField("path")
		}
		return n, nil
	}
	if ringfence.CodeOf(err) != ringfence.CodeFileNotFound {
		return nil, err
	}
	parent, name, err := t.parent(u, path, &owner)
	if err != nil {
		return nil, err
	}
	if !parent.may(u, 3) {
		return nil, denied(path)
	}
	n = newDir(owner, mode)
	parent.entries[name] = n
	parent.modified = time.Now()
	return n, nil
}

// describe tells the host about a node.
func describe(path string, n *node) guestproto.FileInfo {
	info := guestproto.FileInfo{
		Path: path, Type: "file", Size: int64(len(n.data)), Mode: n.mode, UID: n.uid, GID: n.gid,
		Owner: nameOf(n.uid), Group: nameOf(n.gid), ModTime: n.modified.UnixMicro(), Metadata: maps.Clone(n.metadata),
		ETag: fmt.Sprintf("%x-%x-%x", len(n.data), n.modified.UnixNano(), n.mode),
	}
	switch n.kind {
	case kindDir:
		info.Type = "directory"
	case kindLink:
		info.Type, info.Target, info.Size = "symlink", n.target, int64(len(n.target))
	}
	if !utf8.ValidString(path) {
		info.PathBytes = []byte(path)
	}
	if !utf8.ValidString(n.target) {
		info.TargetBytes = []byte(n.target)
	}
	return info
}

// names returns a directory's names in order.
func (n *node) names() []string {
	names := make([]string, 0, len(n.entries))
	for name := range n.entries {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// size is what a node and all below it take.
func (n *node) size() int64 {
	total := int64(len(n.data))
	for _, e := range n.entries {
		total += e.size()
	}
	return total
}
