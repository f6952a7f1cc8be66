package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/api"
	"ringfence.dev/ringfence/internal/driver/fake"
	"ringfence.dev/ringfence/internal/engine"
	"ringfence.dev/ringfence/internal/snapshot"
	"ringfence.dev/ringfence/internal/sqlite"
	"ringfence.dev/ringfence/internal/testenv"
)

// world is a server over a real store and the fake driver.
type world struct {
	t      testing.TB
	url    string
	key    string
	engine *engine.Engine
	store  *sqlite.Store
	host   *roomyHost
	log    *testenv.Buffer
}

// roomyHost is a host with as much memory as a test wants.
type roomyHost struct {
	mu        sync.Mutex
	available int64
}

func (h *roomyHost) AvailableMiB() (int64, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.available, nil
}
func (h *roomyHost) BootID() (string, error) { return "boot", nil }

func (h *roomyHost) set(mib int64) {
	h.mu.Lock()
	h.available = mib
	h.mu.Unlock()
}

// someTemplates are two templates whose images are not looked at.
type someTemplates struct{}

func (someTemplates) List() ([]ringfence.Template, error) {
	size := ringfence.Size{VCPU: 2, MemoryMiB: 2048, DiskMiB: 8192}
	hash := strings.Repeat("ab", 32)
	return []ringfence.Template{
		{Name: "base", Image: hash, Recipe: hash, ImagePath: "/nowhere", User: "root", WorkDir: "/", Size: size, BuiltAt: time.Unix(1_800_000_000, 0)},
		{Name: "code-interpreter", Aliases: []string{"superserve/code-interpreter"}, Image: hash, Recipe: hash, ImagePath: "/nowhere", User: "root",
			WorkDir: "/home/user", Size: size, BuiltAt: time.Unix(1_800_000_000, 0)},
	}, nil
}

func (s someTemplates) Lookup(name string) (ringfence.Template, error) {
	all, err := s.List()
	for _, t := range all {
		if t.Name == name || strings.Join(t.Aliases, "") == name && name != "" {
			return t, err
		}
	}
	return ringfence.Template{}, ringfence.Errorf(ringfence.CodeTemplateNotFound, "there is no template %q", name).WithHint("near names: base, code-interpreter")
}

func newWorld(t testing.TB) *world { return newWorldWith(t, fake.Options{}) }

func newWorldWith(t testing.TB, o fake.Options) *world {
	t.Helper()
	return newWorldOf(t, o, api.Options{})
}

// newWorldServing is a world whose server's clocks are short.
func newWorldServing(t *testing.T, keepAlive, stall time.Duration) *world {
	t.Helper()
	return newWorldOf(t, fake.Options{}, api.Options{KeepAlive: keepAlive, Stall: stall})
}

func newWorldOf(t testing.TB, o fake.Options, server api.Options) *world {
	t.Helper()
	w := &world{t: t, host: &roomyHost{available: 100_000}, log: &testenv.Buffer{}}
	var err error
	if w.store, err = sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "x.db")); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	snapshots, err := snapshot.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	w.engine, err = engine.Open(t.Context(), engine.Options{
		Store: w.store, Driver: fake.New(o), Templates: someTemplates{}, Snapshots: snapshots, ColdBoot: true, Log: log,
		Max: ringfence.Size{VCPU: 4, MemoryMiB: 4096, DiskMiB: 10_000}, MaxProcs: 100, ReserveMiB: 1000, Host: w.host,
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, w.key, err = w.engine.CreateKey(t.Context(), ringfence.DefaultProject, "test"); err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(nil)
	server.Engine, server.Log, server.Version, server.HostNames, server.MaxBody = w.engine, log, "test", []string{"sandbox.example"}, 1<<20
	server.Domain = "box.example"
	srv.Config = api.New(server).HTTP()
	srv.Start()
	w.url = srv.URL
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
		if err := w.engine.Close(); err != nil {
			t.Error(err)
		}
		if err := w.store.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			lines := strings.Split(w.log.String(), "\n")
			t.Log(strings.Join(lines[max(0, len(lines)-25):], "\n"))
		}
	})
	return w
}

type reply struct {
	*http.Response
	body []byte
}

// json decodes the answer.
func (r reply) json(t testing.TB) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(r.body, &m); err != nil {
		t.Fatalf("%d %q: %v", r.StatusCode, r.body, err)
	}
	return m
}

// send sends a request with the world's key. headers are name, value, …; a
// header of value "-" is left out.
func (w *world) send(method, path, body string, headers ...string) reply {
	w.t.Helper()
	return w.sendCtx(context.Background(), method, path, strings.NewReader(body), headers...)
}

func (w *world) sendCtx(ctx context.Context, method, path string, body io.Reader, headers ...string) reply {
	w.t.Helper()
	resp, err := w.open(ctx, method, path, body, headers...)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return reply{resp, raw}
}

func (w *world) open(ctx context.Context, method, path string, body io.Reader, headers ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, w.url+path, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+w.key)
	for i := 0; i < len(headers); i += 2 {
		switch {
		case headers[i] == "Host":
			req.Host = headers[i+1]
		case headers[i+1] == "-":
			req.Header.Del(headers[i])
		default:
			req.Header.Set(headers[i], headers[i+1])
		}
	}
	return http.DefaultClient.Do(req)
}

// refused checks that an answer is that error, and returns it.
func (w *world) refused(r reply, status int, code ringfence.Code, field string) map[string]any {
	w.t.Helper()
	e, ok := r.json(w.t)["error"].(map[string]any)
	if !ok {
		w.t.Fatalf("%d %s: no error", r.StatusCode, r.body)
	}
	got, _ := e["field"].(string)
	if r.StatusCode != status || e["code"] != string(code) || got != field || e["message"] == "" || e["hint"] == "" || e["request_id"] != r.Header.Get("X-Request-Id") {
		w.t.Errorf("%s %s: %d %s; want %d %s, field %q", r.Request.Method, r.Request.URL, r.StatusCode, r.body, status, code, field)
	}
	return e
}

// create makes a sandbox and returns it.
func (w *world) create(body string) map[string]any {
	w.t.Helper()
	r := w.send("POST", "/v1/sandboxes", body)
	if r.StatusCode != http.StatusCreated {
		w.t.Fatalf("create: %d %s", r.StatusCode, r.body)
	}
	return r.json(w.t)
}

func (w *world) createID() string { return w.create("{}")["id"].(string) }

func (w *world) run(id, body string, headers ...string) reply {
	return w.send("POST", "/v1/sandboxes/"+id+"/commands", body, headers...)
}

// watch watches a directory that is removed meanwhile, and wants to be told of its end.
func (w *world) watch(id, path string, meanwhile func()) {
	w.t.Helper()
	resp, err := w.open(w.t.Context(), "GET", "/v1/sandboxes/"+id+"/files/watch?path="+path, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	if !lines.Scan() || lines.Text() != "event: ready" || resp.Header.Get("Content-Type") != "text/event-stream" {
		w.t.Fatalf("%d %q", resp.StatusCode, lines.Text())
	}
	meanwhile()
	for last := ""; ; last = lines.Text() {
		if !lines.Scan() {
			w.t.Fatalf("the stream ended after %q", last)
		}
		if lines.Text() == "event: gone" {
			return
		}
	}
}
