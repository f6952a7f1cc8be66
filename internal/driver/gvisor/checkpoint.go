package gvisor

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/control"
	"gvisor.dev/gvisor/pkg/sentry/state/checkpointfiles"
	"gvisor.dev/gvisor/pkg/state/statefile"
	"gvisor.dev/gvisor/runsc/boot"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/driver"
)

const manifestFile = "manifest.json"

// manifest says what a checkpoint is of. gVisor would load a state of another
// version, or a damaged one, and crash later.
type manifest struct {
	Built engine
	CPU   []string // features of the machine
	Image string   // path of the root image
	Agent string   // path of the agent's image
	Size  ringfence.Size
	Files map[string]string // checksum of each file
	// Nonce makes every checkpoint another one: the checksums alone do not.
	Nonce string
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

// smallCheckpoint is the size up to which a checkpoint is one file. gVisor loads a
// pages file with 30 threads that it never ends; for little memory one stream is as
// fast, and leaves a sandbox that has 10 threads and not 40.
const smallCheckpoint = 64 << 20 // bytes of memory and written disk

func (i *instance) save(ctx context.Context, dir string) error {
	st, err := loadState(i.dir)
	if err != nil {
		return err
	}
	names := []string{checkpointfiles.StateFileName}
	if i.footprint() > smallCheckpoint {
		names = append(names, checkpointfiles.PagesMetadataFileName, checkpointfiles.PagesFileName)
	}
	opts := control.SaveOpts{
		Metadata:      statefile.CompressionLevelNone.ToMetadata(),
		HavePagesFile: len(names) > 1,
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
	if err := i.d.engines.keep(st.Engine, i.pid); err != nil {
		return err
	}
	m := manifest{Built: st.Engine, CPU: cpuFeatures(), Image: st.Spec.ImagePath, Agent: st.Agent, Size: st.Spec.Size, Files: map[string]string{}, Nonce: rand.Text()}
	for n, name := range names {
		f := opts.FilePayload.Files[n]
		if err := f.Sync(); err != nil {
			return err
		}
		if m.Files[name], err = i.d.verified.hash(f); err != nil {
			return err
		}
	}
	raw, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return writeSynced(filepath.Join(dir, manifestFile), raw)
}

// footprint is about what a checkpoint of the sandbox will hold, in bytes.
func (i *instance) footprint() int64 {
	n := i.d.cgroups.memoryBytes(i.id)
	var st unix.Stat_t
	if unix.Stat(filepath.Join(i.dir, diskFile), &st) == nil {
		n += st.Blocks * 512
	}
	return n
}

func writeSynced(path string, raw []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(raw)
	return errors.Join(err, f.Sync(), f.Close())
}

// checkManifest refuses a checkpoint that is not whole, or not of this sandbox's
// image, size and engine. The agent in it may be an older one than new sandboxes get.
func (d *Driver) checkManifest(dir string, spec driver.Spec) (*manifest, error) {
	raw, err := os.ReadFile(filepath.Join(dir, manifestFile))
	if err != nil {
		return nil, unusable("there is no complete checkpoint to restore")
	}
	m := new(manifest)
	if err := json.Unmarshal(raw, m); err != nil {
		return nil, unusable("the checkpoint is damaged")
	}
	switch {
	case m.Image != spec.ImagePath:
		return nil, unusable("the checkpoint is of another image")
	case m.Size != spec.Size:
		return nil, unusable("the checkpoint is of another size")
	case m.Files[checkpointfiles.StateFileName] == "":
		return nil, unusable("the checkpoint is damaged")
	}
	if err := checkCPU(m.CPU); err != nil {
		return nil, err
	}
	if _, err := os.Stat(m.Agent); err != nil {
		return nil, unusable("the guest agent of the checkpoint is gone")
	}
	for name, want := range m.Files {
		f, err := os.Open(filepath.Join(dir, filepath.Base(name)))
		if err != nil {
			return nil, unusable("the checkpoint is damaged: %s is missing", name)
		}
		got, err := d.verified.hash(f)
		f.Close()
		if err != nil || got != want {
			return nil, unusable("the checkpoint is damaged: %s has changed", name)
		}
	}
	return m, nil
}

func unusable(format string, args ...any) *ringfence.Error {
	return ringfence.Errorf(ringfence.CodeFailedPrecondition, format, args...).WithHint("make a new snapshot")
}

// restoreGuest loads a checkpoint into a sentry that booted.
func restoreGuest(ctx context.Context, dir, from string, m *manifest, link *os.File) error {
	if err := setNetwork(ctx, dir, link, true); err != nil {
		return err
	}
	names := []string{checkpointfiles.StateFileName}
	if m.Files[checkpointfiles.PagesFileName] != "" {
		names = append(names, checkpointfiles.PagesMetadataFileName, checkpointfiles.PagesFileName)
	}
	opts := boot.RestoreOpts{HavePagesFile: len(names) > 1, Background: true}
	defer func() {
		for _, f := range opts.FilePayload.Files {
			f.Close()
		}
	}()
	for _, name := range names {
		f, err := os.Open(filepath.Join(from, name))
		if err != nil {
			return err
		}
		opts.FilePayload.Files = append(opts.FilePayload.Files, f)
	}
	return call(ctx, dir, boot.ContMgrRestore, &opts, nil)
}
