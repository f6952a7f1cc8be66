package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"ringfence.dev/ringfence/internal/driver"
	"ringfence.dev/ringfence/internal/egress"
)

const nic tcpip.NICID = 1

// Network is the network of one sandbox.
type Network struct {
	g     *Gateway
	id    string
	link  *link
	stack *stack.Stack

	policy atomic.Pointer[egress.Policy]
	cache  cache
	*History

	newFlows  *rate.Limiter
	lookups   *rate.Limiter
	up, down  *rate.Limiter // nil: as fast as it goes
	packets   *rate.Limiter
	asking    chan struct{} // a place per lookup in progress
	asked     atomic.Int64  // such ports and connections
	closeOnce sync.Once
	ctx       context.Context
	cancel    context.CancelFunc
	wg        sync.WaitGroup // flows and the reader

	mu   sync.Mutex
	open map[*flow]struct{} // guarded by mu
	echo map[echoKey]*flow  // guarded by mu; also in open
}

// Bounds of what one sandbox can make the gateway do or hold.
const (
	packetRate  = 150_000 // frames a second; one more waits
	maxLookups  = 64      // at a time
	maxSessions = 512     // ports and connections from which names are looked up
	maxDialing  = 512     // flows that are being dialled
	bufferLeast = 64 << 10
	bufferMost  = 1 << 20
	bufferTotal = 16 << 20 // of each direction, shared by the flows
)

func newNetwork(g *Gateway, id string, file *os.File, policy *egress.Policy, history *History) (*Network, error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	n := &Network{
		g: g, id: id, link: &link{file: file, raw: raw}, History: history,
		newFlows: rate.NewLimiter(rate.Limit(g.limits.FlowsPerSecond), 2*g.limits.FlowsPerSecond),
		lookups:  rate.NewLimiter(rate.Limit(g.limits.DNSPerSecond), 2*g.limits.DNSPerSecond),
		packets:  rate.NewLimiter(packetRate, packetRate/10),
		asking:   make(chan struct{}, maxLookups),
		open:     map[*flow]struct{}{},
		echo:     map[echoKey]*flow{},
	}
	if b := g.limits.BytesPerSecond; b > 0 {
		n.up, n.down = rate.NewLimiter(rate.Limit(b), copyBuffer), rate.NewLimiter(rate.Limit(b), copyBuffer)
	}
	n.policy.Store(policy)
	n.ctx, n.cancel = context.WithCancel(g.ctx)
	if err := n.makeStack(); err != nil {
		n.cancel()
		return nil, err
	}
	n.wg.Go(n.read)
	return n, nil
}

