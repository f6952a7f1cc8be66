package client

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/coder/websocket"

	"ringfence.dev/ringfence"
)

// Ports reaches what listens in a sandbox.
type Ports struct{ s *Sandbox }

// Ports returns the sandbox's ports.
func (s *Sandbox) Ports() Ports { return Ports{s} }

// Port is a port that somebody listens on, or that was published.
type Port struct {
	ringfence.Port
	URL string // where a client of this server finds it, with a slash at the end
}

type wirePort struct {
	Port    int    `json:"port"`
	Address string `json:"address"`
	Public  bool   `json:"public"`
	Wakes   bool   `json:"wakes"`
	PID     int    `json:"pid"`
	Command string `json:"command"`
	URL     string `json:"url"`
}

func (w wirePort) port() Port {
	return Port{ringfence.Port{Port: w.Port, Address: w.Address, Public: w.Public, Wakes: w.Wakes, PID: w.PID, Command: w.Command}, w.URL}
}

// List lists what listens, one row for each address, and what was published, by port.
// What it says of processes is the sandbox's own word.
func (p Ports) List(ctx context.Context) ([]Port, error) {
	var w struct {
		Ports []wirePort `json:"ports"`
	}
	if err := p.s.c.call(ctx, request{method: http.MethodGet, path: p.s.path("/ports"), idempotent: true}, &w); err != nil {
		return nil, err
	}
	list := make([]Port, 0, len(w.Ports))
	for _, one := range w.Ports {
		list = append(list, one.port())
	}
	return list, nil
}

// Get describes one port, which need not be listened on.
func (p Ports) Get(ctx context.Context, port int) (Port, error) {
	var w wirePort
	err := p.s.c.call(ctx, request{method: http.MethodGet, path: p.s.path("/ports/" + strconv.Itoa(port)), idempotent: true}, &w)
	return w.port(), err
}

// Publish lets everybody reach a port without a credential. It needs an API key.
func (p Ports) Publish(ctx context.Context, port int) (Port, error) {
	return p.set(ctx, port, true, false)
}

// PublishWaking is Publish; who comes without a credential wakes the sandbox when it is
// paused, 3 times in a row and then every 30 seconds.
func (p Ports) PublishWaking(ctx context.Context, port int) (Port, error) {
	return p.set(ctx, port, true, true)
}

// Unpublish takes that back, and cuts off who is connected without a credential.
func (p Ports) Unpublish(ctx context.Context, port int) (Port, error) {
	return p.set(ctx, port, false, false)
}

func (p Ports) set(ctx context.Context, port int, public, wakes bool) (Port, error) {
	body := map[string]bool{"public": public}
	if wakes {
		body["wakes"] = true
	}
	var w wirePort
	err := p.s.c.call(ctx, request{method: http.MethodPut, path: p.s.path("/ports/" + strconv.Itoa(port)), body: body,
		idempotent: true, what: "publish a port"}, &w)
	return w.port(), err
}

// LinkOptions says what a link opens.
type LinkOptions struct {
	Path      string        // where it leads, escaped; "/" when empty
	ExpiresIn time.Duration // in whole seconds, 1 s to 7 days; an hour when 0
}

// Link makes a URL that opens a port without a credential until it expires or the
// sandbox ends. It cannot be taken back.
func (p Ports) Link(ctx context.Context, port int, o LinkOptions) (link string, expiresAt time.Time, err error) {
	body := map[string]any{"port": port}
	if o.Path != "" {
		body["path"] = o.Path
	}
	if o.ExpiresIn != 0 {
		body["expires_in_seconds"] = int64(o.ExpiresIn / time.Second)
	}
	var w struct {
		URL       string   `json:"url"`
		ExpiresAt wireTime `json:"expires_at"`
	}
	err = p.s.c.call(ctx, request{method: http.MethodPost, path: p.s.path("/links"), body: body, idempotent: true, what: "make a link"}, &w)
	return w.URL, w.ExpiresAt.Time, err
}

// tcpProtocol is the subprotocol of a forwarded connection; an empty message is an end.
const (
	tcpProtocol = "ringfence.tcp.v1"
	tcpMessage  = 128 << 10
)

