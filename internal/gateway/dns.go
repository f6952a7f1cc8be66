package gateway

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
	"gvisor.dev/gvisor/pkg/tcpip"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/egress"
)

const (
	lookupTime = 10 * time.Second
	idleDNS    = 10 * time.Second
	maxQuery   = 4096
	localTTL   = 60
)

// session counts a port or a connection from which the guest looks names up.
func (n *Network) session() (leave func(), ok bool) {
	if n.asked.Add(1) > maxSessions {
		n.asked.Add(-1)
		n.note("dns", "", netip.Addr{}, 0, ringfence.VerdictDenied, egress.Decision{Reason: reasonDNSRate})
		return nil, false
	}
	return func() { n.asked.Add(-1) }, true
}

// serveDatagrams answers lookups from one port of the guest until it is silent.
func (n *Network) serveDatagrams(in *inside) {
	done := make(chan struct{})
	timer := time.AfterFunc(idleDNS, func() { close(done) })
	defer timer.Stop()
	defer context.AfterFunc(n.ctx, func() { in.ep.Close() })()
	for {
		buf, size, err := in.read(done)
		if err != nil {
			return
		}
		query := bytes.Clone((*buf)[:min(size, maxQuery)])
		buffers.Put(buf)
		if !timer.Reset(idleDNS) {
			return
		}
		select {
		case n.asking <- struct{}{}:
		default:
			n.note("dns", "", netip.Addr{}, 0, ringfence.VerdictDenied, egress.Decision{Reason: reasonDNSRate})
			continue
		}
		if !n.enter() {
			<-n.asking
			return
		}
		go func() {
			defer n.wg.Done()
			defer func() { <-n.asking }()
			if answer := n.answer(query, true); answer != nil {
				var r bytes.Reader
				r.Reset(answer)
				_, _ = in.ep.Write(&r, tcpip.WriteOptions{}) // a datagram may be lost
			}
		}()
	}
}

// serveDNSOver answers lookups over a connection of the guest.
func (n *Network) serveDNSOver(in *inside) {
	done := make(chan struct{})
	timer := time.AfterFunc(idleDNS, func() { close(done) })
	defer timer.Stop()
	defer in.ep.Close()
	defer context.AfterFunc(n.ctx, in.ep.Abort)()
	var pending []byte
	for {
		buf, size, err := in.read(done)
		if err != nil {
			return
		}
		pending = append(pending, (*buf)[:size]...)
		buffers.Put(buf)
		for len(pending) >= 2 {
			length := int(binary.BigEndian.Uint16(pending))
			if length > maxQuery {
				in.ep.Abort()
				return
			}
			if len(pending) < 2+length {
				break
			}
			answer := n.answer(pending[2:2+length], false)
			pending = pending[2+length:]
			if answer == nil {
				in.ep.Abort()
				return
			}
			if in.write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...), done) != nil {
				return
			}
		}
		if !timer.Reset(idleDNS) {
			return
		}
	}
}

// answer answers one query; nil: it is none.
func (n *Network) answer(raw []byte, datagram bool) []byte {
	query := new(dns.Msg)
	if err := query.Unpack(raw); err != nil || query.Response || len(query.Question) != 1 {
		return nil
	}
	reply := n.lookup(query)
	size := dns.MaxMsgSize
	if opt := query.IsEdns0(); opt != nil {
		o := reply.IsEdns0()
		if o == nil {
			reply.SetEdns0(1232, false)
			o = reply.IsEdns0()
		}
		o.SetUDPSize(1232)
		if datagram {
			size = max(dns.MinMsgSize, min(int(opt.UDPSize()), 4096))
		}
	} else {
		reply.Extra = slices.DeleteFunc(reply.Extra, func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeOPT })
		if datagram {
			size = dns.MinMsgSize
		}
	}
	reply.Compress = true
	reply.Truncate(size)
	out, err := reply.Pack()
	if err != nil {
		return nil
	}
	return out
}

