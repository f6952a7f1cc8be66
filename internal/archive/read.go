package archive

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"errors"
	"io"

	"ringfence.dev/ringfence"
)

// Each is told of every entry, in the order of the archive. content holds the bytes of
// a file and fails when they are not those that the archive promised; what of it is not
// read is skipped. An error ends the reading and is returned as it is.
type Each func(e *Entry, content io.Reader) error

// meter holds what is read of an archive to its limits.
type meter struct {
	Limits
	entries int64
	in      int64 // bytes of the archive
	out     int64 // bytes that came out of it: of files, or out of the compression
	promise int64 // bytes that the files say to have
}

func (m *meter) entry(e *Entry) error {
	if m.entries++; m.entries > m.Entries {
		return Refuse("", "it has more than %d entries", m.Entries)
	}
	if e.Kind != File {
		return nil
	}
	if e.Size < 0 || e.Size > m.Bytes-m.promise {
		return Refuse(e.Name, "with it, the files have more than %d bytes", m.Bytes)
	}
	m.promise += e.Size
	return nil
}

// grow counts bytes that came out.
func (m *meter) grow(count *int64, n int) error {
	*count += int64(n)
	if *count > m.RatioFrom && *count/m.Ratio > m.in {
		return Refuse("", "it is a bomb: %d bytes of it became %d", m.in, *count)
	}
	return nil
}

// source is the archive's own bytes. It remembers a failure of whoever gives them, which
// is not the archive's.
type source struct {
	r   io.Reader
	m   *meter
	err error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	s.m.in += int64(n)
	if err != nil && err != io.EOF { // an error that wraps it is a failure
		s.err = err
	}
	return n, err
}

// counted holds what comes out to the meter.
type counted struct {
	r     io.Reader
	m     *meter
	count *int64
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if gerr := c.m.grow(c.count, n); gerr != nil {
		return 0, gerr
	}
	return n, err
}

// readBuffer is how much of an archive is read at a time, in bytes.
const readBuffer = 256 << 10

// maxTrailer is how much may follow the end of a tar archive: programs fill its last
// record up.
const maxTrailer = 16 << 20

// Read reads a tar or tar.gz archive to its end; a zip archive is not a stream, see
// ReadZip. An archive that is damaged, ends early, or is refused: archive_refused.
func Read(f Format, r io.Reader, l Limits, each Each) error {
	m := &meter{Limits: l.filled()}
	s := &source{r: r, m: m}
	err := readTar(f, s, m, each)
	if err != nil && s.err != nil {
		return s.err
	}
	return err
}

func readTar(f Format, s *source, m *meter, each Each) error {
	// The bytes go through a buffer only where someone asks for few at a time.
	var stream io.Reader = s
	if f == TarGzip {
		gz, err := gzip.NewReader(bufio.NewReaderSize(s, readBuffer))
		if err != nil {
			return damaged("", err)
		}
		var out int64
		stream = counted{gz, m, &out}
	}
	buffered := &ending{r: bufio.NewReaderSize(stream, readBuffer)}
	tr := tar.NewReader(buffered)
	last := ""
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) && buffered.ended { // an archive says where its end is
			return Refuse("", "the archive ends too early")
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) { // names are checked below
			return damaged(last, err)
		}
		if h.Typeflag == tar.TypeXGlobalHeader { // it speaks about the entries after it, and nothing that matters here
			if m.entries++; m.entries > m.Entries {
				return Refuse("", "it has more than %d entries", m.Entries)
			}
			continue
		}
		e := &Entry{Name: h.Name, Mode: uint32(h.Mode) & 0o777, ModTime: h.ModTime, Target: h.Linkname}
		switch h.Typeflag {
		case tar.TypeReg:
			e.Kind, e.Size = File, h.Size
		case tar.TypeDir:
			e.Kind = Dir
		case tar.TypeSymlink:
			e.Kind = Symlink
		case tar.TypeLink:
			e.Kind = Hardlink
		case tar.TypeChar, tar.TypeBlock:
			return Refuse(h.Name, "it is a device")
		case tar.TypeFifo:
			return Refuse(h.Name, "it is a named pipe")
		default:
			return Refuse(h.Name, "it is of the unknown type %q", h.Typeflag)
		}
		last = h.Name
		skip, err := e.check(m.LeadsOut)
		if err == nil {
			err = m.entry(e)
		}
		if err != nil {
			return err
		}
		if skip {
			continue
		}
		content := &content{name: e.Name, r: counted{tr, m, &m.out}}
		if err := each(e, content); err != nil {
			return err
		}
	}
	n, err := io.CopyN(io.Discard, buffered, maxTrailer+1)
	if n > maxTrailer {
		return Refuse("", "it goes on after its end")
	}
	if !errors.Is(err, io.EOF) {
		return damaged("", err)
	}
	return nil
}

// ending remembers whether its reader came to its end.
type ending struct {
	r     io.Reader
	ended bool
}

func (e *ending) Read(p []byte) (int, error) {
	n, err := e.r.Read(p)
	e.ended = e.ended || err == io.EOF // an error that wraps it is a failure
	return n, err
}

// content says what went wrong with a file's bytes in the archive's terms.
type content struct {
	name string
	r    io.Reader
}

func (c *content) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if err != nil && err != io.EOF { //nolint:errorlint // an error that wraps it is a failure
		err = damaged(c.name, err)
	}
	return n, err
}

// damaged is an archive that cannot be read. An error of ours says why itself.
func damaged(name string, err error) error {
	var own *ringfence.Error
	if errors.As(err, &own) {
		return err
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return Refuse(name, "the archive ends too early")
	}
	return Refuse(name, "the archive is damaged: %v", err)
}
