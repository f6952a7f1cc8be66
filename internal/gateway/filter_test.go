package gateway

import (
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/driver"
	"ringfence.dev/ringfence/internal/egress"
)

// guest is a sandbox's end of a link: it sends whatever frames it likes.
type guest struct {
	t    *testing.T
	file *os.File
	n    *Network
	mac  [6]byte
}

func newGuest(t *testing.T, policy *egress.Policy) *guest {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	g := New(Options{Resolvers: []string{"127.0.0.1:1"}, Log: slog.New(slog.DiscardHandler)})
	t.Cleanup(func() { g.Close() })
	n, err := g.Attach("sandbox", os.NewFile(uintptr(fds[0]), "link"), policy, new(History))
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fds[1]), "guest")
	t.Cleanup(func() { file.Close() })
	return &guest{t, file, n, driver.GuestMAC}
}

func (g *guest) send(proto tcpip.NetworkProtocolNumber, packet []byte) {
	g.t.Helper()
	frame := make([]byte, header.EthernetMinimumSize, header.EthernetMinimumSize+len(packet))
	header.Ethernet(frame).Encode(&header.EthernetFields{SrcAddr: mac(g.mac), DstAddr: mac(driver.GatewayMAC), Type: proto})
	if _, err := g.file.Write(append(frame, packet...)); err != nil {
		g.t.Fatal(err)
	}
}

// receive returns the next IP packet, nil when none comes in time.
func (g *guest) receive(within time.Duration) []byte {
	g.t.Helper()
	if err := g.file.SetReadDeadline(time.Now().Add(within)); err != nil {
		g.t.Fatal(err)
	}
	buf := make([]byte, 1<<16)
	n, err := g.file.Read(buf)
	if err != nil {
		return nil
	}
	return buf[header.EthernetMinimumSize:n]
}

func packet4(src, dst netip.Addr, proto uint8, options, payload []byte) []byte {
	b := make([]byte, header.IPv4MinimumSize+len(options), header.IPv4MinimumSize+len(options)+len(payload))
	header.IPv4(b).Encode(&header.IPv4Fields{
		TotalLength: uint16(cap(b)), TTL: 64, Protocol: proto, SrcAddr: tcpip.AddrFrom4(src.As4()), DstAddr: tcpip.AddrFrom4(dst.As4()),
	})
	if len(options) > 0 {
		b[0] = 0x40 | byte(len(b)/4)
		copy(b[header.IPv4MinimumSize:], options)
	}
	header.IPv4(b).SetChecksum(0)
	header.IPv4(b).SetChecksum(^header.IPv4(b).CalculateChecksum())
	return append(b, payload...)
}

func syn(port uint16) []byte {
	b := make([]byte, header.TCPMinimumSize)
	header.TCP(b).Encode(&header.TCPFields{SrcPort: 40000, DstPort: port, SeqNum: 1, DataOffset: header.TCPMinimumSize, Flags: header.TCPFlagSyn, WindowSize: 65535})
	return b
}