// lookup answers a query: from what the gateway knows itself, from the cache, or
// from the host's resolvers if the policy lets the name out.
func (n *Network) lookup(query *dns.Msg) *dns.Msg {
	reply := new(dns.Msg)
	reply.SetReply(query)
	reply.RecursionAvailable = true
	q := query.Question[0]
	name := strings.ToLower(strings.TrimSuffix(q.Name, "."))
	refuse := func(rcode int, d egress.Decision) *dns.Msg {
		n.note("dns", printable(name), netip.Addr{}, 0, ringfence.VerdictDenied, d)
		reply.Rcode = rcode
		if query.IsEdns0() != nil { // RFC 8914: 15 is "blocked"
			why := string(d.Reason)
			if d.Rule != "" {
				why += ": " + d.Rule
			}
			opt := &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT}}
			opt.Option = []dns.EDNS0{&dns.EDNS0_EDE{InfoCode: dns.ExtendedErrorCodeBlocked, ExtraText: "ringfence: network policy: " + why}}
			reply.Extra = append(reply.Extra, opt)
		}
		return reply
	}
	switch {
	case q.Qclass != dns.ClassINET, query.Opcode != dns.OpcodeQuery:
		reply.Rcode = dns.RcodeNotImplemented
		return reply
	case !n.lookups.Allow():
		return refuse(dns.RcodeRefused, egress.Decision{Reason: reasonDNSRate})
	}
	if n.local(name, q, reply) {
		return reply
	}
	policy := n.policy.Load()
	if d := policy.DecideName(name); !d.Allow {
		return refuse(dns.RcodeNameError, d)
	}
	if reason := n.reverseOfClosed(name); reason != "" {
		return refuse(dns.RcodeNameError, egress.Decision{Reason: reason})
	}
	switch q.Qtype {
	case dns.TypeHTTPS, dns.TypeSVCB:
		return reply // addresses and keys that would pass by the checks of names
	case dns.TypeANY, dns.TypeAXFR, dns.TypeIXFR:
		reply.Rcode = dns.RcodeNotImplemented
		return reply
	}
	if n.g.proxy != nil && (q.Qtype == dns.TypeA || q.Qtype == dns.TypeAAAA) {
		done, d := n.standIn(name, q, reply)
		if !d.Allow {
			return refuse(dns.RcodeNameError, d)
		}
		if done {
			return reply
		}
	}
	answer, err := n.resolve(dns.Question{Name: name + ".", Qtype: q.Qtype, Qclass: q.Qclass})
	if err != nil {
		n.note("dns", printable(name), netip.Addr{}, 0, ringfence.VerdictFailed, egress.Decision{Reason: reasonUnreachable})
		reply.Rcode = dns.RcodeServerFailure
		return reply
	}
	reply.Rcode = answer.Rcode
	d := n.take(policy, name, q, answer, reply)
	if !d.Allow {
		reply.Answer, reply.Ns = nil, nil
		return refuse(dns.RcodeNameError, d)
	}
	return reply
}

// resolve asks the cache, and then the host's resolvers.
func (n *Network) resolve(q dns.Question) (*dns.Msg, error) {
	if answer := n.cache.get(q); answer != nil {
		return answer, nil
	}
	ctx, cancel := context.WithTimeout(n.ctx, lookupTime)
	defer cancel()
	answer, err := n.g.resolver.ask(ctx, q)
	if err == nil {
		n.cache.put(q, answer)
	}
	return answer, err
}

// addressOf returns the address of an A or AAAA record.
func addressOf(rr dns.RR) (netip.Addr, bool) {
	switch rr := rr.(type) {
	case *dns.A:
		return netip.AddrFromSlice(rr.A.To4())
	case *dns.AAAA:
		return netip.AddrFromSlice(rr.AAAA.To16())
	}
	return netip.Addr{}, false
}

