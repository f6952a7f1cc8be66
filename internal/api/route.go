package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/engine"
)

// Access says what opens a route.
type Access string

// The kinds of access. The zero value is invalid.
const (
	Open         Access = "open"          // anybody
	ControlPlane Access = "control plane" // an API key
	DataPlane    Access = "data plane"    // an API key, or the access token of the sandbox in the path
	PortPlane    Access = "port"          // as the data plane, or a signed link, or the port is public
)

// Route is a row of the route table.
type Route struct {
	Method  string // "*": any
	Pattern string // of net/http's ServeMux
	Access  Access
	Query   []string // parameters that it takes; one that ends in "." takes any that begin so
	handler func(*call) error
}

// Query parameters of the routes about files.
var (
	fileQuery   = []string{"path", "path_base64", "user"}
	signedQuery = []string{"operation", "expires", "signature"}
)

func with(names ...string) []string { return slices.Concat(fileQuery, names) }

// Routes is the whole of the API: nothing is reachable that has no row here.
var Routes = []Route{
	{"GET", "/health", Open, nil, (*call).health},
	{"GET", "/v1/openapi.yaml", Open, nil, (*call).openAPI},

	{"POST", "/v1/sandboxes", ControlPlane, nil, (*call).createSandbox},
	{"GET", "/v1/sandboxes", ControlPlane, []string{"metadata.", "state", "limit", "cursor"}, (*call).listSandboxes},
	{"GET", "/v1/sandboxes/{id}", ControlPlane, nil, (*call).getSandbox},
	{"DELETE", "/v1/sandboxes/{id}", ControlPlane, nil, (*call).deleteSandbox},
	{"PATCH", "/v1/sandboxes/{id}", ControlPlane, nil, (*call).patchSandbox},
	{"POST", "/v1/sandboxes/{id}/pause", ControlPlane, nil, (*call).pauseSandbox},
	{"POST", "/v1/sandboxes/{id}/resume", ControlPlane, nil, (*call).resumeSandbox},
	{"POST", "/v1/sandboxes/{id}/fork", ControlPlane, nil, (*call).forkSandbox},
	{"POST", "/v1/sandboxes/{id}/restore", ControlPlane, nil, (*call).restoreSandbox},
	{"POST", "/v1/sandboxes/{id}/snapshots", ControlPlane, nil, (*call).createSnapshot},
	{"POST", "/v1/sandboxes/{id}/token", ControlPlane, nil, (*call).accessToken},

	{"GET", "/v1/snapshots", ControlPlane, []string{"sandbox_id", "limit", "cursor"}, (*call).listSnapshots},
	{"GET", "/v1/snapshots/{snapshot}", ControlPlane, nil, (*call).getSnapshot},
	{"DELETE", "/v1/snapshots/{snapshot}", ControlPlane, nil, (*call).deleteSnapshot},

	{"GET", "/v1/sandboxes/{id}/network", DataPlane, nil, (*call).getNetwork},
	{"PUT", "/v1/sandboxes/{id}/network", ControlPlane, nil, (*call).putNetwork},
	{"GET", "/v1/sandboxes/{id}/network/log", DataPlane, []string{"verdict", "limit", "cursor", "wait_seconds"}, (*call).networkLog},

	{"GET", "/v1/templates", ControlPlane, nil, (*call).listTemplates},
	{"GET", "/v1/templates/{name...}", ControlPlane, nil, (*call).getTemplate},

	{"POST", "/v1/keys", ControlPlane, nil, (*call).createKey},
	{"GET", "/v1/keys", ControlPlane, nil, (*call).listKeys},
	{"DELETE", "/v1/keys/{key}", ControlPlane, nil, (*call).deleteKey},

	{"POST", "/v1/sandboxes/{id}/commands", DataPlane, nil, (*call).runCommand},

	{"POST", "/v1/sandboxes/{id}/processes", DataPlane, nil, (*call).startProcess},
	{"GET", "/v1/sandboxes/{id}/processes", DataPlane, []string{"tag", "state"}, (*call).listProcesses},
	{"GET", "/v1/sandboxes/{id}/processes/{process}", DataPlane, nil, (*call).getProcess},
	{"GET", "/v1/sandboxes/{id}/processes/{process}/wait", DataPlane, []string{"timeout_seconds"}, (*call).waitProcess},
	{"POST", "/v1/sandboxes/{id}/processes/{process}/signal", DataPlane, nil, (*call).signalProcess},
	{"POST", "/v1/sandboxes/{id}/processes/{process}/stdin", DataPlane, []string{"close"}, (*call).writeStdin},
	{"POST", "/v1/sandboxes/{id}/processes/{process}/resize", DataPlane, nil, (*call).resizeProcess},
	{"GET", "/v1/sandboxes/{id}/processes/{process}/output", DataPlane, []string{"from", "follow"}, (*call).processOutput},
	{"GET", "/v1/sandboxes/{id}/connect", DataPlane, nil, (*call).connect}, // a WebSocket

	{"GET", "/v1/sandboxes/{id}/ports", DataPlane, nil, (*call).listPorts},
	{"GET", "/v1/sandboxes/{id}/ports/{port}", DataPlane, nil, (*call).getPort},
	{"PUT", "/v1/sandboxes/{id}/ports/{port}", ControlPlane, nil, (*call).publishPort},
	{"*", portPattern, PortPlane, []string{"rf_expires", "rf_signature"}, nil}, // servePort
	{"POST", "/v1/sandboxes/{id}/links", DataPlane, nil, (*call).createLink},
	{"GET", "/v1/sandboxes/{id}/tcp/{port}", DataPlane, nil, (*call).forward}, // a WebSocket
	{"GET", "/v1/sandboxes/{id}/metrics", DataPlane, []string{"from", "to"}, (*call).metrics},
	{"GET", "/v1/sandboxes/{id}/events", DataPlane, []string{"after", "limit"}, (*call).sandboxEvents},
	{"GET", "/v1/events", ControlPlane, []string{"after", "limit"}, (*call).projectEvents},

	{"GET", "/v1/sandboxes/{id}/files", DataPlane, slices.Concat(fileQuery, signedQuery), (*call).readFile}, // and HEAD
	{"PUT", "/v1/sandboxes/{id}/files", DataPlane, slices.Concat(fileQuery, signedQuery, []string{"owner", "mode"}), (*call).writeFile},
	{"POST", "/v1/sandboxes/{id}/files", DataPlane, slices.Concat(fileQuery, signedQuery), (*call).uploadForm},
	{"DELETE", "/v1/sandboxes/{id}/files", DataPlane, with("recursive"), (*call).removeFile},
	{"GET", "/v1/sandboxes/{id}/files/stat", DataPlane, fileQuery, (*call).statFile},
	{"GET", "/v1/sandboxes/{id}/files/list", DataPlane, with("depth", "limit", "cursor", "metadata"), (*call).listFiles},
	{"GET", "/v1/sandboxes/{id}/files/search", DataPlane, with("name", "content", "regex", "ignore_case", "depth", "limit"), (*call).searchFiles},
	{"GET", "/v1/sandboxes/{id}/files/checksum", DataPlane, with("algorithm"), (*call).checksumFile},
	{"GET", "/v1/sandboxes/{id}/files/watch", DataPlane, with("recursive"), (*call).watchFiles},
	{"GET", "/v1/sandboxes/{id}/files/archive", DataPlane, with("format"), (*call).readArchive},
	{"PUT", "/v1/sandboxes/{id}/files/archive", DataPlane, with("format", "owner"), (*call).writeArchive},
	{"POST", "/v1/sandboxes/{id}/files/mkdir", DataPlane, nil, (*call).makeDir},
	{"POST", "/v1/sandboxes/{id}/files/rename", DataPlane, nil, (*call).renameFile},
	{"POST", "/v1/sandboxes/{id}/files/copy", DataPlane, nil, (*call).copyFile},
	{"POST", "/v1/sandboxes/{id}/files/mode", DataPlane, nil, (*call).changeMode},
	{"POST", "/v1/sandboxes/{id}/files/metadata", DataPlane, nil, (*call).changeMetadata},
	{"POST", "/v1/sandboxes/{id}/files/sign", DataPlane, nil, (*call).signFile},
}

