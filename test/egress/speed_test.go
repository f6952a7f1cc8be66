package egress

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
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

// TestManyNetworks gives RINGFENCE_SOAK_NETWORKS sandboxes ten flows each at the same
// time, and prints what that takes of the daemon.
func TestManyNetworks(t *testing.T) {
	count, err := strconv.Atoi(os.Getenv("RINGFENCE_SOAK_NETWORKS"))
	if err != nil {
		t.Skip("make soak sets RINGFENCE_SOAK_NETWORKS")
	}
	newInternet(t)
	s := newServer(t)
	before := residentMB(t, s.cmd.Process.Pid)
	boxes := make([]*client.Sandbox, count)
	for i := range boxes {
		if boxes[i], err = s.c.Create(t.Context(), client.CreateOptions{MemoryMiB: 256}); err != nil {
			t.Fatalf("sandbox %d: %v", i, err)
		}
	}
	idle := residentMB(t, s.cmd.Process.Pid)
	const script = `nohup python3 -u -c "
import socket, time
held = [socket.create_connection(('203.0.113.7', 7000), 60) for _ in range(10)]
for round in range(3):
    for s in held: s.sendall(b'x' * 1000)
    for s in held:
        got = b''
        while len(got) < 1000: got += s.recv(1000)
print('held')
time.sleep(3600)
" >/tmp/held 2>&1 &
until grep -q held /tmp/held; do kill -0 $! || { cat /tmp/held; exit 1; }; sleep 0.1; done`
	var wg sync.WaitGroup
	for i, sb := range boxes {
		wg.Go(func() {
			if r, err := sb.Run(t.Context(), client.Command{Shell: script, Timeout: 10 * time.Minute}); err != nil || r.ExitCode != 0 {
				t.Errorf("sandbox %d: %v %+v", i, err, r)
			}
		})
	}
	wg.Wait()
	t.Logf("%d sandboxes: %.2f MB of the daemon for each idle, %.2f MB with 10 flows", count, (idle-before)/float64(count), (residentMB(t, s.cmd.Process.Pid)-before)/float64(count))
}

func residentMB(t testing.TB, pid int) float64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	var size, resident float64
	if err == nil {
		_, err = fmt.Sscan(string(text), &size, &resident)
	}
	if err != nil {
		t.Fatal(err)
	}
	return resident * float64(os.Getpagesize()) / 1e6
}

// cpuSeconds is what a process used so far.
func cpuSeconds(t testing.TB, pid int) float64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	f := strings.Fields(string(text[bytes.LastIndexByte(text, ')'):]))
	user, _ := strconv.ParseFloat(f[12], 64)
	system, _ := strconv.ParseFloat(f[13], 64)
	return (user + system) / 100
}

// BenchmarkFlood prints what one sandbox's flood costs: processor time of the daemon and
// of the sandbox, and another sandbox's connects and lookups beside it.
func BenchmarkFlood(b *testing.B) {
	in := newInternet(b)
	s := newServer(b)
	quiet := s.create(nil, in)
	loud, err := s.c.Create(b.Context(), client.CreateOptions{MemoryMiB: 1024, VCPU: 1})
	if err != nil {
		b.Fatal(err)
	}
	latency := func(when string) {
		r, err := quiet.Run(b.Context(), client.Command{Args: []string{"python3", "-c", latencyScript}, Timeout: 2 * time.Minute})
		b.Logf("%s: %v %s%s", when, err, r.Stdout, r.Stderr)
	}
	latency("alone")
	flood(b, loud)
	pids := []int{s.cmd.Process.Pid, sentry(b, loud.ID())}
	began, before := time.Now(), [2]float64{cpuSeconds(b, pids[0]), cpuSeconds(b, pids[1])}
	latency("beside the flood")
	took := time.Since(began).Seconds()
	b.Logf("the flood takes %.2f cores of the daemon, %.2f of its own sandbox", (cpuSeconds(b, pids[0])-before[0])/took, (cpuSeconds(b, pids[1])-before[1])/took)
}

const latencyScript = `
import socket, time
for name, f in (("connect", lambda: socket.create_connection(("203.0.113.7", 7000)).close()), ("lookup", lambda: socket.getaddrinfo("api.test", 80))):
    ts = []
    for _ in range(200):
        t = time.perf_counter(); f(); ts.append((time.perf_counter() - t) * 1e3)
        time.sleep(0.015) # below the limits
    ts.sort()
    print("%s %.2f ms, p95 %.2f ms, p99 %.2f ms" % (name, ts[100], ts[190], ts[198]))
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
