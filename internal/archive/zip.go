package archive

import (
	"bufio"
	"bytes"
	"compress/flate"
	"encoding/binary"
	"errors"
	"hash"
	"hash/crc32"
	"io"
	"math"
	"time"
)

// The records of a zip archive, as APPNOTE.TXT of PKWARE describes them. The standard
// library keeps the whole directory in memory, which for a hostile archive is no bound.
const (
	sigLocal     = 0x04034b50
	sigCentral   = 0x02014b50
	sigEnd       = 0x06054b50
	sigEnd64     = 0x06064b50
	sigLocator64 = 0x07064b50

	lenLocal     = 30
	lenCentral   = 46
	lenEnd       = 22
	lenEnd64     = 56
	lenLocator64 = 20
	maxComment   = math.MaxUint16
)

// Bits of a Unix mode.
const (
	modeType    = 0o170000
	modeFile    = 0o100000
	modeDir     = 0o040000
	modeSymlink = 0o120000
)

// ReadZip reads a zip archive: what its directory lists, in that order. Memory does not
// grow with the number of entries. Errors: as Read.
func ReadZip(r io.ReaderAt, size int64, l Limits, each Each) error {
	z := &zipReader{r: r, meter: meter{Limits: l.filled(), in: size}}
	if err := z.open(size); err != nil {
		return z.blame(err)
	}
	return z.blame(z.entries(each))
}

type zipReader struct {
	meter
	r        io.ReaderAt
	failed   error // of r itself
	dir      int64 // where the directory begins
	dirSize  int64
	count    uint64 // of entries, as the end record says
	inflater io.ReadCloser
}

// ReadAt remembers a failure of what holds the archive, which is not the archive's.
func (z *zipReader) ReadAt(p []byte, at int64) (int, error) {
	n, err := z.r.ReadAt(p, at)
	if err != nil && !errors.Is(err, io.EOF) {
		z.failed = err
	}
	return n, err
}

func (z *zipReader) blame(err error) error {
	if err != nil && z.failed != nil {
		return z.failed
	}
	return err
}

// open finds the directory.
func (z *zipReader) open(size int64) error {
	tail := make([]byte, min(size, lenEnd+maxComment))
	if _, err := z.ReadAt(tail, size-int64(len(tail))); err != nil && !errors.Is(err, io.EOF) {
		return damaged("", err)
	}
	at := -1
	for i := len(tail) - lenEnd; i >= 0; i-- {
		if binary.LittleEndian.Uint32(tail[i:]) == sigEnd && i+lenEnd+int(binary.LittleEndian.Uint16(tail[i+20:])) <= len(tail) {
			at = i
			break
		}
	}
	if at < 0 {
		return Refuse("", "it is no zip archive, or ends too early")
	}
	end := tail[at:]
	endAt := size - int64(len(tail)) + int64(at)
	z.count = uint64(binary.LittleEndian.Uint16(end[10:]))
	dirSize, dir := uint64(binary.LittleEndian.Uint32(end[12:])), uint64(binary.LittleEndian.Uint32(end[16:]))
	if z.count == math.MaxUint16 || dirSize == math.MaxUint32 || dir == math.MaxUint32 {
		locator := make([]byte, lenLocator64)
		if endAt >= lenLocator64 {
			if _, err := z.ReadAt(locator, endAt-lenLocator64); err != nil {
				return damaged("", err)
			}
		}
		if binary.LittleEndian.Uint32(locator) == sigLocator64 {
			at := binary.LittleEndian.Uint64(locator[8:])
			if at > uint64(endAt) || endAt-int64(at) < lenEnd64 {
				return Refuse("", "its end record is not where it says")
			}
			end64 := make([]byte, lenEnd64)
			if _, err := z.ReadAt(end64, int64(at)); err != nil {
				return damaged("", err)
			}
			if binary.LittleEndian.Uint32(end64) != sigEnd64 {
				return Refuse("", "its end record is not where it says")
			}
			z.count = binary.LittleEndian.Uint64(end64[32:])
			dirSize, dir = binary.LittleEndian.Uint64(end64[40:]), binary.LittleEndian.Uint64(end64[48:])
			endAt = int64(at)
		}
	}
	if dir > uint64(endAt) || dirSize > uint64(endAt)-dir {
		return Refuse("", "its directory is not where it says")
	}
	if z.count > uint64(z.Entries) {
		return Refuse("", "it has more than %d entries", z.Entries)
	}
	z.dir, z.dirSize = int64(dir), int64(dirSize)
	return nil
}