// call is a request that has been let through.
type call struct {
	*Server
	w     *answer
	r     *http.Request
	who   ringfence.Principal
	query url.Values
}

// route lets the right requests through to a handler, and turns its error into an answer.
func (s *Server) route(rt Route) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		a := w.(*answer) // ServeHTTP made it
		a.route, a.sandbox = rt.Pattern, r.PathValue("id")
		c := &call{Server: s, w: a, r: r}
		err := c.admit(rt)
		if err == nil {
			err = rt.handler(c)
		}
		if err == nil {
			return
		}
		if a.status != 0 {
			// The answer has begun: all that is left is to let it end in the middle.
			s.logFault(a, err)
			panic(http.ErrAbortHandler)
		}
		s.refuse(a, err)
	}
}

func (c *call) admit(rt Route) error {
	if rt.Access != Open {
		secret := credential(c.r)
		if secret == "" && takesTokenProtocol(rt) {
			secret = tokenOfProtocol(c.r)
		}
		who, signed, err := c.signedBy(rt)
		if !signed && err == nil {
			who, err = c.Engine.Authenticate(c.r.Context(), secret)
		}
		if err != nil {
			return err
		}
		c.who, c.w.who = who, who
		switch {
		case who.SandboxID == "":
		case rt.Access != DataPlane:
			return ringfence.Errorf(ringfence.CodePermissionDenied, "a sandbox's access token does not open this").
				WithHint("it opens the commands and files of its own sandbox; use an API key")
		case who.SandboxID != c.r.PathValue("id"):
			return engine.NoSandbox(c.r.PathValue("id"))
		}
	}
	query, err := url.ParseQuery(c.r.URL.RawQuery)
	if err != nil {
		return ringfence.Errorf(ringfence.CodeInvalidArgument, "the query of the URL cannot be read").WithCause(err)
	}
	for name, values := range query {
		if !slices.ContainsFunc(rt.Query, func(known string) bool {
			if strings.HasSuffix(known, ".") {
				return strings.HasPrefix(name, known) && name != known
			}
			return name == known
		}) {
			return invalid(name, "there is no query parameter %q here", short(name)).WithHint("%s", knownNames("it takes", rt.Query))
		}
		if len(values) > 1 {
			return invalid(name, "the query parameter %q is given %d times", short(name), len(values))
		}
	}
	c.query = query
	return nil
}