// Dial connects to what listens on a port of the sandbox's own loopback. ctx covers the
// connecting alone. The connection has CloseWrite; a Read that fails with anything but
// io.EOF did not see the program's last word. Errors: port_not_listening,
// resource_exhausted, not_found, sandbox_ended.
func (p Ports) Dial(ctx context.Context, port int) (net.Conn, error) {
	c := p.s.c
	r := request{what: "connect to a port", idempotent: true}
	header := http.Header{"User-Agent": {c.userAgent}}
	if c.apiKey != "" {
		header.Set("Authorization", "Bearer "+c.apiKey)
	}
	ws, resp, err := websocket.Dial(ctx, c.base+p.s.path("/tcp/"+strconv.Itoa(port)), &websocket.DialOptions{ //nolint:bodyclose // Dial has read it
		HTTPClient: c.http, HTTPHeader: header, Subprotocols: []string{tcpProtocol}, CompressionMode: websocket.CompressionDisabled,
	})
	if err != nil {
		if resp != nil && resp.StatusCode != http.StatusSwitchingProtocols {
			return nil, refusal(resp)
		}
		return nil, c.connectionError(ctx, r, err)
	}
	ws.SetReadLimit(tcpMessage)
	conn := &portConn{ws: ws}
	conn.ctx, conn.cancel = context.WithCancel(context.Background())
	return conn, nil
}

// portConn is a TCP connection over a WebSocket.
type portConn struct {
	ws     *websocket.Conn
	ctx    context.Context
	cancel context.CancelFunc

	readMu sync.Mutex
	reader io.Reader // of the message that is being read; guarded by readMu
	rerr   error     // guarded by readMu

	writeMu sync.Mutex
	closed  bool // CloseWrite was called; guarded by writeMu
}

func (c *portConn) Read(p []byte) (int, error) {
	c.readMu.Lock()
	defer c.readMu.Unlock()
	if len(p) == 0 {
		return 0, nil
	}
	for c.rerr == nil {
		fresh := c.reader == nil
		if fresh {
			_, c.reader, c.rerr = c.ws.Reader(c.ctx)
			if c.rerr != nil {
				break
			}
		}
		n, err := c.reader.Read(p)
		if errors.Is(err, io.EOF) {
			c.reader = nil
			if n == 0 && fresh {
				c.rerr = io.EOF // an empty message
				break
			}
			err = nil
		}
		if n > 0 || err != nil {
			c.rerr = err
			return n, err
		}
	}
	if c.rerr != io.EOF { //nolint:errorlint // set above
		return 0, &ringfence.Error{Code: ringfence.CodeUnavailable, Message: "the connection to the port broke", Hint: "connect again", Err: c.rerr}
	}
	return 0, io.EOF
}

func (c *portConn) Write(p []byte) (n int, err error) {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	if c.closed {
		return 0, net.ErrClosed
	}
	for len(p) > 0 {
		m := min(len(p), tcpMessage)
		if err := c.ws.Write(c.ctx, websocket.MessageBinary, p[:m]); err != nil {
			return n, err
		}
		n += m
		p = p[m:]
	}
	return n, nil
}

// CloseWrite says that nothing more will be written; reading goes on.
func (c *portConn) CloseWrite() error {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	return c.ws.Write(c.ctx, websocket.MessageBinary, nil)
}

func (c *portConn) Close() error {
	c.cancel()
	_ = c.ws.CloseNow() // it may have ended
	return nil
}

func (*portConn) LocalAddr() net.Addr  { return portAddr{} }
func (*portConn) RemoteAddr() net.Addr { return portAddr{} }

// Deadlines are not there: a read or a write that one interrupted could not go on.
func (*portConn) SetDeadline(time.Time) error      { return errors.ErrUnsupported }
func (*portConn) SetReadDeadline(time.Time) error  { return errors.ErrUnsupported }
func (*portConn) SetWriteDeadline(time.Time) error { return errors.ErrUnsupported }

type portAddr struct{}

func (portAddr) Network() string { return "ringfence" }
func (portAddr) String() string  { return "sandbox" }
