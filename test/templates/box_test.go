package templates

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/driver"
	"ringfence.dev/ringfence/internal/driver/gvisor"
	"ringfence.dev/ringfence/internal/guestlink"
	"ringfence.dev/ringfence/internal/guestproto"
	"ringfence.dev/ringfence/internal/testenv"
)

// agentPath is the agent that TestMain built.
var agentPath string

func TestMain(m *testing.M) {
	gvisor.MaybeRunsc()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "ringfence-templates-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	agentPath = filepath.Join(dir, "agent")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", agentPath, "ringfence.dev/ringfence/cmd/ringfence-guest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "cannot build the agent: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// box is a sandbox of a template, set up as the server would.
type box struct {
	template ringfence.Template
	conn     *guestlink.Conn
	ids      atomic.Int64
}

// newBox starts a sandbox that ends with the test.
func newBox(t *testing.T, name string) *box {
	t.Helper()
	testenv.RequireRoot(t)
	b := &box{template: testenv.RequireTemplate(t, name)}
	agent, err := os.ReadFile(agentPath)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "rft-") //nolint:usetesting // short: there are sockets in it
	if err != nil {
		t.Fatal(err)
	}
	os.Chmod(dir, 0o711)
	t.Cleanup(func() { os.RemoveAll(dir) })
	var suffix [4]byte
	rand.Read(suffix[:])
	d, err := gvisor.New(gvisor.Options{Dir: dir, Agent: agent, CgroupParent: "/ringfence-test-" + hex.EncodeToString(suffix[:])})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	size := ringfence.Size{VCPU: ringfence.DefaultVCPU, MemoryMiB: ringfence.DefaultMemoryMiB, DiskMiB: ringfence.DefaultDiskMiB}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	id := ringfence.NewSandboxID()
	inst, err := d.Create(ctx, driver.Spec{ID: id, ImagePath: b.template.ImagePath, Hostname: "box", Size: size})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := inst.Kill(context.Background()); err != nil {
			t.Errorf("cannot kill the sandbox: %v", err)
		}
	})
	link, err := inst.Link(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if b.conn, err = guestlink.Attach(ctx, link); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.conn.Close() })
	err = b.conn.Identity(ctx, guestproto.Identity{
		SandboxID: id, Hostname: "box", User: b.template.User, WorkDir: b.template.WorkDir, Env: b.template.Env,
		MaxProcs: 500, MemoryBytes: size.MemoryMiB << 20, VCPU: size.VCPU,
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// outcome is what a command left.
type outcome struct {
	code           int
	stdout, stderr string
	took           time.Duration
}

// sh runs a shell command; user may be empty for the template's.
func (b *box) sh(t *testing.T, user, script string) outcome {
	t.Helper()
	return b.exec(t, guestproto.ProcessStart{Shell: script, User: user})
}

// python runs a program as `python FILE`, as callers do.
func (b *box) python(t *testing.T, user, program string) outcome {
	t.Helper()
	path := fmt.Sprintf("/tmp/program-%d.py", b.ids.Add(1))
	b.write(t, path, []byte(program))
	return b.exec(t, guestproto.ProcessStart{Args: []string{"python", path}, User: user})
}

func (b *box) write(t *testing.T, path string, data []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := b.conn.WriteFile(ctx, guestproto.FileWrite{FilePath: guestproto.FilePath{Path: path}}, bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
}

func (b *box) exec(t *testing.T, start guestproto.ProcessStart) outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	start.ID = fmt.Sprintf("t%d", b.ids.Add(1))
	var stdout, stderr bytes.Buffer
	began := time.Now()
	p, err := b.conn.Start(ctx, start, func(c guestlink.Chunk) error {
		if c.Stream == guestlink.Stdout {
			stdout.Write(c.Data)
		} else {
			stderr.Write(c.Data)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	exit, err := p.Wait(ctx)
	if err != nil {
		t.Fatalf("%v\nstdout: %s\nstderr: %s", err, &stdout, &stderr)
	}
	return outcome{exit.ExitCode, stdout.String(), stderr.String(), time.Since(began)}
}

// want checks an outcome: exit 0, the output trimmed at its end, nothing on stderr.
func (o outcome) want(t *testing.T, stdout string) {
	t.Helper()
	if o.code != 0 || o.stderr != "" || strings.TrimRight(o.stdout, "\n") != strings.TrimRight(stdout, "\n") {
		t.Errorf("exit %d\nstdout: %s\nwanted: %s\nstderr: %s", o.code, o.stdout, stdout, o.stderr)
	}
}
