package client

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"ringfence.dev/ringfence"
)

const framesDir = "../api/frames"

func goldenFile(t *testing.T, name string, into any) []byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(framesDir, name))
	if err != nil {
		t.Fatal(err)
	}
	if into != nil {
		if err := json.Unmarshal(raw, into); err != nil {
			t.Fatal(err)
		}
	}
	return raw
}

// The client understands the examples of the binary stream, and the server's server-sent
// events carry the same bytes.
func TestGoldenOutput(t *testing.T) {
	for _, name := range []string{"output", "error"} {
		var list [][]json.RawMessage
		goldenFile(t, name+".json", &list)
		var want [3]bytes.Buffer
		var lost uint64
		for _, item := range list {
			var kind, text string
			_ = json.Unmarshal(item[0], &kind)
			switch kind {
			case "stdout", "stderr":
				_ = json.Unmarshal(item[2], &text)
				data, err := base64.StdEncoding.DecodeString(text)
				if err != nil {
					t.Fatal(err)
				}
				want[map[string]int{"stdout": 1, "stderr": 2}[kind]].Write(data)
			case "lost":
				_ = json.Unmarshal(item[1], &lost)
			}
		}
		var stdout, stderr bytes.Buffer
		var joined, told []uint64
		p := &Process{}
		f := &follower{next: FromEnd, o: FollowOptions{Stdout: &stdout, Stderr: &stderr,
			Joined: func(_ Started, at uint64) { joined = append(joined, at) },
			Lost:   func(n, at uint64) { told = append(told, n, at) }}}
		result, err := f.read(bufio.NewReaderSize(bytes.NewReader(goldenFile(t, name+".bin", nil)), bufferBytes), p)
		if !bytes.Equal(stdout.Bytes(), want[1].Bytes()) || !bytes.Equal(stderr.Bytes(), want[2].Bytes()) || p.ID() != "cmd_2eabae4e16547005" || f.lost != lost {
			t.Errorf("%s: %q %q, lost %d, of %s", name, stdout.Bytes(), stderr.Bytes(), f.lost, p.ID())
		}
		if name == "error" {
			if ringfence.CodeOf(err) != ringfence.CodeSandboxEnded || !reflect.DeepEqual(joined, []uint64{100}) || f.next != 117 {
				t.Errorf("%v, joined at %v, next %d", err, joined, f.next)
			}
			continue
		}
		if err != nil || result.ExitCode != 130 || result.Signal != 2 || result.Reason != ReasonSignal || !result.Truncated() || result.Position != f.next ||
			result.Lost != lost || !reflect.DeepEqual(joined, []uint64{0}) || !reflect.DeepEqual(told, []uint64{1000000, 1000028}) {
			t.Errorf("%+v %v, joined at %v, lost %v, next %d", result, err, joined, told, f.next)
		}
		// Whatever is cut off is no success, and what was written is counted.
		whole := goldenFile(t, name+".bin", nil)
		for n := range len(whole) {
			var out bytes.Buffer
			f := &follower{o: FollowOptions{Stdout: &out, Stderr: &out}}
			if result, err := f.read(bufio.NewReaderSize(bytes.NewReader(whole[:n]), bufferBytes), &Process{}); err == nil {
				t.Fatalf("%d of %d bytes: %+v", n, len(whole), result)
			}
			if f.lost == 0 && int(f.next) != out.Len() {
				t.Fatalf("%d of %d bytes: at %d after %d", n, len(whole), f.next, out.Len())
			}
		}
	}
}

func TestGoldenSession(t *testing.T) {
	var sessions map[string][]struct {
		From string          `json:"from"`
		Text json.RawMessage `json:"text"`
		Hex  string          `json:"hex"`
	}
	goldenFile(t, "session.json", &sessions)
	start := ProcessOptions{Args: []string{"bash", "-l"}, Tag: "t", Terminal: &TerminalSize{80, 24, "xterm-256color"}}.wire()
	start.OnDisconnect = "kill"
	said := map[string][]any{
		"start": {
			map[string]any{"start": start}, nil, map[string]any{"type": "window", "position": 2 * sessionWindow}, map[string]any{"type": "resize", "cols": 120, "rows": 40},
			map[string]any{"type": "signal", "signal": signalOf("SIGINT"), "tree": true}, map[string]any{"type": "close_stdin"}, map[string]any{"type": "detach"},
		},
		"attach": {map[string]any{"attach": map[string]any{"process": "cmd_2eabae4e16547005", "from": 100}}},
	}
	for name, messages := range sessions {
		s := &Session{process: &Process{}, changed: make(chan struct{}), granted: sessionWindow, room: sessionWindow}
		var last error
		for i, m := range messages {
			raw, binary := []byte(m.Text), m.Hex != ""
			if binary {
				raw, _ = hex.DecodeString(m.Hex)
			}
			if m.From == "server" {
				_, last = s.take(binary, raw)
				if last != nil && i < len(messages)-1 {
					t.Errorf("%s %d: %v", name, i, last)
				}
				continue
			}
			var got, want any
			if mine := said[name][0]; mine == nil {
				if binary != true || raw[0] != channelStdin || string(raw[1:]) != "echo hi\n\x00\xff" {
					t.Errorf("%s %d: %q", name, i, raw)
				}
			} else if text, err := json.Marshal(mine); err != nil || json.Unmarshal(text, &got) != nil || json.Unmarshal(raw, &want) != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%s %d: %s, want %s", name, i, text, raw)
			}
			said[name] = said[name][1:]
		}
		info := s.process.info
		switch name {
		case "start":
			want := []SessionOutput{{1, 0, []byte("hi\r\n\xff"), 0}, {2, 1 << 40, []byte("e"), 0}}
			if last != nil || !reflect.DeepEqual(s.queue, want) || s.room != 1310720 || !s.closed || info.PID != 7 || !info.Terminal || !info.StdinOpen ||
				s.result == nil || s.result.ExitCode != 130 || s.result.Position != 6 || s.result.Duration != 1500*time.Millisecond {
				t.Errorf("%+v %v %v, room %d, closed %v, %+v", info, last, s.queue, s.room, s.closed, s.result)
			}
		case "attach":
			if ringfence.CodeOf(last) != ringfence.CodeSandboxEnded || s.next != 100 || !reflect.DeepEqual(s.queue, []SessionOutput{{Lost: 50, Position: 150}}) || s.result != nil {
				t.Errorf("%v at %d: %v", last, s.next, s.queue)
			}
		}
	}
}

func FuzzSession(f *testing.F) {
	f.Add(true, []byte("\x01\x00\x00\x00\x00\x00\x00\x00\x00x"))
	f.Add(false, []byte(`{"type":"exit","exit_code":0}`))
	f.Add(false, []byte(`{"type":"exit"}`))
	f.Fuzz(func(t *testing.T, binary bool, raw []byte) {
		s := &Session{process: &Process{}, changed: make(chan struct{})}
		end, err := s.take(binary, raw)
		if s.result != nil && (err != nil || !end) || end && err == nil && s.result == nil {
			t.Errorf("%q: %+v, %v, %v", raw, s.result, end, err)
		}
	})
}