func policyOf(t *testing.T, deny ...string) *egress.Policy {
	t.Helper()
	p, err := egress.Parse(nil, deny, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Frames that no flow can begin with are dropped, and the log says why.
func TestOddPackets(t *testing.T) {
	public := netip.MustParseAddr("203.0.113.7")
	six := func(next uint8, payload []byte) []byte {
		b := make([]byte, header.IPv6MinimumSize)
		header.IPv6(b).Encode(&header.IPv6Fields{
			PayloadLength: uint16(len(payload)), HopLimit: 64,
			SrcAddr: tcpip.AddrFrom16(driver.GuestIPv6.As16()), DstAddr: tcpip.AddrFrom16(netip.MustParseAddr("2001:db8::1").As16()),
		})
		b[6] = next
		return append(b, payload...)
	}
	for _, tc := range []struct {
		name   string
		proto  tcpip.NetworkProtocolNumber
		packet []byte
		want   egress.Reason // "": no word in the log
	}{
		{"another source", header.IPv4ProtocolNumber, packet4(netip.MustParseAddr("192.0.0.3"), public, 6, nil, syn(80)), reasonSource},
		{"a loose source route", header.IPv4ProtocolNumber, packet4(driver.GuestIPv4, public, 6, []byte{131, 7, 4, 10, 0, 0, 1, 1}, syn(80)), reasonOptions},
		{"a record route", header.IPv4ProtocolNumber, packet4(driver.GuestIPv4, public, 17, []byte{7, 7, 4, 0, 0, 0, 0, 1}, make([]byte, 8)), reasonOptions},
		{"another protocol", header.IPv4ProtocolNumber, packet4(driver.GuestIPv4, public, 47, nil, make([]byte, 20)), reasonProtocol},
		{"multicast", header.IPv4ProtocolNumber, packet4(driver.GuestIPv4, netip.MustParseAddr("224.0.0.251"), 17, nil, make([]byte, 8)), reasonMulticast},
		{"broadcast", header.IPv4ProtocolNumber, packet4(driver.GuestIPv4, netip.MustParseAddr("255.255.255.255"), 17, nil, make([]byte, 8)), reasonMulticast},
		{"TCP to port 0", header.IPv4ProtocolNumber, packet4(driver.GuestIPv4, public, 6, nil, syn(0)), egress.ReasonPortZero},
		{"the link's broadcast address", header.IPv4ProtocolNumber, packet4(driver.GuestIPv4, netip.MustParseAddr("192.0.0.3"), 6, nil, syn(80)), egress.ReasonClosedNetwork},
		{"an ICMP redirect", header.IPv4ProtocolNumber, packet4(driver.GuestIPv4, public, 1, nil, []byte{5, 1, 0, 0, 0, 0, 0, 0}), ""},
		{"a routing header", header.IPv6ProtocolNumber, six(43, make([]byte, 8)), reasonOptions},
		{"destination options", header.IPv6ProtocolNumber, six(60, make([]byte, 8)), reasonOptions},
		{"a router advertisement", header.IPv6ProtocolNumber, six(58, []byte{134, 0, 0, 0, 64, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}), ""},
		{"a router solicitation", header.IPv6ProtocolNumber, six(58, []byte{133, 0, 0, 0, 0, 0, 0, 0}), ""},
		{"a short packet", header.IPv4ProtocolNumber, []byte{0x45, 0, 0}, ""},
		{"no IP", 0x88cc, make([]byte, 50), ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := newGuest(t, policyOf(t))
			g.send(tc.proto, tc.packet)
			// A packet that is answered shows that the one before it was looked at.
			g.send(header.IPv4ProtocolNumber, packet4(driver.GuestIPv4, netip.MustParseAddr("10.0.0.1"), 6, nil, syn(81)))
			p := g.receive(time.Minute)
			if p == nil || header.TCP(header.IPv4(p).Payload()).Flags()&header.TCPFlagRst == 0 {
				t.Fatalf("the answer is %x, want a reset", p)
			}
			want := 1
			if tc.want != "" {
				want = 2
			}
			var rows []ringfence.NetworkFlow // what begins a flow is looked at in any order
			for end := time.Now().Add(time.Minute); len(rows) < want && time.Now().Before(end); time.Sleep(time.Millisecond) {
				rows, _, _ = g.n.Log(ringfence.NetworkLogQuery{Limit: 10})
			}
			said := slices.ContainsFunc(rows, func(f ringfence.NetworkFlow) bool {
				return f.Reason == string(tc.want) && f.Verdict == ringfence.VerdictDenied && f.Port != 81
			})
			if len(rows) != want || said != (tc.want != "") {
				t.Errorf("the log: %+v", rows)
			}
		})
	}
}

// Whatever the guest says about addresses of the link, the gateway keeps its own, and
// what it sends goes to the guest's.
func TestLinkAddresses(t *testing.T) {
	g := newGuest(t, policyOf(t))
	other := [6]byte{2, 0, 0, 0, 0, 9}
	claim := header.ARP(make([]byte, header.ARPSize))
	claim.SetIPv4OverEthernet()
	claim.SetOp(header.ARPReply)
	copy(claim.HardwareAddressSender(), other[:])
	copy(claim.ProtocolAddressSender(), driver.GatewayIPv4.AsSlice())
	copy(claim.HardwareAddressTarget(), driver.GatewayMAC[:])
	copy(claim.ProtocolAddressTarget(), driver.GatewayIPv4.AsSlice())
	g.send(header.ARPProtocolNumber, claim)
	copy(claim.ProtocolAddressSender(), driver.GuestIPv4.AsSlice())
	g.send(header.ARPProtocolNumber, claim)
	g.mac = other
	g.send(header.IPv4ProtocolNumber, packet4(driver.GuestIPv4, netip.MustParseAddr("10.0.0.1"), 6, nil, syn(81)))
	if err := g.file.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	frame := make([]byte, 1<<16)
	n, err := g.file.Read(frame)
	if err != nil {
		t.Fatal(err)
	}
	eth := header.Ethernet(frame[:n])
	if eth.Type() != header.IPv4ProtocolNumber || eth.DestinationAddress() != mac(driver.GuestMAC) || eth.SourceAddress() != mac(driver.GatewayMAC) {
		t.Errorf("the answer is of type %#x, from %v to %v", eth.Type(), eth.SourceAddress(), eth.DestinationAddress())
	}
}

// Stand-ins are addresses of their own, each name has one, and there is an end to them.
func TestStandIns(t *testing.T) {
	var s standIns
	seen := map[netip.Addr]string{}
	for i := range maxStandIns {
		name := strconv.Itoa(i) + ".test"
		a := s.of(name)
		if other := seen[a]; other != "" || s.name(a) != name || s.of(name) != a || (*egress.Site)(nil).Closed(a) == "" {
			t.Fatalf("%s is %v, which is %s and stands for %s", name, a, other, s.name(a))
		}
		seen[a] = name
	}
	a := s.of("one more.test")
	if seen[a] != "0.test" || s.name(a) != "one more.test" || len(s.byName) != maxStandIns || s.of("0.test") == a {
		t.Errorf("one more is %v, which was %s; %d names", a, seen[a], len(s.byName))
	}
	for _, text := range []string{"198.18.0.0", "198.17.255.255", "198.19.0.1", "198.18.255.255", "10.18.0.1", "2001:db8::1"} {
		if name := s.name(netip.MustParseAddr(text)); name != "" {
			t.Errorf("%s stands for %s", text, name)
		}
	}
}

// What is denied is answered at once: a reset, an unreachable port, a message that it
// is prohibited.
func TestDeniedIsAnswered(t *testing.T) {
	public := netip.MustParseAddr("203.0.113.7")
	for _, tc := range []struct {
		name       string
		proto      uint8
		payload    []byte
		kind, code byte
	}{
		{"UDP", 17, []byte{0x9c, 0x40, 0, 80, 0, 8, 0, 0}, 3, 3},
		{"echo", 1, []byte{8, 0, 0, 0, 0, 1, 0, 1}, 3, 13},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := newGuest(t, policyOf(t, "0.0.0.0/0"))
			g.send(header.IPv4ProtocolNumber, packet4(driver.GuestIPv4, public, tc.proto, nil, tc.payload))
			p := g.receive(time.Minute)
			if p == nil || header.IPv4(p).Protocol() != 1 {
				t.Fatalf("the answer is %x", p)
			}
			if msg := header.ICMPv4(header.IPv4(p).Payload()); byte(msg.Type()) != tc.kind || byte(msg.Code()) != tc.code {
				t.Errorf("type %d code %d", msg.Type(), msg.Code())
			}
		})
	}
}

