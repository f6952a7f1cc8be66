package egress

import (
	"io"
	"net"
	"testing"
	"time"

	"ringfence.dev/ringfence/client"
)

const speedScript = `
import socket, time, threading, sys
def down(n, out):
    s = socket.create_connection(("203.0.113.7", 9000)); b = bytearray(1 << 20); got = 0
    while got < n:
        k = s.recv_into(b)
        if not k: break
        got += k
    s.close(); out.append(got)
def up(n, out):
    s = socket.create_connection(("203.0.113.7", 9001)); b = bytes(1 << 20); sent = 0
    while sent < n:
        s.sendall(b); sent += len(b)
    s.shutdown(socket.SHUT_WR); s.recv(1); s.close(); out.append(sent)
def run(f, flows, each):
    out = []; t = time.time()
    ts = [threading.Thread(target=f, args=(each, out)) for _ in range(flows)]
    [x.start() for x in ts]; [x.join() for x in ts]
    return sum(out) / (time.time() - t) / 1e6
for name, f in (("down", down), ("up", up)):
    print(name, 1, "flow %.0f MB/s" % run(f, 1, 256 << 20)); print(name, 64, "flows %.0f MB/s" % run(f, 64, 4 << 20))
ts = []
for _ in range(50):
    t = time.perf_counter(); s = socket.create_connection(("203.0.113.7", 7000)); ts.append(time.perf_counter() - t); s.close()
print("connect %.2f ms" % (sorted(ts)[25] * 1e3))
ts = []
for _ in range(50):
    t = time.perf_counter(); socket.getaddrinfo("api.test", 80); ts.append(time.perf_counter() - t)
print("lookup %.2f ms" % (sorted(ts)[25] * 1e3))
`

// BenchmarkGateway prints what the gateway does: go test -bench . ./test/egress -run xxx.
func BenchmarkGateway(t *testing.B) {
	in := newInternet(t)
	block := make([]byte, 1<<20)
	in.each(":9000", func(c net.Conn) {
		for {
			if _, err := c.Write(block); err != nil {
				return
			}
		}
	})
	in.each(":9001", func(c net.Conn) { io.Copy(io.Discard, c) })
	s := newServer(t, "--dns-servers", "203.0.113.53", "--debug")
	sb := s.create(nil, in)
	r, err := sb.Run(t.Context(), client.Command{Args: []string{"python3", "-u", "-c", speedScript}, Timeout: 2 * time.Minute})
	t.Logf("%v\n%s%s", err, r.Stdout, r.Stderr)
}