// zipEntry is a row of the directory.
type zipEntry struct {
	Entry
	method      uint16
	crc         uint32
	packed      int64 // bytes in the archive
	headerStart int64
}

func (z *zipReader) entries(each Each) error {
	dir := bufio.NewReaderSize(io.NewSectionReader(z, z.dir, z.dirSize), 64<<10)
	var n uint64
	for {
		if _, err := dir.Peek(1); errors.Is(err, io.EOF) {
			break
		}
		e, err := z.row(dir)
		if err != nil {
			return err
		}
		n++
		if e.Kind == Symlink {
			if err := z.readTarget(e); err != nil {
				return err
			}
		}
		skip, err := e.check(z.LeadsOut)
		if err == nil {
			err = z.entry(&e.Entry)
		}
		if err != nil {
			return err
		}
		if skip {
			continue
		}
		content := io.Reader(bytes.NewReader(nil))
		if e.Kind == File {
			if content, err = z.content(e); err != nil {
				return err
			}
		}
		if err := each(&e.Entry, content); err != nil {
			return err
		}
	}
	if n != z.count {
		return Refuse("", "it says that it has %d entries, and has %d", z.count, n)
	}
	return nil
}

// row reads a row of the directory.
func (z *zipReader) row(dir *bufio.Reader) (*zipEntry, error) {
	var b [lenCentral]byte
	if _, err := io.ReadFull(dir, b[:]); err != nil {
		return nil, damaged("", err)
	}
	if binary.LittleEndian.Uint32(b[:]) != sigCentral {
		return nil, Refuse("", "its directory is damaged")
	}
	flags := binary.LittleEndian.Uint16(b[8:])
	e := &zipEntry{method: binary.LittleEndian.Uint16(b[10:]), crc: binary.LittleEndian.Uint32(b[16:])}
	packed, size := uint64(binary.LittleEndian.Uint32(b[20:])), uint64(binary.LittleEndian.Uint32(b[24:]))
	nameLen, extraLen, commentLen := binary.LittleEndian.Uint16(b[28:]), binary.LittleEndian.Uint16(b[30:]), binary.LittleEndian.Uint16(b[32:])
	start := uint64(binary.LittleEndian.Uint32(b[42:]))
	rest := make([]byte, int(nameLen)+int(extraLen))
	if _, err := io.ReadFull(dir, rest); err != nil {
		return nil, damaged("", err)
	}
	if _, err := dir.Discard(int(commentLen)); err != nil {
		return nil, damaged("", err)
	}
	e.Name = string(rest[:nameLen])
	e.ModTime = dosTime(binary.LittleEndian.Uint16(b[14:]), binary.LittleEndian.Uint16(b[12:]))
	if err := e.extra(rest[nameLen:], &size, &packed, &start); err != nil {
		return nil, err
	}
	switch {
	case flags&1 != 0:
		return nil, Refuse(e.Name, "it is encrypted")
	case e.method != 0 && e.method != 8:
		return nil, Refuse(e.Name, "its compression has the number %d, and only stored and deflated files are read", e.method)
	case packed > math.MaxInt64 || size > math.MaxInt64 || start > math.MaxInt64:
		return nil, Refuse(e.Name, "its sizes are impossible")
	}
	e.packed, e.Size, e.headerStart = int64(packed), int64(size), int64(start)
	attributes := binary.LittleEndian.Uint32(b[38:])
	var unix uint32
	if maker := b[5]; maker == 3 || maker == 19 { // Unix, macOS
		unix = attributes >> 16
	}
	slash := len(e.Name) > 0 && e.Name[len(e.Name)-1] == '/'
	e.Mode = unix & 0o777
	switch unix & modeType {
	case modeSymlink:
		e.Kind = Symlink
	case modeDir:
		e.Kind = Dir
	case modeFile, 0:
		if slash || attributes&0x10 != 0 && unix == 0 {
			e.Kind = Dir
		}
	default:
		return nil, Refuse(e.Name, "it is a device or a named pipe")
	}
	if unix == 0 {
		if e.Mode = 0o644; e.Kind == Dir {
			e.Mode = 0o755
		}
	}
	return e, nil
}

