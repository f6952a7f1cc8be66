package archive

import (
	"archive/tar"
	"archive/zip"
	"compress/flate"
	"compress/gzip"
	"io"
	"io/fs"
	"time"
	"unicode/utf8"

	"ringfence.dev/ringfence"
)

// maxZipEntries is how many entries a zip archive may get: its directory is kept in
// memory until its end.
const maxZipEntries = 200_000

// Writer writes an archive as a stream.
type Writer struct {
	tar     *tar.Writer
	gz      *gzip.Writer
	zip     *zip.Writer
	entries int
	buf     []byte
}

// NewWriter returns a Writer to w, which is best buffered. Compression is quick rather
// than good.
func NewWriter(f Format, w io.Writer) *Writer {
	out := &Writer{buf: make([]byte, 256<<10)}
	switch f {
	case Zip:
		out.zip = zip.NewWriter(w)
		deflater := &deflater{}
		out.zip.RegisterCompressor(zip.Deflate, deflater.use)
	case TarGzip:
		out.gz, _ = gzip.NewWriterLevel(w, gzip.BestSpeed) // the level is a good one
		out.tar = tar.NewWriter(out.gz)
	default:
		out.tar = tar.NewWriter(w)
	}
	return out
}

// deflater is a compressor that is used for one file after the other: a new one costs
// more memory than most files have.
type deflater struct{ w *flate.Writer }

func (d *deflater) use(to io.Writer) (io.WriteCloser, error) {
	if d.w == nil {
		w, err := flate.NewWriter(to, flate.BestSpeed)
		d.w = w
		return w, err
	}
	d.w.Reset(to)
	return d.w, nil
}

// Add writes an entry; a hard link is none that can be written. content gives at least
// e.Size bytes of a file: when it gives fewer, the archive is of no use any more.
func (w *Writer) Add(e *Entry, content io.Reader) error {
	w.entries++
	body, err := w.begin(e)
	if err != nil || e.Kind != File {
		return err
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{body}, struct{ io.Reader }{io.LimitReader(content, e.Size)}, w.buf)
	if err == nil && n < e.Size {
		return ringfence.Errorf(ringfence.CodeFailedPrecondition, "the file %q shrank while it was read", e.Name)
	}
	return err
}

func (w *Writer) begin(e *Entry) (io.Writer, error) {
	if w.zip != nil {
		return w.beginZip(e)
	}
	h := &tar.Header{Name: e.Name, Mode: int64(e.Mode), ModTime: e.ModTime.Truncate(time.Second), Uid: e.UID, Gid: e.GID, Uname: e.Owner, Gname: e.Group}
	switch e.Kind {
	case Dir:
		h.Typeflag = tar.TypeDir
		h.Name += "/"
	case Symlink:
		h.Typeflag, h.Linkname = tar.TypeSymlink, e.Target
	default:
		h.Typeflag, h.Size = tar.TypeReg, e.Size
	}
	return w.tar, w.tar.WriteHeader(h)
}

func (w *Writer) beginZip(e *Entry) (io.Writer, error) {
	if w.entries > maxZipEntries {
		return nil, ringfence.Errorf(ringfence.CodeInvalidArgument, "there are more than %d files, too many for a zip archive", maxZipEntries).
			WithField("format").WithHint("ask for a tar archive")
	}
	h := &zip.FileHeader{Name: e.Name, Method: zip.Deflate, Modified: e.ModTime, NonUTF8: !utf8.ValidString(e.Name)}
	mode := fs.FileMode(e.Mode & 0o777)
	switch e.Kind {
	case Dir:
		h.Name, h.Method = e.Name+"/", zip.Store
		mode |= fs.ModeDir
	case Symlink:
		h.Method = zip.Store
		mode |= fs.ModeSymlink
	}
	h.SetMode(mode)
	body, err := w.zip.CreateHeader(h)
	if err == nil && e.Kind == Symlink {
		_, err = io.WriteString(body, e.Target)
	}
	return body, err
}

// Close writes the end. The writer below stays open.
func (w *Writer) Close() error {
	if w.zip != nil {
		return w.zip.Close()
	}
	if err := w.tar.Close(); err != nil || w.gz == nil {
		return err
	}
	return w.gz.Close()
}
