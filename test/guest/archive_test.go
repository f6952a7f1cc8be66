package guest_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/archive"
	"ringfence.dev/ringfence/internal/guestproto"
)

func (b *bed) pack(t testing.TB, p, format string) ([]byte, error) {
	t.Helper()
	r, err := b.conn.ReadArchive(testContext(t), guestproto.ArchiveRead{FilePath: at(p), Format: format})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

func (b *bed) unpack(t testing.TB, p, format string, data []byte) (guestproto.ArchiveWritten, error) {
	return b.conn.WriteArchive(testContext(t), guestproto.ArchiveWrite{FilePath: at(p), Format: format, Owner: "1000"}, bytes.NewReader(data))
}

// A directory that went out in a format and came back is the same.
func TestArchiveRoundTrip(t *testing.T) {
	eachBed(t, func(t *testing.T, b *bed) {
		dir := b.place(t)
		big := randomBytes(3 << 20)
		for name, data := range map[string][]byte{"sub/all": all256(), "big": big, "-dash": nil, "new\nline": []byte("x"), "\xff\xfe": []byte("y"), strings.Repeat("n", 255): []byte("z")} {
			b.write(t, guestproto.FileWrite{FilePath: at(dir + "/from/" + name), Mode: 0o750}, data)
		}
		if r := b.sh(t, "cd "+dir+"/from && ln -s sub/all link && mkfifo fifo && mkdir empty && mkdir -m 555 closed"); r.exit.ExitCode != 0 {
			t.Fatal(r.stderr)
		}
		for _, format := range []string{"tar", "tar.gz", "zip"} {
			data, err := b.pack(t, dir+"/from", format)
			if err != nil {
				t.Fatalf("%s: %v", format, err)
			}
			to := dir + "/to/" + format
			got, err := b.unpack(t, to, format, data)
			if err != nil || got.Files != 7 || got.Directories != 3 || got.Bytes != int64(len(big))+256+3 {
				t.Fatalf("%s: %+v, %v", format, got, err)
			}
			var want, have []string
			for _, list := range []struct {
				dir  string
				into *[]string
			}{{dir + "/from", &want}, {to, &have}} {
				for _, p := range b.list(t, guestproto.FileList{FilePath: at(list.dir), Depth: 9}) {
					if i := b.stat(t, p); i.Type != "other" {
						*list.into = append(*list.into, fmt.Sprintf("%q %s %o %d %d %s", strings.TrimPrefix(p, list.dir), i.Type, i.Mode, i.Size*int64(strings.Count(i.Type, "f")), i.ModTime/1e6*int64(strings.Count(i.Type, "file")), i.Target))
						if list.dir == to && i.UID != 1000 {
							t.Errorf("%s: %q belongs to %d", format, p, i.UID)
						}
					}
				}
			}
			if !slices.Equal(want, have) {
				t.Errorf("%s:\n%q\n%q", format, want, have)
			}
			if data, err := b.read(t, guestproto.FileRead{FilePath: at(to + "/big")}); err != nil || !bytes.Equal(data, big) {
				t.Errorf("%s: %v", format, err)
			}
		}
		one, err := b.pack(t, dir+"/from/sub/all", "tar")
		if err != nil {
			t.Fatal(err)
		}
		if got, err := b.unpack(t, dir+"/one", "tar", one); err != nil || got.Files != 1 || b.stat(t, dir+"/one/all").Size != 256 {
			t.Errorf("got %+v, %v", got, err)
		}
		_, err = b.pack(t, dir+"/none", "tar")
		wantCode(t, err, ringfence.CodeFileNotFound, "path")
		_, err = b.pack(t, dir+"/from/fifo", "tar")
		wantCode(t, err, ringfence.CodeInvalidArgument, "path")
		_, err = b.unpack(t, dir+"/one/all", "tar", one)
		wantCode(t, err, ringfence.CodeNotDirectory, "")
	})
}

func tarOf(headers ...tar.Header) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		if h.Typeflag == 0 {
			h.Typeflag, h.Size = tar.TypeReg, 4
		}
		h.Mode = 0o4644
		w.WriteHeader(&h)
		if h.Typeflag == tar.TypeReg {
			io.WriteString(w, "evil")
		}
	}
	w.Close()
	return b.Bytes()
}

