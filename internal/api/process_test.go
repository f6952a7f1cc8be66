package api_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"ringfence.dev/ringfence"
)

// start starts a process and returns it.
func (w *world) start(id, body string) map[string]any {
	w.t.Helper()
	r := w.send("POST", "/v1/sandboxes/"+id+"/processes", body)
	if r.StatusCode != http.StatusCreated {
		w.t.Fatalf("%s: %d %s", body, r.StatusCode, r.body)
	}
	return r.json(w.t)
}

func (w *world) get(path string, headers ...string) map[string]any {
	w.t.Helper()
	r := w.send("GET", path, "", headers...)
	if r.StatusCode != http.StatusOK {
		w.t.Fatalf("%s: %d %s", path, r.StatusCode, r.body)
	}
	return r.json(w.t)
}

func TestProcess(t *testing.T) {
	w := newWorld(t)
	id := w.createID()
	at := "/v1/sandboxes/" + id + "/processes"
	p := w.start(id, `{"command":"cat; echo err >&2; exit 3","stdin":true,"tag":"t","timeout_seconds":1000.5}`)
	if p["state"] != "running" || p["tag"] != "t" || p["stdin"] != true || p["exit"] != nil || p["pty"] != false || p["deadline_at"] == nil || p["args"] != nil {
		t.Errorf("started: %v", p)
	}
	one := at + "/" + p["id"].(string)
	for _, ref := range []string{p["id"].(string), fmt.Sprint(p["pid"]), "tag:t"} {
		if got := w.get(at + "/" + ref); got["id"] != p["id"] {
			t.Errorf("%s is %v", ref, got)
		}
	}
	if got := w.get(one + "/wait?timeout_seconds=0.05"); got["state"] != "running" {
		t.Errorf("after a short wait: %v", got)
	}
	if r := w.send("POST", one+"/stdin", "line\n"); r.StatusCode != 200 || r.json(t)["written"] != 5.0 {
		t.Errorf("stdin: %d %s", r.StatusCode, r.body)
	}
	if r := w.send("POST", one+"/stdin?close=true", ""); r.StatusCode != 200 {
		t.Errorf("close: %d %s", r.StatusCode, r.body)
	}
	got := w.get(one + "/wait")
	if exit, _ := got["exit"].(map[string]any); got["state"] != "ended" || exit["exit_code"] != 3.0 || exit["ended_at"] == nil {
		t.Errorf("ended: %v", got)
	}
	out := w.get(one + "/output")
	if out["stdout"] != "line\n" || out["stderr"] != "err\n" || out["next"] != 9.0 || out["end"] != 9.0 || out["truncated"] != false ||
		out["exit"].(map[string]any)["exit_code"] != 3.0 {
		t.Errorf("output: %v", out)
	}
	if out := w.get(one + "/output?from=7"); out["stdout"] != "" || out["stderr"] != "r\n" {
		t.Errorf("from 7: %v", out)
	}
	if out := w.get(one + "/output?from=end"); out["stdout"] != "" || out["next"] != 9.0 {
		t.Errorf("from the end: %v", out)
	}
	w.refused(w.send("POST", one+"/stdin", "x"), 409, ringfence.CodeProcessEnded, "")
	w.refused(w.send("POST", one+"/signal", `{"signal":"TERM"}`), 409, ringfence.CodeProcessEnded, "")
	w.refused(w.send("GET", at+"/none", ""), 404, ringfence.CodeProcessNotFound, "")

	sleeping := w.start(id, `{"args":["sleep","1000"]}`)
	one = at + "/" + sleeping["id"].(string)
	w.refused(w.send("POST", one+"/stdin", "x"), 409, ringfence.CodeStdinClosed, "")
	w.refused(w.send("POST", one+"/resize", `{"cols":80,"rows":24}`), 409, ringfence.CodeFailedPrecondition, "")
	all := w.get(at)["processes"].([]any)
	if running := w.get(at + "?state=running")["processes"].([]any); len(all) != 2 || len(running) != 1 {
		t.Errorf("listed %d, %d of them running", len(all), len(running))
	}
	if tagged := w.get(at + "?tag=t&state=ended")["processes"].([]any); len(tagged) != 1 {
		t.Errorf("tagged: %v", tagged)
	}
	if r := w.send("POST", one+"/signal", `{"signal":9,"tree":true}`); r.StatusCode != 204 {
		t.Errorf("signal: %d %s", r.StatusCode, r.body)
	}
	if got := w.get(one + "/wait")["exit"].(map[string]any); got["exit_code"] != 137.0 || got["signal"] != 9.0 || got["reason"] != "signal" {
		t.Errorf("killed: %v", got)
	}
}

