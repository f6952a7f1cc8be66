// Package egress tries from inside a sandbox what may and what must not leave it. The
// tests run in a network namespace of their own, with another one in the place of the
// internet: in that one every address answers, the private ones too, so that only the
// gateway can be why something cannot be reached.
package egress

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	_ "embed"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/client"
	"ringfence.dev/ringfence/internal/testenv"
)

//go:embed attempt.py
var attemptScript string

const childEnv = "RINGFENCE_TEST_EGRESS_NAMESPACE"

// TestMain runs the tests in a network namespace of their own, and a mount namespace in
// which the host's resolvers are those of the test.
func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		os.Exit(m.Run())
	}
	if os.Getenv(childEnv) != "" {
		if err := ownResolvers(); err != nil {
			fmt.Fprintln(os.Stderr, "cannot put other resolvers in place:", err)
			os.Exit(1)
		}
		os.Exit(m.Run())
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
}

// resolvConf is the host's configuration as the tests see it. The first resolver never answers.
const resolvConf = "nameserver 203.0.113.54\nnameserver 203.0.113.53\nsearch corp.test\n"

// ownResolvers puts resolvConf in place, in this mount namespace alone.
func ownResolvers() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	target, err := filepath.EvalSymlinks("/etc/resolv.conf")
	if err != nil {
		return err
	}
	own, err := os.CreateTemp("", "resolv-*.conf")
	if err != nil {
		return err
	}
	defer os.Remove(own.Name()) // the mount keeps it
	if _, err := own.WriteString(resolvConf); err != nil {
		return err
	}
	if err := errors.Join(own.Chmod(0o644), own.Close()); err != nil {
		return err
	}
	return unix.Mount(own.Name(), target, "", unix.MS_BIND, "")
}

// internet is the namespace in the place of the internet.
type internet struct {
	t       testing.TB
	pid     int // of a process that is in it
	ca      []byte
	pair    tls.Certificate // of all servers
	mu      sync.Mutex
	lookups []string // names that its resolver was asked for
	extra   map[string][]string
	// handlers of HTTP, by the first label of the host; the others say hello.
	handlers map[string]http.Handler
}

// zone is what its resolver knows.
var zone = map[string][]string{
	"api.test.": {"203.0.113.7"}, "other.test.": {"203.0.113.8"}, "same.test.": {"203.0.113.7"},
	"deep.a.b.test.": {"203.0.113.9"}, "b.test.": {"203.0.113.10"}, "six.test.": {"2001:db8:1::7"},
	"both.test.": {"203.0.113.11", "2001:db8:1::11"}, "evil.test.": {"203.0.113.66"},
	"private.test.": {"10.0.0.7"}, "metadata.test.": {"169.254.169.254"}, "mapped.test.": {"::ffff:10.0.0.7"},
	"halfprivate.test.": {"10.0.0.7", "203.0.113.12"}, "loop.test.": {"127.0.0.1"}, "host.test.": {"203.0.113.1"},
	"short.corp.test.": {"203.0.113.40"},
	"inside.test.":     {"10.9.0.7"}, "dead.test.": {"203.0.113.13"},
	"git.test.": {"203.0.113.30"}, "index.test.": {"203.0.113.31"}, "npm.test.": {"203.0.113.32"}, "deb.test.": {"203.0.113.33"},
}

func sh(t testing.TB, line string) {
	t.Helper()
	args := strings.Fields(line)
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", line, err, out)
	}
}

func newInternet(t testing.TB) *internet {
	t.Helper()
	testenv.RequireRoot(t)
	holder := exec.Command("sleep", "3600")
	holder.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		sh(t, "ip link del up0")
		sh(t, "ip addr del 203.0.113.1/32 dev lo")
		holder.Process.Kill()
		holder.Wait()
	})
	in := &internet{t: t, pid: holder.Process.Pid, extra: map[string][]string{}, handlers: map[string]http.Handler{}}
	// The host has the address 203.0.113.1, beside those of its link.
	for _, line := range []string{
		"ip link set lo up", "ip link add up0 type veth peer name in0", fmt.Sprintf("ip link set in0 netns %d", in.pid),
		"ip addr add 172.30.0.1/30 dev up0", "ip addr add 203.0.113.1/32 dev lo", "ip -6 addr add 2001:db8:ffff::1/64 dev up0 nodad", "ip link set up0 up",
	} {
		sh(t, line)
	}
	inside := fmt.Sprintf("nsenter -t %d -n ", in.pid)
	for _, line := range []string{
		"ip link set lo up", "ip addr add 172.30.0.2/30 dev in0", "ip -6 addr add 2001:db8:ffff::2/64 dev in0 nodad", "ip link set in0 up",
	} {
		sh(t, inside+line)
	}
	for _, network := range []string{"203.0.113.0/24", "198.51.100.0/24", "10.0.0.0/8", "100.64.0.0/10", "169.254.0.0/16", "192.168.0.0/16"} {
		sh(t, inside+"ip route add local "+network+" dev lo")
	}
	for _, network := range []string{"2001:db8:1::/48", "fd00::/8", "64:ff9b::/96"} {
		sh(t, inside+"ip -6 route add local "+network+" dev lo")
	}
	sh(t, inside+"ip -6 addr add 2001:db8:1::7/128 dev lo nodad") // to bind to
	sh(t, "ip route add default via 172.30.0.2")
	sh(t, "ip -6 route add default via 2001:db8:ffff::2")
	in.serve()
	return in
}

