package superserve

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ringfence.dev/ringfence"
)

func TestHosts(t *testing.T) {
	const id = "abcdefghij0123456789"
	for host, want := range map[string]place{
		"sandbox.superserve.ai":                           {},
		"USW-Sandbox.superserve.ai.:443":                  {},
		"boxd-" + id + ".sandbox.superserve.ai":           {sandbox: id},
		"3000-" + id + ".staging-sandbox.superserve.ai:1": {sandbox: id, port: 3000},
		"03000-" + id + ".sandbox.superserve.ai":          {unknown: true},
		"boxd-" + id + "x.sandbox.superserve.ai":          {unknown: true},
		"www.sandbox.superserve.ai":                       {unknown: true},
	} {
		if got, ok := hostOf(&http.Request{Host: host}); !ok || got != want {
			t.Errorf("%s: %+v %t", host, got, ok)
		}
	}
	for _, host := range []string{"127.0.0.1:7070", "superserve.ai", "api.superserve.ai", "sandbox.superserve.ai.example.com", "xsandbox.superserve.ai"} {
		if got, ok := hostOf(&http.Request{Host: host}); ok {
			t.Errorf("%s is taken for one of the dialect's: %+v", host, got)
		}
	}
}

// Each status is one by which the SDKs choose the right class, and a command that may have
// been started gets none that makes them repeat it.
func TestFailures(t *testing.T) {
	for _, row := range ringfence.ErrorTable {
		err := ringfence.Errorf(row.Code, "no")
		if _, ok := failures[row.Code]; !ok && failureOf(err).status != http.StatusInternalServerError {
			t.Errorf("%s becomes %v", row.Code, failureOf(err))
		}
	}
	for _, code := range []ringfence.Code{ringfence.CodeUnavailable, ringfence.CodeInternal, ringfence.CodeDeadlineExceeded, ringfence.CodeSandboxPaused, ringfence.CodeSandboxEnded} {
		w := &answer{header: http.Header{}}
		c := &call{server: &server{}, w: w}
		c.Fault = func(http.ResponseWriter, error) {}
		c.refuse(outcome{ringfence.Errorf(code, "no").WithHint("do")})
		var body errorBody
		if err := json.Unmarshal(w.body.Bytes(), &body); err != nil || body.Error.Message != "no; do" || body.Error.Code == "" {
			t.Errorf("%s: %v %s", code, err, w.body.String())
		}
		if s := w.status; s >= 500 || s == http.StatusUnauthorized || s == http.StatusForbidden {
			t.Errorf("%s of a command that was started becomes %d, upon which SDKs repeat it", code, s)
		}
	}
}

// answer is a ResponseWriter that keeps what it is given.
type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header                      { return a.header }
func (a *answer) WriteHeader(status int)                   { a.status = status }
func (a *answer) Note(string, string, ringfence.Principal) {}
func (a *answer) Patient()                                 {}
func (a *answer) Begun() bool                              { return a.status != 0 }
func (a *answer) Flush()                                   {}
func (a *answer) SetWriteDeadline(time.Time) error         { return nil }
func (a *answer) Write(p []byte) (int, error)              { return a.body.Write(p) }

func TestResultFits(t *testing.T) {
	for name, h := range map[string]heads{
		"small":    {stdout: []byte("a\xffb"), stderr: []byte("é")},
		"text":     {stdout: bytes.Repeat([]byte("x"), maxResult), stderr: []byte("end")},
		"controls": {stdout: bytes.Repeat([]byte{1}, maxResult), stderr: bytes.Repeat([]byte{2}, maxResult)},
		"quotes":   {stdout: []byte("out"), stderr: bytes.Repeat([]byte(`"`), maxResult)},
		"wide":     {stdout: bytes.Repeat([]byte("\u2028"), maxResult/3), stderr: bytes.Repeat([]byte{0xff, 'x'}, maxResult/2)},
	} {
		var b resultBody
		b.fill(&h)
		raw, err := json.Marshal(b)
		if err != nil || len(raw) > 10<<20 {
			t.Errorf("%s: %d bytes, %v", name, len(raw), err)
		}
		if small := name == "small"; b.Truncated == small || strings.Contains(b.Stderr, "truncated") == small || small && b.Stdout != "a\uFFFDb" {
			t.Errorf("%s: %t %.50q", name, b.Truncated, b.Stderr)
		}
		if name != "small" && len(raw) < 9<<20 {
			t.Errorf("%s: only %d bytes are left", name, len(raw))
		}
	}
}

