package drivertest

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/driver"
	"ringfence.dev/ringfence/internal/guestlink"
	"ringfence.dev/ringfence/internal/guestproto"
)

func (s suite) rescue(t *testing.T) {
	spec := s.h.Spec(t)
	i := s.create(t, s.h.Open(t), spec)
	Attach(t, i, spec).Close()
	status, out, err := i.Rescue(testContext(t), []string{"/bin/sh", "-c", "echo saved; exit 3"})
	if err != nil || status != 3 || string(out) != "saved\n" {
		t.Errorf("rescue gave %d, %q, %v", status, out, err)
	}
	_, out, err = i.Rescue(testContext(t), []string{"/bin/sh", "-c", "yes | head -c 1000000"})
	if err != nil || len(out) != 64<<10 {
		t.Errorf("a rescue with much output gave %d bytes, %v", len(out), err)
	}
	_, _, err = i.Rescue(testContext(t), nil)
	wantCode(t, "a rescue without a command", err, ringfence.CodeInvalidArgument)

	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, _, err = i.Rescue(ctx, []string{"/bin/sh", "-c", "sleep 1000"}); err == nil {
		t.Error("a rescue outlived its context")
	}
	wantAlive(t, i)

	// The agent is stuck: the link is silent, and the other way works.
	if !freezeAgent(t, i) {
		return
	}
	status, out, err = i.Rescue(testContext(t), []string{"/bin/sh", "-c", "echo while stuck"})
	if err != nil || status != 0 || string(out) != "while stuck\n" {
		t.Errorf("rescue past a stuck agent gave %d, %q, %v", status, out, err)
	}
	if err := i.Kill(testContext(t)); err != nil {
		t.Errorf("a kill with a stuck agent: %v", err)
	}
	s.wantNoTraces(t, spec.ID)
}

// freezeAgent makes PID 1 deaf, by a signal from outside the agent's tree or by the
// fake's command, and reports whether it is.
func freezeAgent(t *testing.T, i driver.Instance) bool {
	t.Helper()
	i.Rescue(testContext(t), []string{"/bin/sh", "-c", "kill -STOP 1 || fake-hang &"})
	deadline := time.Now().Add(testTimeout)
	for time.Now().Before(deadline) {
		rwc, err := i.Link(testContext(t))
		if err != nil {
			t.Fatal(err)
		}
		answered := make(chan error, 1)
		go func() {
			c, err := guestlink.Attach(testContext(t), rwc)
			if err == nil {
				c.Close()
			}
			answered <- err
		}()
		select {
		case err := <-answered:
			if err != nil {
				return true
			}
			time.Sleep(20 * time.Millisecond) // the signal was not yet delivered
		case <-time.After(2 * time.Second):
			rwc.Close()
			<-answered
			return true
		}
	}
	t.Error("the agent cannot be made deaf")
	return false
}

func (s suite) noRescue(t *testing.T) {
	i := s.create(t, s.h.Open(t), s.h.Spec(t))
	_, _, err := i.Rescue(testContext(t), []string{"/bin/true"})
	wantCode(t, "rescue", err, ringfence.CodeNotYetSupported)
}