// extra reads the extra fields of a row: sizes beyond 4 GiB, and a time of Unix.
func (e *zipEntry) extra(b []byte, size, packed, start *uint64) error {
	for len(b) >= 4 {
		id, n := binary.LittleEndian.Uint16(b), int(binary.LittleEndian.Uint16(b[2:]))
		if b = b[4:]; n > len(b) {
			return nil // programs leave all kinds of things here
		}
		field := b[:n]
		b = b[n:]
		switch id {
		case 1:
			for _, v := range []*uint64{size, packed, start} {
				if *v != math.MaxUint32 {
					continue
				}
				if len(field) < 8 {
					return Refuse(e.Name, "its sizes are missing")
				}
				*v, field = binary.LittleEndian.Uint64(field), field[8:]
			}
		case 0x5455:
			if len(field) >= 5 && field[0]&1 != 0 {
				e.ModTime = time.Unix(int64(int32(binary.LittleEndian.Uint32(field[1:]))), 0)
			}
		}
	}
	return nil
}

func dosTime(date, clock uint16) time.Time {
	return time.Date(int(date>>9)+1980, time.Month(date>>5&15), int(date&31), int(clock>>11), int(clock>>5&63), int(clock&31)*2, 0, time.UTC)
}

// content returns the bytes of an entry, which fail unless they are as many as the
// directory says and have its checksum.
func (z *zipReader) content(e *zipEntry) (io.Reader, error) {
	var b [lenLocal]byte
	if e.headerStart > z.dir-lenLocal {
		return nil, Refuse(e.Name, "it is not where the directory says")
	}
	if _, err := z.ReadAt(b[:], e.headerStart); err != nil {
		return nil, damaged(e.Name, err)
	}
	at := e.headerStart + lenLocal + int64(binary.LittleEndian.Uint16(b[26:])) + int64(binary.LittleEndian.Uint16(b[28:]))
	if binary.LittleEndian.Uint32(b[:]) != sigLocal || at > z.dir || e.packed > z.dir-at {
		return nil, Refuse(e.Name, "it is not where the directory says")
	}
	var r io.Reader = io.NewSectionReader(z, at, e.packed)
	if e.method == 8 {
		r = bufio.NewReaderSize(r, int(min(max(e.packed, 512), 64<<10)))
		if z.inflater == nil {
			z.inflater = flate.NewReader(r)
		} else if err := z.inflater.(flate.Resetter).Reset(r, nil); err != nil {
			return nil, err
		}
		r = z.inflater
	} else if e.packed != e.Size {
		return nil, Refuse(e.Name, "it is stored as it is, in %d bytes, and says that it has %d", e.packed, e.Size)
	}
	return &content{name: e.Name, r: &zipContent{r: counted{r, &z.meter, &z.out}, e: e, left: e.Size, sum: crc32.NewIEEE()}}, nil
}

type zipContent struct {
	r    io.Reader
	e    *zipEntry
	left int64
	sum  hash.Hash32
}

func (c *zipContent) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	n, err := c.r.Read(p[:min(int64(len(p)), c.left+1)])
	if c.left -= int64(n); c.left < 0 {
		return 0, Refuse(c.e.Name, "it has more than the %d bytes that it says", c.e.Size)
	}
	c.sum.Write(p[:n])
	if err == io.EOF { // an error that wraps it is a failure
		if c.left > 0 {
			return n, Refuse(c.e.Name, "it has %d bytes less than it says", c.left)
		}
		if c.sum.Sum32() != c.e.crc {
			return n, Refuse(c.e.Name, "its checksum is wrong")
		}
	}
	return n, err
}

func (z *zipReader) readTarget(e *zipEntry) error {
	if e.Size >= maxName {
		return Refuse(e.Name, "its target has %d bytes, fewer than %d are possible", e.Size, maxName)
	}
	r, err := z.content(e)
	if err != nil {
		return err
	}
	target, err := io.ReadAll(r)
	e.Target = string(target)
	return err
}
