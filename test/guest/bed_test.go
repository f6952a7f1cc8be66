package guest_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
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
	dir, err := os.MkdirTemp("", "ringfence-guest-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	os.Chmod(dir, 0o755)
	// Another build of the agent may be tested, say one with the race detector.
	if agentPath = os.Getenv("RINGFENCE_TEST_AGENT"); agentPath != "" {
		return m.Run()
	}
	agentPath = filepath.Join(dir, "agent")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", agentPath, "ringfence.dev/ringfence/cmd/ringfence-guest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "cannot build the agent: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// bed is a place where an agent runs.
type bed struct {
	name   string
	gvisor bool
	conn   *guestlink.Conn
	link   func() io.ReadWriteCloser // another link to the same agent
	inst   driver.Instance
	drv    *gvisor.Driver
	spec   driver.Spec
}

// eachBed runs a test on the host, where it is quick, and in gVisor, which counts.
func eachBed(t *testing.T, f func(t *testing.T, b *bed)) {
	t.Run("host", func(t *testing.T) { f(t, hostBed(t)) })
	t.Run("gvisor", func(t *testing.T) { f(t, gvisorBed(t, ringfence.Size{VCPU: 2, MemoryMiB: 1024, DiskMiB: 2048})) })
}

// pipes is a link over two host pipes whose other ends stay open, as a driver's do.
type pipes struct {
	r, w *os.File
	once sync.Once
}

func (p *pipes) Read(b []byte) (int, error)  { return p.r.Read(b) }
func (p *pipes) Write(b []byte) (int, error) { return p.w.Write(b) }
func (p *pipes) Close() error {
	p.once.Do(func() { p.r.Close(); p.w.Close() })
	return nil
}

// hostBed starts the agent as an ordinary process that leaves the machine alone.
func hostBed(t testing.TB) *bed {
	t.Helper()
	dir := t.TempDir()
	in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
	for _, p := range []string{in, out} {
		if err := mkfifo(p); err != nil {
			t.Fatal(err)
		}
	}
	open := func(p string, flags int) *os.File {
		f, err := os.OpenFile(p, flags, 0)
		if err != nil {
			t.Fatal(err)
		}
		growPipe(f)
		return f
	}
	childIn, childOut := openBlocking(t, in), openBlocking(t, out)
	var stderr bytes.Buffer
	cmd := exec.Command(agentPath, "-plain")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = childIn, childOut, &stderr
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	b := &bed{name: "host"}
	b.link = func() io.ReadWriteCloser {
		return &pipes{r: open(out, os.O_RDWR|nonblock), w: open(in, os.O_RDWR|nonblock)}
	}
	t.Cleanup(func() {
		if b.conn != nil {
			b.conn.Close()
		}
		cmd.Process.Kill()
		cmd.Wait()
		childIn.Close()
		childOut.Close()
		if stderr.Len() > 0 {
			t.Logf("agent: %s", stderr.Bytes())
		}
	})
	b.attach(t)
	b.identify(t, guestproto.Identity{User: "root", WorkDir: "/"})
	return b
}

func (b *bed) attach(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	conn, err := guestlink.Attach(ctx, b.link())
	if err != nil {
		t.Fatalf("cannot attach: %v", err)
	}
	b.conn = conn
}

func (b *bed) identify(t testing.TB, id guestproto.Identity) {
	t.Helper()
	if err := b.conn.Identity(testContext(t), id); err != nil {
		t.Fatal(err)
	}
}

// gvisorBed starts a sandbox of the size.
func gvisorBed(t testing.TB, size ringfence.Size) *bed {
	t.Helper()
	testenv.RequireRoot(t)
	image := os.Getenv("RINGFENCE_TEST_IMAGE")
	if image == "" {
		image = testenv.RequireTemplate(t, "base").ImagePath
	}
	agent, err := os.ReadFile(agentPath)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "rfg-") //nolint:usetesting // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	os.Chmod(dir, 0o711)
	t.Cleanup(func() { os.RemoveAll(dir) })
	var suffix [4]byte
	rand.Read(suffix[:])
	parent := "ringfence-guest-test-" + hex.EncodeToString(suffix[:])
	t.Cleanup(func() {
		for _, pattern := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
			groups, _ := filepath.Glob(pattern + parent) // the pattern is a good one
			for _, g := range groups {
				os.Remove(g)
			}
		}
	})
	d, err := gvisor.New(gvisor.Options{Dir: dir, Agent: agent, CgroupParent: "/" + parent})
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{name: "gvisor", gvisor: true, drv: d}
	b.spec = driver.Spec{ID: ringfence.NewSandboxID(), ImagePath: image, Hostname: "box", Size: size}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	inst, err := d.Create(ctx, b.spec)
	if err != nil {
		t.Fatal(err)
	}
	b.use(t, inst)
	b.attach(t)
	b.identify(t, guestproto.Identity{
		SandboxID: b.spec.ID, Hostname: "box", User: "root", WorkDir: "/root", MaxProcs: 200, VCPU: size.VCPU,
		MemoryBytes: size.MemoryMiB << 20, Env: map[string]string{"LANG": "C.UTF-8"},
	})
	return b
}

