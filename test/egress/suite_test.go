package egress

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/client"
)

// row is an attempt under a policy.
type row struct {
	name    string
	attempt []any
	want    string // the outcome; ending in … its beginning
	log     string // what the log has to hold: "verdict reason rule", or "" for no word about it
}

type group struct {
	policy   ringfence.NetworkPolicy
	rows     []row
	together bool // at the same time
}

func a(args ...any) []any { return args }

func list(s string) []string { return strings.Fields(s) }

var no = false

// suite is every attempt under every kind of policy, with its outcome and reason.
var suite = []group{
	{policy: ringfence.NetworkPolicy{}, rows: []row{
		{"an address", a("tcp", "203.0.113.7", 7000), "hello\n", "allowed default"},
		{"an IPv6 address", a("tcp", "2001:db8:1::7", 7000), "hello\n", "allowed default"},
		{"half-close", a("half_close", "203.0.113.7", 7000), "last words", ""},
		{"a name", a("url", "http://api.test/"), "api.test at 203.0.113.7", "allowed default"},
		{"TLS", a("url", "https://api.test/"), "api.test at 203.0.113.7", ""},
		{"TLS to an address", a("tls", "203.0.113.7", 443, ""), "HTTP/1.1 …", ""},
		{"a name with both families", a("resolve", "both.test"), "2001:db8:1::11 203.0.113.11", ""},
		{"IPv6 by name", a("url", "http://six.test/"), "six.test at 2001:db8:1::7", ""},
		{"UDP", a("udp", "203.0.113.7", 7000), "hello", "allowed default"},
		{"UDP over IPv6", a("udp", "2001:db8:1::7", 7000), "hello", ""},
		{"UDP 443", a("udp", "203.0.113.7", 443), "hello", ""},
		{"a large datagram in fragments", a("big_udp", "203.0.113.7", 7000, 60000), "60000", ""},
		{"ping", a("ping", "203.0.113.7"), "answered", "allowed default"},
		{"ping over IPv6", a("ping", "2001:db8:1::7"), "answered", ""},
		{"nobody listens", a("tcp", "203.0.113.7", 7777), "ECONNREFUSED", "failed unreachable"},
		{"no port", a("udp", "203.0.113.7", 7777), "timeout|ECONNREFUSED", "failed unreachable"},
		{"SMTP", a("tcp", "203.0.113.7", 25), "ECONNREFUSED", "denied smtp"},
		{"port 0", a("tcp", "203.0.113.7", 0), "ECONNREFUSED|EADDRNOTAVAIL", ""},
		{"port 0 over UDP", a("udp", "203.0.113.7", 0), "ECONNREFUSED|EADDRNOTAVAIL|EINVAL|timeout", ""},
		{"a private address", a("tcp", "10.0.0.7", 7000), "ECONNREFUSED", "denied closed_network"},
		{"another private address", a("tcp", "192.168.1.1", 80), "ECONNREFUSED", "denied closed_network"},
		{"a carrier's address", a("tcp", "100.64.0.1", 80), "ECONNREFUSED", "denied closed_network"},
		{"metadata", a("tcp", "169.254.169.254", 80), "ECONNREFUSED", "denied closed_network"},
		{"a link-local address", a("tcp", "169.254.7.7", 7000), "ECONNREFUSED", "denied closed_network"},
		{"a link-local IPv6 address", a("tcp", "fe80::7", 7000), "E…|timeout", ""},
		{"metadata over IPv6", a("tcp", "fd00:ec2::254", 80), "ECONNREFUSED", "denied closed_network"},
		{"NAT64 of a private address", a("tcp", "64:ff9b::a00:7", 7000), "ECONNREFUSED", "denied closed_network"},
		{"6to4 of a private address", a("tcp", "2002:a00:7::1", 7000), "ECONNREFUSED", "denied closed_network"},
		{"a mapped private address", a("shell", "curl -sS -m3 http://[::ffff:10.0.0.7]:80/ 2>&1; echo $?"), "…7", ""},
		{"a private UDP address", a("udp", "10.0.0.7", 7000), "ECONNREFUSED", "denied closed_network"},
		{"ping of a private address", a("ping", "10.0.0.7"), "…silent…|prohibited", "denied closed_network"},
		{"decimal", a("shell", "curl -sS -m3 http://167772167/ 2>&1; echo $?"), "…7", ""},
		{"octal", a("shell", "curl -sS -m3 http://012.0.0.7/ 2>&1; echo $?"), "…7", ""},
		{"hexadecimal", a("shell", "curl -sS -m3 http://0x0a000007/ 2>&1; echo $?"), "…7", ""},
		{"0.0.0.0", a("tcp", "0.0.0.0", 7070), "ECONNREFUSED", ""},
		{"its own loopback is its own", a("tcp", "127.0.0.1", 7070), "ECONNREFUSED", ""},
		{"the host's address", a("tcp", "203.0.113.1", 7070), "ECONNREFUSED", "denied host_address"},
		{"the host's link address", a("tcp", "172.30.0.1", 7070), "ECONNREFUSED", "denied host_address"},
		{"the host's IPv6 address", a("tcp", "2001:db8:ffff::1", 7070), "ECONNREFUSED", "denied host_address"},
		{"the gateway's address", a("tcp", "192.0.0.1", 7070), "ECONNREFUSED", "denied closed_network"},
		{"the gateway answers ping", a("ping", "192.0.0.1"), "answered", ""},
		{"a neighbour that would have that address", a("tcp", "192.0.0.3", 80), "ECONNREFUSED|EHOSTUNREACH", ""},
		{"a name that is private", a("resolve", "private.test"), "unresolved", "denied private_answer"},
		{"a name that is the metadata", a("resolve", "metadata.test"), "unresolved", "denied private_answer"},
		{"a name that is loopback", a("resolve", "loop.test"), "unresolved", "denied private_answer"},
		{"a name that is the host", a("resolve", "host.test"), "unresolved", "denied private_answer"},
		{"a name that is private in part", a("resolve", "halfprivate.test"), "203.0.113.12", ""},
		{"localhost", a("resolve", "localhost"), "127.0.0.1 ::1", ""},
		{"its own name", a("shell", "getent ahostsv4 $(hostname) | head -1"), "127.0.1.1 …", ""},
		{"a short name in the search domain", a("resolve", "short"), "203.0.113.40", ""},
		{"a short name that is nowhere", a("resolve", "nowhere"), "unresolved", ""},
		{"a name under localhost", a("dns", "192.0.0.1", "x.localhost"), "NOERROR 1", ""},
		{"a name that is not there", a("dns", "192.0.0.1", "nothing.test"), "NXDOMAIN 0", ""},
		{"lookups over TCP", a("dns_tcp", "192.0.0.1", "api.test"), "NOERROR 1", ""},
		{"another resolver is the gateway", a("dns", "198.51.100.53", "same.test"), "NOERROR 1", ""},
		{"a private resolver", a("dns", "10.0.0.53", "api.test"), "ECONNREFUSED", "denied closed_network"},
		{"a reverse lookup of a private address", a("dns", "192.0.0.1", "7.0.0.10.in-addr.arpa", 12), "NXDOMAIN 0", "denied closed_network"},
		{"HTTPS records", a("dns", "192.0.0.1", "api.test", 65), "NOERROR 0", ""},
		{"everything about a name", a("dns", "192.0.0.1", "api.test", 255), "NOTIMP 0", ""},
		{"a zone transfer", a("dns_tcp", "192.0.0.1", "test", 252), "NOTIMP 0", ""},
		{"multicast", a("multicast", "239.255.255.250", 1900), "timeout", "denied multicast"},
		{"multicast over IPv6", a("multicast", "ff05::7", 1900), "timeout|E…", ""},
		{"broadcast", a("multicast", "255.255.255.255", 67), "timeout|E…", ""},
		{"its link's broadcast", a("multicast", "192.0.0.3", 67), "timeout|E…", ""},
		{"source routes", a("ip_options", "203.0.113.7", 7000), "timeout|E…|hello", ""},
		{"a raw socket", a("open_socket", "AF_INET", "SOCK_RAW", 255), "EPERM", ""},
		{"a packet socket", a("open_socket", "AF_PACKET", "SOCK_RAW", 768), "EPERM", ""},
		{"a raw socket for ping", a("open_socket", "AF_INET", "SOCK_RAW", 1), "EPERM", ""},
		{"a raw socket for router advertisements", a("open_socket", "AF_INET6", "SOCK_RAW", 58), "EPERM", ""},
		{"a packet socket without headers", a("open_socket", "AF_PACKET", "SOCK_DGRAM", 768), "EPERM", ""},
		{"its own address", a("netlink", "address"), "EPERM", ""},
		{"its own route", a("netlink", "route"), "EPERM", ""},
		{"its own MAC", a("netlink", "mac"), "EPERM", ""},
		{"its own neighbours", a("netlink", "neighbour"), "EPERM", ""},
		{"its interface down", a("netlink", "down"), "EPERM", ""},
		{"its interface down in the old way", a("interface_down"), "EPERM|ENOTTY|EOPNOTSUPP|ENOSYS|EINVAL", ""},
		{"and it still goes", a("tcp", "203.0.113.7", 7000), "hello\n", ""},
		{"another namespace", a("shell", "unshare -Urn curl -sS -m3 http://203.0.113.7/ 2>&1"), "…connect…|…unshare…", ""},
		{"curl", a("shell", "curl -sS -m5 --cacert /tmp/ca.pem https://api.test/"), "api.test at 203.0.113.7", ""},
		{"dig", a("shell", "dig +short +time=3 api.test"), "203.0.113.7", ""},
		{"requests", a("shell", "python3 -c \"import requests; print(requests.get('https://api.test/', verify='/tmp/ca.pem', timeout=5).text)\""), "api.test at 203.0.113.7", ""},
		{"Node", a("shell", "NODE_EXTRA_CA_CERTS=/tmp/ca.pem node -e \"fetch('https://api.test/').then(r=>r.text()).then(console.log)\""), "api.test at 203.0.113.7", ""},
	}},
	{policy: ringfence.NetworkPolicy{DenyOut: list("0.0.0.0/0")}, rows: []row{
		{"an address", a("tcp", "203.0.113.7", 7000), "ECONNREFUSED", "denied denied 0.0.0.0/0"},
		{"an IPv6 address", a("tcp", "2001:db8:1::7", 7000), "ECONNREFUSED", "denied denied 0.0.0.0/0"},
		{"UDP", a("udp", "203.0.113.7", 7000), "ECONNREFUSED", "denied denied 0.0.0.0/0"},
		{"ping", a("ping", "203.0.113.7"), "…silent…|prohibited", "denied denied 0.0.0.0/0"},
		{"a name", a("resolve", "leak-everything.test"), "unresolved", "denied denied 0.0.0.0/0"},
		{"another resolver", a("dns", "198.51.100.53", "leak-other.test"), "ECONNREFUSED", "denied denied 0.0.0.0/0"},
		{"another resolver over TCP", a("dns_tcp", "198.51.100.53", "leak-tcp.test"), "ECONNREFUSED", ""},
		{"DoT", a("tls", "198.51.100.53", 853, "dns.test"), "ECONNREFUSED", ""},
		{"DoH", a("tls", "198.51.100.53", 443, "dns.test"), "ECONNREFUSED", ""},
		{"localhost resolves", a("resolve", "localhost"), "127.0.0.1 ::1", ""},
	}},
	{policy: ringfence.NetworkPolicy{AllowInternetAccess: &no, AllowOut: list("203.0.113.8:7000")}, rows: []row{
		{"what is allowed", a("tcp", "203.0.113.8", 7000), "hello\n", "allowed allowed 203.0.113.8:7000"},
		{"another port", a("tcp", "203.0.113.8", 8080), "ECONNREFUSED", "denied not_allowed"},
		{"another address", a("tcp", "203.0.113.7", 7000), "ECONNREFUSED", "denied not_allowed"},
		{"a name", a("resolve", "leak-closed.test"), "unresolved", "denied not_allowed"},
	}},
	{policy: ringfence.NetworkPolicy{AllowOut: list("api.test *.b.test ~six[.]test private.test 203.0.113.20 evil.test:8080"), DenyOut: list("0.0.0.0/0")}, rows: []row{
		{"HTTP", a("url", "http://api.test/"), "api.test at 203.0.113.7", "allowed allowed api.test"},
		{"TLS", a("url", "https://api.test/"), "api.test at 203.0.113.7", "allowed allowed api.test"},
		{"a suffix at depth", a("url", "http://deep.a.b.test/"), "deep.a.b.test at 203.0.113.9", "allowed allowed *.b.test"},
		{"a suffix is not its bare name", a("resolve", "b.test"), "unresolved", "denied denied 0.0.0.0/0"},
		{"an expression", a("url", "http://six.test/"), "six.test at 2001:db8:1::7", "allowed allowed ~six[.]test"},
		{"a spoofed server name", a("tls", "203.0.113.7", 443, "other.test"), "TLS …ACCESS_DENIED", "denied name_mismatch"},
		{"no server name", a("tls", "203.0.113.7", 443, ""), "TLS …ACCESS_DENIED", "denied name_missing"},
		{"an allowed server name elsewhere", a("tls", "203.0.113.8", 443, "api.test"), "ECONNREFUSED", "denied denied 0.0.0.0/0"},
		{"a spoofed Host", a("http", "203.0.113.7", 80, "other.test"), "403 ringfence: …", "denied name_mismatch"},
		{"a spoofed Host on another port", a("http", "203.0.113.7", 8080, "other.test"), "403 …", ""},
		{"a spoofed Host in the second request", a("http", "203.0.113.7", 80, "api.test", "other.test"), "ECONNRESET|200 closed", "denied name_mismatch"},
		{"requests that agree", a("http", "203.0.113.7", 80, "api.test", "API.test:80"), "200 200 …", ""},
		{"a WebSocket", a("websocket", "203.0.113.7", 80, "api.test"), "a frame", "allowed allowed api.test"},
		{"a WebSocket to another name", a("websocket", "203.0.113.7", 80, "other.test"), "HTTP/1.1 403 …", ""},
		{"another name of the address", a("http", "203.0.113.7", 80, "same.test"), "403 …", ""},
		{"an absolute target", a("raw", "203.0.113.7", 80, "GET http://other.test/ HTTP/1.1\r\nHost: api.test\r\n\r\n"), "HTTP/1.1 403 …", ""},
		{"two Hosts", a("raw", "203.0.113.7", 80, "GET / HTTP/1.1\r\nHost: api.test\r\nHost: other.test\r\n\r\n"), "HTTP/1.1 403 …", "denied name_unreadable"},
		{"something else on port 80", a("raw", "203.0.113.7", 80, "\x00\x01\x02"), "ECONNRESET", "denied name_missing"},
		{"something else on port 443", a("raw", "203.0.113.7", 443, "SSH-2.0-x\r\n"), "ECONNRESET", ""},
		{"something else on another port", a("tcp", "203.0.113.7", 7000), "hello\n", ""},
		{"who speaks first", a("tcp", "203.0.113.7", 22, "SSH-2.0-x\r\n"), "banner\r\n", ""},
		{"a name over UDP", a("udp", "203.0.113.7", 123), "hello", ""},
		{"QUIC", a("udp", "203.0.113.7", 443), "ECONNREFUSED", "denied quic"},
		{"ping of a name's address", a("ping", "203.0.113.7"), "answered", ""},
		{"a name that is private", a("resolve", "private.test"), "unresolved", "denied private_answer"},
		{"its private address", a("tcp", "10.0.0.7", 7000), "ECONNREFUSED", "denied closed_network"},
		{"a name that is not allowed", a("resolve", "secret.leak-name.other.test"), "unresolved", "denied denied 0.0.0.0/0"},
		{"an address", a("tcp", "203.0.113.20", 7000), "hello\n", "allowed allowed 203.0.113.20"},
		{"TLS to an allowed address is not looked into", a("tls", "203.0.113.20", 443, "whatever.test"), "HTTP/1.1 …", ""},
		{"a name on another port", a("url", "http://evil.test/"), "ECONNREFUSED", "denied denied 0.0.0.0/0"},
		{"DoT to an allowed name", a("tls", "203.0.113.7", 853, "api.test"), "ECONNREFUSED", "denied resolver"},
	}},
	{policy: ringfence.NetworkPolicy{DenyOut: list("evil.test 198.51.100.0/24")}, rows: []row{
		{"what is not denied", a("url", "https://api.test/"), "api.test at 203.0.113.7", "allowed default"},
		{"a denied name", a("resolve", "evil.test"), "unresolved", "denied denied evil.test"},
		{"a denied name behind another", a("resolve", "alias.test"), "unresolved", "denied denied evil.test"},
		{"a denied name at its address", a("tls", "203.0.113.67", 443, "evil.test"), "TLS …ACCESS_DENIED", "denied denied evil.test"},
		{"an address that a denied name resolved to", a("tcp", "203.0.113.66", 7000), "ECONNREFUSED", "denied denied evil.test"},
		{"a denied name over HTTP", a("http", "203.0.113.67", 80, "evil.test"), "403 …", ""},
		{"a denied name in the second request", a("http", "203.0.113.67", 80, "api.test", "evil.test"), "ECONNRESET|200 closed", ""},
		{"a denied network", a("tcp", "198.51.100.7", 7000), "ECONNREFUSED", "denied denied 198.51.100.0/24"},
		{"QUIC", a("udp", "203.0.113.7", 443), "ECONNREFUSED", "denied quic"},
	}},
	{policy: ringfence.NetworkPolicy{AllowOut: list("0.0.0.0/0 203.0.113.7:25")}, rows: []row{
		{"everything", a("tcp", "203.0.113.7", 7000), "hello\n", "allowed allowed 0.0.0.0/0"},
		{"SMTP that is named", a("tcp", "203.0.113.7", 25), "banner\r\n", "allowed allowed 203.0.113.7:25"},
		{"SMTP elsewhere", a("tcp", "203.0.113.8", 25), "ECONNREFUSED", "denied smtp"},
		{"private all the same", a("tcp", "10.0.0.7", 7000), "ECONNREFUSED", "denied closed_network"},
		{"what the operator opened", a("tcp", "10.9.0.7", 7000), "hello\n", "allowed allowed 0.0.0.0/0"},
		{"what the operator opened over UDP", a("udp", "10.9.0.7", 7000), "hello", ""},
		{"by name", a("url", "http://inside.test/"), "inside.test at 10.9.0.7", ""},
		{"beside it", a("tcp", "10.10.0.7", 7000), "ECONNREFUSED", "denied closed_network"},
	}},
}

