package guestlink

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"ringfence.dev/ringfence/internal/guestproto"
)

// Bounds of what a guest says about its ports.
const (
	maxPorts       = 1000
	maxPortCommand = 1 << 10 // bytes
)

// Ports lists what listens in the guest; truncated says that there is more. It is the
// guest's word, but every port and address is one.
func (c *Conn) Ports(ctx context.Context) (ports []guestproto.PortInfo, truncated bool, err error) {
	var list guestproto.PortList
	if err := c.call(ctx, guestproto.MethodPortList, struct{}{}, &list); err != nil {
		return nil, false, err
	}
	if len(list.Ports) > maxPorts {
		list.Ports, list.Truncated = list.Ports[:maxPorts], true
	}
	for _, p := range list.Ports {
		addr, err := netip.ParseAddr(p.Address)
		if err != nil || addr.Zone() != "" || p.Port < 1 || p.Port > 65535 || p.PID < 0 {
			return nil, false, badAnswer(errors.New("a port that is none"))
		}
		p.Address = addr.String()
		if len(p.Command) > maxPortCommand {
			p.Command = p.Command[:maxPortCommand]
		}
		p.Command = cleanText(p.Command)
		ports = append(ports, p)
	}
	return ports, list.Truncated, nil
}

// Connections lists the guest's TCP connections to others. It is the guest's word, but
// every address is one.
func (c *Conn) Connections(ctx context.Context) ([]guestproto.Connection, error) {
	var list guestproto.ConnectionList
	if err := c.call(ctx, guestproto.MethodConnections, struct{}{}, &list); err != nil {
		return nil, err
	}
	all := list.Connections[:min(len(list.Connections), guestproto.MaxConnections)]
	for _, p := range all {
		if !p.Local.IsValid() || !p.Remote.IsValid() || p.Local.Addr().Zone() != "" || p.Remote.Addr().Zone() != "" || p.Local.Addr().Is4() != p.Remote.Addr().Is4() {
			return nil, badAnswer(errors.New("a connection that is none"))
		}
	}
	return all, nil
}

// DialPort connects to a port of the guest's own loopback. Nothing listens:
// port_not_listening. ctx covers the connecting alone.
//
// The connection is a net.Conn with CloseWrite. Its Read fails, and does not return
// io.EOF, when the link or the guest's side broke.
func (c *Conn) DialPort(ctx context.Context, port int) (*PortConn, error) {
	ch, err := c.open(ctx, guestproto.MethodPortDial, guestproto.PortDial{Port: port})
	if err != nil {
		return nil, err
	}
	it, err := ch.recv(ctx)
	var opened guestproto.PortEvent
	if err == nil {
		switch it.typ {
		case guestproto.TypeEvent:
			if err = it.event(&opened); err == nil && opened.End {
				err = badAnswer(errors.New("an end before the connection"))
			}
		case guestproto.TypeResult:
			if err = it.result(nil); err == nil {
				err = badAnswer(errors.New("a result before the connection"))
			}
		default:
			it.buf.release()
			err = badAnswer(errors.New("data before the connection"))
		}
	}
	if err != nil {
		ch.cancel(err)
		return nil, err
	}
	p := &PortConn{ch: ch, port: port}
	p.read.init()
	p.write.init()
	return p, nil
}

// PortConn is a connection to a port of a guest. One goroutine may read while another writes.
type PortConn struct {
	ch   *channel
	port int

	readMu sync.Mutex
	cur    item   // guarded by readMu
	rest   []byte // of cur; guarded by readMu
	rerr   error  // guarded by readMu

	read, write deadline
	closeOnce   sync.Once
}

var _ net.Conn = (*PortConn)(nil)

// Read implements net.Conn.
func (p *PortConn) Read(b []byte) (int, error) {
	p.readMu.Lock()
	defer p.readMu.Unlock()
	for len(p.rest) == 0 {
		if p.rerr != nil {
			return 0, p.rerr
		}
		if len(b) == 0 {
			return 0, nil
		}
		if err := p.next(); err != nil {
			return 0, err
		}
	}
	n := copy(b, p.rest)
	p.rest = p.rest[n:]
	return n, nil
}

