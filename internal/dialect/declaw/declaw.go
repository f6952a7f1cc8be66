// Package declaw is a translation: programs written for Declaw's SDKs run over the engine
// with it. It keeps nothing of its own.
package declaw

import (
	"context"
	"errors"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/dialect"
	"ringfence.dev/ringfence/internal/engine"
)

// holdHeaders is how long the headers of a command's answer are held back. The TypeScript
// SDK gives up after 300 s without them, and would start the command again.
const holdHeaders = 240 * time.Second

// roots are the first segments of the paths that are the dialect's.
var roots = []string{"sandboxes", "snapshots", "volumes", "templates", "teams", "vault", "governance", "auth", "accounts"}

// Mount is the dialect's place in the server: beside the native API, which is below /v1.
func Mount() dialect.Mount {
	return dialect.Mount{Name: "declaw", Path: takes, New: func(s dialect.Services) http.Handler { return newHandler(s, holdHeaders) }}
}

func takes(r *http.Request) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	return slices.Contains(roots, first)
}

type handler struct {
	dialect.Services
	mux  *http.ServeMux
	hold time.Duration // of a command's headers
}

func newHandler(s dialect.Services, hold time.Duration) *handler {
	h := &handler{Services: s, mux: http.NewServeMux(), hold: hold}
	for _, rt := range routes {
		h.mux.HandleFunc(rt.pattern, func(w http.ResponseWriter, r *http.Request) { h.serve(rt, w, r) })
	}
	h.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		h.serve(route{pattern: "none", handler: (*call).noRoute}, w, r)
	})
	return h
}

// call is a request that has been let in.
type call struct {
	*handler
	w   dialect.Answer
	r   *http.Request
	who ringfence.Principal
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if p, ok := portOf(r); ok {
		h.servePort(w, r, p)
		return
	}
	if clean := path.Clean(r.URL.Path); r.URL.Path != clean && r.URL.Path != clean+"/" {
		h.serve(route{pattern: "none", handler: (*call).noRoute}, w, r) // the mux would redirect
		return
	}
	h.mux.ServeHTTP(w, r)
}

func (h *handler) serve(rt route, w http.ResponseWriter, r *http.Request) {
	c := &call{handler: h, w: w.(dialect.Answer), r: r}
	_, pattern, _ := strings.Cut(rt.pattern, " ")
	c.w.Note("declaw "+pattern, r.PathValue("id"), c.who)
	err := c.admit(rt)
	if err == nil {
		c.w.Note("declaw "+pattern, r.PathValue("id"), c.who)
		err = rt.handler(c)
	}
	if err == nil {
		return
	}
	if c.w.Begun() {
		h.Fault(w, err)
		panic(http.ErrAbortHandler) // the client must not take the rest for the end
	}
	c.refuse(err)
}

// admit lets in whoever has an API key, or a sandbox's token where that is enough.
func (c *call) admit(rt route) error {
	who, err := c.Engine.Authenticate(c.r.Context(), dialect.Credential(c.r))
	switch {
	case ringfence.CodeOf(err) == ringfence.CodeUnauthenticated:
		return ringfence.Errorf(ringfence.CodeUnauthenticated, "unauthorized: missing or invalid API key").
			WithHint("DECLAW_API_KEY is a key of this server, rf_…, which it printed at its first start").WithCause(err)
	case err != nil:
		return err
	case who.SandboxID == "":
	case !rt.data:
		return ringfence.Errorf(ringfence.CodePermissionDenied, "a sandbox's access token does not open this; use an API key")
	case who.SandboxID != c.id():
		return engine.NoSandbox(c.id())
	}
	c.who = who
	return nil
}

func (c *call) id() string { return c.r.PathValue("id") }

func (c *call) ctx() context.Context { return c.r.Context() }

// errorBody is an error as the SDKs read it.
type errorBody struct {
	Message string `json:"message"`
	Code    string `json:"code,omitempty"`
}

// statuses are the HTTP statuses that are not the native API's, so that the SDKs raise
// their own class for what happened.
var statuses = map[ringfence.Code]int{
	ringfence.CodeIsDirectory:  http.StatusBadRequest,
	ringfence.CodeNotDirectory: http.StatusBadRequest,
	ringfence.CodeDiskFull:     http.StatusRequestEntityTooLarge, // NotEnoughSpaceError in both SDKs
}

// wireError is an error's status and body.
func wireError(err error) (*ringfence.Error, int, errorBody) {
	var e *ringfence.Error
	if !errors.As(err, &e) {
		e = ringfence.Errorf(ringfence.CodeOf(err), "the server could not do this")
	}
	status, ok := statuses[e.Code]
	if !ok {
		status = ringfence.RowOf(e.Code).HTTP
	}
	body := errorBody{Message: strings.ToValidUTF8(e.Message, "\uFFFD"), Code: string(e.Code)}
	if e.Hint != "" {
		body.Message += "; " + e.Hint
	}
	if e.Field == "Idempotency-Key" && e.Code == ringfence.CodeFailedPrecondition {
		status, body.Code = http.StatusUnprocessableEntity, "idempotency_key_reused"
	}
	return e, status, body
}

// refuse answers with an error.
func (c *call) refuse(err error) {
	c.Fault(c.w, err)
	e, status, body := wireError(err)
	if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		c.w.Header().Set("Retry-After", strconv.Itoa(max(e.RetryAfterSeconds, 1)))
	}
	for _, name := range []string{"Content-Length", "Content-Disposition"} {
		c.w.Header().Del(name)
	}
	if err := dialect.Reply(c.w, status, body); err != nil {
		c.Log.Debug("cannot send an error", "error", err)
	}
}

func invalid(field, format string, args ...any) *ringfence.Error {
	return ringfence.Errorf(ringfence.CodeInvalidArgument, format, args...).WithField(field)
}

func (c *call) decode(into any) error { return dialect.Decode(c.w, c.r, c.MaxBody, into) }

func (c *call) reply(status int, body any) error { return dialect.Reply(c.w, status, body) }

// nothing is the answer of what has nothing to say. Some methods of the SDKs read fields
// of it, so that 204 would not do.
func (c *call) nothing() error { return c.reply(http.StatusOK, struct{}{}) }

func (c *call) noRoute() error {
	return ringfence.Errorf(ringfence.CodeRouteNotFound, "there is no %s %s", c.r.Method, c.r.URL.Path).
		WithHint("docs/compatibility/declaw.md lists what there is")
}

// wireTime spells a time so that every Python reads it; nil for the zero time.
func wireTime(t time.Time) *string {
	if t.IsZero() {
		return nil
	}
	s := t.UTC().Format("2006-01-02T15:04:05.000000+00:00")
	return &s
}

// messageOf is an error in one sentence that callers may see.
func messageOf(err error) string {
	var e *ringfence.Error
	if errors.As(err, &e) {
		return e.Message
	}
	return "the server could not do this"
}
