package api

import (
	"net/http"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/dialect"
)

// services is what this server gives its dialects.
func (s *Server) services() dialect.Services {
	return dialect.Services{
		Engine: s.Engine, Log: s.Log, MaxBody: s.MaxBody, KeepAlive: s.KeepAlive,
		ServePort: func(w http.ResponseWriter, r *http.Request, p dialect.Port) {
			s.servePort(w.(*answer), r, portAddress{sandbox: p.Sandbox, port: p.Port, prefix: p.Prefix, rest: p.Rest})
		},
		Fault: func(w http.ResponseWriter, err error) { s.logFault(w.(*answer), err) },
	}
}

// serveDialect hands a request to a dialect.
func (s *Server) serveDialect(i int, a *answer, r *http.Request) {
	a.route = s.Dialects[i].Name
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = portBody{rolling{r.Body, a.control, a.stall}, r.Body}
	}
	s.dialects[i].ServeHTTP(a, r)
}

// Note, Patient and Begun make an answer a dialect's.
func (a *answer) Note(route, sandbox string, who ringfence.Principal) {
	a.route, a.sandbox, a.who = route, sandbox, who
}

func (a *answer) Patient() { a.patient = true }

func (a *answer) Begun() bool { return a.status != 0 }