func (n *Network) makeStack() error {
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, ipv6.NewProtocol, arp.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4, icmp.NewProtocol6},
		HandleLocal:        false,
	})
	n.stack = s
	sizes := tcpip.TCPReceiveBufferSizeRangeOption{Min: 4 << 10, Default: 512 << 10, Max: bufferMost}
	sends := tcpip.TCPSendBufferSizeRangeOption{Min: 4 << 10, Default: 512 << 10, Max: bufferMost}
	sack := tcpip.TCPSACKEnabled(true)
	noDelay := tcpip.TCPDelayEnabled(false)
	timeWait, finWait := tcpip.TCPTimeWaitTimeoutOption(5*time.Second), tcpip.TCPLingerTimeoutOption(20*time.Second)
	fail := func(err tcpip.Error) error {
		s.Destroy()
		return fmt.Errorf("cannot make the network stack of a sandbox: %s", err)
	}
	for _, o := range []tcpip.SettableTransportProtocolOption{&sizes, &sends, &sack, &noDelay, &timeWait, &finWait} {
		if err := s.SetTransportProtocolOption(tcp.ProtocolNumber, o); err != nil {
			return fail(err)
		}
	}
	if err := s.CreateNIC(nic, n.link); err != nil {
		return fail(err)
	}
	for _, a := range []struct {
		proto tcpip.NetworkProtocolNumber
		addr  netip.Addr
		bits  int
	}{{ipv4.ProtocolNumber, driver.GatewayIPv4, driver.GuestPrefix4}, {ipv6.ProtocolNumber, driver.GatewayIPv6, driver.GuestPrefix6}} {
		pa := tcpip.ProtocolAddress{Protocol: a.proto, AddressWithPrefix: tcpip.AddressWithPrefix{Address: tcpip.AddrFromSlice(a.addr.AsSlice()), PrefixLen: a.bits}}
		if err := s.AddProtocolAddress(nic, pa, stack.AddressProperties{}); err != nil {
			return fail(err)
		}
	}
	if err := s.SetPromiscuousMode(nic, true); err != nil {
		return fail(err)
	}
	if err := s.SetSpoofing(nic, true); err != nil {
		return fail(err)
	}
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: nic}, {Destination: header.IPv6EmptySubnet, NIC: nic}})
	s.SetTransportProtocolHandler(tcp.ProtocolNumber, tcp.NewForwarder(s, 0, maxDialing, n.acceptTCP).HandlePacket)
	s.SetTransportProtocolHandler(udp.ProtocolNumber, udp.NewForwarder(s, n.acceptUDP).HandlePacket)
	return nil
}

// read takes frames until the link is closed or ends.
func (n *Network) read() {
	frame := make([]byte, driver.LinkMTU+header.EthernetMinimumSize)
	for {
		size, err := n.link.file.Read(frame)
		if err != nil {
			if n.ctx.Err() == nil && !errors.Is(err, os.ErrClosed) {
				n.g.log.Debug("the link of a sandbox ended", "sandbox", n.id, "error", err)
			}
			return
		}
		// A flood waits here; what does not fit into its own link is lost there.
		if !n.packets.Allow() && n.packets.Wait(n.ctx) != nil {
			return
		}
		n.receive(frame[:size])
	}
}

// Close resets every flow, tells their other sides, and closes the link.
func (n *Network) Close() {
	n.closeOnce.Do(func() {
		n.cancel()
		n.cutAll("")
		// What the stack has to say to the guest is said; the link can go.
		n.link.file.Close()
		n.g.forget(n)
	})
	n.wg.Wait()
	n.stack.Destroy()
}

// enter counts a goroutine that Close waits for; false: the network is closed.
func (n *Network) enter() bool {
	n.mu.Lock() // Close takes it after it has cancelled, and before it waits
	defer n.mu.Unlock()
	if n.ctx.Err() != nil {
		return false
	}
	n.wg.Add(1)
	return true
}

// Reset cuts every flow, on both sides.
func (n *Network) Reset() { n.cutAll(reasonPolicy) }

// SetPolicy puts another policy in force: for new flows and lookups at once, and
// flows that it denies are cut.
func (n *Network) SetPolicy(p *egress.Policy) {
	n.policy.Store(p)
	n.mu.Lock()
	list := make([]*flow, 0, len(n.open))
	for f := range n.open {
		list = append(list, f)
	}
	n.mu.Unlock()
	for _, f := range list {
		if d := f.decideAgain(); !d.Allow {
			f.cut(d)
		}
	}
}

func (n *Network) cutAll(reason egress.Reason) {
	n.mu.Lock()
	list := make([]*flow, 0, len(n.open))
	for f := range n.open {
		list = append(list, f)
	}
	n.mu.Unlock()
	for _, f := range list {
		f.cut(egress.Decision{Reason: reason})
	}
}

// expire ends flows that are idle.
func (n *Network) expire(now time.Time) {
	n.mu.Lock()
	var old []*flow
	for f := range n.open {
		if f.idle(now) {
			old = append(old, f)
		}
	}
	n.mu.Unlock()
	for _, f := range old {
		f.cut(egress.Decision{Allow: true})
	}
}