func TestBadProcesses(t *testing.T) {
	w := newWorld(t)
	id := w.createID()
	at := "/v1/sandboxes/" + id + "/processes"
	for body, field := range map[string]string{
		`{}`: "command", `{"command":"a","args":["b"]}`: "command", `{"command":"a","comand":"b"}`: "comand",
		`{"command":"a","cwd":"/none"}`: "cwd", `{"command":"a","cwd":"x"}`: "cwd", `{"command":"a","user":"nobody-has-this"}`: "user",
		`{"command":"a","timeout_seconds":-1}`: "timeout_seconds", `{"command":"a","timeout_seconds":"1"}`: "timeout_seconds",
		`{"command":"a","pty":{"cols":0}}`: "pty.cols", `{"command":"a","pty":{"rows":1001}}`: "pty.rows", `{"command":"a","pty":{"width":1}}`: "pty.width",
		`{"command":"a","log_bytes":1}`: "log_bytes", `{"command":"a","log_bytes":99999999}`: "log_bytes",
		`{"command":"a","tag":"a\nb"}`: "tag",
	} {
		w.refused(w.send("POST", at, body), 400, ringfence.CodeInvalidArgument, field)
	}
	one := at + "/" + w.start(id, `{"command":"sleep 1000"}`)["id"].(string)
	for path, field := range map[string]string{
		"/output?from=x": "from", "/output?from=-1": "from", "/output?follow=yes": "follow", "/output?follow=true": "follow",
		"/wait?timeout_seconds=-1": "timeout_seconds", "/wait?timeout_seconds=3601": "timeout_seconds", "/wait?timeout_seconds=NaN": "timeout_seconds",
	} {
		w.refused(w.send("GET", one+path, ""), 400, ringfence.CodeInvalidArgument, field)
	}
	w.refused(w.send("GET", at+"?state=dead", ""), 400, ringfence.CodeInvalidArgument, "state")
	for path, body := range map[string]string{"/signal": `{"signal":"SIGNONE"}`, "/resize": `{"cols":1}`} {
		if r := w.send("POST", one+path, body); r.StatusCode != 400 {
			t.Errorf("%s %s: %d %s", path, body, r.StatusCode, r.body)
		}
	}
	w.refused(w.send("POST", one+"/stdin?close=perhaps", ""), 400, ringfence.CodeInvalidArgument, "close")
}

