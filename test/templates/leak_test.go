package templates

import (
	"bytes"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"ringfence.dev/ringfence/internal/testenv"
)

// What the host lent the build is not in the images. They are not compressed and
// hold each file in one piece, so a search through their bytes finds everything.
func TestNothingOfTheHostRemains(t *testing.T) {
	needles := map[string]string{
		"the directory of lent files":    "/run/ringfence-build",
		"the directory of the templates": testenv.TemplateDir(),
	}
	for _, name := range []string{"http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "PIP_FIND_LINKS", "PIP_INDEX_URL"} {
		if v := os.Getenv(name); len(v) > 5 {
			needles[name] = v
		}
	}
	private := privateCertificates(t)
	t.Logf("%d certificates of this host are not among the public ones", len(private))
	for i, c := range private {
		text := strings.Split(string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c})), "\n")
		needles[fmt.Sprintf("certificate %d of this host, as text,", i)] = text[4][:48] // up to 63 bytes are looked for several times as fast
		needles[fmt.Sprintf("certificate %d of this host, as bytes,", i)] = string(c[40:100])
	}
	for _, name := range []string{"base", "code-interpreter"} {
		f, err := os.Open(testenv.RequireTemplate(t, name).ImagePath)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		image, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(image, []byte("PRETTY_NAME=\"Debian")) {
			t.Errorf("%s: the search does not find what is there", name)
		}
		for what, needle := range needles {
			if at := bytes.Index(image, []byte(needle)); at >= 0 {
				t.Errorf("the image of %s holds %s at %d", name, what, at)
			}
		}
		if err := unix.Munmap(image); err != nil {
			t.Error(err)
		}
	}
}

// privateCertificates returns those of the host's bundles that are not Mozilla's.
func privateCertificates(t *testing.T) (out [][]byte) {
	t.Helper()
	certificates := func(path string) (list [][]byte) {
		rest, _ := os.ReadFile(path)
		for {
			var block *pem.Block
			if block, rest = pem.Decode(rest); block == nil {
				return list
			}
			list = append(list, block.Bytes)
		}
	}
	public := map[string]bool{}
	files, err := filepath.Glob("/usr/share/ca-certificates/mozilla/*.crt")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		for _, c := range certificates(f) {
			public[string(c)] = true
		}
	}
	if len(public) == 0 {
		return nil // nothing to tell them apart by
	}
	for _, f := range []string{"/etc/ssl/certs/ca-certificates.crt", os.Getenv("SSL_CERT_FILE"), os.Getenv("PIP_CERT")} {
		for _, c := range certificates(f) {
			if !public[string(c)] && len(c) > 200 {
				out = append(out, c)
			}
		}
	}
	return out
}
