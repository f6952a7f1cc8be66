package main

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/client"
)

// shutdownWith sets how long a request may go on.
func shutdownWith(t *testing.T, d time.Duration) {
	old := drain
	drain = d
	t.Cleanup(func() { drain = old })
}

// dialSession opens a session on a new sandbox and waits until its process has started.
func dialSession(t *testing.T, s *started, command string) *websocket.Conn {
	t.Helper()
	cl, err := client.New(client.Options{BaseURL: s.url, APIKey: s.key})
	if err != nil {
		t.Fatal(err)
	}
	sb, err := cl.Create(t.Context(), client.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	conn, _, err := websocket.Dial(t.Context(), s.url+"/v1/sandboxes/"+sb.ID()+"/connect", &websocket.DialOptions{ //nolint:bodyclose // Dial has read it
		Subprotocols: []string{"ringfence.v1", "ringfence.token." + s.key},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.CloseNow() })
	if err := conn.Write(t.Context(), websocket.MessageText, []byte(`{"start":{"command":"`+command+`","stdin":true}}`)); err != nil {
		t.Fatal(err)
	}
	if last, _ := until(t, conn, "started"); last["type"] != "started" {
		t.Fatalf("the session begins with %v", last)
	}
	return conn
}

// until reads up to a message, or to the close, and returns the last one and how it closed.
func until(t *testing.T, conn *websocket.Conn, typ string) (last map[string]any, closed websocket.CloseError) {
	t.Helper()
	for {
		kind, raw, err := conn.Read(t.Context())
		if errors.As(err, &closed) {
			return last, closed
		}
		if err != nil {
			t.Fatalf("the session broke: %v", err)
		}
		if kind != websocket.MessageText {
			continue
		}
		last = map[string]any{}
		if err := json.Unmarshal(raw, &last); err != nil {
			t.Fatal(err)
		}
		if last["type"] == typ {
			return last, closed
		}
	}
}

// A session is waited for as a request is: its process may come to its end.
func TestShutdownWaitsForSessions(t *testing.T) {
	shutdownWith(t, 5*time.Minute)
	s := start(t, settings(t))
	conn := dialSession(t, s, "cat")
	done := make(chan error, 1)
	go func() { done <- s.stop() }()
	for end := time.Now().Add(time.Minute); !strings.Contains(s.log.String(), "shutting down"); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not shut down")
		}
	}
	if err := conn.Write(t.Context(), websocket.MessageText, []byte(`{"type":"close_stdin"}`)); err != nil {
		t.Fatal(err)
	}
	if last, closed := until(t, conn, ""); last["type"] != "exit" || closed.Code != websocket.StatusNormalClosure {
		t.Errorf("the session ended with %v and %v", last, closed)
	}
	if err := <-done; err != nil {
		t.Errorf("the end: %v", err)
	}
}

// A session that goes on is told why it ends: an error of its own, and a code and a reason
// of the WebSocket.
func TestShutdownClosesSessions(t *testing.T) {
	shutdownWith(t, 10*time.Millisecond)
	s := start(t, settings(t))
	conn := dialSession(t, s, "sleep 1000")
	done := make(chan error, 1)
	go func() { done <- s.stop() }()
	last, closed := until(t, conn, "")
	fault, _ := last["error"].(map[string]any)
	if last["type"] != "error" || fault["code"] != string(ringfence.CodeUnavailable) || closed.Code != websocket.StatusGoingAway || closed.Reason == "" {
		t.Errorf("the session ended with %v and %v", last, closed)
	}
	if err := <-done; err != nil {
		t.Errorf("the end: %v", err)
	}
}
