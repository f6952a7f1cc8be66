package gateway

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/driver"
	"ringfence.dev/ringfence/internal/egress"
)

// proxyPort is where a sandbox finds the gateway as an HTTP proxy, when the operator
// has given it another one to go through.
const proxyPort = 3128

const maxProxyHead = 64 << 10

// ProxyURL is what programs in sandboxes are told; "" when there is no upstream proxy.
func (g *Gateway) ProxyURL() string {
	if g.proxy == nil {
		return ""
	}
	return "http://" + net.JoinHostPort(driver.GatewayIPv4.String(), strconv.Itoa(proxyPort))
}

// reader makes the guest's side readable for the head of a request.
type reader struct {
	in   *inside
	done <-chan struct{}
	rest []byte
	left int
}

func (r *reader) Read(p []byte) (int, error) {
	if len(r.rest) == 0 {
		buf, size, err := r.in.read(r.done)
		if err != nil {
			return 0, err
		}
		if r.left -= size; r.left < 0 {
			buffers.Put(buf)
			return 0, errors.New("the request is too long")
		}
		r.rest = append([]byte(nil), (*buf)[:size]...)
		buffers.Put(buf)
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// serveProxy serves one request of a sandbox to its HTTP proxy.
func (n *Network) serveProxy(in *inside) {
	done := make(chan struct{})
	timer := time.AfterFunc(dialTimeout, func() { close(done) })
	defer timer.Stop()
	stop := context.AfterFunc(n.ctx, in.ep.Abort)
	source := &reader{in: in, done: done, left: maxProxyHead}
	buffered := bufio.NewReader(source)
	r, err := http.ReadRequest(buffered)
	if err != nil {
		in.ep.Abort()
		return
	}
	timer.Stop()
	source.left = math.MaxInt // a body may have any length
	host, port, err := target(r)
	if err != nil {
		n.answer400(in, done, err.Error())
		return
	}
	f, d := n.decideProxied(host, port)
	if !d.Allow {
		n.note("tcp", printable(host), f.Addr, port, ringfence.VerdictDenied, d)
		rule := d.Rule
		if rule == "" {
			rule = string(d.Reason)
		}
		n.sayAndEnd(in, done, http.StatusForbidden, fmt.Sprintf("ringfence: the network policy of this sandbox does not allow %q (%s: %s)", printable(host), d.Reason, rule))
		return
	}
	out, answer, err := n.throughProxy(r, host, port)
	if err != nil {
		n.note("tcp", printable(host), f.Addr, port, ringfence.VerdictFailed, egress.Decision{Reason: reasonUnreachable, Rule: d.Rule})
		n.sayAndEnd(in, done, http.StatusBadGateway, "ringfence: the upstream proxy did not connect: "+printable(err.Error()))
		return
	}
	if r.Method == http.MethodConnect && buffered.Buffered() > 0 {
		reset(out) // nobody speaks before the answer
		n.answer400(in, done, "data came before the answer to CONNECT")
		return
	}
	if r.Method != http.MethodConnect {
		d.Check = egress.CheckNone // its one request was decided above
	}
	fl, ok := n.admitProxied(f, d, host, func() {
		in.ep.Abort()
		reset(out)
	})
	stop()
	if !ok {
		return
	}
	if err := in.write([]byte(answer), fl.done); err != nil {
		fl.cut(egress.Decision{Allow: true})
		return
	}
	if r.Method == http.MethodConnect {
		fl.relay(in, out)
		return
	}
	// Nothing more of the guest's goes out: it would be a request that nobody decided about.
	fl.relayAnswer(in, out)
}

// target is whom a request to a proxy is for.
func target(r *http.Request) (host string, port uint16, err error) {
	authority, def := r.Host, "80"
	switch {
	case r.Method == http.MethodConnect:
		def = "443"
	case r.URL.Scheme == "http" && r.URL.Host != "":
		authority = r.URL.Host
	default:
		return "", 0, errors.New("this is a proxy: the request has to name a whole http:// address")
	}
	host, text, err := net.SplitHostPort(authority)
	if err != nil {
		host, text = strings.Trim(authority, "[]"), def
	}
	number, err := strconv.ParseUint(text, 10, 16)
	if err != nil || host == "" {
		return "", 0, errors.New("the request names no host and port")
	}
	return strings.ToLower(strings.TrimSuffix(host, ".")), uint16(number), nil
}

// decideProxied decides by an address where the client gave one, and by the name
// otherwise. A name that the host's own resolvers find in a closed network is denied.
func (n *Network) decideProxied(host string, port uint16) (egress.Flow, egress.Decision) {
	f := egress.Flow{Proto: egress.TCP, Port: port}
	if !n.newFlows.Allow() {
		return f, egress.Decision{Reason: reasonFlowRate}
	}
	n.mu.Lock()
	full := len(n.open) >= n.g.limits.Flows
	n.mu.Unlock()
	if full {
		return f, egress.Decision{Reason: reasonFlows}
	}
	policy := n.policy.Load()
	if a, err := netip.ParseAddr(host); err == nil {
		f.Addr = a.Unmap()
		return f, policy.Decide(f)
	}
	f.Names = []string{host}
	if d := policy.DecideProxied(host, port); !d.Allow {
		return f, d
	}
	if !strings.Contains(host, ".") { // a neighbour of the proxy
		return f, egress.Decision{Reason: egress.ReasonClosedNetwork}
	}
	ctx, cancel := context.WithTimeout(n.ctx, lookupTime)
	defer cancel()
	for _, kind := range []uint16{dns.TypeA, dns.TypeAAAA} {
		answer, err := n.g.resolver.ask(ctx, dns.Question{Name: dns.Fqdn(host), Qtype: kind, Qclass: dns.ClassINET})
		if err != nil {
			continue // the proxy may know it all the same
		}
		for _, rr := range answer.Answer {
			var a netip.Addr
			switch rr := rr.(type) {
			case *dns.A:
				a, _ = netip.AddrFromSlice(rr.A.To4())
			case *dns.AAAA:
				a, _ = netip.AddrFromSlice(rr.AAAA.To16())
			default:
				continue
			}
			if policy.Closed(a) != "" {
				return f, egress.Decision{Reason: reasonAnswer}
			}
		}
	}
	return f, policy.DecideProxied(host, port)
}

// throughProxy connects to the target by way of the upstream proxy, and returns what
// the guest is to be told first.
func (n *Network) throughProxy(r *http.Request, host string, port uint16) (*net.TCPConn, string, error) {
	ctx, cancel := context.WithTimeout(n.ctx, dialTimeout)
	defer cancel()
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, "tcp", n.g.proxy.Host)
	if err != nil {
		return nil, "", err
	}
	out := c.(*net.TCPConn)
	patience := context.AfterFunc(ctx, func() { _ = out.SetDeadline(time.Unix(1, 0)) })
	defer patience()
	for _, name := range []string{"Proxy-Authorization", "Proxy-Connection"} {
		r.Header.Del(name)
	}
	authority := net.JoinHostPort(host, strconv.Itoa(int(port)))
	authorization := ""
	if user := n.g.proxy.User; user != nil {
		password, _ := user.Password()
		authorization = "Basic " + base64.StdEncoding.EncodeToString([]byte(user.Username()+":"+password))
	}
	if r.Method != http.MethodConnect {
		patience()     // a body takes its time
		r.Close = true // one request, which was decided about
		r.Host, r.URL.Host = authority, authority
		if authorization != "" {
			r.Header.Set("Proxy-Authorization", authorization)
		}
		if err := r.WriteProxy(out); err != nil {
			out.Close()
			return nil, "", err
		}
		return out, "", nil
	}
	request := "CONNECT " + authority + " HTTP/1.1\r\nHost: " + authority + "\r\n"
	if authorization != "" {
		request += "Proxy-Authorization: " + authorization + "\r\n"
	}
	if _, err := io.WriteString(out, request+"\r\n"); err != nil {
		out.Close()
		return nil, "", err
	}
	if err := readConnected(out); err != nil {
		out.Close()
		return nil, "", err
	}
	return out, "HTTP/1.1 200 Connection established\r\n\r\n", nil
}

// readConnected reads the head of the answer to CONNECT, and not a byte more.
func readConnected(out *net.TCPConn) error {
	var head []byte
	one := make([]byte, 1)
	for !strings.HasSuffix(string(head), "\r\n\r\n") {
		if len(head) > 16<<10 {
			return errors.New("its answer is too long")
		}
		if _, err := io.ReadFull(out, one); err != nil {
			return err
		}
		head = append(head, one...)
	}
	line, _, _ := strings.Cut(string(head), "\r\n")
	if fields := strings.Fields(line); len(fields) < 2 || fields[1] != "200" {
		return fmt.Errorf("it said %q", line)
	}
	return nil
}

func (n *Network) answer400(in *inside, done <-chan struct{}, why string) {
	n.sayAndEnd(in, done, http.StatusBadRequest, "ringfence: "+why)
}

func (n *Network) sayAndEnd(in *inside, done <-chan struct{}, status int, text string) {
	defer in.ep.Close()
	answer := fmt.Sprintf("HTTP/1.1 %d %s\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s\n", status, http.StatusText(status), len(text)+1, text)
	_ = in.write([]byte(answer), done) // the guest may have gone
}
