// Package ports tests ports, metrics and events end to end: the real server, a real
// sandbox, and JupyterLab in it.
package ports

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/client"
	"ringfence.dev/ringfence/internal/testenv"
)

// world is a server with one sandbox.
type world struct {
	t   *testing.T
	url string
	key string
	cmd *exec.Cmd
	log *bytes.Buffer
	c   *client.Client
	sb  *client.Sandbox
}

func newWorld(t *testing.T) *world {
	t.Helper()
	testenv.RequireRoot(t)
	testenv.RequireTemplate(t, "code-interpreter")
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listen := free.Addr().String()
	free.Close()
	w := &world{t: t, url: "http://" + listen, key: ringfence.NewAPIKey(), log: &bytes.Buffer{}}
	w.cmd = exec.Command(testenv.RequireBinary(t), "serve", "--listen", listen, "--data-dir", filepath.Join(t.TempDir(), "data"),
		"--template-dir", testenv.TemplateDir(), "--domain", "box.localhost")
	w.cmd.Env = append(os.Environ(), "RINGFENCE_API_KEY="+w.key)
	w.cmd.Stderr = w.log
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if w.sb != nil {
			if err := w.sb.Kill(context.Background()); err != nil {
				t.Error(err)
			}
		}
		w.cmd.Process.Signal(syscall.SIGTERM)
		w.cmd.Wait()
		if t.Failed() {
			lines := strings.Split(w.log.String(), "\n")
			t.Log(strings.Join(lines[max(0, len(lines)-20):], "\n"))
		}
	})
	if w.c, err = client.New(client.Options{BaseURL: w.url, APIKey: w.key}); err != nil {
		t.Fatal(err)
	}
	w.wait("the server", func() bool { _, err := w.c.Health(t.Context()); return err == nil })
	if w.sb, err = w.c.Create(t.Context(), client.CreateOptions{MemoryMiB: 1024}); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) wait(what string, is func() bool) {
	w.t.Helper()
	for end := time.Now().Add(90 * time.Second); !is(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("waited in vain for %s", what)
		}
	}
}

func (w *world) start(args ...string) {
	w.t.Helper()
	if _, err := w.sb.StartProcess(w.t.Context(), client.ProcessOptions{Args: args, WorkDir: "/home/user"}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) request(method, path string, body io.Reader, headers ...string) *http.Response {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, path, body)
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+w.key)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// status asks for a page and returns the status of the answer.
func (w *world) status(url string) int {
	w.t.Helper()
	resp := w.request("GET", url, nil)
	resp.Body.Close()
	return resp.StatusCode
}

func (w *world) at(port int, path string) string {
	return fmt.Sprintf("%s/v1/sandboxes/%s/ports/%d%s", w.url, w.sb.ID(), port, path)
}

const program = `
import hashlib, http.server, time
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *a): pass
    def do_GET(self):
        if self.path == "/events":
            self.send_response(200); self.send_header("Content-Type", "text/event-stream"); self.send_header("Transfer-Encoding", "chunked"); self.end_headers()
            for i in range(3):
                self.wfile.write(b"%x\r\n%s\r\n" % (9, b"data: %d\n\n" % i)); self.wfile.flush()
                if i < 2: ask.wait(30); ask.clear()
            self.wfile.write(b"0\r\n\r\n")
        elif self.path == "/more": ask.set(); self.answer(b"ok")
        elif self.path == "/silent": print("asked", flush=True); self.rfile.read(1); print("left", flush=True)
        elif self.path.startswith("/big"):
            n = int(self.path.split("=")[1]); self.send_response(200); self.send_header("Content-Length", str(n)); self.end_headers()
            block = bytes(range(256)) * 4096
            while n: self.wfile.write(block[:n]); n -= min(n, len(block))
        else: self.answer(repr(dict(self.headers)).encode())
    def do_POST(self):
        h, left = hashlib.sha256(), int(self.headers["Content-Length"])
        while left:
            b = self.rfile.read(min(left, 1 << 20)); h.update(b); left -= len(b)
        self.answer(h.hexdigest().encode())
    def answer(self, b): self.send_response(200); self.send_header("Content-Length", str(len(b))); self.end_headers(); self.wfile.write(b)
import threading; ask = threading.Event()
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), H).serve_forever()
`

