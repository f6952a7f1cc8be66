package guest_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand"
	"path/filepath"
	"sort"
	"strings"
	"testing"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/guestproto"
)

func at(path string) guestproto.FilePath { return guestproto.FilePath{Path: path} }

func (b *bed) read(t testing.TB, f guestproto.FileRead) ([]byte, error) {
	t.Helper()
	_, r, err := b.conn.ReadFile(testContext(t), f)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

func (b *bed) write(t testing.TB, f guestproto.FileWrite, data []byte) guestproto.FileInfo {
	t.Helper()
	info, err := b.conn.WriteFile(testContext(t), f, bytes.NewReader(data))
	if err != nil {
		t.Fatalf("cannot write %q: %v", f.Path, err)
	}
	return info
}

// place is a directory for a test's files.
func (b *bed) place(t testing.TB) string {
	if b.gvisor {
		return "/srv/place"
	}
	return filepath.Join(t.TempDir(), "place")
}

func randomBytes(n int) []byte {
	data := make([]byte, n)
	rand.New(rand.NewSource(int64(n))).Read(data)
	return data
}

func TestFileRoundTrip(t *testing.T) {
	eachBed(t, func(t *testing.T, b *bed) {
		dir := b.place(t)
		for _, n := range []int{0, 1, 1000, 256 << 10, 256<<10 + 1, 20<<20 + 7} {
			data := randomBytes(n)
			p := dir + "/a/b/data"
			info := b.write(t, guestproto.FileWrite{FilePath: at(p)}, data)
			if info.Size != int64(n) || info.Type != "file" || info.Mode != 0o644 || info.Path != p || info.Owner != "root" {
				t.Errorf("got %+v", info)
			}
			got, err := b.read(t, guestproto.FileRead{FilePath: at(p)})
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d bytes: got %d bytes, %v", n, len(got), err)
			}
		}
		if info, err := b.conn.StatFile(testContext(t), at(dir+"/a")); err != nil || info.Type != "directory" || info.Mode != 0o755 {
			t.Errorf("got %+v, %v", info, err)
		}
		names := b.list(t, guestproto.FileList{FilePath: at(dir), Depth: 9})
		if want := []string{dir + "/a", dir + "/a/b", dir + "/a/b/data"}; !equal(names, want) {
			t.Errorf("a temporary file is left: got %q", names)
		}
	})
}

func (b *bed) list(t testing.TB, f guestproto.FileList) []string {
	t.Helper()
	var names []string
	err := b.conn.ListFiles(testContext(t), f, func(i guestproto.FileInfo) error {
		names = append(names, i.Path)
		return nil
	})
	if err != nil {
		t.Fatalf("cannot list %q: %v", f.Path, err)
	}
	sort.Strings(names)
	return names
}

func equal(a, b []string) bool {
	return strings.Join(a, "\x00") == strings.Join(b, "\x00") && len(a) == len(b)
}

func TestFileRanges(t *testing.T) {
	eachBed(t, func(t *testing.T, b *bed) {
		p := b.place(t) + "/r"
		data := randomBytes(1 << 20)
		b.write(t, guestproto.FileWrite{FilePath: at(p)}, data)
		for _, c := range []struct{ offset, length, from, to int64 }{
			{0, 0, 0, 1 << 20}, {10, 20, 10, 30}, {1<<20 - 5, 0, 1<<20 - 5, 1 << 20}, {1<<20 - 5, 100, 1<<20 - 5, 1 << 20}, {1 << 20, 0, 1 << 20, 1 << 20},
		} {
			got, err := b.read(t, guestproto.FileRead{FilePath: at(p), Offset: c.offset, Length: c.length})
			if err != nil || !bytes.Equal(got, data[c.from:c.to]) {
				t.Errorf("%+v: got %d bytes, %v", c, len(got), err)
			}
		}
		_, err := b.read(t, guestproto.FileRead{FilePath: at(p), Offset: 1<<20 + 1})
		wantCode(t, err, ringfence.CodeRangeInvalid, "")
		_, err = b.read(t, guestproto.FileRead{FilePath: at(p), Offset: -1})
		wantCode(t, err, ringfence.CodeRangeInvalid, "")
	})
}

