package api_test

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

func (w *world) result(id, body string) map[string]any {
	w.t.Helper()
	r := w.run(id, body)
	if r.StatusCode != http.StatusOK {
		w.t.Fatalf("%s: %d %s", body, r.StatusCode, r.body)
	}
	return r.json(w.t)
}

func TestCommand(t *testing.T) {
	w := newWorld(t)
	id := w.create(`{"env":{"A":"sandbox","B":"sandbox"}}`)["id"].(string)
	got := w.result(id, `{"command":"echo $A $B; echo err >&2; exit 3","env":{"B":"<command>"}}`)
	if got["stdout"] != "sandbox <command>\n" || got["stderr"] != "err\n" || got["exit_code"] != 3.0 || got["reason"] != nil || got["signal"] != nil ||
		got["truncated"] != false || got["stdout_truncated"] != false || got["stdout_base64"] != nil {
		t.Errorf("got %v", got)
	}
	if !strings.HasPrefix(got["id"].(string), "cmd_") || got["duration_ms"].(float64) <= 0 {
		t.Errorf("got %v", got)
	}
	if at, err := time.Parse("2006-01-02T15:04:05.000000Z", got["started_at"].(string)); err != nil || time.Since(at) > time.Minute {
		t.Errorf("started_at: %v %v", got["started_at"], err)
	}
	if got := w.result(id, `{"args":["echo","$A","a b"]}`); got["stdout"] != "$A a b\n" {
		t.Errorf("args: %v", got)
	}
	if got := w.result(id, `{"command":"cat; pwd","stdin":"in\n","cwd":"/tmp"}`); got["stdout"] != "in\n/tmp\n" {
		t.Errorf("stdin and cwd: %v", got)
	}
	if got := w.result(id, `{"command":"cat","stdin":""}`); got["stdout"] != "" || got["exit_code"] != 0.0 {
		t.Errorf("empty stdin: %v", got)
	}
	if got := w.result(id, `{"command":"cat","stdin_base64":"/wD+"}`); got["stdout_base64"] != "/wD+" || got["stdout"] != "\ufffd\x00\ufffd" {
		t.Errorf("bytes: %v", got)
	}
	if got := w.result(id, `{"command":"fake-oom"}`); got["exit_code"] != 137.0 || got["reason"] != "oom" {
		t.Errorf("oom: %v", got)
	}
}

func TestCommandDeadline(t *testing.T) {
	w := newWorld(t)
	id := w.createID()
	began := time.Now()
	got := w.result(id, `{"command":"echo partial; sleep 60","timeout_seconds":0.3}`)
	if got["exit_code"] != 124.0 || got["reason"] != "deadline" || got["stdout"] != "partial\n" || time.Since(began) > 10*time.Second {
		t.Errorf("got %v after %v", got, time.Since(began))
	}
	if got := w.result(id, `{"command":"sleep 0.1","timeout_seconds":null}`); got["exit_code"] != 0.0 {
		t.Errorf("without a deadline: %v", got)
	}
}

func TestOutputLimit(t *testing.T) {
	w := newWorld(t)
	id := w.createID()
	got := w.result(id, `{"command":"seq 1 1000; echo done >&2","output_limit_bytes":9}`)
	if got["stdout"] != "999\n1000\n" || got["stdout_truncated"] != true || got["stderr_truncated"] != false || got["truncated"] != true || got["exit_code"] != 0.0 {
		t.Errorf("got %v", got)
	}
	// The cut falls within a character, which is dropped whole.
	got = w.result(id, `{"command":"cat","stdin":"ääääé€","output_limit_bytes":4}`)
	if got["stdout"] != "€" || got["stdout_base64"] != nil || got["truncated"] != true {
		t.Errorf("got %v", got)
	}
	got = w.result(id, `{"command":"yes 0123456789 | head -c 11000000"}`)
	if n := len(got["stdout"].(string)); n != 10<<20 || got["truncated"] != true {
		t.Errorf("%d bytes by default of %d, truncated %v", n, 11000000, got["truncated"])
	}
	got = w.result(id, `{"command":"fake-bytes 100000","output_limit_bytes":50000}`)
	raw, err := base64.StdEncoding.DecodeString(got["stdout_base64"].(string))
	if err != nil || len(raw) < 50000-3 || len(raw) > 50000 || got["truncated"] != true {
		t.Errorf("%d bytes of 100000, %v", len(raw), err)
	}
}

// event is one server-sent event.
type event struct {
	name string
	data map[string]any
}

func events(t *testing.T, r io.Reader, each func(event) bool) {
	t.Helper()
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 16<<20)
	var e event
	for lines.Scan() {
		switch line := lines.Text(); {
		case line == "":
			if e.name != "" && !each(e) {
				return
			}
			e = event{}
		case strings.HasPrefix(line, "event: "):
			e.name = line[7:]
		case strings.HasPrefix(line, "data: "):
			if err := json.Unmarshal([]byte(line[6:]), &e.data); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
		case !strings.HasPrefix(line, ":"):
			t.Fatalf("a line that is no event: %q", line)
		}
	}
}

