package driver

import (
	"net/netip"

	"ringfence.dev/ringfence"
)

// The network of a sandbox, as it sees it: one link, to the gateway. No two sandboxes
// share a link, so all have the same addresses, which a snapshot holds. They are
// taken from networks that nothing routes (RFC 7335, RFC 4193).
var (
	GuestIPv4   = netip.MustParseAddr("192.0.0.2")
	GatewayIPv4 = netip.MustParseAddr("192.0.0.1")
	GuestIPv6   = netip.MustParseAddr("fd72:6673:6e64::2")
	GatewayIPv6 = netip.MustParseAddr("fd72:6673:6e64::1")

	GuestMAC   = [6]byte{0x02, 0x72, 0x66, 0, 0, 2}
	GatewayMAC = [6]byte{0x02, 0x72, 0x66, 0, 0, 1}
)

// Sizes of that network.
const (
	GuestPrefix4 = 29
	GuestPrefix6 = 64
	// LinkMTU is as large as gVisor and a TAP device take: the cost of the gateway is
	// the number of packets.
	LinkMTU = 65520
)

// NoNetwork is the error of an instance whose driver gives it no network.
func NoNetwork(id string) error {
	return ringfence.Errorf(ringfence.CodeNotYetSupported, "sandbox %s has no network", id)
}
