package api

import (
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"ringfence.dev/ringfence"
)

// portAddress is what a request for a port of a sandbox says in its address.
type portAddress struct {
	sandbox string
	port    int
	prefix  string // of the path, without a slash at its end; empty where the port has a host name of its own
	rest    string // what the program in the sandbox is asked for: escaped, begins with a slash
}

// own reports whether the port has an origin of its own, so that its cookies are its own.
func (p portAddress) own() bool { return p.prefix == "" }

// portOfPath reads /v1/sandboxes/{id}/ports/{port}/…. It looks at the path as it was
// sent: what comes after the prefix is none of the API's business.
func portOfPath(u *url.URL) (portAddress, bool) {
	const before, between = "/v1/sandboxes/", "/ports/"
	path := u.EscapedPath()
	tail, ok := strings.CutPrefix(path, before)
	id, tail, cut := strings.Cut(tail, "/")
	if !ok || !cut || !ringfence.ValidSandboxID(id) {
		return portAddress{}, false
	}
	tail, ok = strings.CutPrefix("/"+tail, between)
	digits, rest, cut := strings.Cut(tail, "/")
	port, valid := parsePort(digits)
	if !ok || !cut || !valid {
		return portAddress{}, false
	}
	return portAddress{sandbox: id, port: port, prefix: before + id + between + digits, rest: "/" + rest}, true
}

// portOfHost reads <port>-<id>.<domain>. under says that the name is the domain's or
// below it, well-formed or not.
func (s *Server) portOfHost(r *http.Request) (p portAddress, under, ok bool) {
	if s.Domain == "" {
		return p, false, false
	}
	name, below := strings.CutSuffix(hostName(r.Host), "."+s.Domain)
	if !below {
		return p, false, false
	}
	digits, id, cut := strings.Cut(name, "-")
	port, valid := parsePort(digits)
	if !cut || !valid || !ringfence.ValidSandboxID(id) {
		return p, true, false
	}
	rest := r.URL.EscapedPath()
	if !strings.HasPrefix(rest, "/") { // OPTIONS *
		rest = "/"
	}
	return portAddress{sandbox: id, port: port, rest: rest}, true, true
}

// parsePort reads a port in its only spelling.
func parsePort(s string) (int, bool) {
	n, err := strconv.ParseUint(s, 10, 16)
	return int(n), err == nil && n > 0 && s[0] != '0' && s[0] != '+'
}

// origin is the scheme and the host by which a client calls the server.
func origin(r *http.Request) string {
	scheme := "http"
	// Whoever lies here gets a URL that does not work.
	if r.TLS != nil || strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https") {
		scheme = "https"
	}
	return scheme + "://" + strings.ToLower(r.Host)
}

// portURL is where a client of this request's finds a port.
func (s *Server) portURL(r *http.Request, sandbox string, port int, path string) string {
	base := origin(r)
	if s.Domain == "" {
		return base + "/v1/sandboxes/" + sandbox + "/ports/" + strconv.Itoa(port) + path
	}
	scheme, _, _ := strings.Cut(base, "://")
	host := strconv.Itoa(port) + "-" + sandbox + "." + s.Domain
	if _, p, err := net.SplitHostPort(r.Host); err == nil && p != "" {
		host = net.JoinHostPort(host, p)
	}
	return scheme + "://" + host + path
}
