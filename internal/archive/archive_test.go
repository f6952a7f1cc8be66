package archive_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/archive"
)

// read reads an archive and returns what is in it: "name", "name/", "name -> target" or
// "name = target", and the bytes of files.
func read(f archive.Format, data []byte, l archive.Limits) (names []string, files map[string]string, err error) {
	files = map[string]string{}
	each := func(e *archive.Entry, r io.Reader) error {
		switch e.Kind {
		case archive.Dir:
			names = append(names, e.Name+"/")
		case archive.Symlink:
			names = append(names, e.Name+" -> "+e.Target)
		case archive.Hardlink:
			names = append(names, e.Name+" = "+e.Target)
		default:
			names = append(names, e.Name)
			b, err := io.ReadAll(r)
			if err != nil {
				return err
			}
			if int64(len(b)) != e.Size {
				return fmt.Errorf("%q has %d bytes, not %d", e.Name, len(b), e.Size)
			}
			files[e.Name] = string(b)
		}
		return nil
	}
	if f == archive.Zip {
		err = archive.ReadZip(bytes.NewReader(data), int64(len(data)), l, each)
	} else {
		err = archive.Read(f, bytes.NewReader(data), l, each)
	}
	return names, files, err
}

func refused(t *testing.T, what string, err error, words string) {
	t.Helper()
	var e *ringfence.Error
	if !errors.As(err, &e) || e.Code != ringfence.CodeArchiveRefused || !strings.Contains(e.Message, words) {
		t.Errorf("%s: got %v, want archive_refused with %q", what, err, words)
	}
}

func all256() string {
	b := make([]byte, 256)
	for i := range b {
		b[i] = byte(i)
	}
	return string(b)
}

var formats = []archive.Format{archive.Tar, archive.TarGzip, archive.Zip}

