package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"ringfence.dev/ringfence"
)

const testID = "abcdefghij0123456789"

// serve starts a server with one handler and a client for it.
func serve(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	c, err := New(Options{BaseURL: server.URL + "/", APIKey: "rf_key"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.CloseIdleConnections)
	return c
}

func answer(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Request-Id", "00000000deadbeef")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body)
}

func asError(t *testing.T, err error) *ringfence.Error {
	t.Helper()
	var e *ringfence.Error
	if !errors.As(err, &e) {
		t.Fatalf("got %T %v, want a *ringfence.Error", err, err)
	}
	return e
}

func TestNew(t *testing.T) {
	t.Setenv(EnvURL, "http://from-env:1/prefix/")
	t.Setenv(EnvAPIKey, " rf_env\n")
	c, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	if c.URL() != "http://from-env:1/prefix" || c.apiKey != "rf_env" {
		t.Errorf("from the environment: %q, %q", c.URL(), c.apiKey)
	}
	t.Setenv(EnvURL, "")
	if c, err = New(Options{}); err != nil || c.URL() != DefaultURL {
		t.Errorf("by default: %v, %v", c, err)
	}
	for _, bad := range []string{"localhost:7070", "ftp://x", "http://", "http://user:pw@x", "http://x?y=1", "http://x#y", "::"} {
		if _, err := New(Options{BaseURL: bad}); ringfence.CodeOf(err) != ringfence.CodeInvalidArgument {
			t.Errorf("New(%q): %v", bad, err)
		}
	}
	if _, err := New(Options{APIKey: "rf_\nab"}); ringfence.CodeOf(err) != ringfence.CodeInvalidArgument {
		t.Errorf("a key with a line end: %v", err)
	}
}

func TestErrorKeepsEverything(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "7")
		answer(w, 429, `{"error":{"code":"resource_exhausted","message":"the host is full","hint":"kill some","field":"memory_mib","request_id":"0123456789abcdef"}}`)
	})
	_, err := c.Create(context.Background(), CreateOptions{})
	want := ringfence.Error{Code: ringfence.CodeResourceExhausted, Message: "the host is full", Hint: "kill some",
		Field: "memory_mib", RequestID: "0123456789abcdef", RetryAfterSeconds: 7}
	if e := asError(t, err); *e != want {
		t.Errorf("got %+v", *e)
	}
}

func TestForeignAnswer(t *testing.T) {
	for status, code := range map[int]ringfence.Code{
		502: ringfence.CodeUnavailable, 504: ringfence.CodeUnavailable, 404: ringfence.CodeRouteNotFound,
		301: ringfence.CodeInternal, 500: ringfence.CodeInternal, 401: ringfence.CodeUnauthenticated, 418: ringfence.CodeInternal,
	} {
		c := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if status == 301 {
				w.Header().Set("Location", "/elsewhere")
			}
			answer(w, status, "<html>not ours</html>")
		})
		_, err := c.Create(context.Background(), CreateOptions{})
		if e := asError(t, err); e.Code != code || e.RequestID != "00000000deadbeef" || e.Hint == "" {
			t.Errorf("%d: got %+v, want %s", status, *e, code)
		}
	}
}