// The log keeps the newest rows in order, tells changes apart, and folds repetitions.
func TestFlowLog(t *testing.T) {
	var l flowLog
	all := func(*ringfence.NetworkFlow) bool { return true }
	var first *logRow
	for i := range keepRows + 500 {
		row := l.add(ringfence.NetworkFlow{Verdict: ringfence.VerdictAllowed, Port: uint16(i)})
		if i == 600 {
			first = row
		}
	}
	l.change(first, func(f *ringfence.NetworkFlow) { f.BytesSent = 5 })
	for range 3 {
		l.add(ringfence.NetworkFlow{Verdict: ringfence.VerdictDenied, Name: "x"})
	}
	rows, next, _ := l.page(0, 2*keepRows, all)
	if len(rows) != keepRows-1 { // the place of the row that changed is empty
		t.Errorf("%d rows", len(rows))
	}
	if last := rows[len(rows)-1]; last.Name != "x" || last.Count != 3 {
		t.Errorf("the last row: %+v", last)
	}
	if changed := rows[len(rows)-2]; changed.Port != 600 || changed.BytesSent != 5 {
		t.Errorf("the row that changed: %+v", changed)
	}
	rows, again, more := l.page(next, 10, all)
	if len(rows) != 0 || again != next {
		t.Errorf("after the end: %+v %d", rows, again)
	}
	l.add(ringfence.NetworkFlow{Verdict: ringfence.VerdictAllowed})
	if !isClosed(more) {
		t.Error("a follower was not woken")
	}
	if rows, _, _ = l.page(next+1000000, 10, all); len(rows) != 10 {
		t.Errorf("a cursor of another life: %d rows", len(rows))
	}
}

// Whatever frames a guest sends, the gateway stands.
func FuzzFrames(f *testing.F) {
	f.Add(packet4(driver.GuestIPv4, netip.MustParseAddr("10.0.0.1"), 6, nil, syn(80)), true)
	f.Add(packet4(driver.GuestIPv4, driver.GatewayIPv4, 17, nil, []byte{0x9c, 0x40, 0, 53, 0, 8, 0, 0}), true)
	f.Add(make([]byte, 60), false)
	f.Fuzz(func(t *testing.T, packet []byte, four bool) {
		if len(packet) > driver.LinkMTU {
			return
		}
		g := newGuest(t, policyOf(t, "0.0.0.0/0"))
		proto := header.IPv6ProtocolNumber
		if four {
			proto = header.IPv4ProtocolNumber
		}
		g.send(proto, packet)
		g.send(header.IPv4ProtocolNumber, packet4(driver.GuestIPv4, netip.MustParseAddr("10.0.0.1"), 6, nil, syn(81)))
		for {
			p := g.receive(time.Minute)
			if p == nil {
				t.Fatal("no answer")
			}
			if header.IPv4(p).Protocol() == 6 {
				return
			}
		}
	})
}
