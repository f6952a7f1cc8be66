// Package superserve lets programs that were written for Superserve's SDKs run here: it
// translates between what they put on the wire and the engine, and keeps nothing itself.
//
// The control plane is below /superserve. The data plane, which the SDKs call by host names
// of their vendor that they do not let anybody set, is there too, and on those names.
package superserve

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/dialect"
)

// Prefix is where the dialect is on the server: the path of SUPERSERVE_BASE_URL.
const Prefix = "/superserve"

// DataHosts are the host names that the SDKs have built in for the data plane. Names below
// them are of one sandbox, or of one port of it.
var DataHosts = []string{"sandbox.superserve.ai", "usw-sandbox.superserve.ai", "staging-sandbox.superserve.ai"}

// holdHeaders is how long a buffered command keeps its headers back, so that it can still be
// refused: Node.js gives up after 300 s without them.
const holdHeaders = 240 * time.Second

// Options say how the dialect is served.
type Options struct {
	// TLSPort is the port of the listener that has a certificate for DataHosts, with CA as
	// the authority that signed it, in PEM. 0: there is none.
	TLSPort int
	CA      []byte
	// HoldHeaders is how long the answer to a buffered command is kept back whole; 0: 240 s.
	HoldHeaders time.Duration
}

// Mount is the dialect's place in a server.
func Mount(o Options) dialect.Mount {
	if o.HoldHeaders == 0 {
		o.HoldHeaders = holdHeaders
	}
	return dialect.Mount{
		Name: "superserve",
		Path: func(r *http.Request) bool {
			p := collapse(r.URL.EscapedPath())
			return p == Prefix || strings.HasPrefix(p, Prefix+"/")
		},
		Host: func(r *http.Request) bool { _, ok := hostOf(r); return ok },
		New:  func(s dialect.Services) http.Handler { return newServer(s, o) },
	}
}

// collapse makes one slash of several: a base URL that ends in one leads to such paths.
func collapse(p string) string {
	for strings.Contains(p, "//") {
		p = strings.ReplaceAll(p, "//", "/")
	}
	return p
}

// place is what a host name says: a sandbox, or a port of one, or neither.
type place struct {
	sandbox string
	port    int
	unknown bool // a name below the hosts that is neither
}

// hostOf reads a request's host name. ok: it is one of DataHosts or below one.
func hostOf(r *http.Request) (p place, ok bool) {
	name := r.Host
	if h, _, err := net.SplitHostPort(name); err == nil {
		name = h
	}
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	if slices.Contains(DataHosts, name) {
		return place{}, true
	}
	label, host, _ := strings.Cut(name, ".")
	if !slices.Contains(DataHosts, host) {
		return place{}, slices.ContainsFunc(DataHosts, func(h string) bool { return strings.HasSuffix(host, "."+h) })
	}
	first, id, _ := strings.Cut(label, "-")
	port, valid := parsePort(first)
	switch {
	case !ringfence.ValidSandboxID(id):
	case first == "boxd":
		return place{sandbox: id}, true
	case valid:
		return place{sandbox: id, port: port}, true
	}
	return place{unknown: true}, true
}

// access says what opens a route.
type access int

const (
	open    access = iota
	control        // an API key
	data           // the access token of the sandbox
)

type route struct {
	method, pattern string
	access          access
	handler         func(*call) error
}

var dataRoutes = []route{
	{"POST", "/exec", data, (*call).exec},
	{"POST", "/exec/stream", data, (*call).stream},
	{"GET", "/exec/connect", data, (*call).connect},
	{"GET", "/files", data, (*call).readFile},
	{"POST", "/files", data, (*call).writeFile},
}

var controlRoutes = []route{
	{"GET", "/health", open, (*call).health},
	{"GET", "/preload", open, (*call).preload},

	{"POST", "/sandboxes", control, (*call).create},
	{"GET", "/sandboxes", control, (*call).list},
	{"GET", "/sandboxes/{id}", control, (*call).get},
	{"PATCH", "/sandboxes/{id}", control, (*call).update},
	{"DELETE", "/sandboxes/{id}", control, (*call).kill},
	{"POST", "/sandboxes/{id}/pause", control, (*call).pause},
	{"POST", "/sandboxes/{id}/resume", control, (*call).resume},
	{"POST", "/sandboxes/{id}/activate", control, (*call).activate},
	{"GET", "/sandboxes/{id}/network", control, (*call).networkLog},
	{"GET", "/sandboxes/{id}/files", control, (*call).listFiles},
	{"POST", "/sandboxes/{id}/secrets", control, (*call).noSecrets},
	{"DELETE", "/sandboxes/{id}/secrets/{key}", control, (*call).noBinding},

	{"GET", "/sandboxes/{id}/preview-ports", control, (*call).listPorts},
	{"POST", "/sandboxes/{id}/preview-ports", control, (*call).publishPort},
	{"DELETE", "/sandboxes/{id}/preview-ports/{port}", control, (*call).unpublishPort},
	{"POST", "/sandboxes/{id}/preview-ports/{port}/token", control, (*call).portToken},
	{"POST", "/sandboxes/{id}/preview-ports/{port}/token/rotate", control, (*call).rotateToken},

	{"POST", "/sandboxes/{id}/snapshot", control, (*call).snapshot},
	{"POST", "/sandboxes/{id}/snapshots", control, (*call).snapshot},
	{"GET", "/sandboxes/{id}/snapshots", control, (*call).listSnapshots},
	{"GET", "/snapshots/{snapshot}", control, (*call).getSnapshot},
	{"PATCH", "/snapshots/{snapshot}", control, (*call).renameSnapshot},
	{"DELETE", "/snapshots/{snapshot}", control, (*call).deleteSnapshot},

	{"GET", "/templates", control, (*call).listTemplates},
	{"POST", "/templates", control, (*call).noTemplates},
	{"GET", "/templates/{name...}", control, (*call).getTemplate},
	{"POST", "/templates/{name...}", control, (*call).noTemplates},
	{"DELETE", "/templates/{name...}", control, (*call).noTemplates},

	{"GET", "/secrets", control, (*call).none},
	{"POST", "/secrets", control, (*call).noSecrets},
	{"GET", "/secrets/{rest...}", control, (*call).noSecret},
	{"PATCH", "/secrets/{rest...}", control, (*call).noSecrets},
	{"DELETE", "/secrets/{rest...}", control, (*call).noSecret},
	{"GET", "/providers", control, (*call).none},
}