// use makes an instance the bed's, and kills it in the end.
func (b *bed) use(t testing.TB, inst driver.Instance) {
	b.inst = inst
	b.link = func() io.ReadWriteCloser {
		l, err := inst.Link(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	t.Cleanup(func() {
		if b.conn != nil {
			b.conn.Close()
		}
		if err := inst.Kill(context.Background()); err != nil {
			t.Errorf("cannot kill the sandbox: %v", err)
		}
	})
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// result is what a command left.
type result struct {
	stdout, stderr string
	exit           guestproto.ProcessExit
	pid            int
	took           time.Duration
}

// chunk is shorter.
type chunk = guestlink.Chunk

var nextID struct {
	sync.Mutex
	n int
}

func newID() string {
	nextID.Lock()
	defer nextID.Unlock()
	nextID.n++
	return fmt.Sprintf("c%d", nextID.n)
}

// collect returns an Output that keeps everything.
func collect(stdout, stderr *bytes.Buffer) guestlink.Output {
	return func(c guestlink.Chunk) error {
		if c.Stream == guestlink.Stdout {
			stdout.Write(c.Data)
		} else {
			stderr.Write(c.Data)
		}
		return nil
	}
}

func (b *bed) start(t testing.TB, ps guestproto.ProcessStart, out guestlink.Output) *guestlink.Process {
	t.Helper()
	if ps.ID == "" {
		ps.ID = newID()
	}
	p, err := b.conn.Start(testContext(t), ps, out)
	if err != nil {
		t.Fatalf("cannot start %q %q: %v", ps.Shell, ps.Args, err)
	}
	return p
}

func (b *bed) run(t testing.TB, ps guestproto.ProcessStart) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	begin := time.Now()
	p := b.start(t, ps, collect(&stdout, &stderr))
	exit, err := p.Wait(testContext(t))
	if err != nil {
		t.Fatalf("cannot wait for %q %q: %v", ps.Shell, ps.Args, err)
	}
	return result{stdout.String(), stderr.String(), exit, p.PID(), time.Since(begin)}
}

func (b *bed) sh(t testing.TB, script string) result {
	t.Helper()
	return b.run(t, guestproto.ProcessStart{Shell: script})
}

// wantCode checks the code of an error, and its field if one is named.
func wantCode(t testing.TB, err error, code ringfence.Code, field string) {
	t.Helper()
	var e *ringfence.Error
	if !errors.As(err, &e) || e.Code != code || field != "" && e.Field != field {
		t.Errorf("got error %#v (%v), want code %s, field %q", err, err, code, field)
	}
}
