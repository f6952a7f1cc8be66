package fake

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"runtime"
	"sync"
	"sync/atomic"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/driver"
	"ringfence.dev/ringfence/internal/guestproto"
)

// guest is what is inside a sandbox: its agent, files and processes.
type guest struct {
	in, out *pipe // to and from the guest
	files   *tree
	spec    driver.Spec
	bootID  string
	die     func(driver.Exit)

	ctx  context.Context // ends with the sandbox
	end  context.CancelCauseFunc
	hung atomic.Bool
	gate gate

	writeMu sync.Mutex // one frame at a time

	mu       sync.Mutex
	session  *session            // guarded by mu
	identity guestproto.Identity // guarded by mu
	procs    map[string]*process // guarded by mu
	order    []*process          // guarded by mu
	lastPID  int                 // guarded by mu
	changed  chan struct{}       // closed and replaced when a process starts or ends; guarded by mu
	ports    map[int]*fakePort   // guarded by mu
}

func newGuest(spec driver.Spec, die func(driver.Exit)) *guest {
	g := &guest{
		in: newPipe(), out: newPipe(),
		files:   newTree(spec.Size.DiskMiB << 20),
		spec:    spec,
		bootID:  ringfence.NewToken()[:32],
		die:     die,
		procs:   make(map[string]*process),
		lastPID: 1,
		changed: make(chan struct{}),
		ports:   make(map[int]*fakePort),
	}
	g.ctx, g.end = context.WithCancelCause(context.Background())
	g.identity = guestproto.Identity{SandboxID: spec.ID, Hostname: spec.Hostname, User: "root", WorkDir: "/"}
	return g
}

// stop ends everything inside.
func (g *guest) stop() {
	// First the pipes: what ends with the sandbox must not report an end of its own.
	g.in.close()
	g.out.close()
	g.end(errEnded)
}

// hang makes the agent deaf for good.
func (g *guest) hang() { g.hung.Store(true) }

// serve is the agent: it reads frames until the sandbox ends.
func (g *guest) serve() {
	r := guestproto.NewReader(end{g.in})
	for {
		h, payload, err := r.Next(func(n int) []byte { return make([]byte, n) })
		if err != nil {
			return
		}
		if g.hung.Load() {
			continue
		}
		g.gate.pass(g.ctx)
		g.handle(h, payload)
	}
}

func (g *guest) handle(h guestproto.Header, payload []byte) {
	if h.Type == guestproto.TypeHello {
		g.hello(payload)
		return
	}
	g.mu.Lock()
	s := g.session
	g.mu.Unlock()
	if s == nil {
		return // nobody said hello yet
	}
	switch h.Type {
	case guestproto.TypePing:
		s.send(guestproto.Header{Type: guestproto.TypePong}, payload)
	case guestproto.TypeOpen:
		s.open(h.Channel, payload)
	default:
		s.deliver(h, payload)
	}
}

// hello opens a session and ends the one before.
func (g *guest) hello(payload []byte) {
	var hello guestproto.Hello
	if json.Unmarshal(payload, &hello) != nil {
		return
	}
	versions := []int{guestproto.Version}
	ack := guestproto.HelloAck{
		Nonce: hello.Nonce, BootID: g.bootID, Versions: versions,
		Version: guestproto.Negotiate(versions, hello.Versions), Capabilities: []string{guestproto.CapProcesses},
	}
	body, _ := json.Marshal(ack) //nolint:errchkjson // plain data
	s := newSession(g)
	g.mu.Lock()
	old := g.session
	g.session = s
	g.mu.Unlock()
	if old != nil {
		old.close()
	}
	g.writeMu.Lock()
	defer g.writeMu.Unlock()
	end{g.out}.Write(guestproto.AppendFrame(guestproto.Preamble(), guestproto.Header{Type: guestproto.TypeHelloAck}, body))
}

