package engine

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/guestlink"
)

// dialTimeout bounds the connecting to a port, a link that is opened again included.
const dialTimeout = 20 * time.Second

// ports is what a sandbox knows of its ports.
type ports struct {
	connections    atomic.Int32
	received, sent atomic.Int64 // bytes, seen from the sandbox

	wakes  bucket // of those without a credential
	mu     sync.Mutex
	public map[int]publicPort // guarded by mu
}

// publicPort is a port that everybody may reach.
type publicPort struct {
	closed chan struct{} // closed when the port is public no more
	wakes  bool          // a paused sandbox is woken
}

// How often those without a credential wake one sandbox: each wake costs the host a restore.
const (
	wakesPerSecond = 1.0 / 30
	wakesAtOnce    = 3
)

// AdmitPort says whether a request may go to a port of a sandbox, which it wakes. It is for
// each request: the connection that one goes through may be another's that was kept. A
// stranger has no credential, and wakes a paused sandbox only where its owner wants that
// for the port, and not often. Errors: those of DialPort, but for port_not_listening;
// sandbox_paused.
func (e *Engine) AdmitPort(ctx context.Context, project, id string, port int, stranger bool) error {
	if b := e.find(project, id); b != nil && stranger {
		if err := b.admitStranger(port); err != nil {
			return err
		}
	}
	_, err := e.reachPort(ctx, project, id, port)
	return err
}

// reachPort finds the sandbox whose port is to be reached, if it lets anybody in.
func (e *Engine) reachPort(ctx context.Context, project, id string, port int) (*box, error) {
	if err := validPort(port); err != nil {
		return nil, err
	}
	b, err := e.reach(ctx, project, id)
	if err != nil {
		return nil, err
	}
	if b.sandbox().Network.ClosedPorts {
		return nil, ringfence.Errorf(ringfence.CodePermissionDenied, "the ports of the sandbox are closed to everybody outside").
			WithHint("its network policy says closed_ports")
	}
	return b, nil
}

// admitStranger refuses to be woken by somebody without a credential.
func (b *box) admitStranger(port int) error {
	switch b.sandbox().State {
	case ringfence.StatePaused, ringfence.StatePausing:
	default:
		return nil
	}
	b.ports.mu.Lock()
	wakes := b.ports.public[port].wakes
	b.ports.mu.Unlock()
	if !wakes {
		return pausedError(b.id).WithHint("its owner can resume it, or publish the port with wakes")
	}
	wait, ok := b.ports.wakes.take(time.Now(), 1, wakesPerSecond, wakesAtOnce)
	if ok {
		return nil
	}
	err := ringfence.Errorf(ringfence.CodeResourceExhausted, "the sandbox %s was woken often, and is paused", b.id).
		WithHint("try again after the seconds of Retry-After")
	err.RetryAfterSeconds = int(wait.Seconds()) + 1
	return err
}

func validPort(port int) error {
	if port < 1 || port > 65535 {
		return invalid("port", "port has to be from 1 to 65535")
	}
	return nil
}

// DialPort connects to what listens on a port of a sandbox's own loopback. The
// connection has CloseWrite. Errors: not_found, sandbox_ended, port_not_listening,
// permission_denied (the sandbox's policy closes its ports), resource_exhausted (too many
// connections), unavailable.
func (e *Engine) DialPort(ctx context.Context, project, id string, port int) (net.Conn, error) {
	b, err := e.reachPort(ctx, project, id, port)
	if err != nil {
		return nil, err
	}
	if b.ports.connections.Add(1) > ringfence.MaxPortConnections {
		b.ports.connections.Add(-1)
		return nil, ringfence.Errorf(ringfence.CodeResourceExhausted, "the ports of the sandbox have %d connections already", ringfence.MaxPortConnections).
			WithHint("close some, or try again in a moment")
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	defer b.use()()
	conn, err := b.link(ctx)
	var dialled *guestlink.PortConn
	if err == nil {
		dialled, err = conn.DialPort(ctx, port)
	}
	if err != nil {
		b.ports.connections.Add(-1)
		if ringfence.CodeOf(err) == ringfence.CodePortNotListening {
			return nil, ringfence.Errorf(ringfence.CodePortNotListening, "nothing listens on port %d of the sandbox", port).WithField("port").
				WithHint("start the server in the sandbox first; listening on 127.0.0.1 is enough")
		}
		return nil, b.explain(err)
	}
	return &portConn{PortConn: dialled, b: b}, nil
}

// portConn counts.
type portConn struct {
	*guestlink.PortConn
	b    *box
	once sync.Once
}

func (c *portConn) Read(p []byte) (int, error) {
	n, err := c.PortConn.Read(p)
	c.b.ports.sent.Add(int64(n))
	return n, err
}

func (c *portConn) Write(p []byte) (int, error) {
	n, err := c.PortConn.Write(p)
	c.b.ports.received.Add(int64(n))
	return n, err
}

func (c *portConn) Close() error {
	c.once.Do(func() { c.b.ports.connections.Add(-1) })
	return c.PortConn.Close()
}

// Ports lists what listens in a sandbox and what was published, by port. What the
// sandbox says of processes is its own word; truncated says that there is more.
func (e *Engine) Ports(ctx context.Context, project, id string) (list []ringfence.Port, truncated bool, err error) {
	b, err := e.reach(ctx, project, id)
	if err != nil {
		return nil, false, err
	}
	defer b.use()()
	conn, err := b.link(ctx)
	if err != nil {
		return nil, false, err
	}
	found, truncated, err := conn.Ports(ctx)
	if err != nil {
		return nil, false, b.explain(err)
	}
	public := b.ports.published()
	wakes := b.ports.waking()
	for _, p := range found {
		list = append(list, ringfence.Port{Port: p.Port, Address: p.Address, Public: slices.Contains(public, p.Port), Wakes: wakes[p.Port], PID: p.PID, Command: p.Command})
	}
	for _, port := range public {
		if !slices.ContainsFunc(list, func(p ringfence.Port) bool { return p.Port == port }) {
			list = append(list, ringfence.Port{Port: port, Public: true, Wakes: wakes[port]})
		}
	}
	slices.SortStableFunc(list, func(a, b ringfence.Port) int { return a.Port - b.Port })
	return list, truncated, nil
}

// Port describes one port, which need not be listened on.
func (e *Engine) Port(ctx context.Context, project, id string, port int) (ringfence.Port, error) {
	if err := validPort(port); err != nil {
		return ringfence.Port{}, err
	}
	list, _, err := e.Ports(ctx, project, id)
	if err != nil {
		return ringfence.Port{}, err
	}
	for _, p := range list {
		if p.Port == port {
			return p, nil
		}
	}
	return ringfence.Port{Port: port}, nil
}

// published returns the public ports, in order.
func (p *ports) published() []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := make([]int, 0, len(p.public))
	for port := range p.public {
		list = append(list, port)
	}
	slices.Sort(list)
	return list
}