// A stream can be read again from the id of any of its events: what comes is what was
// not read yet, byte for byte.
func TestResumedEvents(t *testing.T) {
	w := newWorld(t)
	id := w.createID()
	body, _ := json.Marshal(map[string]any{"command": `printf 'a\303'; printf x >&2; printf '\244b\377'; printf '日本' >&2; exit 2`})
	p := w.start(id, string(body))
	at := "/v1/sandboxes/" + id + "/processes/" + p["id"].(string) + "/output"
	w.get("/v1/sandboxes/" + id + "/processes/" + p["id"].(string) + "/wait")
	read := func(last string) (ids []string, out [3]string, seen []string) {
		headers := []string{"Accept", "text/event-stream"}
		if last != "" {
			headers = append(headers, "Last-Event-ID", last)
		}
		r := w.send("GET", at, "", headers...)
		var name string
		for line := range strings.Lines(string(r.body)) {
			field, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
			switch field {
			case "id":
				ids = append(ids, value)
			case "event":
				name = value
				seen = append(seen, name)
			case "data":
				var data struct {
					Text   string
					Base64 []byte
				}
				if err := json.Unmarshal([]byte(value), &data); err != nil {
					t.Fatal(err)
				}
				if n := map[string]int{"stdout": 1, "stderr": 2}[name]; n > 0 {
					out[n] += data.Text + string(data.Base64)
				}
			}
		}
		return ids, out, seen
	}
	ids, whole, seen := read("")
	if whole[1] != "aäb\xff" || whole[2] != "x日本" || seen[0] != "started" || seen[len(seen)-1] != "exit" {
		t.Fatalf("%q %v", whole, seen)
	}
	var before [3]string
	for i, last := range ids {
		_, rest, _ := read(last)
		for n := 1; n < 3; n++ {
			if !strings.HasSuffix(whole[n], rest[n]) {
				t.Errorf("after event %d (%s): %q of %q", i, last, rest[n], whole[n])
			}
			before[n] = strings.TrimSuffix(whole[n], rest[n])
		}
		if got := fmt.Sprint(len(before[1]) + len(before[2])); got != last {
			t.Errorf("after event %d (%s) %s bytes are not sent again", i, last, got)
		}
	}
}

// Quiet streams say that they live, and no deadline of the server cuts them.
func TestQuietStreams(t *testing.T) {
	w := newWorldServing(t, 20*time.Millisecond, 200*time.Millisecond)
	id := w.createID()
	at := "/v1/sandboxes/" + id
	const quiet = "sleep 1; echo end"
	for _, kind := range []string{"text/event-stream", "application/vnd.ringfence.stream"} {
		p := w.start(id, `{"command":"`+quiet+`"}`)
		for _, r := range []reply{
			w.run(id, `{"command":"`+quiet+`"}`, "Accept", kind),
			w.send("GET", at+"/processes/"+p["id"].(string)+"/output", "", "Accept", kind),
		} {
			alive := bytes.Count(r.body, []byte(": keep-alive\n\n")) + bytes.Count(r.body, []byte{6, 0, 0, 0, 0})
			if !bytes.Contains(r.body, []byte("end\n")) && !bytes.Contains(r.body, []byte(`end\n`)) || !bytes.Contains(r.body, []byte(`"exit_code":0`)) {
				t.Errorf("%s: %q", kind, r.body)
			}
			if alive < 5 && r.Request.Method == "POST" {
				t.Errorf("%s: %d keep-alives in a second", kind, alive)
			}
		}
	}
	// An answer that comes late, and a reader that stands still for longer than a
	// connection may otherwise.
	p := w.start(id, `{"command":"`+quiet+`"}`)
	if got := w.get(at + "/processes/" + p["id"].(string) + "/wait"); got["state"] != "ended" {
		t.Errorf("waited: %v", got)
	}
	resp, err := w.open(t.Context(), "POST", at+"/commands", strings.NewReader(`{"command":"fake-bytes 20000000"}`), "Accept", "application/vnd.ringfence.stream")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	time.Sleep(600 * time.Millisecond)
	var total int
	for {
		var head [5]byte
		if _, err := io.ReadFull(resp.Body, head[:]); err != nil {
			t.Fatalf("after %d bytes: %v", total, err)
		}
		payload := make([]byte, binary.BigEndian.Uint32(head[1:]))
		if _, err := io.ReadFull(resp.Body, payload); err != nil {
			t.Fatalf("after %d bytes: %v", total, err)
		}
		if head[0] == 1 {
			total += len(payload)
		}
		if head[0] == 4 {
			break
		}
	}
	if total != 20000000 {
		t.Errorf("%d bytes came", total)
	}
}

// socket is a client's end of a session, without the client.
type socket struct {
	t    testing.TB
	conn *websocket.Conn
}

