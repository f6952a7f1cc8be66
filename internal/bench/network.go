package bench

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"ringfence.dev/ringfence/client"
)

// The rows of the network need a server on this host that sandboxes may reach: the
// operator has to open an address of the host, which scripts/bench does.

// flowScript moves bytes between a sandbox and the bench over flows at the same time,
// and prints the seconds.
const flowScript = `
import os, socket, sys, threading, time
direction, host, port, size, flows = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])
ready = threading.Barrier(flows + 1)
def move():
    s = socket.create_connection((host, port), 10)
    s.sendall(direction.encode())
    ready.wait()
    block, done = bytearray(1 << 20), 0
    while done < size // flows:
        if direction == "d":
            n = s.recv_into(block)
            if not n: os._exit(3)
            done += n
        else:
            s.sendall(block)
            done += len(block)
    if direction == "u":
        s.shutdown(socket.SHUT_WR)
        s.recv(1)
threads = [threading.Thread(target=move) for _ in range(flows)]
for t in threads: t.start()
ready.wait()
began = time.perf_counter()
for t in threads: t.join()
print(time.perf_counter() - began)
`

// latencyScript prints the milliseconds that connects take more than one to the sandbox's
// own loopback does in the middle, and those of lookups that the gateway answers.
const latencyScript = `
import socket, struct, sys, time
host, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
def once(f):
    began = time.perf_counter()
    f()
    return (time.perf_counter() - began) * 1e3
def connect(to):
    socket.create_connection(to, 10).close()
own = socket.create_server(("127.0.0.1", 0), backlog=1000)
inside = sorted(once(lambda: connect(own.getsockname())) for _ in range(count))[count // 2]
question = struct.pack(">HHHHHH", 7, 0x0100, 1, 0, 0, 0) + b"\5bench\x09localhost\0" + struct.pack(">HH", 1, 1)
resolver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
resolver.settimeout(5)
resolver.connect(("192.0.0.1", 53))
def lookup():
    resolver.send(question)
    resolver.recv(4096)
for f, less in ((lambda: connect((host, port)), inside), (lookup, 0)):
    for _ in range(5): f()
    print(*[max(once(f) - less, 0) for _ in range(count)])
`

// flowServer serves flowScript on an address of this host. The bytes come and go
// until the other side has enough.
func flowServer() (listener net.Listener, err error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	for _, a := range addrs {
		ip, _, err := net.ParseCIDR(a.String())
		if err != nil || ip.To4() == nil || !ip.IsGlobalUnicast() {
			continue
		}
		if listener, err = net.Listen("tcp", net.JoinHostPort(ip.String(), "0")); err == nil {
			go serveFlows(listener)
			return listener, nil
		}
	}
	return nil, skipped("this host has no IPv4 address beside loopback")
}

func serveFlows(listener net.Listener) {
	for {
		c, err := listener.Accept()
		if err != nil {
			return // closed: the row is done
		}
		go func() {
			defer c.Close()
			direction := make([]byte, 1)
			if _, err := io.ReadFull(c, direction); err != nil {
				return // a connect that was timed
			}
			block := make([]byte, 1<<20)
			for direction[0] == 'd' {
				if _, err := c.Write(block); err != nil {
					return
				}
			}
			_, _ = io.Copy(io.Discard, c) // how it ends is seen inside
		}()
	}
}

// inside runs a script in the sandbox against a server on this host.
func (r *run) inside(ctx context.Context, script string, args func(host, port string) []string) (string, error) {
	s, err := r.sandbox(ctx)
	if err != nil {
		return "", err
	}
	listener, err := flowServer()
	if err != nil {
		return "", err
	}
	defer listener.Close()
	host, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		return "", err
	}
	result, err := s.Run(ctx, client.Command{Args: append([]string{"python3", "-c", script}, args(host, port)...), Timeout: 5 * time.Minute})
	if err != nil {
		return "", err
	}
	if strings.Contains(string(result.Stderr), "ConnectionRefusedError") {
		return "", skipped("sandboxes may not reach this host; start the server with --open-networks " + host)
	}
	return string(result.Stdout), result.Err()
}

// flow measures TCP connections of a sandbox at the same time.
func flow(direction string, flows int) func(*run, context.Context, *Row) error {
	return func(r *run, ctx context.Context, row *Row) error {
		row.Note = "with the other end on this host"
		for range r.samples(5) {
			out, err := r.inside(ctx, flowScript, func(host, port string) []string {
				return []string{direction, host, port, strconv.FormatInt(r.o.LargeBytes, 10), strconv.Itoa(flows)}
			})
			if err != nil {
				return err
			}
			seconds, err := strconv.ParseFloat(strings.TrimSpace(out), 64)
			if err != nil || seconds <= 0 {
				return fmt.Errorf("the sandbox said %q", out)
			}
			row.add(float64(r.o.LargeBytes) / 1e6 / seconds)
		}
		return nil
	}
}

// latency measures what line of latencyScript's output says.
func latency(line int, note string) func(*run, context.Context, *Row) error {
	return func(r *run, ctx context.Context, row *Row) error {
		row.Note = note
		out, err := r.inside(ctx, latencyScript, func(host, port string) []string {
			return []string{host, port, strconv.Itoa(r.samples(100))}
		})
		if err != nil {
			return err
		}
		lines := strings.Split(strings.TrimSpace(out), "\n")
		if len(lines) != 2 {
			return fmt.Errorf("the sandbox said %q", out)
		}
		for _, field := range strings.Fields(lines[line]) {
			ms, err := strconv.ParseFloat(field, 64)
			if err != nil {
				return fmt.Errorf("the sandbox said %q", out)
			}
			row.add(ms)
		}
		return nil
	}
}

// netIdle measures how much the daemon grows for each sandbox that idles: its end of the
// network, and all else that it keeps of one.
func (r *run) netIdle(ctx context.Context, row *Row) error {
	if r.host == nil {
		return r.elsewhere()
	}
	if _, err := r.sandbox(ctx); err != nil { // what the first one makes once
		return err
	}
	before, err := r.host.daemonRSS()
	if err != nil {
		return err
	}
	return r.idle(ctx, func(sandboxes [][]int) error {
		after, err := r.host.daemonRSS()
		if err == nil {
			row.Note = fmt.Sprintf("the daemon's growth with %d sandboxes, garbage included", len(sandboxes))
			row.add(max(float64(after-before), 0) / 1e6 / float64(len(sandboxes)))
		}
		return err
	})
}
