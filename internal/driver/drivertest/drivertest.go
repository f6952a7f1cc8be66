// Package drivertest is the conformance suite of drivers. It holds a driver to what
// it declares, through the same link that the engine uses, and to refusing the rest.
package drivertest

import (
	"context"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/driver"
	"ringfence.dev/ringfence/internal/guestlink"
	"ringfence.dev/ringfence/internal/guestproto"
)

// Harness is a driver under test.
type Harness struct {
	// Open returns a driver on the host under test. Drivers of one Harness share
	// that host, as daemons that follow each other do.
	Open func(t *testing.T) driver.Driver
	// Spec returns what to start, with a fresh id and a small size. The image has
	// a shell with echo, cat, sleep, printf, head and wc.
	Spec func(t *testing.T) driver.Spec
	// Abandon starts a sandbox and a process in it, and loses the driver without
	// a word, as a daemon that is killed does. Needed where Recover is declared.
	// The process is started with id AbandonedProcess.
	Abandon func(t *testing.T, spec driver.Spec)
	// Traces returns what the host still has of a sandbox: processes, namespaces,
	// control groups, mounts, files. May be nil.
	Traces func(t *testing.T, id string) []string
}

// AbandonedProcess is the id of the process that Harness.Abandon starts.
const AbandonedProcess = "abandoned"

// Run runs the suite.
func Run(t *testing.T, h Harness) {
	s := suite{h}
	caps := h.Open(t).Capabilities()
	for _, c := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"Start", s.start},
		{"BadSpec", s.badSpec},
		{"Files", s.files},
		{"Exit", s.exit},
		{"Kill", s.kill},
		{"KillWhileBusy", s.killWhileBusy},
		{"EndInCommand", s.endInCommand},
		{"LinkReopen", s.linkReopen},
		{"LinkTornFrame", s.linkTorn},
		{"LinkClose", s.linkClose},
		{"LinkOutputBacklog", s.linkBacklog},
		{"ManyAtOnce", s.manyAtOnce},
		{"Isolation", s.isolation},
		{"Close", s.close},
	} {
		t.Run(c.name, c.run)
	}
	t.Run("Rescue", func(t *testing.T) { pick(t, caps.Rescue, s.rescue, s.noRescue) })
	t.Run("Pause", func(t *testing.T) { pick(t, caps.Checkpoint, s.pause, s.noPause) })
	t.Run("Checkpoint", func(t *testing.T) { pick(t, caps.Checkpoint, s.checkpoint, s.noCheckpoint) })
	t.Run("CheckpointRefused", func(t *testing.T) { pick(t, caps.Checkpoint, s.checkpointRefused, s.noCheckpoint) })
	t.Run("Recover", func(t *testing.T) { pick(t, caps.Recover, s.recover, s.noRecover) })
	t.Run("Limits", func(t *testing.T) { pick(t, caps.Limits, s.limits, func(*testing.T) {}) })
}

func pick(t *testing.T, declared bool, can, cannot func(*testing.T)) {
	if declared {
		can(t)
	} else {
		cannot(t)
	}
}

type suite struct{ h Harness }

// testTimeout bounds what a test waits for one thing, on a loaded machine.
const testTimeout = 60 * time.Second

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

// create starts a sandbox that is killed when the test ends, however it ends.
func (s suite) create(t *testing.T, d driver.Driver, spec driver.Spec) driver.Instance {
	t.Helper()
	i, err := d.Create(testContext(t), spec)
	if err != nil {
		t.Fatalf("cannot create: %v", err)
	}
	killAtEnd(t, i)
	return i
}

func killAtEnd(t *testing.T, i driver.Instance) {
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
		defer cancel()
		if err := i.Kill(ctx); err != nil {
			t.Errorf("cannot kill %s at the end: %v", i.ID(), err)
		}
	})
}

