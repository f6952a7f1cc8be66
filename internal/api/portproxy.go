package api

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"ringfence.dev/ringfence"
)

const (
	// idlePort is how long a connection to a port is kept for the next request.
	idlePort = 30 * time.Second
	// afterEnd is how long a program may be silent whose client has said its last word.
	afterEnd = time.Minute
	// maxPortHeader bounds the header of a guest's answer, in bytes.
	maxPortHeader = 64 << 10
	portBuffer    = 64 << 10
)

// portRequest is what goes with a request to a port.
type portRequest struct {
	portAddress
	grant
	ctx context.Context // with the reason of an early end as its cause
	in  *http.Request
	a   *answer
}

type portRequestKey struct{}

func portRequestOf(ctx context.Context) *portRequest {
	pr, _ := ctx.Value(portRequestKey{}).(*portRequest)
	return pr
}

// newPortProxy returns the proxy to all ports of all sandboxes. Connections go through the
// engine and nowhere else: there is no address that it could be talked into.
func (s *Server) newPortProxy() *httputil.ReverseProxy {
	transport := &http.Transport{
		Proxy: nil, // whatever the environment says
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			pr := portRequestOf(ctx)
			id, digits, err := net.SplitHostPort(address)
			port, ok := parsePort(digits)
			if pr == nil || err != nil || !ok {
				return nil, ringfence.Errorf(ringfence.CodeInternal, "a connection to nowhere")
			}
			if pr.stranger() { // the sandbox may have been paused since
				if err := s.Engine.AdmitPort(ctx, pr.project, id, port, true); err != nil {
					return nil, err
				}
			}
			conn, err := s.Engine.DialPort(ctx, pr.project, id, port)
			if err != nil {
				return nil, err
			}
			return &portConn{Conn: conn}, nil
		},
		DisableCompression: true, MaxIdleConns: 512, MaxIdleConnsPerHost: 8, IdleConnTimeout: idlePort,
		MaxResponseHeaderBytes: maxPortHeader, ExpectContinueTimeout: time.Second, WriteBufferSize: portBuffer, ReadBufferSize: portBuffer,
	}
	return &httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1, BufferPool: &portBuffers{},
		ErrorLog:       slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
		Rewrite:        rewritePort,
		ModifyResponse: answerPort,
		ErrorHandler: func(_ http.ResponseWriter, r *http.Request, err error) {
			s.refusePort(portRequestOf(r.Context()), err)
		},
	}
}

// portConn bounds the wait for a program whose client has closed its half.
type portConn struct {
	net.Conn
	halfClosed atomic.Bool
}

func (c *portConn) CloseWrite() error {
	c.halfClosed.Store(true)
	err := c.Conn.(interface{ CloseWrite() error }).CloseWrite()
	return errors.Join(err, c.SetReadDeadline(time.Now().Add(afterEnd)))
}

func (c *portConn) Read(p []byte) (int, error) {
	if c.halfClosed.Load() {
		if err := c.SetReadDeadline(time.Now().Add(afterEnd)); err != nil {
			return 0, err
		}
	}
	return c.Conn.Read(p)
}

// portBuffers recycles what bodies are copied through.
type portBuffers struct{ pool sync.Pool }

func (b *portBuffers) Get() []byte {
	if p, ok := b.pool.Get().(*[portBuffer]byte); ok {
		return p[:]
	}
	return make([]byte, portBuffer)
}

func (b *portBuffers) Put(p []byte) { b.pool.Put((*[portBuffer]byte)(p)) }

// servePort serves a request for a port.
func (s *Server) servePort(a *answer, r *http.Request, p portAddress) {
	a.route, a.sandbox = portPattern, p.sandbox
	if !p.own() {
		a.Header().Set("Content-Security-Policy", portPolicy)
	}
	if r.Header.Get("Service-Worker") != "" {
		if err := serviceWorker(p); err != nil {
			s.refuse(a, err)
			return
		}
	}
	if rest, ok := strings.CutPrefix(p.rest, linkPath+"/"); ok {
		p.rest = "/" + rest
	}
	g, err := s.admitPort(r, p)
	a.who = g.who
	if err != nil {
		s.refuse(a, err)
		return
	}
	if g.link != "" {
		setLinkCookie(a.Header(), r, p, g)
		if navigates(r) {
			// Whole, so that no path of the guest's can be taken for a host.
			a.Header().Set("Location", origin(r)+p.prefix+p.rest+question(withoutLink(r.URL.RawQuery)))
			a.Header().Set("Referrer-Policy", "no-referrer")
			a.WriteHeader(http.StatusSeeOther)
			return
		}
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	if !g.until.IsZero() {
		defer time.AfterFunc(time.Until(g.until), func() {
			cancel(ringfence.Errorf(ringfence.CodeSignatureExpired, "the link has expired").WithHint("ask for a new one"))
		}).Stop()
	}
	if g.closed != nil {
		done := make(chan struct{})
		var wg sync.WaitGroup
		defer wg.Wait()
		defer close(done)
		wg.Go(func() {
			select {
			case <-g.closed:
				cancel(ringfence.Errorf(ringfence.CodeUnauthenticated, "the port is public no more"))
			case <-done:
			}
		})
	}
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = portBody{rolling{r.Body, a.control, a.stall}, r.Body}
	}
	pr := &portRequest{portAddress: p, grant: g, ctx: ctx, in: r, a: a}
	if err := s.Engine.AdmitPort(ctx, g.project, p.sandbox, p.port, g.stranger()); err != nil {
		s.refusePort(pr, err)
		return
	}
	a.Header().Del("Cache-Control") // the guest says it
	if p.own() {
		a.Header().Del("X-Content-Type-Options")
	}
	s.ports.ServeHTTP(&finalAnswer{answer: a, header: http.Header{}}, r.WithContext(context.WithValue(ctx, portRequestKey{}, pr)))
}