func TestFileNames(t *testing.T) {
	eachBed(t, func(t *testing.T, b *bed) {
		dir := b.place(t)
		names := []string{"a b", "-rf", "new\nline", "tab\t", "ü 漢字 🎉", strings.Repeat("n", 255), "\xff\xfe\x80", "back\\slash", "quote'\"", "..."}
		want := make([]string, 0, len(names))
		for _, name := range names {
			p := dir + "/" + name
			want = append(want, p)
			info := b.write(t, guestproto.FileWrite{FilePath: at(p)}, []byte(name))
			if info.Path != p {
				t.Errorf("got path %q, want %q", info.Path, p)
			}
			if got, err := b.read(t, guestproto.FileRead{FilePath: at(p)}); err != nil || string(got) != name {
				t.Errorf("%q: got %q, %v", name, got, err)
			}
		}
		sort.Strings(want)
		if got := b.list(t, guestproto.FileList{FilePath: at(dir)}); !equal(got, want) {
			t.Errorf("got %q", got)
		}
		for _, name := range names {
			if info, err := b.conn.Rename(testContext(t), guestproto.FileRename{FilePath: at(dir + "/" + name), To: dir + "/x\xff"}); err != nil || info.Path != dir+"/x\xff" {
				t.Errorf("%q: got %+v, %v", name, info, err)
			}
			if err := b.conn.Remove(testContext(t), guestproto.FileRemove{FilePath: at(dir + "/x\xff")}); err != nil {
				t.Errorf("%q: %v", name, err)
			}
		}
		_, err := b.conn.WriteFile(testContext(t), guestproto.FileWrite{FilePath: at(dir + "/" + strings.Repeat("n", 256))}, strings.NewReader(""))
		wantCode(t, err, ringfence.CodeInvalidArgument, "path")
	})
}

