package gateway

import (
	"bufio"
	"context"
	"crypto/tls"
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

// serveProxy serves one request of a sandbox to its HTTP proxy. standIn is the name of
// the server that the guest takes it for; "": it knows that it speaks to a proxy.
func (n *Network) serveProxy(in *inside, standIn string) {
	done := make(chan struct{})
	timer := time.AfterFunc(dialTimeout, func() { close(done) })
	defer timer.Stop()
	stop := context.AfterFunc(n.ctx, in.ep.Abort)
	defer stop()
	source := &reader{in: in, done: done, left: maxProxyHead}
	buffered := bufio.NewReader(source)
	r, err := http.ReadRequest(buffered)
	if err != nil {
		in.ep.Abort()
		return
	}
	timer.Stop()
	source.left = math.MaxInt // a body may have any length
	host, port, err := target(r, standIn)
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
	connect := r.Method == http.MethodConnect
	if connect && buffered.Buffered() > 0 { // nobody speaks before the answer
		n.answer400(in, done, "data came before the answer to CONNECT")
		return
	}
	var out outside
	if connect {
		out, err = n.tunnel(host, port)
	} else {
		out, err = n.dialProxy()
	}
	if err != nil {
		n.note("tcp", printable(host), f.Addr, port, ringfence.VerdictFailed, egress.Decision{Reason: reasonUnreachable, Rule: d.Rule})
		n.sayAndEnd(in, done, http.StatusBadGateway, "ringfence: the upstream proxy did not connect: "+printable(err.Error()))
		return
	}
	if !connect {
		d.Check = egress.CheckNone // its one request was decided above
	}
	fl, ok := n.admitProxied(f, d, host, func() {
		in.ep.Abort()
		reset(out)
	})
	if !ok {
		return
	}
	stop()
	if connect {
		if err := in.write([]byte("HTTP/1.1 200 Connection established\r\n\r\n"), fl.done); err != nil {
			fl.cut(egress.Decision{Allow: true})
			return
		}
		fl.relay(in, out)
		return
	}
	if err := fl.request(out, r, net.JoinHostPort(host, strconv.Itoa(int(port)))); err != nil {
		fl.cut(egress.Decision{Allow: true})
		return
	}
	// Nothing more of the guest's goes out: it would be a request that nobody decided about.
	fl.relayAnswer(in, out)
}

// request sends the upstream proxy one request, for authority.
func (f *flow) request(out outside, r *http.Request, authority string) error {
	for _, name := range []string{"Proxy-Authorization", "Proxy-Connection"} {
		r.Header.Del(name)
	}
	if authorization := f.n.g.authorization(); authorization != "" {
		r.Header.Set("Proxy-Authorization", authorization)
	}
	r.Close = true // one request, which was decided about
	r.Host, r.URL.Host = authority, authority
	return r.WriteProxy(metered{f, out})
}

// metered counts and slows down what is written as what the guest sends.
type metered struct {
	f   *flow
	out outside
}

func (m metered) Write(b []byte) (int, error) {
	if err := m.f.send(m.out, b); err != nil {
		return 0, err
	}
	return len(b), nil
}

// target is whom a request to a proxy is for.
func target(r *http.Request, standIn string) (host string, port uint16, err error) {
	authority, def := r.Host, "80"
	switch {
	case standIn != "" && r.Method != http.MethodConnect && r.URL.Host == "" && r.Header.Get("Upgrade") == "":
		r.URL.Scheme = "http"
		if authority == "" {
			authority = standIn
		}
	case standIn != "":
		return "", 0, errors.New("port 80 leads to a proxy here, which takes ordinary requests alone")
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
	if d := n.admitNew(); !d.Allow {
		return f, d
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
	if _, _, d := n.proxied(host); !d.Allow {
		return f, d
	}
	return f, policy.DecideProxied(host, port)
}

// dialProxy connects to the upstream proxy.
func (n *Network) dialProxy() (outside, error) {
	ctx, cancel := context.WithTimeout(n.ctx, dialTimeout)
	defer cancel()
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, "tcp", n.g.proxy.Host)
	if err != nil {
		return nil, err
	}
	if n.g.proxy.Scheme != "https" {
		return c.(*net.TCPConn), nil
	}
	t := tls.Client(c, &tls.Config{ServerName: n.g.proxy.Hostname(), RootCAs: n.g.proxyCA})
	if err := t.HandshakeContext(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return t, nil
}

// authorization is what the upstream proxy wants to see; "": nothing.
func (g *Gateway) authorization() string {
	user := g.proxy.User
	if user == nil {
		return ""
	}
	password, _ := user.Password()
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user.Username()+":"+password))
}

// tunnel connects to a host by way of the upstream proxy.
func (n *Network) tunnel(host string, port uint16) (outside, error) {
	out, err := n.dialProxy()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(n.ctx, dialTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = out.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	authority := net.JoinHostPort(host, strconv.Itoa(int(port)))
	request := "CONNECT " + authority + " HTTP/1.1\r\nHost: " + authority + "\r\n"
	if authorization := n.g.authorization(); authorization != "" {
		request += "Proxy-Authorization: " + authorization + "\r\n"
	}
	_, err = io.WriteString(out, request+"\r\n")
	if err == nil {
		err = readConnected(out)
	}
	if err != nil {
		reset(out)
		return nil, err
	}
	return out, nil
}

// readConnected reads the head of the answer to CONNECT, and not a byte more.
func readConnected(out io.Reader) error {
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
