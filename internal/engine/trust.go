package engine

import (
	"bytes"
	"context"

	"ringfence.dev/ringfence/internal/guestlink"
	"ringfence.dev/ringfence/internal/guestproto"
)

// caPath is where most programs look for the certificates that they trust.
const caPath = "/etc/ssl/certs/ca-certificates.crt"

// caVariables are for those that come with certificates of their own.
var caVariables = []string{"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "NODE_EXTRA_CA_CERTS"}

// trust gives a new sandbox the operator's certificates. Restored ones have them.
func (e *Engine) trust(ctx context.Context, conn *guestlink.Conn) error {
	if len(e.CABundle) == 0 {
		return nil
	}
	f := guestproto.FileWrite{FilePath: guestproto.FilePath{Path: caPath}, Mode: 0o644}
	_, err := conn.WriteFile(ctx, f, bytes.NewReader(e.CABundle))
	return err
}
