package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/coder/websocket"

	"ringfence.dev/ringfence"
)

const sessionStarted = `{"type":"started","process":{"id":"cmd_1","pid":7,"started_at":"2026-11-30T20:00:00.000000Z","state":"running","log":{"start":0,"end":0}},"position":0}`

// sessionOf is a server whose sessions start and then do what a function says.
func sessionOf(t *testing.T, then func(context.Context, *websocket.Conn)) *Client {
	t.Helper()
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{sessionProtocol}})
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.CloseNow()
		if _, _, err := conn.Read(r.Context()); err != nil {
			return
		}
		if then != nil {
			conn.Write(r.Context(), websocket.MessageText, []byte(sessionStarted))
			conn.Write(r.Context(), websocket.MessageBinary, []byte("\x01\x00\x00\x00\x00\x00\x00\x00\x00part"))
			then(r.Context(), conn)
		}
	}))
	t.Cleanup(h.Close)
	c, err := New(Options{BaseURL: h.URL, APIKey: ringfence.NewAPIKey()})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// However a session breaks, its outcome is not known, and that is an error.
func TestBrokenSessions(t *testing.T) {
	old := silenceLimit
	defer func() { silenceLimit = old }()
	for name, then := range map[string]func(context.Context, *websocket.Conn){
		"cut off":               func(_ context.Context, c *websocket.Conn) { c.CloseNow() },
		"closed without a word": func(_ context.Context, c *websocket.Conn) { c.Close(websocket.StatusNormalClosure, "") },
		"closed with an error":  func(_ context.Context, c *websocket.Conn) { c.Close(websocket.StatusInternalError, "") },
		"an exit without its code": func(ctx context.Context, c *websocket.Conn) {
			c.Write(ctx, websocket.MessageText, []byte(`{"type":"exit"}`))
		},
		"no JSON": func(ctx context.Context, c *websocket.Conn) {
			c.Write(ctx, websocket.MessageText, []byte(`{"type":"exi`))
		},
		"an unknown channel": func(ctx context.Context, c *websocket.Conn) { c.Write(ctx, websocket.MessageBinary, []byte("\x09")) },
		"silence":            func(ctx context.Context, c *websocket.Conn) { c.Read(ctx) },
	} {
		silenceLimit = time.Minute
		if name == "silence" {
			silenceLimit = 200 * time.Millisecond
		}
		s, err := sessionOf(t, then).Open(testID).StartSession(t.Context(), ProcessOptions{Shell: "x"}, SessionOptions{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		r, err := s.Copy(io.Discard, nil)
		code := ringfence.CodeOf(err)
		if err == nil || errors.Is(err, io.EOF) || r == nil || r.ExitCode != -1 || r.Position != 4 || s.Result() != nil ||
			code != ringfence.CodeUnavailable && code != ringfence.CodeInternal {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
		if _, err := s.Write([]byte("x")); err == nil {
			t.Errorf("%s: input is taken", name)
		}
		s.Close()
		s.Close()
	}
	silenceLimit = old
	// Before it even started.
	if _, err := sessionOf(t, nil).Open(testID).StartSession(t.Context(), ProcessOptions{Shell: "x"}, SessionOptions{}); ringfence.CodeOf(err) != ringfence.CodeUnavailable {
		t.Errorf("before the start: %v", err)
	}
	// The end of the caller's context.
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	s, err := sessionOf(t, func(ctx context.Context, c *websocket.Conn) { c.Read(ctx) }).Open(testID).StartSession(ctx, ProcessOptions{Shell: "x"}, SessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if r, err := s.Copy(nil, nil); !errors.Is(err, context.DeadlineExceeded) || r.ExitCode != -1 {
		t.Errorf("%+v %v", r, err)
	}
}
