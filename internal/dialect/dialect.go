// Package dialect is what the translations have in common that let programs written for
// other products run here: how one is mounted in the server, and the table of its
// operations, of which its page in docs/compatibility is made and that its tests run.
package dialect

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/engine"
)

// Mount is a dialect's place in the server.
type Mount struct {
	Name string
	// Path reports whether a request's path is the dialect's. The path may be spelled in
	// any way: it comes before it is cleaned.
	Path func(*http.Request) bool
	// Host reports whether a request's Host is a name of the dialect's own, which need not
	// be one of the server's names then. nil: it has none.
	Host func(*http.Request) bool
	// New returns what serves the dialect. What it is given as a ResponseWriter is an Answer.
	New func(Services) http.Handler
}

// Services is what a server gives its dialects.
type Services struct {
	Engine    *engine.Engine
	Log       *slog.Logger
	MaxBody   int64         // of a JSON body, in bytes
	KeepAlive time.Duration // how long a stream is silent before it says that it lives
	// ServePort proxies a request to a port of a sandbox, and asks for a credential itself.
	ServePort func(http.ResponseWriter, *http.Request, Port)
	// Fault logs an error that is the server's own, once and with its cause.
	Fault func(http.ResponseWriter, error)
}

// Port is a port of a sandbox, as a request's path names it.
type Port struct {
	Sandbox string
	Port    int
	Prefix  string // of the path, up to the port; without a slash at its end
	Rest    string // what the program in the sandbox is asked for: escaped, begins with a slash
}

// Answer is the ResponseWriter that a server gives a dialect. A body of a request may take
// its time as long as it moves, and so may an answer.
type Answer interface {
	http.ResponseWriter
	// Note is what the line of the log says about the request.
	Note(route, sandbox string, who ringfence.Principal)
	// Patient lets the client stand still for as long as it likes while it is answered.
	Patient()
	// Begun reports whether the answer has.
	Begun() bool
}

// Credential returns what a request claims to be let in with: Bearer, or X-API-Key.
func Credential(r *http.Request) string {
	if scheme, value, ok := strings.Cut(r.Header.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "Bearer") {
		return strings.TrimSpace(value)
	}
	return r.Header.Get("X-Api-Key")
}

// Decode reads a request's JSON body into a struct; fields that it has not are left out.
// An empty body is an empty object.
func Decode(w http.ResponseWriter, r *http.Request, limit int64, into any) error {
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	var tooLarge *http.MaxBytesError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &tooLarge):
		return ringfence.Errorf(ringfence.CodeTooLarge, "the body has more than %d bytes", limit)
	case err != nil:
		return ringfence.Errorf(ringfence.CodeInvalidArgument, "the body did not come to its end").WithCause(err)
	case len(bytes.TrimSpace(raw)) == 0:
		return nil
	}
	err = json.Unmarshal(raw, into)
	switch {
	case errors.As(err, &kind) && kind.Field != "":
		return ringfence.Errorf(ringfence.CodeInvalidArgument, "%s is a JSON %s, which does not fit", kind.Field, kind.Value).WithField(kind.Field)
	case err != nil:
		return ringfence.Errorf(ringfence.CodeInvalidArgument, "the body is no JSON object that fits: %w", err)
	}
	return nil
}

// Reply answers with JSON.
func Reply(w http.ResponseWriter, status int, body any) error {
	raw, err := Marshal(body)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(raw)))
	w.WriteHeader(status)
	_, err = w.Write(raw)
	return err
}

// Marshal is JSON on one line, with the line's end, in which <, > and & stay themselves.
func Marshal(body any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	err := enc.Encode(body)
	return buf.Bytes(), err
}
