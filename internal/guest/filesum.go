package guest

import (
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"hash"
	"hash/crc32"
	"syscall"

	"golang.org/x/sys/unix"

	"ringfence.dev/ringfence/internal/guestproto"
)

// algorithms are the checksums that a file can be asked for. md5 and sha1 are for those
// who compare with sums that others made.
var algorithms = map[string]func() hash.Hash{
	"sha256": sha256.New,
	"sha512": sha512.New,
	"sha1":   sha1.New,
	"md5":    md5.New,
	"crc32c": func() hash.Hash { return crc32.New(crc32.MakeTable(crc32.Castagnoli)) },
}

func checksumFile(a *agent, ch *channel, f guestproto.FileChecksum) (any, error) {
	p, u, err := a.target(f.FilePath)
	if err != nil {
		return nil, err
	}
	algorithm := algorithms[f.Algorithm]
	if algorithm == nil {
		return nil, fail(codeInvalid, "algorithm", "there is no checksum %q", f.Algorithm)
	}
	fd, st, err := a.openRegular(p, u)
	if err != nil {
		return nil, fileError("read", p, err)
	}
	defer unix.Close(fd)
	sum := algorithm()
	buf := ch.link.free.get(guestproto.MaxPayload)
	defer func() { ch.link.free.put(buf) }()
	var size int64
	for {
		if ch.gone() {
			return nil, errGone
		}
		n, err := syscall.Pread(fd, buf, size)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return nil, fileError("read", p, err)
		}
		if n == 0 {
			break
		}
		sum.Write(buf[:n])
		size += int64(n)
	}
	return guestproto.FileSum{Checksum: hex.EncodeToString(sum.Sum(nil)), Size: size, ETag: etag(&st)}, nil
}

// openRegular opens a regular file for reading as a user.
func (a *agent) openRegular(p string, u account) (fd int, st unix.Stat_t, err error) {
	err = a.ns.onFileThread(u, func() error {
		// Without O_NONBLOCK, opening a FIFO waits for a writer.
		fd, err = openRetry(p, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
		if err != nil {
			return err
		}
		if err = unix.Fstat(fd, &st); err == nil {
			err = regular(p, &st)
		}
		if err != nil {
			unix.Close(fd)
		}
		return err
	})
	return fd, st, err
}