func knownNames(verb string, names []string) string {
	if len(names) == 0 {
		return verb + " none"
	}
	list := strings.Join(names, ", ")
	return verb + " " + strings.ReplaceAll(list+",", ".,", ".KEY,")[:len(strings.ReplaceAll(list+",", ".,", ".KEY,"))-1]
}

// credential returns what the request claims to be let in with.
func credential(r *http.Request) string {
	if scheme, value, ok := strings.Cut(r.Header.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "Bearer") {
		return strings.TrimSpace(value)
	}
	if key := r.Header.Get("X-Api-Key"); key != "" {
		return key
	}
	return r.Header.Get("X-Access-Token")
}

func invalid(field, format string, args ...any) *ringfence.Error {
	return ringfence.Errorf(ringfence.CodeInvalidArgument, format, args...).WithField(field)
}

// decode reads the request's JSON body into a struct. An empty body is an empty object.
func (c *call) decode(into any) error {
	tooLarge := ringfence.Errorf(ringfence.CodeTooLarge, "the body has more than %d bytes", c.MaxBody).
		WithHint("files have a route of their own that takes any size; the operator sets max_body_mib")
	if c.r.ContentLength > c.MaxBody {
		return tooLarge
	}
	body := c.body(http.MaxBytesReader(c.w.ResponseWriter, c.r.Body, c.MaxBody))
	raw, err := io.ReadAll(body)
	body.done()
	if err != nil {
		var limit *http.MaxBytesError
		if errors.As(err, &limit) {
			return tooLarge
		}
		return ringfence.Errorf(ringfence.CodeInvalidArgument, "the body did not come to its end").WithCause(err)
	}
	if len(bytes.TrimSpace(raw)) == 0 {
		return nil
	}
	return decodeStrict(raw, into)
}

