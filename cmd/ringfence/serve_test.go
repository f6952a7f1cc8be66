package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/client"
	"ringfence.dev/ringfence/internal/cli"
	"ringfence.dev/ringfence/internal/config"
	"ringfence.dev/ringfence/internal/datadir"
	"ringfence.dev/ringfence/internal/testenv"
)

// settings are those of a server over the fake driver, on a free port.
func settings(t *testing.T) *config.Config {
	t.Helper()
	t.Setenv(envAPIKey, "")
	c := config.Default()
	c.DataDir, c.Driver, c.Listen, c.MaxVCPU, c.MaxMemoryMiB, c.MemoryReserveMiB = t.TempDir(), "fake", "127.0.0.1:0", 4, 4096, 1
	return c
}

// started is a server that runs until the test ends or stop is called.
type started struct {
	url, key string
	out, log *testenv.Buffer
	stop     func() error
}

func start(t *testing.T, c *config.Config) *started {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s := &started{out: &testenv.Buffer{}, log: &testenv.Buffer{}}
	done := make(chan error, 1)
	go func() { done <- serve(ctx, c, s.out, s.log) }()
	s.stop = sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() { s.stop() })
	for range 1000 {
		if m := regexp.MustCompile(`listens on (\S+)`).FindStringSubmatch(s.out.String()); m != nil {
			s.url, s.key = m[1], regexp.MustCompile(`rf_[0-9a-f]{64}`).FindString(s.out.String())
			return s
		}
		select {
		case err := <-done:
			t.Fatalf("it ended: %v", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	t.Fatalf("it does not start: %s", s.log)
	return nil
}

func TestServe(t *testing.T) {
	c := settings(t)
	s := start(t, c)
	cl, err := client.New(client.Options{BaseURL: s.url, APIKey: s.key})
	if err != nil {
		t.Fatal(err)
	}
	sb, err := cl.Create(t.Context(), client.CreateOptions{Template: "superserve/code-interpreter"})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := sb.Run(t.Context(), client.Command{Shell: "echo hi; pwd"}); err != nil || string(r.Stdout) != "hi\n/home/user\n" {
		t.Errorf("%+v %v", r, err)
	}
	// What was begun comes to its end.
	result := make(chan string, 1)
	begun := make(chan struct{})
	go func() {
		r, err := sb.Run(context.Background(), client.Command{Shell: "sleep 1; echo end", Started: func(client.Started) { close(begun) }})
		if err != nil {
			result <- err.Error()
			return
		}
		result <- string(r.Stdout)
	}()
	<-begun
	if err := s.stop(); err != nil {
		t.Errorf("the end: %v", err)
	}
	if got := <-result; got != "end\n" {
		t.Errorf("the command that was begun: %q", got)
	}
	if _, err := cl.Health(t.Context()); err == nil {
		t.Error("it answers on")
	}
	// The second start prints no key and knows the first.
	s2 := start(t, c)
	if s2.key != "" {
		t.Error("the second start prints a key")
	}
	if cl, err = client.New(client.Options{BaseURL: s2.url, APIKey: s.key}); err != nil {
		t.Fatal(err)
	}
	if got, err := cl.Get(t.Context(), sb.ID()); err != nil || got.Info().State != ringfence.StateFailed {
		t.Errorf("the fake sandbox of the first process: %+v %v", got, err)
	}
}

func TestTLS(t *testing.T) {
	c := settings(t)
	pool := certificate(t, c)
	c.HostNames = []string{"sandbox.example"}
	s := start(t, c)
	if !strings.HasPrefix(s.url, "https://") {
		t.Errorf("it listens on %s", s.url)
	}
	addr := strings.TrimPrefix(s.url, "https://")
	h := &http.Client{Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: pool},
		ForceAttemptHTTP2: true,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		},
	}}
	defer h.CloseIdleConnections()
	cl, err := client.New(client.Options{BaseURL: "https://sandbox.example", APIKey: s.key, HTTPClient: h})
	if err != nil {
		t.Fatal(err)
	}
	sb, err := cl.Create(t.Context(), client.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	data := strings.Repeat("0123456789", 1<<18)
	if _, err := sb.Files().Write(t.Context(), "/f", strings.NewReader(data), client.WriteOptions{}); err != nil {
		t.Error(err)
	}
	if got, err := sb.Files().ReadFile(t.Context(), "/f"); err != nil || string(got) != data {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	var out testenv.Buffer
	if r, err := sb.Run(t.Context(), client.Command{Shell: "cat /f", Stdout: &out}); err != nil || r.ExitCode != 0 || out.String() != data {
		t.Errorf("%+v %v", r, err)
	}
	c2 := settings(t)
	c2.TLSCert, c2.TLSKey = filepath.Join(t.TempDir(), "none.pem"), c.TLSKey
	if err := serve(t.Context(), c2, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), "none.pem") {
		t.Errorf("a certificate that is missing: %v", err)
	}
}

