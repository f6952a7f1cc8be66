package main

import (
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/config"
	"ringfence.dev/ringfence/internal/egress"
	"ringfence.dev/ringfence/internal/engine"
	"ringfence.dev/ringfence/internal/gateway"
)

// newGateway returns the gateway that a configuration asks for. ca is the certificates
// that sandboxes trust.
func newGateway(c *config.Config, ca []byte, log *slog.Logger) (*gateway.Gateway, error) {
	open, err := c.Open()
	if err != nil {
		return nil, err
	}
	resolvers, err := c.Resolvers()
	if err != nil {
		return nil, err
	}
	proxy, err := c.Proxy()
	if err != nil {
		return nil, err
	}
	var pool *x509.CertPool // of the host
	if len(ca) > 0 {
		if pool, err = x509.SystemCertPool(); err != nil {
			pool = x509.NewCertPool()
		}
		pool.AppendCertsFromPEM(ca)
	}
	limits := gateway.Limits{Flows: c.MaxFlows, FlowsPerSecond: c.MaxFlowRate, DNSPerSecond: c.MaxDNSRate, BytesPerSecond: c.MaxNetworkMB * 1e6}
	return gateway.New(gateway.Options{Open: open, Resolvers: resolvers, Limits: limits, Proxy: proxy, ProxyCA: pool, Log: log}), nil
}

// caBundle reads the certificates that sandboxes are to trust.
func caBundle(c *config.Config) ([]byte, error) {
	if c.CABundle == "" {
		return nil, nil
	}
	const most = 4 << 20
	raw, err := os.ReadFile(c.CABundle)
	if err == nil && (len(raw) > most || !x509.NewCertPool().AppendCertsFromPEM(raw)) {
		err = fmt.Errorf("%s holds no certificate in PEM, or more than %d MiB", c.CABundle, most>>20)
	}
	if err != nil {
		return nil, ringfence.Errorf(ringfence.CodeInvalidArgument, "cannot use ca_bundle: %w", err)
	}
	return raw, nil
}

// engineGateway is the gateway as the engine wants it.
type engineGateway struct{ *gateway.Gateway }

// NewHistory returns the history of a new sandbox.
func (engineGateway) NewHistory() engine.NetworkHistory { return new(gateway.History) }

// Attach serves the link of a sandbox.
func (g engineGateway) Attach(id string, link *os.File, policy *egress.Policy, history engine.NetworkHistory) (engine.Network, error) {
	n, err := g.Gateway.Attach(id, link, policy, history.(*gateway.History))
	if err != nil {
		return nil, err
	}
	return n, nil
}
