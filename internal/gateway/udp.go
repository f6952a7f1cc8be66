package gateway

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/egress"
)

// acceptUDP is called for each datagram that belongs to no flow, by the reader of
// the link. false makes the stack answer that the port cannot be reached.
func (n *Network) acceptUDP(r *udp.ForwarderRequest) bool {
	id := r.ID()
	addr, port := addrOf(id.LocalAddress), id.LocalPort
	if isGateway(addr) {
		if port == dnsPort {
			return n.acceptLookups(r)
		}
		n.note("udp", "", addr, port, ringfence.VerdictDenied, egress.Decision{Reason: egress.ReasonClosedNetwork})
		return false
	}
	f, d, ok := n.begin(egress.UDP, addr, port)
	if !ok {
		return false
	}
	if port == dnsPort { // whoever is asked: the gateway answers
		return n.acceptLookups(r)
	}
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(f.Addr, port)))
	if err != nil { // no route, say: it does not wait for anybody
		n.note("udp", first(f.Names), addr, port, ringfence.VerdictFailed, egress.Decision{Reason: reasonUnreachable, Rule: d.Rule})
		return false
	}
	return n.acceptDatagrams(r, func(in *inside) {
		fl, ok := n.admit(f, d, idleUDP, func() {
			conn.Close()
			in.ep.Close()
		})
		if ok {
			fl.relayDatagrams(in, conn)
		}
	})
}

func (n *Network) acceptLookups(r *udp.ForwarderRequest) bool {
	leave, ok := n.session()
	if !ok {
		return false
	}
	ok = n.acceptDatagrams(r, func(in *inside) {
		defer leave()
		n.serveDatagrams(in)
	})
	if !ok {
		leave()
	}
	return ok
}

// acceptDatagrams makes the guest's side of a flow and serves it in a goroutine.
func (n *Network) acceptDatagrams(r *udp.ForwarderRequest, serve func(*inside)) bool {
	if !n.enter() {
		return false
	}
	in := &inside{wq: new(waiter.Queue)}
	ep, err := r.CreateEndpoint(in.wq)
	if err != nil {
		n.wg.Done()
		return false
	}
	in.ep = ep
	ep.SocketOptions().SetReceiveBufferSize(256<<10, true)
	go func() {
		defer n.wg.Done()
		defer ep.Close()
		serve(in)
	}()
	return true
}

// relayDatagrams moves datagrams both ways until the flow is idle or cut.
func (f *flow) relayDatagrams(in *inside, out *net.UDPConn) {
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			buf, size, err := in.read(f.done)
			if err != nil {
				return
			}
			if wait(f, f.n.up, size) == nil {
				_, err = out.Write((*buf)[:size])
			}
			buffers.Put(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			f.count(&f.sent, size)
			f.n.sent.Add(int64(size))
		}
	})
	refused := f.datagramsDown(in, out)
	f.cutDatagrams(refused)
	wg.Wait()
}

func (f *flow) cutDatagrams(refused bool) {
	f.finish(func(row *ringfence.NetworkFlow) {
		if refused && f.recv.Load() == 0 {
			row.Verdict, row.Reason = ringfence.VerdictFailed, string(reasonUnreachable)
		}
	})
	f.reset()
}

func (f *flow) count(to interface{ Add(int64) int64 }, size int) {
	to.Add(int64(size))
	f.touch()
}

// datagramsDown returns when the flow has ended, and whether the other side said
// that nobody listens there.
func (f *flow) datagramsDown(in *inside, out *net.UDPConn) (refused bool) {
	raw, err := out.SyscallConn()
	if err != nil {
		return false
	}
	for {
		var buf *[]byte
		var size int
		var rerr error
		err := raw.Read(func(fd uintptr) bool {
			buf = buffers.Get().(*[]byte)
			size, rerr = ignoreEINTR(func() (int, error) { return unix.Read(int(fd), *buf) })
			if rerr != nil {
				buffers.Put(buf)
				buf = nil
			}
			return !errors.Is(rerr, unix.EAGAIN)
		})
		if err != nil {
			return false
		}
		if rerr != nil {
			return errors.Is(rerr, unix.ECONNREFUSED)
		}
		if wait(f, f.n.down, size) == nil {
			var r bytes.Reader
			r.Reset((*buf)[:size])
			_, terr := in.ep.Write(&r, tcpip.WriteOptions{})
			if _, full := terr.(*tcpip.ErrWouldBlock); terr != nil && !full {
				buffers.Put(buf)
				return false
			}
		}
		buffers.Put(buf)
		f.count(&f.recv, size)
		f.n.received.Add(int64(size))
	}
}
