package client

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"

	"ringfence.dev/ringfence"
)

// A session's messages; api/frames/README.md describes them.
const (
	sessionProtocol = "ringfence.v1"
	sessionWindow   = 1 << 20  // bytes in each direction before the receiver has to give room
	largestStdin    = 64 << 10 // bytes in one message
	largestMessage  = 4 << 20
	outputHeader    = 9 // the channel, and eight bytes of position
	channelStdin    = 0
	channelStdout   = 1
	channelStderr   = 2
)

// Session is a two-way connection with a process: its output, and its input. One
// goroutine may read while others write. It has to be closed.
//
// Who started the process with the session holds it back: while nobody reads, the
// process waits, and nothing is lost. Who attached may lose output and is told.
type Session struct {
	conn    *websocket.Conn
	process *Process
	stop    func() bool
	done    chan struct{} // closed when nothing more comes
	watch   *time.Timer   // ends a connection that is silent

	mu       sync.Mutex
	changed  chan struct{} // closed and replaced at each change; guarded by mu
	queue    []SessionOutput
	consumed uint64 // bytes of output that were read; guarded by mu
	granted  uint64 // … and that may be sent; guarded by mu
	sent     uint64 // bytes of stdin; guarded by mu
	room     uint64 // … and that may be sent; guarded by mu
	closed   bool   // the process takes no more input; guarded by mu
	result   *Result
	err      error // why done is closed, if not for result
	next     uint64
	lost     uint64
}

// SessionOutput is a piece of output, or of what is missing.
type SessionOutput struct {
	Stream   ringfence.Stream // Stdout, which is a terminal's too, or Stderr; 0 where bytes are missing
	Position uint64           // of Data in the output, both streams together
	Data     []byte
	Lost     uint64 // how many bytes are missing before Position
}

// SessionOptions says how a session ends.
type SessionOptions struct {
	// Kill ends the process with all that it started when the session ends without
	// Detach. Without it the process goes on.
	Kill bool
}

// StartSession starts a process and connects to it. The end of ctx ends the session.
//
// Errors: as StartProcess.
func (s *Sandbox) StartSession(ctx context.Context, o ProcessOptions, so SessionOptions) (*Session, error) {
	start := o.wire()
	if so.Kill {
		start.OnDisconnect = "kill"
	}
	return s.connect(ctx, map[string]any{"start": start}, "start a process")
}

// Attach connects to a process, from a position in its output on; FromEnd for what is
// to come. The end of ctx ends the session and leaves the process alone.
func (p *Process) Attach(ctx context.Context, from uint64) (*Session, error) {
	attach := map[string]any{"process": p.ref, "from": from}
	if from == FromEnd {
		attach["from"] = "end"
	}
	return p.s.connect(ctx, map[string]any{"attach": attach}, "attach to a process")
}

func (s *Sandbox) connect(ctx context.Context, open any, what string) (*Session, error) {
	r := request{what: what}
	header := http.Header{"User-Agent": {s.c.userAgent}}
	if s.c.apiKey != "" {
		header.Set("Authorization", "Bearer "+s.c.apiKey)
	}
	se := &Session{done: make(chan struct{}), changed: make(chan struct{}), granted: sessionWindow, room: sessionWindow}
	dial, cancel := context.WithTimeout(ctx, silenceLimit)
	defer cancel()
	conn, resp, err := websocket.Dial(dial, s.c.base+s.path("/connect"), &websocket.DialOptions{ //nolint:bodyclose // Dial has read it
		HTTPClient: s.c.http, HTTPHeader: header, Subprotocols: []string{sessionProtocol}, CompressionMode: websocket.CompressionDisabled,
		OnPingReceived: func(context.Context, []byte) bool { se.alive(); return true },
	})
	if err != nil {
		if resp != nil && resp.StatusCode != http.StatusSwitchingProtocols {
			return nil, refusal(resp)
		}
		r.idempotent = true // nothing was asked yet
		return nil, s.c.connectionError(ctx, r, err)
	}
	conn.SetReadLimit(largestMessage)
	se.conn = conn
	se.process = &Process{s: s}
	se.watch = time.AfterFunc(silenceLimit, func() { se.finish(errSilent) })
	se.stop = context.AfterFunc(ctx, func() { se.finish(contextError(ctx, r)) })
	started := make(chan error, 1)
	go se.read(started)
	err = se.say(open)
	if err == nil {
		err = <-started
	}
	if err != nil {
		se.Close()
		if e := contextError(ctx, r); e != nil {
			return nil, e
		}
		var own *ringfence.Error
		if !errors.As(err, &own) {
			err = s.c.connectionError(ctx, r, err)
		}
		return nil, err
	}
	return se, nil
}

