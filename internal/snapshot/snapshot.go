// Package snapshot keeps checkpoints on disk: each in a directory that is named by
// its content, complete or not there at all.
//
// Layout of a Store's directory:
//
//	objects/<sha256>/   the files of a checkpoint; never changed
//	golden/<key>.json   which object new sandboxes of a template and size start from
//	work/               what is being written; emptied by Open
//
// The name of an object is the hash of its manifest, which the driver writes last and
// which holds a checksum of every other file.
package snapshot

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"ringfence.dev/ringfence"
)

// manifestFile is the file that a driver writes last into a checkpoint.
const manifestFile = "manifest.json"

// Store is a directory of checkpoints. One process at a time has it open. Its methods
// may be called concurrently.
type Store struct {
	dir string

	mu   sync.Mutex
	size map[string]int64 // bytes on disk by object; guarded by mu
}

// Golden is what a template's sandboxes start from.
type Golden struct {
	Object   string    `json:"object"`
	Template string    `json:"template"`
	Build    string    `json:"build"` // of the driver that made it
	MadeAt   time.Time `json:"made_at"`
}

// Open opens the store in dir, makes it when it is missing, and removes what was
// being written when the last process ended.
func Open(dir string) (*Store, error) {
	s := &Store{dir: dir, size: map[string]int64{}}
	if err := os.RemoveAll(s.path("work")); err != nil {
		return nil, openError(dir, err)
	}
	for _, name := range []string{"objects", "golden", "work"} {
		if err := os.MkdirAll(s.path(name), 0o700); err != nil {
			return nil, openError(dir, err)
		}
	}
	entries, err := os.ReadDir(s.path("objects"))
	if err != nil {
		return nil, openError(dir, err)
	}
	for _, e := range entries {
		if validName(e.Name()) {
			s.size[e.Name()] = diskUse(s.Path(e.Name()))
		}
	}
	return s, nil
}

func openError(dir string, err error) error {
	return ringfence.Errorf(ringfence.CodeInternal, "cannot open the snapshots in %s: %w", dir, err)
}

func (s *Store) path(elem ...string) string {
	return filepath.Join(append([]string{s.dir}, elem...)...)
}

// Path is the directory of an object.
func (s *Store) Path(object string) string { return s.path("objects", object) }

// validName reports whether a name is a SHA-256 in hex.
func validName(name string) bool {
	raw, err := hex.DecodeString(name)
	return err == nil && len(raw) == sha256.Size && strings.ToLower(name) == name
}

// Work makes an empty directory for a checkpoint that is about to be written. The
// caller commits it, or removes it.
func (s *Store) Work() (string, error) {
	dir, err := os.MkdirTemp(s.path("work"), "")
	if err != nil {
		return "", fmt.Errorf("cannot make room for a snapshot: %w", err)
	}
	return dir, nil
}

// Commit makes a complete checkpoint in a directory of Work an object, and returns its
// name. It is on the disk then. A checkpoint that is there already is not kept twice.
func (s *Store) Commit(work string) (object string, err error) {
	manifest, err := os.ReadFile(filepath.Join(work, manifestFile))
	if err != nil {
		return "", fmt.Errorf("the snapshot is not complete: %w", err)
	}
	sum := sha256.Sum256(manifest)
	object = hex.EncodeToString(sum[:])
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.size[object]; known {
		return object, os.RemoveAll(work)
	}
	if err := errors.Join(syncDir(work), os.Rename(work, s.Path(object)), syncDir(s.path("objects"))); err != nil {
		return "", fmt.Errorf("cannot keep the snapshot: %w", err)
	}
	s.size[object] = diskUse(s.Path(object))
	return object, nil
}

// Discard removes a directory of Work.
func (s *Store) Discard(work string) error { return os.RemoveAll(work) }

// Remove removes an object. One that is not there is no error.
func (s *Store) Remove(object string) error {
	if !validName(object) {
		return fmt.Errorf("%q is not the name of a snapshot's content", object)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// Renamed first, so that half an object is never found under its name.
	gone := s.path("work", "gone-"+object)
	err := os.Rename(s.Path(object), gone)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot remove a snapshot: %w", err)
	}
	delete(s.size, object)
	return os.RemoveAll(gone)
}

// Has reports whether there is an object.
func (s *Store) Has(object string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.size[object]
	return ok
}

// Objects lists the objects with the bytes that each takes on the disk.
func (s *Store) Objects() map[string]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make(map[string]int64, len(s.size))
	for name, size := range s.size {
		list[name] = size
	}
	return list
}

// Golden returns what is kept under a key; false when there is nothing.
func (s *Store) Golden(key string) (Golden, bool) {
	var g Golden
	raw, err := os.ReadFile(s.path("golden", key+".json"))
	if err != nil || json.Unmarshal(raw, &g) != nil || !validName(g.Object) {
		return Golden{}, false
	}
	if _, err := os.Stat(s.Path(g.Object)); err != nil {
		return Golden{}, false
	}
	return g, true
}

// SetGolden keeps a golden snapshot under a key, which is a file's name.
func (s *Store) SetGolden(key string, g Golden) error {
	raw, err := json.Marshal(g)
	if err != nil {
		return err
	}
	path := s.path("golden", key+".json")
	if err := os.WriteFile(path+".new", raw, 0o600); err != nil {
		return fmt.Errorf("cannot keep a golden snapshot: %w", err)
	}
	return os.Rename(path+".new", path)
}

// DropGolden forgets what is kept under a key; its object stays.
func (s *Store) DropGolden(key string) error {
	err := os.Remove(s.path("golden", key+".json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Goldens returns all golden snapshots by key.
func (s *Store) Goldens() (map[string]Golden, error) {
	entries, err := os.ReadDir(s.path("golden"))
	if err != nil {
		return nil, err
	}
	all := map[string]Golden{}
	for _, e := range entries {
		key, ok := strings.CutSuffix(e.Name(), ".json")
		if g, there := s.Golden(key); ok && there {
			all[key] = g
			continue
		}
		// A half-written entry, or one whose object is gone.
		if err := os.Remove(s.path("golden", e.Name())); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// diskUse is what the files in a directory take on the disk, in bytes.
func diskUse(dir string) int64 {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0
	}
	var n int64
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			n += info.Size()
		}
	}
	return n
}
