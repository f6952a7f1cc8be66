package client

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"ringfence.dev/ringfence"
)

func frame(kind byte, payload string) string {
	head := binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(payload)))
	return string(head) + payload
}

const (
	startedJSON = `{"id":"c1","pid":42}`
	exitJSON    = `{"id":"c1","exit_code":3,"reason":null,"signal":null,"duration_ms":12,"started_at":"2026-11-30T20:00:00.000000Z"}`
)

// streamOf answers with frames, one flush each, so that they arrive in pieces.
func streamOf(t *testing.T, parts ...string) *Client {
	return serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept") != streamType {
			t.Errorf("asked for %q", r.Header.Get("Accept"))
		}
		w.Header().Set("Content-Type", streamType)
		w.Header().Set("X-Request-Id", "00000000deadbeef")
		for _, p := range parts {
			_, _ = io.WriteString(w, p)
			_ = http.NewResponseController(w).Flush()
		}
	})
}

func TestRunStream(t *testing.T) {
	big := strings.Repeat("0123456789abcdef", 100_000) // larger than any buffer on the way
	whole := frame(frameStarted, startedJSON) + frame(frameStdout, "a\xff") + frame(frameKeepAlive, "") + frame(frameStderr, "err") +
		frame(99, "of a later version") + frame(frameStdout, big) + frame(frameExit, exitJSON)
	var pieces []string
	for rest := whole; rest != ""; {
		n := min(len(rest), 70_001)
		pieces, rest = append(pieces, rest[:n]), rest[n:]
	}
	c := streamOf(t, pieces...)
	var out, serr bytes.Buffer
	var started Started
	result, err := c.Open(testID).Run(context.Background(), Command{Shell: "x", Stdout: &out, Stderr: &serr, Started: func(s Started) { started = s }})
	if err != nil {
		t.Fatal(err)
	}
	if out.String() != "a\xff"+big || serr.String() != "err" || started != (Started{"c1", 42}) {
		t.Errorf("got %d bytes, %q, %v", out.Len(), serr.String(), started)
	}
	if result.ExitCode != 3 || result.Duration != 12*time.Millisecond || result.Reason != "" || len(result.Stdout) != 0 {
		t.Errorf("got %+v", result)
	}
}

func TestRunStreamKeepsWhatHasNoWriter(t *testing.T) {
	c := streamOf(t, frame(frameStdout, "abc")+frame(frameStderr, "0123456789")+frame(frameExit, exitJSON))
	result, err := c.Open(testID).Run(context.Background(), Command{Shell: "x", Stdout: io.Discard, OutputLimit: 4})
	if err != nil || string(result.Stderr) != "6789" || !result.StderrTruncated || result.StdoutTruncated || !result.Truncated() {
		t.Errorf("got %+v, %v", result, err)
	}
}

func TestBrokenStreams(t *testing.T) {
	for name, tc := range map[string]struct {
		stream string
		code   ringfence.Code
	}{
		"nothing":           {"", ringfence.CodeUnavailable},
		"no end":            {frame(frameStarted, startedJSON) + frame(frameStdout, "abc"), ringfence.CodeUnavailable},
		"half a header":     {"\x01\x00", ringfence.CodeUnavailable},
		"half a frame":      {frame(frameStdout, "abcdef")[:8], ringfence.CodeUnavailable},
		"half an exit":      {frame(frameExit, exitJSON)[:20], ringfence.CodeUnavailable},
		"error event":       {frame(frameError, `{"error":{"code":"sandbox_ended","message":"it died","hint":"make one","request_id":"r"}}`), ringfence.CodeSandboxEnded},
		"empty error event": {frame(frameError, `{}`), ringfence.CodeInternal},
		"exit, no code":     {frame(frameExit, `{"id":"c1"}`), ringfence.CodeInternal},
		"exit, no JSON":     {frame(frameExit, `{`), ringfence.CodeInternal},
		"giant event":       {"\x04\xff\xff\xff\xff", ringfence.CodeInternal},
	} {
		t.Run(name, func(t *testing.T) {
			c := streamOf(t, tc.stream)
			result, err := c.Open(testID).Run(context.Background(), Command{Shell: "x", Stderr: io.Discard})
			e := asError(t, err)
			if e.Code != tc.code || e.RequestID == "" {
				t.Errorf("got %+v, want %s", *e, tc.code)
			}
			if result == nil || result.ExitCode != -1 {
				t.Errorf("beside an error: %+v", result)
			}
			if name == "no end" && string(result.Stdout) != "abc" {
				t.Errorf("lost what came before: %q", result.Stdout)
			}
		})
	}
}