func TestPorts(t *testing.T) {
	w := newWorld(t)
	w.start("python3", "-c", program)
	// Started early: the other tests run while it gets ready.
	w.start("jupyter", "lab", "--no-browser", "--allow-root", "--ip=127.0.0.1", "--port=8888", "--IdentityProvider.token=", "--ServerApp.password=")
	w.start("python3", "-c", site)
	listens := func(port int) func() bool {
		return func() bool {
			p, err := w.sb.Ports().Get(t.Context(), port)
			return err == nil && p.Address != ""
		}
	}
	w.wait("the program", listens(8000))

	t.Run("list", func(t *testing.T) {
		list, err := w.sb.Ports().List(t.Context())
		if err != nil || len(list) == 0 || list[0].Port.Port != 8000 || list[0].Address != "127.0.0.1" || list[0].PID == 0 || !strings.HasPrefix(list[0].Command, "python3") {
			t.Errorf("%+v %v", list, err)
		}
	})
	// Before all that leaves connections open for the next request.
	t.Run("at most 256 connections", func(t *testing.T) {
		var open []net.Conn
		defer func() {
			for _, conn := range open {
				conn.Close()
			}
		}()
		for len(open) < ringfence.MaxPortConnections {
			conn, err := w.sb.Ports().Dial(t.Context(), 8000)
			if err != nil {
				t.Fatalf("connection %d: %v", len(open)+1, err)
			}
			open = append(open, conn)
		}
		if _, err := w.sb.Ports().Dial(t.Context(), 8000); ringfence.CodeOf(err) != ringfence.CodeResourceExhausted {
			t.Errorf("one more connection: %v", err)
		}
		if got := w.status(w.at(8123, "/")); got != http.StatusTooManyRequests { // nor to another port
			t.Errorf("one more request: %d", got)
		}
		open[0].Close()
		open = open[1:]
		w.wait("room for a request", func() bool { return w.status(w.at(8000, "/")) == http.StatusOK })
	})
	t.Run("nothing listens", func(t *testing.T) {
		resp := w.request("GET", w.at(8001, "/"), nil)
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != 502 || !bytes.Contains(text, []byte("nothing listens on port 8001")) {
			t.Errorf("%d %s", resp.StatusCode, text)
		}
		if _, err := w.sb.Ports().Dial(t.Context(), 8001); ringfence.CodeOf(err) != ringfence.CodePortNotListening {
			t.Error(err)
		}
	})
	t.Run("what authenticated stays out", func(t *testing.T) {
		resp := w.request("GET", w.at(8000, "/"), nil, "X-Access-Token", string(w.sb.AccessToken()))
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != 200 || bytes.Contains(text, []byte(w.key)) || bytes.Contains(text, []byte(w.sb.AccessToken())) || !bytes.Contains(text, []byte("localhost:8000")) {
			t.Errorf("%d %s %v", resp.StatusCode, text, err)
		}
		if resp.Header.Get("Content-Security-Policy") == "" {
			t.Error("the answer has no policy")
		}
	})
	t.Run("large bodies", func(t *testing.T) {
		const n = 64 << 20
		before := w.rss()
		body := make([]byte, n)
		for i := range body {
			body[i] = byte(i * 7 >> 3)
		}
		began := time.Now()
		resp := w.request("POST", w.at(8000, "/"), bytes.NewReader(body))
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if sum := fmt.Sprintf("%x", sha256.Sum256(body)); err != nil || string(text) != sum {
			t.Errorf("%s %v, want %s", text, err, sum)
		}
		t.Logf("up: %.0f MB/s", n/1e6/time.Since(began).Seconds())
		began = time.Now()
		resp = w.request("GET", w.at(8000, fmt.Sprintf("/big=%d", 2*n)), nil)
		defer resp.Body.Close()
		got, err := io.Copy(io.Discard, resp.Body)
		if err != nil || got != 2*n {
			t.Errorf("%d bytes, %v", got, err)
		}
		t.Logf("down: %.0f MB/s", 2*n/1e6/time.Since(began).Seconds())
		if grown := w.rss() - before; grown > 64<<20 {
			t.Errorf("the server grew by %d MiB", grown>>20)
		}
	})
	t.Run("streams are not gathered", func(t *testing.T) {
		resp := w.request("GET", w.at(8000, "/events"), nil)
		defer resp.Body.Close()
		buf := make([]byte, 100)
		for i := range 3 {
			n, err := io.ReadAtLeast(resp.Body, buf, 9)
			if want := fmt.Sprintf("data: %d\n\n", i); err != nil || string(buf[:n]) != want {
				t.Fatalf("%q %v, want %q", buf[:n], err, want)
			}
			if i < 2 { // the program sends no more before it is asked to
				more := w.request("GET", w.at(8000, "/more"), nil)
				defer more.Body.Close()
				if more.StatusCode != 200 {
					t.Fatal(more.Status)
				}
			}
		}
	})
	t.Run("a client that leaves", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		req, _ := http.NewRequestWithContext(ctx, "GET", w.at(8000, "/silent"), nil)
		req.Header.Set("Authorization", "Bearer "+w.key)
		done := make(chan error, 1)
		go func() { _, err := http.DefaultTransport.RoundTrip(req); done <- err }() //nolint:bodyclose // none comes
		said := func(word string) func() bool {
			return func() bool {
				list, err := w.sb.Processes(t.Context(), client.ProcessFilter{})
				if err != nil {
					return false
				}
				for _, p := range list {
					if out, err := p.Output(t.Context(), 0); err == nil && bytes.Contains(out.Stdout, []byte(word)) {
						return true
					}
				}
				return false
			}
		}
		w.wait("the question", said("asked"))
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		w.wait("the program to be told", said("left"))
	})
	t.Run("forward", func(t *testing.T) {
		forward := exec.Command(testenv.RequireBinary(t), "forward", w.sb.ID(), "0:8000", "--json")
		forward.Env = append(os.Environ(), "RINGFENCE_URL="+w.url, "RINGFENCE_API_KEY="+w.key)
		out, err := forward.StdoutPipe()
		if err == nil {
			err = forward.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		defer forward.Wait()
		defer forward.Process.Signal(syscall.SIGINT)
		var said struct{ Listening string }
		if err := json.NewDecoder(out).Decode(&said); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			conn, err := net.Dial("tcp", said.Listening)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			// A half that is closed leaves the other open.
			io.WriteString(conn, "GET /big=3000000 HTTP/1.0\r\n\r\n")
			conn.(*net.TCPConn).CloseWrite()
			text, err := io.ReadAll(conn)
			if err != nil || len(text) < 3_000_000 || !bytes.HasPrefix(text, []byte("HTTP/1.")) {
				t.Errorf("%d bytes, %v", len(text), err)
			}
		}
	})
	t.Run("link and host name", func(t *testing.T) {
		link, _, err := w.sb.Ports().Link(t.Context(), 8000, client.LinkOptions{Path: "/x"})
		if err != nil {
			t.Fatal(err)
		}
		u, err := url.Parse(link)
		if err != nil || !strings.HasPrefix(u.Hostname(), "8000-"+w.sb.ID()+".box.localhost") {
			t.Fatalf("%s %v", link, err)
		}
		req, _ := http.NewRequestWithContext(t.Context(), "GET", w.url+u.RequestURI(), nil)
		req.Host = u.Host
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if resp.StatusCode != 200 || resp.Header.Get("Content-Security-Policy") != "" {
			t.Errorf("%d %v", resp.StatusCode, resp.Header)
		}
	})
	b := newBrowser(t)
	t.Run("browser", func(t *testing.T) { testBrowser(t, w, b) })
	t.Run("JupyterLab", func(t *testing.T) {
		w.wait("JupyterLab", listens(8888))
		jupyter(t, w)
	})
	t.Run("JupyterLab in a browser", func(t *testing.T) { testLab(t, w, b) })
	t.Run("metrics", func(t *testing.T) {
		w.wait("two samples", func() bool {
			m, err := w.sb.Metrics(t.Context(), time.Time{}, time.Time{})
			return err == nil && len(m.Samples) >= 2 && m.Samples[1].At.After(m.Samples[0].At)
		})
		m, err := w.sb.Metrics(t.Context(), time.Time{}, time.Time{})
		n := m.Now
		if err != nil || n.CPUSeconds <= 0 || n.MemoryBytes < 30<<20 || n.MemoryLimitBytes != 1024<<20 || n.DiskBytes <= 0 || n.Processes < 2 ||
			n.NetworkReceivedBytes < 64<<20 || n.NetworkSentBytes < 128<<20 {
			t.Errorf("%+v %v", n, err)
		}
	})
	t.Run("events", func(t *testing.T) {
		var types []string
		for ev, err := range w.sb.Events(t.Context(), client.EventOptions{Once: true}) {
			if err != nil {
				t.Fatal(err)
			}
			types = append(types, string(ev.Type))
		}
		if got := strings.Join(types, " "); !strings.HasPrefix(got, "created started process_started process_started process_started") {
			t.Errorf("%s", got)
		}
	})
}

