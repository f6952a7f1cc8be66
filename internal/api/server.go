// Package api is the REST API: it decodes, authenticates, calls the engine and
// converts. What may reach a handler is decided in one place, by the route table.
package api

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"path"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/dialect"
	"ringfence.dev/ringfence/internal/engine"
)

// Options is what a Server needs. Engine and Log are required.
type Options struct {
	Engine    *engine.Engine
	Log       *slog.Logger
	Version   string
	HostNames []string // by which clients may call this server, beside loopback names and the address of the connection
	Domain    string   // below which each port has a name of its own, <port>-<id>.<domain>; none when empty
	MaxBody   int64    // of a JSON body, in bytes; 0: 32 MiB
	// Dialects are what else is served, each on paths or host names of its own.
	Dialects []dialect.Mount
	// KeepAlive is how long a stream is silent before it says that it lives; 0: 15 s.
	KeepAlive time.Duration
	// Stall is how long a connection may stand still while a body is read or an answer
	// is written; 0: 2 minutes. A stream of a process may stand still for ever.
	Stall time.Duration
}

// Server answers the API.
type Server struct {
	Options
	mux   *http.ServeMux
	names map[string]bool
	ports *httputil.ReverseProxy

	dialects []http.Handler // of the mounts in Options

	mu     sync.Mutex
	active int           // requests that are being answered; guarded by mu
	idle   chan struct{} // closed when the last of them has been, if somebody waits; guarded by mu
}

// New returns a server for an engine.
func New(o Options) *Server {
	if o.MaxBody == 0 {
		o.MaxBody = 32 << 20
	}
	if o.KeepAlive == 0 {
		o.KeepAlive = keepAlive
	}
	if o.Stall == 0 {
		o.Stall = stall
	}
	s := &Server{Options: o, mux: http.NewServeMux(), names: hostNames(o.HostNames)}
	s.ports = s.newPortProxy()
	for _, rt := range Routes {
		if rt.Pattern == portPattern {
			continue
		}
		s.mux.Handle(rt.Method+" "+rt.Pattern, s.route(rt))
	}
	s.mux.HandleFunc("/", s.noRoute)
	for _, m := range o.Dialects {
		s.dialects = append(s.dialects, m.New(s.services()))
	}
	return s
}

// HTTP returns the server that a listener is given to. Deadlines on bodies roll: a
// large file may take its time as long as it moves.
func (s *Server) HTTP() *http.Server {
	return &http.Server{
		Handler: s,
		// A client that opens many connections at once may keep one that it has no use for
		// yet. To close it sooner than one that was used would break the request that comes
		// on it just then, and a command must not be sent twice.
		ReadHeaderTimeout: 2 * time.Minute,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug), // broken clients
	}
}

// answer is the ResponseWriter of a request, with what the log wants to know.
type answer struct {
	http.ResponseWriter
	control *http.ResponseController
	id      string // of the request
	status  int
	bytes   int64
	route   string
	who     ringfence.Principal
	sandbox string
	stall   time.Duration
	patient bool // the client may stand still for as long as it likes
}

// Unwrap lets a ResponseController reach the connection.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *answer) WriteHeader(status int) {
	a.move() // an answer may have no body, and the deadline of the one before may be near
	if a.status == 0 || a.status < 200 {
		a.status = status
	}
	a.ResponseWriter.WriteHeader(status)
}

const (
	// stall is how long a connection may stand still while it is read or written.
	stall = 2 * time.Minute
	// piece is how much has to move in that time.
	piece = 256 << 10
)

// move gives the connection time for the next piece. A writer without deadlines is
// one of a test.
func (a *answer) move() {
	deadline := time.Time{}
	if !a.patient {
		deadline = time.Now().Add(a.stall)
	}
	_ = a.control.SetWriteDeadline(deadline)
}

func (a *answer) Write(p []byte) (total int, err error) {
	if a.status == 0 {
		a.status = http.StatusOK
	}
	for {
		n := min(len(p), piece)
		a.move()
		n, err = a.ResponseWriter.Write(p[:n])
		a.bytes += int64(n)
		total += n
		if p = p[n:]; err != nil || len(p) == 0 {
			return total, err
		}
	}
}

// rolling is a request's body, which may take its time as long as it moves.
type rolling struct {
	body    io.Reader
	control *http.ResponseController
	stall   time.Duration // 0: it may stand still
}

func (r rolling) Read(p []byte) (int, error) {
	if r.stall > 0 {
		_ = r.control.SetReadDeadline(time.Now().Add(r.stall))
	}
	return r.body.Read(p[:min(len(p), piece)])
}

// done leaves the connection to be watched for the client's going away.
func (r rolling) done() { _ = r.control.SetReadDeadline(time.Time{}) }

// ErrShutdown is the cause with which the context of a request ends when the server does.
var ErrShutdown = ringfence.Errorf(ringfence.CodeUnavailable, "the server is shutting down").
	WithHint("what runs in the sandbox goes on; try again when the server is back")