// WriteTo saves io.Copy a buffer and a copy of every byte.
func (p *PortConn) WriteTo(w io.Writer) (total int64, err error) {
	p.readMu.Lock()
	defer p.readMu.Unlock()
	for {
		for len(p.rest) == 0 {
			if err = p.rerr; err == nil {
				err = p.next()
			}
			if err == io.EOF { //nolint:errorlint // an error that wraps it is no end
				return total, nil
			} else if err != nil {
				return total, err
			}
		}
		n, err := w.Write(p.rest)
		total += int64(n)
		p.rest = p.rest[n:]
		if err != nil {
			return total, err
		}
	}
}

// next waits for data or for the end. Only a deadline leaves rerr unset.
func (p *PortConn) next() error {
	if p.cur.data != nil {
		err := p.ch.release(context.Background(), p.cur)
		p.cur = item{}
		if err != nil {
			p.rerr = err
			return err
		}
	}
	it, err := do(&p.read, p.ch.recv)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return err
	case err != nil:
		p.rerr = err
	case it.typ == guestproto.TypeData:
		p.cur, p.rest = it, it.data
		return nil
	case it.typ == guestproto.TypeResult:
		if p.rerr = it.result(nil); p.rerr == nil {
			p.rerr = io.EOF
		}
	default:
		var ev guestproto.PortEvent
		if p.rerr = it.event(&ev); p.rerr == nil {
			p.rerr = io.EOF // the half that comes from the guest
		}
	}
	return p.rerr
}

// Write implements net.Conn. It is held back by the program that reads.
func (p *PortConn) Write(b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		var m int
		m, err = do(&p.write, func(ctx context.Context) (int, error) { return p.ch.sendCopy(ctx, b[n:]) })
		n += m
	}
	if errors.Is(err, errCallOver) {
		err = &net.OpError{Op: "write", Net: "ringfence", Err: syscall.EPIPE}
	}
	return n, err
}

// CloseWrite ends what goes to the guest; reading goes on.
func (p *PortConn) CloseWrite() error { return p.ch.sendEnd(context.Background()) }

// Close gives the connection up.
func (p *PortConn) Close() error {
	p.closeOnce.Do(func() {
		p.ch.cancel(net.ErrClosed)
		p.read.stop()
		p.write.stop()
	})
	return nil
}

// LocalAddr implements net.Conn.
func (p *PortConn) LocalAddr() net.Addr { return portAddr(0) }

// RemoteAddr implements net.Conn.
func (p *PortConn) RemoteAddr() net.Addr { return portAddr(p.port) }

// SetDeadline implements net.Conn.
func (p *PortConn) SetDeadline(t time.Time) error {
	p.read.set(t)
	p.write.set(t)
	return nil
}

// SetReadDeadline implements net.Conn.
func (p *PortConn) SetReadDeadline(t time.Time) error { p.read.set(t); return nil }

// SetWriteDeadline implements net.Conn.
func (p *PortConn) SetWriteDeadline(t time.Time) error { p.write.set(t); return nil }

// portAddr is a port of a sandbox, seen from within.
type portAddr int

func (portAddr) Network() string  { return "ringfence" }
func (p portAddr) String() string { return "sandbox:" + strconv.Itoa(int(p)) }

// deadline makes contexts that end when a deadline passes or is moved.
type deadline struct {
	mu     sync.Mutex
	ctx    context.Context    // guarded by mu
	cancel context.CancelFunc // guarded by mu
}

func (d *deadline) init() { d.ctx, d.cancel = context.WithCancel(context.Background()) }

func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cancel()
	if t.IsZero() {
		d.ctx, d.cancel = context.WithCancel(context.Background())
	} else {
		d.ctx, d.cancel = context.WithDeadline(context.Background(), t)
	}
}

// stop ends the timer. The channel has ended by then, so nobody waits for long.
func (d *deadline) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cancel()
	d.ctx, d.cancel = context.Background(), func() {}
}

func (d *deadline) now() context.Context {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ctx
}

// do calls f again when the deadline was moved meanwhile.
func do[T any](d *deadline, f func(context.Context) (T, error)) (T, error) {
	for {
		ctx := d.now()
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			var zero T
			return zero, os.ErrDeadlineExceeded
		}
		v, err := f(ctx)
		if err == nil || ctx.Err() == nil {
			return v, err
		}
	}
}
