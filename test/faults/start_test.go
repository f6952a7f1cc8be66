package faults

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/client"
	"ringfence.dev/ringfence/internal/testenv"
)

// run runs the binary with this world's data directory.
func (w *world) run(env []string, args ...string) (string, error) {
	w.t.Helper()
	cmd := exec.Command(testenv.RequireBinary(w.t), args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "RINGFENCE_DATA_DIR=" + w.dir, "RINGFENCE_LISTEN=" + w.listen}, env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (w *world) opens(key string) bool {
	w.t.Helper()
	c, err := client.New(client.Options{BaseURL: "http://" + w.listen, APIKey: key})
	if err != nil {
		w.t.Fatal(err)
	}
	_, err = c.Templates(context.Background())
	if err != nil && ringfence.CodeOf(err) != ringfence.CodeUnauthenticated {
		w.t.Fatal(err)
	}
	return err == nil
}

// The first start makes a key, prints it once and keeps its hash alone.
func TestFirstKey(t *testing.T) {
	w := newWorld(t)
	w.key = "" // an empty variable is no key
	d := w.start()
	waitFor(t, "the address", func() bool { return strings.Contains(d.out.String(), "Ringfence listens on") })
	key := regexp.MustCompile(`rf_[0-9a-f]{64}`).FindString(d.out.String())
	if key == "" {
		t.Fatalf("no key was printed: %s", d.out)
	}
	if strings.Count(d.out.String()+d.err.String(), key) != 1 {
		t.Errorf("the key is printed more than once: %s %s", d.out, d.err)
	}
	if !w.opens(key) || !w.opens("e2b_"+strings.TrimPrefix(key, "rf_")) || w.opens(ringfence.NewAPIKey()) {
		t.Error("the key does not open the server, or any does")
	}
	// Another one, while the server runs.
	out, err := w.run(nil, "key", "create", "--name", "second")
	second := strings.TrimSpace(out)
	if err != nil || !regexp.MustCompile(`^rf_[0-9a-f]{64}$`).MatchString(second) || !w.opens(second) {
		t.Errorf("key create: %q %v", out, err)
	}
	w.stop(syscall.SIGKILL)
	d = w.start()
	if strings.Contains(d.out.String(), "rf_") || !w.opens(key) || !w.opens(second) {
		t.Errorf("the second start prints %s", d.out)
	}
	for _, secret := range []string{key, second} {
		digits := strings.TrimPrefix(secret, "rf_")
		err := filepath.WalkDir(w.dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() {
				return err
			}
			content, err := os.ReadFile(path)
			if err == nil && bytes.Contains(content, []byte(digits)) {
				t.Errorf("the text of a key is in %s", path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for path, mode := range map[string]fs.FileMode{"": 0o700, "ringfence.db": 0o600, "ringfence.db-wal": 0o600} {
		info, err := os.Stat(filepath.Join(w.dir, path))
		if err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s/%s: %v %v, want %v", w.dir, path, info.Mode(), err, mode)
		}
	}
	// The environment's key opens the server at every start.
	w.stop(syscall.SIGTERM)
	w.key = ringfence.NewAPIKey()
	d = w.start()
	if !w.opens(w.key) || !w.opens(key) || strings.Contains(d.out.String(), "rf_") {
		t.Errorf("with RINGFENCE_API_KEY: %s", d.out)
	}
	if w.c, err = client.New(client.Options{BaseURL: "http://" + w.listen, APIKey: key}); err != nil {
		t.Fatal(err)
	}
}

func TestRefusedStarts(t *testing.T) {
	w := newWorld(t)
	d := w.start()
	out, err := w.run([]string{"RINGFENCE_LISTEN=127.0.0.1:0"}, "serve")
	if err == nil || !strings.Contains(out, fmt.Sprintf("process %d uses it", d.cmd.Process.Pid)) {
		t.Errorf("a second daemon on the data directory: %v %s", err, out)
	}
	other := t.TempDir()
	out, err = w.run([]string{"RINGFENCE_DATA_DIR=" + filepath.Join(other, "a")}, "serve")
	if err == nil || !strings.Contains(out, w.listen) || !strings.Contains(out, "in use") {
		t.Errorf("a second daemon on the address: %v %s", err, out)
	}
	out, err = w.run([]string{"RINGFENCE_DATA_DIR=" + filepath.Join(other, "b"), "RINGFENCE_LISTEN=127.0.0.1:0", "RINGFENCE_API_KEY=secret"}, "serve")
	if err == nil || !strings.Contains(out, "RINGFENCE_API_KEY") || !strings.Contains(out, "hexadecimal") {
		t.Errorf("a key that is none: %v %s", err, out)
	}
	if err := os.WriteFile(filepath.Join(other, "somebody's file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(other, 0o755); err != nil {
		t.Fatal(err)
	}
	out, err = w.run([]string{"RINGFENCE_DATA_DIR=" + other}, "serve")
	if err == nil || !strings.Contains(out, "not Ringfence's") {
		t.Errorf("somebody's directory as the data directory: %v %s", err, out)
	}
	out, err = w.run(nil, "serve", "--max-vcpu", "lots", "--log-level", "loud")
	if err == nil || !strings.Contains(out, "max_vcpu") || !strings.Contains(out, "log_level") {
		t.Errorf("two bad settings: %v %s", err, out)
	}
}

// Listening beyond loopback without TLS warns at every start.
func TestWarnsBeyondLoopback(t *testing.T) {
	w := newWorld(t)
	_, port, _ := strings.Cut(w.listen, ":")
	w.flags = []string{"--listen", "0.0.0.0:" + port}
	for range 2 {
		d := w.start()
		waitFor(t, "the warning", func() bool { return strings.Contains(d.err.String(), "listening beyond loopback without TLS") })
		w.stop(syscall.SIGTERM)
	}
	w.flags = nil
	d := w.start()
	waitFor(t, "the log", func() bool { return strings.Contains(d.err.String(), "msg=listening") })
	if strings.Contains(d.err.String(), "beyond loopback") {
		t.Errorf("a warning: %s", d.err)
	}
}