// Process returns a handle of the process, as it was when the session began.
func (s *Session) Process() *Process { return s.process }

func (s *Session) alive() {
	if s.watch != nil {
		s.watch.Reset(silenceLimit)
	}
}

// finish ends the session for a reason; the first one counts.
func (s *Session) finish(err error) {
	s.mu.Lock()
	if s.err == nil && s.result == nil {
		s.err = err
		s.changeLocked()
	}
	s.mu.Unlock()
	_ = s.conn.CloseNow()
}

func (s *Session) changeLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// serverMessage is whatever a server says in text.
type serverMessage struct {
	Type     string       `json:"type"`
	Process  *wireProcess `json:"process"`
	Position uint64       `json:"position"`
	Bytes    uint64       `json:"bytes"`
	Error    *wireError   `json:"error"`
}

// read takes what the server says until it has no more to say. What it holds is
// bounded by the room that was given.
func (s *Session) read(started chan<- error) {
	defer close(s.done)
	defer s.watch.Stop()
	begun := false
	fail := func(err error) {
		s.finish(err)
		if !begun {
			started <- err
		}
	}
	for {
		kind, raw, err := s.conn.Read(context.Background())
		if err != nil {
			s.mu.Lock()
			if s.err != nil {
				err = s.err
			}
			s.mu.Unlock()
			fail(s.broken(err))
			return
		}
		s.alive()
		end, err := s.take(kind == websocket.MessageBinary, raw)
		switch {
		case err != nil:
			fail(err)
			return
		case !begun && s.process.ref != "":
			begun = true
			started <- nil
		}
		if end {
			_ = s.conn.Close(websocket.StatusNormalClosure, "")
			return
		}
	}
}

// broken is the error of a session that ended before the process.
func (s *Session) broken(err error) error {
	var own *ringfence.Error
	if errors.As(err, &own) {
		return err
	}
	e := brokenStream("", unexpected(err)) // io.EOF is the end of a session that came to its end
	e.Message = "the connection broke while the process ran"
	e.Hint = "its outcome is not known"
	if id := s.process.info.ID; id != "" {
		e.Hint += "; the process is " + id
	}
	return e
}

