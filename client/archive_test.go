package client

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ringfence.dev/ringfence"
)

func hostile(headers ...tar.Header) io.Reader {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		if h.Typeflag == 0 {
			h.Typeflag, h.Size = tar.TypeReg, 4
		}
		h.Mode = 0o4777
		w.WriteHeader(&h)
		if h.Typeflag == tar.TypeReg {
			io.WriteString(w, "evil")
		}
	}
	w.Close()
	return &b
}

// Whatever a sandbox sends, nothing outside the directory is touched, and no file
// within it is written through a link.
func TestUnpackHostile(t *testing.T) {
	link := func(name, target string) tar.Header {
		return tar.Header{Name: name, Linkname: target, Typeflag: tar.TypeSymlink}
	}
	hard := func(name, target string) tar.Header {
		return tar.Header{Name: name, Linkname: target, Typeflag: tar.TypeLink}
	}
	file := func(name string) tar.Header { return tar.Header{Name: name} }
	for what, c := range map[string]struct {
		headers []tar.Header
		refused bool
	}{
		"absolute":                    {[]tar.Header{file("/outside/x")}, true},
		"dot dot":                     {[]tar.Header{file("../outside/x")}, true},
		"link out, then through it":   {[]tar.Header{link("l", "../outside"), file("l/x")}, true},
		"link in, then through it":    {[]tar.Header{link("l", "d"), file("l/x")}, true},
		"through a link that was":     {[]tar.Header{file("old/victim")}, true},
		"a file for a link that was":  {[]tar.Header{file("old")}, false},
		"link, then a file for it":    {[]tar.Header{link("l", "kept"), file("l")}, false},
		"hard link, then its file":    {[]tar.Header{hard("h", "kept"), file("h")}, false},
		"hard link out":               {[]tar.Header{hard("h", "../outside/victim")}, true},
		"hard link to a link":         {[]tar.Header{{Name: "a", Typeflag: tar.TypeDir}, link("a/l", "../kept"), hard("h", "a/l")}, true},
		"hard link through a link":    {[]tar.Header{hard("h", "old/victim")}, true},
		"links that add up":           {[]tar.Header{link("d/l", "."), link("d/m", "l/../.."), file("d/m/outside/x")}, true},
		"file for a directory":        {[]tar.Header{file("d/x"), file("d")}, true},
		"link for a directory":        {[]tar.Header{{Name: "e", Typeflag: tar.TypeDir}, link("e", "d")}, true},
		"the same name again":         {[]tar.Header{file("f"), file("f")}, false},
		"device":                      {[]tar.Header{{Name: "dev", Typeflag: tar.TypeChar}}, true},
		"a directory under a file":    {[]tar.Header{file("f"), file("f/x")}, true},
		"a name of this machine's":    {[]tar.Header{file("C:\\x")}, false},
		"setuid, which does not come": {[]tar.Header{file("suid")}, false},
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			to := filepath.Join(dir, "to")
			for _, p := range []string{filepath.Join(dir, "outside", "victim"), filepath.Join(to, "kept"), filepath.Join(to, "d", "kept")} {
				os.MkdirAll(filepath.Dir(p), 0o755)
				os.WriteFile(p, []byte("good"), 0o644)
			}
			os.Symlink("../outside", filepath.Join(to, "old"))
			_, err := unpack(hostile(c.headers...), to, DownloadOptions{})
			if refused := ringfence.CodeOf(err) == ringfence.CodeArchiveRefused; refused != c.refused || err != nil && !refused {
				t.Errorf("got %v", err)
			}
			entries, _ := os.ReadDir(filepath.Join(dir, "outside"))
			for _, p := range []string{"outside/victim", "to/kept", "to/d/kept"} {
				if b, err := os.ReadFile(filepath.Join(dir, p)); string(b) != "good" {
					t.Errorf("%s is %q, %v", p, b, err)
				}
			}
			if top, _ := os.ReadDir(dir); len(entries) != 1 || len(top) != 2 {
				t.Errorf("something is outside: %v %v", entries, top)
			}
			filepath.WalkDir(to, func(p string, d os.DirEntry, err error) error {
				if info, ierr := d.Info(); err != nil || ierr != nil || info.Mode()&os.ModeSetuid != 0 {
					t.Errorf("%s: %v %v", p, err, info)
				}
				return nil
			})
		})
	}
}

func TestUnpackIsBounded(t *testing.T) {
	_, err := unpack(hostile(tar.Header{Name: "a"}, tar.Header{Name: "b"}), t.TempDir(), DownloadOptions{MaxBytes: 7})
	if ringfence.CodeOf(err) != ringfence.CodeArchiveRefused {
		t.Error(err)
	}
	_, err = unpack(hostile(tar.Header{Name: "a"}, tar.Header{Name: "b"}), t.TempDir(), DownloadOptions{MaxEntries: 1})
	if ringfence.CodeOf(err) != ringfence.CodeArchiveRefused {
		t.Error(err)
	}
	dir := t.TempDir()
	whole, _ := io.ReadAll(hostile(tar.Header{Name: "a"}, tar.Header{Name: "b"}))
	if _, err := unpack(bytes.NewReader(whole[:512+2]), dir, DownloadOptions{}); ringfence.CodeOf(err) != ringfence.CodeArchiveRefused {
		t.Error(err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("half a file is left: %v", left)
	}
	var names []string
	got, err := unpack(hostile(tar.Header{Name: "l", Linkname: "/etc", Typeflag: tar.TypeSymlink}, tar.Header{Name: "b"}), t.TempDir(),
		DownloadOptions{LeadsOut: func(name, target string) { names = append(names, name+" "+target) }})
	if err != nil || got.Files != 1 || strings.Join(names, ",") != "l /etc" {
		t.Errorf("got %+v %v %q", got, err, names)
	}
}
