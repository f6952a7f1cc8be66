package gvisor_test

import (
	"bufio"
	"context"
	"encoding/json"
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
	"ringfence.dev/ringfence/internal/driver"
	"ringfence.dev/ringfence/internal/driver/drivertest"
	"ringfence.dev/ringfence/internal/driver/gvisor"
	"ringfence.dev/ringfence/internal/guestbin"
	"ringfence.dev/ringfence/internal/guestlink"
	"ringfence.dev/ringfence/internal/guestproto"
	"ringfence.dev/ringfence/internal/testenv"
)

// holderEnv makes the test binary a daemon that starts a sandbox and waits to be
// killed; see abandon.
const holderEnv = "RINGFENCE_TEST_HOLDER"

// The sentry is this test binary, started again: build with CGO_ENABLED=0.
func TestMain(m *testing.M) {
	gvisor.MaybeRunsc()
	if job := os.Getenv(holderEnv); job != "" {
		if err := hold(job); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

func agent(t testing.TB) []byte {
	t.Helper()
	b, err := guestbin.Agent()
	if err != nil {
		t.Fatalf("%v (`make internal/guestbin/bin/ringfence-guest` is enough)", err)
	}
	return b
}

func open(t testing.TB, dir string) *gvisor.Driver {
	t.Helper()
	testenv.RequireRoot(t)
	d, err := gvisor.New(gvisor.Options{Dir: dir, Agent: agent(t)})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func testSpec(t testing.TB) driver.Spec {
	return driver.Spec{
		ID: ringfence.NewSandboxID(), ImagePath: testenv.BusyboxImage(t), Hostname: "box", MaxProcs: 500,
		Size: ringfence.Size{VCPU: 2, MemoryMiB: 512, DiskMiB: 1024},
	}
}

func TestConformance(t *testing.T) {
	testenv.RequireRoot(t)
	dir := t.TempDir()
	drivertest.Run(t, drivertest.Harness{
		Open:    func(t *testing.T) driver.Driver { return open(t, dir) },
		Spec:    func(t *testing.T) driver.Spec { return testSpec(t) },
		Abandon: func(t *testing.T, spec driver.Spec) { abandon(t, dir, spec) },
		Traces:  func(t *testing.T, id string) []string { return traces(t, dir, id) },
	})
	if left := traces(t, dir, "ringfence"); len(left) > 0 {
		t.Errorf("at the end there is %q", left)
	}
}

// job is what a holder is told.
type job struct {
	Dir  string
	Spec driver.Spec
	Half bool // die between the boot of the sentry and the start of the guest
}

// abandon lets another process start a sandbox and a command, and kills it.
func abandon(t *testing.T, dir string, spec driver.Spec) {
	t.Helper()
	raw, err := json.Marshal(job{Dir: dir, Spec: spec})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), holderEnv+"="+string(raw), "RINGFENCE_TEST_SECRET=of-the-daemon")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Signal(syscall.SIGKILL)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "ready\n" {
		t.Fatalf("the holder said %q, %v", line, err)
	}
}

// hold is the other process.
func hold(raw string) error {
	var j job
	if err := json.Unmarshal([]byte(raw), &j); err != nil {
		return err
	}
	agent, err := guestbin.Agent()
	if err != nil {
		return err
	}
	d, err := gvisor.New(gvisor.Options{Dir: j.Dir, Agent: agent})
	if err != nil {
		return err
	}
	ctx := context.Background()
	i, err := d.Create(ctx, j.Spec)
	if err != nil {
		return err
	}
	rwc, err := i.Link(ctx)
	if err != nil {
		return err
	}
	c, err := guestlink.Attach(ctx, rwc)
	if err != nil {
		return err
	}
	if err := c.Identity(ctx, guestproto.Identity{SandboxID: j.Spec.ID, User: "root", WorkDir: "/", MaxProcs: j.Spec.MaxProcs, MemoryBytes: j.Spec.Size.MemoryMiB << 20}); err != nil {
		return err
	}
	if _, err := c.Start(ctx, guestproto.ProcessStart{ID: drivertest.AbandonedProcess, Shell: "sleep 1000"}, nil); err != nil {
		return err
	}
	fmt.Println("ready")
	time.Sleep(time.Hour)
	return nil
}

// traces looks for what names a sandbox, everywhere on the host where one could be.
func traces(t testing.TB, dir, id string) []string {
	t.Helper()
	var found []string
	if _, err := os.Lstat(filepath.Join(dir, "sandboxes", id)); err == nil {
		found = append(found, filepath.Join(dir, "sandboxes", id))
	}
	procs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range procs {
		raw, _ := os.ReadFile(p)
		args := strings.Split(string(raw), "\x00")
		if len(args) > 2 && args[len(args)-2] == id && strings.HasSuffix(args[0], "-sandbox") {
			found = append(found, "process "+strings.Join(args, " "))
		}
	}
	filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() == id && id != "ringfence" {
			found = append(found, path)
		}
		return nil
	})
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, id) && strings.Contains(line, dir) {
			found = append(found, "mount "+line)
		}
	}
	return found
}
