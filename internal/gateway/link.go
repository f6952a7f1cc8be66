package gateway

import (
	"os"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"ringfence.dev/ringfence/internal/driver"
)

// link is the stack's end of a sandbox's link. gVisor's own (fdbased) keeps a thread
// per link in poll; this one waits in Go's poller, so that idle sandboxes cost none.
//
// Both ends are software on one host: nothing damages a frame on the way, so no
// checksum is computed or looked at.
type link struct {
	file       *os.File
	raw        syscall.RawConn
	dispatcher atomic.Pointer[stack.NetworkDispatcher]
}

var _ stack.LinkEndpoint = (*link)(nil)

func (l *link) MTU() uint32                             { return driver.LinkMTU }
func (l *link) SetMTU(uint32)                           {}
func (l *link) MaxHeaderLength() uint16                 { return header.EthernetMinimumSize }
func (l *link) LinkAddress() tcpip.LinkAddress          { return mac(driver.GatewayMAC) }
func (l *link) SetLinkAddress(tcpip.LinkAddress)        {}
func (l *link) IsAttached() bool                        { return l.dispatcher.Load() != nil }
func (l *link) Wait()                                   {}
func (l *link) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareEther }
func (l *link) Close()                                  {}
func (l *link) SetOnCloseAction(func())                 {}
func (l *link) ParseHeader(*stack.PacketBuffer) bool    { return true }
func (l *link) Capabilities() stack.LinkEndpointCapabilities {
	return stack.CapabilityRXChecksumOffload | stack.CapabilityTXChecksumOffload
}

func (l *link) Attach(d stack.NetworkDispatcher) {
	if d == nil {
		l.dispatcher.Store(nil)
		return
	}
	l.dispatcher.Store(&d)
}

func mac(a [6]byte) tcpip.LinkAddress { return tcpip.LinkAddress(a[:]) }

// AddHeader: there is one other end.
func (l *link) AddHeader(pkt *stack.PacketBuffer) {
	header.Ethernet(pkt.LinkHeader().Push(header.EthernetMinimumSize)).Encode(&header.EthernetFields{
		SrcAddr: mac(driver.GatewayMAC), DstAddr: mac(driver.GuestMAC), Type: pkt.NetworkProtocolNumber,
	})
}

// WritePackets sends frames. What does not fit is lost, as on any link.
func (l *link) WritePackets(pkts stack.PacketBufferList) (int, tcpip.Error) {
	list := pkts.AsSlice()
	for _, pkt := range list {
		l.write(pkt.AsSlices())
	}
	return len(list), nil
}

func (l *link) write(parts [][]byte) {
	_ = l.raw.Control(func(fd uintptr) { // an error: the link is closed
		for {
			if _, err := unix.Writev(int(fd), parts); err != unix.EINTR {
				return
			}
		}
	})
}

// writeIP sends an IP packet that was not made by the stack.
func (l *link) writeIP(proto tcpip.NetworkProtocolNumber, packet []byte) {
	eth := header.Ethernet(make([]byte, header.EthernetMinimumSize))
	eth.Encode(&header.EthernetFields{SrcAddr: mac(driver.GatewayMAC), DstAddr: mac(driver.GuestMAC), Type: proto})
	l.write([][]byte{eth, packet})
}

// deliver gives the stack an IP packet, which is copied.
func (l *link) deliver(proto tcpip.NetworkProtocolNumber, packet []byte) {
	d := l.dispatcher.Load()
	if d == nil {
		return
	}
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(packet)})
	(*d).DeliverNetworkPacket(proto, pkt)
	pkt.DecRef()
}
