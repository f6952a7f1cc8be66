package gateway

import (
	"encoding/binary"
	"net"
	"net/netip"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/driver"
	"ringfence.dev/ringfence/internal/egress"
)

// echoKey is what makes echo requests of one ping a flow.
type echoKey struct {
	addr netip.Addr
	id   uint16
}

// echoes sends echo requests of all sandboxes from the host and finds whose the
// answers are.
type echoes struct {
	mu      sync.Mutex
	conn    [2]*net.IPConn // IPv4, IPv6; made when first needed
	closed  bool
	next    uint32
	waiting map[uint32]echoRequest // by the id and sequence that went out
	wg      sync.WaitGroup
}

type echoRequest struct {
	n       *Network
	flow    *flow
	dst     netip.Addr
	id, seq uint16
	at      time.Time
}

const maxEchoes = 4096 // that wait for an answer, of all sandboxes

// echoRequest decides about an echo request and sends it on.
func (n *Network) echoRequest(dst netip.Addr, id, seq uint16, payload, packet []byte) {
	key := echoKey{dst, id}
	n.mu.Lock()
	f := n.echo[key]
	n.mu.Unlock()
	if f == nil {
		addr, d, ok := n.begin(egress.ICMP, dst, 0)
		if !ok {
			n.prohibited(dst, packet)
			return
		}
		f, ok = n.admit(addr, d, idleEcho, func() {
			n.mu.Lock()
			delete(n.echo, key)
			n.mu.Unlock()
		})
		if !ok {
			n.prohibited(dst, packet)
			return
		}
		n.mu.Lock()
		n.echo[key] = f
		n.mu.Unlock()
	}
	f.count(&f.sent, len(payload))
	if err := n.g.echo.send(echoRequest{n, f, dst, id, seq, time.Now()}, payload); err != nil {
		f.finish(func(row *ringfence.NetworkFlow) {
			row.Verdict, row.Reason = ringfence.VerdictFailed, string(reasonUnreachable)
		})
		f.reset()
		n.prohibited(dst, packet)
	}
}

func (e *echoes) send(r echoRequest, payload []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	i, network, kind := 0, "ip4:icmp", byte(header.ICMPv4Echo)
	if r.dst.Is6() {
		i, network, kind = 1, "ip6:ipv6-icmp", byte(header.ICMPv6EchoRequest)
	}
	if e.closed {
		return net.ErrClosed
	}
	if e.conn[i] == nil {
		c, err := net.ListenPacket(network, map[int]string{0: "0.0.0.0", 1: "::"}[i])
		if err != nil {
			return err
		}
		e.conn[i] = c.(*net.IPConn)
		e.wg.Go(func() { e.receive(e.conn[i], i == 1) })
	}
	if e.waiting == nil {
		e.waiting = map[uint32]echoRequest{}
	}
	if len(e.waiting) >= maxEchoes {
		for k, w := range e.waiting {
			if time.Since(w.at) > 5*time.Second {
				delete(e.waiting, k)
			}
		}
		if len(e.waiting) >= maxEchoes {
			return nil // lost, as it may be on any way
		}
	}
	e.next++
	e.waiting[e.next] = r
	msg := make([]byte, 8+len(payload))
	msg[0] = kind
	binary.BigEndian.PutUint32(msg[4:], e.next)
	copy(msg[8:], payload)
	if i == 0 { // the host's kernel computes that of IPv6
		binary.BigEndian.PutUint16(msg[2:], ^checksum.Checksum(msg, 0))
	}
	_, err := e.conn[i].WriteToIP(msg, &net.IPAddr{IP: r.dst.AsSlice()})
	return err
}

func (e *echoes) receive(c *net.IPConn, six bool) {
	buf := make([]byte, 1<<16)
	for {
		size, from, err := c.ReadFromIP(buf)
		if err != nil {
			return
		}
		reply := byte(header.ICMPv4EchoReply)
		if six {
			reply = byte(header.ICMPv6EchoReply)
		}
		if size < 8 || buf[0] != reply {
			continue
		}
		src, _ := netip.AddrFromSlice(from.IP)
		key := binary.BigEndian.Uint32(buf[4:])
		e.mu.Lock()
		r, ok := e.waiting[key]
		if ok = ok && r.dst == src.Unmap(); ok {
			delete(e.waiting, key)
		}
		e.mu.Unlock()
		if ok && !isClosed(r.flow.done) {
			r.flow.count(&r.flow.recv, size-8)
			r.n.echoReply(r, buf[8:size])
		}
	}
}

func (e *echoes) close() {
	e.mu.Lock()
	e.closed = true
	for _, c := range e.conn {
		if c != nil {
			c.Close()
		}
	}
	e.mu.Unlock()
	e.wg.Wait()
}

func (n *Network) echoReply(r echoRequest, payload []byte) {
	msg := make([]byte, 8+len(payload))
	msg[0] = byte(header.ICMPv4EchoReply)
	if r.dst.Is6() {
		msg[0] = byte(header.ICMPv6EchoReply)
	}
	binary.BigEndian.PutUint16(msg[4:], r.id)
	binary.BigEndian.PutUint16(msg[6:], r.seq)
	copy(msg[8:], payload)
	n.sendICMP(r.dst, msg)
}

// prohibited answers packet, which was sent to dst: it may not pass (RFC 1812
// §5.2.7.1, RFC 4443 §3.1).
func (n *Network) prohibited(dst netip.Addr, packet []byte) {
	msg := make([]byte, 8, 8+len(packet))
	most := 548
	if dst.Is4() {
		msg[0], msg[1] = byte(header.ICMPv4DstUnreachable), 13
	} else {
		msg[0], msg[1] = byte(header.ICMPv6DstUnreachable), 1
		most = 1232
	}
	n.sendICMP(dst, append(msg, packet[:min(len(packet), most)]...))
}

// sendICMP sends the guest a message from src, whose checksum is put in.
func (n *Network) sendICMP(src netip.Addr, msg []byte) {
	if src.Is4() {
		header.ICMPv4(msg).SetChecksum(^checksum.Checksum(msg, 0))
		n.sendIPv4(src, header.ICMPv4ProtocolNumber, msg)
		return
	}
	from, to := tcpip.AddrFrom16(src.As16()), tcpip.AddrFrom16(driver.GuestIPv6.As16())
	header.ICMPv6(msg).SetChecksum(header.ICMPv6Checksum(header.ICMPv6ChecksumParams{Header: msg, Src: from, Dst: to}))
	n.sendIPv6(src, header.ICMPv6ProtocolNumber, msg)
}
