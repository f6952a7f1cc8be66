package faults

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/client"
	"ringfence.dev/ringfence/internal/testenv"
)

// world is a data directory and an address on which daemons follow each other.
type world struct {
	t      *testing.T
	dir    string // data directory
	listen string
	key    string
	binary string
	flags  []string
	sizes  map[string]bool // that sandboxes were made in of a template
	env    []string
	c      *client.Client
	d      *daemon // that runs now
}

// daemon is one process of `ringfence serve`.
type daemon struct {
	cmd      *exec.Cmd
	out, err *testenv.Buffer
	exited   chan struct{}
	started  time.Time
}

func newWorld(t *testing.T, flags ...string) *world {
	t.Helper()
	testenv.RequireRoot(t)
	testenv.RequireTemplate(t, "base")
	dir := t.TempDir()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, dir: filepath.Join(dir, "data"), listen: free.Addr().String(), key: ringfence.NewAPIKey(), flags: flags, sizes: map[string]bool{}, binary: testenv.RequireBinary(t)}
	free.Close()
	if w.c, err = client.New(client.Options{BaseURL: "http://" + w.listen, APIKey: w.key}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		w.killAll()
		if d := w.d; d != nil { // nil when it did not even start
			w.stop(syscall.SIGTERM)
			if t.Failed() {
				t.Logf("the daemon's log:\n%s", tail(unhappy(d.err.String()), 40))
			}
		}
		if left := w.processes(); len(left) > 0 {
			t.Errorf("processes of the sandboxes are left: %v", left)
		}
	})
	return w
}

// unhappy leaves out the lines that every request and every sandbox writes.
func unhappy(log string) string {
	var kept []string
	for line := range strings.Lines(log) {
		if !strings.Contains(line, "level=INFO") {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "")
}

func tail(s string, n int) string {
	lines := strings.Split(s, "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// launch starts a daemon without waiting for it.
func (w *world) launch() *daemon {
	w.t.Helper()
	args := append([]string{"serve", "--listen", w.listen, "--data-dir", w.dir, "--template-dir", testenv.TemplateDir()}, w.flags...)
	d := &daemon{cmd: exec.Command(w.binary, args...), out: &testenv.Buffer{}, err: &testenv.Buffer{}, exited: make(chan struct{}), started: time.Now()}
	d.cmd.Stdout, d.cmd.Stderr = d.out, d.err
	d.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "RINGFENCE_API_KEY=" + w.key, "SECRET_OF_THE_DAEMON=7f3a"}, w.env...)
	if err := d.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	go func() {
		d.cmd.Wait()
		close(d.exited)
	}()
	w.d = d
	return d
}

// start starts a daemon and returns when it answers.
func (w *world) start() *daemon {
	w.t.Helper()
	d := w.launch()
	for {
		if _, err := w.c.Health(context.Background()); err == nil {
			return d
		}
		select {
		case <-d.exited:
			w.d = nil
			w.t.Fatalf("the daemon ended: %s", d.err)
		case <-time.After(5 * time.Millisecond):
		}
		if time.Since(d.started) > 30*time.Second {
			w.t.Fatalf("the daemon does not answer: %s", d.err)
		}
	}
}

// stop sends the daemon a signal and waits for its end.
func (w *world) stop(signal syscall.Signal) int {
	w.t.Helper()
	d := w.d
	w.d = nil
	d.cmd.Process.Signal(signal)
	select {
	case <-d.exited:
	case <-time.After(45 * time.Second):
		d.cmd.Process.Kill()
		<-d.exited
		w.t.Error("the daemon did not end")
	}
	return d.cmd.ProcessState.ExitCode()
}

// killAll ends all sandboxes through a daemon.
func (w *world) killAll() {
	if w.d == nil {
		w.start()
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for sb, err := range w.c.List(ctx, client.ListOptions{}) {
		if err == nil {
			err = sb.Kill(ctx)
		}
		if err != nil {
			w.t.Errorf("cannot clean up: %v", err)
		}
	}
}

// processes lists the host processes of this world's sandboxes.
func (w *world) processes() []int {
	w.t.Helper()
	var found []int
	entries, err := os.ReadDir("/proc")
	if err != nil {
		w.t.Fatal(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || (w.d != nil && pid == w.d.cmd.Process.Pid) {
			continue
		}
		line, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err == nil && bytes.Contains(line, []byte(w.dir+"/")) {
			found = append(found, pid)
		}
	}
	return found
}

// leftovers lists what the driver keeps for sandboxes on disk.
func (w *world) leftovers() []string {
	w.t.Helper()
	entries, err := os.ReadDir(filepath.Join(w.dir, "gvisor", "sandboxes"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		w.t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func (w *world) create(o client.CreateOptions) *client.Sandbox {
	w.t.Helper()
	if o.Snapshot == "" {
		if o.Template == "" {
			o.Template = "base"
		}
		if o.MemoryMiB == 0 {
			o.MemoryMiB = 512
		}
	}
	sb, err := w.c.Create(context.Background(), o)
	if err != nil {
		w.t.Fatal(err)
	}
	if o.Snapshot == "" {
		w.sizes[fmt.Sprint(o.Template, o.VCPU, o.MemoryMiB, o.DiskMiB)] = true
		w.awaitGolden()
	}
	w.settle()
	return sb
}

// awaitGolden waits until the golden snapshots are made that sandboxes start from from now on.
func (w *world) awaitGolden() {
	w.t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		golden, err := filepath.Glob(filepath.Join(w.dir, "snapshots", "golden", "*.json"))
		if err != nil {
			w.t.Fatal(err)
		}
		if len(golden) >= len(w.sizes) || strings.Contains(w.d.err.String(), "cannot make a golden snapshot") {
			return
		}
	}
}

// settle waits until the daemon has done what it does in the background after a
// template's first use: until every sandbox of the host has an owner.
func (w *world) settle() {
	w.t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		live := map[string]bool{}
		for sb, err := range w.c.List(context.Background(), client.ListOptions{}) {
			if err != nil {
				w.t.Fatal(err)
			}
			live[sb.ID()] = true
		}
		if !slices.ContainsFunc(w.leftovers(), func(id string) bool { return !live[id] }) {
			return
		}
	}
}

func (w *world) shell(sb *client.Sandbox, command string) string {
	w.t.Helper()
	r, err := sb.Run(context.Background(), client.Command{Shell: command})
	if err != nil || r.ExitCode != 0 {
		w.t.Fatalf("%s: %+v %v", command, r, err)
	}
	return string(r.Stdout)
}

// ended checks how the record says that a sandbox ended.
func (w *world) ended(id string, state ringfence.State, reason ringfence.Reason) client.Info {
	w.t.Helper()
	sb, err := w.c.Get(context.Background(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	info := sb.Info()
	if info.State != state || info.Reason != reason {
		w.t.Errorf("it is %s %s (%s), want %s %s", info.State, info.Reason, info.Detail, state, reason)
	}
	return info
}

// waitFor waits for a condition.
func waitFor(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// request sends one request without the client, for what the client would refuse.
func (w *world) request(method, path, body string, headers ...string) (int, http.Header, string) {
	w.t.Helper()
	req, err := http.NewRequest(method, "http://"+w.listen+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+w.key)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, resp.Header, string(text)
}

// status reads a line of a process's status in /proc, in KiB.
func status(t *testing.T, pid int, name string) int {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), name+":"); ok {
			n, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no %s in the status of %d", name, pid)
	return 0
}
