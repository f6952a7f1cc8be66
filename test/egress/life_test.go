package egress

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/client"
)

// held is a connection of a sandbox, seen from its other side.
type held struct {
	began chan struct{}
	ended chan error // how the other side saw it end; nil is a clean end
}

// hold listens for one connection and tells how it goes.
func (in *internet) hold(address string) held {
	h := held{make(chan struct{}), make(chan error, 1)}
	l := in.listen(address)
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		io.WriteString(c, "hello\n")
		close(h.began)
		_, err = io.Copy(io.Discard, c)
		h.ended <- err
	}()
	return h
}

// keep makes a sandbox hold a connection, in the background, on which it has heard something.
func keep(t *testing.T, sb *client.Sandbox, address string, port int) {
	t.Helper()
	script := fmt.Sprintf(`nohup python3 -c "
import socket
s = socket.create_connection(('%s', %d))
s.recv(10)
print('began', flush=True)
try:
    print('end', s.recv(10), flush=True)
except OSError as e:
    print('error', e.errno, flush=True)
" > /tmp/keep-%d 2>&1 &
until grep -q began /tmp/keep-%d; do sleep 0.01; done`, address, port, port, port)
	if r, err := sb.Run(t.Context(), shell(script)); err != nil || r.ExitCode != 0 {
		t.Fatalf("%v %+v", err, r)
	}
}

func (h held) wait(t *testing.T) {
	t.Helper()
	select {
	case <-h.began:
	case <-time.After(time.Minute):
		t.Fatal("no connection came")
	}
}

func (h held) reset(t *testing.T, what string) {
	t.Helper()
	select {
	case err := <-h.ended:
		if err == nil || !strings.Contains(err.Error(), "reset") {
			t.Errorf("%s: the other side saw %v, want a reset", what, err)
		}
	case <-time.After(time.Minute):
		t.Errorf("%s: the other side saw nothing", what)
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not in a minute", what)
		}
	}
}

func read(t *testing.T, sb *client.Sandbox, path string) string {
	t.Helper()
	r, err := sb.Run(t.Context(), shell("cat "+path))
	if err != nil {
		t.Fatal(err)
	}
	return string(r.Stdout)
}

