package gvisor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"gvisor.dev/gvisor/pkg/sentry/control"
	"gvisor.dev/gvisor/pkg/sentry/state/checkpointfiles"
	"gvisor.dev/gvisor/pkg/state/statefile"
	"gvisor.dev/gvisor/runsc/boot"
	"gvisor.dev/gvisor/runsc/version"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/driver"
)

const manifestFile = "manifest.json"

// manifest says what a checkpoint is of. gVisor would load a state of another
// version, or a damaged one, and crash later.
type manifest struct {
	Engine string // version of gVisor
	Image  string // path of the root image
	Agent  string // path of the agent's image
	Size   ringfence.Size
	Files  map[string]string // SHA-256 of each file, in hex
}

// Checkpoint saves a paused sandbox.
func (i *instance) Checkpoint(ctx context.Context, dir string) error {
	if err := i.alive(); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("cannot write a checkpoint: %w", err)
	}
	if len(entries) > 0 {
		return ringfence.Errorf(ringfence.CodeFailedPrecondition, "the directory of a checkpoint has to be empty")
	}
	err = i.save(ctx, dir)
	if err != nil {
		for _, name := range []string{checkpointfiles.StateFileName, checkpointfiles.PagesMetadataFileName, checkpointfiles.PagesFileName, manifestFile} {
			os.Remove(filepath.Join(dir, name))
		}
		return fmt.Errorf("cannot save sandbox %s: %w", i.id, err)
	}
	return nil
}

func (i *instance) save(ctx context.Context, dir string) error {
	st, err := loadState(i.dir)
	if err != nil {
		return err
	}
	names := []string{checkpointfiles.StateFileName, checkpointfiles.PagesMetadataFileName, checkpointfiles.PagesFileName}
	opts := control.SaveOpts{
		Metadata:      statefile.CompressionLevelNone.ToMetadata(),
		HavePagesFile: true,
		Resume:        true, // a failed save must not cost the sandbox
	}
	defer func() {
		for _, f := range opts.FilePayload.Files {
			f.Close()
		}
	}()
	for _, name := range names {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
		if err != nil {
			return err
		}
		opts.FilePayload.Files = append(opts.FilePayload.Files, f)
	}
	if err := i.call(ctx, boot.ContMgrCheckpoint, &opts, nil); err != nil {
		return err
	}
	m := manifest{Engine: version.Version(), Image: st.Spec.ImagePath, Agent: st.Agent, Size: st.Spec.Size, Files: map[string]string{}}
	for n, name := range names {
		f := opts.FilePayload.Files[n]
		if err := f.Sync(); err != nil {
			return err
		}
		if m.Files[name], err = hashFile(f); err != nil {
			return err
		}
	}
	raw, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, manifestFile), raw, 0o600)
}

func hashFile(f *os.File) (string, error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// checkManifest refuses a checkpoint that is not whole, or not of this sandbox's
// image, size and engine. It returns the image of the agent that is in it, which may
// be an older one than new sandboxes get.
func checkManifest(dir string, spec driver.Spec) (agent string, err error) {
	raw, err := os.ReadFile(filepath.Join(dir, manifestFile))
	if err != nil {
		return "", ringfence.Errorf(ringfence.CodeFailedPrecondition, "there is no complete checkpoint to restore").WithHint("make a new snapshot")
	}
	var m manifest
	if err := json.Unmarshal(raw, &m); err != nil {
		return "", ringfence.Errorf(ringfence.CodeFailedPrecondition, "the checkpoint is damaged").WithHint("make a new snapshot")
	}
	refuse := func(what string) (string, error) {
		return "", ringfence.Errorf(ringfence.CodeFailedPrecondition, "the checkpoint is of another %s", what).WithHint("make a new snapshot")
	}
	switch {
	case m.Engine != version.Version():
		return refuse("version of gVisor")
	case m.Image != spec.ImagePath:
		return refuse("image")
	case m.Size != spec.Size:
		return refuse("size")
	}
	if _, err := os.Stat(m.Agent); err != nil {
		return "", ringfence.Errorf(ringfence.CodeFailedPrecondition, "the guest agent of the checkpoint is gone").WithHint("make a new snapshot")
	}
	for name, want := range m.Files {
		f, err := os.Open(filepath.Join(dir, filepath.Base(name)))
		if err != nil {
			return "", ringfence.Errorf(ringfence.CodeFailedPrecondition, "the checkpoint is damaged: %s is missing", name).WithHint("make a new snapshot")
		}
		got, err := hashFile(f)
		f.Close()
		if err != nil || got != want {
			return "", ringfence.Errorf(ringfence.CodeFailedPrecondition, "the checkpoint is damaged: %s has changed", name).WithHint("make a new snapshot")
		}
	}
	return m.Agent, nil
}

// restoreGuest loads a checkpoint into a sentry that booted.
func restoreGuest(ctx context.Context, dir, from string) error {
	if err := setNetwork(ctx, dir, true); err != nil {
		return err
	}
	opts := boot.RestoreOpts{HavePagesFile: true, Background: true}
	defer func() {
		for _, f := range opts.FilePayload.Files {
			f.Close()
		}
	}()
	for _, name := range []string{checkpointfiles.StateFileName, checkpointfiles.PagesMetadataFileName, checkpointfiles.PagesFileName} {
		f, err := os.Open(filepath.Join(from, name))
		if errors.Is(err, os.ErrNotExist) && name != checkpointfiles.StateFileName {
			opts.HavePagesFile = false
			continue
		}
		if err != nil {
			return err
		}
		opts.FilePayload.Files = append(opts.FilePayload.Files, f)
	}
	return call(ctx, dir, boot.ContMgrRestore, &opts, nil)
}
