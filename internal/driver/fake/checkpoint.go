package fake

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/driver"
)

// A checkpoint is these two files. What ran is not in it: a process of this driver is a
// goroutine.
const (
	imageFile    = "checkpoint.json"
	manifestFile = "manifest.json"
)

type manifest struct {
	Image string // of the spec
	Size  ringfence.Size
	Hash  string // SHA-256 of the image file
}

// image is what is in a checkpoint.
type image struct {
	BootID string
	Root   *savedNode
}

type savedNode struct {
	Kind     kind
	Mode     uint32
	UID, GID uint32
	Modified time.Time
	Data     []byte                `json:",omitempty"`
	Target   string                `json:",omitempty"`
	Entries  map[string]*savedNode `json:",omitempty"`
}

// gate stops a guest while it is paused.
type gate struct {
	mu   sync.Mutex
	open chan struct{} // guarded by mu; nil while the guest runs
}

func (g *gate) pause() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open == nil {
		g.open = make(chan struct{})
	}
}

func (g *gate) resume() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open != nil {
		close(g.open)
		g.open = nil
	}
}

// pass waits while the guest is paused, or until ctx ends.
func (g *gate) pass(ctx context.Context) {
	for {
		g.mu.Lock()
		open := g.open
		g.mu.Unlock()
		if open == nil {
			return
		}
		select {
		case <-open:
		case <-ctx.Done():
			return
		}
	}
}

func (i *instance) Pause(context.Context) error {
	if err := i.alive(); err != nil {
		return err
	}
	i.guest.gate.pause()
	return nil
}

func (i *instance) Resume(context.Context) error {
	if err := i.alive(); err != nil {
		return err
	}
	i.guest.gate.resume()
	return nil
}

// Checkpoint saves the files of the sandbox.
func (i *instance) Checkpoint(_ context.Context, dir string) error {
	if err := i.alive(); err != nil {
		return err
	}
	if f := i.host.checkpointError(); f != nil {
		return f
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("cannot write a checkpoint: %w", err)
	}
	if len(entries) > 0 {
		return ringfence.Errorf(ringfence.CodeFailedPrecondition, "the directory of a checkpoint has to be empty")
	}
	t := i.guest.files
	t.mu.Lock()
	raw, err := json.Marshal(image{BootID: i.guest.bootID, Root: saved(t.root)})
	t.mu.Unlock()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, imageFile), raw, 0o600); err != nil {
		return err
	}
	sum := sha256.Sum256(raw)
	m, err := json.Marshal(manifest{Image: i.guest.spec.ImagePath, Size: i.guest.spec.Size, Hash: hex.EncodeToString(sum[:])})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, manifestFile), m, 0o600)
}

func saved(n *node) *savedNode {
	s := &savedNode{Kind: n.kind, Mode: n.mode, UID: n.uid, GID: n.gid, Modified: n.modified, Data: n.data, Target: n.target}
	if n.kind == kindDir {
		s.Entries = map[string]*savedNode{}
		for name, e := range n.entries {
			s.Entries[name] = saved(e)
		}
	}
	return s
}

// node makes a node of a saved one, and counts its bytes.
func (s *savedNode) node(used *int64) *node {
	n := &node{kind: s.Kind, mode: s.Mode, uid: s.UID, gid: s.GID, modified: s.Modified, data: s.Data, target: s.Target}
	*used += int64(len(s.Data))
	if s.Kind == kindDir {
		n.entries = map[string]*node{}
		for name, e := range s.Entries {
			if e != nil {
				n.entries[name] = e.node(used)
			}
		}
	}
	return n
}

// Restore starts a sandbox with the files of a checkpoint.
func (d *Driver) Restore(ctx context.Context, spec driver.Spec, dir string) (driver.Instance, error) {
	refuse := func(what string) (driver.Instance, error) {
		return nil, ringfence.Errorf(ringfence.CodeFailedPrecondition, "%s", what).WithHint("make a new snapshot")
	}
	var m manifest
	raw, err := os.ReadFile(filepath.Join(dir, manifestFile))
	if err != nil || json.Unmarshal(raw, &m) != nil {
		return refuse("there is no complete checkpoint to restore")
	}
	if m.Image != spec.ImagePath || m.Size != spec.Size {
		return refuse("the checkpoint is of another image or size")
	}
	raw, err = os.ReadFile(filepath.Join(dir, imageFile))
	sum := sha256.Sum256(raw)
	if err != nil || hex.EncodeToString(sum[:]) != m.Hash {
		return refuse("the checkpoint is damaged")
	}
	var img image
	if err := json.Unmarshal(raw, &img); err != nil || img.Root == nil {
		return refuse("the checkpoint is damaged")
	}
	return d.start(ctx, spec, func(g *guest) {
		g.bootID = img.BootID
		var used int64
		g.files.mu.Lock()
		g.files.root = img.Root.node(&used)
		g.files.mu.Unlock()
		g.files.used.Store(used)
	})
}

// FailCheckpoints makes every Checkpoint on the host fail with err, until it is nil.
func (h *Host) FailCheckpoints(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failCheckpoint = err
}

// CrashAll lets every sandbox of the host crash.
func (h *Host) CrashAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, i := range h.instances {
		i.die(driver.Exit{Reason: ringfence.ReasonCrashed, Detail: "the sandbox crashed as it was told to"})
	}
}

func (h *Host) checkpointError() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.failCheckpoint
}