func (s suite) pause(t *testing.T) {
	spec := s.h.Spec(t)
	i := s.create(t, s.h.Open(t), spec)
	c := Attach(t, i, spec)
	cmd := Start(t, c, guestproto.ProcessStart{Shell: strings.Repeat("echo tick; sleep 0.02; ", 150)})
	waitOutput(t, cmd, "tick\n")
	if err := i.Resume(testContext(t)); err != nil {
		t.Errorf("a resume of a sandbox that is not paused: %v", err)
	}
	for range 2 { // once is enough, and so is one resume
		if err := i.Pause(testContext(t)); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(100 * time.Millisecond)
	before := cmd.Output()
	time.Sleep(300 * time.Millisecond)
	if after := cmd.Output(); after != before {
		t.Errorf("a paused sandbox wrote %q", after[len(before):])
	}
	for range 2 {
		if err := i.Resume(testContext(t)); err != nil {
			t.Fatal(err)
		}
	}
	for deadline := time.Now().Add(testTimeout); cmd.Output() == before; {
		if time.Now().After(deadline) {
			t.Fatal("a resumed sandbox does nothing")
		}
		time.Sleep(5 * time.Millisecond)
	}
	if err := i.Pause(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if err := i.Kill(testContext(t)); err != nil {
		t.Errorf("a kill of a paused sandbox: %v", err)
	}
}

func waitOutput(t *testing.T, cmd *Command, want string) {
	t.Helper()
	for deadline := time.Now().Add(testTimeout); !strings.Contains(cmd.Output(), want); {
		if time.Now().After(deadline) {
			t.Fatalf("the command wrote %q, not %q", cmd.Output(), want)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (s suite) noPause(t *testing.T) {
	i := s.create(t, s.h.Open(t), s.h.Spec(t))
	wantCode(t, "pause", i.Pause(testContext(t)), ringfence.CodeNotYetSupported)
	wantCode(t, "resume", i.Resume(testContext(t)), ringfence.CodeNotYetSupported)
}

// freeze makes a sandbox ready to be saved, as the engine does.
func freeze(t *testing.T, c *guestlink.Conn, i driver.Instance) {
	t.Helper()
	if err := c.Freeze(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if err := i.Pause(testContext(t)); err != nil {
		t.Fatal(err)
	}
}

// checkpoint saves a sandbox with files, a process and a half-read log, lets it go
// on, and restores it twice under other ids.
func (s suite) checkpoint(t *testing.T) {
	d := s.h.Open(t)
	spec := s.h.Spec(t)
	i := s.create(t, d, spec)
	c := Attach(t, i, spec)
	wantOutput(t, c, "echo kept > /root/kept; echo tmp > /tmp/kept", "")
	running := d.Capabilities().Processes
	if running {
		wantOutput(t, c, "head -c 3000000 /dev/urandom > /root/noise; md5sum /root/noise > /root/sum", "")
		cmd := Start(t, c, guestproto.ProcessStart{ID: "ticker", Shell: "n=0; while true; do n=$((n+1)); echo tick $n; sleep 0.02; done"})
		waitOutput(t, cmd, "tick 3\n")
	}
	freeze(t, c, i)
	dir := t.TempDir()
	begin := time.Now()
	if err := i.Checkpoint(testContext(t), dir); err != nil {
		t.Fatal(err)
	}
	t.Logf("the checkpoint took %v, %d bytes", time.Since(begin), dirSize(dir))

	// It is left paused, and goes on as if nothing had been.
	if err := i.Resume(testContext(t)); err != nil {
		t.Fatal(err)
	}
	c = Attach(t, i, spec)
	wantOutput(t, c, "cat /root/kept", "kept\n")
	wantOutput(t, c, "echo later > /root/later", "")

	for range 2 {
		to := spec
		to.ID = ringfence.NewSandboxID()
		to.Hostname = "restored"
		begin := time.Now()
		r, err := d.Restore(testContext(t), to, dir)
		if err != nil {
			t.Fatal(err)
		}
		killAtEnd(t, r)
		rc := Attach(t, r, to)
		t.Logf("restore to the agent's answer took %v", time.Since(begin))
		if rc.BootID() != c.BootID() {
			t.Error("the agent is another one")
		}
		wantOutput(t, rc, "cat /root/kept /tmp/kept", "kept\ntmp\n")
		if running {
			wantOutput(t, rc, "cd /; md5sum -c /root/sum", "/root/noise: OK\n")
		}
		wantOutput(t, rc, "hostname", "restored\n")
		wantOutput(t, rc, "test -e /root/later || echo apart", "apart\n")
		wantOutput(t, rc, "echo only here > /root/only; cat /root/only", "only here\n")
		if running {
			s.wantTicking(t, rc)
		}
		if err := r.Kill(testContext(t)); err != nil {
			t.Error(err)
		}
		s.wantNoTraces(t, to.ID)
	}
	if running {
		s.wantTicking(t, c)
	}
	wantOutput(t, c, "test -e /root/only || echo apart", "apart\n")
}

// wantTicking re-joins the process of checkpoint and sees it go on.
func (s suite) wantTicking(t *testing.T, c *guestlink.Conn) {
	t.Helper()
	ticks := make(chan struct{}, 1000)
	p, err := c.Rejoin(testContext(t), "ticker", 0, func(ch guestlink.Chunk) error {
		for range strings.Count(string(ch.Data), "tick") {
			select {
			case ticks <- struct{}{}:
			default:
			}
		}
		return nil
	})
	if err != nil {
		t.Fatalf("cannot re-join a process: %v", err)
	}
	defer p.Detach()
	for range 10 {
		select {
		case <-ticks:
		case <-time.After(testTimeout):
			t.Fatal("the process does not go on")
		}
	}
}

func dirSize(dir string) int64 {
	var total int64
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			total += info.Size()
		}
	}
	return total
}

func (s suite) noCheckpoint(t *testing.T) {
	d := s.h.Open(t)
	spec := s.h.Spec(t)
	i := s.create(t, d, spec)
	wantCode(t, "checkpoint", i.Checkpoint(testContext(t), t.TempDir()), ringfence.CodeNotYetSupported)
	spec.ID = ringfence.NewSandboxID()
	_, err := d.Restore(testContext(t), spec, t.TempDir())
	wantCode(t, "restore", err, ringfence.CodeNotYetSupported)
}

// checkpointRefused: what is not a whole checkpoint of the same image and size is
// refused, a failed save costs nothing, and neither leaves anything.
func (s suite) checkpointRefused(t *testing.T) {
	d := s.h.Open(t)
	spec := s.h.Spec(t)
	i := s.create(t, d, spec)
	c := Attach(t, i, spec)
	freeze(t, c, i)
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "something"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wantCode(t, "a checkpoint into a directory with files", i.Checkpoint(testContext(t), full), ringfence.CodeFailedPrecondition)
	if err := i.Checkpoint(testContext(t), filepath.Join(full, "missing")); err == nil {
		t.Error("a checkpoint into a missing directory worked")
	}
	dir := t.TempDir()
	if err := i.Checkpoint(testContext(t), dir); err != nil {
		t.Fatal(err)
	}
	if err := i.Resume(testContext(t)); err != nil {
		t.Fatal(err)
	}
	wantOutput(t, Attach(t, i, spec), "echo alive", "alive\n")

	other := spec
	other.ID = ringfence.NewSandboxID()
	refused := func(what string, spec driver.Spec, dir string) {
		t.Helper()
		r, err := d.Restore(testContext(t), spec, dir)
		if err == nil {
			killAtEnd(t, r)
		}
		wantCode(t, what, err, ringfence.CodeFailedPrecondition)
		s.wantNoTraces(t, spec.ID)
	}
	bigger := other
	bigger.Size.DiskMiB *= 2
	refused("a restore with another size", bigger, dir)
	refused("a restore of nothing", other, t.TempDir())
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		broken := append([]byte(nil), raw...)
		broken[len(broken)/2] ^= 0x20
		if err := os.WriteFile(path, broken, 0o600); err != nil {
			t.Fatal(err)
		}
		refused("a restore with a damaged "+e.Name(), other, dir)
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r, err := d.Restore(testContext(t), other, dir)
	if err != nil {
		t.Fatalf("the repaired checkpoint is refused: %v", err)
	}
	killAtEnd(t, r)
}

func (s suite) recover(t *testing.T) {
	spec := s.h.Spec(t)
	s.h.Abandon(t, spec)
	d := s.h.Open(t)
	found, err := d.Recover(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	var i driver.Instance
	for _, f := range found {
		if f.ID() == spec.ID {
			i = f
		}
	}
	if i == nil {
		t.Fatalf("the sandbox was not found among %d", len(found))
	}
	killAtEnd(t, i)
	wantAlive(t, i)
	c := Attach(t, i, spec)
	wantOutput(t, c, "echo recovered", "recovered\n")
	list, err := c.Processes(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	running := false
	for _, p := range list {
		running = running || p.ID == AbandonedProcess && p.Exit == nil
	}
	if !running {
		t.Errorf("its process is not there: %+v", list)
	}
	if err := i.Kill(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if e := wantDone(t, i); e.Reason != ringfence.ReasonKilled {
		t.Errorf("the exit is %+v", e)
	}
	s.wantNoTraces(t, spec.ID)
}

func (s suite) noRecover(t *testing.T) {
	if found, err := s.h.Open(t).Recover(testContext(t)); err != nil || len(found) > 0 {
		t.Errorf("recover gave %d sandboxes and %v", len(found), err)
	}
}