// Whatever is cut wherever, the events are single lines of ASCII, and together are the output.
func TestEvents(t *testing.T) {
	whole := []byte("é\u0085\u2028𝄞\"\\\n\r\x00\x7f" + strings.Repeat("語", 20000))
	for _, size := range []int{1, 2, 3, 5, 4096, len(whole)} {
		output := whole
		if size < 10 {
			output = whole[:2000]
		}
		w := &answer{header: http.Header{}}
		e := &events{w: w, flush: func() error { return nil }}
		if err := e.Started(ringfence.Process{}, 0); err != nil {
			t.Fatal(err)
		}
		for rest := output; len(rest) > 0; {
			n := min(size, len(rest))
			if err := e.Output(ringfence.Stdout, 0, bytes.Clone(rest[:n])); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		if err := e.Output(ringfence.Stderr, 0, []byte("a\xe2\x82")); err != nil { // a character without its end
			t.Fatal(err)
		}
		if err := e.finish("exit_code", 3); err != nil {
			t.Fatal(err)
		}
		var stdout, stderr strings.Builder
		last := map[string]any{}
		for line := range strings.SplitSeq(strings.TrimSuffix(w.body.String(), "\n\n"), "\n\n") {
			data, ok := strings.CutPrefix(line, "data: ")
			event := map[string]any{}
			if err := json.Unmarshal([]byte(data), &event); !ok || err != nil || strings.ContainsFunc(data, func(r rune) bool { return r > 0x7e || r < 0x20 }) {
				t.Fatalf("%d: %v: %.100q", size, err, line)
			}
			text, _ := event["stdout"].(string)
			stdout.WriteString(text)
			if len(text) > maxChunk {
				t.Errorf("%d: an event of %d bytes", size, len(text))
			}
			text, _ = event["stderr"].(string)
			stderr.WriteString(text)
			last = event
		}
		if stdout.String() != string(output) || stderr.String() != "a\uFFFD\uFFFD" && stderr.String() != "a\uFFFD" || last["exit_code"] != 3.0 || last["finished"] != true {
			t.Errorf("in pieces of %d: %.100q %q %v", size, stdout.String(), stderr.String(), last)
		}
	}
}

func TestAuthority(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "superserve")
	a, err := OpenAuthority(dir)
	if err != nil {
		t.Fatal(err)
	}
	again, err := OpenAuthority(dir)
	if err != nil || !bytes.Equal(a.PEM, again.PEM) {
		t.Fatalf("the second time: %v", err)
	}
	if info, err := os.Stat(filepath.Join(dir, "ca.key")); err != nil || info.Mode() != 0o600 {
		t.Errorf("its key: %v %v", info, err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(a.PEM) {
		t.Fatal("no certificate")
	}
	dial := func(name string) error {
		client, server := net.Pipe()
		defer client.Close()
		go func() {
			defer server.Close()
			tls.Server(server, again.TLS()).Handshake() // the client says what is wrong
		}()
		return tls.Client(client, &tls.Config{RootCAs: roots, ServerName: name}).Handshake()
	}
	for _, name := range []string{"sandbox.superserve.ai", "boxd-x.usw-sandbox.superserve.ai", "3000-x.staging-sandbox.superserve.ai"} {
		if err := dial(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if dial("api.superserve.ai") == nil {
		t.Error("it answers for a name that it has no certificate for")
	}
	// Whoever steals the key can sign for nothing else.
	for _, host := range []string{"example.com", "superserve.ai", "127.0.0.1"} {
		if forged(t, a, host, roots) == nil {
			t.Errorf("a certificate for %s is good", host)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "ca.key"), []byte("no key"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenAuthority(dir); err == nil || !strings.Contains(err.Error(), "remove the directory") {
		t.Errorf("with a broken key: %v", err)
	}
}

// forged signs a certificate for a host as a thief of the key would, and verifies it.
func forged(t *testing.T, a *Authority, host string, roots *x509.CertPool) error {
	t.Helper()
	template := &x509.Certificate{SerialNumber: a.cert.SerialNumber, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	if ip := net.ParseIP(host); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{host}
	}
	raw, err := x509.CreateCertificate(nil, template, a.cert, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	_, err = leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: host, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	return err
}

func TestCertificateIsRenewed(t *testing.T) {
	a, err := OpenAuthority(t.TempDir() + "/superserve")
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	first, err := a.certificate(now)
	if err != nil {
		t.Fatal(err)
	}
	same, err := a.certificate(now.Add(leafLife - leafRenewal - 2*time.Hour))
	if err != nil || same != first {
		t.Errorf("another one before its time: %v", err)
	}
	next, err := a.certificate(now.Add(leafLife - leafRenewal + time.Hour))
	if err != nil || next == first || !next.Leaf.NotAfter.After(first.Leaf.NotAfter) {
		t.Errorf("not renewed: %v", err)
	}
}
