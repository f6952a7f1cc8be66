package superserve

import (
	"net/http"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/dialect"
)

// preload tells what redirects the data plane's host names of an SDK where to: a port of
// this host that has a certificate for them, and the authority that signed it.
func (c *call) preload() error {
	if c.TLSPort == 0 {
		return ringfence.Errorf(ringfence.CodeRouteNotFound, "this server has no TLS listener for the host names that Superserve's SDKs have built in").
			WithHint("start it with --superserve-listen 127.0.0.1:7443")
	}
	return dialect.Reply(c.w, http.StatusOK, map[string]any{"port": c.TLSPort, "ca": string(c.CA), "hosts": DataHosts})
}
