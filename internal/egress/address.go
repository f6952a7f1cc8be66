package egress

import "net/netip"

func prefixes(texts ...string) []netip.Prefix {
	list := make([]netip.Prefix, len(texts))
	for i, t := range texts {
		list[i] = netip.MustParsePrefix(t)
	}
	return list
}

// closedNetworks are never reached, whatever a policy says. Documentation networks
// are not among them: nothing routes them.
var closedNetworks = prefixes(
	"0.0.0.0/8",       // this host
	"10.0.0.0/8",      // private
	"100.64.0.0/10",   // carriers' private; some clouds' metadata
	"127.0.0.0/8",     // loopback
	"169.254.0.0/16",  // link-local; most clouds' metadata
	"172.16.0.0/12",   // private
	"192.0.0.0/24",    // protocols'; the sandbox's own network
	"192.88.99.0/24",  // 6to4 relays
	"192.168.0.0/16",  // private
	"198.18.0.0/15",   // benchmarks
	"224.0.0.0/4",     // multicast
	"240.0.0.0/4",     // reserved, and broadcast
	"::/96",           // unspecified, loopback, IPv4-compatible
	"64:ff9b:1::/48",  // local NAT64: where the IPv4 address is depends on its operator
	"100::/64",        // discard
	"2001::/23",       // protocols'; Teredo, ORCHID
	"5f00::/16",       // segment routing
	"fc00::/7",        // private
	"fe80::/10",       // link-local
	"fec0::/10",       // site-local
	"ff00::/8",        // multicast
	"::ffff:0:0:0/96", // IPv4-translated
)

var (
	nat64     = netip.MustParsePrefix("64:ff9b::/96")
	sixToFour = netip.MustParsePrefix("2002::/16")
)

// Site is what the operator of a host decided for all of its sandboxes.
type Site struct {
	// Open lists closed networks that sandboxes may reach like public ones.
	Open []netip.Prefix
	// Own reports whether an address is the host's; nil: none is known.
	Own func(netip.Addr) bool
}

// faces returns an address in its plain form, and the IPv4 addresses that it embeds
// and that something on the way may turn it into.
func faces(a netip.Addr) []netip.Addr {
	a = a.Unmap().WithZone("")
	list := []netip.Addr{a}
	if !a.Is6() {
		return list
	}
	b := a.As16()
	switch {
	case nat64.Contains(a):
		list = append(list, netip.AddrFrom4([4]byte(b[12:16])))
	case sixToFour.Contains(a):
		list = append(list, netip.AddrFrom4([4]byte(b[2:6])))
	}
	if (b[8] == 0 || b[8] == 2) && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe { // ISATAP
		list = append(list, netip.AddrFrom4([4]byte(b[12:16])))
	}
	return list
}

// Closed says why an address is out of reach of every policy; "" when it is not.
func (s *Site) Closed(a netip.Addr) Reason {
	if !a.IsValid() {
		return ReasonClosedNetwork
	}
	for _, f := range faces(a) {
		if s != nil && contains(s.Open, f) {
			continue
		}
		if s != nil && s.Own != nil && s.Own(f) {
			return ReasonHostAddress
		}
		if contains(closedNetworks, f) {
			return ReasonClosedNetwork
		}
	}
	return ""
}

func contains(list []netip.Prefix, a netip.Addr) bool {
	for _, p := range list {
		if p.Contains(a) {
			return true
		}
	}
	return false
}