func (w *world) dial(id string, o *websocket.DialOptions) (*socket, *http.Response, error) {
	w.t.Helper()
	conn, resp, err := websocket.Dial(w.t.Context(), w.url+"/v1/sandboxes/"+id+"/connect", o)
	if err != nil {
		return nil, resp, err
	}
	conn.SetReadLimit(1 << 22)
	w.t.Cleanup(func() { conn.CloseNow() })
	return &socket{w.t, conn}, resp, nil
}

func (w *world) connect(id, first string) *socket {
	w.t.Helper()
	s, _, err := w.dial(id, &websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + w.key}}, Subprotocols: []string{"ringfence.v1"}}) //nolint:bodyclose // Dial has read it
	if err != nil {
		w.t.Fatal(err)
	}
	s.say(first)
	return s
}

func (s *socket) say(text string) {
	s.t.Helper()
	if err := s.conn.Write(s.t.Context(), websocket.MessageText, []byte(text)); err != nil {
		s.t.Fatal(err)
	}
}

func (s *socket) send(data string) {
	s.t.Helper()
	if err := s.conn.Write(s.t.Context(), websocket.MessageBinary, append([]byte{0}, data...)); err != nil {
		s.t.Fatal(err)
	}
}

// next returns the next message: its JSON, or the output that it carries.
func (s *socket) next() (map[string]any, []byte, error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), 20*time.Second)
	defer cancel()
	kind, raw, err := s.conn.Read(ctx)
	if err != nil || kind == websocket.MessageBinary {
		return nil, raw, err
	}
	var m map[string]any
	if err := json.Unmarshal(raw, &m); err != nil {
		s.t.Fatal(err)
	}
	return m, nil, nil
}

// until reads up to a message of a type, and returns it and the output before it.
func (s *socket) until(kind string) (map[string]any, string) {
	s.t.Helper()
	var out []byte
	for {
		m, data, err := s.next()
		if err != nil {
			s.t.Fatalf("waiting for %s: %v after %q", kind, err, out)
		}
		if m["type"] == kind {
			return m, string(out)
		}
		if m["type"] == "error" || m["type"] == "exit" {
			s.t.Fatalf("waiting for %s: %v after %q", kind, m, out)
		}
		if data != nil {
			out = append(out, data[9:]...)
		}
	}
}

// closes checks that the server closes now, with 1000.
func (s *socket) closes() {
	s.t.Helper()
	if m, _, err := s.next(); websocket.CloseStatus(err) != websocket.StatusNormalClosure {
		s.t.Errorf("got %v, %v where the end was due", m, err)
	}
}

func TestSession(t *testing.T) {
	w := newWorld(t)
	id := w.createID()
	s := w.connect(id, `{"start":{"command":"cat; echo end; exit 4","stdin":true,"tag":"s"}}`)
	m, _ := s.until("started")
	process := m["process"].(map[string]any)
	if process["tag"] != "s" || process["stdin"] != true || m["position"] != 0.0 {
		t.Errorf("started: %v", m)
	}
	s.send("hello\n")
	if _, data, err := s.next(); err != nil || string(data) != "\x01\x00\x00\x00\x00\x00\x00\x00\x00hello\n" {
		t.Fatalf("%q %v", data, err)
	}
	// Another one joins it, and writes too.
	other := w.connect(id, `{"attach":{"process":"tag:s","from":1}}`)
	if m, _ := other.until("started"); m["position"] != 1.0 {
		t.Errorf("joined: %v", m)
	}
	other.send("from the other\n")
	s.say(`{"type":"close_stdin"}`)
	exit, out := s.until("exit")
	if !strings.HasSuffix(out, "end\n") || exit["exit_code"] != 4.0 || exit["lost"] != 0.0 || exit["id"] != process["id"] {
		t.Errorf("%q %v", out, exit)
	}
	s.closes()
	if exit, all := other.until("exit"); !strings.HasPrefix(all, "ello\n") || exit["exit_code"] != 4.0 {
		t.Errorf("the other: %q %v", all, exit)
	}
	other.closes()
}

