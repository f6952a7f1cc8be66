package guest_test

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/guestlink"
	"ringfence.dev/ringfence/internal/guestproto"
)

// server listens on an address inside and answers each connection by what its first
// line says. It prints its port.
const server = `
import hashlib, socket, sys, threading
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
s = socket.socket(family, socket.SOCK_STREAM)
s.bind((sys.argv[1], 0))
s.listen(64)
print(s.getsockname()[1], flush=True)
def serve(c):
    f = c.makefile("rb")
    what = f.readline().split()
    if what[0] == b"hash":   # answers after the client's half is closed
        h, n = hashlib.sha256(), 0
        while True:
            b = f.read1(1 << 16)
            if not b: break
            h.update(b); n += len(b)
        c.sendall(b"%d %s\n" % (n, h.hexdigest().encode()))
    elif what[0] == b"flood":
        block, left = bytes(range(256)) * 256, int(what[1])
        while left:
            c.sendall(block[:left]); left -= min(left, len(block))
    elif what[0] == b"echo":
        while True:
            b = f.read1(1 << 16)
            if not b: break
            c.sendall(b)
    elif what[0] == b"bye":  # closes its half first, and then still listens
        c.sendall(b"bye\n"); c.shutdown(socket.SHUT_WR)
        print("heard", len(f.read()), flush=True)
    elif what[0] == b"reset":
        import struct
        c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    elif what[0] == b"silent":
        c.sendall(b"here\n")
        try: f.read()
        except ConnectionResetError: pass
        print("left", flush=True)
    f.close()
    c.close()
while True:
    threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
`

// listen starts the server and returns its port and what it prints.
func (b *bed) listen(t *testing.T, address string) (port int, p *guestlink.Process, said func() string) {
	t.Helper()
	lines := make(chan string, 16)
	p = b.start(t, guestproto.ProcessStart{Args: []string{"python3", "-c", server, address}}, func(c chunk) error {
		for line := range strings.Lines(string(c.Data)) {
			select {
			case lines <- strings.TrimSpace(line):
			default:
			}
		}
		return nil
	})
	t.Cleanup(func() {
		b.conn.Kill(testContext(t), guestproto.ProcessKill{ID: p.ID(), Signal: 9, Tree: true})
		p.Wait(testContext(t))
	})
	said = func() string {
		t.Helper()
		select {
		case line := <-lines:
			return line
		case <-time.After(time.Minute):
			t.Fatal("the server says nothing")
			return ""
		}
	}
	if _, err := fmt.Sscan(said(), &port); err != nil {
		t.Fatal(err)
	}
	return port, p, said
}