// Attach opens a session with the agent of an instance and tells it who it is.
func Attach(t *testing.T, i driver.Instance, spec driver.Spec) *guestlink.Conn {
	t.Helper()
	ctx := testContext(t)
	rwc, err := i.Link(ctx)
	if err != nil {
		t.Fatalf("cannot open the link: %v", err)
	}
	c, err := guestlink.Attach(ctx, rwc)
	if err != nil {
		t.Fatalf("cannot attach: %v", err)
	}
	t.Cleanup(func() { c.Close(); c.Wait() })
	err = c.Identity(ctx, guestproto.Identity{
		SandboxID: spec.ID, Hostname: spec.Hostname, User: "root", WorkDir: "/root",
		MaxProcs: spec.MaxProcs, MemoryBytes: spec.Size.MemoryMiB << 20, VCPU: spec.Size.VCPU,
		Env: map[string]string{"RF_TEST": "1"},
	})
	if err != nil {
		t.Fatalf("cannot tell the agent who it is: %v", err)
	}
	return c
}

// Result is what a command left.
type Result struct {
	Stdout, Stderr string
	Exit           guestproto.ProcessExit
}

// Command is a command that runs.
type Command struct {
	*guestlink.Process
	mu       sync.Mutex
	out, err strings.Builder
}

// Start starts a shell command.
func Start(t *testing.T, c *guestlink.Conn, p guestproto.ProcessStart) *Command {
	t.Helper()
	if p.ID == "" {
		p.ID = ringfence.NewSandboxID()
	}
	cmd := new(Command)
	proc, err := c.Start(testContext(t), p, func(chunk guestlink.Chunk) error {
		cmd.mu.Lock()
		defer cmd.mu.Unlock()
		if chunk.Stream == guestlink.Stdout {
			cmd.out.Write(chunk.Data)
		} else {
			cmd.err.Write(chunk.Data)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("cannot start %q: %v", p.Shell, err)
	}
	cmd.Process = proc
	return cmd
}

// Finish waits for the end.
func (cmd *Command) Finish(ctx context.Context) (Result, error) {
	exit, err := cmd.Wait(ctx)
	cmd.mu.Lock()
	defer cmd.mu.Unlock()
	return Result{cmd.out.String(), cmd.err.String(), exit}, err
}

// Output returns what was written so far.
func (cmd *Command) Output() string {
	cmd.mu.Lock()
	defer cmd.mu.Unlock()
	return cmd.out.String()
}

// Shell runs a shell command as root to its end.
func Shell(t *testing.T, c *guestlink.Conn, script string) Result {
	t.Helper()
	return RunCommand(t, c, guestproto.ProcessStart{Shell: script})
}

// RunCommand runs a command to its end.
func RunCommand(t *testing.T, c *guestlink.Conn, p guestproto.ProcessStart) Result {
	t.Helper()
	r, err := Start(t, c, p).Finish(testContext(t))
	if err != nil {
		t.Fatalf("%q did not end: %v", p.Shell, err)
	}
	return r
}

// wantOutput fails unless a command ends with 0 and this on its stdout.
func wantOutput(t *testing.T, c *guestlink.Conn, script, want string) {
	t.Helper()
	r := Shell(t, c, script)
	if r.Stdout != want || r.Exit.ExitCode != 0 {
		t.Fatalf("%q gave %q and %q with %+v, want %q", script, r.Stdout, r.Stderr, r.Exit, want)
	}
}

// wantCode fails unless err has this code.
func wantCode(t *testing.T, what string, err error, want ringfence.Code) {
	t.Helper()
	if got := ringfence.CodeOf(err); got != want {
		t.Errorf("%s: %v (code %q), want code %q", what, err, got, want)
	}
}

// wantDone fails unless the instance ends soon, and returns how it did.
func wantDone(t *testing.T, i driver.Instance) driver.Exit {
	t.Helper()
	select {
	case <-i.Done():
		return i.Exit()
	case <-time.After(testTimeout):
		t.Fatalf("sandbox %s did not end", i.ID())
		return driver.Exit{}
	}
}

// wantAlive fails if the instance has ended.
func wantAlive(t *testing.T, i driver.Instance) {
	t.Helper()
	select {
	case <-i.Done():
		t.Fatalf("sandbox %s ended: %+v", i.ID(), i.Exit())
	default:
	}
}

// wantNoTraces fails if the host still has something of a sandbox.
func (s suite) wantNoTraces(t *testing.T, id string) {
	t.Helper()
	if s.h.Traces == nil {
		return
	}
	if left := s.h.Traces(t, id); len(left) > 0 {
		t.Errorf("sandbox %s left %q", id, left)
	}
}

// discard reads a link until it ends.
func discard(r io.Reader) { io.Copy(io.Discard, r) }
