package world

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/client"
	"ringfence.dev/ringfence/internal/dialect"
	"ringfence.dev/ringfence/internal/testenv"
)

//go:embed harness.py
var pythonHarness []byte

//go:embed harness.mjs
var nodeHarness []byte

// Address is where the server of every test listens.
const Address = "127.0.0.1:7070"

// World is a server with its data directory.
type World struct {
	Key    string
	Client *client.Client

	t    testing.TB
	dir  string
	args []string
	env  []string
	cmd  *exec.Cmd
	log  testenv.Buffer
}

// New starts a server, with more flags. At the test's end its sandboxes and the server go,
// and the test fails if anything wanted to leave.
func New(t testing.TB, flags ...string) *World {
	t.Helper()
	testenv.RequireRoot(t)
	testenv.RequireTemplate(t, "code-interpreter")
	w := &World{t: t, dir: t.TempDir(), Key: ringfence.NewAPIKey()}
	w.args = append([]string{"serve", "--listen", Address, "--data-dir", filepath.Join(w.dir, "data"), "--template-dir", testenv.TemplateDir()}, flags...)
	var err error
	if w.Client, err = client.New(client.Options{BaseURL: "http://" + Address, APIKey: w.Key}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if w.cmd != nil {
			w.clean()
			w.Stop(syscall.SIGTERM)
		}
		for _, what := range Noticed() {
			t.Errorf("%s", what)
		}
		if t.Failed() {
			lines := strings.Split(w.log.String(), "\n")
			t.Logf("the end of the server's log:\n%s", strings.Join(lines[max(0, len(lines)-60):], "\n"))
		}
	})
	w.Start()
	return w
}

// Start starts the server, again after a Stop, and returns when it answers.
func (w *World) Start() {
	w.t.Helper()
	w.cmd = exec.Command(testenv.RequireBinary(w.t), w.args...)
	w.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "RINGFENCE_API_KEY=" + w.Key}, w.env...)
	w.cmd.Stdout, w.cmd.Stderr = &w.log, &w.log
	if err := w.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if _, err := w.Client.Health(context.Background()); err == nil {
			return
		} else if time.Now().After(end) {
			w.t.Fatalf("the server does not answer: %v\n%s", err, w.log.String())
		}
	}
}

// Stop ends the server with a signal. Its sandboxes go on.
func (w *World) Stop(signal syscall.Signal) {
	w.t.Helper()
	cmd := w.cmd
	w.cmd = nil
	cmd.Process.Signal(signal)
	late := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() })
	cmd.Wait()
	if !late.Stop() {
		w.t.Error("the server did not end")
	}
}

// Log is what the server has logged.
func (w *World) Log() string { return w.log.String() }

// clean ends all sandboxes, and forgets all snapshots.
func (w *World) clean() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	for sb, err := range w.Client.List(ctx, client.ListOptions{}) {
		if err == nil {
			err = sb.Kill(ctx)
		}
		if err != nil {
			w.t.Errorf("cannot clean up: %v", err)
			return
		}
	}
}

// Result is how an operation went in a program that used the SDK.
type Result struct {
	Operation string  `json:"operation"`
	Error     string  `json:"error"` // the class of what was raised; empty: it worked
	Message   string  `json:"message"`
	Trace     string  `json:"trace"`
	Seconds   float64 `json:"seconds"`
}

// Program runs a program with a package in this world, and returns what it printed. env is
// added to an environment without anything of the test's own.
func (w *World) Program(t testing.TB, p Package, script string, env ...string) (string, error) {
	t.Helper()
	dir, err := p.dir()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("%s is not installed: give it to world.Main", p.Run)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	home := t.TempDir()
	var cmd *exec.Cmd
	env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "LANG=C.UTF-8"}, env...)
	name := filepath.Join(home, filepath.Base(script))
	raw, err := os.ReadFile(script)
	if err == nil {
		err = os.WriteFile(name, raw, 0o644)
	}
	if p.python() {
		err = errors.Join(err, os.WriteFile(filepath.Join(home, "harness.py"), pythonHarness, 0o644))
		cmd = exec.CommandContext(ctx, filepath.Join(dir, "venv/bin/python"), name)
		path := filepath.Join(dir, "packages") + ":" + home
		for _, given := range env { // a preload goes first
			if before, ok := strings.CutPrefix(given, "PYTHONPATH="); ok {
				path = before + ":" + path
			}
		}
		env = append(env, "PYTHONPATH="+path, "PYTHONUNBUFFERED=1")
	} else {
		err = errors.Join(err, os.WriteFile(filepath.Join(home, "harness.mjs"), nodeHarness, 0o644), os.Symlink(filepath.Join(dir, "node_modules"), filepath.Join(home, "node_modules")))
		cmd = exec.CommandContext(ctx, "node", name)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd.Env, cmd.Dir, cmd.WaitDelay = env, home, 5*time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s with %s: %w: %s", filepath.Base(script), p.Run, err, stderr.String())
	}
	return string(out), err
}

// Operations runs a program that does a table's operations with the harness, and compares
// how each went with its row.
func (w *World) Operations(t testing.TB, p Package, table []dialect.Operation, script string, env ...string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "results")
	out, err := w.Program(t, p, script, append(env, "DIALECT_RESULTS="+file, "DIALECT_RUN="+p.Run)...)
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	results := map[string]Result{}
	for line := range strings.Lines(string(raw)) {
		var r Result
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if _, twice := results[r.Operation]; twice {
			t.Errorf("%s was done twice", r.Operation)
		}
		if results[r.Operation] = r; r.Seconds >= 1 {
			t.Logf("%s took %.1f s", r.Operation, r.Seconds)
		}
	}
	for _, o := range table {
		r, done := results[o.Name]
		delete(results, o.Name)
		switch {
		case done != o.In(p.Run):
			t.Errorf("%s: in the table %t, done %t", o.Name, o.In(p.Run), done)
		case !done:
		case o.Support != dialect.Refused && r.Error != "":
			t.Errorf("%s: %s: %s\n%s", o.Name, r.Error, r.Message, r.Trace)
		case o.Support == dialect.Refused && r.Error != o.Error:
			t.Errorf("%s is to be refused with %s, and was with %q: %s\n%s", o.Name, o.Error, r.Error, r.Message, r.Trace)
		case o.Support == dialect.Refused && !strings.Contains(r.Message, o.Message):
			t.Errorf("%s is refused with %q, which does not hold %q", o.Name, r.Message, o.Message)
		}
	}
	for name := range results {
		t.Errorf("%s was done, and is not in the table", name)
	}
}
