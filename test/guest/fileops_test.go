package guest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/guestproto"
)

func (b *bed) stat(t testing.TB, p string) guestproto.FileInfo {
	t.Helper()
	info, err := b.conn.StatFile(testContext(t), at(p))
	if err != nil {
		t.Fatalf("cannot look at %q: %v", p, err)
	}
	return info
}

// all256 is every value that a byte can have.
func all256() []byte {
	b := make([]byte, 256)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}

func TestFileConditions(t *testing.T) {
	eachBed(t, func(t *testing.T, b *bed) {
		dir := b.place(t)
		p := dir + "/f"
		write := func(f guestproto.FileWrite, data string) (guestproto.FileInfo, error) {
			f.FilePath = at(p)
			return b.conn.WriteFile(testContext(t), f, strings.NewReader(data))
		}
		_, err := write(guestproto.FileWrite{IfMatch: "1-2-3-4"}, "x")
		wantCode(t, err, ringfence.CodeFileNotFound, "path") // not even its directory is made
		b.write(t, guestproto.FileWrite{FilePath: at(dir + "/other")}, nil)
		_, err = write(guestproto.FileWrite{IfMatch: "1-2-3-4"}, "x")
		wantCode(t, err, ringfence.CodePreconditionFailed, "path")
		first, err := write(guestproto.FileWrite{Create: true}, "one")
		if err != nil || first.ETag == "" || first.ETag != b.stat(t, p).ETag {
			t.Fatalf("got %+v, %v; stat says %+v", first, err, b.stat(t, p))
		}
		_, err = write(guestproto.FileWrite{Create: true}, "two")
		wantCode(t, err, ringfence.CodePreconditionFailed, "path")
		second, err := write(guestproto.FileWrite{IfMatch: first.ETag}, "two")
		if err != nil || second.ETag == first.ETag {
			t.Fatalf("got %+v, %v", second, err)
		}
		_, err = write(guestproto.FileWrite{IfMatch: first.ETag}, "late")
		wantCode(t, err, ringfence.CodePreconditionFailed, "path")
		// A program changes it in place, and keeps size and time.
		if r := b.sh(t, fmt.Sprintf("touch -r %[1]s %[1]s.t; printf TWO >%[1]s; touch -r %[1]s.t %[1]s; rm %[1]s.t", p)); r.exit.ExitCode != 0 {
			t.Fatal(r.stderr)
		}
		_, err = write(guestproto.FileWrite{IfMatch: second.ETag}, "late")
		wantCode(t, err, ringfence.CodePreconditionFailed, "path")
		if got, _ := b.read(t, guestproto.FileRead{FilePath: at(p)}); string(got) != "TWO" {
			t.Errorf("it holds %q", got)
		}
		if names := b.list(t, guestproto.FileList{FilePath: at(dir)}); !slices.Equal(names, []string{p, dir + "/other"}) {
			t.Errorf("there is %q", names)
		}

		// Of many who replace the same state, one does.
		etag := b.stat(t, p).ETag
		results := make(chan error, 10)
		for i := range 10 {
			go func() {
				_, err := write(guestproto.FileWrite{IfMatch: etag}, fmt.Sprint(i))
				results <- err
			}()
		}
		won := 0
		for range 10 {
			if err := <-results; err == nil {
				won++
			} else {
				wantCode(t, err, ringfence.CodePreconditionFailed, "path")
			}
		}
		if won != 1 {
			t.Errorf("%d writes found the same file", won)
		}
	})
}