// stats is what the agent says about the sandbox.
func (g *guest) stats() guestproto.Stats {
	g.mu.Lock()
	running := 1
	for _, p := range g.order {
		if p.exitStatus() == nil {
			running++
		}
	}
	g.mu.Unlock()
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	total := g.spec.Size.MemoryMiB << 20
	return guestproto.Stats{
		Processes: running, MemTotalBytes: total, MemFreeBytes: max(total-int64(mem.HeapAlloc), 0),
		DiskTotalBytes: g.files.limit, DiskFreeBytes: g.files.limit - g.files.used.Load(),
	}
}

// start starts a process.
func (g *guest) start(req guestproto.ProcessStart) (*process, error) {
	g.mu.Lock()
	id := g.identity
	g.mu.Unlock()
	name := first(req.User, id.User, "root")
	u, err := lookUser(name)
	if err != nil {
		return nil, err
	}
	dir := first(req.WorkDir, id.WorkDir, "/")
	if n, err := g.files.find(rootUser, dir, true); err != nil || n.kind != kindDir {
		return nil, ringfence.Errorf(ringfence.CodeInvalidArgument, "the working directory %q does not exist", dir).WithField("cwd")
	}
	if req.PTY != nil {
		return nil, ringfence.Errorf(ringfence.CodeNotYetSupported, "the fake has no terminals").WithField("pty")
	}
	if (req.Shell == "") == (len(req.Args) == 0) {
		return nil, ringfence.Errorf(ringfence.CodeInvalidArgument, "give either a shell string or arguments").WithField("command")
	}
	env := map[string]string{
		"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": u.home, "USER": u.name, "LOGNAME": u.name, "SHELL": "/bin/sh",
	}
	maps.Copy(env, id.Env)
	maps.Copy(env, req.Env)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.procs[req.ID] != nil {
		return nil, ringfence.Errorf(ringfence.CodeAlreadyExists, "there is a process %q already", req.ID).WithField("id")
	}
	g.lastPID++
	p := newProcess(g, req, u, g.lastPID)
	g.procs[req.ID] = p
	p.dir = dir
	g.order = append(g.order, p)
	g.changedLocked()
	sh := g.newShell(p.main, u, dir, env)
	sh.tree = p.tree
	sh.proc = p
	sh.stdout, sh.stderr = p.writer(guestproto.TypeStdout), p.writer(guestproto.TypeStderr)
	sh.stdin = eof{}
	if req.Stdin {
		sh.stdin = p.stdin
	}
	p.run = func() {
		var status int
		if req.Shell != "" {
			status = sh.runScript(req.Shell)
		} else {
			status = sh.runArgs(req.Args)
		}
		p.finish(status)
		g.mu.Lock()
		g.changedLocked()
		g.mu.Unlock()
	}
	return p, nil
}

func (g *guest) changedLocked() {
	close(g.changed)
	g.changed = make(chan struct{})
}

func (g *guest) process(id string) (*process, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if p := g.procs[id]; p != nil {
		return p, nil
	}
	return nil, ringfence.Errorf(ringfence.CodeProcessNotFound, "there is no process %q", id)
}

func (g *guest) list() []guestproto.ProcessInfo {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := []guestproto.ProcessInfo{}
	for _, p := range g.order {
		out = append(out, p.info())
	}
	return out
}

// user is somebody inside.
type user struct {
	name     string
	uid, gid uint32
	home     string
}

var (
	rootUser = user{"root", 0, 0, "/root"}
	users    = []user{rootUser, {"user", 1000, 1000, "/home/user"}}
)

// lookUser finds a user by name or number.
func lookUser(name string) (user, error) {
	if name == "" {
		return rootUser, nil
	}
	for _, u := range users {
		if name == u.name || name == fmt.Sprint(u.uid) {
			return u, nil
		}
	}
	return user{}, ringfence.Errorf(ringfence.CodeInvalidArgument, "there is no user %q in the sandbox", name).WithField("user")
}

// nameOf returns the name of a uid, or its digits.
func nameOf(uid uint32) string {
	for _, u := range users {
		if u.uid == uid {
			return u.name
		}
	}
	return fmt.Sprint(uid)
}

func first(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}