// jupyter uses JupyterLab as a browser does: a signed link opens its page on a host name
// of its own, and then its cookies open the API and the kernel's WebSocket.
func jupyter(t *testing.T, w *world) {
	link, _, err := w.sb.Ports().Link(t.Context(), 8888, client.LinkOptions{Path: "/lab"})
	if err != nil {
		t.Fatal(err)
	}
	at, err := url.Parse(link)
	if err != nil {
		t.Fatal(err)
	}
	origin := at.Scheme + "://" + at.Host
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	browser := &http.Client{Jar: jar, Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", strings.TrimPrefix(w.url, "http://"))
	}}}
	get := func(method, to string, status int) []byte {
		t.Helper()
		var code int
		var text []byte
		w.wait(to, func() bool { // it listens before it serves
			req, err := http.NewRequestWithContext(t.Context(), method, to, strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Origin", origin)
			if method == "GET" {
				req.Header.Del("Origin")
				req.Header.Set("Accept", "text/html")
			}
			for _, c := range jar.Cookies(at) {
				if c.Name == "_xsrf" {
					req.Header.Set("X-XSRFToken", c.Value)
				}
			}
			resp, err := browser.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			code = resp.StatusCode
			text, _ = io.ReadAll(resp.Body)
			return code != 502
		})
		if code != status {
			t.Fatalf("%s: %d %s", to, code, text)
		}
		return text
	}
	if page := get("GET", link, 200); !bytes.Contains(page, []byte("jupyter-config-data")) {
		t.Errorf("the page is %.300s", page)
	}
	var kernel struct{ ID string }
	if err := json.Unmarshal(get("POST", origin+"/api/kernels", 201), &kernel); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ws, _, err := websocket.Dial(ctx, origin+"/api/kernels/"+kernel.ID+"/channels", &websocket.DialOptions{ //nolint:bodyclose // Dial has read it
		HTTPClient: browser, HTTPHeader: http.Header{"Origin": {origin}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	ws.SetReadLimit(1 << 20)
	message := map[string]any{
		"header":        map[string]any{"msg_id": "1", "username": "", "session": "s", "msg_type": "execute_request", "version": "5.3", "date": "2026-01-01T00:00:00Z"},
		"parent_header": map[string]any{}, "metadata": map[string]any{}, "channel": "shell", "buffers": []any{},
		"content": map[string]any{"code": "print(6 * 7)", "silent": false, "store_history": false, "user_expressions": map[string]any{}, "allow_stdin": false, "stop_on_error": true},
	}
	raw, err := json.Marshal(message)
	if err != nil {
		t.Fatal(err)
	}
	if err := ws.Write(ctx, websocket.MessageText, raw); err != nil {
		t.Fatal(err)
	}
	for {
		_, raw, err := ws.Read(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var got struct {
			MsgType string `json:"msg_type"`
			Content struct{ Text string }
		}
		if json.Unmarshal(raw, &got) == nil && got.MsgType == "stream" {
			if got.Content.Text != "42\n" {
				t.Errorf("the cell printed %q", got.Content.Text)
			}
			return
		}
	}
}

// rss is what the server has in memory that is no file.
func (w *world) rss() int64 {
	w.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.cmd.Process.Pid))
	if err != nil {
		w.t.Fatal(err)
	}
	_, line, _ := strings.Cut(string(text), "RssAnon:")
	var kib int64
	fmt.Sscan(line, &kib)
	return kib << 10
}
