package egress

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// hello returns what a real client sends first.
func hello(t testing.TB, name string) []byte {
	t.Helper()
	client, server := net.Pipe()
	defer server.Close()
	go func() {
		tls.Client(client, &tls.Config{ServerName: name, InsecureSkipVerify: name == ""}).Handshake()
		client.Close()
	}()
	head := make([]byte, 5)
	if _, err := server.Read(head); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, binary.BigEndian.Uint16(head[3:]))
	for n := 0; n < len(body); {
		m, err := server.Read(body[n:])
		if err != nil {
			t.Fatal(err)
		}
		n += m
	}
	return append(head, body...)
}

// split cuts the one record of a hello into records of size bytes.
func split(b []byte, size int) []byte {
	var out []byte
	for body := b[5:]; len(body) > 0; {
		n := min(size, len(body))
		out = append(out, 22, 3, 1, byte(n>>8), byte(n))
		out = append(out, body[:n]...)
		body = body[n:]
	}
	return out
}

// feed gives b to a guard in pieces, and returns what it let through and its last word.
func feed(g *Guard, b []byte, piece int) (passed []byte, d Decision, ok bool) {
	var pending []byte
	for ok = true; len(b) > 0 && ok; {
		n := min(piece, len(b))
		pending, b = append(pending, b[:n]...), b[n:]
		n, d, ok = g.Pass(pending)
		passed, pending = append(passed, pending[:n]...), pending[n:]
	}
	return passed, d, ok
}