// take takes one message. end: it was the last.
func (s *Session) take(isBinary bool, raw []byte) (end bool, err error) {
	if isBinary {
		out, err := parseOutput(raw)
		if err != nil {
			return false, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.queue = append(s.queue, out)
		s.changeLocked()
		return false, nil
	}
	var m serverMessage
	if err := json.Unmarshal(raw, &m); err != nil {
		return false, errProtocol(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.changeLocked()
	switch m.Type {
	case "started":
		if m.Process == nil || m.Process.ID == "" {
			return false, errProtocol(nil)
		}
		s.process.ref, s.process.info, s.next = m.Process.ID, m.Process.info(), m.Position
	case "stdin_window":
		s.room = max(s.room, m.Position)
	case "stdin_closed":
		s.closed = true
	case "lost":
		s.queue = append(s.queue, SessionOutput{Lost: m.Bytes, Position: m.Position})
	case "error":
		return true, m.Error.orUnnamed()
	case "exit":
		var w wireResult
		if err := json.Unmarshal(raw, &w); err != nil {
			return false, errProtocol(err)
		}
		w.StdoutTruncated, w.StderrTruncated = w.Truncated, w.Truncated
		s.result, err = w.result()
		return true, err
	}
	return false, nil // what a newer server may say besides
}

// parseOutput reads a binary message.
func parseOutput(raw []byte) (SessionOutput, error) {
	if len(raw) < outputHeader || raw[0] != channelStdout && raw[0] != channelStderr {
		return SessionOutput{}, errProtocol(nil)
	}
	return SessionOutput{Stream: ringfence.Stream(raw[0]), Position: binary.BigEndian.Uint64(raw[1:]), Data: raw[outputHeader:]}, nil
}

func errProtocol(err error) error {
	return &ringfence.Error{Code: ringfence.CodeInternal, Message: "the server sent a message that is not what the API promises",
		Hint: "do this program and the server have the same version?", Err: err}
}

// Next returns the next piece of output, and io.EOF when all was read and the process
// has ended; Result then says how. Any other error means that its outcome is not known.
func (s *Session) Next() (SessionOutput, error) {
	s.mu.Lock()
	for len(s.queue) == 0 {
		err, changed := s.err, s.changed
		if s.result != nil {
			err = io.EOF
		}
		s.mu.Unlock()
		if err != nil {
			return SessionOutput{}, err
		}
		<-changed
		s.mu.Lock()
	}
	out := s.queue[0]
	s.queue = s.queue[1:]
	s.next = out.Position + uint64(len(out.Data))
	s.lost += out.Lost
	s.consumed += uint64(len(out.Data))
	window := uint64(0)
	if s.result == nil && s.consumed+sessionWindow-s.granted >= sessionWindow/4 {
		window = s.consumed + sessionWindow
		s.granted = window
	}
	s.mu.Unlock()
	if window > 0 {
		_ = s.say(map[string]any{"type": "window", "position": window}) // the reader sees what broke
	}
	return out, nil
}

// Copy writes the output to two writers, of which nil throws it away, until the process
// has ended, and returns how. Lost bytes are counted in the Result. Beside an error its
// exit code is −1.
func (s *Session) Copy(stdout, stderr io.Writer) (*Result, error) {
	for {
		out, err := s.Next()
		if err == io.EOF { //nolint:errorlint // any other is not the end
			return s.Result(), nil
		}
		w := stdout
		if out.Stream == ringfence.Stderr {
			w = stderr
		}
		if err == nil && w != nil && len(out.Data) > 0 {
			_, err = w.Write(out.Data)
		}
		if err != nil {
			return s.failed(), err
		}
	}
}

func (s *Session) failed() *Result {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &Result{ID: s.process.info.ID, ExitCode: -1, Position: s.next, Lost: s.lost}
}

// Result is how the process ended; nil while that is not known.
func (s *Session) Result() *Result {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.result
}

// Write writes to the process's stdin; it waits while the process does not read.
// Errors: stdin_closed once the process takes no more; unavailable when the session broke.
func (s *Session) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		s.mu.Lock()
		n := min(len(p)-done, largestStdin, int(s.room-s.sent))
		err, changed := s.err, s.changed
		if s.closed || s.result != nil {
			err = ringfence.Errorf(ringfence.CodeStdinClosed, "the process takes no more input")
		}
		if err == nil {
			s.sent += uint64(n)
		}
		s.mu.Unlock()
		if err != nil {
			return done, err
		}
		if n == 0 {
			<-changed
			continue
		}
		message := make([]byte, 1, n+1)
		message[0] = channelStdin
		if err := s.conn.Write(context.Background(), websocket.MessageBinary, append(message, p[done:done+n]...)); err != nil {
			return done, s.broken(err)
		}
		done += n
	}
	return done, nil
}

// CloseStdin ends the input, after what was written. A terminal gets its end-of-file character.
func (s *Session) CloseStdin() error { return s.control(map[string]any{"type": "close_stdin"}) }

// Resize changes the size of the process's terminal.
func (s *Session) Resize(cols, rows int) error {
	return s.control(map[string]any{"type": "resize", "cols": cols, "rows": rows})
}

// Signal sends a signal, as Process.Signal does.
func (s *Session) Signal(signal string, tree bool) error {
	return s.control(map[string]any{"type": "signal", "signal": signalOf(signal), "tree": tree})
}

// Detach ends the session and leaves the process alone.
func (s *Session) Detach() error {
	err := s.control(map[string]any{"type": "detach"})
	if err == nil {
		s.mu.Lock()
		if s.err == nil && s.result == nil {
			s.err = ringfence.Errorf(ringfence.CodeCanceled, "the session was detached; the process goes on")
			s.changeLocked()
		}
		s.mu.Unlock()
		select {
		case <-s.done:
		case <-time.After(silenceLimit):
		}
	}
	s.Close()
	return err
}

// Close ends the session. Without Detach, a process that was started with
// SessionOptions.Kill is killed if it still runs. It may be called more than once.
func (s *Session) Close() {
	s.stop()
	s.finish(ringfence.Errorf(ringfence.CodeCanceled, "the session was closed"))
	<-s.done
}

// control sends a message unless the process has ended.
func (s *Session) control(m any) error {
	s.mu.Lock()
	err := s.err
	over := s.result != nil
	s.mu.Unlock()
	if err != nil || over {
		return err
	}
	if err := s.say(m); err != nil {
		return s.broken(err)
	}
	return nil
}

func (s *Session) say(m any) error {
	raw, err := encode(m)
	if err != nil {
		return err
	}
	return s.conn.Write(context.Background(), websocket.MessageText, raw)
}