// take puts what may be known of an answer into the reply, and remembers its addresses.
func (n *Network) take(policy *egress.Policy, name string, q dns.Question, answer, reply *dns.Msg) egress.Decision {
	addresses, closed := 0, egress.Reason("")
	explicit := policy.DecideName(name).Reason == egress.ReasonAllowed
	for _, rr := range answer.Answer {
		if strings.EqualFold(rr.Header().Name, q.Name) {
			rr.Header().Name = q.Name // as it was asked for, some compare
		}
		if alias, ok := rr.(*dns.CNAME); ok {
			// A denied name stays denied behind another.
			if d := policy.DecideName(alias.Target); !d.Allow && d.Reason == egress.ReasonDenied && !explicit {
				return d
			}
		}
		a, ok := addressOf(rr)
		if !ok && rr.Header().Rrtype != dns.TypeA && rr.Header().Rrtype != dns.TypeAAAA {
			reply.Answer = append(reply.Answer, rr)
			continue
		}
		addresses++
		if why := policy.Closed(a); why != "" {
			closed = why
			continue
		}
		n.names.add(a, name, time.Duration(min(rr.Header().Ttl, 86400))*time.Second)
		reply.Answer = append(reply.Answer, rr)
	}
	if addresses > 0 && closed != "" && !hasAddress(reply.Answer) {
		return egress.Decision{Reason: reasonAnswer}
	}
	reply.Ns = answer.Ns
	return egress.Decision{Allow: true}
}

func hasAddress(list []dns.RR) bool {
	return slices.ContainsFunc(list, func(rr dns.RR) bool {
		return rr.Header().Rrtype == dns.TypeA || rr.Header().Rrtype == dns.TypeAAAA
	})
}

// local answers what the gateway knows by itself.
func (n *Network) local(name string, q dns.Question, reply *dns.Msg) bool {
	add := func(v4, v6 string) {
		h := dns.RR_Header{Name: q.Name, Rrtype: q.Qtype, Class: dns.ClassINET, Ttl: localTTL}
		switch {
		case q.Qtype == dns.TypeA && v4 != "":
			reply.Answer = append(reply.Answer, &dns.A{Hdr: h, A: net.ParseIP(v4)})
		case q.Qtype == dns.TypeAAAA && v6 != "":
			reply.Answer = append(reply.Answer, &dns.AAAA{Hdr: h, AAAA: net.ParseIP(v6)})
		}
	}
	switch {
	case name == "localhost" || strings.HasSuffix(name, ".localhost"): // RFC 6761
		add("127.0.0.1", "::1")
	case name == n.id:
		add("127.0.1.1", "")
	case name == "use-application-dns.net", strings.HasSuffix(name, ".resolver.arpa"), name == "resolver.arpa":
		reply.Rcode = dns.RcodeNameError // there is no other resolver to find
	default:
		return false
	}
	return true
}

// reverseOfClosed keeps names of private addresses, which the host's resolvers know,
// from the sandbox.
func (n *Network) reverseOfClosed(name string) egress.Reason {
	a, ok := reverseAddr(name)
	if !ok {
		return ""
	}
	return n.policy.Load().Closed(a)
}

func reverseAddr(name string) (netip.Addr, bool) {
	if rest, ok := strings.CutSuffix(name, ".in-addr.arpa"); ok {
		parts := strings.Split(rest, ".")
		slices.Reverse(parts)
		for len(parts) < 4 {
			parts = append(parts, "0")
		}
		a, err := netip.ParseAddr(strings.Join(parts, "."))
		return a, err == nil
	}
	if rest, ok := strings.CutSuffix(name, ".ip6.arpa"); ok {
		digits := strings.Split(rest, ".")
		slices.Reverse(digits)
		var b strings.Builder
		for i := range 32 {
			if i > 0 && i%4 == 0 {
				b.WriteByte(':')
			}
			if i < len(digits) {
				b.WriteString(digits[i])
			} else {
				b.WriteByte('0')
			}
		}
		a, err := netip.ParseAddr(b.String())
		return a, err == nil
	}
	return netip.Addr{}, false
}

func printable(name string) string { // names in the log go to terminals
	if len(name) > 253 {
		name = name[:253]
	}
	for _, r := range name {
		if r < 0x21 || r > 0x7e {
			return fmt.Sprintf("%+q", name)
		}
	}
	return name
}
