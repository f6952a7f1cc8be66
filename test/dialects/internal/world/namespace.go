// Package world is where the tests of dialects run: a network namespace of their own
// that has loopback and nothing else, a real server in it, and the published packages,
// installed from lock files before. What tries to leave is noticed, and fails the test.
package world

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

const childEnv = "RINGFENCE_TEST_DIALECT_NAMESPACE"

// Main installs packages, and runs a package's tests in a network namespace in which
// every address is the namespace's own. It does not return.
func Main(m *testing.M, packages ...Package) {
	if os.Geteuid() != 0 { // the tests say that they need it
		os.Exit(m.Run())
	}
	if os.Getenv(childEnv) != "" {
		if err := enter(); err != nil {
			fmt.Fprintln(os.Stderr, "cannot set up the namespace:", err)
			os.Exit(1)
		}
		os.Exit(m.Run())
	}
	for _, p := range packages {
		if err := p.install(); err != nil {
			fmt.Fprintf(os.Stderr, "cannot install %s: %v\n", p.Run, err)
			os.Exit(1)
		}
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), childEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // Pdeathsig is about this thread
	if err := cmd.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// outside is what the namespace has in the place of the world.
var outside struct {
	mu    sync.Mutex
	known map[string]string // names that may be looked up, with their addresses; guarded by mu
	seen  []string          // what wanted to leave; guarded by mu
}

// Name lets a name be looked up that a test means to reach. Its address answers HTTP on
// port 8080, and says which it is.
func Name(name, address string) {
	outside.mu.Lock()
	defer outside.mu.Unlock()
	if outside.known == nil {
		outside.known = map[string]string{}
	}
	outside.known[dns.Fqdn(name)] = address
}

func notice(format string, args ...any) {
	outside.mu.Lock()
	defer outside.mu.Unlock()
	outside.seen = append(outside.seen, fmt.Sprintf(format, args...))
}

// Noticed returns what wanted to leave, and forgets it.
func Noticed() []string {
	outside.mu.Lock()
	defer outside.mu.Unlock()
	seen := outside.seen
	outside.seen = nil
	return seen
}

// enter sets up a namespace that this process is in.
func enter() error {
	for _, line := range []string{
		"mount --make-rprivate /", "ip link set lo up",
		// Whatever is dialled ends here, where it is noticed.
		"ip route add local 0.0.0.0/0 dev lo", "ip -6 route add local ::/0 dev lo",
	} {
		args := strings.Fields(line)
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", line, err, out)
		}
	}
	dir, err := os.MkdirTemp("", "ringfence-dialects-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) // the mount keeps the file
	conf := filepath.Join(dir, "resolv.conf")
	if err := os.WriteFile(conf, []byte("nameserver 127.0.0.1\n"), 0o644); err != nil {
		return err
	}
	if err := unix.Mount(conf, "/etc/resolv.conf", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("cannot mount a resolv.conf: %w", err)
	}
	return watch()
}

// watch serves what is asked of the world.
func watch() error {
	packets, err := net.ListenPacket("udp", "127.0.0.1:53")
	if err != nil {
		return err
	}
	stream, err := net.Listen("tcp", "127.0.0.1:53")
	if err != nil {
		return err
	}
	for _, s := range []*dns.Server{{PacketConn: packets, Handler: dns.HandlerFunc(resolve)}, {Listener: stream, Handler: dns.HandlerFunc(resolve)}} {
		go s.ActivateAndServe()
	}
	for _, port := range []string{":80", ":443"} {
		l, err := net.Listen("tcp", port)
		if err != nil {
			return err
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				if to := c.LocalAddr().(*net.TCPAddr); !to.IP.IsLoopback() {
					notice("something dialled %s", to)
				}
				c.Close()
			}
		}()
	}
	l, err := net.Listen("tcp", ":8080")
	if err != nil {
		return err
	}
	go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s at %s\n", r.Host, r.Context().Value(http.LocalAddrContextKey))
	}))
	return nil
}

func resolve(w dns.ResponseWriter, q *dns.Msg) {
	reply := new(dns.Msg)
	reply.SetReply(q)
	question := q.Question[0]
	outside.mu.Lock()
	address, ok := outside.known[strings.ToLower(question.Name)]
	outside.mu.Unlock()
	switch {
	case !ok:
		notice("something looked up %s", question.Name)
		reply.Rcode = dns.RcodeNameError
	case question.Qtype == dns.TypeA:
		reply.Answer = append(reply.Answer, &dns.A{
			Hdr: dns.RR_Header{Name: question.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: net.ParseIP(address),
		})
	}
	w.WriteMsg(reply)
}
