package template

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// errLocked says that another process holds the lock.
var errLocked = errors.New("locked by another process")

// lockFile takes the lock of path. It ends with the process that holds it, however
// that ends. Without wait it returns errLocked at once when another holds it.
func lockFile(path string, wait bool) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	how := unix.LOCK_EX
	if !wait {
		how |= unix.LOCK_NB
	}
	for {
		err = unix.Flock(int(f.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errLocked
		}
		return nil, fmt.Errorf("cannot lock %s: %w", path, err)
	}
	return func() { f.Close() }, nil
}

// lockSlowly takes the lock of path as soon as it is free. waiting is called once
// when it is not free at first.
func lockSlowly(ctx context.Context, path string, waiting func()) (unlock func(), err error) {
	for first := true; ; first = false {
		unlock, err := lockFile(path, false)
		if !errors.Is(err, errLocked) {
			return unlock, err
		}
		if first {
			waiting()
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