// certificate makes a certificate for sandbox.example and sets it.
func certificate(t *testing.T, c *config.Config) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"sandbox.example"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	c.TLSCert, c.TLSKey = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for path, block := range map[string]*pem.Block{c.TLSCert: {Type: "CERTIFICATE", Bytes: der}, c.TLSKey: {Type: "PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	return pool
}

// What cannot start says why, and leaves nothing locked.
func TestServeRefuses(t *testing.T) {
	c := settings(t)
	t.Setenv(envAPIKey, "rf_short")
	if err := serve(t.Context(), c, io.Discard, io.Discard); ringfence.CodeOf(err) != ringfence.CodeInvalidArgument || !strings.Contains(err.Error(), envAPIKey) {
		t.Errorf("a key that is none: %v", err)
	}
	t.Setenv(envAPIKey, "")
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	c.Listen = taken.Addr().String()
	if err := serve(t.Context(), c, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), c.Listen) {
		t.Errorf("an address that is taken: %v", err)
	}
	lock, err := datadir.Acquire(c.DataDir)
	if err != nil {
		t.Fatalf("the directory is locked: %v", err)
	}
	lock.Release()
}

func TestWarning(t *testing.T) {
	c := settings(t)
	c.Listen = "0.0.0.0:0"
	s := start(t, c)
	if !strings.Contains(s.log.String(), "listening beyond loopback without TLS") {
		t.Errorf("no warning: %s", s.log)
	}
	certificate(t, c)
	s.stop()
	if s = start(t, c); strings.Contains(s.log.String(), "without TLS") {
		t.Errorf("a warning with TLS: %s", s.log)
	}
}

// Every key of the configuration is a flag, and its help shows the default.
func TestHelpAndFlags(t *testing.T) {
	var out testenv.Buffer
	app := cli.New(cli.Options{Out: &out, Err: &out, Local: []cli.Local{{Parent: "", Make: serveCommand}, {Parent: "key", Make: keyCreateCommand}, {Parent: "template", Make: templateBuildCommand}}})
	if code := app.Run(t.Context(), []string{"serve", "--help"}); code != 0 {
		t.Fatal(code)
	}
	for _, k := range config.Keys {
		there := strings.Contains(out.String(), "--"+k.Flag()+" string") || k.IsBool() && strings.Contains(out.String(), "--"+k.Flag()+" ")
		if there == k.Hidden {
			t.Errorf("--%s: hidden %v, shown %v", k.Flag(), k.Hidden, there)
		}
		if !k.Hidden && k.Default != "" && !strings.Contains(out.String(), `(default "`+k.Default+`")`) {
			t.Errorf("the help does not show the default of --%s", k.Flag())
		}
	}
	if code := app.Run(t.Context(), []string{"serve", "--no-such-flag"}); code != 2 {
		t.Errorf("an unknown flag: exit code %d", code)
	}
}

func TestKeyCreate(t *testing.T) {
	c := settings(t)
	s := start(t, c)
	var out testenv.Buffer
	app := cli.New(cli.Options{Out: &out, Err: &out, Local: []cli.Local{{Parent: "key", Make: keyCreateCommand}}})
	if code := app.Run(t.Context(), []string{"key", "create", "--data-dir", c.DataDir, "--name", "ci"}); code != 0 {
		t.Fatalf("%d %s", code, &out)
	}
	cl, err := client.New(client.Options{BaseURL: s.url, APIKey: strings.TrimSpace(out.String())})
	if err != nil {
		t.Fatal(err)
	}
	keys, err := cl.Keys(t.Context())
	if err != nil || len(keys) != 2 || keys[1].Name != "ci" {
		t.Fatalf("%+v %v", keys, err)
	}
	if err := cl.DeleteKey(t.Context(), keys[1].ID); err != nil {
		t.Fatal(err)
	}
	if _, err := cl.Keys(t.Context()); ringfence.CodeOf(err) != ringfence.CodeUnauthenticated {
		t.Errorf("a key that was deleted: %v", err)
	}
}

// A key may be made before the server has started for the first time: it opens that
// server, which then makes none of its own.
func TestKeyCreateBeforeTheFirstStart(t *testing.T) {
	c := settings(t)
	c.DataDir = filepath.Join(t.TempDir(), "new")
	var out testenv.Buffer
	app := cli.New(cli.Options{Out: &out, Err: &out, Local: []cli.Local{{Parent: "key", Make: keyCreateCommand}}})
	if code := app.Run(t.Context(), []string{"key", "create", "--data-dir", c.DataDir}); code != 0 {
		t.Fatalf("%d %s", code, &out)
	}
	s := start(t, c)
	cl, err := client.New(client.Options{BaseURL: s.url, APIKey: strings.TrimSpace(out.String())})
	if err != nil {
		t.Fatal(err)
	}
	if keys, err := cl.Keys(t.Context()); err != nil || len(keys) != 1 {
		t.Errorf("%+v %v", keys, err)
	}
}
