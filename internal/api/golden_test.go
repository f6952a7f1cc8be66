package api

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"ringfence.dev/ringfence"
)

var update = flag.Bool("update", false, "write the golden frames anew")

const framesDir = "../../api/frames"

// golden compares bytes with a file.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join(framesDir, name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s: got\n%q\nwant\n%q", name, got, want)
	}
}

// say plays a list of what a process says into an encoder.
func say(t *testing.T, to streamed, list [][]json.RawMessage) {
	t.Helper()
	read := func(raw json.RawMessage, into any) {
		if err := json.Unmarshal(raw, into); err != nil {
			t.Fatalf("%s: %v", raw, err)
		}
	}
	for _, item := range list {
		var kind, text string
		var a, b uint64
		read(item[0], &kind)
		var err error
		switch kind {
		case "started":
			var pid int
			read(item[1], &text)
			read(item[2], &pid)
			read(item[3], &a)
			err = to.joined(text, pid, a)
		case "stdout", "stderr":
			read(item[1], &a)
			read(item[2], &text)
			data, derr := base64.StdEncoding.DecodeString(text)
			if derr != nil {
				t.Fatal(derr)
			}
			err = to.output(map[string]ringfence.Stream{"stdout": ringfence.Stdout, "stderr": ringfence.Stderr}[kind], a, data)
		case "lost":
			read(item[1], &a)
			read(item[2], &b)
			err = to.lost(a, b)
		case "alive":
			err = to.alive()
		case "exit":
			var exit outcomeBody
			read(item[1], &exit)
			err = to.exit(exit)
		case "error":
			var body errorBody
			read(item[1], &body)
			err = to.fail(body)
		default:
			t.Fatalf("no kind %q", kind)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestGoldenStreams(t *testing.T) {
	for _, name := range []string{"output", "error"} {
		raw, err := os.ReadFile(filepath.Join(framesDir, name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		var list [][]json.RawMessage
		if err := json.Unmarshal(raw, &list); err != nil {
			t.Fatal(err)
		}
		for suffix, make := range map[string]func(*answer) streamed{
			"sse": func(a *answer) streamed { return newEvents(a) },
			"bin": func(a *answer) streamed { return newFrames(a) },
		} {
			w := httptest.NewRecorder()
			say(t, make(&answer{ResponseWriter: w, control: http.NewResponseController(w), stall: time.Minute}), list)
			golden(t, name+"."+suffix, w.Body.Bytes())
		}
	}
}

// A message of session.json: who says it, and what.
type goldenMessage struct {
	From string          `json:"from"`
	Text json.RawMessage `json:"text"`
	Hex  string          `json:"hex"`
}

func goldenSessions(t *testing.T) map[string][]goldenMessage {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(framesDir, "session.json"))
	if err != nil {
		t.Fatal(err)
	}
	var sessions map[string][]goldenMessage
	if err := json.Unmarshal(raw, &sessions); err != nil {
		t.Fatal(err)
	}
	return sessions
}

// The server takes what the examples of clients say for what it means, and says what
// the examples of servers say.
func TestGoldenSessions(t *testing.T) {
	started := time.Date(2026, 11, 30, 20, 0, 0, 123456000, time.UTC)
	process := ringfence.Process{ID: "cmd_2eabae4e16547005", PID: 7, Tag: "t", Command: "bash -l", Args: []string{"bash", "-l"}, WorkDir: "/home/user", User: "user",
		PTY: true, StdinOpen: true, StartedAt: started}
	exit := ringfence.CommandExit{ID: process.ID, ExitCode: 130, Reason: ringfence.CommandSignal, Signal: 2, StartedAt: started, Duration: 1500 * time.Millisecond}
	joined := process
	joined.LogStart, joined.LogEnd = 100, 4000
	client := map[string][]any{
		"start": {
			nil, stdinMessage("echo hi\n\x00\xff"), windowMessage{"window", 2097152}, resizeMessage{120, 40},
			signalMessage{2, true}, closeStdinMessage{}, detachMessage{},
		},
		"attach": {nil},
	}
	server := map[string][]any{
		"start": {
			startedMessage{"started", processWire(process), 0},
			appendOutput(nil, ringfence.Stdout, 0, []byte("hi\r\n\xff")), appendOutput(nil, ringfence.Stderr, 1<<40, []byte("e")),
			positionMessage{"stdin_window", 1310720}, plainMessage{"stdin_closed"}, exitMessage{"exit", outcomeWire(exit, 6, 0)},
		},
		"attach": {
			startedMessage{"started", processWire(joined), 100}, lostMessage{"lost", 50, 150},
			errorMessage{"error", errorBody{wireError{Code: ringfence.CodeSandboxEnded, Message: "the sandbox has ended", Hint: "create another one", RequestID: "07f1c2d3e4a5b697"}}},
		},
	}
	for name, messages := range goldenSessions(t) {
		for i, m := range messages {
			raw, binary := []byte(m.Text), m.Hex != ""
			if binary {
				var err error
				if raw, err = hex.DecodeString(m.Hex); err != nil {
					t.Fatal(err)
				}
			}
			if m.From == "client" {
				want := client[name][0]
				client[name] = client[name][1:]
				var got any
				var err error
				if want == nil {
					_, err = decodeOpen(binary, raw)
				} else {
					got, err = decodeMessage(binary, raw)
				}
				if err != nil || !reflect.DeepEqual(got, want) {
					t.Errorf("%s %d: got %#v, %v; want %#v", name, i, got, err, want)
				}
				continue
			}
			next := server[name][0]
			server[name] = server[name][1:]
			if out, ok := next.([]byte); ok {
				if !bytes.Equal(out, raw) {
					t.Errorf("%s %d: %x, want %x", name, i, out, raw)
				}
				continue
			}
			text, err := encode(next)
			if err != nil {
				t.Fatal(err)
			}
			var got, want any
			if json.Unmarshal(text, &got) != nil || json.Unmarshal(raw, &want) != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%s %d: got %s, want %s", name, i, text, raw)
			}
		}
		if len(client[name])+len(server[name]) > 0 {
			t.Errorf("%s has no %v %v", name, client[name], server[name])
		}
	}
	open, err := decodeOpen(false, goldenSessions(t)["start"][0].Text)
	if err != nil || open.Start == nil || open.Start.OnDisconnect != "kill" || open.Start.PTY == nil || *open.Start.PTY.Cols != 80 || open.Start.Args[1] != "-l" {
		t.Errorf("open: %+v %v", open, err)
	}
}

func TestBadMessages(t *testing.T) {
	for message, field := range map[string]string{
		`{"type":"none"}`: "type", `{}`: "type", `{"type":"detach","x":1}`: "x", `{"type":"resize","cols":0,"rows":1}`: "cols",
		`{"type":"resize","cols":80}`: "cols", `{"type":"resize","cols":80,"rows":1001}`: "rows", `{"type":"window","position":-1}`: "position",
		`{"type":"signal"}`: "signal", `{"type":"signal","signal":65}`: "signal", `{"type":"signal","signal":"SIGNONE"}`: "signal",
		`{"type":"signal","signal":0}`: "signal", `{"type":"window","position":1,"position":2}`: "position", `{"type":"window","Position":1}`: "Position",
	} {
		m, err := decodeMessage(false, []byte(message))
		if e := asError(err); err == nil || e.Code != ringfence.CodeInvalidArgument || e.Field != field {
			t.Errorf("%s: %v, %v (field %q)", message, m, err, e.Field)
		}
	}
	for _, message := range []string{"", "x", "[]", `"x"`, "{", "{}{}", "\xff"} {
		if m, err := decodeMessage(false, []byte(message)); err == nil {
			t.Errorf("%q is taken for %v", message, m)
		}
	}
	for _, message := range []string{"", "\x01x", "\x02"} {
		if m, err := decodeMessage(true, []byte(message)); err == nil {
			t.Errorf("%q is taken for %v", message, m)
		}
	}
	for message, field := range map[string]string{
		`{}`: "start", `{"start":{},"attach":{}}`: "start", `{"start":{"comand":"x"}}`: "start.comand", `{"attach":{"process":""}}`: "attach.process",
		`{"start":{"command":"x","on_disconnect":"stay"}}`: "start.on_disconnect", `{"start":{"pty":{"width":1}}}`: "start.pty.width",
	} {
		if m, err := decodeOpen(false, []byte(message)); err == nil || asError(err).Field != field {
			t.Errorf("%s: %+v %v", message, m, err)
		}
	}
}

func FuzzMessage(f *testing.F) {
	for _, messages := range goldenMessages(f) {
		f.Add(messages.Hex != "", []byte(messages.Text))
	}
	f.Add(true, []byte{0, 1, 2})
	f.Fuzz(func(t *testing.T, binary bool, raw []byte) {
		if m, err := decodeOpen(binary, raw); err == nil && (m.Start == nil) == (m.Attach == nil) {
			t.Errorf("%q opens %+v", raw, m)
		} else if err == nil && m.Start != nil {
			if spec, err := m.Start.spec(); err == nil && (spec.Timeout < 0 || spec.PTY != nil && (spec.PTY.Cols < 1 || spec.PTY.Rows > ringfence.MaxTerminalSize)) {
				t.Errorf("%q starts %+v", raw, spec)
			}
		}
		m, err := decodeMessage(binary, raw)
		if err != nil {
			if asError(err).Code != ringfence.CodeInvalidArgument {
				t.Errorf("%q: %v", raw, err)
			}
			return
		}
		switch m := m.(type) {
		case resizeMessage:
			if m.cols < 1 || m.rows < 1 || m.cols > ringfence.MaxTerminalSize || m.rows > ringfence.MaxTerminalSize {
				t.Errorf("%q: %v", raw, m)
			}
		case signalMessage:
			if m.number < 1 || m.number > 64 {
				t.Errorf("%q: %v", raw, m)
			}
		case stdinMessage:
			if !binary || len(m) != len(raw)-1 {
				t.Errorf("%q: %q", raw, m)
			}
		}
	})
}

func goldenMessages(f *testing.F) []goldenMessage {
	raw, err := os.ReadFile(filepath.Join(framesDir, "session.json"))
	if err != nil {
		f.Fatal(err)
	}
	var sessions map[string][]goldenMessage
	if err := json.Unmarshal(raw, &sessions); err != nil {
		f.Fatal(err)
	}
	var all []goldenMessage
	for _, messages := range sessions {
		all = append(all, messages...)
	}
	return all
}
