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

// newGateway returns the gateway that a configuration asks for.
func newGateway(c *config.Config, log *slog.Logger) (*gateway.Gateway, error) {
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
	limits := gateway.Limits{Flows: c.MaxFlows, FlowsPerSecond: c.MaxFlowRate, DNSPerSecond: c.MaxDNSRate, BytesPerSecond: c.MaxNetworkMB * 1e6}
	return gateway.New(gateway.Options{Open: open, Resolvers: resolvers, Limits: limits, Proxy: proxy, Log: log}), nil
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

// Attach serves the link of a sandbox.
func (g engineGateway) Attach(id string, link *os.File, policy *egress.Policy) (engine.Network, error) {
	n, err := g.Gateway.Attach(id, link, policy)
	if err != nil {
		return nil, err
	}
	return n, nil
}
