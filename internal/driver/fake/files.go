package fake

import (
	"strings"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/guestproto"
)

// clean drops slashes and dots that say nothing, as a description names a path.
func clean(path string) string {
	parts := strings.Split(path, "/")
	kept := parts[:0]
	for _, p := range parts {
		if p != "" && p != "." {
			kept = append(kept, p)
		}
	}
	return "/" + strings.Join(kept, "/")
}

func (t *tree) read(u user, path string) (guestproto.FileInfo, []byte, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n, err := t.walk(u, path, true)
	switch {
	case err != nil:
		return guestproto.FileInfo{}, nil, err
	case n.kind == kindDir:
		return guestproto.FileInfo{}, nil, isDir(path)
	case !n.may(u, 4):
		return guestproto.FileInfo{}, nil, denied(path)
	}
	return describe(clean(path), n), n.data, nil
}

// writable says early whether a write could work.
func (t *tree) writable(u user, path string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	n, err := t.walk(u, path, true)
	switch {
	case err == nil && n.kind == kindDir:
		return isDir(path)
	case err != nil && ringfence.CodeOf(err) != ringfence.CodeFileNotFound:
		return err
	}
	return nil
}

func (t *tree) write(u user, path string, data []byte, f guestproto.FileWrite) (guestproto.FileInfo, error) {
	owner, err := ownerOf(u, f.Owner)
	if err != nil {
		return guestproto.FileInfo{}, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	old, _ := t.walk(u, path, true)
	if f.Create && old != nil || f.IfMatch != "" && (old == nil || describe("/", old).ETag != f.IfMatch) {
		return guestproto.FileInfo{}, ringfence.Errorf(ringfence.CodePreconditionFailed, "%s is not as the caller wants it", path).WithField("path")
	}
	n, err := t.put(u, path, data, owner)
	if err != nil {
		return guestproto.FileInfo{}, err
	}
	n.metadata = nil
	if f.Owner != "" {
		n.uid, n.gid = owner.uid, owner.gid
	}
	if f.Mode != 0 {
		n.mode = f.Mode
	}
	return describe(clean(path), n), nil
}

func ownerOf(u user, name string) (user, error) {
	if name == "" {
		return u, nil
	}
	owner, err := lookUser(name)
	if err != nil {
		return owner, ringfence.Errorf(ringfence.CodeInvalidArgument, "there is no user %q in the sandbox", name).WithField("owner")
	}
	if u.uid != 0 && owner.uid != u.uid {
		return owner, ringfence.Errorf(ringfence.CodeFilePermission, "only root may give files to another user").WithField("owner")
	}
	return owner, nil
}

// put replaces a file's content, and makes it with its parents if need be. The
// caller holds t.mu.
func (t *tree) put(u user, path string, data []byte, owner user) (*node, error) {
	n, err := t.walk(u, path, true)
	switch {
	case err == nil && n.kind == kindDir:
		return nil, isDir(path)
	case err == nil && !n.may(u, 2):
		return nil, denied(path)
	case err == nil:
	case ringfence.CodeOf(err) == ringfence.CodeFileNotFound:
		parent, name, err := t.parent(u, path, &owner)
		if err != nil {
			return nil, err
		}
		if !parent.may(u, 3) {
			return nil, denied(path)
		}
		n = &node{mode: 0o644, uid: owner.uid, gid: owner.gid, modified: time.Now()}
		if err := t.charge(int64(len(data))); err != nil {
			return nil, err
		}
		n.data = data
		parent.entries[name] = n
		parent.modified = time.Now()
		return n, nil
	default:
		return nil, err
	}
	if err := t.charge(int64(len(data) - len(n.data))); err != nil {
		return nil, err
	}
	n.data, n.modified = data, time.Now()
	return n, nil
}

// charge takes bytes of the disk, or gives them back.
func (t *tree) charge(n int64) error {
	if used := t.used.Add(n); n > 0 && used > t.limit {
		t.used.Add(-n)
		return ringfence.Errorf(ringfence.CodeDiskFull, "no space left on device")
	}
	return nil
}

func (t *tree) stat(u user, path string) (guestproto.FileInfo, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n, err := t.walk(u, path, false)
	if err != nil {
		return guestproto.FileInfo{}, err
	}
	return describe(clean(path), n), nil
}

func (t *tree) list(u user, path string, depth int) ([]guestproto.FileInfo, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n, err := t.walk(u, path, true)
	if err != nil {
		return nil, err
	}
	if n.kind != kindDir {
		return nil, notDir(path)
	}
	if !n.may(u, 4) {
		return nil, denied(path)
	}
	var out []guestproto.FileInfo
	var visit func(prefix string, dir *node, depth int)
	visit = func(prefix string, dir *node, depth int) {
		for _, name := range dir.names() {
			e := dir.entries[name]
			out = append(out, describe(prefix+"/"+name, e))
			if e.kind == kindDir && depth > 1 && e.may(u, 5) {
				visit(prefix+"/"+name, e, depth-1)
			}
		}
	}
	visit(strings.TrimRight(clean(path), "/"), n, depth)
	return out, nil
}

func (t *tree) mkdir(u user, path, ownerName string, mode uint32) (guestproto.FileInfo, error) {
	owner, err := ownerOf(u, ownerName)
	if err != nil {
		return guestproto.FileInfo{}, err
	}
	if mode == 0 {
		mode = 0o755
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	n, err := t.makeDir(u, path, owner, mode)
	if err != nil {
		return guestproto.FileInfo{}, err
	}
	return describe(clean(path), n), nil
}

func (t *tree) rename(u user, from, to string) (guestproto.FileInfo, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n, err := t.walk(u, from, false)
	if err != nil {
		return guestproto.FileInfo{}, err
	}
	oldDir, oldName, err := t.parent(u, from, nil)
	if err != nil {
		return guestproto.FileInfo{}, err
	}
	newDir, newName, err := t.parent(u, to, nil)
	if err != nil {
		return guestproto.FileInfo{}, err
	}
	if !oldDir.may(u, 3) || !newDir.may(u, 3) {
		return guestproto.FileInfo{}, denied(from)
	}
	if n.kind == kindDir && strings.HasPrefix(clean(to)+"/", clean(from)+"/") && clean(to) != clean(from) {
		return guestproto.FileInfo{}, ringfence.Errorf(ringfence.CodeInvalidArgument, "a directory cannot go into itself").WithField("to")
	}
	if old := newDir.entries[newName]; old != nil && old != n {
		switch {
		case old.kind == kindDir && n.kind != kindDir:
			return guestproto.FileInfo{}, isDir(to)
		case old.kind != kindDir && n.kind == kindDir:
			return guestproto.FileInfo{}, notDir(to)
		case len(old.entries) > 0:
			return guestproto.FileInfo{}, ringfence.Errorf(ringfence.CodeDirectoryNotEmpty, "%s: directory not empty", to).WithField("to")
		}
		t.charge(-old.size())
	}
	delete(oldDir.entries, oldName)
	newDir.entries[newName] = n
	oldDir.modified, newDir.modified = time.Now(), time.Now()
	return describe(clean(to), n), nil
}

func (t *tree) remove(u user, path string, recursive bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	n, err := t.walk(u, path, false)
	if err != nil {
		return err
	}
	if clean(path) == "/" {
		return ringfence.Errorf(ringfence.CodeInvalidArgument, "the root directory cannot be removed").WithField("path")
	}
	parent, name, err := t.parent(u, path, nil)
	if err != nil {
		return err
	}
	if !parent.may(u, 3) {
		return denied(path)
	}
	if len(n.entries) > 0 && !recursive {
		return ringfence.Errorf(ringfence.CodeDirectoryNotEmpty, "%s: directory not empty", path).WithField("path")
	}
	t.charge(-n.size())
	delete(parent.entries, name)
	parent.modified = time.Now()
	return nil
}

// appendTo adds to the end of a file, for the shell's >>.
func (t *tree) appendTo(u user, path string, data []byte, truncate bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n, err := t.walk(u, path, true); err == nil && n.kind == kindFile && !truncate {
		if !n.may(u, 2) {
			return denied(path)
		}
		if err := t.charge(int64(len(data))); err != nil {
			return err
		}
		n.data, n.modified = append(n.data, data...), time.Now()
		return nil
	}
	if dir, _ := split(path); dir != "" {
		if _, err := t.walk(u, dir, true); err != nil { // the shell makes no parents
			return err
		}
	}
	_, err := t.put(u, path, data, u)
	return err
}