func TestFileErrors(t *testing.T) {
	eachBed(t, func(t *testing.T, b *bed) {
		dir := b.place(t)
		ctx := testContext(t)
		b.write(t, guestproto.FileWrite{FilePath: at(dir + "/full/file")}, []byte("x"))
		b.sh(t, "cd "+dir+" && mkfifo fifo && ln -s file full/link && ln -s nowhere dangling && ln -s loop loop && mkdir empty && chmod 700 . && mkdir open && chmod 777 open")
		readErr := func(p string) error { _, err := b.read(t, guestproto.FileRead{FilePath: at(p)}); return err }
		writeErr := func(p string) error {
			_, err := b.conn.WriteFile(ctx, guestproto.FileWrite{FilePath: at(p)}, strings.NewReader("new"))
			return err
		}
		for _, c := range []struct {
			name string
			err  error
			code ringfence.Code
		}{
			{"ReadMissing", readErr(dir + "/nothing"), ringfence.CodeFileNotFound},
			{"ReadDirectory", readErr(dir), ringfence.CodeIsDirectory},
			{"ReadFIFO", readErr(dir + "/fifo"), ringfence.CodeInvalidArgument},
			{"ReadDevice", readErr("/dev/zero"), ringfence.CodeInvalidArgument},
			{"ReadRelative", readErr("file"), ringfence.CodeInvalidArgument},
			{"ReadEmptyPath", readErr(""), ringfence.CodeInvalidArgument},
			{"ReadNUL", readErr("/a\x00b"), ringfence.CodeInvalidArgument},
			{"ReadThroughFile", readErr(dir + "/full/file/x"), ringfence.CodeNotDirectory},
			{"ReadLoop", readErr(dir + "/loop"), ringfence.CodeInvalidArgument},
			{"WriteDirectory", writeErr(dir + "/full"), ringfence.CodeIsDirectory},
			{"WriteSlash", writeErr(dir + "/full/"), ringfence.CodeIsDirectory},
			{"WriteRoot", writeErr("/"), ringfence.CodeIsDirectory},
			{"WriteFIFO", writeErr(dir + "/fifo"), ringfence.CodeInvalidArgument},
			{"WriteDevice", writeErr("/dev/null"), ringfence.CodeInvalidArgument},
			{"WriteThroughFile", writeErr(dir + "/full/file/x"), ringfence.CodeNotDirectory},
			{"WriteRelative", writeErr("x"), ringfence.CodeInvalidArgument},
			{"RemoveMissing", b.conn.Remove(ctx, guestproto.FileRemove{FilePath: at(dir + "/nothing")}), ringfence.CodeFileNotFound},
			{"RemoveFull", b.conn.Remove(ctx, guestproto.FileRemove{FilePath: at(dir + "/full")}), ringfence.CodeDirectoryNotEmpty},
			{"RemoveRoot", b.conn.Remove(ctx, guestproto.FileRemove{FilePath: at("/"), Recursive: true}), ringfence.CodeInvalidArgument},
			{"ListFile", b.conn.ListFiles(ctx, guestproto.FileList{FilePath: at(dir + "/full/file")}, nil), ringfence.CodeNotDirectory},
			{"ListMissing", b.conn.ListFiles(ctx, guestproto.FileList{FilePath: at(dir + "/nothing")}, nil), ringfence.CodeFileNotFound},
			{"ListTooDeep", b.conn.ListFiles(ctx, guestproto.FileList{FilePath: at(dir), Depth: 65}, nil), ringfence.CodeInvalidArgument},
		} {
			if ringfence.CodeOf(c.err) != c.code {
				t.Errorf("%s: got %v (%s), want %s", c.name, c.err, ringfence.CodeOf(c.err), c.code)
			}
		}
		if _, err := b.conn.Mkdir(ctx, guestproto.FileMkdir{FilePath: at(dir + "/full/file")}); ringfence.CodeOf(err) != ringfence.CodeFileExists {
			t.Errorf("got %v", err)
		}
		if _, err := b.conn.Mkdir(ctx, guestproto.FileMkdir{FilePath: at(dir + "/full")}); err != nil {
			t.Errorf("a directory that is there: %v", err)
		}
		if _, err := b.conn.Rename(ctx, guestproto.FileRename{FilePath: at(dir + "/empty"), To: dir + "/no/such"}); ringfence.CodeOf(err) != ringfence.CodeFileNotFound {
			t.Errorf("got %v", err)
		}

		// Links: writing goes to what they lead to, stat and list show them.
		b.write(t, guestproto.FileWrite{FilePath: at(dir + "/full/link")}, []byte("through"))
		b.write(t, guestproto.FileWrite{FilePath: at(dir + "/dangling")}, []byte("made"))
		if got, _ := b.read(t, guestproto.FileRead{FilePath: at(dir + "/full/file")}); string(got) != "through" {
			t.Errorf("got %q", got)
		}
		if got, _ := b.read(t, guestproto.FileRead{FilePath: at(dir + "/nowhere")}); string(got) != "made" {
			t.Errorf("got %q", got)
		}
		if info, err := b.conn.StatFile(ctx, at(dir+"/full/link")); err != nil || info.Type != "symlink" || info.Target != "file" {
			t.Errorf("got %+v, %v", info, err)
		}

		// Recursive removal does not follow links.
		b.sh(t, "cd "+dir+" && mkdir -p deep/a/b && ln -s ../../full deep/a/link && ln -s /etc deep/etc && touch deep/a/b/{1,2,3}")
		if err := b.conn.Remove(ctx, guestproto.FileRemove{FilePath: at(dir + "/deep"), Recursive: true}); err != nil {
			t.Error(err)
		}
		if _, err := b.conn.StatFile(ctx, at(dir+"/deep")); ringfence.CodeOf(err) != ringfence.CodeFileNotFound {
			t.Errorf("got %v", err)
		}
		for _, p := range []string{dir + "/full/file", "/etc/passwd"} {
			if _, err := b.conn.StatFile(ctx, at(p)); err != nil {
				t.Errorf("removal followed a link: %v", err)
			}
		}
	})
}

