package gvisor

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"gvisor.dev/gvisor/runsc/boot"
)

// What pauseFile may say; it is missing while the guest runs. gVisor counts pauses, tells
// nobody how many there are, and dies when it is resumed once too often, so a later daemon
// has to know.
const (
	pauseBegun  = "pausing"
	pauseDone   = "paused"
	resumeBegun = "resuming"
)

// probeFor is how long a guest may take to run a program, if it runs at all.
const probeFor = 20 * time.Second

// Pause stops every task of the guest.
func (i *instance) Pause(ctx context.Context) error {
	i.pausing.Lock()
	defer i.pausing.Unlock()
	if stopped, err := i.stopped(ctx); stopped || err != nil {
		return err
	}
	if err := i.notePause(pauseBegun); err != nil {
		return err
	}
	if err := i.call(ctx, boot.ContMgrPause, nil, nil); err != nil {
		return err
	}
	return i.notePause(pauseDone)
}

// Resume lets them go on.
func (i *instance) Resume(ctx context.Context) error {
	i.pausing.Lock()
	defer i.pausing.Unlock()
	if err := i.alive(); err != nil {
		return err
	}
	if stopped, err := i.stopped(ctx); !stopped || err != nil {
		return err
	}
	if err := i.notePause(resumeBegun); err != nil {
		return err
	}
	if err := i.call(ctx, boot.ContMgrResume, nil, nil); err != nil {
		return err
	}
	return os.Remove(filepath.Join(i.dir, pauseFile))
}

// stopped reports whether the guest is paused. Where a daemon died in the middle of a
// pause or resume, that shows by whether a program runs inside.
func (i *instance) stopped(ctx context.Context) (bool, error) {
	path := filepath.Join(i.dir, pauseFile)
	raw, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case string(raw) == pauseDone:
		return true, nil
	}
	probe, cancel := context.WithTimeout(ctx, probeFor)
	defer cancel()
	_, _, err = i.Rescue(probe, []string{agentMount + "/" + agentName, "-h"})
	switch {
	case err == nil:
		return false, os.Remove(path)
	case ctx.Err() != nil || i.alive() != nil:
		return false, err
	}
	return true, i.notePause(pauseDone)
}

func (i *instance) notePause(what string) error {
	path := filepath.Join(i.dir, pauseFile)
	if err := os.WriteFile(path+".new", []byte(what), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
