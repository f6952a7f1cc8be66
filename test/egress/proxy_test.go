package egress

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/client"
)

// upstream is a proxy of a company: it alone knows names under only.test, and wants a password.
func (in *internet) upstream(address string, config *tls.Config) {
	dial := func(authority string) (net.Conn, error) {
		host, port, err := net.SplitHostPort(authority)
		if err != nil {
			return nil, err
		}
		if strings.HasSuffix(host, ".only.test") {
			host = "203.0.113.7"
		}
		var c net.Conn
		in.in(func() { c, err = net.Dial("tcp", net.JoinHostPort(host, port)) })
		return c, err
	}
	in.each(address, func(c net.Conn) {
		if config != nil {
			c = tls.Server(c, config)
			defer c.Close()
		}
		r, err := http.ReadRequest(bufio.NewReader(c))
		if err != nil {
			return
		}
		if r.Header.Get("Proxy-Authorization") != "Basic dXNlcjpzZWNyZXQ=" {
			io.WriteString(c, "HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
			return
		}
		authority := r.Host
		if r.Method != http.MethodConnect {
			authority = r.URL.Host
		}
		out, err := dial(authority)
		if err != nil {
			io.WriteString(c, "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
			return
		}
		defer out.Close()
		if r.Method == http.MethodConnect {
			io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
		} else {
			r.Header.Del("Proxy-Authorization")
			r.Write(out)
		}
		go func() {
			io.Copy(out, c)
			out.(*net.TCPConn).CloseWrite()
		}()
		io.Copy(c, out)
	})
}

// Behind a proxy that alone can resolve names, programs work by the usual variables,
// and the policy is still about names.
func TestUpstreamProxy(t *testing.T) {
	in := newInternet(t)
	in.upstream("10.8.0.1:8888", nil)
	s := newServer(t, "--dns-servers", "203.0.113.53", "--upstream-proxy", "http://user:secret@10.8.0.1:8888", "--open-networks", "10.9.0.0/16")
	sb := s.create(nil, in)
	curl := func(options string) []any { return a("shell", "curl -sSk -m5 "+options+" 2>&1") }
	for _, g := range []group{
		{policy: ringfence.NetworkPolicy{}, rows: []row{
			{"HTTP", curl("http://a.only.test/"), "a.only.test:80 at 203.0.113.7|a.only.test at 203.0.113.7", "allowed default"},
			{"TLS", curl("https://a.only.test/"), "a.only.test at 203.0.113.7", ""},
			{"a private address", curl("https://10.0.0.7/"), "…403…", "denied closed_network"},
			{"a private address over HTTP", curl("-o /dev/null -w %{http_code} http://10.0.0.7/"), "403", ""},
			{"a name that is private", curl("-o /dev/null -w %{http_code} http://private.test/"), "403", "denied private_answer"},
			{"the proxy itself", curl("--noproxy '*' http://10.8.0.1:8888/"), "…connect…", "denied closed_network"},
			{"no password inside", a("shell", "env | grep -c secret"), "0", ""},
			{"who knows no proxy, over HTTP", curl("--noproxy '*' http://a.only.test/"), "a.only.test:80 at 203.0.113.7|a.only.test at 203.0.113.7", "allowed default"},
			{"who knows no proxy, over TLS", curl("--noproxy '*' https://a.only.test/"), "a.only.test at 203.0.113.7", ""},
			{"who knows no proxy, to a name that is private", curl("--noproxy '*' http://private.test/"), "…resolve…", "denied private_answer"},
			{"who knows no proxy, to what the proxy cannot reach", curl("--noproxy '*' https://a.only.test:7777/"), "…connect…", "failed unreachable"},
			{"a neighbour of the proxy", a("resolve", "intranet"), "unresolved", "denied closed_network"},
			{"an address that stands for nothing", a("tcp", "198.18.31.7", 80), "ECONNREFUSED", "denied closed_network"},
			{"what the operator opened", curl("--noproxy '*' http://inside.test/"), "inside.test at 10.9.0.7", ""},
			{"requests", a("shell", "python3 -c \"import requests; print(requests.get('https://a.only.test/', verify=False, timeout=5).text)\" 2>/dev/null"), "a.only.test at 203.0.113.7", ""},
		}},
		{policy: ringfence.NetworkPolicy{AllowOut: list("a.only.test")}, rows: []row{
			{"an allowed name", curl("https://a.only.test/"), "a.only.test at 203.0.113.7", "allowed allowed a.only.test"},
			{"an allowed name over HTTP", curl("-o /dev/null -w %{http_code} http://a.only.test/"), "200", ""},
			{"another name", curl("https://b.only.test/"), "…403…", "denied not_allowed"},
			{"another name over HTTP", curl("http://b.only.test/"), "ringfence: …", "denied not_allowed"},
			{"another name inside the tunnel", curl("--connect-to b.only.test:443:a.only.test:443 https://b.only.test/"), "…alert…|…SSL…", "denied name_mismatch"},
			{"who knows no proxy", curl("--noproxy '*' https://a.only.test/"), "a.only.test at 203.0.113.7", ""},
			{"who knows no proxy, over HTTP to another name", curl("--noproxy '*' --connect-to b.only.test:80:a.only.test:80 http://b.only.test/"), "ringfence: …", ""},
			{"who knows no proxy, over TLS to another name", curl("--noproxy '*' --connect-to b.only.test:443:a.only.test:443 https://b.only.test/"), "…alert…|…SSL…", "denied name_mismatch"},
			{"an address", curl("https://203.0.113.7/"), "…403…", "denied not_allowed"},
		}},
	} {
		g.run(t, sb)
	}
}

// In a company whose proxy speaks TLS, under a CA of its own that signs what servers
// show as well, programs work as they are: those that know of proxies, and those that do not.
func TestCompany(t *testing.T) {
	in := newInternet(t)
	in.services()
	in.upstream("10.8.0.1:8889", &tls.Config{Certificates: []tls.Certificate{in.pair}})
	bundle := filepath.Join(t.TempDir(), "ca.pem")
	in.write(bundle, string(in.ca))
	s := newServer(t, "--dns-servers", "203.0.113.53", "--upstream-proxy", "https://user:secret@10.8.0.1:8889", "--ca-bundle", bundle)
	sb := s.create(nil, in)
	direct := "env -u http_proxy -u https_proxy -u HTTP_PROXY -u HTTPS_PROXY "
	allowed := func(rule string) string { return "allowed allowed " + rule }
	rows := slices.DeleteFunc(clientRows("only.test", "", allowed), func(r row) bool {
		return strings.Contains(r.name, "SSH") || strings.Contains(r.name, "another") && !strings.HasPrefix(r.name, "git") // SSH knows no proxy
	})
	rows = append(rows, slices.DeleteFunc(clientRows("only.test", direct, allowed), func(r row) bool {
		return strings.Contains(r.name, "another") && !strings.HasPrefix(r.name, "pip")
	})...)
	group{together: true, policy: ringfence.NetworkPolicy{AllowOut: clientPolicy("only.test")}, rows: rows}.run(t, sb)
}

// run tries a group's attempts; its log has to hold what each says.
func (g group) run(t *testing.T, sb *client.Sandbox) {
	t.Helper()
	if err := sb.UpdateNetwork(t.Context(), g.policy); err != nil {
		t.Fatal(err)
	}
	var attempts [][]any
	for _, r := range g.rows {
		attempts = append(attempts, r.attempt)
	}
	outcomes := try(t, sb, !g.together, attempts...)
	var log []string
	for _, f := range rows(t, sb) {
		log = append(log, strings.TrimSpace(fmt.Sprintf("%s %s %s", f.Verdict, f.Reason, f.Rule)))
	}
	for i, r := range g.rows {
		if !matches(outcomes[i], r.want) {
			t.Errorf("%s: %v: got %q, want %q", r.name, r.attempt, outcomes[i], r.want)
		}
		if all := "\n" + strings.Join(log, "\n") + "\n"; r.log != "" && !strings.Contains(all, "\n"+r.log+"\n") {
			t.Errorf("%s: the log does not say %q:\n%s", r.name, r.log, all)
		}
	}
}