func TestGuard(t *testing.T) {
	get := func(host string) string { return "GET / HTTP/1.1\r\nHost: " + host + "\r\n\r\n" }
	ok, bad := get("ok.example"), get("bad.example")
	post := func(header, body string) string {
		return "POST / HTTP/1.1\r\nHost: ok.example\r\n" + header + "\r\n\r\n" + body
	}
	ws := "GET /s HTTP/1.1\r\nHost: ok.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
	for _, tc := range []struct {
		name   string
		port   uint16
		sent   string
		passed int // bytes that may leave; -1: all
		reason Reason
		absent bool // also refused where only denied names are looked for
	}{
		{"TLS", 443, string(hello(t, "ok.example")) + "anything", -1, "", false},
		{"TLS cut into records", 443, string(split(hello(t, "ok.example"), 7)), -1, "", false},
		{"TLS, another name", 443, string(hello(t, "bad.example")), 0, ReasonNameMismatch, true},
		{"TLS, another name cut into records", 443, string(split(hello(t, "bad.example"), 11)), 0, ReasonNameMismatch, true},
		{"TLS without a name", 443, string(hello(t, "")), 0, ReasonNameMissing, false},
		{"TLS on another port", 8443, string(hello(t, "bad.example")), 0, ReasonNameMismatch, true},
		{"TLS, damaged", 443, "\x16\x03\x01\x00\x04\x02\x00\x00\x00", 0, ReasonNameUnreadable, true},
		{"TLS, a record too long", 443, "\x16\x03\x01\xff\xff\x01\x00\x00\x00", 0, ReasonNameUnreadable, true},
		{"no TLS on 443", 443, "SSH-2.0-x\r\n", 0, ReasonNameMissing, false},
		{"no HTTP on 80", 80, "SSH-2.0-x\r\n", 0, ReasonNameMissing, false},
		{"SSH", 22, "SSH-2.0-OpenSSH_9.2p1 Debian\r\n\x00\x01", -1, "", false},
		{"binary", 5432, "\x00\x00\x00\x08\x04\xd2\x16\x2f", -1, "", false},
		{"HTTP", 80, ok + ok, -1, "", false},
		{"HTTP with a port", 80, get("ok.example:80"), -1, "", false},
		{"HTTP, upper case and a dot", 80, get("OK.Example."), -1, "", false},
		{"HTTP, another name", 80, bad, 0, ReasonNameMismatch, true},
		{"HTTP on another port", 8080, bad, 0, ReasonNameMismatch, true},
		{"HTTP, the second request", 80, ok + bad, len(ok), ReasonNameMismatch, true},
		{"HTTP, after blank lines", 8080, "\r\n\r\n" + bad, 0, ReasonNameMismatch, true},
		{"HTTP, no host", 80, "GET / HTTP/1.1\r\n\r\n", 0, ReasonNameMissing, false},
		{"HTTP/1.0 without a host", 80, "GET / HTTP/1.0\r\n\r\n", 0, ReasonNameMissing, false},
		{"HTTP/0.9", 8080, "GET /\r\n\r\n", 0, ReasonNameUnreadable, true},
		{"HTTP, two hosts", 80, "GET / HTTP/1.1\r\nHost: ok.example\r\nHost: bad.example\r\n\r\n", 0, ReasonNameUnreadable, true},
		{"HTTP, an absolute target", 80, "GET http://bad.example/ HTTP/1.1\r\nHost: ok.example\r\n\r\n", 0, ReasonNameMismatch, true},
		{"HTTP, an absolute target that agrees", 80, "GET http://ok.example:80/x?y HTTP/1.1\r\nHost: ok.example\r\n\r\n", -1, "", false},
		{"HTTP, a user in the host", 80, get("ok.example@bad.example"), 0, ReasonNameUnreadable, true},
		{"HTTP, a list of hosts", 80, get("ok.example, bad.example"), 0, ReasonNameUnreadable, true},
		{"HTTP, a folded line", 80, "GET / HTTP/1.1\r\nX: y\r\n Host: bad.example\r\nHost: ok.example\r\n\r\n", 0, ReasonNameUnreadable, true},
		{"HTTP, space before the colon", 80, "GET / HTTP/1.1\r\nHost : bad.example\r\nHost: ok.example\r\n\r\n", 0, ReasonNameUnreadable, true},
		{"HTTP, bare line feeds", 80, "GET / HTTP/1.1\nHost: ok.example\n\n", 0, ReasonNameUnreadable, true},
		{"HTTP, a bare carriage return", 80, "GET / HTTP/1.1\r\nX: a\rHost: bad.example\r\nHost: ok.example\r\n\r\n", 0, ReasonNameUnreadable, true},
		{"HTTP CONNECT", 80, "CONNECT ok.example:443 HTTP/1.1\r\nHost: ok.example\r\n\r\n", 0, ReasonNameUnreadable, true},
		{"HTTP/2 without TLS", 80, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 0, ReasonNameUnreadable, true},
		{"HTTP, a body", 80, post("Content-Length: 5", "GET /") + ok, -1, "", false},
		{"HTTP, after a body", 80, post("Content-Length: 5", "hello") + bad, len(post("Content-Length: 5", "hello")), ReasonNameMismatch, true},
		{"HTTP, chunks", 80, post("Transfer-Encoding: chunked", "3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\nT: x\r\n\r\n") + ok, -1, "", false},
		{"HTTP, after chunks", 80, post("Transfer-Encoding: chunked", "3\r\nabc\r\n0\r\n\r\n") + bad, len(post("Transfer-Encoding: chunked", "3\r\nabc\r\n0\r\n\r\n")), ReasonNameMismatch, true},
		{"HTTP, both lengths", 80, post("Content-Length: 5\r\nTransfer-Encoding: chunked", ""), 0, ReasonNameUnreadable, true},
		{"HTTP, two lengths", 80, post("Content-Length: 5\r\nContent-Length: 6", ""), 0, ReasonNameUnreadable, true},
		{"HTTP, a signed length", 80, post("Content-Length: +5", ""), 0, ReasonNameUnreadable, true},
		{"HTTP, another encoding", 80, post("Transfer-Encoding: gzip, chunked", ""), 0, ReasonNameUnreadable, true},
		{"HTTP, a bad chunk size", 80, post("Transfer-Encoding: chunked", "-1\r\n"), len(post("Transfer-Encoding: chunked", "")), ReasonNameUnreadable, true},
		{"HTTP, a chunk without its end", 80, post("Transfer-Encoding: chunked", "1\r\naXX"), len(post("Transfer-Encoding: chunked", "1\r\na")), ReasonNameUnreadable, true},
		{"HTTP, a second request that upgrades", 80, ok + ws, len(ok), ReasonNameUnreadable, true},
		{"HTTP, what follows an upgrade waits", 80, ws + "frames", len(ws), "", false},
		{"HTTP, an endless head", 80, "GET / HTTP/1.1\r\nHost: ok.example\r\nX: " + strings.Repeat("x", maxHead), 0, ReasonNameUnreadable, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			want := tc.passed
			if want < 0 {
				want = len(tc.sent)
			}
			decide := func(name string) Decision {
				if strings.EqualFold(strings.TrimSuffix(name, "."), "ok.example") {
					return Decision{Allow: true}
				}
				return deny(ReasonNameMismatch, "")
			}
			for _, piece := range []int{1, 7, len(tc.sent)} {
				passed, d, ok := feed(NewGuard(CheckAllow, tc.port, decide), []byte(tc.sent), piece)
				if string(passed) != tc.sent[:want] || ok != (tc.reason == "") || !ok && d.Reason != tc.reason {
					t.Errorf("in pieces of %d: let %d bytes through, want %d; %v %+v", piece, len(passed), want, ok, d)
				}
				if _, d, ok := feed(NewGuard(CheckDeny, tc.port, decide), []byte(tc.sent), piece); ok == tc.absent {
					t.Errorf("in pieces of %d, looking for denied names: %v %+v", piece, ok, d)
				}
			}
		})
	}
}