// server serves the dialect.
type server struct {
	dialect.Services
	Options
	data, all *http.ServeMux
}

func newServer(s dialect.Services, o Options) *server {
	out := &server{Services: s, Options: o, data: http.NewServeMux(), all: http.NewServeMux()}
	for _, rt := range dataRoutes {
		out.data.Handle(rt.method+" "+rt.pattern, out.route(rt))
		out.all.Handle(rt.method+" "+rt.pattern, out.route(rt))
	}
	for _, rt := range controlRoutes {
		out.all.Handle(rt.method+" "+rt.pattern, out.route(rt))
	}
	for _, mux := range []*http.ServeMux{out.data, out.all} {
		mux.Handle("/", out.route(route{pattern: "none", access: open, handler: (*call).noRoute}))
	}
	return out
}

type placeKey struct{}

// ServeHTTP finds the route. Paths are taken as they are meant: a redirect would cost
// clients their body.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	mux, p := s.all, collapse(r.URL.EscapedPath())
	at, byHost := hostOf(r)
	if port, ok := portOf(r, at, byHost); ok {
		s.preview(w.(dialect.Answer), r, port)
		return
	}
	switch {
	case byHost:
		mux = s.data
	default:
		p = strings.TrimPrefix(p, Prefix)
	}
	plain, err := url.PathUnescape(p)
	if err != nil || at.unknown || path.Clean("/"+p) != p {
		plain, p = "/nowhere/at/all", "/nowhere/at/all"
	}
	to := r.WithContext(context.WithValue(r.Context(), placeKey{}, at))
	to.URL = &url.URL{Path: plain, RawPath: p, RawQuery: r.URL.RawQuery}
	mux.ServeHTTP(w, to)
}

// call is a request that has been let through.
type call struct {
	*server
	w       dialect.Answer
	r       *http.Request
	who     ringfence.Principal
	sandbox string // that the request is about; of a data route
	name    string // of the route, for the log
}

// route lets the right requests through to a handler, and turns its error into an answer.
func (s *server) route(rt route) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c := &call{server: s, w: w.(dialect.Answer), r: r, name: "superserve" + rt.pattern, sandbox: r.PathValue("id")}
		c.note()
		err := c.admit(rt.access)
		if err == nil {
			c.note()
			err = rt.handler(c)
		}
		switch {
		case err == nil:
		case c.w.Begun():
			s.Fault(w, err)
			panic(http.ErrAbortHandler) // the client must not take the rest for the end
		default:
			c.refuse(err)
		}
	}
}

func (c *call) note() { c.w.Note(c.name, c.sandbox, c.who) }

func (c *call) admit(a access) (err error) {
	switch a {
	case control:
		c.who, err = c.Engine.Authenticate(c.r.Context(), c.r.Header.Get("X-Api-Key"))
		if err == nil && c.who.SandboxID != "" {
			err = ringfence.Errorf(ringfence.CodeUnauthenticated, "a sandbox's access token is no API key")
		}
	case data:
		token := c.r.Header.Get("X-Access-Token")
		if token == "" {
			token = tokenOfProtocol(c.r)
		}
		c.sandbox = c.r.Header.Get("X-Superserve-Sandbox-Id")
		if at, _ := c.r.Context().Value(placeKey{}).(place); c.sandbox == "" {
			c.sandbox = at.sandbox
		}
		c.who, err = c.Engine.Authenticate(c.r.Context(), token)
		switch {
		case err != nil:
		case c.who.SandboxID == "":
			err = ringfence.Errorf(ringfence.CodeUnauthenticated, "an API key is no access token of a sandbox")
		case c.sandbox == "":
			c.sandbox = c.who.SandboxID // a WebSocket can say no more than its token
		case c.sandbox != c.who.SandboxID:
			err = ringfence.Errorf(ringfence.CodeUnauthenticated, "the access token is another sandbox's")
		}
	case open:
	}
	return err
}

func (c *call) noRoute() error {
	return ringfence.Errorf(ringfence.CodeRouteNotFound, "there is no %s %q here", c.r.Method, cut(c.r.URL.Path)).
		WithHint("docs/compatibility/superserve.md lists what there is")
}

func (c *call) health() error {
	return dialect.Reply(c.w, http.StatusOK, map[string]string{"status": "ok", "version": "ringfence"})
}

func cut(s string) string {
	if len(s) > 200 {
		s = s[:200] + "…"
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
