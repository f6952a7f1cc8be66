package gateway

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/driver"
	"ringfence.dev/ringfence/internal/egress"
)

const (
	dialTimeout   = 15 * time.Second
	handshakeTime = 10 * time.Second
	dnsPort       = 53
)

func addrOf(a tcpip.Address) netip.Addr {
	ip, _ := netip.AddrFromSlice(a.AsSlice())
	return ip
}

func isGateway(a netip.Addr) bool { return a == driver.GatewayIPv4 || a == driver.GatewayIPv6 }

// acceptTCP is called for each SYN that belongs to no flow, in a goroutine of its own.
func (n *Network) acceptTCP(r *tcp.ForwarderRequest) {
	if !n.enter() {
		r.Complete(true)
		return
	}
	defer n.wg.Done()
	id := r.ID()
	addr, port := addrOf(id.LocalAddress), id.LocalPort
	if isGateway(addr) {
		if port == proxyPort && n.g.proxy != nil {
			if in, err := n.accept(r); err == nil {
				n.serveProxy(in, "")
			}
			return
		}
		if port != dnsPort {
			n.note("tcp", "", addr, port, ringfence.VerdictDenied, egress.Decision{Reason: egress.ReasonClosedNetwork})
			r.Complete(true)
			return
		}
		n.acceptDNS(r)
		return
	}
	if name := n.standInName(addr); name != "" && port != dnsPort {
		n.acceptStandIn(func() (*inside, error) { return n.accept(r) }, func() { r.Complete(true) }, name, port)
		return
	}
	f, d, ok := n.begin(egress.TCP, addr, port)
	if !ok {
		r.Complete(true)
		return
	}
	if port == dnsPort { // whoever is asked: the gateway answers
		n.acceptDNS(r)
		return
	}
	outside, err := n.dial(addr, port)
	if err != nil {
		n.note("tcp", first(f.Names), addr, port, ringfence.VerdictFailed, egress.Decision{Reason: reasonUnreachable, Rule: d.Rule})
		r.Complete(true)
		return
	}
	inside, err := n.accept(r)
	if err != nil {
		reset(outside)
		return
	}
	fl, ok := n.admit(f, d, idleTCP, func() {
		inside.ep.Abort()
		reset(outside)
	})
	if !ok {
		return
	}
	fl.relay(inside, outside)
}

func first(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return names[0]
}

func (n *Network) dial(addr netip.Addr, port uint16) (*net.TCPConn, error) {
	ctx, cancel := context.WithTimeout(n.ctx, dialTimeout)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", netip.AddrPortFrom(addr.Unmap(), port).String())
	if err != nil {
		return nil, err
	}
	return conn.(*net.TCPConn), nil
}

// outside is the other side of a flow: a TCP connection, or TLS in one where the way
// leads through an HTTPS proxy.
type outside interface {
	net.Conn
	CloseWrite() error
}

// reset closes a connection so that its other side sees a reset.
func reset(c outside) {
	tcp, ok := c.(*net.TCPConn)
	if t, wrapped := c.(*tls.Conn); wrapped {
		tcp, ok = t.NetConn().(*net.TCPConn)
	}
	if ok {
		_ = tcp.SetLinger(0) // it may be closed already
		tcp.Close()
	}
}

// inside is the guest's side of a flow.
type inside struct {
	ep tcpip.Endpoint
	wq *waiter.Queue
}

// accept completes the handshake with the guest.
func (n *Network) accept(r *tcp.ForwarderRequest) (*inside, error) {
	in := &inside{wq: new(waiter.Queue)}
	// The stack waits for the guest's part, two minutes if need be, unless it is woken.
	ctx, cancel := context.WithTimeout(n.ctx, handshakeTime)
	finished := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		for tick := time.Tick(10 * time.Millisecond); ; {
			in.wq.Notify(waiter.WritableEvents)
			select {
			case <-tick:
			case <-finished:
				return
			}
		}
	})
	ep, err := r.CreateEndpoint(in.wq)
	stop()
	close(finished)
	cancel()
	if err != nil {
		r.Complete(true)
		return nil, &tcpipError{err}
	}
	r.Complete(false)
	in.ep = ep
	n.mu.Lock()
	share := max(bufferLeast, min(bufferMost, bufferTotal/(len(n.open)+1)))
	n.mu.Unlock()
	ep.SocketOptions().SetReceiveBufferSize(int64(share), true)
	ep.SocketOptions().SetSendBufferSize(int64(share), true)
	ep.SocketOptions().SetKeepAlive(true)
	return in, nil
}

type tcpipError struct{ err tcpip.Error }

func (e *tcpipError) Error() string { return e.err.String() }

// acceptDNS serves lookups over TCP.
func (n *Network) acceptDNS(r *tcp.ForwarderRequest) {
	leave, ok := n.session()
	if !ok {
		r.Complete(true)
		return
	}
	defer leave()
	in, err := n.accept(r)
	if err != nil {
		return
	}
	n.serveDNSOver(in)
}