// What leaves the directory, and devices, are refused in the sandbox too: an archive
// that its owner was given must not overwrite the sandbox's own files.
func TestArchiveHostile(t *testing.T) {
	link := func(name, target string) tar.Header {
		return tar.Header{Name: name, Linkname: target, Typeflag: tar.TypeSymlink}
	}
	file := func(name string) tar.Header { return tar.Header{Name: name} }
	eachBed(t, func(t *testing.T, b *bed) {
		dir := b.place(t)
		for what, data := range map[string][]byte{
			"absolute":          tarOf(file(dir + "/victim")),
			"dot dot":           tarOf(file("../victim")),
			"link out":          tarOf(link("l", ".."), file("l/victim")),
			"link that was":     tarOf(file("old/victim")),
			"links that add up": tarOf(tar.Header{Name: "d", Typeflag: tar.TypeDir}, link("d/l", "."), link("d/m", "l/../.."), file("d/m/victim")),
			"hard link out":     tarOf(tar.Header{Name: "h", Linkname: "../victim", Typeflag: tar.TypeLink}, file("h")),
			"hard link by link": tarOf(tar.Header{Name: "h", Linkname: "old/victim", Typeflag: tar.TypeLink}, file("h")),
			"device":            tarOf(tar.Header{Name: "sda", Typeflag: tar.TypeBlock, Devmajor: 8}),
			"FIFO":              tarOf(tar.Header{Name: "p", Typeflag: tar.TypeFifo}),
			"cut short":         tarOf(file("f"))[:514],
			"no archive":        []byte(strings.Repeat("nothing ", 200)),
		} {
			b.write(t, guestproto.FileWrite{FilePath: at(dir + "/victim")}, []byte("good"))
			if r := b.sh(t, fmt.Sprintf("rm -rf %[1]s/to; mkdir %[1]s/to; ln -s .. %[1]s/to/old", dir)); r.exit.ExitCode != 0 {
				t.Fatal(r.stderr)
			}
			_, err := b.unpack(t, dir+"/to", "tar", data)
			if ringfence.CodeOf(err) != ringfence.CodeArchiveRefused {
				t.Errorf("%s: %v", what, err)
			}
			if got, err := b.read(t, guestproto.FileRead{FilePath: at(dir + "/victim")}); string(got) != "good" {
				t.Errorf("%s: the file outside is %q, %v", what, got, err)
			}
			if names := b.list(t, guestproto.FileList{FilePath: at(dir)}); len(names) != 2 {
				t.Errorf("%s: there is %q", what, names)
			}
		}
		// What replaces something does not write through it, twice the same name included.
		if r := b.sh(t, fmt.Sprintf("rm -rf %[1]s/to; mkdir %[1]s/to; ln -s ../victim %[1]s/to/f; ln %[1]s/victim %[1]s/to/g", dir)); r.exit.ExitCode != 0 {
			t.Fatal(r.stderr)
		}
		if _, err := b.unpack(t, dir+"/to", "tar", tarOf(file("f"), file("g"), file("f"))); err != nil {
			t.Fatal(err)
		}
		if got, _ := b.read(t, guestproto.FileRead{FilePath: at(dir + "/victim")}); string(got) != "good" || b.stat(t, dir+"/to/f").Mode != 0o644 {
			t.Errorf("the file outside is %q", got)
		}
		var z bytes.Buffer
		w := zip.NewWriter(&z)
		h := &zip.FileHeader{Name: "l"}
		h.SetMode(fs.ModeSymlink | 0o777)
		f, _ := w.CreateHeader(h)
		io.WriteString(f, "/etc")
		w.Close()
		_, err := b.unpack(t, dir+"/to", "zip", z.Bytes())
		wantCode(t, err, ringfence.CodeArchiveRefused, "")
	})
}

// A program that swaps directories for links while an archive is unpacked gets nothing
// of it outside.
func TestArchiveRace(t *testing.T) {
	eachBed(t, func(t *testing.T, b *bed) {
		dir := b.place(t)
		if r := b.sh(t, fmt.Sprintf("mkdir -p %[1]s/to/a/x %[1]s/outside; cd %[1]s/to; ln -s ../outside l; ln -s ../../outside a/l", dir)); r.exit.ExitCode != 0 {
			t.Fatal(r.stderr)
		}
		// Renames over the link are quicker than a program's.
		stop, stopped := make(chan struct{}), make(chan struct{})
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		go func() {
			defer close(stopped)
			for {
				for _, r := range [][2]string{{"a", "b"}, {"l", "a"}, {"a", "l"}, {"b", "a"}, {"a/x", "a/y"}, {"a/l", "a/x"}, {"a/x", "a/l"}, {"a/y", "a/x"}} {
					select {
					case <-stop:
						return
					default:
						b.conn.Rename(ctx, guestproto.FileRename{FilePath: at(dir + "/to/" + r[0]), To: dir + "/to/" + r[1]}) // the unpacking may have been quicker
					}
				}
			}
		}()
		var data bytes.Buffer
		w := archive.NewWriter(archive.Tar, &data)
		for i := range 300 {
			for _, name := range []string{"a/x/f", "a/f", "a/x/y/f"} {
				if err := w.Add(&archive.Entry{Name: fmt.Sprintf("%s%d", name, i), Size: 4, Mode: 0o644}, strings.NewReader("evil")); err != nil {
					t.Fatal(err)
				}
			}
		}
		w.Close()
		done, refused := 0, 0
		for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
			_, err := b.unpack(t, dir+"/to", "tar", data.Bytes())
			switch ringfence.CodeOf(err) {
			case "":
				done++
			case ringfence.CodeArchiveRefused:
				refused++
			default:
				if code := ringfence.CodeOf(err); code != ringfence.CodeFileNotFound && code != ringfence.CodeFileExists && code != ringfence.CodeIsDirectory && code != ringfence.CodeNotDirectory {
					t.Error(err)
				}
			}
		}
		close(stop)
		<-stopped
		if names := b.list(t, guestproto.FileList{FilePath: at(dir + "/outside"), Depth: 9}); len(names) > 0 {
			t.Errorf("outside there is %q", names)
		}
		t.Logf("%d unpacked, %d refused", done, refused)
	})
}
