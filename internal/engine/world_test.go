package engine_test

import (
	"bytes"
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/driver"
	"ringfence.dev/ringfence/internal/driver/fake"
	"ringfence.dev/ringfence/internal/engine"
	"ringfence.dev/ringfence/internal/snapshot"
	"ringfence.dev/ringfence/internal/sqlite"
	"ringfence.dev/ringfence/internal/testenv"
)

const project = ringfence.DefaultProject

type templates struct{ ready string }

func (t templates) Lookup(name string) (ringfence.Template, error) {
	if name != "code-interpreter" {
		return ringfence.Template{}, ringfence.Errorf(ringfence.CodeTemplateNotFound, "there is no template %q", name)
	}
	return ringfence.Template{Name: name, ImagePath: "/nowhere", User: "root", WorkDir: "/", Ready: t.ready, Env: map[string]string{"FROM": "template", "T": "1"},
		Size: ringfence.Size{VCPU: 2, MemoryMiB: 2048, DiskMiB: 8192}}, nil
}
func (templates) List() ([]ringfence.Template, error) { return nil, nil }

// machine is a host whose daemons come and go.
type machine struct {
	t         *testing.T
	path      string
	host      *fake.Host
	boot      string
	wrap      func(driver.Driver) driver.Driver
	ready     string // the template's ready command
	golden    bool   // make golden snapshots
	pool      map[string]int
	quota     engine.Quota
	queue     time.Duration
	at        atomic.Pointer[func(point string)] // what daemons call at each point
	available func() int64                       // MiB; nil: enough
	log       testenv.Buffer
}

func (m *machine) AvailableMiB() (int64, error) {
	if m.available != nil {
		return m.available(), nil
	}
	return 1 << 20, nil
}
func (m *machine) BootID() (string, error) { return m.boot, nil }

func newMachine(t *testing.T) *machine {
	m := &machine{t: t, path: filepath.Join(t.TempDir(), "x.db"), host: fake.NewHost(), boot: "boot-1"}
	t.Cleanup(func() { // the last one: nothing may go on
		found, err := fake.New(fake.Options{Host: m.host}).Recover(context.Background())
		if err != nil {
			t.Error(err)
		}
		for _, inst := range found {
			if err := inst.Kill(context.Background()); err != nil {
				t.Error(err)
			}
		}
		if t.Failed() {
			lines := strings.Split(m.log.String(), "\n")
			t.Log(strings.Join(lines[max(0, len(lines)-30):], "\n"))
		}
	})
	return m
}

// daemon is one run of the server's engine.
type daemon struct {
	*engine.Engine
	store  *sqlite.Store
	closed bool
}

func (m *machine) start(o fake.Options) *daemon {
	m.t.Helper()
	store, err := sqlite.Open(context.Background(), m.path)
	if err != nil {
		m.t.Fatal(err)
	}
	o.Host = m.host
	drv := driver.Driver(fake.New(o))
	if m.wrap != nil {
		drv = m.wrap(drv)
	}
	snapshots, err := snapshot.Open(filepath.Join(filepath.Dir(m.path), "snapshots"))
	if err != nil {
		m.t.Fatal(err)
	}
	e, err := engine.Open(context.Background(), engine.Options{
		Store: store, Driver: drv, Templates: templates{m.ready}, Snapshots: snapshots, ColdBoot: !m.golden, Pool: m.pool, Quota: m.quota, QueueFor: m.queue, At: m.point, Log: slog.New(slog.NewTextHandler(&m.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Max: ringfence.Size{VCPU: 4, MemoryMiB: 4096, DiskMiB: 10_000}, MaxProcs: 100, ReserveMiB: 1000, Host: m,
	})
	if err != nil {
		m.t.Fatal(err)
	}
	d := &daemon{Engine: e, store: store}
	m.t.Cleanup(func() { m.stop(d) })
	return d
}

// openStore opens the store of a machine without a daemon.
func (m *machine) openStore() *sqlite.Store {
	m.t.Helper()
	store, err := sqlite.Open(context.Background(), m.path)
	if err != nil {
		m.t.Fatal(err)
	}
	return store
}

// stop ends a daemon; its sandboxes go on.
func (m *machine) stop(d *daemon) {
	m.t.Helper()
	if d.closed {
		return
	}
	d.closed = true
	if err := d.Close(); err != nil {
		m.t.Error(err)
	}
	if err := d.store.Close(); err != nil {
		m.t.Error(err)
	}
}

func (m *machine) create(d *daemon, req engine.CreateRequest) *ringfence.Sandbox {
	m.t.Helper()
	req.Project = project
	sb, token, err := d.Create(context.Background(), req)
	if err != nil {
		m.t.Fatal(err)
	}
	if !ringfence.ValidToken(token) || sb.TokenHash != ringfence.HashSecret(token) {
		m.t.Errorf("token %q", token)
	}
	return sb
}

// output collects what a command says.
type output struct {
	mu      sync.Mutex
	text    [3]bytes.Buffer
	started chan struct{}
	fail    error
	block   chan struct{}
	id      string
}

func newOutput() *output { return &output{started: make(chan struct{})} }

func (o *output) Started(id string, _ int) error {
	o.id = id
	close(o.started)
	return nil
}

func (o *output) Output(stream ringfence.Stream, _ uint64, data []byte) error {
	if o.block != nil {
		<-o.block
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text[stream].Write(data)
	return o.fail
}

func (o *output) stdout() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text[ringfence.Stdout].String()
}

func shell(d *daemon, id, command string) (string, ringfence.CommandExit, error) {
	out := newOutput()
	exit, err := d.Run(context.Background(), project, id, ringfence.Command{Shell: command}, out)
	return out.stdout(), exit, err
}

// mustAnswer checks that a sandbox runs commands.
func (m *machine) mustAnswer(d *daemon, id string) {
	m.t.Helper()
	if out, exit, err := shell(d, id, "echo ok"); err != nil || out != "ok\n" || exit.ExitCode != 0 {
		m.t.Errorf("%s: %q %+v %v", id, out, exit, err)
	}
}

// mustEnd checks how the record says that a sandbox ended.
func (m *machine) mustEnd(d *daemon, id string, state ringfence.State, reason ringfence.Reason) {
	m.t.Helper()
	sb, err := d.Get(context.Background(), project, id)
	if err != nil {
		m.t.Fatal(err)
	}
	if sb.State != state || sb.Reason != reason || sb.EndedAt.IsZero() || sb.Detail == "" {
		m.t.Errorf("it is %s %s %q, ended %v; want %s %s", sb.State, sb.Reason, sb.Detail, sb.EndedAt, state, reason)
	}
	if _, _, err := shell(d, id, "true"); ringfence.CodeOf(err) != ringfence.CodeSandboxEnded {
		m.t.Errorf("a command on it: %v", err)
	}
}

// onHost counts the sandboxes that the host holds.
func (m *machine) onHost() int {
	m.t.Helper()
	found, err := fake.New(fake.Options{Host: m.host}).Recover(context.Background())
	if err != nil {
		m.t.Fatal(err)
	}
	return len(found)
}

// await waits for a condition.
func (m *machine) await(what string, is func() bool) {
	m.t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			m.t.Fatalf("waited in vain for %s", what)
		}
	}
}

func (m *machine) setAt(at func(point string)) { m.at.Store(&at) }

func (m *machine) point(point string) {
	if at := m.at.Load(); at != nil && *at != nil {
		(*at)(point)
	}
}