func TestGuardUpgrade(t *testing.T) {
	request := func(upgrade string) []byte {
		return []byte("GET /s HTTP/1.1\r\nHost: ok.example\r\nUpgrade: " + upgrade + "\r\n\r\n")
	}
	for _, tc := range []struct {
		upgrade, answer string
		after           string
		ok              bool
	}{
		{"websocket", "HTTP/1.1 101 Switching Protocols\r\n\r\n", "frames", true},
		{"websocket", "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 101 Switching Protocols\r\n\r\n", "frames", true},
		{"websocket", "HTTP/1.1 404 Not Found\r\n\r\n", "GET / HTTP/1.1\r\nHost: bad.example\r\n\r\n", false},
		{"websocket", "HTTP/1.1 404 Not Found\r\n\r\n", "GET / HTTP/1.1\r\nHost: ok.example\r\n\r\n", true},
		{"h2c", "HTTP/1.1 101 Switching Protocols\r\n\r\n", "PRI * HTTP/2.0\r\n\r\n", false},
		{"h2c", "HTTP/1.1 200 OK\r\n\r\n", "GET / HTTP/1.1\r\nHost: ok.example\r\n\r\n", true},
		{"websocket", "ICY 200 OK of another kind\r\n\r\n", "frames", false},
	} {
		for _, piece := range []int{1, 1000} {
			g := NewGuard(CheckAllow, 80, func(name string) Decision { return Decision{Allow: name == "ok.example"} })
			if _, _, ok := feed(g, request(tc.upgrade), 1000); !ok {
				t.Fatalf("%s: the request was refused", tc.upgrade)
			}
			if n, _, _ := g.Pass([]byte(tc.after)); n != 0 {
				t.Errorf("%s: %d bytes passed before the answer", tc.upgrade, n)
			}
			for answer := []byte(tc.answer); len(answer) > 0; {
				n := min(piece, len(answer))
				if !g.Answered(answer[:n]) {
					break
				}
				answer = answer[n:]
			}
			if _, _, ok := feed(g, []byte(tc.after), piece); ok != tc.ok {
				t.Errorf("%s, %q, then %q: %v", tc.upgrade, tc.answer, tc.after, ok)
			}
		}
	}
}

// Whatever is sent, and in whatever pieces: another reader of what passed, a more
// forgiving one, finds no request for another host in it.
func FuzzGuard(f *testing.F) {
	f.Add([]byte("GET / HTTP/1.1\r\nHost: ok.example\r\n\r\nGET / HTTP/1.1\r\nHost: bad.example\r\n\r\n"), uint8(3))
	f.Add([]byte("POST / HTTP/1.1\r\nHost: ok.example\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"), uint8(1))
	f.Add(hello(f, "ok.example"), uint8(9))
	f.Add(split(hello(f, "bad.example"), 5), uint8(2))
	f.Fuzz(func(t *testing.T, sent []byte, piece uint8) {
		for _, piece := range []int{len(sent) + 1, int(piece) + 1} {
			asked := ""
			g := NewGuard(CheckAllow, 80, func(name string) Decision {
				asked = name
				return Decision{Allow: strings.EqualFold(strings.TrimSuffix(name, "."), "ok.example")}
			})
			passed, _, _ := feed(g, sent, piece)
			if len(passed) > 0 && asked == "" {
				t.Fatalf("%q passed and no name was asked for", passed)
			}
			if _, kind := g.Name(); kind == "tls" {
				continue
			}
			for r := bufio.NewReader(bytes.NewReader(passed)); ; {
				req, err := http.ReadRequest(r)
				if err != nil {
					break
				}
				host, _, _ := strings.Cut(req.Host, ":")
				if !strings.EqualFold(strings.TrimSuffix(host, "."), "ok.example") {
					t.Fatalf("%q passed, with a request for %q", passed, req.Host)
				}
				if _, err := io.Copy(io.Discard, req.Body); err != nil {
					break
				}
			}
		}
	})
}

func FuzzServerName(f *testing.F) {
	f.Add(hello(f, "ok.example"))
	f.Add(split(hello(f, "ok.example"), 3))
	f.Fuzz(func(t *testing.T, b []byte) {
		name, p, want := serverName(b)
		if p != complete && name != "" || p == needMore && want <= len(b) {
			t.Fatalf("%q %v, want %d of %d", name, p, want, len(b))
		}
	})
}