// TestSuite tries every attempt of the table. A resolver that never answers comes first.
func TestSuite(t *testing.T) {
	in := newInternet(t)
	in.services()
	s := newServer(t, "--open-networks", "10.9.0.0/16")
	sb := s.create(nil, in)
	trust := "env SSL_CERT_FILE=/tmp/ca.pem GIT_SSL_CAINFO=/tmp/ca.pem PIP_CERT=/tmp/ca.pem NODE_EXTRA_CA_CERTS=/tmp/ca.pem "
	clients := group{together: true, policy: ringfence.NetworkPolicy{AllowOut: clientPolicy("test")}, rows: clientRows("test", trust, func(rule string) string { return "allowed allowed " + rule })}
	for _, g := range append(slices.Clone(suite), clients) {
		name := fmt.Sprintf("allow %s deny %s", strings.Join(g.policy.AllowOut, ","), strings.Join(g.policy.DenyOut, ","))
		t.Run(name, func(t *testing.T) {
			if err := sb.UpdateNetwork(t.Context(), g.policy); err != nil {
				t.Fatal(err)
			}
			before := rows(t, sb)
			var attempts [][]any
			for _, r := range g.rows {
				attempts = append(attempts, r.attempt)
			}
			outcomes := try(t, sb, !g.together, attempts...)
			after := rows(t, sb)
			first := int64(0)
			if len(before) > 0 {
				for _, f := range before {
					first = max(first, f.ID)
				}
			}
			var log []string
			for _, f := range after {
				if f.ID > first {
					log = append(log, strings.TrimSpace(fmt.Sprintf("%s %s %s", f.Verdict, f.Reason, f.Rule))+fmt.Sprintf(" @ %s %s %d %s", f.Protocol, f.Address, f.Port, f.Name))
				}
			}
			for i, r := range g.rows {
				if !matches(outcomes[i], r.want) {
					t.Errorf("%s: %v: got %q, want %q", r.name, r.attempt, outcomes[i], r.want)
				}
				if r.log != "" && !logged(log, r) {
					t.Errorf("%s: %v: the log does not say %q", r.name, r.attempt, r.log)
				}
			}
			if t.Failed() {
				t.Logf("the log:\n%s", strings.Join(log, "\n"))
			}
		})
	}
	t.Run("neighbours", func(t *testing.T) {
		if err := sb.UpdateNetwork(t.Context(), ringfence.NetworkPolicy{AllowOut: list("0.0.0.0/0")}); err != nil {
			t.Fatal(err)
		}
		other := s.create(nil, in)
		r, err := other.Run(t.Context(), shell(`nohup python3 -c "
import socket
s = socket.create_server(('', 9009))
print('listens', flush=True)
while True: s.accept()[0].sendall(b'crossed')
" >/tmp/listens 2>&1 &
until grep -q listens /tmp/listens; do sleep 0.01; done`))
		if err != nil || r.ExitCode != 0 {
			t.Fatalf("%v %+v", err, r)
		}
		if out := try(t, other, true, a("tcp", "192.0.0.2", 9009)); out[0] != "crossed" {
			t.Errorf("its own address: %q", out)
		}
		for i, out := range try(t, sb, true, a("tcp", "192.0.0.2", 9009), a("tcp", "192.0.0.1", 9009), a("tcp", "203.0.113.1", 9009), a("resolve", other.ID())) {
			if out != "ECONNREFUSED" && out != "unresolved" {
				t.Errorf("attempt %d to reach another sandbox: %q", i, out)
			}
		}
	})
	t.Run("link down", func(t *testing.T) {
		sh(t, fmt.Sprintf("nsenter -t %d -n ip link set tap0 down", sentry(t, sb.ID())))
		if out := try(t, sb, true, a("shell", "timeout 1 bash -c 'exec 3<>/dev/tcp/203.0.113.7/7000'; echo $?")); !matches(out[0], "124|…1") {
			t.Errorf("something goes over a link that is down: %q", out)
		}
	})
	if in.asked("leak") {
		t.Errorf("a denied name left the host: %q", in.lookups)
	}
	if r, err := sb.Run(context.Background(), shell("echo alive")); err != nil || string(r.Stdout) != "alive\n" {
		t.Errorf("the sandbox: %v %+v", err, r)
	}
}

