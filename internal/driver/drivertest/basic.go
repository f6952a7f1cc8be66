package drivertest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/driver"
	"ringfence.dev/ringfence/internal/guestproto"
)

func (s suite) start(t *testing.T) {
	d := s.h.Open(t)
	spec := s.h.Spec(t)
	i := s.create(t, d, spec)
	if i.ID() != spec.ID {
		t.Errorf("the id is %q, want %q", i.ID(), spec.ID)
	}
	c := Attach(t, i, spec)
	wantOutput(t, c, "echo hello", "hello\n")
	wantOutput(t, c, "echo $RF_TEST; hostname", "1\n"+spec.Hostname+"\n")
	r := Shell(t, c, "echo out; echo err >&2; exit 7")
	if r.Stdout != "out\n" || r.Stderr != "err\n" || r.Exit.ExitCode != 7 {
		t.Errorf("got %+v", r)
	}
	cmd := Start(t, c, guestproto.ProcessStart{Shell: "cat", Stdin: true})
	if _, err := cmd.WriteStdin(testContext(t), []byte("through stdin")); err != nil {
		t.Fatal(err)
	}
	if err := cmd.CloseStdin(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if r, err := cmd.Finish(testContext(t)); err != nil || r.Stdout != "through stdin" {
		t.Errorf("cat gave %+v, %v", r, err)
	}
	if e := i.Exit(); e != (driver.Exit{}) {
		t.Errorf("a live sandbox has exit %+v", e)
	}
	if _, err := i.Usage(testContext(t)); err != nil {
		t.Errorf("no usage: %v", err)
	}
	_, err := d.Create(testContext(t), spec)
	wantCode(t, "a second sandbox of the same id", err, ringfence.CodeAlreadyExists)
	wantOutput(t, c, "echo still here", "still here\n")
}

func (s suite) badSpec(t *testing.T) {
	d := s.h.Open(t)
	for _, id := range []string{"", "short", "../../../../etc/evil", "ABCDEFGHIJKLMNOPQRST"} {
		spec := s.h.Spec(t)
		spec.ID = id
		i, err := d.Create(testContext(t), spec)
		if err == nil {
			killAtEnd(t, i)
		}
		wantCode(t, fmt.Sprintf("id %q", id), err, ringfence.CodeInvalidArgument)
	}
	spec := s.h.Spec(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if i, err := d.Create(ctx, spec); err == nil {
		killAtEnd(t, i)
		t.Error("a cancelled create made a sandbox")
	}
	s.wantNoTraces(t, spec.ID)
}

func (s suite) files(t *testing.T) {
	spec := s.h.Spec(t)
	c := Attach(t, s.create(t, s.h.Open(t), spec), spec)
	ctx := testContext(t)
	want := bytes.Repeat([]byte("0123456789abcdef\x00\xff"), 100_000)
	info, err := c.WriteFile(ctx, guestproto.FileWrite{FilePath: guestproto.FilePath{Path: "/root/deep/dir/file"}}, bytes.NewReader(want))
	if err != nil || info.Size != int64(len(want)) {
		t.Fatalf("write gave %+v, %v", info, err)
	}
	_, r, err := c.ReadFile(ctx, guestproto.FileRead{FilePath: guestproto.FilePath{Path: "/root/deep/dir/file"}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	got, err := io.ReadAll(r)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("read back %d bytes with %v, want %d", len(got), err, len(want))
	}
	wantOutput(t, c, "cat /root/deep/dir/file | wc -c", fmt.Sprintln(len(want)))
	_, err = c.StatFile(ctx, guestproto.FilePath{Path: "/root/none"})
	wantCode(t, "a missing file", err, ringfence.CodeFileNotFound)
}

func (s suite) exit(t *testing.T) {
	spec := s.h.Spec(t)
	i := s.create(t, s.h.Open(t), spec)
	wantAlive(t, i)
	if err := i.Kill(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if e := wantDone(t, i); e.Reason != ringfence.ReasonKilled || e.Detail == "" {
		t.Errorf("the exit is %+v", e)
	}
	_, err := i.Link(testContext(t))
	wantCode(t, "a link to a dead sandbox", err, ringfence.CodeSandboxEnded)
	_, err = i.Usage(testContext(t))
	wantCode(t, "the usage of a dead sandbox", err, ringfence.CodeSandboxEnded)
}

func (s suite) kill(t *testing.T) {
	d := s.h.Open(t)
	spec := s.h.Spec(t)
	i := s.create(t, d, spec)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if err := i.Kill(testContext(t)); err != nil {
				t.Errorf("one of four kills at once: %v", err)
			}
		})
	}
	wg.Wait()
	if err := i.Kill(testContext(t)); err != nil {
		t.Errorf("a kill of a dead sandbox: %v", err)
	}
	wantDone(t, i)
	s.wantNoTraces(t, spec.ID)
	// The id is free again.
	s.create(t, d, spec)
}

func (s suite) killWhileBusy(t *testing.T) {
	spec := s.h.Spec(t)
	i := s.create(t, s.h.Open(t), spec)
	c := Attach(t, i, spec)
	cmd := Start(t, c, guestproto.ProcessStart{Shell: "yes & yes > /dev/null & cat; sleep 1000", Stdin: true})
	time.Sleep(50 * time.Millisecond)
	begin := time.Now()
	if err := i.Kill(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("the kill took %v", took)
	}
	if r, err := cmd.Finish(testContext(t)); err == nil {
		t.Errorf("a command of a killed sandbox ended with %+v and no error", r.Exit)
	}
	s.wantNoTraces(t, spec.ID)
}

// endInCommand lets a sandbox die by itself. Root inside may end PID 1; whoever
// cannot do that here is asked by the fake's own command.
func (s suite) endInCommand(t *testing.T) {
	spec := s.h.Spec(t)
	i := s.create(t, s.h.Open(t), spec)
	c := Attach(t, i, spec)
	cmd := Start(t, c, guestproto.ProcessStart{Shell: "echo before; sleep 1000"})
	for deadline := time.Now().Add(testTimeout); cmd.Output() != "before\n"; {
		if time.Now().After(deadline) {
			t.Fatal("the command did not begin")
		}
		time.Sleep(5 * time.Millisecond)
	}
	status, out, err := i.Rescue(testContext(t), []string{"/bin/sh", "-c", "kill -KILL 1 || fake-crash"})
	t.Logf("rescue gave %d %q %v", status, out, err)
	if e := wantDone(t, i); e.Reason != ringfence.ReasonCrashed {
		t.Errorf("the exit is %+v", e)
	}
	if r, err := cmd.Finish(testContext(t)); err == nil {
		t.Errorf("the command ended with %+v and no error", r.Exit)
	}
	if err := i.Kill(testContext(t)); err != nil {
		t.Errorf("a kill of a sandbox that crashed: %v", err)
	}
	if e := i.Exit(); e.Reason != ringfence.ReasonCrashed {
		t.Errorf("after a kill the exit is %+v", e)
	}
	s.wantNoTraces(t, spec.ID)
}

func (s suite) manyAtOnce(t *testing.T) {
	d := s.h.Open(t)
	var wg sync.WaitGroup
	for range 8 {
		spec := s.h.Spec(t)
		wg.Go(func() {
			i, err := d.Create(testContext(t), spec)
			if err != nil {
				t.Errorf("one of eight creates at once: %v", err)
				return
			}
			killAtEnd(t, i)
			Attach(t, i, spec)
		})
	}
	wg.Wait()
}

func (s suite) isolation(t *testing.T) {
	d := s.h.Open(t)
	a, b := s.h.Spec(t), s.h.Spec(t)
	ca, cb := Attach(t, s.create(t, d, a), a), Attach(t, s.create(t, d, b), b)
	wantOutput(t, ca, "echo secret > /root/mine; cat /root/mine", "secret\n")
	if r := Shell(t, cb, "cat /root/mine"); r.Exit.ExitCode == 0 {
		t.Errorf("another sandbox's file was read: %q", r.Stdout)
	}
	Start(t, ca, guestproto.ProcessStart{ID: "sleeper", Shell: "sleep 1000"})
	list, err := cb.Processes(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list {
		if p.ID == "sleeper" {
			t.Error("another sandbox's process is listed")
		}
	}
	wantCode(t, "killing another sandbox's process",
		cb.Kill(testContext(t), guestproto.ProcessKill{ID: "sleeper", Signal: 9, Tree: true}), ringfence.CodeProcessNotFound)
}

// close is about a driver, not about its sandboxes.
func (s suite) close(t *testing.T) {
	d := s.h.Open(t)
	spec := s.h.Spec(t)
	i := s.create(t, d, spec)
	if !d.Capabilities().Recover {
		return
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	next := s.h.Open(t)
	found, err := next.Recover(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	var again driver.Instance
	for _, f := range found {
		if f.ID() == i.ID() {
			again = f
		}
	}
	if again == nil {
		t.Fatal("a sandbox did not outlive its driver")
	}
	killAtEnd(t, again)
	wantOutput(t, Attach(t, again, spec), "echo here", "here\n")
}