// waking returns the public ports that wake the sandbox.
func (p *ports) waking() map[int]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := map[int]bool{}
	for port, is := range p.public {
		list[port] = is.wakes
	}
	return list
}

// PublishPort lets everybody reach a port, or only those who have a credential; who is
// connected without one is cut off then. wakes: they wake the sandbox too.
func (e *Engine) PublishPort(ctx context.Context, project, id string, port int, public, wakes bool) error {
	if err := validPort(port); err != nil {
		return err
	}
	b, err := e.reach(ctx, project, id)
	if err != nil {
		return err
	}
	b.moveMu.Lock() // one change at a time
	defer b.moveMu.Unlock()
	is := slices.Contains(b.ports.published(), port)
	switch {
	case is == public && b.ports.waking()[port] == wakes:
		return nil
	case public && !is && len(b.ports.published()) == ringfence.MaxPublicPorts:
		return ringfence.Errorf(ringfence.CodeResourceExhausted, "%d ports of the sandbox are public already", ringfence.MaxPublicPorts).WithField("port")
	case b.ctx.Err() != nil:
		return context.Cause(b.ctx)
	}
	if err := e.Store.SetPublicPort(ctx, id, port, public, wakes); err != nil {
		return err
	}
	b.ports.set(port, public, wakes)
	if is == public {
		return nil
	}
	kind := ringfence.EventPortPublished
	if !public {
		kind = ringfence.EventPortUnpublished
	}
	b.emit(kind, map[string]any{"port": port})
	return nil
}

func (p *ports) set(port int, public, wakes bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	was, is := p.public[port]
	switch {
	case public && p.public == nil:
		p.public = map[int]publicPort{}
		fallthrough
	case public && !is:
		p.public[port] = publicPort{make(chan struct{}), wakes}
	case public:
		p.public[port] = publicPort{was.closed, wakes}
	default:
		close(was.closed)
		delete(p.public, port)
	}
}

// anyBox returns a sandbox that lives, whosever it is.
func (e *Engine) anyBox(id string) *box {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.live[id]
}

// PublicPort says whether everybody may reach a port of a sandbox, and then whose it is.
// closed is closed when that is over.
func (e *Engine) PublicPort(id string, port int) (project string, closed <-chan struct{}, ok bool) {
	b := e.anyBox(id)
	if b == nil {
		return "", nil, false
	}
	b.ports.mu.Lock()
	defer b.ports.mu.Unlock()
	is, ok := b.ports.public[port]
	return b.project, is.closed, ok
}

// SignPort returns what opens one port of a sandbox until a time without a credential.
// It is worth nothing once the sandbox has ended.
func (e *Engine) SignPort(ctx context.Context, project, id string, port int, until time.Time) ([]byte, error) {
	if err := validPort(port); err != nil {
		return nil, err
	}
	b, err := e.reach(ctx, project, id)
	if err != nil {
		return nil, err
	}
	return b.signPort(port, until), nil
}

// signPort makes the signature. Its key comes from the hash of the access token, which
// never leaves the server and is another one when the token is.
func (b *box) signPort(port int, until time.Time) []byte {
	key := hmac.New(sha256.New, b.tokenHash[:])
	key.Write([]byte("ringfence port link, version 1"))
	mac := hmac.New(sha256.New, key.Sum(nil))
	fmt.Fprintf(mac, "%s %d %d", b.id, port, until.Unix())
	return mac.Sum(nil)
}

// CheckPort says whose sandbox a signature opens. Errors: unauthenticated, and
// signature_expired for one that was good.
func (e *Engine) CheckPort(id string, port int, until time.Time, signature []byte) (project string, err error) {
	b := e.anyBox(id)
	if b == nil || !hmac.Equal(b.signPort(port, until), signature) {
		return "", ringfence.Errorf(ringfence.CodeUnauthenticated, "the link does not open this port, or its sandbox has ended").
			WithHint("ask for a new one")
	}
	if !time.Now().Before(until) {
		return "", ringfence.Errorf(ringfence.CodeSignatureExpired, "the link has expired").WithHint("ask for a new one")
	}
	return b.project, nil
}