func TestSessionErrors(t *testing.T) {
	w := newWorld(t)
	id := w.createID()
	for first, want := range map[string]string{
		`{`: "invalid_argument", `{}`: "invalid_argument", `{"start":{}}`: "invalid_argument", `{"start":{"command":"x","cwd":"/none"}}`: "invalid_argument",
		`{"attach":{"process":"none"}}`: "process_not_found", `{"attach":{"process":"1","from":"begin"}}`: "invalid_argument",
	} {
		s := w.connect(id, first)
		m, _ := s.until("error")
		if e := m["error"].(map[string]any); e["code"] != want || e["message"] == "" || e["request_id"] == "" {
			t.Errorf("%s: %v", first, m)
		}
		s.closes()
	}
	for _, message := range []string{`{"type":"none"}`, `{"type":"resize","cols":80,"rows":24}`, `{"type":"signal","signal":"x"}`, "big", "much"} {
		s := w.connect(id, `{"start":{"command":"sleep 1000","stdin":true,"on_disconnect":"kill"}}`)
		m, _ := s.until("started")
		switch message {
		case "big":
			message = `{"type":"` + strings.Repeat("x", 70_000) + `"}`
			s.say(message)
		case "much":
			for range 17 { // more than there is room for, as nobody reads
				s.send(strings.Repeat("x", 64<<10))
			}
			s.send(strings.Repeat("x", 900<<10))
			s.send(strings.Repeat("x", 900<<10))
		default:
			s.say(message)
		}
		s.until("error")
		s.closes()
		got := w.get("/v1/sandboxes/" + id + "/processes/" + m["process"].(map[string]any)["id"].(string) + "/wait?timeout_seconds=10")
		if got["state"] != "ended" {
			t.Errorf("%.30s: the process goes on", message)
		}
	}
}

// A client that leaves lets the process go on, or ends it, as it said at the start.
func TestSessionLeft(t *testing.T) {
	w := newWorld(t)
	id := w.createID()
	at := "/v1/sandboxes/" + id + "/processes/"
	for _, kill := range []bool{false, true} {
		for _, way := range []string{"detach", "close", "break"} {
			body := `{"start":{"command":"sleep 1000"}}`
			if kill {
				body = `{"start":{"command":"sleep 1000","on_disconnect":"kill"}}`
			}
			s := w.connect(id, body)
			m, _ := s.until("started")
			process := at + m["process"].(map[string]any)["id"].(string)
			switch way {
			case "detach":
				s.say(`{"type":"detach"}`)
				s.closes()
			case "close":
				s.conn.Close(websocket.StatusNormalClosure, "")
			case "break":
				s.conn.CloseNow()
			}
			wait := "0.2"
			if kill && way != "detach" {
				wait = "20"
			}
			got := w.get(process + "/wait?timeout_seconds=" + wait)
			if ended := got["state"] == "ended"; ended != (kill && way != "detach") {
				t.Errorf("kill %v, %s: %v", kill, way, got)
			}
			if got["state"] == "running" {
				w.send("POST", process+"/signal", `{"signal":"KILL"}`)
			}
		}
	}
}

// Flow control: a client that gives no room gets no more than the first window, the
// process waits, and nothing is lost; and input waits for a process that does not read.
func TestSessionWindows(t *testing.T) {
	w := newWorld(t)
	id := w.createID()
	s := w.connect(id, `{"start":{"command":"fake-bytes 5000000; cat","stdin":true}}`)
	s.until("started")
	total, room := 0, 1<<20
	read := func() {
		for total < min(room, 5000000) {
			_, data, err := s.next()
			if err != nil || data == nil {
				t.Fatalf("after %d bytes: %v", total, err)
			}
			total += len(data) - 9
		}
		if total > room {
			t.Fatalf("%d bytes came where there was room for %d", total, room)
		}
	}
	read()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	kind, raw, err := s.conn.Read(ctx)
	cancel()
	if err == nil {
		t.Fatalf("after the window: %v %d bytes", kind, len(raw))
	}
	// The library has closed the connection with that context: join again.
	s = w.connect(id, `{"start":{"command":"fake-bytes 5000000; cat","stdin":true}}`)
	s.until("started")
	total = 0
	for room < 5000000 {
		read()
		room += 700_000
		s.say(fmt.Sprintf(`{"type":"window","position":%d}`, room))
	}
	read()
	if total != 5000000 {
		t.Errorf("%d bytes came", total)
	}
	s.say(`{"type":"window","position":99999999}`)
	sent := 0
	for range 16 {
		s.send(strings.Repeat("0123456789abcdef", 4096))
		sent += 64 << 10
	}
	m, _ := s.until("stdin_window")
	if position := m["position"].(float64); int(position) <= sent {
		t.Errorf("there is room for %v after %d bytes", position, sent)
	}
	s.say(`{"type":"close_stdin"}`)
	if exit, _ := s.until("exit"); exit["exit_code"] != 0.0 || int(exit["position"].(float64)) != total+sent {
		t.Errorf("%v", exit)
	}
}