// What ends a flow ends it for both sides at once, and new ones work.
func TestFlowsEnd(t *testing.T) {
	in := newInternet(t)
	s := newServer(t, "--dns-servers", "203.0.113.53")
	sb := s.create(nil, in)

	t.Run("PolicyChanges", func(t *testing.T) {
		denied, allowed := in.hold("203.0.113.7:7001"), in.hold("203.0.113.8:7002")
		keep(t, sb, "203.0.113.7", 7001)
		keep(t, sb, "203.0.113.8", 7002)
		denied.wait(t)
		allowed.wait(t)
		if err := sb.UpdateNetwork(t.Context(), ringfence.NetworkPolicy{DenyOut: []string{"203.0.113.7"}}); err != nil {
			t.Fatal(err)
		}
		denied.reset(t, "a flow that is denied now")
		eventually(t, "the sandbox's side", func() bool { return strings.Contains(read(t, sb, "/tmp/keep-7001"), "error 104") })
		select {
		case err := <-allowed.ended:
			t.Errorf("a flow that is allowed ended: %v", err)
		default:
		}
		if p, err := sb.Network(t.Context()); err != nil || fmt.Sprint(p.DenyOut) != "[203.0.113.7]" {
			t.Errorf("the policy: %v %+v", err, p)
		}
		found := false
		for _, f := range rows(t, sb) {
			found = found || f.Port == 7001 && f.Verdict == ringfence.VerdictDenied && f.Rule == "203.0.113.7" && f.BytesReceived == 6
		}
		if !found {
			t.Errorf("the log has no row about it: %+v", rows(t, sb))
		}
	})
	t.Run("BadPolicy", func(t *testing.T) {
		err := sb.UpdateNetwork(t.Context(), ringfence.NetworkPolicy{AllowOut: []string{"203.0.113.7", "no name"}})
		if e := ringfence.CodeOf(err); e != ringfence.CodeInvalidArgument || !strings.Contains(err.Error(), "no name") {
			t.Errorf("%v", err)
		}
		if out := try(t, sb, true, a("tcp", "203.0.113.7", 7000)); out[0] != "ECONNREFUSED" {
			t.Errorf("the policy before is gone: %q", out)
		}
	})
	t.Run("Rebinding", func(t *testing.T) {
		if err := sb.UpdateNetwork(t.Context(), ringfence.NetworkPolicy{AllowOut: []string{"rebind.test"}}); err != nil {
			t.Fatal(err)
		}
		in.mu.Lock()
		in.extra["rebind.test."] = []string{"10.0.0.7"}
		in.mu.Unlock()
		out := try(t, sb, true, a("resolve", "rebind.test"), a("http", "10.0.0.7", 80, "rebind.test"))
		if out[0] != "unresolved" || out[1] != "ECONNREFUSED" {
			t.Errorf("%q", out)
		}
	})
	t.Run("Log", func(t *testing.T) {
		denied, cursor, err := sb.NetworkLog(t.Context(), client.NetworkLogOptions{Verdict: ringfence.VerdictDenied, Limit: 1})
		if err != nil || len(denied) != 1 || denied[0].Verdict != ringfence.VerdictDenied {
			t.Fatalf("%v %+v", err, denied)
		}
		next, _, err := sb.NetworkLog(t.Context(), client.NetworkLogOptions{Verdict: ringfence.VerdictDenied, Limit: 1, Cursor: cursor})
		if err != nil || len(next) != 1 || next[0].ID == denied[0].ID {
			t.Errorf("the next page: %v %+v", err, next)
		}
		// A follower sees a row when it comes.
		_, end, err := sb.NetworkLog(t.Context(), client.NetworkLogOptions{Limit: 1000})
		if err != nil {
			t.Fatal(err)
		}
		came := make(chan []ringfence.NetworkFlow, 1)
		go func() {
			rows, _, _ := sb.NetworkLog(t.Context(), client.NetworkLogOptions{Cursor: end, Wait: 20 * time.Second})
			came <- rows
		}()
		try(t, sb, true, a("tcp", "203.0.113.99", 7000))
		select {
		case rows := <-came:
			if len(rows) == 0 || rows[0].Address.String() != "203.0.113.99" {
				t.Errorf("%+v", rows)
			}
		case <-time.After(time.Minute):
			t.Error("the follower saw nothing")
		}
	})
	t.Run("Paused", func(t *testing.T) {
		if err := sb.UpdateNetwork(t.Context(), ringfence.NetworkPolicy{DenyOut: []string{"203.0.113.8"}}); err != nil {
			t.Fatal(err)
		}
		h := in.hold("203.0.113.7:7005")
		keep(t, sb, "203.0.113.7", 7005)
		h.wait(t)
		if _, err := sb.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		h.reset(t, "a flow of a sandbox that was paused")
		if _, err := sb.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		out := try(t, sb, true, a("tcp", "203.0.113.7", 7000), a("url", "http://api.test/"), a("tcp", "203.0.113.8", 7000))
		if out[0] != "hello\n" || !strings.HasPrefix(out[1], "api.test at") || out[2] != "ECONNREFUSED" {
			t.Errorf("after the resume: %q", out)
		}
		eventually(t, "the sandbox's side", func() bool { return read(t, sb, "/tmp/keep-7005") != "began\n" })
		found := false // the log goes on
		for _, f := range rows(t, sb) {
			found = found || f.Port == 7001 && f.Rule == "203.0.113.7"
		}
		if !found {
			t.Errorf("the log begins anew: %+v", rows(t, sb))
		}
	})
	t.Run("DaemonKilled", func(t *testing.T) {
		if err := sb.UpdateNetwork(t.Context(), ringfence.NetworkPolicy{DenyOut: []string{"203.0.113.8"}}); err != nil {
			t.Fatal(err)
		}
		h := in.hold("203.0.113.7:7003")
		keep(t, sb, "203.0.113.7", 7003)
		h.wait(t)
		s.stop(syscall.SIGKILL)
		select { // the host's kernel ends it, as the process is gone
		case <-h.ended:
		case <-time.After(time.Minute):
			t.Error("the other side saw nothing")
		}
		s.start()
		out := try(t, sb, true, a("tcp", "203.0.113.7", 7000), a("url", "http://api.test/"), a("tcp", "203.0.113.8", 7000))
		if out[0] != "hello\n" || !strings.HasPrefix(out[1], "api.test at") || out[2] != "ECONNREFUSED" {
			t.Errorf("after the restart: %q", out)
		}
		// The policy is in force from the first moment, and the sandbox sees that what the
		// old daemon carried has ended, although it only waits.
		eventually(t, "the sandbox's side", func() bool { return strings.Contains(read(t, sb, "/tmp/keep-7003"), "error 104") })
	})
	t.Run("Killed", func(t *testing.T) {
		h := in.hold("203.0.113.7:7004")
		keep(t, sb, "203.0.113.7", 7004)
		h.wait(t)
		if err := sb.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		h.reset(t, "a flow of a sandbox that was killed")
	})
}

const floodScript = `nohup timeout 20 python3 -c "
import socket, threading
def syn():
    while True:
        s = socket.socket(); s.setblocking(False)
        try: s.connect(('203.0.113.7', 7000))
        except OSError: pass
        s.close()
def udp():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    while True:
        try: s.sendto(b'x', ('10.0.0.7', 7000))
        except OSError: pass
def dns():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    while True:
        s.sendto(bytes.fromhex('000701000001000000000000036f6e65047465737400000100 01'.replace(' ', '')), ('192.0.0.1', 53))
for f in (syn, udp, dns): threading.Thread(target=f).start()
" >/tmp/flood 2>&1 & sleep 0.5`

