package gvisor

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// maxVerified bounds how many files a hash is remembered of.
const maxVerified = 4096

// verified remembers the hashes of files that have not changed since they were read,
// so that a restore reads what it restores once.
type verified struct {
	mu     sync.Mutex
	hashes map[fileState]string // guarded by mu
}

// fileState identifies the content of a file as far as the kernel tells.
type fileState struct {
	dev, inode   uint64
	size         int64
	mtime, ctime unix.Timespec
}

func stateOf(f *os.File) (fileState, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fileState{}, err
	}
	return fileState{dev: st.Dev, inode: st.Ino, size: st.Size, mtime: st.Mtim, ctime: st.Ctim}, nil
}

// hash returns the SHA-256 of a file in hex.
func (v *verified) hash(f *os.File) (string, error) {
	state, err := stateOf(f)
	if err != nil {
		return "", err
	}
	v.mu.Lock()
	known := v.hashes[state]
	v.mu.Unlock()
	if known != "" {
		return known, nil
	}
	h := sha256.New()
	if _, err := io.Copy(h, io.NewSectionReader(f, 0, state.size)); err != nil {
		return "", err
	}
	sum := hex.EncodeToString(h.Sum(nil))
	// A file that was written meanwhile is another one, and is read again.
	after, err := stateOf(f)
	if err != nil || after != state {
		return sum, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.hashes == nil || len(v.hashes) >= maxVerified {
		v.hashes = map[fileState]string{}
	}
	v.hashes[state] = sum
	return sum, nil
}
