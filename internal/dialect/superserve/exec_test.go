package superserve_test

import (
	"bufio"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/api"
	"ringfence.dev/ringfence/internal/api/apitest"
	"ringfence.dev/ringfence/internal/dialect"
	"ringfence.dev/ringfence/internal/dialect/superserve"
	"ringfence.dev/ringfence/internal/driver/fake"
)

// world is a server over sandboxes that live in memory.
type world struct {
	t        *testing.T
	url, key string
	engine   *apitest.Server
}

func newWorld(t *testing.T, o superserve.Options) *world {
	t.Helper()
	s := apitest.Start(t, fake.Options{})
	h := httptest.NewServer(api.New(api.Options{
		Engine: s.Engine, Log: slog.New(slog.NewTextHandler(io.Discard, nil)), KeepAlive: 10 * time.Millisecond, Dialects: []dialect.Mount{superserve.Mount(o)},
	}))
	t.Cleanup(func() {
		h.CloseClientConnections()
		h.Close()
	})
	return &world{t: t, url: h.URL + "/superserve", key: s.Key, engine: s}
}

// reply is an answer whose body is closed with the test.
type reply struct {
	status int
	body   io.Reader
}

func (w *world) send(method, path, body string, header ...string) reply {
	w.t.Helper()
	return w.sendTo("", method, path, body, header...)
}

// sendTo sends a request to a host name; "": the server's own.
func (w *world) sendTo(host, method, path, body string, header ...string) reply {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.url+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("X-API-Key", w.key)
	if host != "" {
		req.Host, req.URL.Path = host, path
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultTransport.RoundTrip(req) // no redirect is followed
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { resp.Body.Close() })
	return reply{resp.StatusCode, resp.Body}
}

func (w *world) json(resp reply, want int) (m map[string]any) {
	w.t.Helper()
	raw, err := io.ReadAll(resp.body)
	if err == nil {
		err = json.Unmarshal(raw, &m)
	}
	if err != nil || resp.status != want {
		w.t.Fatalf("%d, want %d: %v %s", resp.status, want, err, raw)
	}
	return m
}

func (w *world) create() (id, token string) {
	w.t.Helper()
	sb := w.json(w.send("POST", "//sandboxes", `{"name":"x","unknown":1}`), http.StatusCreated)
	return sb["id"].(string), sb["access_token"].(string)
}

// A command that takes longer than clients wait for headers: the answer begins, lives, and
// says how the command ended although its sandbox has.
func TestLongCommand(t *testing.T) {
	w := newWorld(t, superserve.Options{HoldHeaders: time.Millisecond})
	id, token := w.create()
	resp := w.send("POST", "/exec", `{"command":"echo out; sleep 1000","timeout_s":500}`, "X-Access-Token", token, "X-Superserve-Sandbox-Id", id)
	body := bufio.NewReader(resp.body)
	for range 20 { // it is kept alive
		if b, err := body.ReadByte(); err != nil || b != ' ' {
			t.Fatalf("%q %v", b, err)
		}
	}
	if err := w.engine.Engine.Kill(t.Context(), ringfence.DefaultProject, id); err != nil {
		t.Fatal(err)
	}
	var result struct {
		Stdout, Stderr string
		ExitCode       int `json:"exit_code"`
	}
	if err := json.NewDecoder(body).Decode(&result); err != nil || result.ExitCode != 137 || result.Stdout != "out\n" || !strings.Contains(result.Stderr, "has ended") {
		t.Errorf("%+v %v", result, err)
	}
}

// A token opens its own sandbox by every road, and no other one.
func TestTokens(t *testing.T) {
	w := newWorld(t, superserve.Options{})
	id, token := w.create()
	other, _ := w.create()
	const run = `{"command":"echo hi"}`
	for name, header := range map[string][]string{
		"by header":  {"X-Superserve-Sandbox-Id", id},
		"by token":   {},
		"by any key": {"X-API-Key", ""},
	} {
		if got := w.json(w.send("POST", "/exec", run, append(header, "X-Access-Token", token)...), http.StatusOK); got["stdout"] != "hi\n" {
			t.Errorf("%s: %v", name, got)
		}
	}
	for name, header := range map[string][]string{
		"another sandbox":     {"X-Superserve-Sandbox-Id", other, "X-Access-Token", token},
		"the key for a token": {"X-Superserve-Sandbox-Id", id, "X-Access-Token", w.key},
		"no token":            {"X-Superserve-Sandbox-Id", id},
	} {
		if got := w.json(w.send("POST", "/exec", run, header...), http.StatusUnauthorized); got["error"].(map[string]any)["code"] != "unauthorized" {
			t.Errorf("%s: %v", name, got)
		}
	}
	w.json(w.send("GET", "/sandboxes", "", "X-API-Key", token), http.StatusUnauthorized)
	// Names of the vendor's lead to the data plane and nowhere else.
	resp := w.sendTo("boxd-"+id+".sandbox.superserve.ai", "POST", "/exec", run, "X-Access-Token", token)
	if got := w.json(resp, http.StatusOK); got["stdout"] != "hi\n" {
		t.Errorf("by host: %v", got)
	}
}

// Nothing is answered with a redirect, which would cost a client its body.
func TestOddPaths(t *testing.T) {
	w := newWorld(t, superserve.Options{})
	for _, path := range []string{"", "/", "/nothing", "/sandboxes/", "/sandboxes/../templates", "/./exec", "/exec/", "/%2e%2e/v1/sandboxes", "/preload"} {
		for _, method := range []string{"GET", "POST"} {
			w.json(w.send(method, path, "{}"), http.StatusNotFound)
		}
	}
	for _, path := range []string{"/templates/superserve/base", "/templates/superserve%2Fcode-interpreter", "//templates//base"} {
		if got := w.json(w.send("GET", path, ""), http.StatusOK); got["status"] != "ready" {
			t.Errorf("%s: %v", path, got)
		}
	}
	w.json(w.send("PATCH", "/sandboxes", "{}"), http.StatusNotFound)
}
