package fake

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/guestproto"
)

// fakePort is a program that listens.
type fakePort struct {
	pid     int
	conns   chan net.Conn
	command string
}

// cmdServe is a web server that tells what it was asked:
//
//	fake-serve PORT
//
// Its answer is JSON: method, path, query, host, header, and the length of the body. The
// query may hold raw=BASE64, which is what it then writes in place of an answer.
func cmdServe(s *shell, args []string) int {
	port := 0
	if len(args) == 1 {
		port, _ = strconv.Atoi(args[0])
	}
	if port < 1 || port > 65535 {
		fmt.Fprintln(s.stderr, "fake-serve: which port?")
		return 2
	}
	p := &fakePort{conns: make(chan net.Conn), command: "fake-serve " + args[0]}
	if s.proc != nil {
		p.pid = s.proc.pid
	}
	s.g.mu.Lock()
	taken := s.g.ports[port] != nil
	if !taken {
		s.g.ports[port] = p
	}
	s.g.mu.Unlock()
	if taken {
		fmt.Fprintln(s.stderr, "fake-serve: address in use")
		return 1
	}
	server := &http.Server{Handler: http.HandlerFunc(mirror), ReadHeaderTimeout: time.Minute}
	defer context.AfterFunc(s.ctx, func() { server.Close() })()
	defer func() {
		s.g.mu.Lock()
		delete(s.g.ports, port)
		s.g.mu.Unlock()
	}()
	_, _ = io.WriteString(s.stdout, "serving\n") // whoever reads it
	_ = server.Serve(portListener{s.ctx, p})     // until it is closed
	return 128
}

func mirror(w http.ResponseWriter, r *http.Request) {
	if raw := r.URL.Query().Get("raw"); raw != "" {
		text, err := base64.StdEncoding.DecodeString(raw)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			defer conn.Close()
			_, _ = conn.Write(text) // the client may be gone
		}
		return
	}
	n, err := io.Copy(io.Discard, r.Body)
	if err != nil {
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{ // likewise
		"method": r.Method, "path": r.URL.EscapedPath(), "query": r.URL.RawQuery, "host": r.Host, "header": r.Header, "body": n,
	})
}

// portListener accepts what is dialled.
type portListener struct {
	ctx context.Context
	p   *fakePort
}

func (l portListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.p.conns:
		return c, nil
	case <-l.ctx.Done():
		return nil, net.ErrClosed
	}
}
func (portListener) Close() error   { return nil }
func (portListener) Addr() net.Addr { return &net.TCPAddr{} }

func (c *call) portList() any {
	g := c.s.g
	g.mu.Lock()
	defer g.mu.Unlock()
	list := guestproto.PortList{Ports: []guestproto.PortInfo{}}
	for _, port := range slices.Sorted(maps.Keys(g.ports)) {
		list.Ports = append(list.Ports, guestproto.PortInfo{Port: port, Address: "127.0.0.1", PID: g.ports[port].pid, Command: g.ports[port].command})
	}
	return list
}

func (c *call) portDial(req guestproto.Open) (any, error) {
	var dial guestproto.PortDial
	if err := params(req, &dial); err != nil {
		return nil, err
	}
	g := c.s.g
	g.mu.Lock()
	p := g.ports[dial.Port]
	g.mu.Unlock()
	if p == nil {
		return nil, ringfence.Errorf(ringfence.CodePortNotListening, "nothing listens on port %d", dial.Port).WithField("port")
	}
	host, program := net.Pipe()
	defer host.Close()
	c.event(guestproto.PortEvent{Address: "127.0.0.1"})
	select {
	case p.conns <- program:
	case <-c.done:
		return nil, errCanceled
	}
	over := make(chan struct{})
	defer close(over)
	go io.Copy(host, c) // until the host has said its last or gave up
	defer context.AfterFunc(g.ctx, func() { host.Close() })()
	go func() {
		select {
		case <-c.done:
			host.Close()
		case <-over:
		}
	}()
	var sent uint64
	buf := make([]byte, 32<<10)
	for {
		n, err := host.Read(buf)
		if n > 0 {
			if err := c.data(guestproto.TypeData, sent, buf[:n]); err != nil {
				return nil, err
			}
			sent += uint64(n)
		}
		if err != nil {
			c.event(guestproto.PortEvent{End: true})
			return nil, nil //nolint:nilnil // there is nothing to say
		}
	}
}
