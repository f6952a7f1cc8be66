package setup

import (
	"bufio"
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"ringfence.dev/ringfence/internal/testenv"
)

// moment is a line of the demo's after which it is interrupted, and how.
type moment struct {
	line    string
	after   time.Duration
	sandbox bool // after, counted from when there is a sandbox
	signal  syscall.Signal
}

// TestDemoInterrupted works in the checkout itself, so that what is up to date there
// need not be made again; the last demo is whole, and its output is printed.
func TestDemoInterrupted(t *testing.T) {
	testenv.RequireRoot(t)
	testenv.RequireTemplate(t, "code-interpreter")
	tree, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	d := &demo{t: t, tree: tree, templates: testenv.TemplateDir()}
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
		d.interrupt(moment{line: "Running the examples", sandbox: true, after: time.Second, signal: signal})
	}
	fmt.Print(d.whole())
}

// TestDemoInterruptedEverywhere starts from a clean copy of the checkout and an empty
// template directory, and takes many minutes: `make soak` runs it. Each demo gets further than the one before, so each has to mend
// what that one left.
func TestDemoInterruptedEverywhere(t *testing.T) {
	testenv.RequireRoot(t)
	d := &demo{t: t, tree: filepath.Join(t.TempDir(), "tree"), templates: filepath.Join(t.TempDir(), "templates")}
	if out, err := exec.Command("git", "clone", "-q", "--no-local", "../..", d.tree).CombinedOutput(); err != nil {
		t.Fatalf("cannot copy the checkout: %v: %s", err, out)
	}
	for _, m := range []moment{
		{line: "Checking what is needed"},
		{line: "Building bin/ringfence", after: time.Second},
		{line: "[1/4] base", after: 4 * time.Second}, // and beside it .venv, node_modules and the compiler
		{line: "[1/4] base", after: 12 * time.Second},
		{line: "[2/10] code-interpreter", after: 15 * time.Second},
		{line: "[10/10] code-interpreter"},
		{line: "Checking the code-interpreter template"},
		{line: "Starting the server"},
		{line: "Running the examples"},
		{line: "Running the examples", sandbox: true, after: time.Second},
		{line: "superserve_page printed"},
	} {
		for _, m.signal = range []syscall.Signal{syscall.SIGKILL, syscall.SIGINT} {
			d.interrupt(m)
		}
	}
	d.whole()
	builds, err := os.ReadDir(filepath.Join(d.templates, "build"))
	if err != nil || len(builds) > 0 {
		t.Errorf("the template directory holds unfinished builds: %v, %v", builds, err)
	}
	if got, err := os.ReadFile(filepath.Join(d.tree, ".venv", "ringfence-key")); err != nil {
		t.Errorf("the Python environment is not whole: %q, %v", got, err)
	}
}

// demo is a checkout and the sandboxes that its demos had.
type demo struct {
	t         *testing.T
	tree      string
	templates string
	sandboxes map[string]bool
}

// interrupt runs the demo up to the moment and waits until it has ended.
func (d *demo) interrupt(m moment) {
	d.t.Helper()
	cmd, out := d.command()
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		d.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	reached := make(chan bool, 1)
	read := make(chan struct{})
	go func() {
		defer close(read)
		lines := bufio.NewScanner(pipe)
		for lines.Scan() {
			fmt.Fprintln(out, lines.Text())
			if strings.Contains(lines.Text(), m.line) {
				select {
				case reached <- true:
				default:
				}
			}
		}
		close(reached)
	}()
	if !<-reached {
		err := cmd.Wait()
		// A template is built only once, and its last step passes quickly.
		if err == nil && strings.HasPrefix(m.line, "[") {
			return
		}
		d.t.Fatalf("the demo ended (%v) before it printed %q:\n%s", err, m.line, out)
	}
	for deadline := time.Now().Add(time.Minute); m.sandbox && !d.note(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			d.t.Fatalf("no sandbox was made:\n%s", out)
		}
	}
	time.Sleep(m.after)
	d.note()
	if err := syscall.Kill(-cmd.Process.Pid, m.signal); err != nil {
		d.t.Fatalf("cannot interrupt the demo after %q: %v:\n%s", m.line, err, out)
	}
	if m.signal == syscall.SIGKILL {
		// Programs that it left hold the pipe; the next demo ends them.
		pipe.Close()
		cmd.Process.Wait()
		d.t.Logf("killed %v after %q", m.after, m.line)
		return
	}
	<-read
	if err := cmd.Wait(); cmd.ProcessState.Success() {
		d.t.Errorf("the demo succeeded although it was interrupted after %q: %v", m.line, err)
	}
	d.t.Logf("interrupted %v after %q", m.after, m.line)
	d.nothingLeft()
}

// whole runs the demo to its end and returns what it printed.
func (d *demo) whole() string {
	d.t.Helper()
	cmd, out := d.command()
	cmd.Stdout = out
	if err := cmd.Run(); err != nil {
		d.t.Fatalf("the demo after the interrupted ones failed: %v:\n%s", err, out)
	}
	if info, err := os.Stat(filepath.Join(d.tree, "demo/out/chart.png")); err != nil || info.Size() == 0 {
		d.t.Errorf("the demo left no chart: %v", err)
	}
	d.nothingLeft()
	return out.String()
}

func (d *demo) command() (*exec.Cmd, *bytes.Buffer) {
	out := &bytes.Buffer{}
	cmd := exec.Command(filepath.Join(d.tree, "scripts/demo"))
	cmd.Env = append(os.Environ(), "RINGFENCE_TEMPLATE_DIR="+d.templates)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd, out
}

// note remembers the sandboxes that there are now, and reports whether there are any.
func (d *demo) note() bool {
	dirs, _ := os.ReadDir(filepath.Join(d.tree, "demo/out/data/gvisor/sandboxes"))
	if d.sandboxes == nil {
		d.sandboxes = map[string]bool{}
	}
	for _, dir := range dirs {
		d.sandboxes[dir.Name()] = true
	}
	return len(dirs) > 0
}

// nothingLeft looks for processes, control groups, mounts and files.
func (d *demo) nothingLeft() {
	d.t.Helper()
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range procs {
		environ, _ := os.ReadFile(filepath.Join(dir, "environ"))
		cmdline, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		if bytes.Contains(environ, []byte("\x00RINGFENCE_DEMO="+d.tree+"\x00")) ||
			bytes.Contains(cmdline, []byte(d.tree+"/demo/out/data")) {
			d.t.Errorf("process %s is left: %q", filepath.Base(dir), bytes.ReplaceAll(cmdline, []byte{0}, []byte(" ")))
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || bytes.Contains(mounts, []byte(d.tree+"/")) || bytes.Contains(mounts, []byte(d.templates+"/")) {
		d.t.Errorf("a mount is left, or cannot be read (%v):\n%s", err, mounts)
	}
	filepath.WalkDir("/sys/fs/cgroup", func(path string, e fs.DirEntry, err error) error {
		if err == nil && d.sandboxes[e.Name()] {
			d.t.Errorf("the control group %s is left", path)
		}
		return nil
	})
	kept, _ := os.ReadDir(filepath.Join(d.tree, "demo/out/data"))
	for _, entry := range kept {
		if entry.Name() != "snapshots" { // what the next demo's sandboxes start from
			d.t.Errorf("demo/out/data/%s is left", entry.Name())
		}
	}
	for _, path := range []string{"demo/out/pid", ".tools/go.new", ".tools/node.new"} {
		if _, err := os.Lstat(filepath.Join(d.tree, path)); err == nil {
			d.t.Errorf("%s is left", path)
		}
	}
}
