package gateway

import (
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"ringfence.dev/ringfence/internal/driver"
)

// ResetFormer makes the guest see the end of a TCP connection that another network
// carried, of another daemon say. What the guest's next segment is to be numbered is
// not known here, so it is made to send one: it answers a segment that cannot be of the
// connection (RFC 9293 §3.10.7.4), and the stack, which does not know the connection,
// answers that with a reset. One that the stack does know is not harmed.
func (n *Network) ResetFormer(local, remote netip.AddrPort) {
	switch local.Addr() {
	case driver.GuestIPv4, driver.GuestIPv6:
	default:
		return
	}
	// One of these is out of any window.
	for _, seq := range []uint32{0, 1 << 31} {
		n.sendTCP(remote, local, header.TCPFields{
			SrcPort: remote.Port(), DstPort: local.Port(), SeqNum: seq, AckNum: seq,
			DataOffset: header.TCPMinimumSize, Flags: header.TCPFlagAck, WindowSize: 1,
		})
	}
}

// sendTCP sends the guest a segment that is not the stack's. Nobody looks at its checksum.
func (n *Network) sendTCP(from, to netip.AddrPort, fields header.TCPFields) {
	segment := make([]byte, header.TCPMinimumSize)
	header.TCP(segment).Encode(&fields)
	if from.Addr().Is4() {
		n.sendIPv4(from.Addr(), header.TCPProtocolNumber, segment)
		return
	}
	n.sendIPv6(from.Addr(), header.TCPProtocolNumber, segment)
}

func (n *Network) sendIPv4(from netip.Addr, proto tcpip.TransportProtocolNumber, payload []byte) {
	packet := make([]byte, header.IPv4MinimumSize, header.IPv4MinimumSize+len(payload))
	ip := header.IPv4(packet)
	ip.Encode(&header.IPv4Fields{
		TotalLength: uint16(len(packet) + len(payload)), TTL: 64, Protocol: uint8(proto),
		SrcAddr: tcpip.AddrFrom4(from.As4()), DstAddr: tcpip.AddrFrom4(driver.GuestIPv4.As4()),
	})
	ip.SetChecksum(^ip.CalculateChecksum())
	n.link.writeIP(header.IPv4ProtocolNumber, append(packet, payload...))
}

func (n *Network) sendIPv6(from netip.Addr, proto tcpip.TransportProtocolNumber, payload []byte) {
	packet := make([]byte, header.IPv6MinimumSize, header.IPv6MinimumSize+len(payload))
	header.IPv6(packet).Encode(&header.IPv6Fields{
		PayloadLength: uint16(len(payload)), TransportProtocol: proto, HopLimit: 64,
		SrcAddr: tcpip.AddrFrom16(from.As16()), DstAddr: tcpip.AddrFrom16(driver.GuestIPv6.As16()),
	})
	n.link.writeIP(header.IPv6ProtocolNumber, append(packet, payload...))
}
