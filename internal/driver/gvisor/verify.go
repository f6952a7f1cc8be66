package gvisor

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/crc32"
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

// checkChunk is how many bytes of a file share a checksum.
const checkChunk = 1 << 20

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum tells a file from a damaged one: the SHA-256, in hex, of the CRC-32Cs of its
// chunks. The CRC is the processor's own; hashing all of it would take longer than saving it.
// It is no proof against who makes a file on purpose.
func checksum(r io.Reader) (string, error) {
	h := sha256.New()
	chunk := make([]byte, checkChunk)
	for {
		n, err := io.ReadFull(r, chunk)
		if n > 0 {
			var sum [8]byte
			binary.LittleEndian.PutUint32(sum[:], crc32.Checksum(chunk[:n], castagnoli))
			binary.LittleEndian.PutUint32(sum[4:], uint32(n))
			h.Write(sum[:])
		}
		if err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) {
			return hex.EncodeToString(h.Sum(nil)), nil
		}
		if err != nil {
			return "", err
		}
	}
}

// hash returns the checksum of a file.
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
	sum, err := checksum(io.NewSectionReader(f, 0, state.size))
	if err != nil {
		return "", err
	}
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