func (c *call) body(r io.Reader) rolling { return rolling{r, c.w.control, c.Stall} }

// reply answers with JSON.
func (c *call) reply(status int, body any) error {
	return writeJSON(c.w, status, body)
}

func writeJSON(w *answer, status int, body any) error {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(body); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(buf.Len()))
	w.WriteHeader(status)
	_, err := w.Write(buf.Bytes())
	return err
}

// errorBody is an error on the wire.
type errorBody struct {
	Error wireError `json:"error"`
}

type wireError struct {
	Code      ringfence.Code `json:"code"`
	Message   string         `json:"message"`
	Hint      string         `json:"hint"`
	Field     string         `json:"field,omitempty"`
	RequestID string         `json:"request_id"`
}

func (a *answer) wire(err error) errorBody {
	e := asError(err)
	return errorBody{wireError{Code: e.Code, Message: strings.ToValidUTF8(e.Message, "\uFFFD"), Hint: hint(e), Field: short(e.Field), RequestID: a.id}}
}

// hint returns what e says to do, or what is usual for its code; it is never empty.
func hint(e *ringfence.Error) string {
	switch {
	case e.Hint != "":
		return e.Hint
	case e.Code == ringfence.CodeInvalidArgument && e.Field != "":
		return "correct " + short(e.Field) + ", which GET /v1/openapi.yaml describes"
	}
	return ringfence.RowOf(e.Code).Hint
}

// refuse answers with an error.
func (s *Server) refuse(a *answer, err error) {
	s.logFault(a, err)
	e := asError(err)
	row := ringfence.RowOf(e.Code)
	if row.HTTP == http.StatusTooManyRequests || row.HTTP == http.StatusServiceUnavailable {
		a.Header().Set("Retry-After", strconv.Itoa(max(e.RetryAfterSeconds, 1)))
	}
	if row.HTTP == http.StatusUnauthorized {
		a.Header().Set("WWW-Authenticate", `Bearer realm="ringfence"`)
	}
	for _, name := range []string{"Content-Disposition", "Content-Length", "Content-Range", "ETag", "Last-Modified", "Accept-Ranges"} {
		if name != "Content-Range" || row.HTTP != http.StatusRequestedRangeNotSatisfiable {
			a.Header().Del(name)
		}
	}
	if werr := writeJSON(a, row.HTTP, a.wire(err)); werr != nil {
		s.Log.Debug("cannot send an error", "request", a.id, "error", werr)
	}
}

// logFault logs an error that is ours, once and with its cause.
func (s *Server) logFault(a *answer, err error) {
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, net.ErrClosed) {
		s.Log.Debug("a client left in the middle of its answer", "request", a.id, "route", a.route, "sandbox", a.sandbox, "error", err)
		return
	}
	switch ringfence.CodeOf(err) {
	case ringfence.CodeInternal:
		s.Log.Error("a request failed", "request", a.id, "route", a.route, "sandbox", a.sandbox, "error", err)
	case ringfence.CodeUnavailable, ringfence.CodeResourceExhausted:
		s.Log.Warn("a request could not be served", "request", a.id, "route", a.route, "sandbox", a.sandbox, "error", err)
	default:
		s.Log.Debug("a request was refused", "request", a.id, "route", a.route, "sandbox", a.sandbox, "error", err)
	}
}
