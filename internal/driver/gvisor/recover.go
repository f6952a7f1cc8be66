package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/driver"
)

// Recover finds the sandboxes of a former daemon, and removes what others left.
func (d *Driver) Recover(ctx context.Context) ([]driver.Instance, error) {
	entries, err := os.ReadDir(filepath.Join(d.dir, "sandboxes"))
	if err != nil {
		return nil, fmt.Errorf("cannot look for sandboxes: %w", err)
	}
	var found []driver.Instance
	var errs []error
	for _, e := range entries {
		if ctx.Err() != nil {
			return found, errors.Join(append(errs, ctx.Err())...)
		}
		id := e.Name()
		if !ringfence.ValidSandboxID(id) {
			d.log.Warn("leaving alone what is not a sandbox's", "path", filepath.Join(d.dir, "sandboxes", id))
			continue
		}
		i, err := d.recoverOne(id)
		if err != nil {
			d.log.Warn("removing what is left of a sandbox", "sandbox", id, "reason", err)
			if err := d.remove(id); err != nil {
				errs = append(errs, err)
			}
			continue
		}
		found = append(found, i)
	}
	return found, errors.Join(errs...)
}

// recoverOne attaches to the sandbox of that name; the error says why it cannot.
func (d *Driver) recoverOne(id string) (*instance, error) {
	d.mu.Lock()
	i := d.instances[id]
	d.mu.Unlock()
	if i != nil {
		return i, nil
	}
	st, err := loadState(d.sandboxDir(id))
	if err != nil {
		return nil, err
	}
	if st.Spec.ID != id {
		return nil, errors.New("its record is of another sandbox")
	}
	if !st.alive() {
		return nil, errors.New("its process is gone")
	}
	pidfd, err := unix.PidfdOpen(st.Pid, 0)
	if err != nil {
		return nil, err
	}
	s := &sentry{pid: st.Pid, pidfd: pidfd}
	switch {
	case !st.alive(), ended(pidfd): // its number is another's, or a zombie's
		err = errors.New("its process is gone")
	case !st.Running:
		s.kill()
		err = errors.New("it was not started to the end")
	default:
		i, err = d.adopt(st, s, isChild(st.Pid))
	}
	if err != nil {
		unix.Close(pidfd)
		return nil, err
	}
	return i, nil
}