// sample writes an archive with all that there can be in one.
func sample(t testing.TB, f archive.Format) []byte {
	t.Helper()
	var b bytes.Buffer
	w := archive.NewWriter(f, &b)
	for _, e := range []archive.Entry{
		{Name: "dir", Kind: archive.Dir, Mode: 0o755}, {Name: "dir/all bytes", Mode: 0o640, Size: 256}, {Name: "-dash", Mode: 0o600},
		{Name: "new\nline"}, {Name: "\xff\xfe.bin", Size: 256}, {Name: strings.Repeat("n", 255)}, {Name: "dir/link", Kind: archive.Symlink, Target: "../-dash"},
		{Name: "big", Size: 300_000},
	} {
		e.ModTime = time.Unix(1_700_000_000, 0)
		content := strings.NewReader(strings.Repeat(all256(), int(e.Size+255)/256)[:e.Size])
		if err := w.Add(&e, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestRoundTrip(t *testing.T) {
	for _, f := range formats {
		data := sample(t, f)
		names, files, err := read(f, data, archive.Limits{})
		want := []string{"dir/", "dir/all bytes", "-dash", "new\nline", "\xff\xfe.bin", strings.Repeat("n", 255), "dir/link -> ../-dash", "big"}
		if err != nil || !slices.Equal(names, want) || files["dir/all bytes"] != all256() || len(files["big"]) != 300_000 {
			t.Errorf("%s: got %q, %v", f, names, err)
		}
		// Cut short, it is never taken for a whole one, unless what is missing is padding.
		for n := 0; n < len(data); n += max(1, len(data)/97) {
			if f == archive.Tar && n > len(data)-1024 {
				continue
			}
			if _, _, err := read(f, data[:n], archive.Limits{}); err == nil {
				t.Errorf("%s: %d of %d bytes are taken for the whole", f, n, len(data))
			}
		}
	}
	_, _, err := read(archive.Tar, nil, archive.Limits{})
	refused(t, "nothing", err, "too early")
}

// A program or a network that fails is not the archive's fault.
func TestReaderFails(t *testing.T) {
	broken := errors.New("broken")
	for _, f := range []archive.Format{archive.Tar, archive.TarGzip} {
		data := sample(t, f)
		r := io.MultiReader(bytes.NewReader(data[:len(data)/2]), failing{broken})
		err := archive.Read(f, r, archive.Limits{}, func(_ *archive.Entry, r io.Reader) error { _, err := io.Copy(io.Discard, r); return err })
		if !errors.Is(err, broken) {
			t.Errorf("%s: %v", f, err)
		}
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func makeTar(headers ...tar.Header) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		h.Mode = 0o644
		w.WriteHeader(&h)
		w.Write(make([]byte, h.Size))
	}
	w.Close()
	return b.Bytes()
}

func makeZip(headers ...zip.FileHeader) []byte {
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, h := range headers {
		f, _ := w.CreateHeader(&h)
		io.WriteString(f, h.Comment) // what the file holds, for this test
	}
	w.Close()
	return b.Bytes()
}

func unixZip(name string, mode fs.FileMode, content string) zip.FileHeader {
	h := zip.FileHeader{Name: name, Comment: content}
	h.SetMode(mode)
	return h
}

func TestHostileTar(t *testing.T) {
	link := func(name, target string) tar.Header {
		return tar.Header{Name: name, Linkname: target, Typeflag: tar.TypeSymlink}
	}
	for what, c := range map[string]struct {
		header tar.Header
		words  string
	}{
		"absolute":               {tar.Header{Name: "/etc/passwd"}, "absolute"},
		"dot dot":                {tar.Header{Name: "a/../../x"}, "leaves the directory"},
		"dot dot inside":         {tar.Header{Name: "a/../x"}, "leaves the directory"},
		"only dot dot":           {tar.Header{Name: "..", Typeflag: tar.TypeDir}, "leaves the directory"},
		"file in place of it":    {tar.Header{Name: "."}, "stands for the directory"},
		"long component":         {tar.Header{Name: strings.Repeat("x", 256)}, "256 bytes"},
		"absolute link":          {link("a", "/etc"), "out of the directory"},
		"link out":               {link("a/b", "../../x"), "out of the directory"},
		"link down and up":       {link("a/b", "c/../../x"), "goes up again"},
		"link to nothing":        {link("a", ""), "nothing"},
		"hard link out":          {tar.Header{Name: "a", Linkname: "../x", Typeflag: tar.TypeLink}, "hard link"},
		"absolute hard link":     {tar.Header{Name: "a", Linkname: "/etc/passwd", Typeflag: tar.TypeLink}, "hard link"},
		"hard link to itself":    {tar.Header{Name: "a", Linkname: "./a", Typeflag: tar.TypeLink}, "hard link"},
		"character device":       {tar.Header{Name: "null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}, "device"},
		"block device":           {tar.Header{Name: "sda", Typeflag: tar.TypeBlock}, "device"},
		"FIFO":                   {tar.Header{Name: "pipe", Typeflag: tar.TypeFifo}, "named pipe"},
		"a type nobody knows":    {tar.Header{Name: "x", Typeflag: 'Q'}, "unknown type"},
		"more than it may have":  {tar.Header{Name: "x", Size: 2000}, "more than"},
		"absolute name of a dir": {tar.Header{Name: "/tmp/", Typeflag: tar.TypeDir}, "absolute"},
	} {
		good := tar.Header{Name: "good"}
		names, _, err := read(archive.Tar, makeTar(good, c.header, tar.Header{Name: "after"}), archive.Limits{Bytes: 1000})
		refused(t, what, err, c.words)
		if !slices.Equal(names, []string{"good"}) {
			t.Errorf("%s: %q was read", what, names)
		}
	}
	_, _, err := read(archive.Tar, makeTar(make([]tar.Header, 0)...), archive.Limits{})
	if err != nil {
		t.Errorf("an archive of nothing: %v", err)
	}
	many := make([]tar.Header, 11)
	for i := range many {
		many[i].Name = fmt.Sprint("f", i)
	}
	_, _, err = read(archive.Tar, makeTar(many...), archive.Limits{Entries: 10})
	refused(t, "too many entries", err, "more than 10 entries")
	_, _, err = read(archive.Tar, []byte(strings.Repeat("not an archive ", 100)), archive.Limits{})
	refused(t, "no archive", err, "damaged")
	_, _, err = read(archive.TarGzip, []byte("nor this"), archive.Limits{})
	refused(t, "no gzip", err, "")
}

// Links that stay inside stay links, whatever else the archive holds.
func TestLinksInside(t *testing.T) {
	for name, target := range map[string]string{"a": "b", "a/b": "../c", "a/b/c": "../../d/./e", "x": ".", "y": "a//b"} {
		_, _, err := read(archive.Tar, makeTar(tar.Header{Name: name, Linkname: target, Typeflag: tar.TypeSymlink}), archive.Limits{})
		if err != nil {
			t.Errorf("%s -> %s: %v", name, target, err)
		}
	}
	var left []string
	names, _, err := read(archive.Tar, makeTar(tar.Header{Name: "a", Linkname: "/etc", Typeflag: tar.TypeSymlink}, tar.Header{Name: "b"}),
		archive.Limits{LeadsOut: func(e *archive.Entry) { left = append(left, e.Name) }})
	if err != nil || !slices.Equal(names, []string{"b"}) || !slices.Equal(left, []string{"a"}) {
		t.Errorf("got %q %q %v", names, left, err)
	}
}

func TestBombs(t *testing.T) {
	var b bytes.Buffer
	gz, _ := gzip.NewWriterLevel(&b, gzip.BestCompression)
	w := tar.NewWriter(gz)
	w.WriteHeader(&tar.Header{Name: "zeros", Size: 8 << 20, Mode: 0o644, Typeflag: tar.TypeReg})
	io.CopyN(w, zeros{}, 8<<20)
	w.Close()
	gz.Close()
	l := archive.Limits{Ratio: 100, RatioFrom: 1 << 20}
	_, _, err := read(archive.TarGzip, b.Bytes(), l)
	refused(t, "gzip", err, "bomb")

	b.Reset()
	z := zip.NewWriter(&b)
	f, _ := z.Create("zeros")
	io.CopyN(f, zeros{}, 8<<20)
	z.Close()
	_, _, err = read(archive.Zip, b.Bytes(), l)
	refused(t, "zip", err, "bomb")
	_, _, err = read(archive.Zip, b.Bytes(), archive.Limits{Bytes: 1 << 20})
	refused(t, "zip over the limit", err, "more than 1048576 bytes")

	// A tar that says that it has a hole.
	sparse := makeTar(tar.Header{Name: "s", Typeflag: tar.TypeReg, Size: 512})
	sparse[156] = 'S'
	copy(sparse[124:], "00000000000\x00") // stored bytes
	copy(sparse[386:], "00000000000\x0000000000000\x00")
	copy(sparse[483:], "77777777777\x00") // 8 GiB
	fixChecksum(sparse)
	_, _, err = read(archive.Tar, sparse, archive.Limits{Bytes: 1 << 30})
	refused(t, "sparse tar", err, "")
}

func fixChecksum(header []byte) {
	copy(header[148:], "        ")
	sum := 0
	for _, c := range header[:512] {
		sum += int(c)
	}
	copy(header[148:], fmt.Sprintf("%06o\x00 ", sum))
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestHostileZip(t *testing.T) {
	for what, c := range map[string]struct {
		header zip.FileHeader
		words  string
	}{
		"absolute":  {unixZip("/etc/passwd", 0o644, "x"), "absolute"},
		"dot dot":   {unixZip("a/../../x", 0o644, "x"), "leaves the directory"},
		"link out":  {unixZip("a/b", fs.ModeSymlink|0o777, "../../etc"), "out of the directory"},
		"abs link":  {unixZip("a", fs.ModeSymlink|0o777, "/etc"), "out of the directory"},
		"long link": {unixZip("a", fs.ModeSymlink|0o777, strings.Repeat("x/", 4000)), "target has"},
		"device":    {unixZip("a", fs.ModeDevice|0o600, ""), "device"},
		"FIFO":      {unixZip("a", fs.ModeNamedPipe|0o600, ""), "device or a named pipe"},
		"zero byte": {unixZip("a\x00b", 0o600, ""), "zero byte"},
	} {
		names, _, err := read(archive.Zip, makeZip(unixZip("good", 0o644, "x"), c.header), archive.Limits{})
		refused(t, what, err, c.words)
		if !slices.Equal(names, []string{"good"}) {
			t.Errorf("%s: %q was read", what, names)
		}
	}

	// Lies in the directory. The only row of it begins at its signature.
	stored := unixZip("f", 0o644, strings.Repeat("abc", 100))
	deflated := stored
	deflated.Method = zip.Deflate
	for what, c := range map[string]struct {
		header zip.FileHeader
		change func(row []byte)
		words  string
	}{
		"stored and larger":   {stored, func(row []byte) { binary.LittleEndian.PutUint32(row[24:], 1<<20) }, "stored as it is"},
		"deflated and larger": {deflated, func(row []byte) { binary.LittleEndian.PutUint32(row[24:], 301) }, "less than it says"},
		"deflated, smaller":   {deflated, func(row []byte) { binary.LittleEndian.PutUint32(row[24:], 299) }, "more than the 299 bytes"},
		"its checksum":        {deflated, func(row []byte) { row[16]++ }, "checksum"},
		"where it is":         {stored, func(row []byte) { binary.LittleEndian.PutUint32(row[42:], 1<<30) }, "not where"},
		"inside of another":   {stored, func(row []byte) { binary.LittleEndian.PutUint32(row[42:], 7) }, "not where"},
		"encrypted":           {stored, func(row []byte) { row[8] |= 1 }, "encrypted"},
		"another compression": {stored, func(row []byte) { row[10] = 12 }, "compression"},
		"more than there is":  {deflated, func(row []byte) { binary.LittleEndian.PutUint32(row[20:], 1<<20) }, "not where"},
	} {
		data := makeZip(c.header)
		c.change(data[bytes.LastIndex(data, []byte("PK\x01\x02")):])
		_, files, err := read(archive.Zip, data, archive.Limits{})
		refused(t, what, err, c.words)
		if len(files) > 0 {
			t.Errorf("%s: %q was taken", what, slices.Collect(maps.Keys(files)))
		}
	}
	data := makeZip(stored, deflated)
	end := data[bytes.LastIndex(data, []byte("PK\x05\x06")):]
	end[8], end[10] = 9, 9
	_, _, err := read(archive.Zip, data, archive.Limits{})
	refused(t, "another number of entries", err, "says that it has 9")
	end[8], end[9], end[10], end[11] = 0xfe, 0xff, 0xfe, 0xff
	_, _, err = read(archive.Zip, data, archive.Limits{Entries: 1000})
	refused(t, "a huge number of entries", err, "more than 1000")
	_, _, err = read(archive.Zip, nil, archive.Limits{})
	refused(t, "nothing", err, "no zip")
}

// FuzzRead gives arbitrary bytes to the readers. Whatever they say, what comes out obeys
// the limits and stays inside.
func FuzzRead(f *testing.F) {
	for i, format := range formats {
		f.Add(byte(i), sample(f, format))
	}
	f.Add(byte(2), makeZip(unixZip("a", fs.ModeSymlink|0o777, "b")))
	f.Fuzz(func(t *testing.T, kind byte, data []byte) {
		var total int64
		limits := archive.Limits{Entries: 1000, Bytes: 1 << 20}
		entries := 0
		each := func(e *archive.Entry, r io.Reader) error {
			entries++
			for part := range strings.SplitSeq(e.Name, "/") {
				if part == "" || part == "." || part == ".." || len(part) > 255 || strings.Contains(part, "\x00") {
					t.Fatalf("the name %q", e.Name)
				}
			}
			if e.Kind == archive.Symlink {
				depth := strings.Count(e.Name, "/")
				for part := range strings.SplitSeq(e.Target, "/") {
					if part == ".." {
						depth--
					}
				}
				if strings.HasPrefix(e.Target, "/") || e.Target == "" || depth < 0 {
					t.Fatalf("%q leads to %q", e.Name, e.Target)
				}
			}
			n, err := io.Copy(io.Discard, r)
			total += n
			return err
		}
		var err error
		if format := formats[int(kind)%len(formats)]; format == archive.Zip {
			err = archive.ReadZip(bytes.NewReader(data), int64(len(data)), limits, each)
		} else {
			err = archive.Read(format, bytes.NewReader(data), limits, each)
		}
		if entries > 1000 || total > 1<<20 {
			t.Fatalf("%d entries with %d bytes", entries, total)
		}
		var e *ringfence.Error
		if err != nil && !errors.As(err, &e) {
			t.Fatalf("an error without a code: %v", err)
		}
	})
}