func TestEvents(t *testing.T) {
	w := newWorld(t)
	id := w.createID()
	// A character arrives in pieces, with the other stream in between.
	command := `printf '\303'; sleep 0.1; echo e >&2; printf '\244b\n'; sleep 0.1; printf '\377'; exit 2`
	body, _ := json.Marshal(map[string]any{"command": command})
	r := w.run(id, string(body), "Accept", "text/event-stream")
	if r.StatusCode != 200 || r.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("%d %v", r.StatusCode, r.Header)
	}
	var got []string
	events(t, strings.NewReader(string(r.body)), func(e event) bool {
		switch e.name {
		case "started":
			if e.data["id"] == "" || e.data["pid"].(float64) < 1 {
				t.Errorf("started: %v", e.data)
			}
		case "exit":
			if _, there := e.data["stdout"]; there || e.data["exit_code"] != 2.0 {
				t.Errorf("exit: %v", e.data)
			}
		default:
			got = append(got, fmt.Sprint(e.name, e.data["text"], " ", e.data["base64"], " ", e.data["position"]))
			return true
		}
		got = append(got, e.name)
		return true
	})
	want := "started|stderre\n <nil> 1|stdoutäb\n <nil> 0|stdout<nil> /w== 6|exit"
	if strings.Join(got, "|") != want {
		t.Errorf("got %q, want %q", strings.Join(got, "|"), want)
	}
}

func TestEventsAreLive(t *testing.T) {
	w := newWorld(t)
	id := w.createID()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	resp, err := w.open(ctx, "POST", "/v1/sandboxes/"+id+"/commands", strings.NewReader(`{"command":"echo now; sleep 60","timeout_seconds":null}`), "Accept", "text/event-stream")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	began := time.Now()
	events(t, resp.Body, func(e event) bool { return e.name != "stdout" })
	if time.Since(began) > 10*time.Second {
		t.Error("the output came at the end")
	}
	// The caller goes away, and the command with it.
	cancel()
	deadline := time.Now().Add(time.Minute)
	for !strings.Contains(w.log.String(), "the command was killed: its caller went away") {
		if time.Now().After(deadline) {
			t.Fatal("the command of a caller that went away was not killed")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// frames splits a binary stream.
func frames(t *testing.T, r io.Reader, each func(kind byte, payload []byte)) {
	t.Helper()
	in := bufio.NewReaderSize(r, 1<<20)
	var header [5]byte
	for {
		if _, err := io.ReadFull(in, header[:]); err == io.EOF {
			return
		} else if err != nil {
			t.Fatal(err)
		}
		payload := make([]byte, binary.BigEndian.Uint32(header[1:]))
		if _, err := io.ReadFull(in, payload); err != nil {
			t.Fatal(err)
		}
		each(header[0], payload)
	}
}

func TestFrames(t *testing.T) {
	w := newWorld(t)
	id := w.createID()
	const size = 4_000_000
	var bytes, errBytes int
	var kinds []byte
	var exit map[string]any
	resp, err := w.open(t.Context(), "POST", "/v1/sandboxes/"+id+"/commands", strings.NewReader(fmt.Sprintf(`{"command":"fake-bytes %d; echo e >&2"}`, size)), "Accept", "application/vnd.ringfence.stream")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	frames(t, resp.Body, func(kind byte, payload []byte) {
		if len(kinds) == 0 || kinds[len(kinds)-1] != kind {
			kinds = append(kinds, kind)
		}
		switch kind {
		case 1:
			bytes += len(payload)
		case 2:
			errBytes += len(payload)
		case 4:
			if err := json.Unmarshal(payload, &exit); err != nil {
				t.Error(err)
			}
		}
	})
	if bytes != size || errBytes != 2 || !slices.Equal(kinds, []byte{3, 1, 2, 4}) || exit["exit_code"] != 0.0 {
		t.Errorf("%d and %d bytes, kinds %v, exit %v", bytes, errBytes, kinds, exit)
	}
	r := w.run(id, `{"command":"fake-crash 0.1"}`, "Accept", "application/vnd.ringfence.stream")
	var last byte
	frames(t, strings.NewReader(string(r.body)), func(kind byte, payload []byte) {
		if last = kind; kind == 5 && !strings.Contains(string(payload), "sandbox_ended") {
			t.Errorf("error frame: %s", payload)
		}
	})
	if last != 5 {
		t.Errorf("the last frame has kind %d", last)
	}
}

// An error that is known before the command runs is an ordinary one, in streams too.
func TestStreamThatDoesNotBegin(t *testing.T) {
	w := newWorld(t)
	id := w.createID()
	for _, accept := range []string{"text/event-stream", "application/vnd.ringfence.stream"} {
		w.refused(w.run(id, `{"command":"pwd","cwd":"/none"}`, "Accept", accept), 400, "invalid_argument", "cwd")
	}
}