// flood makes a sandbox send as much as it can for 20 s.
func flood(t testing.TB, sb *client.Sandbox) {
	t.Helper()
	if r, err := sb.Run(t.Context(), shell(floodScript)); err != nil || r.ExitCode != 0 {
		t.Fatalf("%v %+v", err, r)
	}
}

// One sandbox's flood costs no other sandbox its network.
func TestFlood(t *testing.T) {
	in := newInternet(t)
	s := newServer(t, "--dns-servers", "203.0.113.53")
	loud, quiet := s.create(nil, in), s.create(nil, in)
	flood(t, loud)
	for range 3 {
		out := try(t, quiet, true, a("tcp", "203.0.113.7", 7000), a("url", "http://api.test/"), a("dns", "192.0.0.1", "same.test"), a("udp", "203.0.113.7", 7000))
		for i, want := range []string{"hello\n", "api.test at", "NOERROR", "hello"} {
			if !strings.HasPrefix(out[i], want) {
				t.Errorf("beside a flood: %q", out)
				break
			}
		}
	}
	var over, total int64
	for _, f := range rows(t, loud) {
		if strings.HasPrefix(f.Reason, "limit_") {
			over += f.Count
		}
		total += f.Count
	}
	if over == 0 {
		t.Errorf("nothing of the flood was over a limit: %d rows", total)
	}
	// It is itself again when the flood is over.
	if _, err := loud.Run(t.Context(), shell("pkill -9 python3; sleep 2")); err != nil {
		t.Fatal(err)
	}
	if out := try(t, loud, true, a("tcp", "203.0.113.7", 7000)); out[0] != "hello\n" {
		t.Errorf("after its flood: %q; flood said %s", out, read(t, loud, "/tmp/flood"))
	}
	if got, err := quiet.Run(t.Context(), shell("echo alive")); err != nil || !bytes.Equal(got.Stdout, []byte("alive\n")) {
		t.Errorf("%v %+v", err, got)
	}
}

// The limits on flows: what is over is refused at once, and the rest works on.
func TestLimits(t *testing.T) {
	in := newInternet(t)
	s := newServer(t, "--dns-servers", "203.0.113.53")
	sb := s.create(nil, in)
	out := try(t, sb, true, a("many", "203.0.113.7", 7000, 1500))
	var held int
	if _, err := fmt.Sscan(out[0], &held); err != nil || held < 100 || held > 1024 || !strings.Contains(out[0], "ECONNREFUSED") {
		t.Errorf("%q", out)
	}
	other := s.create(nil, in)
	if out := try(t, other, true, a("tcp", "203.0.113.7", 7000)); out[0] != "hello\n" {
		t.Errorf("another sandbox: %q", out)
	}
}

// Bandwidth is held both ways, and counted.
func TestBandwidth(t *testing.T) {
	const rate, size = 4e6, 12e6
	in := newInternet(t)
	in.each("203.0.113.7:9000", func(c net.Conn) { io.Copy(c, io.LimitReader(zeroes{}, size)) })
	in.each("203.0.113.7:9001", func(c net.Conn) {
		io.Copy(io.Discard, c)
		io.WriteString(c, "all")
	})
	s := newServer(t, "--max-network-mb", "4")
	sb := s.create(&ringfence.NetworkPolicy{DenyOut: list("203.0.113.8")}, in)
	for i, out := range try(t, sb, false, a("download", "203.0.113.7", 9000), a("upload", "203.0.113.7", 9001, int(size))) {
		var bytes, seconds float64
		if _, err := fmt.Sscan(out, &bytes, &seconds); err != nil || bytes != size {
			t.Fatalf("attempt %d: %q", i, out)
		}
		// What passes at once before the rate counts is 256 KiB; the rest is allowance.
		if least := (size - 1e6) / rate; seconds < least {
			t.Errorf("attempt %d: %v bytes in %v s, want at least %v s", i, bytes, seconds, least)
		}
	}
	if out := try(t, sb, true, a("tcp", "203.0.113.8", 7000)); out[0] != "ECONNREFUSED" {
		t.Errorf("%q", out)
	}
	m, err := sb.Metrics(t.Context(), time.Time{}, time.Time{})
	if err != nil || m.Now.NetworkReceivedBytes < size || m.Now.NetworkSentBytes < size || m.Now.NetworkDenied != 1 {
		t.Errorf("the metrics: %v %+v", err, m.Now)
	}
}

type zeroes struct{}

func (zeroes) Read(b []byte) (int, error) { return len(b), nil }
