package gvisor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/driver"
	"ringfence.dev/ringfence/internal/driver/drivertest"
	"ringfence.dev/ringfence/internal/guestproto"
)

// sentryOf returns the process of a sandbox.
func sentryOf(t *testing.T, id string) int {
	t.Helper()
	procs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range procs {
		raw, _ := os.ReadFile(p)
		args := strings.Split(string(raw), "\x00")
		if len(args) > 2 && args[len(args)-2] == id {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(p)))
			return pid
		}
	}
	t.Fatalf("sandbox %s has no process", id)
	return 0
}

// TestSentryHasNothing looks at the sentry from the host: who it is, what it may do,
// what it holds.
func TestSentryHasNothing(t *testing.T) {
	t.Setenv("RINGFENCE_TEST_SECRET", "of-the-daemon")
	secret, err := os.CreateTemp(t.TempDir(), "secret-of-the-daemon")
	if err != nil {
		t.Fatal(err)
	}
	defer secret.Close()
	// What is not close-on-exec, as gVisor's control client makes it, also where the
	// sentry wants to put the link.
	inheritable, err := unix.Dup(int(secret.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(inheritable)
	for _, fd := range []int{253, 255} {
		if err := unix.Dup2(inheritable, fd); err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
	}
	dir := t.TempDir()
	spec := testSpec(t)
	i, err := open(t, dir).Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer i.Kill(t.Context())
	c := drivertest.Attach(t, i, spec)
	pid := sentryOf(t, spec.ID)
	proc := fmt.Sprintf("/proc/%d/", pid)

	environ, err := os.ReadFile(proc + "environ")
	if err != nil || string(environ) != "GOGC=200\x00" {
		t.Errorf("the sentry's environment is %q, %v; want nothing of the daemon's", environ, err)
	}
	cmdline, _ := os.ReadFile(proc + "cmdline")
	if strings.Contains(string(cmdline), "of-the-daemon") {
		t.Errorf("the sentry's arguments hold a secret: %q", cmdline)
	}

	// Every open file is one that the driver gave, or the sentry's own.
	sandbox := filepath.Join(dir, "sandboxes", spec.ID)
	allowed := []string{
		sandbox + "/disk", sandbox + "/to-guest", sandbox + "/from-guest", sandbox + "/stderr", sandbox + "/sentry.log",
		spec.ImagePath, filepath.Join(dir, "agents") + "/", "/dev/null", "/memfd:", "anon_inode:", "socket:", "pipe:", "/cpu.",
	}
	fds, err := os.ReadDir(proc + "fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		target, err := os.Readlink(proc + "fd/" + fd.Name())
		if err != nil {
			continue // closed meanwhile
		}
		ok := false
		for _, a := range allowed {
			ok = ok || strings.HasPrefix(target, a)
		}
		if !ok {
			t.Errorf("the sentry holds %s -> %s", fd.Name(), target)
		}
	}

	status, _ := os.ReadFile(proc + "status")
	for _, want := range []string{
		"Uid:\t65534\t65534\t65534\t65534", "Gid:\t65534\t65534\t65534\t65534", "NoNewPrivs:\t1", "Seccomp:\t2",
		"CapInh:\t0000000000000000", "CapPrm:\t0000000000000000", "CapEff:\t0000000000000000",
		"CapBnd:\t0000000000000000", "CapAmb:\t0000000000000000",
	} {
		if !strings.Contains(string(status), want+"\n") {
			t.Errorf("the sentry's status lacks %q:\n%s", want, status)
		}
	}
	for _, ns := range []string{"user", "mnt", "pid", "net", "ipc", "uts"} {
		own, _ := os.Readlink("/proc/self/ns/" + ns)
		theirs, err := os.Readlink(proc + "ns/" + ns)
		if err != nil || own == theirs {
			t.Errorf("the sentry shares the host's %s namespace (%v)", ns, err)
		}
	}
	// Its root is empty but for what gVisor puts there, and cannot be written.
	root, err := os.ReadDir(proc + "root")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range root {
		if e.Name() != "etc" && e.Name() != "proc" {
			t.Errorf("the sentry's root holds %s", e.Name())
		}
	}
	if _, err := os.Stat(proc + "root/proc/self"); err == nil {
		t.Error("the sentry still has a /proc")
	}
	if adj, _ := os.ReadFile(proc + "oom_score_adj"); string(adj) != "500\n" {
		t.Errorf("the sentry's oom_score_adj is %q", adj)
	}
	// Nor is anything of it inside.
	r := drivertest.Shell(t, c, "cat /proc/*/environ /proc/*/cmdline; env; ls -l /proc/*/fd")
	if strings.Contains(r.Stdout, "of-the-daemon") || strings.Contains(r.Stdout, dir) {
		t.Errorf("the guest sees the daemon: %q", r.Stdout)
	}
}

// TestSentryKilled: the host's kernel or an operator kills the sentry.
func TestSentryKilled(t *testing.T) {
	dir := t.TempDir()
	spec := testSpec(t)
	i, err := open(t, dir).Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer i.Kill(t.Context())
	c := drivertest.Attach(t, i, spec)
	cmd := drivertest.Start(t, c, guestproto.ProcessStart{Shell: "sleep 1000"})
	if err := syscall.Kill(sentryOf(t, spec.ID), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-i.Done():
	case <-time.After(time.Minute):
		t.Fatal("the end of the sentry was not seen")
	}
	if e := i.Exit(); e.Reason != ringfence.ReasonCrashed {
		t.Errorf("the exit is %+v", e)
	}
	if _, err := cmd.Finish(t.Context()); err == nil {
		t.Error("the command ended without an error")
	}
	if err := i.Kill(t.Context()); err != nil {
		t.Error(err)
	}
	if left := traces(t, dir, spec.ID); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// TestCreateFails: whatever fails, nothing is left.
func TestCreateFails(t *testing.T) {
	dir := t.TempDir()
	d := open(t, dir)
	junk := filepath.Join(t.TempDir(), "junk")
	if err := os.WriteFile(junk, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*driver.Spec){
		"no image":        func(s *driver.Spec) { s.ImagePath = "/none" },
		"not an image":    func(s *driver.Spec) { s.ImagePath = junk },
		"relative path":   func(s *driver.Spec) { s.ImagePath = "none" },
		"too little disk": func(s *driver.Spec) { s.Size.DiskMiB = 0 },
	} {
		spec := testSpec(t)
		change(&spec)
		i, err := d.Create(t.Context(), spec)
		if err == nil {
			i.Kill(t.Context())
			t.Errorf("%s: it was created", name)
		}
		t.Logf("%s: %v", name, err)
		if left := traces(t, dir, spec.ID); len(left) > 0 {
			t.Errorf("%s: left %q", name, left)
		}
	}
}

// TestRecoverLeftovers: what a dead daemon left and no sandbox lives in is removed.
func TestRecoverLeftovers(t *testing.T) {
	dir := t.TempDir()
	d := open(t, dir)

	// A sandbox whose sentry died while no daemon was there.
	dead := testSpec(t)
	abandon(t, dir, dead)
	syscall.Kill(sentryOf(t, dead.ID), syscall.SIGKILL)
	// One that was not started to the end: its record says so, its sentry lives.
	half := testSpec(t)
	abandon(t, dir, half)
	statePath := filepath.Join(dir, "sandboxes", half.ID, "state.json")
	var state map[string]any
	raw, err := os.ReadFile(statePath)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &state); err != nil {
		t.Fatal(err)
	}
	state["Running"] = false
	raw, _ = json.Marshal(state)
	if err := os.WriteFile(statePath, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	// A directory without a record, and a process number that is now another's.
	empty := testSpec(t)
	os.Mkdir(filepath.Join(dir, "sandboxes", empty.ID), 0o700)
	reused := testSpec(t)
	os.Mkdir(filepath.Join(dir, "sandboxes", reused.ID), 0o700)
	state["Pid"], state["Running"], state["Spec"] = os.Getpid(), true, reused
	raw, _ = json.Marshal(state)
	if err := os.WriteFile(filepath.Join(dir, "sandboxes", reused.ID, "state.json"), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	// Something of somebody else.
	other := filepath.Join(dir, "sandboxes", "not a sandbox")
	os.Mkdir(other, 0o700)
	// One that is well.
	good := testSpec(t)
	abandon(t, dir, good)

	found, err := d.Recover(t.Context())
	if err != nil {
		t.Error(err)
	}
	if len(found) != 1 || found[0].ID() != good.ID {
		t.Errorf("found %d sandboxes", len(found))
	}
	for _, i := range found {
		defer i.Kill(t.Context())
	}
	for name, spec := range map[string]driver.Spec{"dead": dead, "half": half, "empty": empty, "reused": reused} {
		if left := traces(t, dir, spec.ID); len(left) > 0 {
			t.Errorf("%s: left %q", name, left)
		}
	}
	if _, err := os.Stat(other); err != nil {
		t.Errorf("what was not ours is gone: %v", err)
	}
}

// TestHostDiskFull: the host's file system fills before the sandbox's disk does. The
// writer is told, or its sandbox ends; another sandbox and the driver go on.
func TestHostDiskFull(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("ringfence-test", dir, "tmpfs", 0, "size=96m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	d := open(t, dir)
	full, other := testSpec(t), testSpec(t)
	i, err := d.Create(t.Context(), full)
	if err != nil {
		t.Fatal(err)
	}
	defer i.Kill(context.Background())
	neighbour, err := d.Create(t.Context(), other)
	if err != nil {
		t.Fatal(err)
	}
	defer neighbour.Kill(context.Background())
	c, nc := drivertest.Attach(t, i, full), drivertest.Attach(t, neighbour, other)
	r, err := drivertest.Start(t, c, guestproto.ProcessStart{Shell: "dd if=/dev/zero of=/root/big bs=1M count=300"}).Finish(t.Context())
	t.Logf("the writer: %+v %v; sandbox %+v", r, err, i.Exit())
	if err == nil && r.Exit.ExitCode == 0 {
		t.Error("300 MiB fit on a host file system of 96 MiB")
	}
	if r := drivertest.Shell(t, nc, "echo untouched"); r.Stdout != "untouched\n" {
		t.Errorf("the neighbour: %+v", r)
	}
	if err := i.Kill(t.Context()); err != nil {
		t.Error(err)
	}
	third := testSpec(t)
	again, err := d.Create(t.Context(), third)
	if err != nil {
		t.Fatalf("after the full sandbox is gone: %v", err)
	}
	defer again.Kill(context.Background())
	drivertest.Attach(t, again, third)
}

// TestNothingPilesUp: sandboxes that came and went cost this process nothing.
func TestNothingPilesUp(t *testing.T) {
	d := open(t, t.TempDir())
	cycle := func() {
		spec := testSpec(t)
		i, err := d.Create(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		rwc, err := i.Link(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		rwc.Close()
		if _, _, err := i.Rescue(t.Context(), []string{"/bin/true"}); err != nil {
			t.Fatal(err)
		}
		if err := i.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	count := func() (files, routines, zombies int) {
		fds, _ := os.ReadDir("/proc/self/fd")
		procs, _ := filepath.Glob("/proc/[0-9]*/stat")
		for _, p := range procs {
			raw, _ := os.ReadFile(p)
			_, rest, _ := strings.Cut(string(raw), ") ")
			if f := strings.Fields(rest); len(f) > 1 && f[0] == "Z" && f[1] == strconv.Itoa(os.Getpid()) {
				zombies++
			}
		}
		return len(fds), runtime.NumGoroutine(), zombies
	}
	cycle()
	time.Sleep(200 * time.Millisecond)
	files, routines, _ := count()
	for range 5 {
		cycle()
	}
	deadline := time.Now().Add(time.Minute)
	for {
		f, r, z := count()
		if f <= files && r <= routines && z == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("there are %d open files, %d goroutines, %d zombies; there were %d and %d", f, r, z, files, routines)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