func TestCreateSendsAndReads(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != "POST" || r.URL.Path != "/v1/sandboxes" || r.Header.Get("Authorization") != "Bearer rf_key" {
			t.Errorf("got %s %s %v", r.Method, r.URL, r.Header)
		}
		body, _ := io.ReadAll(r.Body)
		want := `{"name":"n","template":"base","vcpu":1,"memory_mib":256,"disk_mib":512,"env":{"A":"b"},"metadata":{"k":"v"},"user":"user","timeout_seconds":1.5,"network":{"deny_out":["0.0.0.0/0"],"allow_internet_access":false}}`
		if string(body) != want {
			t.Errorf("sent %s", body)
		}
		answer(w, 201, `{"id":"`+testID+`","name":"n","template":"base","state":"running","reason":null,"detail":null,"vcpu":1,"memory_mib":256,
			"disk_mib":512,"metadata":{"k":"v"},"user":"user","work_dir":"/home/user","network":{"allow_out":[],"deny_out":["0.0.0.0/0"],"allow_internet_access":false},
			"created_at":"2026-11-30T20:00:00.123456Z","started_at":"2026-11-30T20:00:00.200000Z","ended_at":null,"expires_at":"2026-11-30T20:00:01.623456Z","access_token":"feed"}`)
	})
	no := false
	s, err := c.Create(context.Background(), CreateOptions{
		Name: "n", Template: "base", VCPU: 1, MemoryMiB: 256, DiskMiB: 512, Env: map[string]string{"A": "b"}, Metadata: map[string]string{"k": "v"},
		User: "user", Timeout: 1500 * time.Millisecond, Network: &ringfence.NetworkPolicy{DenyOut: []string{"0.0.0.0/0"}, AllowInternetAccess: &no},
	})
	if err != nil {
		t.Fatal(err)
	}
	info := s.Info()
	if s.ID() != testID || string(s.AccessToken()) != "feed" || info.State != ringfence.StateRunning || info.Reason != "" ||
		!info.EndedAt.IsZero() || info.CreatedAt.Nanosecond() != 123456000 || info.ExpiresAt.Sub(info.CreatedAt) != 1500*time.Millisecond {
		t.Errorf("got %+v", info)
	}
	if text := fmt.Sprintf("%v %+v %#v %s", s.AccessToken(), s.AccessToken(), s.AccessToken(), s.AccessToken()); strings.Contains(text, "feed") {
		t.Errorf("the token prints as %s", text)
	}
}

func TestListPages(t *testing.T) {
	var queries []string
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		queries = append(queries, r.URL.Query().Encode())
		if r.URL.Query().Get("cursor") == "" {
			answer(w, 200, `{"sandboxes":[{"id":"a"},{"id":"b"}],"next_cursor":"two"}`)
			return
		}
		answer(w, 200, `{"sandboxes":[{"id":"c"}],"next_cursor":null}`)
	})
	o := ListOptions{Metadata: map[string]string{"k": "v"}, States: []ringfence.State{ringfence.StateRunning, ringfence.StateFailed}, PageSize: 2}
	var ids []string
	for s, err := range c.List(context.Background(), o) {
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, s.ID())
	}
	if strings.Join(ids, "") != "abc" {
		t.Errorf("got %v", ids)
	}
	if want := "limit=2&metadata.k=v&state=running%2Cfailed"; len(queries) != 2 || queries[0] != want || queries[1] != "cursor=two&"+want {
		t.Errorf("asked %q", queries)
	}
	for range c.List(context.Background(), o) {
		break // must not panic, and must not ask for the second page
	}
	if len(queries) != 3 {
		t.Errorf("a stopped list asked %d times", len(queries)-2)
	}
}

func TestListError(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		answer(w, 400, `{"error":{"code":"invalid_argument","message":"m","hint":"h","request_id":"r"}}`)
	})
	n := 0
	for s, err := range c.List(context.Background(), ListOptions{}) {
		if n++; s != nil || ringfence.CodeOf(err) != ringfence.CodeInvalidArgument {
			t.Errorf("got %v, %v", s, err)
		}
	}
	if n != 1 {
		t.Errorf("an error came %d times", n)
	}
}