// in runs f on a thread that is in the namespace. What it opens stays there.
func (in *internet) in(f func()) {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", in.pid))
		if err == nil {
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
			ns.Close()
		}
		if err == nil {
			f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		in.t.Fatal(err)
	}
}

func (in *internet) listen(address string) net.Listener {
	var l net.Listener
	var err error
	in.in(func() { l, err = net.Listen("tcp", address) })
	if err != nil {
		in.t.Fatal(err)
	}
	in.t.Cleanup(func() { l.Close() })
	return l
}

func (in *internet) each(address string, serve func(net.Conn)) {
	l := in.listen(address)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				serve(c)
			}()
		}
	}()
}

func (in *internet) serve() {
	hello := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		label, _, _ := strings.Cut(r.Host, ".")
		in.mu.Lock()
		handler := in.handlers[label]
		in.mu.Unlock()
		if handler != nil {
			handler.ServeHTTP(w, r)
			return
		}
		if r.Header.Get("Upgrade") == "websocket" {
			c, buffered, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			defer c.Close()
			io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
			io.Copy(c, buffered)
			return
		}
		host, _, _ := net.SplitHostPort(r.Context().Value(http.LocalAddrContextKey).(net.Addr).String())
		fmt.Fprintf(w, "%s at %s\n", r.Host, host)
	})
	for _, port := range []string{":80", ":8080"} {
		go http.Serve(in.listen(port), hello)
	}
	pair := in.certificate()
	in.pair = pair
	for _, port := range []string{":443", ":8443", ":853"} {
		go http.Serve(tls.NewListener(in.listen(port), &tls.Config{Certificates: []tls.Certificate{pair}}), hello)
	}
	in.each(":7000", func(c net.Conn) { io.Copy(c, c) })
	for _, port := range []string{":22", ":25"} { // who speaks first
		in.each(port, func(c net.Conn) {
			io.WriteString(c, "banner\r\n")
			io.Copy(io.Discard, c)
		})
	}
	for _, address := range []string{"203.0.113.7:7000", "203.0.113.7:443", "203.0.113.7:123", "10.0.0.7:7000", "[2001:db8:1::7]:7000", "10.9.0.7:7000"} {
		var c net.PacketConn
		var err error
		in.in(func() { c, err = net.ListenPacket("udp", address) })
		if err != nil {
			in.t.Fatal(err)
		}
		in.t.Cleanup(func() { c.Close() })
		go func() {
			buf := make([]byte, 1<<16)
			for {
				n, from, err := c.ReadFrom(buf)
				if err != nil {
					return
				}
				c.WriteTo(buf[:n], from)
			}
		}()
	}
	in.in(func() {
		for _, address := range []string{"203.0.113.53:53", "203.0.113.54:53", "198.51.100.53:53"} {
			c, err := net.ListenPacket("udp", address)
			if err != nil {
				in.t.Fatal(err)
			}
			l, err := net.Listen("tcp", address)
			if err != nil {
				in.t.Fatal(err)
			}
			handler := dns.HandlerFunc(in.answer)
			if strings.HasPrefix(address, "203.0.113.54") {
				handler = func(dns.ResponseWriter, *dns.Msg) {} // never answers
			}
			for _, s := range []*dns.Server{{PacketConn: c, Handler: handler}, {Listener: l, Handler: handler}} {
				go s.ActivateAndServe()
				in.t.Cleanup(func() { s.Shutdown() })
			}
		}
	})
}

func (in *internet) answer(w dns.ResponseWriter, q *dns.Msg) {
	reply := new(dns.Msg)
	reply.SetReply(q)
	name := strings.ToLower(q.Question[0].Name)
	in.mu.Lock()
	in.lookups = append(in.lookups, name)
	addresses, ok := in.extra[name]
	in.mu.Unlock()
	if !ok {
		addresses, ok = zone[name]
	}
	if name == "alias.test." {
		reply.Answer = append(reply.Answer, &dns.CNAME{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeCNAME, Class: 1, Ttl: 60}, Target: "evil.test."})
		addresses, ok, name = zone["evil.test."], true, "evil.test."
	}
	if !ok {
		reply.Rcode = dns.RcodeNameError
	}
	for _, a := range addresses {
		ip := net.ParseIP(a)
		switch {
		case q.Question[0].Qtype == dns.TypeA && ip.To4() != nil && !strings.Contains(a, ":"):
			reply.Answer = append(reply.Answer, &dns.A{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: 1, Ttl: 60}, A: ip})
		case q.Question[0].Qtype == dns.TypeAAAA && strings.Contains(a, ":"):
			reply.Answer = append(reply.Answer, &dns.AAAA{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeAAAA, Class: 1, Ttl: 60}, AAAA: ip})
		}
	}
	w.WriteMsg(reply)
}