// sentry finds the process of a sandbox that holds its network.
func sentry(t testing.TB, id string) int {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		line, err := os.ReadFile(dir + "/cmdline")
		if err != nil || !bytes.Contains(line, []byte(id)) {
			continue
		}
		if devices, err := os.ReadFile(dir + "/net/dev"); err == nil && bytes.Contains(devices, []byte("tap0:")) {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			return pid
		}
	}
	t.Fatalf("no process has the link of %s", id)
	return 0
}

func matches(got, want string) bool {
	for _, w := range strings.Split(want, "|") {
		head, tail, open := strings.Cut(w, "…")
		if got == w || open && strings.HasPrefix(got, head) && strings.HasSuffix(strings.TrimSuffix(got, "…"), strings.TrimSuffix(tail, "…")) ||
			open && strings.HasSuffix(tail, "…") && strings.Contains(got, strings.TrimSuffix(tail, "…")) {
			return true
		}
	}
	return false
}

// logged reports whether the log has a row of the attempt's destination with the verdict.
func logged(log []string, r row) bool {
	if r.attempt[0] == "shell" { // by the name, which is the last word
		command := fmt.Sprint(r.attempt[1])
		return slices.ContainsFunc(log, func(line string) bool {
			verdict, at, _ := strings.Cut(line, " @ ")
			name := at[strings.LastIndexByte(at, ' ')+1:]
			return verdict == r.log && name != "" && strings.Contains(command, name)
		})
	}
	dest := fmt.Sprint(r.attempt[1])
	dest = strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(dest, "https://"), "http://"), "/")
	for _, line := range log {
		verdict, at, _ := strings.Cut(line, " @ ")
		for _, want := range strings.Split(r.log, "|") {
			if verdict == want && (strings.Contains(at, dest) || len(r.attempt) > 2 && strings.Contains(at, fmt.Sprint(r.attempt[2]))) {
				return true
			}
		}
	}
	return false
}

func shell(line string) client.Command { return client.Command{Shell: line, User: "root"} }