// serviceWorker refuses the script of a service worker that could be given more than its
// own directory: it sits between a browser and all that is in its scope, which is the
// script's directory at most, as Service-Worker-Allowed is taken out of answers.
func serviceWorker(p portAddress) error {
	if !p.own() {
		return ringfence.Errorf(ringfence.CodePermissionDenied, "no service worker of a sandbox may work for the API's origin").
			WithHint("use the port under a host name of its own: the operator sets domain")
	}
	directory, _ := path.Split(p.rest)
	if strings.Trim(directory, "/") == "" || strings.HasPrefix(p.rest, linkPath+"/") {
		return ringfence.Errorf(ringfence.CodePermissionDenied, "no service worker may work for all of a port's host: it would read the signed links that are opened there").
			WithHint("serve its script from a directory, which is then its scope")
	}
	return nil
}

// portBody is the body of a request, which may take its time as long as it moves.
type portBody struct {
	rolling
	closer io.Closer
}

func (b portBody) Read(p []byte) (int, error) {
	n, err := b.rolling.Read(p)
	if err == io.EOF { //nolint:errorlint // a reader's own end
		b.done()
	}
	return n, err
}

func (b portBody) Close() error { return b.closer.Close() }

// finalAnswer lets nothing out but an answer that answerPort has looked at: what a guest
// says before it (103) or after it (trailers) is dropped.
type finalAnswer struct {
	*answer
	header http.Header
}

func (f *finalAnswer) Header() http.Header { return f.header }

func (f *finalAnswer) WriteHeader(status int) {
	if status < 200 {
		return
	}
	h := f.answer.Header()
	clear(h)
	for name, values := range f.header {
		h[name] = values
	}
	f.answer.WriteHeader(status)
}

// Unwrap leads to the connection.
func (f *finalAnswer) Unwrap() http.ResponseWriter { return f.answer.ResponseWriter }

// rewritePort makes the request to the guest.
func rewritePort(to *httputil.ProxyRequest) {
	pr := portRequestOf(to.In.Context())
	out := to.Out
	cleanRequest(to.In, out, pr.portAddress)
	to.SetXForwarded()
	if strings.HasPrefix(origin(to.In), "https:") {
		out.Header.Set("X-Forwarded-Proto", "https")
	}
	if !pr.own() {
		out.Header.Set("X-Forwarded-Prefix", pr.prefix)
	}
	out.URL = &url.URL{Scheme: "http", Host: net.JoinHostPort(pr.sandbox, strconv.Itoa(pr.port)), Path: pr.rest, RawQuery: withoutLink(to.In.URL.RawQuery)}
	if path, err := url.PathUnescape(pr.rest); err == nil {
		out.URL.Path, out.URL.RawPath = path, pr.rest
	}
	out.Host = localHost(pr.port)
}

// answerPort looks at a guest's answer before anything of it goes out.
func answerPort(resp *http.Response) error {
	pr := portRequestOf(resp.Request.Context())
	if resp.StatusCode < 200 && resp.StatusCode != http.StatusSwitchingProtocols {
		return errors.New("its status is none") // it would go out as a success
	}
	cleanAnswer(pr.in, resp.Header, pr.portAddress)
	for name, ours := range pr.a.Header() { // of two policies both are in force
		resp.Header[name] = slices.Concat(ours, resp.Header[name])
	}
	resp.Header.Set("X-Accel-Buffering", "no") // a proxy that gathered a stream would defeat it
	if resp.StatusCode == http.StatusSwitchingProtocols {
		if !strings.EqualFold(resp.Header.Get("Upgrade"), "websocket") || !strings.EqualFold(pr.in.Header.Get("Upgrade"), "websocket") {
			return errors.New("it switched to a protocol that nobody asked for")
		}
		pr.a.status = resp.StatusCode // it goes out past the answer
		// Its first line goes out as the guest wrote it, and may hold a line end.
		resp.Status, resp.ProtoMajor, resp.ProtoMinor = "", 1, 1
		return nil
	}
	resp.Trailer = nil // nothing is announced
	return nil
}

// refusePort says why there is no answer of the guest's.
func (s *Server) refusePort(pr *portRequest, err error) {
	h := pr.a.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	var own *ringfence.Error
	switch cause := context.Cause(pr.ctx); {
	case errors.As(cause, &own) || errors.As(err, &own):
		err = own
	case pr.in.Context().Err() != nil:
		err = ringfence.Errorf(ringfence.CodeCanceled, "the client went away").WithCause(err)
	default:
		err = ringfence.Errorf(ringfence.CodePortFailed, "what listens on port %d of the sandbox gave no answer of HTTP/1.1", pr.port).
			WithHint("ask the program itself, in the sandbox: curl -v localhost:%d; for other protocols use `ringfence forward`", pr.port).WithCause(err)
	}
	if pr.a.status != 0 {
		s.logFault(pr.a, err)
		panic(http.ErrAbortHandler)
	}
	s.refuse(pr.a, err)
}