func TestSessionAccess(t *testing.T) {
	w := newWorld(t)
	sb := w.create(`{}`)
	other := w.create(`{}`)
	id := sb["id"].(string)
	origin := strings.Replace(w.url, "127.0.0.1", "localhost", 1)
	host := strings.TrimPrefix(w.url, "http://")
	for _, tt := range []struct {
		what      string
		protocols []string
		header    http.Header
		status    int
	}{
		{"a key in the header", []string{"ringfence.v1"}, http.Header{"Authorization": {"Bearer " + w.key}}, 101},
		{"a key as a subprotocol", []string{"ringfence.v1", "ringfence.token." + w.key}, nil, 101},
		{"the sandbox's token", []string{"ringfence.token." + sb["access_token"].(string), "ringfence.v1"}, http.Header{"Origin": {"http://" + host}}, 101},
		{"another sandbox's token", []string{"ringfence.v1", "ringfence.token." + other["access_token"].(string)}, nil, 404},
		{"nothing", []string{"ringfence.v1"}, nil, 401},
		{"nothing, but a cookie", []string{"ringfence.v1"}, http.Header{"Cookie": {"key=" + w.key}}, 401},
		{"no subprotocol", nil, http.Header{"Authorization": {"Bearer " + w.key}}, 400},
		{"a page of another origin", []string{"ringfence.v1", "ringfence.token." + w.key}, http.Header{"Origin": {"https://elsewhere.example"}}, 403},
		{"a page of another name", []string{"ringfence.v1", "ringfence.token." + w.key}, http.Header{"Origin": {origin}}, 403},
		{"a page of a sandbox", []string{"ringfence.v1", "ringfence.token." + w.key}, http.Header{"Origin": {"null"}}, 403},
	} {
		s, resp, err := w.dial(id, &websocket.DialOptions{HTTPHeader: tt.header, Subprotocols: tt.protocols}) //nolint:bodyclose // Dial has read it
		if resp == nil || resp.StatusCode != tt.status || (err == nil) != (tt.status == 101) {
			t.Errorf("%s: %v %v", tt.what, resp, err)
			continue
		}
		if err == nil {
			if got := s.conn.Subprotocol(); got != "ringfence.v1" {
				t.Errorf("%s: subprotocol %q", tt.what, got)
			}
			continue
		}
		if resp.Header.Get("Content-Type") != "application/json" || resp.Header.Get("X-Request-Id") == "" {
			t.Errorf("%s: %v", tt.what, resp.Header)
		}
	}
	w.refused(w.send("GET", "/v1/sandboxes/"+id+"/connect", ""), 400, ringfence.CodeInvalidArgument, "")
	// The credential of a WebSocket opens nothing else.
	w.refused(w.send("GET", "/v1/sandboxes", "", "Authorization", "-", "Sec-WebSocket-Protocol", "ringfence.token."+w.key), 401, ringfence.CodeUnauthenticated, "")
	if strings.Contains(w.log.String(), w.key) || strings.Contains(w.log.String(), sb["access_token"].(string)) {
		t.Error("the log holds a credential")
	}
}