func TestFileUsers(t *testing.T) {
	eachBed(t, func(t *testing.T, b *bed) {
		dir := b.place(t)
		ctx := testContext(t)
		const user = "1000"
		as := func(p string) guestproto.FilePath { return guestproto.FilePath{Path: p, User: user} }
		b.write(t, guestproto.FileWrite{FilePath: at(dir + "/secret"), Mode: 0o600}, []byte("root's"))
		b.sh(t, "d="+dir+"; while [ $d != / ]; do chmod a+x $d; d=$(dirname $d); done; chmod 755 "+dir+"; mkdir -m 777 "+dir+"/open; echo r > "+dir+"/open/rootfile")

		_, err := b.read(t, guestproto.FileRead{FilePath: as(dir + "/secret")})
		wantCode(t, err, ringfence.CodeFilePermission, "path")
		for _, p := range []string{dir + "/new", dir + "/secret", dir + "/open/rootfile"} {
			_, err = b.conn.WriteFile(ctx, guestproto.FileWrite{FilePath: as(p)}, strings.NewReader("x"))
			wantCode(t, err, ringfence.CodeFilePermission, "path")
		}
		_, err = b.conn.WriteFile(ctx, guestproto.FileWrite{FilePath: as(dir + "/open/gift"), Owner: "root"}, strings.NewReader("x"))
		wantCode(t, err, ringfence.CodeFilePermission, "path")
		if got := b.list(t, guestproto.FileList{FilePath: at(dir + "/open")}); !equal(got, []string{dir + "/open/rootfile"}) {
			t.Errorf("something is left: %q", got)
		}
		err = b.conn.Remove(ctx, guestproto.FileRemove{FilePath: as(dir + "/secret")})
		wantCode(t, err, ringfence.CodeFilePermission, "path")

		info := b.write(t, guestproto.FileWrite{FilePath: as(dir + "/open/x/mine"), Mode: 0o640}, []byte("x"))
		if info.UID != 1000 || info.GID != 1000 || info.Mode != 0o640 {
			t.Errorf("got %+v", info)
		}
		if info, err := b.conn.StatFile(ctx, at(dir+"/open/x")); err != nil || info.UID != 1000 {
			t.Errorf("the parent: got %+v, %v", info, err)
		}
		// root writes over it: the owner and the mode stay.
		if info := b.write(t, guestproto.FileWrite{FilePath: at(dir + "/open/x/mine")}, []byte("y")); info.UID != 1000 || info.Mode != 0o640 {
			t.Errorf("got %+v", info)
		}
		info = b.write(t, guestproto.FileWrite{FilePath: at(dir + "/for/user"), Owner: user, Mode: 0o4755}, []byte("y"))
		if info.UID != 1000 || info.Mode != 0o4755 {
			t.Errorf("got %+v", info)
		}
		if info, err := b.conn.StatFile(ctx, at(dir+"/for")); err != nil || info.UID != 1000 {
			t.Errorf("the parent: got %+v, %v", info, err)
		}
		if info, err := b.conn.Mkdir(ctx, guestproto.FileMkdir{FilePath: at(dir + "/m/n"), Owner: user, Mode: 0o1777}); err != nil || info.UID != 1000 || info.Mode != 0o1777 {
			t.Errorf("got %+v, %v", info, err)
		}
		_, err = b.conn.StatFile(ctx, guestproto.FilePath{Path: "/", User: "who"})
		wantCode(t, err, ringfence.CodeInvalidArgument, "user")
		_, err = b.conn.WriteFile(ctx, guestproto.FileWrite{FilePath: at(dir + "/x"), Owner: "who"}, strings.NewReader(""))
		wantCode(t, err, ringfence.CodeInvalidArgument, "owner")
		// And root is root again afterwards.
		if _, err := b.read(t, guestproto.FileRead{FilePath: at(dir + "/secret")}); err != nil {
			t.Error(err)
		}
	})
}

// failingReader fails after some bytes.
type failingReader struct {
	n   int
	err error // errReader when nil
}

var errReader = errors.New("the caller's reader failed")

func (r *failingReader) Read(p []byte) (int, error) {
	if r.n <= 0 && r.err != nil {
		return 0, r.err
	}
	if r.n <= 0 {
		return 0, errReader
	}
	n := min(len(p), r.n)
	r.n -= n
	return n, nil
}

