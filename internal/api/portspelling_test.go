package api_test

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"ringfence.dev/ringfence"
)

// What lets a caller in stays out of the sandbox however it is spelled.
func TestPortSecretSpellings(t *testing.T) {
	s := newServing(t)
	for name, headers := range map[string][]string{
		"a page that the server does not know": {"Referer", "https://other.example/p?rf_expires=1&rf%5Fsignature=SECRET&z=3"},
		"two referers":                         {"Referer", "https://other.example/p?z=3", "Referer", s.url + s.path("/?rf_signature=SECRET")},
		"a user in the referer":                {"Referer", "https://SECRET:SECRET@other.example/p?z=3"},
	} {
		r := s.browser("GET", s.path("/"), append(headers, "X-API-Key", s.key)...)
		header, _ := r.json(t)["header"].(map[string]any)
		if got := fmt.Sprint(header["Referer"]); got != "[https://other.example/p?z=3]" {
			t.Errorf("%s: the referer is %s", name, got)
		}
	}
	r := s.send("GET", s.path("/"), "", "Sec-WebSocket-Protocol", "a, Ringfence.TOKEN.SECRET", "X_API_KEY", "SECRET", "x-access_token", "SECRET",
		"X_Forwarded_For", "SECRET", "X_Real_IP", "SECRET", "X_Own", "stays")
	if r.StatusCode != 200 || strings.Contains(string(r.body), "SECRET") || !strings.Contains(string(r.body), "stays") {
		t.Errorf("%d %s", r.StatusCode, r.body)
	}
}

// A second place cannot follow an empty first one: programs go to it, with the key.
func TestPortLocationTwice(t *testing.T) {
	s := newServing(t)
	for _, own := range []bool{false, true} {
		for _, first := range []string{"", " ", "\t"} {
			r := s.raw("HTTP/1.1 302 Found\r\nLocation:"+first+"\r\nLocation: http://evil.example/x\r\nLocation: /v1/keys\r\nContent-Length: 0\r\n\r\n", own)
			if got := r.Header.Values("Location"); len(got) > 0 || r.Header.Get("X-Ringfence-Location") != "http://evil.example/x" {
				t.Errorf("own %t: the places are %q, %v", own, got, r.Header)
			}
			r = s.raw("HTTP/1.1 302 Found\r\nLocation:"+first+"\r\nLocation: /v1/keys\r\nContent-Length: 0\r\n\r\n", own)
			want := strings.TrimSuffix(s.path("/v1/keys"), "/")
			if own {
				want = "/v1/keys"
			}
			if got := r.Header.Values("Location"); len(got) != 1 || got[0] != want {
				t.Errorf("own %t: the places are %q, want %q", own, got, want)
			}
		}
	}
}

func TestPortAnswerSpellings(t *testing.T) {
	s := newServing(t)
	for _, status := range []string{"000", "042", "099"} {
		r := s.raw("HTTP/1.1 "+status+" Odd\r\nContent-Length: 2\r\n\r\nok", false)
		s.refused(r, 502, ringfence.CodePortFailed, "")
	}
	r := s.raw("HTTP/1.1 200 OK\r\nSet-Cookie: =rf_port_link=1.2\r\nSet-Cookie: =a=1\r\nContent-Length: 0\r\n\r\n", true)
	if got := r.Header.Values("Set-Cookie"); len(got) != 1 || got[0] != "=a=1" {
		t.Errorf("the cookies are %q", got)
	}
	r = s.raw("HTTP/1.1 200 OK\r\nShared-Storage-Write: clear\r\nSecure-Session-Registration: (ES256);path=\"/\"\r\nAttribution-Reporting-Register-Source: {}\r\nContent-Length: 0\r\n\r\n", false)
	for _, name := range []string{"Shared-Storage-Write", "Secure-Session-Registration", "Attribution-Reporting-Register-Source"} {
		if got := r.Header.Values(name); len(got) > 0 {
			t.Errorf("%s is %q", name, got)
		}
	}
}

// The first line of an upgrade is no place for a header.
func TestPortUpgradeLine(t *testing.T) {
	s := newServing(t)
	answer := base64.StdEncoding.EncodeToString([]byte("HTTP/1.1 101 ok\rSet-Cookie: a=1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"))
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nX-API-Key: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
		s.path("/?raw="+url.QueryEscape(answer)), strings.TrimPrefix(s.url, "http://"), s.key)
	line, err := bufio.NewReader(conn).ReadString('\n')
	if want := "HTTP/1.1 101 " + http.StatusText(http.StatusSwitchingProtocols) + "\r\n"; err != nil || line != want {
		t.Errorf("%q %v, want %q", line, err, want)
	}
}