func TestFileListPages(t *testing.T) {
	eachBed(t, func(t *testing.T, b *bed) {
		dir := b.place(t)
		var want []string
		for _, name := range []string{"a", "a/1", "a/2", "a/2/x", "a-b", "a.b", "b", "c", "c/\n", "c/-x", "c/\xff\xfe"} {
			want = append(want, dir+"/"+name)
		}
		script := fmt.Sprintf("mkdir -p %[1]s/a/2 %[1]s/c && cd %[1]s && ln -s / b && touch a/1 a/2/x a-b a.b c/-x", dir)
		if r := b.sh(t, script); r.exit.ExitCode != 0 {
			t.Fatal(r.stderr)
		}
		b.write(t, guestproto.FileWrite{FilePath: at(dir + "/c/\n")}, nil)
		b.write(t, guestproto.FileWrite{FilePath: at(dir + "/c/\xff\xfe")}, nil)
		slices.SortFunc(want, func(a, b string) int { return slices.Compare(strings.Split(a, "/"), strings.Split(b, "/")) })
		for limit := 0; limit <= len(want)+1; limit++ {
			var got []string
			var after []byte
			for {
				n := 0
				err := b.conn.ListFiles(testContext(t), guestproto.FileList{FilePath: at(dir), Depth: 9, Limit: limit, After: after}, func(i guestproto.FileInfo) error {
					got = append(got, i.Path)
					n++
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
				if limit == 0 || n < limit {
					break
				}
				after = []byte(strings.TrimPrefix(got[len(got)-1], dir+"/"))
			}
			if !slices.Equal(got, want) {
				t.Errorf("in pages of %d: got %q, want %q", limit, got, want)
			}
		}
	})
}

func TestFileModeAndMetadata(t *testing.T) {
	eachBed(t, func(t *testing.T, b *bed) {
		dir := b.place(t)
		p := dir + "/d/f"
		b.write(t, guestproto.FileWrite{FilePath: at(p)}, []byte("x"))
		outside := dir + "/outside"
		b.write(t, guestproto.FileWrite{FilePath: at(outside)}, []byte("x"))
		if r := b.sh(t, "ln -s "+outside+" "+dir+"/d/link"); r.exit.ExitCode != 0 {
			t.Fatal(r.stderr)
		}
		mode := uint32(0o4750)
		info, err := b.conn.ChangeMode(testContext(t), guestproto.FileMode{FilePath: at(p), Mode: &mode, Owner: "1000", Group: "0"})
		if err != nil || info.Mode != mode || info.UID != 1000 || info.GID != 0 {
			t.Errorf("got %+v, %v", info, err)
		}
		mode = 0o700
		if _, err := b.conn.ChangeMode(testContext(t), guestproto.FileMode{FilePath: at(dir + "/d"), Mode: &mode, Owner: "1001", Recursive: true}); err != nil {
			t.Fatal(err)
		}
		if f, d, l, o := b.stat(t, p), b.stat(t, dir+"/d"), b.stat(t, dir+"/d/link"), b.stat(t, outside); f.Mode != 0o700 || d.Mode != 0o700 ||
			f.UID != 1001 || d.UID != 1001 || l.UID != 1001 || o.UID != 0 || o.Mode != 0o644 {
			t.Errorf("got %+v %+v %+v; outside %+v", f, d, l, o)
		}
		_, err = b.conn.ChangeMode(testContext(t), guestproto.FileMode{FilePath: at(p), Owner: "nobody-at-all"})
		wantCode(t, err, ringfence.CodeInvalidArgument, "owner")
		_, err = b.conn.ChangeMode(testContext(t), guestproto.FileMode{FilePath: at(p), Group: "nobody-at-all"})
		wantCode(t, err, ringfence.CodeInvalidArgument, "group")

		info, err = b.conn.ChangeMetadata(testContext(t), guestproto.FileMetadata{FilePath: at(p), Set: map[string]string{"kind": "Überblick\n", "a": ""}})
		if err != nil || info.Metadata["kind"] != "Überblick\n" || len(info.Metadata) != 2 {
			t.Fatalf("got %+v, %v", info, err)
		}
		info, err = b.conn.ChangeMetadata(testContext(t), guestproto.FileMetadata{FilePath: at(p), Remove: []string{"a", "never"}})
		if got := b.stat(t, p); err != nil || len(info.Metadata) != 1 || got.Metadata["kind"] != "Überblick\n" {
			t.Errorf("got %+v %v, then %+v", info, err, got)
		}
		n := 0
		err = b.conn.ListFiles(testContext(t), guestproto.FileList{FilePath: at(dir + "/d"), Metadata: true}, func(i guestproto.FileInfo) error {
			n += len(i.Metadata)
			return nil
		})
		if err != nil || n != 1 {
			t.Errorf("the list has %d, %v", n, err)
		}
		_, err = b.conn.ChangeMetadata(testContext(t), guestproto.FileMetadata{FilePath: at(p), Set: map[string]string{strings.Repeat("k", 251): "x"}})
		wantCode(t, err, ringfence.CodeInvalidArgument, "set")
	})
}

func TestFileCopy(t *testing.T) {
	eachBed(t, func(t *testing.T, b *bed) {
		dir := b.place(t)
		b.write(t, guestproto.FileWrite{FilePath: at(dir + "/d/sub/\xff\n"), Mode: 0o640}, all256())
		if r := b.sh(t, "cd "+dir+"/d && ln -s /etc/passwd link && mkfifo ../fifo"); r.exit.ExitCode != 0 {
			t.Fatal(r.stderr)
		}
		cp := func(from, to string, recursive bool) error {
			_, err := b.conn.CopyFile(testContext(t), guestproto.FileCopy{FilePath: at(dir + from), To: dir + to, Recursive: recursive})
			return err
		}
		wantCode(t, cp("/d", "/e", false), ringfence.CodeIsDirectory, "path")
		if err := cp("/d", "/e/deep", true); err != nil {
			t.Fatal(err)
		}
		got, err := b.read(t, guestproto.FileRead{FilePath: at(dir + "/e/deep/sub/\xff\n")})
		if err != nil || !bytes.Equal(got, all256()) || b.stat(t, dir+"/e/deep/sub/\xff\n").Mode != 0o640 || b.stat(t, dir+"/e/deep/link").Target != "/etc/passwd" {
			t.Errorf("got %q, %v", got, err)
		}
		wantCode(t, cp("/d", "/e/deep", true), ringfence.CodeFileExists, "to")
		wantCode(t, cp("/d", "/d/sub/again", true), ringfence.CodeInvalidArgument, "to")
		wantCode(t, cp("/none", "/x", false), ringfence.CodeFileNotFound, "path")
		wantCode(t, cp("/fifo", "/x", false), ringfence.CodeInvalidArgument, "path")
		wantCode(t, cp("/d/sub/\xff\n", "/e", false), ringfence.CodeIsDirectory, "to")
		if err := cp("/d/link", "/d/sub/\xff\n", false); err != nil || b.stat(t, dir+"/d/sub/\xff\n").Type != "symlink" {
			t.Errorf("a file is not replaced by a link: %v", err)
		}
	})
}

func TestFileSearch(t *testing.T) {
	eachBed(t, func(t *testing.T, b *bed) {
		dir := b.place(t)
		for name, data := range map[string]string{
			"a.py": "import os\nx = 1\r\nimport OS", "sub/b.py": strings.Repeat("y", 400<<10) + "import os\n", "sub/deep/c.txt": "import\n", "bin": "import\x00",
			"sub/\xff.py": "import os", "sub/-n": "",
		} {
			b.write(t, guestproto.FileWrite{FilePath: at(dir + "/" + name)}, []byte(data))
		}
		search := func(f guestproto.FileSearch) (found []string, truncated bool, err error) {
			f.FilePath = at(dir)
			if f.Limit == 0 {
				f.Limit = 100
			}
			truncated, err = b.conn.SearchFiles(testContext(t), f, func(m guestproto.FileMatch) error {
				s := strings.TrimPrefix(m.Path, dir+"/")
				if m.Line > 0 {
					s += fmt.Sprintf(":%d:%d", m.Line, m.Column)
				}
				found = append(found, s)
				return nil
			})
			return found, truncated, err
		}
		for _, c := range []struct {
			f    guestproto.FileSearch
			want string
		}{
			{guestproto.FileSearch{Name: "*.py"}, "a.py sub/b.py sub/\xff.py"},
			{guestproto.FileSearch{Name: "-?"}, "sub/-n"},
			{guestproto.FileSearch{Name: "**/deep/*"}, "sub/deep/c.txt"},
			{guestproto.FileSearch{Name: "sub/*.py"}, "sub/b.py sub/\xff.py"},
			{guestproto.FileSearch{Name: "**/*.py", Depth: 1}, "a.py"},
			{guestproto.FileSearch{Content: "import os"}, "a.py:1:1 sub/b.py:1:409601 sub/\xff.py:1:1"},
			{guestproto.FileSearch{Content: "import os", IgnoreCase: true, Name: "a*"}, "a.py:1:1 a.py:3:1"},
			{guestproto.FileSearch{Content: `^\w = \d$`, Regex: true}, "a.py:2:1"},
		} {
			got, truncated, err := search(c.f)
			if strings.Join(got, " ") != c.want || truncated || err != nil {
				t.Errorf("%+v: got %q %v %v, want %q", c.f, got, truncated, err, c.want)
			}
		}
		if got, truncated, err := search(guestproto.FileSearch{Name: "*", Limit: 2}); len(got) != 2 || !truncated || err != nil {
			t.Errorf("got %q %v %v", got, truncated, err)
		}
		_, _, err := search(guestproto.FileSearch{Content: "(", Regex: true})
		wantCode(t, err, ringfence.CodeInvalidArgument, "content")
		_, _, err = search(guestproto.FileSearch{Name: "[a"})
		wantCode(t, err, ringfence.CodeInvalidArgument, "name")
	})
}

func TestFileChecksum(t *testing.T) {
	eachBed(t, func(t *testing.T, b *bed) {
		p := b.place(t) + "/f"
		b.write(t, guestproto.FileWrite{FilePath: at(p)}, []byte("abc"))
		for algorithm, want := range map[string]string{
			"sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
			"sha1":   "a9993e364706816aba3e25717850c26c9cd0d89d", "md5": "900150983cd24fb0d6963f7d28e17f72", "crc32c": "364b3fb7",
			"sha512": "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
		} {
			got, err := b.conn.Checksum(testContext(t), guestproto.FileChecksum{FilePath: at(p), Algorithm: algorithm})
			if err != nil || got.Checksum != want || got.Size != 3 || got.ETag != b.stat(t, p).ETag {
				t.Errorf("%s: %+v, %v", algorithm, got, err)
			}
		}
		_, err := b.conn.Checksum(testContext(t), guestproto.FileChecksum{FilePath: at(p), Algorithm: "sha3"})
		wantCode(t, err, ringfence.CodeInvalidArgument, "algorithm")
	})
}

// watch is a watch that runs.
type watch struct {
	t      testing.TB
	events chan string
	ended  chan error
	cancel context.CancelFunc
}

func (b *bed) watch(t testing.TB, f guestproto.FileWatch) *watch {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	w := &watch{t: t, events: make(chan string, 100_000), ended: make(chan error, 1), cancel: cancel}
	ready := make(chan struct{})
	var once sync.Once
	go func() {
		w.ended <- b.conn.WatchFiles(ctx, f, func() error { once.Do(func() { close(ready) }); return nil }, func(c guestproto.FileChange) error {
			e := c.Type + " " + c.Path
			if c.IsDir {
				e += "/"
			}
			if strings.Contains(e, "/.rf-") {
				t.Errorf("a file that is not yet there is told of: %q", e)
			}
			w.events <- e
			return nil
		})
	}()
	t.Cleanup(func() { cancel(); <-w.ended })
	select {
	case <-ready:
	case err := <-w.ended:
		w.ended <- err
		t.Fatalf("it is not watched: %v", err)
	case <-time.After(time.Minute):
		t.Fatal("it is not watched")
	}
	return w
}

// want waits for events, in any order and among others.
func (w *watch) want(events ...string) {
	w.t.Helper()
	missing := map[string]bool{}
	for _, e := range events {
		missing[e] = true
	}
	var seen []string
	deadline := time.After(time.Minute)
	for len(missing) > 0 {
		select {
		case e := <-w.events:
			seen = append(seen, e)
			delete(missing, e)
		case <-deadline:
			w.t.Fatalf("no event for %v; seen %q", missing, seen)
		}
	}
}

func TestFileWatch(t *testing.T) {
	eachBed(t, func(t *testing.T, b *bed) {
		dir := b.place(t)
		b.write(t, guestproto.FileWrite{FilePath: at(dir + "/sub/old")}, []byte("x"))
		b.write(t, guestproto.FileWrite{FilePath: at(dir + ".out/moved/in")}, []byte("x"))
		sh := func(script string) {
			t.Helper()
			if r := b.sh(t, "cd "+dir+" && "+script); r.exit.ExitCode != 0 {
				t.Fatalf("%s: %s", script, r.stderr)
			}
		}
		w := b.watch(t, guestproto.FileWatch{FilePath: at(dir), Recursive: true})
		// Everything that can happen to a file says so.
		for _, c := range []struct{ script, want string }{
			{"echo 1 >f", "create f"}, {"echo 2 >>f", "modify f"}, {"truncate -s 1 sub/old", "modify sub/old"}, {"chmod 600 f", "attrib f"},
			{"chown 1000 f", "attrib f"}, {"touch f", "attrib f"}, {"ln f hard", "create hard"}, {"ln -s / soft", "create soft"}, {"mkfifo fifo", "create fifo"},
			{"mv f sub/g", "rename_from f|rename_to sub/g"}, {"rm hard", "remove hard"}, {"mkdir new", "create new/"}, {"echo >new/x", "create new/x"},
			{"mkdir -p deep/er/and/deeper; echo >deep/er/and/deeper/file", "create deep/er/and/deeper/file"}, {"rm -r deep", "remove deep/er/and/deeper/file|remove deep/"},
			{"mv ../place.out/moved .", "rename_to moved/|create moved/in"}, {"echo 1 >>moved/in", "modify moved/in"},
			{"mv moved renamed", "rename_from moved/|rename_to renamed/"}, {"echo 1 >>renamed/in", "modify renamed/in"},
			{"mv renamed ../place.out", "rename_from renamed/"}, {"rmdir new 2>/dev/null || rm -r new", "remove new/"},
		} {
			sh(c.script)
			var want []string
			for e := range strings.SplitSeq(c.want, "|") {
				typ, name, _ := strings.Cut(e, " ")
				want = append(want, typ+" "+dir+"/"+name)
			}
			w.want(want...)
		}
		// A replacement over the API.
		b.write(t, guestproto.FileWrite{FilePath: at(dir + "/sub/old")}, []byte("new"))
		w.want("rename_to " + dir + "/sub/old")
		b.write(t, guestproto.FileWrite{FilePath: at(dir + "/\xff\n")}, nil)
		w.want("rename_to " + dir + "/\xff\n")
		if _, err := b.conn.CopyFile(testContext(t), guestproto.FileCopy{FilePath: at(dir + "/sub/old"), To: dir + "/copied"}); err != nil {
			t.Fatal(err)
		}
		w.want("rename_to " + dir + "/copied")
		// What was moved away is watched no more.
		sh("echo >>../place.out/renamed/in; echo >last")
		for e := ""; e != "create "+dir+"/last"; e = <-w.events {
			if strings.Contains(e, "renamed/in") {
				t.Errorf("got %q", e)
			}
		}
		if err := b.conn.Remove(testContext(t), guestproto.FileRemove{FilePath: at(dir), Recursive: true}); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-w.ended:
			w.ended <- nil
			if err != nil {
				t.Error(err)
			}
		case <-time.After(time.Minute):
			t.Error("the end of the directory is not told")
		}
	})
}

func TestFileWatchOneFile(t *testing.T) {
	eachBed(t, func(t *testing.T, b *bed) {
		dir := b.place(t)
		p := dir + "/f"
		b.write(t, guestproto.FileWrite{FilePath: at(p)}, []byte("x"))
		w := b.watch(t, guestproto.FileWatch{FilePath: at(p)})
		b.write(t, guestproto.FileWrite{FilePath: at(dir + "/other")}, []byte("x"))
		b.write(t, guestproto.FileWrite{FilePath: at(p)}, []byte("y"))
		if e := <-w.events; e != "rename_to "+p {
			t.Errorf("got %q", e)
		}
		if r := b.sh(t, "echo >>"+p+"; rm "+p+"; echo >"+p); r.exit.ExitCode != 0 {
			t.Fatal(r.stderr)
		}
		w.want("modify "+p, "remove "+p, "create "+p)
		w.cancel()
		_, err := b.conn.StatFile(testContext(t), at(dir))
		if err != nil {
			t.Error(err)
		}
		err = b.conn.WatchFiles(testContext(t), guestproto.FileWatch{FilePath: at(dir + "/none")}, nil, nil)
		wantCode(t, err, ringfence.CodeFileNotFound, "path")
	})
}

// A host that does not keep up is told that it lost changes, and the agent's memory has
// a bound.
func TestFileWatchOverflow(t *testing.T) {
	eachBed(t, func(t *testing.T, b *bed) {
		dir := b.place(t)
		if r := b.sh(t, "mkdir -p "+dir); r.exit.ExitCode != 0 {
			t.Fatal(r.stderr)
		}
		ready, goOn := make(chan struct{}), make(chan struct{})
		errDone := errors.New("seen what was wanted")
		ended := make(chan error, 1)
		overflowed := false
		go func() {
			ended <- b.conn.WatchFiles(testContext(t), guestproto.FileWatch{FilePath: at(dir)}, func() error { close(ready); return nil },
				func(c guestproto.FileChange) error {
					<-goOn
					overflowed = overflowed || c.Type == guestproto.ChangeOverflow
					if overflowed && strings.HasSuffix(c.Path, "/last") {
						return errDone
					}
					return nil
				})
		}()
		<-ready
		// 20,000 names of 200 bytes are more than the window and the agent's queue hold.
		script := fmt.Sprintf(`cd %s; n=%s; for i in $(seq 1 10000); do : >"$n$i"; done; rm -f "$n"*`, dir, strings.Repeat("x", 200))
		if r := b.sh(t, strings.Replace(script, `rm -f "$n"*`, `for f in *; do echo "$f"; done | xargs rm -f`, 1)); r.exit.ExitCode != 0 {
			t.Fatal(r.stderr)
		}
		close(goOn)
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for deadline := time.After(time.Minute); ; {
			select {
			case err := <-ended:
				if !errors.Is(err, errDone) {
					t.Fatal(err)
				}
				return
			case <-tick.C:
				b.write(t, guestproto.FileWrite{FilePath: at(dir + "/last")}, nil)
			case <-deadline:
				t.Fatal("nobody said that changes were lost")
			}
		}
	})
}

// A rename that cannot be says which of the two names is in the way; one onto itself
// changes nothing.
func TestRenameSaysWhatIsInTheWay(t *testing.T) {
	eachBed(t, func(t *testing.T, b *bed) {
		ctx, dir := testContext(t), b.place(t)
		b.sh(t, "mkdir -p "+dir+"/full/in "+dir+"/other/in && echo x >"+dir+"/file")
		for _, c := range []struct {
			from, to string
			code     ringfence.Code
		}{
			{"/full", "/full", ""},
			{"/file", "/file", ""},
			{"/full", "/full/in/self", ringfence.CodeInvalidArgument},
			{"/file", "/full", ringfence.CodeIsDirectory},
			{"/full", "/file", ringfence.CodeNotDirectory},
			{"/full", "/other", ringfence.CodeDirectoryNotEmpty},
			{"/file", "/no/such", ringfence.CodeFileNotFound},
		} {
			_, err := b.conn.Rename(ctx, guestproto.FileRename{FilePath: at(dir + c.from), To: dir + c.to})
			if c.code == "" {
				if err != nil {
					t.Errorf("%s to %s: %v", c.from, c.to, err)
				}
				continue
			}
			wantCode(t, err, c.code, "to")
		}
		if got := b.sh(t, "cd "+dir+" && find . | sort | tr '\\n' ' '"); got.stdout != ". ./file ./full ./full/in ./other ./other/in " {
			t.Errorf("left: %q", got.stdout)
		}
	})
}