func TestFileWriteGivenUp(t *testing.T) {
	eachBed(t, func(t *testing.T, b *bed) {
		dir := b.place(t)
		b.write(t, guestproto.FileWrite{FilePath: at(dir + "/f")}, []byte("old"))
		if _, err := b.conn.WriteFile(testContext(t), guestproto.FileWrite{FilePath: at(dir + "/f")}, &failingReader{n: 3 << 20}); !errors.Is(err, errReader) {
			t.Errorf("got %v", err)
		}
		// As an HTTP body does whose sender went away.
		cut := io.MultiReader(strings.NewReader("half"), &failingReader{err: io.ErrUnexpectedEOF})
		if _, err := b.conn.WriteFile(testContext(t), guestproto.FileWrite{FilePath: at(dir + "/f")}, cut); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("got %v", err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		r, w := io.Pipe()
		go func() { w.Write(make([]byte, 1<<20)); cancel(); w.Close() }() // the end comes after the cancellation
		if _, err := b.conn.WriteFile(ctx, guestproto.FileWrite{FilePath: at(dir + "/f")}, r); ringfence.CodeOf(err) != ringfence.CodeCanceled {
			t.Errorf("got %v", err)
		}
		waitFor(t, func() bool { return equal(b.list(t, guestproto.FileList{FilePath: at(dir)}), []string{dir + "/f"}) })
		if got, err := b.read(t, guestproto.FileRead{FilePath: at(dir + "/f")}); string(got) != "old" {
			t.Errorf("got %.40q, %v", got, err)
		}
	})
}

func TestFileListLarge(t *testing.T) {
	eachBed(t, func(t *testing.T, b *bed) {
		dir := b.place(t)
		b.sh(t, "mkdir -p "+dir+" && cd "+dir+" && seq -f 'file%06g' 5000 | xargs touch && mkdir sub && touch sub/x")
		if got := b.list(t, guestproto.FileList{FilePath: at(dir)}); len(got) != 5001 {
			t.Errorf("got %d entries", len(got))
		}
		// A caller that has enough ends it.
		stop, n := errors.New("enough"), 0
		err := b.conn.ListFiles(testContext(t), guestproto.FileList{FilePath: at(dir)}, func(guestproto.FileInfo) error {
			if n++; n == 10 {
				return stop
			}
			return nil
		})
		if !errors.Is(err, stop) {
			t.Errorf("got %v", err)
		}
		if _, err := b.conn.Ping(testContext(t)); err != nil {
			t.Error(err)
		}
		if err := b.conn.Remove(testContext(t), guestproto.FileRemove{FilePath: at(dir), Recursive: true}); err != nil {
			t.Error(err)
		}
	})
}

// Large files pass with the same content and without growing the agent.
func TestFileMemoryIsFlat(t *testing.T) {
	b := gvisorBed(t, ringfence.Size{VCPU: 2, MemoryMiB: 256, DiskMiB: 1024})
	const size = 300 << 20
	sum := sha256.New()
	src := io.TeeReader(io.LimitReader(rand.New(rand.NewSource(1)), size), sum)
	begin := time.Now()
	if _, err := b.conn.WriteFile(testContext(t), guestproto.FileWrite{FilePath: at("/srv/big")}, src); err != nil {
		t.Fatal(err)
	}
	t.Logf("written in %v", time.Since(begin))
	begin = time.Now()
	_, r, err := b.conn.ReadFile(testContext(t), guestproto.FileRead{FilePath: at("/srv/big")})
	if err != nil {
		t.Fatal(err)
	}
	back := sha256.New()
	if n, err := io.Copy(back, r); err != nil || n != size || !bytes.Equal(back.Sum(nil), sum.Sum(nil)) {
		t.Errorf("got %d bytes, %v; the same: %v", n, err, bytes.Equal(back.Sum(nil), sum.Sum(nil)))
	}
	t.Logf("read in %v", time.Since(begin))
	s, err := b.conn.Stats(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	if used := s.MemTotalBytes - s.MemFreeBytes; used > 64<<20 {
		t.Errorf("%d MiB of memory are used", used>>20)
	}
}

func TestDiskFull(t *testing.T) {
	b := gvisorBed(t, ringfence.Size{VCPU: 2, MemoryMiB: 256, DiskMiB: 64})
	for _, dir := range []string{"/srv/d", "/tmp", "/root"} {
		_, err := b.conn.WriteFile(testContext(t), guestproto.FileWrite{FilePath: at(dir + "/big")}, &failingReader{n: 200 << 20})
		wantCode(t, err, ringfence.CodeDiskFull, "path")
		names := b.list(t, guestproto.FileList{FilePath: at(dir)})
		for _, name := range names {
			if strings.Contains(name, ".rf-") || strings.HasSuffix(name, "/big") {
				t.Errorf("%q is left", name)
			}
		}
	}
	b.write(t, guestproto.FileWrite{FilePath: at("/srv/after")}, randomBytes(1<<20))
	r := b.sh(t, "dd if=/dev/zero of=/tmp/x bs=1M count=200 2>&1 | grep -c 'No space'; rm /tmp/x")
	if r.stdout != "1\n" {
		t.Errorf("got %+v", r)
	}
}