// asked reports whether the resolver was asked for a name that holds text.
func (in *internet) asked(text string) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return slices.ContainsFunc(in.lookups, func(name string) bool { return strings.Contains(name, text) })
}

func (in *internet) certificate() tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		in.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, DNSNames: []string{"*.only.test", "git.test", "index.test", "npm.test", "deb.test", "api.test", "other.test", "same.test", "evil.test", "*.b.test", "b.test"},
		IPAddresses: []net.IP{net.ParseIP("10.8.0.1")},
		NotBefore:   time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		in.t.Fatal(err)
	}
	in.ca = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// server is a daemon of the real binary.
type server struct {
	t      testing.TB
	dir    string
	listen string
	flags  []string
	key    string
	c      *client.Client
	cmd    *exec.Cmd
	log    *os.File
}

func newServer(t testing.TB, flags ...string) *server {
	t.Helper()
	testenv.RequireTemplate(t, "code-interpreter")
	s := &server{t: t, dir: t.TempDir(), listen: "127.0.0.1:7070", key: ringfence.NewAPIKey(), flags: flags}
	var err error
	if s.c, err = client.New(client.Options{BaseURL: "http://" + s.listen, APIKey: s.key}); err != nil {
		t.Fatal(err)
	}
	if s.log, err = os.Create(filepath.Join(s.dir, "log")); err != nil {
		t.Fatal(err)
	}
	s.start()
	t.Cleanup(func() {
		for sb, err := range s.c.List(context.Background(), client.ListOptions{}) {
			if err != nil || sb.Kill(context.Background()) != nil {
				t.Errorf("cannot clean up: %v", err)
			}
		}
		s.stop(syscall.SIGTERM)
		if t.Failed() {
			log, _ := os.ReadFile(s.log.Name())
			t.Logf("the daemon's log:\n%s", log[max(0, len(log)-4000):])
		}
	})
	return s
}

func (s *server) start() {
	s.t.Helper()
	args := append([]string{"serve", "--listen", s.listen, "--data-dir", filepath.Join(s.dir, "data"), "--template-dir", testenv.TemplateDir(), "--log-level", "warn"}, s.flags...)
	s.cmd = exec.Command(testenv.RequireBinary(s.t), args...)
	s.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "RINGFENCE_API_KEY=" + s.key}
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	for began := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		if _, err := s.c.Health(context.Background()); err == nil {
			return
		}
		if time.Since(began) > 30*time.Second {
			s.t.Fatal("the daemon does not answer")
		}
	}
}

func (s *server) stop(signal syscall.Signal) {
	s.cmd.Process.Signal(signal)
	s.cmd.Wait()
}

// create makes a sandbox with what attempts need.
func (s *server) create(p *ringfence.NetworkPolicy, in *internet) *client.Sandbox {
	s.t.Helper()
	sb, err := s.c.Create(s.t.Context(), client.CreateOptions{Network: p, MemoryMiB: 1024})
	if err != nil {
		s.t.Fatal(err)
	}
	for path, text := range map[string]string{"/tmp/attempt.py": attemptScript, "/tmp/ca.pem": string(in.ca)} {
		if _, err := sb.Files().Write(s.t.Context(), path, strings.NewReader(text), client.WriteOptions{}); err != nil {
			s.t.Fatal(err)
		}
	}
	return sb
}

// try runs attempts in a sandbox, all at the same time unless oneByOne.
func try(t testing.TB, sb *client.Sandbox, oneByOne bool, attempts ...[]any) []string {
	t.Helper()
	raw, err := json.Marshal(attempts)
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]string{}
	if oneByOne {
		env["ONE_BY_ONE"] = "1"
	}
	r, err := sb.Run(t.Context(), client.Command{Args: []string{"python3", "/tmp/attempt.py"}, Stdin: bytes.NewReader(raw), Env: env, User: "root", Timeout: 5 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	var outcomes []string
	if err := json.Unmarshal(r.Stdout, &outcomes); err != nil {
		t.Fatalf("%v: %s %s", err, r.Stdout, r.Stderr)
	}
	return outcomes
}

// rows returns all rows of a sandbox's log.
func rows(t testing.TB, sb *client.Sandbox) []ringfence.NetworkFlow {
	t.Helper()
	rows, _, err := sb.NetworkLog(t.Context(), client.NetworkLogOptions{Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	return rows
}
