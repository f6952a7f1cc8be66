// Package gateway is the network of sandboxes: a TCP/IP stack of its own (gVisor's)
// is the other end of each sandbox's link. Every flow is accepted here, decided by
// package egress, dialled anew from the host, and logged; names are resolved here
// alone. Nothing is routed: a packet of a sandbox ends in this package.
//
// What comes over a link is hostile. Everything that it can make grow has a bound.
package gateway

import (
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"ringfence.dev/ringfence/internal/egress"
)

// Limits bound what one sandbox can ask of the gateway. What is over one is refused
// and logged.
type Limits struct {
	Flows          int   // at a time
	FlowsPerSecond int   // new ones; twice that in one burst
	DNSPerSecond   int   // lookups; twice that in one burst
	BytesPerSecond int64 // each way; 0: as fast as it goes
}

// DefaultLimits are those of a sandbox unless the operator says otherwise.
var DefaultLimits = Limits{Flows: 1024, FlowsPerSecond: 250, DNSPerSecond: 200}

// Options configure a Gateway.
type Options struct {
	// Open lists closed networks that sandboxes may reach.
	Open []netip.Prefix
	// Resolvers are asked for names, in this order, as address:port. Empty: those of
	// /etc/resolv.conf, as it is at the time.
	Resolvers []string
	Limits    Limits // DefaultLimits for what is 0
	// Proxy is an HTTP or HTTPS proxy that the outside is reached through by name:
	// sandboxes find the gateway as theirs, and what names resolve to leads there as well.
	// nil: none.
	Proxy *url.URL
	// ProxyCA holds the certificates that an HTTPS proxy is known by; nil: the host's.
	ProxyCA *x509.CertPool
	Log     *slog.Logger
}

// Gateway serves the links of sandboxes. All methods may be called concurrently.
type Gateway struct {
	limits   Limits
	log      *slog.Logger
	site     *egress.Site
	resolver *resolver
	own      ownAddresses
	echo     echoes
	proxy    *url.URL
	proxyCA  *x509.CertPool

	// Denied counts refused flows and lookups of all sandboxes, since the start.
	Denied atomic.Int64

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu       sync.Mutex
	networks map[*Network]struct{} // guarded by mu
}

// New returns a gateway that serves nobody yet.
func New(o Options) *Gateway {
	if o.Limits.Flows == 0 {
		o.Limits.Flows = DefaultLimits.Flows
	}
	if o.Limits.FlowsPerSecond == 0 {
		o.Limits.FlowsPerSecond = DefaultLimits.FlowsPerSecond
	}
	if o.Limits.DNSPerSecond == 0 {
		o.Limits.DNSPerSecond = DefaultLimits.DNSPerSecond
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	g := &Gateway{limits: o.Limits, log: o.Log, proxy: o.Proxy, proxyCA: o.ProxyCA, networks: map[*Network]struct{}{}}
	g.site = &egress.Site{Open: o.Open, Own: g.own.has}
	g.resolver = newResolver(o.Resolvers)
	g.ctx, g.cancel = context.WithCancel(context.Background())
	g.wg.Go(g.expire)
	return g
}

// Site is what policies of this gateway have to be parsed with.
func (g *Gateway) Site() *egress.Site { return g.site }

// Search lists the domains in which sandboxes look up short names: the host's.
func (g *Gateway) Search() []string { return g.resolver.domains() }

// Attach serves a sandbox's link, which carries Ethernet frames, until the network
// is closed or the link ends. It takes the link over, and goes on with a history that
// no other network that is open has.
func (g *Gateway) Attach(id string, link *os.File, policy *egress.Policy, history *History) (*Network, error) {
	n, err := newNetwork(g, id, link, policy, history)
	if err != nil {
		return nil, errors.Join(err, link.Close())
	}
	g.mu.Lock()
	closed := g.ctx.Err() != nil
	if !closed {
		g.networks[n] = struct{}{}
	}
	g.mu.Unlock()
	if closed {
		n.Close()
		return nil, net.ErrClosed
	}
	return n, nil
}

// Close closes every network, which resets their flows.
func (g *Gateway) Close() error {
	g.cancel()
	for _, n := range g.all() {
		n.Close()
	}
	g.echo.close()
	g.wg.Wait()
	return nil
}

func (g *Gateway) all() []*Network {
	g.mu.Lock()
	defer g.mu.Unlock()
	list := make([]*Network, 0, len(g.networks))
	for n := range g.networks {
		list = append(list, n)
	}
	return list
}

func (g *Gateway) forget(n *Network) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.networks, n)
}

// expire ends flows that are idle.
func (g *Gateway) expire() {
	tick := time.NewTicker(5 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-g.ctx.Done():
			return
		case now := <-tick.C:
			for _, n := range g.all() {
				n.expire(now)
			}
		}
	}
}

// ownAddresses knows the addresses of the host, and looks again now and then.
type ownAddresses struct {
	mu   sync.Mutex
	read time.Time
	set  map[netip.Addr]struct{}
}

func (o *ownAddresses) has(a netip.Addr) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if time.Since(o.read) > 5*time.Second {
		if list, err := net.InterfaceAddrs(); err == nil {
			o.set = make(map[netip.Addr]struct{}, len(list))
			for _, entry := range list {
				if p, err := netip.ParsePrefix(entry.String()); err == nil {
					o.set[p.Addr().Unmap().WithZone("")] = struct{}{}
				}
			}
			o.read = time.Now()
		}
	}
	_, ok := o.set[a]
	return ok
}
