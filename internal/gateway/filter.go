package gateway

import (
	"encoding/binary"
	"net/netip"
	"strconv"

	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/driver"
	"ringfence.dev/ringfence/internal/egress"
)

// receive looks at a frame of the guest before the stack does. What passes is an
// ordinary packet from the sandbox's own address to one other host; echo requests
// are answered here.
func (n *Network) receive(frame []byte) {
	if len(frame) < header.EthernetMinimumSize {
		return
	}
	packet := frame[header.EthernetMinimumSize:]
	switch proto := header.Ethernet(frame).Type(); proto {
	case arp.ProtocolNumber:
		n.link.deliver(proto, packet)
	case header.IPv4ProtocolNumber:
		if n.passIPv4(packet) {
			n.link.deliver(proto, packet)
		}
	case header.IPv6ProtocolNumber:
		if n.passIPv6(packet) {
			n.link.deliver(proto, packet)
		}
	}
}

func (n *Network) drop(reason egress.Reason, proto uint8, dst netip.Addr) bool {
	n.note(strconv.Itoa(int(proto)), "", dst, 0, ringfence.VerdictDenied, egress.Decision{Reason: reason})
	return false
}

func (n *Network) passIPv4(b []byte) bool {
	ip := header.IPv4(b)
	if !ip.IsValid(len(b)) {
		return false
	}
	src, dst := netip.AddrFrom4(ip.SourceAddress().As4()), netip.AddrFrom4(ip.DestinationAddress().As4())
	switch {
	case dst.IsMulticast() || dst == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		if ip.Protocol() == 2 { // IGMP: every stack sends it by itself
			return false
		}
		return n.drop(reasonMulticast, ip.Protocol(), dst)
	case src != driver.GuestIPv4:
		return n.drop(reasonSource, ip.Protocol(), dst)
	case ip.HeaderLength() > header.IPv4MinimumSize:
		return n.drop(reasonOptions, ip.Protocol(), dst)
	}
	fragment := ip.More() || ip.FragmentOffset() != 0
	switch ip.Protocol() {
	case uint8(header.TCPProtocolNumber), uint8(header.UDPProtocolNumber):
		return true
	case uint8(header.ICMPv4ProtocolNumber):
		msg := header.ICMPv4(ip.Payload())
		if fragment || dst == driver.GatewayIPv4 {
			return true
		}
		if len(msg) >= header.ICMPv4MinimumSize && msg.Type() == header.ICMPv4Echo && msg.Code() == 0 {
			n.echoRequest(dst, binary.BigEndian.Uint16(msg[4:]), binary.BigEndian.Uint16(msg[6:]), msg[8:], b)
		}
		return false // other messages about flows that end here say nothing to anybody
	}
	return n.drop(reasonProtocol, ip.Protocol(), dst)
}

func (n *Network) passIPv6(b []byte) bool {
	ip := header.IPv6(b)
	if !ip.IsValid(len(b)) {
		return false
	}
	src, dst := netip.AddrFrom16(ip.SourceAddress().As16()), netip.AddrFrom16(ip.DestinationAddress().As16())
	next := ip.NextHeader()
	if next == uint8(header.ICMPv6ProtocolNumber) {
		msg := header.ICMPv6(ip.Payload())
		if len(msg) < header.ICMPv6MinimumSize {
			return false
		}
		switch msg.Type() {
		case header.ICMPv6NeighborSolicit, header.ICMPv6NeighborAdvert:
			return true
		case header.ICMPv6EchoRequest:
			switch {
			case dst.IsMulticast():
				return n.drop(reasonMulticast, next, dst)
			case src != driver.GuestIPv6:
				return n.drop(reasonSource, next, dst)
			case dst == driver.GatewayIPv6:
				return true
			case len(msg) >= header.ICMPv6EchoMinimumSize:
				n.echoRequest(dst, binary.BigEndian.Uint16(msg[4:]), binary.BigEndian.Uint16(msg[6:]), msg[8:], b)
			}
		}
		return false // router advertisements and the like among them
	}
	switch {
	case dst.IsMulticast():
		if next == 0 { // MLD comes in a hop-by-hop header: every stack sends it by itself
			return false
		}
		return n.drop(reasonMulticast, next, dst)
	case src != driver.GuestIPv6:
		return n.drop(reasonSource, next, dst)
	}
	switch next {
	case uint8(header.TCPProtocolNumber), uint8(header.UDPProtocolNumber):
		return true
	case uint8(header.IPv6FragmentExtHdrIdentifier):
		// The first fragment says what it is of; nothing is chained.
		p := ip.Payload()
		return len(p) >= 8 && (p[0] == uint8(header.TCPProtocolNumber) || p[0] == uint8(header.UDPProtocolNumber)) || n.drop(reasonOptions, next, dst)
	case 0, uint8(header.IPv6RoutingExtHdrIdentifier), uint8(header.IPv6DestinationOptionsExtHdrIdentifier):
		return n.drop(reasonOptions, next, dst)
	}
	return n.drop(reasonProtocol, next, dst)
}