func (b *bed) dial(t *testing.T, port int, first string) *guestlink.PortConn {
	t.Helper()
	conn, err := b.conn.DialPort(testContext(t), port)
	if err != nil {
		t.Fatalf("cannot dial %d: %v", port, err)
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := io.WriteString(conn, first+"\n"); err != nil {
		t.Fatal(err)
	}
	return conn
}

func TestPorts(t *testing.T) {
	eachBed(t, func(t *testing.T, b *bed) {
		port, p, said := b.listen(t, "127.0.0.1")

		t.Run("half-close", func(t *testing.T) {
			data := make([]byte, 9<<20+7)
			rand.Read(data)
			conn := b.dial(t, port, "hash")
			if _, err := conn.Write(data); err != nil {
				t.Fatal(err)
			}
			if err := conn.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			answer, err := io.ReadAll(conn)
			sum := sha256.Sum256(data)
			if want := fmt.Sprintf("%d %s\n", len(data), hex.EncodeToString(sum[:])); err != nil || string(answer) != want {
				t.Errorf("%q %v, want %q", answer, err, want)
			}
			if _, err := conn.Write([]byte("x")); err == nil {
				t.Error("the closed half took more")
			}
		})
		t.Run("flow", func(t *testing.T) {
			const n = 20 << 20
			conn := b.dial(t, port, fmt.Sprintf("flood %d", n))
			// Nobody reads: the rest of the link goes on.
			if got := b.sh(t, "echo ok"); got.stdout != "ok\n" {
				t.Errorf("%+v", got)
			}
			var got bytes.Buffer
			if _, err := io.Copy(&got, conn); err != nil || got.Len() != n || !bytes.Equal(got.Bytes()[:256], got.Bytes()[n-256:]) {
				t.Errorf("%d bytes, %v", got.Len(), err)
			}
		})
		t.Run("both ways at once", func(t *testing.T) {
			conn := b.dial(t, port, "echo")
			data := make([]byte, 5<<20)
			rand.Read(data)
			go func() {
				conn.Write(data)
				conn.CloseWrite()
			}()
			got, err := io.ReadAll(conn)
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d bytes came back, %v", len(got), err)
			}
		})
		t.Run("the guest closes its half", func(t *testing.T) {
			conn := b.dial(t, port, "bye")
			if got, err := io.ReadAll(conn); err != nil || string(got) != "bye\n" {
				t.Errorf("%q %v", got, err)
			}
			if _, err := conn.Write(make([]byte, 100_000)); err != nil {
				t.Error(err)
			}
			if err := conn.CloseWrite(); err != nil {
				t.Error(err)
			}
			if got := said(); got != "heard 100000" {
				t.Error(got)
			}
		})
		t.Run("closed", func(t *testing.T) {
			conn := b.dial(t, port, "silent")
			if _, err := io.ReadFull(conn, make([]byte, len("here\n"))); err != nil {
				t.Fatal(err)
			}
			conn.Close()
			if got := said(); got != "left" {
				t.Error(got)
			}
			if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
				t.Errorf("read: %v", err)
			}
			if _, err := conn.Write(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
				t.Errorf("write: %v", err)
			}
		})
		t.Run("reset", func(t *testing.T) {
			conn := b.dial(t, port, "reset")
			if got, err := io.ReadAll(conn); err == nil && !b.gvisor { // the sentry may tell it as an end
				t.Errorf("a connection that was reset ended well: %q", got)
			}
		})
		t.Run("deadlines", func(t *testing.T) {
			conn := b.dial(t, port, "silent")
			if _, err := io.ReadFull(conn, make([]byte, len("here\n"))); err != nil {
				t.Fatal(err)
			}
			conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
			if _, err := conn.Read(make([]byte, 1)); !isTimeout(err) {
				t.Errorf("read: %v", err)
			}
			conn.SetReadDeadline(time.Time{})
			moved := make(chan error, 1)
			go func() {
				_, err := conn.Read(make([]byte, 1))
				moved <- err
			}()
			conn.SetReadDeadline(time.Now().Add(time.Hour))
			conn.SetReadDeadline(time.Now().Add(-time.Second))
			if err := <-moved; !isTimeout(err) {
				t.Errorf("a deadline that was moved: %v", err)
			}
			conn.SetWriteDeadline(time.Now().Add(-time.Second))
			_, err := conn.Write(make([]byte, 1<<20))
			if !isTimeout(err) {
				t.Errorf("write: %v", err)
			}
			conn.Close()
			said()
		})
		t.Run("list", func(t *testing.T) {
			ports, _, err := b.conn.Ports(testContext(t))
			if err != nil {
				t.Fatal(err)
			}
			found := 0
			for _, info := range ports {
				if info.Port == port {
					found++
					if info.Address != "127.0.0.1" || info.PID != p.PID() || !strings.HasPrefix(info.Command, "python3 -c") {
						t.Errorf("%+v, want pid %d", info, p.PID())
					}
				}
			}
			if found != 1 || b.gvisor && len(ports) != 1 {
				t.Errorf("%+v", ports)
			}
		})
		t.Run("nothing listens", func(t *testing.T) {
			free := 1 // nobody serves tcpmux
			_, err := b.conn.DialPort(testContext(t), free)
			wantCode(t, err, ringfence.CodePortNotListening, "port")
			for _, bad := range []int{0, -1, 65536} {
				_, err := b.conn.DialPort(testContext(t), bad)
				wantCode(t, err, ringfence.CodeInvalidArgument, "port")
			}
		})
		t.Run("other addresses", func(t *testing.T) {
			for _, address := range []string{"::1", "0.0.0.0", "127.0.3.4"} {
				port, _, _ := b.listen(t, address)
				conn := b.dial(t, port, "flood 3")
				if got, err := io.ReadAll(conn); err != nil || len(got) != 3 {
					t.Errorf("%s: %q %v", address, got, err)
				}
			}
		})
	})
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}
