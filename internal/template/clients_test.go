package template

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// certificate makes a CA certificate in PEM.
func certificate(t *testing.T, serial int64) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour), IsCA: true}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// hostWith is a host with those files and variables, and apt's answer.
func hostWith(t *testing.T, environ []string, apt string, files map[string]string) host {
	t.Helper()
	h := host{environ: environ, root: t.TempDir(), apt: func() (string, error) { return apt, nil }}
	for name, text := range files {
		p := filepath.Join(h.root, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

func TestClientsAreLent(t *testing.T) {
	system, corporate, pip := certificate(t, 1), certificate(t, 2), certificate(t, 3)
	h := hostWith(t, []string{
		"HOME=/home/me", "https_proxy=http://proxy:3128", "NO_PROXY=.corp", "SSL_CERT_FILE=/corp/ca.pem",
		"PIP_INDEX_URL=https://mirror/simple", "PIP_FIND_LINKS=/opt/wheels", "PIP_TARGET=/opt",
		"RINGFENCE_API_KEY=rf_secret", "AWS_SECRET_ACCESS_KEY=secret", "npm_config_registry=https://npm.corp/",
	}, `Acquire::http::Proxy "http://aptproxy:8080";
Acquire::https::Proxy "";
Acquire::https::CaInfo "/corp/ca.pem";
Acquire::https::SslKey "/corp/key.pem";
Acquire::http::Proxy-Auto-Detect "/usr/bin/detect";
Acquire::Retries "3";
APT::Architecture "amd64";
DPkg::Post-Invoke:: "rm -rf /something";
`, map[string]string{
		"etc/ssl/certs/ca-certificates.crt": system,
		"corp/ca.pem":                       system + corporate,
		"corp/pip.pem":                      pip,
		"etc/pip.conf":                      "[global]\ncert = /corp/pip.pem\nindex-url = https://other/simple\nextra-index-url =\n    https://a/simple\n    https://b/simple\n",
		"home/me/.config/pip/pip.conf":      "[global]\ntimeout = 60\nuser = true\n",
		"home/me/.npmrc":                    "strict-ssl=true\n//npm.corp/:_authToken=npmsecret\n@corp:registry=https://npm.corp/x/\ncafile=/corp/ca.pem\n",
	})
	dir := filepath.Join(t.TempDir(), "clients")
	c, err := h.lend(dir)
	if err != nil {
		t.Fatal(err)
	}
	file := func(name string) string {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	if got, want := file("ca.pem"), pip+system+corporate; got != want {
		t.Errorf("ca.pem has %d certificates, want the 3 distinct ones", strings.Count(got, "BEGIN"))
	}
	if got, want := file("pip.conf"), "[global]\nindex-url = https://mirror/simple\nextra-index-url = https://a/simple\n    https://b/simple\ntimeout = 60\n"; got != want {
		t.Errorf("pip.conf is\n%swant\n%s", got, want)
	}
	if got, want := file("npmrc"), "@corp:registry=https://npm.corp/x/\nstrict-ssl=true\n"; got != want {
		t.Errorf("npmrc is\n%swant\n%s", got, want)
	}
	apt := file("apt.conf")
	for _, want := range []string{`Acquire::http::Proxy "http://aptproxy:8080";`, `Acquire::Retries "3";`, `Acquire::https::CaInfo "/run/ringfence-build/ca.pem";`} {
		if !strings.Contains(apt, want+"\n") {
			t.Errorf("apt.conf lacks %s:\n%s", want, apt)
		}
	}
	for _, want := range []string{"https_proxy=http://proxy:3128", "NO_PROXY=.corp", "SSL_CERT_FILE=/run/ringfence-build/ca.pem",
		"PIP_CERT=/run/ringfence-build/ca.pem", "npm_config_registry=https://npm.corp/"} {
		if !slices.Contains(c.env, want) {
			t.Errorf("env lacks %s: %v", want, c.env)
		}
	}
	all := apt + file("pip.conf") + file("npmrc") + strings.Join(c.env, "\n") + strings.Join(c.proxies, "\n")
	for _, never := range []string{"secret", "RINGFENCE_API", "PIP_TARGET", "/opt", "/corp", "Auto-Detect", "Post-Invoke", "user = true"} {
		if strings.Contains(all, never) {
			t.Errorf("%q got through:\n%s", never, all)
		}
	}
	if len(c.sources) != 0 {
		t.Errorf("sources of a host that is not Debian: %v", c.sources)
	}
}

func TestClientsOfABareHost(t *testing.T) {
	h := hostWith(t, nil, "", nil)
	dir := filepath.Join(t.TempDir(), "clients")
	c, err := h.lend(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.proxies)+len(c.apt)+len(c.sources) != 0 || strings.Contains(strings.Join(c.env, " "), "CERT") {
		t.Errorf("got %+v", c)
	}
	if _, err := os.Stat(filepath.Join(dir, "ca.pem")); err == nil {
		t.Error("a CA bundle out of nothing")
	}
}

func TestDebianSources(t *testing.T) {
	release := "ID=debian\nVERSION_CODENAME=bookworm\n"
	got := hostWith(t, nil, "", map[string]string{
		"etc/os-release":       release,
		"etc/apt/sources.list": "deb [arch=amd64 signed-by=/k] http://mirror/debian bookworm main contrib\n# deb http://no/debian bookworm main\ndeb-src http://mirror/debian bookworm main\ndeb cdrom:[x]/ bookworm main\n",
		"etc/apt/sources.list.d/a.sources": "# comment\nTypes: deb deb-src\nURIs: https://mirror/debian/\nSuites: bookworm bookworm-updates\nComponents: main\nSigned-By:\n -----BEGIN\n .\n\n" +
			"Types: deb\nURIs: https://mirror/debian-security\nSuites: bookworm-security\nComponents: main\n\nEnabled: no\nTypes: deb\nURIs: https://off/debian\nSuites: bookworm\nComponents: main\n",
		"etc/apt/sources.list.d/vendor.list": "deb https://vendor/apt bookworm main\ndeb https://vendor/debian stable main\n",
	}).debianSources()
	want := []string{
		"deb http://mirror/debian @SUITE@ main", "deb https://mirror/debian/ @SUITE@ main",
		"deb https://mirror/debian/ @SUITE@-updates main", "deb https://mirror/debian-security @SUITE@-security main",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	if got := hostWith(t, nil, "", map[string]string{"etc/os-release": "ID=ubuntu\nVERSION_CODENAME=noble\n", "etc/apt/sources.list": "deb http://m/ubuntu noble main\n"}).debianSources(); got != nil {
		t.Errorf("Ubuntu: %q", got)
	}
}
