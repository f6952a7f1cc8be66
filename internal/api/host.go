package api

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// hostNames returns the names of this server, as knows compares them.
func hostNames(configured []string) map[string]bool {
	names := map[string]bool{"localhost": true, "127.0.0.1": true, "::1": true}
	for _, name := range configured {
		names[hostName(name)] = true
	}
	return names
}

// hostName is a Host header without its port, as it is compared.
func hostName(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.Unmap().WithZone("").String()
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// knows reports whether a request's Host is one of this server's names: a page in a
// browser can make a name of its own point here, but cannot call it by one of ours.
func (s *Server) knows(r *http.Request) bool {
	name := hostName(r.Host)
	if s.names[name] {
		return true
	}
	// The address that the connection arrived at is a name too. It has to be spelled as
	// an address, which no page can point elsewhere.
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return ok && name != "" && name == hostName(local.String())
}