func TestStreamOfAnotherType(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) { answer(w, 200, exitJSON) })
	_, err := c.Open(testID).Run(context.Background(), Command{Shell: "x", Stdout: io.Discard})
	if asError(t, err).Code != ringfence.CodeInternal {
		t.Errorf("got %v", err)
	}
}

func TestWriterErrorEndsTheCommand(t *testing.T) {
	left := make(chan struct{})
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", streamType)
		_, _ = io.WriteString(w, frame(frameStdout, "abc"))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		close(left)
	})
	full := errors.New("disk full")
	_, err := c.Open(testID).Run(context.Background(), Command{Shell: "x", Stdout: WriterFunc(func([]byte) error { return full })})
	if !errors.Is(err, full) {
		t.Errorf("got %v", err)
	}
	select {
	case <-left:
	case <-time.After(5 * time.Second):
		t.Error("the server does not see that the client left")
	}
}

func TestSilence(t *testing.T) {
	silenceLimit = 50 * time.Millisecond
	defer func() { silenceLimit = 60 * time.Second }()
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", streamType)
		_, _ = io.WriteString(w, frame(frameStdout, "abc"))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	// A slow writer is not silence.
	slow := WriterFunc(func([]byte) error { time.Sleep(100 * time.Millisecond); return nil })
	_, err := c.Open(testID).Run(context.Background(), Command{Shell: "x", Stdout: slow})
	if e := asError(t, err); e.Code != ringfence.CodeUnavailable || !errors.Is(err, errSilent) {
		t.Errorf("got %+v", *e)
	}
}

func TestRunJSON(t *testing.T) {
	var sent string
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		sent = string(body)
		answer(w, 200, `{"id":"c1","exit_code":137,"reason":"oom","signal":9,"stdout":"a�","stderr":"e","stdout_base64":"Yf8=","stdout_truncated":true,
			"stderr_truncated":false,"truncated":true,"duration_ms":1500,"started_at":"2026-11-30T20:00:00.000000Z"}`)
	})
	s := c.Open(testID)
	r, err := s.Run(context.Background(), Command{Args: []string{"cat", "-"}, WorkDir: "/w", Env: map[string]string{"A": "b"}, User: "u",
		Stdin: strings.NewReader("in"), Timeout: NoTimeout, OutputLimit: 5, Tag: "t"})
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"args":["cat","-"],"cwd":"/w","env":{"A":"b"},"user":"u","stdin":"in","timeout_seconds":null,"output_limit_bytes":5,"tag":"t"}`; sent != want {
		t.Errorf("sent %s", sent)
	}
	if string(r.Stdout) != "a\xff" || string(r.Stderr) != "e" || r.ExitCode != 137 || r.Signal != 9 || !r.StdoutTruncated || r.Duration != 1500*time.Millisecond {
		t.Errorf("got %+v", r)
	}
	var exit *ExitError
	if !errors.As(r.Err(), &exit) || !strings.Contains(exit.Error(), "memory") {
		t.Errorf("got %v", r.Err())
	}
	for _, tc := range []struct {
		cmd  Command
		want string
	}{
		{Command{Shell: "x"}, `{"command":"x"}`},
		{Command{Shell: "x", Timeout: 1500 * time.Millisecond}, `{"command":"x","timeout_seconds":1.5}`},
		{Command{Shell: "x", Stdin: strings.NewReader("\xff")}, `{"command":"x","stdin_base64":"/w=="}`},
		{Command{Shell: "x", Stdin: strings.NewReader("")}, `{"command":"x","stdin":""}`},
	} {
		if _, err := s.Run(context.Background(), tc.cmd); err != nil || sent != tc.want {
			t.Errorf("sent %s, want %s (%v)", sent, tc.want, err)
		}
	}
	if _, err := s.Run(context.Background(), Command{Shell: "x", Stdin: iotest.ErrReader(io.ErrClosedPipe)}); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("got %v", err)
	}
}

func TestTail(t *testing.T) {
	whole := strings.Repeat("0123456789", 50)
	for _, limit := range []int{1, 7, 499, 500, 501} {
		for _, step := range []int{1, 3, 64, 500} {
			tl := &tail{limit: limit}
			for rest := whole; rest != ""; {
				n := min(step, len(rest))
				_, _ = tl.Write([]byte(rest[:n]))
				rest = rest[n:]
			}
			want := whole[max(0, len(whole)-limit):]
			if string(tl.bytes()) != want || tl.dropped != (limit < len(whole)) {
				t.Errorf("limit %d, step %d: kept %d bytes, dropped %v", limit, step, len(tl.bytes()), tl.dropped)
			}
		}
	}
}