// Wait waits until no request is being answered, WebSockets included, which the server of
// HTTP does not count.
func (s *Server) Wait(ctx context.Context) error {
	s.mu.Lock()
	if s.active == 0 {
		s.mu.Unlock()
		return nil
	}
	if s.idle == nil {
		s.idle = make(chan struct{})
	}
	idle := s.idle
	s.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Server) count(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.active += n; s.active == 0 && s.idle != nil {
		close(s.idle)
		s.idle = nil
	}
}

// ServeHTTP gives a request its id, refuses the wrong Host, and logs what came of it.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.count(1)
	defer s.count(-1)
	var random [8]byte
	rand.Read(random[:]) // never fails since Go 1.24
	a := &answer{ResponseWriter: w, control: http.NewResponseController(w), id: hex.EncodeToString(random[:]), route: "none", stall: s.Stall}
	header := w.Header()
	header.Set("X-Request-Id", a.id)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Cache-Control", "no-store")
	began := time.Now()
	defer func() {
		if p := recover(); p != nil {
			if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
				s.logAccess(r, a, began)
				panic(p)
			}
			s.Log.Error("a handler panicked", "request", a.id, "panic", p, "stack", string(debug.Stack()))
			if a.status != 0 {
				s.logAccess(r, a, began)
				panic(http.ErrAbortHandler) // the client must not take the rest for the end
			}
			s.refuse(a, ringfence.Errorf(ringfence.CodeInternal, "the server made a mistake"))
		}
		s.logAccess(r, a, began)
	}()
	if p, under, ok := s.portOfHost(r); ok {
		s.servePort(a, r, p)
		return
	} else if under {
		s.refuse(a, ringfence.Errorf(ringfence.CodeMisdirected, "no port of a sandbox is called %q", short(r.Host)).
			WithHint("the name of a port is <port>-<sandbox id>.%s", s.Domain))
		return
	}
	for i, m := range s.Dialects {
		if m.Host != nil && m.Host(r) {
			s.serveDialect(i, a, r)
			return
		}
	}
	if !s.knows(r) {
		s.refuse(a, ringfence.Errorf(ringfence.CodeMisdirected, "this server is not called %q", short(r.Host)).
			WithHint("call it by its address, or tell it the name with host_names"))
		return
	}
	if p, ok := portOfPath(r.URL); ok {
		s.servePort(a, r, p)
		return
	}
	for i, m := range s.Dialects {
		if m.Path(r) {
			s.serveDialect(i, a, r)
			return
		}
	}
	if clean := path.Clean(r.URL.Path); r.URL.Path != clean && r.URL.Path != clean+"/" {
		s.noPath(a, r) // the mux would redirect, and clients would lose their body on the way
		return
	}
	s.mux.ServeHTTP(a, r)
}

// logAccess writes one line for a request: no query, no header, no body, as all of
// them may hold secrets.
func (s *Server) logAccess(r *http.Request, a *answer, began time.Time) {
	attrs := []slog.Attr{
		slog.String("request", a.id), slog.String("method", r.Method), slog.String("route", a.route),
		slog.Int("status", a.status), slog.Int64("bytes", a.bytes), slog.Duration("took", time.Since(began).Round(10*time.Microsecond)),
	}
	if a.sandbox != "" {
		attrs = append(attrs, slog.String("sandbox", short(a.sandbox)))
	}
	if a.who.KeyID != "" {
		attrs = append(attrs, slog.String("key", a.who.KeyID))
	}
	s.Log.LogAttrs(context.WithoutCancel(r.Context()), slog.LevelInfo, "request", attrs...)
}

// noRoute answers what no route takes.
func (s *Server) noRoute(w http.ResponseWriter, r *http.Request) {
	a := w.(*answer) // ServeHTTP made it
	var allowed []string
	for _, method := range []string{"GET", "HEAD", "POST", "PUT", "DELETE"} {
		probe := r.Clone(r.Context())
		probe.Method = method
		if _, pattern := s.mux.Handler(probe); pattern != "/" && pattern != "" {
			allowed = append(allowed, method)
		}
	}
	if len(allowed) > 0 {
		a.Header().Set("Allow", strings.Join(allowed, ", "))
		s.refuse(a, ringfence.Errorf(ringfence.CodeMethodNotAllowed, "%s is not allowed here", short(r.Method)).
			WithHint("this path takes %s", strings.Join(allowed, ", ")))
		return
	}
	s.noPath(a, r)
}

func (s *Server) noPath(a *answer, r *http.Request) {
	s.refuse(a, ringfence.Errorf(ringfence.CodeRouteNotFound, "the API has no path %q", short(r.URL.Path)).
		WithHint("GET /v1/openapi.yaml describes the API"))
}

func short(s string) string {
	if len(s) > 200 {
		s = s[:200] + "…"
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// asError returns err as an *Error whose text callers may see.
func asError(err error) *ringfence.Error {
	var e *ringfence.Error
	if errors.As(err, &e) {
		return e
	}
	return ringfence.Errorf(ringfence.CodeOf(err), "the server could not do this").WithCause(err)
}
