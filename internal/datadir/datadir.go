// Package datadir makes the data directory private, and lets only one daemon
// use it at a time.
package datadir

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"ringfence.dev/ringfence"
)

const lockName = "ringfence.lock"

// Prepare makes dir and its parents unless they exist, and takes from everyone
// but the owner what they might do there. It refuses a directory that holds
// other things than Ringfence's, since its mode may matter to somebody.
func Prepare(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("cannot make the data directory: %w", err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("cannot read the data directory: %w", err)
	}
	if !info.IsDir() {
		return fmt.Errorf("cannot use %s as the data directory: it is not a directory", dir)
	}
	if info.Mode().Perm()&0o077 == 0 {
		return nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("cannot read the data directory: %w", err)
	}
	if len(entries) > 0 && !ours(entries) {
		return ringfence.Errorf(ringfence.CodeFailedPrecondition,
			"cannot use %s as the data directory: others may enter it, and it holds files that are not Ringfence's", dir).
			WithHint("choose an empty directory, or chmod 0700 this one if it is meant for Ringfence")
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return fmt.Errorf("cannot make the data directory private: %w", err)
	}
	return nil
}

// ours reports whether a directory holds something that only Ringfence makes.
func ours(entries []os.DirEntry) bool {
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "ringfence.") || e.Name() == "templates" {
			return true
		}
	}
	return false
}

// Lock is held by the daemon that uses a data directory, until Release or the
// end of its process, however that comes.
type Lock struct{ file *os.File }

// Acquire takes dir for this process. Another one has it: failed_precondition
// with that one's process id.
func Acquire(dir string) (*Lock, error) {
	path := filepath.Join(dir, lockName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot lock the data directory: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer f.Close() // it was only read
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("cannot lock the data directory: %w", err)
		}
		holder := "another process"
		if text, err := io.ReadAll(io.LimitReader(f, 32)); err == nil {
			if pid, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
				holder = fmt.Sprintf("process %d", pid)
			}
		}
		return nil, ringfence.Errorf(ringfence.CodeFailedPrecondition,
			"cannot use the data directory %s: %s uses it", dir, holder).
			WithHint("stop that one, or start this one with another --data-dir and --listen")
	}
	text := strconv.Itoa(os.Getpid()) + "\n"
	if err := errors.Join(f.Truncate(0), writeAt(f, text)); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot write %s: %w", path, err), f.Close())
	}
	return &Lock{f}, nil
}

func writeAt(f *os.File, text string) error {
	_, err := f.WriteAt([]byte(text), 0)
	return err
}

// Release lets another daemon have the directory.
func (l *Lock) Release() error { return l.file.Close() }
