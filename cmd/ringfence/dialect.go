package main

import (
	"crypto/tls"
	"net"
	"path/filepath"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/config"
	"ringfence.dev/ringfence/internal/dialect"
	"ringfence.dev/ringfence/internal/dialect/declaw"
	"ringfence.dev/ringfence/internal/dialect/superserve"
)

// newDialects returns the dialects that a configuration asks for, and the listeners that
// they need beside the server's own, which the server closes.
func newDialects(c *config.Config) (mounts []dialect.Mount, listeners []net.Listener, err error) {
	var o superserve.Options
	if c.SuperserveListen != "" {
		authority, err := superserve.OpenAuthority(filepath.Join(c.DataDir, "superserve"))
		if err != nil {
			return nil, nil, ringfence.Errorf(ringfence.CodeFailedPrecondition, "cannot use superserve_listen: %w", err)
		}
		l, err := net.Listen("tcp", c.SuperserveListen)
		if err != nil {
			return nil, nil, ringfence.Errorf(ringfence.CodeFailedPrecondition, "cannot listen on %s: %w", c.SuperserveListen, err).
				WithHint("choose another address with --superserve-listen")
		}
		listeners = append(listeners, tls.NewListener(l, authority.TLS()))
		o.CA, o.TLSPort = authority.PEM, l.Addr().(*net.TCPAddr).Port
	}
	return append(mounts, superserve.Mount(o), declaw.Mount()), listeners, nil
}
