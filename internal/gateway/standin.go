package gateway

import (
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/miekg/dns"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/egress"
)

// Behind an upstream proxy it is the proxy that finds addresses, and the host's own
// resolvers may know none. So that programs which know of no proxy work all the same,
// a name that may be looked up gets an address that stands in for it in this sandbox
// alone; a connection to it goes through the proxy, to the name.

// standInFirst is the first of them, out of the network for benchmarks: nobody has
// an address there, and policies cannot name one.
var standInFirst = netip.MustParseAddr("198.18.0.1")

const (
	maxStandIns = 8192 // of a sandbox; one more takes the place of the oldest
	standInTTL  = 60
)

// standIns are the addresses that stand for names in one sandbox.
type standIns struct {
	mu     sync.Mutex
	byName map[string]int
	names  []string // by number
	next   int
}

// of returns the address that stands for a name.
func (s *standIns) of(name string) netip.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, ok := s.byName[name]
	if !ok {
		if s.byName == nil {
			s.byName = map[string]int{}
		}
		i = s.next
		s.next = (s.next + 1) % maxStandIns
		if i < len(s.names) {
			delete(s.byName, s.names[i])
			s.names[i] = name
		} else {
			s.names = append(s.names, name)
		}
		s.byName[name] = i
	}
	b := standInFirst.As4()
	n := int(b[2])<<8 | int(b[3]) + i
	b[2], b[3] = byte(n>>8), byte(n)
	return netip.AddrFrom4(b)
}

// name returns what an address stands for; "": nothing.
func (s *standIns) name(a netip.Addr) string {
	if !a.Is4() {
		return ""
	}
	b, first := a.As4(), standInFirst.As4()
	i := int(b[2])<<8 + int(b[3]) - int(first[2])<<8 - int(first[3])
	if b[0] != first[0] || b[1] != first[1] || i < 0 {
		return ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if i >= len(s.names) {
		return ""
	}
	return s.names[i]
}

// opened reports whether the operator opened the closed network of an address.
func (g *Gateway) opened(a netip.Addr) bool {
	return slices.ContainsFunc(g.site.Open, func(p netip.Prefix) bool { return p.Contains(a) })
}

// proxied decides how a name that the policy allows is reached behind an upstream
// proxy, by what the host's resolvers say about it: directly, where an answer lies in a
// network that the operator opened; not at all, where one lies in a closed network, or
// the name is one that only a neighbour of the proxy has; else through the proxy.
// known: the resolvers have an address.
func (n *Network) proxied(name string) (direct, known bool, d egress.Decision) {
	for _, kind := range []uint16{dns.TypeA, dns.TypeAAAA} {
		answer, err := n.resolve(dns.Question{Name: dns.Fqdn(name), Qtype: kind, Qclass: dns.ClassINET})
		if err != nil {
			continue // the proxy may know it all the same
		}
		for _, rr := range answer.Answer {
			a, ok := addressOf(rr)
			known = known || ok
			switch {
			case !ok:
			case n.policy.Load().Closed(a) != "":
				return false, known, egress.Decision{Reason: reasonAnswer}
			case n.g.opened(a):
				direct = true
			}
		}
	}
	if !direct && !strings.Contains(strings.Trim(name, "."), ".") {
		return false, known, egress.Decision{Reason: egress.ReasonClosedNetwork}
	}
	return direct, known, egress.Decision{Allow: true}
}

// standIn answers a lookup of an address with one that stands in for the name; false:
// the name is reached directly.
func (n *Network) standIn(name string, q dns.Question, reply *dns.Msg) (done bool, d egress.Decision) {
	direct, known, d := n.proxied(name)
	if direct || !d.Allow {
		return !direct, d
	}
	// Programs try names below the host's search domains on and on: such a name is there
	// when the host's own resolvers know it.
	if !known && slices.ContainsFunc(n.g.Search(), func(domain string) bool {
		return strings.HasSuffix(name, "."+strings.ToLower(strings.Trim(domain, ".")))
	}) {
		reply.Rcode = dns.RcodeNameError
		return true, d
	}
	if q.Qtype == dns.TypeA {
		h := dns.RR_Header{Name: q.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: standInTTL}
		reply.Answer = append(reply.Answer, &dns.A{Hdr: h, A: n.standIns.of(name).AsSlice()})
	}
	return true, d
}

// standInName returns the name that an address stands in for; "": none.
func (n *Network) standInName(a netip.Addr) string {
	if n.g.proxy == nil {
		return ""
	}
	return n.standIns.name(a)
}

// acceptStandIn connects a flow to an address that stands in for a name.
func (n *Network) acceptStandIn(accept func() (*inside, error), refuse func(), name string, port uint16) {
	if port == 80 {
		// Proxies take plain HTTP request by request, and seldom as a tunnel.
		if in, err := accept(); err == nil {
			n.serveProxy(in, name)
		}
		return
	}
	f := egress.Flow{Proto: egress.TCP, Port: port, Names: []string{name}}
	d := n.admitNew()
	if d.Allow {
		d = n.policy.Load().DecideProxied(name, port)
	}
	if !d.Allow {
		n.note("tcp", name, f.Addr, port, ringfence.VerdictDenied, d)
		refuse()
		return
	}
	out, err := n.tunnel(name, port)
	if err != nil {
		n.note("tcp", name, f.Addr, port, ringfence.VerdictFailed, egress.Decision{Reason: reasonUnreachable, Rule: d.Rule})
		refuse()
		return
	}
	in, err := accept()
	if err != nil {
		reset(out)
		return
	}
	if fl, ok := n.admitProxied(f, d, name, func() {
		in.ep.Abort()
		reset(out)
	}); ok {
		fl.relay(in, out)
	}
}
