package world

import (
	"context"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"

	"ringfence.dev/ringfence/internal/testenv"
)

func TestMain(m *testing.M) { Main(m) }

// What fails a test has to be seen: a name that is looked up, and an address that is
// dialled without one.
func TestNoticed(t *testing.T) {
	testenv.RequireRoot(t)
	for program, want := range map[string]string{
		"urllib.request.urlopen('https://api.vendor.example/sandboxes')": "looked up api.vendor.example.",
		"socket.create_connection(('198.51.100.20', 443))":               "dialled 198.51.100.20:443",
		"socket.create_connection(('2001:db8::20', 443))":                "dialled [2001:db8::20]:443",
	} {
		Noticed()
		exec.Command("python3", "-c", "import socket, urllib.request\n"+program).Run() // some fail, as they should
		// The listener may be a moment behind.
		conn, err := net.Dial("tcp", "127.0.0.1:443")
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, conn)
		conn.Close()
		if seen := Noticed(); !strings.Contains(strings.Join(seen, "\n"), want) {
			t.Errorf("%s: noticed %q, want %q", program, seen, want)
		}
	}
	if seen := Noticed(); len(seen) > 0 {
		t.Errorf("loopback itself is noticed: %q", seen)
	}
}

func TestName(t *testing.T) {
	testenv.RequireRoot(t)
	Name("api.known.test", "203.0.113.7")
	resp, err := (&http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		return (&net.Dialer{Resolver: &net.Resolver{PreferGo: true}}).DialContext(ctx, network, address)
	}}}).Get("http://api.known.test:8080/")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "api.known.test:8080 at 203.0.113.7:8080\n" {
		t.Errorf("%q %v", body, err)
	}
	if seen := Noticed(); len(seen) > 0 {
		t.Errorf("a known name is noticed: %q", seen)
	}
}