func TestRetries(t *testing.T) {
	const busy = `{"error":{"code":"unavailable","message":"starting","hint":"wait","request_id":"r"}}`
	calls := map[string]func(*Client) error{
		"get":    func(c *Client) error { _, err := c.Get(context.Background(), testID); return err },
		"kill":   func(c *Client) error { return c.Kill(context.Background(), testID) },
		"stat":   func(c *Client) error { _, err := c.Open(testID).Files().Stat(context.Background(), "/a"); return err },
		"read":   func(c *Client) error { _, err := c.Open(testID).Files().Read(context.Background(), "/a"); return err },
		"create": func(c *Client) error { _, err := c.Create(context.Background(), CreateOptions{}); return err },
		"run": func(c *Client) error {
			_, err := c.Open(testID).Run(context.Background(), Command{Shell: "true"})
			return err
		},
		"stream": func(c *Client) error {
			_, err := c.Open(testID).Run(context.Background(), Command{Shell: "true", Stdout: io.Discard})
			return err
		},
		"write": func(c *Client) error {
			_, err := c.Open(testID).Files().Write(context.Background(), "/a", strings.NewReader("x"), WriteOptions{})
			return err
		},
		"rename": func(c *Client) error {
			_, err := c.Open(testID).Files().Rename(context.Background(), "/a", "/b")
			return err
		},
	}
	want := map[string]int32{"get": 3, "kill": 3, "stat": 3, "read": 3, "create": 1, "run": 1, "stream": 1, "write": 1, "rename": 1}
	for name, call := range calls {
		for _, fault := range []string{"503", "hang up"} {
			t.Run(name+" "+fault, func(t *testing.T) {
				t.Parallel()
				var n atomic.Int32
				c := serve(t, func(w http.ResponseWriter, r *http.Request) {
					n.Add(1)
					if fault == "503" {
						answer(w, 503, busy)
						return
					}
					conn, _, _ := http.NewResponseController(w).Hijack()
					conn.Close()
				})
				if err := call(c); ringfence.CodeOf(err) != ringfence.CodeUnavailable {
					t.Errorf("got %v", err)
				}
				if n.Load() != want[name] {
					t.Errorf("sent %d times, want %d", n.Load(), want[name])
				}
			})
		}
	}
}

func TestRetrySucceeds(t *testing.T) {
	var n atomic.Int32
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if n.Add(1) == 1 {
			answer(w, 503, `{}`)
			return
		}
		answer(w, 200, `{"id":"x"}`)
	})
	if s, err := c.Get(context.Background(), testID); err != nil || s.ID() != "x" {
		t.Errorf("got %v, %v", s, err)
	}
}

func TestRemoveTwiceIsOnce(t *testing.T) {
	// The first removal happens but its answer is lost: the second finds nothing.
	var n atomic.Int32
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if n.Add(1)%2 == 1 {
			conn, _, _ := http.NewResponseController(w).Hijack()
			conn.Close()
			return
		}
		code := "file_not_found"
		if strings.HasPrefix(r.URL.Path, "/v1/keys") {
			code = "not_found"
		}
		answer(w, 404, `{"error":{"code":"`+code+`","message":"m","hint":"h","request_id":"r"}}`)
	})
	if err := c.Open(testID).Files().Remove(context.Background(), "/a"); err != nil {
		t.Errorf("file: %v", err)
	}
	if err := c.DeleteKey(context.Background(), "k"); err != nil {
		t.Errorf("key: %v", err)
	}
}

func TestNoServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	c, err := New(Options{BaseURL: "http://" + address, APIKey: "rf_key"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Create(context.Background(), CreateOptions{})
	e := asError(t, err)
	if e.Code != ringfence.CodeUnavailable || !strings.Contains(e.Message, address) || !strings.Contains(e.Hint, "ringfence serve") {
		t.Errorf("got %+v", *e)
	}
	if strings.Contains(e.Error(), "rf_key") {
		t.Errorf("the error shows the key: %v", e)
	}
}

func TestContextEnds(t *testing.T) {
	hang := make(chan struct{})
	defer close(hang)
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // so that the server sees the client leave
		select {
		case <-r.Context().Done():
		case <-hang:
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	_, err := c.Open(testID).Run(ctx, Command{Shell: "sleep 9"})
	if asError(t, err).Code != ringfence.CodeDeadlineExceeded || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	ctx, cancel = context.WithCancel(context.Background())
	time.AfterFunc(20*time.Millisecond, cancel)
	_, err = c.Open(testID).Run(ctx, Command{Shell: "sleep 9", Stdout: io.Discard})
	if asError(t, err).Code != ringfence.CodeCanceled || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestTemplatesAndKeys(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.Method + " " + r.URL.EscapedPath() {
		case "GET /v1/templates/superserve%2Fcode-interpreter":
			answer(w, 200, `{"name":"code-interpreter","aliases":["superserve/code-interpreter"],"vcpu":2,"built_at":"2026-11-30T20:00:00.000000Z"}`)
		case "GET /v1/templates":
			answer(w, 200, `{"templates":[{"name":"base","aliases":[],"image":"ab","recipe":"cd","user":"root","work_dir":"/","vcpu":2,"memory_mib":3,"disk_mib":4,"built_at":null}]}`)
		case "POST /v1/keys":
			body := map[string]string{}
			_ = json.NewDecoder(r.Body).Decode(&body)
			answer(w, 201, `{"id":"1","name":"`+body["name"]+`","key":"rf_secret","created_at":"2026-11-30T20:00:00.000000Z"}`)
		case "GET /v1/keys":
			answer(w, 200, `{"keys":[{"id":"1","name":"n","created_at":"2026-11-30T20:00:00.000000Z","last_used_at":null}]}`)
		case "GET /health":
			answer(w, 200, `{"status":"ok","version":"v9"}`)
		case "DELETE /v1/keys/1":
			w.WriteHeader(204)
		default:
			t.Errorf("got %s %s", r.Method, r.URL.EscapedPath())
		}
	})
	ctx := context.Background()
	if tm, err := c.Template(ctx, "superserve/code-interpreter"); err != nil || tm.Name != "code-interpreter" || tm.BuiltAt.IsZero() {
		t.Errorf("%+v, %v", tm, err)
	}
	if l, err := c.Templates(ctx); err != nil || len(l) != 1 || l[0].DiskMiB != 4 || !l[0].BuiltAt.IsZero() {
		t.Errorf("%+v, %v", l, err)
	}
	if k, secret, err := c.CreateKey(ctx, "n"); err != nil || string(secret) != "rf_secret" || k.Name != "n" {
		t.Errorf("%+v, %v", k, err)
	}
	if l, err := c.Keys(ctx); err != nil || len(l) != 1 || !l[0].LastUsedAt.IsZero() {
		t.Errorf("%+v, %v", l, err)
	}
	if err := c.DeleteKey(ctx, "1"); err != nil {
		t.Error(err)
	}
	if h, err := c.Health(ctx); err != nil || h.Version != "v9" {
		t.Errorf("%+v, %v", h, err)
	}
}

func TestCreateWithAKeyIsSentAgain(t *testing.T) {
	var keys []string
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if keys = append(keys, r.Header.Get("Idempotency-Key")); len(keys) == 1 {
			panic(http.ErrAbortHandler) // the connection breaks
		}
		answer(w, 201, `{"id":"`+testID+`"}`)
	})
	s, err := c.Create(t.Context(), CreateOptions{IdempotencyKey: "job 42"})
	if err != nil || s.ID() != testID || len(keys) != 2 || keys[0] != "job 42" || keys[1] != "job 42" {
		t.Errorf("got %v, %v, sent %q", s, err, keys)
	}
}

func TestNetworkFlows(t *testing.T) {
	var asked []string
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.RawQuery)
		body := `{"flows":[],"next_cursor":"2"}`
		switch r.URL.Query().Get("cursor") {
		case "0":
			body = `{"flows":[{"id":1,"at":"2026-11-30T20:00:00Z"},{"id":2,"at":"2026-11-30T20:00:00Z"}],"next_cursor":"2"}`
		case "9":
			body = `{"error":{"code":"internal","message":"no"}}`
			answer(w, 500, body)
			return
		}
		answer(w, 200, body)
	})
	var ids []int64
	for f, err := range c.Open(testID).NetworkFlows(t.Context(), NetworkLogOptions{Verdict: ringfence.VerdictDenied, Cursor: "0"}, false) {
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, f.ID)
	}
	if fmt.Sprint(ids) != "[1 2]" || fmt.Sprint(asked) != "[cursor=0&limit=1000&verdict=denied cursor=2&limit=1000&verdict=denied]" {
		t.Errorf("got %v, asked %v", ids, asked)
	}
	for _, err := range c.Open(testID).NetworkFlows(t.Context(), NetworkLogOptions{Cursor: "9"}, true) {
		if ringfence.CodeOf(err) != ringfence.CodeInternal {
			t.Errorf("got %v", err)
		}
	}
	if last := asked[len(asked)-1]; last != "cursor=9&limit=1000&wait_seconds=30" {
		t.Errorf("asked %s", last)
	}
}
