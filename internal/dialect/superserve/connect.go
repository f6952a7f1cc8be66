package superserve

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sys/unix"

	"ringfence.dev/ringfence"
)

const (
	execProtocol  = "superserve.exec.v1"
	tokenPrefix   = "token."
	openPatience  = 10 * time.Second // for the first message
	pingEvery     = 30 * time.Second
	maxMessage    = 4 << 20
	largestWrite  = 128 << 10
	queuedInput   = 4 // messages of input that wait for the process
	channelStdin  = 0
	channelStdout = 1
	channelStderr = 2
)

// tokenOfProtocol returns the token among the subprotocols, or "".
func tokenOfProtocol(r *http.Request) string {
	for item := range strings.SplitSeq(strings.Join(r.Header.Values("Sec-WebSocket-Protocol"), ","), ",") {
		if token, ok := strings.CutPrefix(strings.TrimSpace(item), tokenPrefix); ok {
			return token
		}
	}
	return ""
}

// connect is a WebSocket between a client and a process.
func (c *call) connect() error {
	if !strings.EqualFold(c.r.Header.Get("Upgrade"), "websocket") {
		return invalid("Upgrade", "this is a WebSocket, and the request is no handshake of one")
	}
	if _, err := c.living(); err != nil {
		return err
	}
	conn, err := websocket.Accept(c.w, c.r, &websocket.AcceptOptions{
		// Nothing ambient lets anybody in: a page has to know a token to come this far.
		Subprotocols: []string{execProtocol}, InsecureSkipVerify: true, CompressionMode: websocket.CompressionDisabled,
	})
	if err != nil {
		if c.w.Begun() {
			return nil
		}
		return ringfence.Errorf(ringfence.CodeInvalidArgument, "the handshake cannot be read").WithCause(err)
	}
	defer conn.CloseNow()
	ctx, cancel := context.WithCancel(c.r.Context())
	s := &session{call: c, conn: conn, ctx: ctx, stop: cancel, started: make(chan struct{}), input: make(chan []byte, queuedInput)}
	s.serve()
	cancel()
	_ = conn.CloseNow()
	s.wg.Wait()
	return nil
}

// session is a WebSocket with a process at its end.
type session struct {
	*call
	conn    *websocket.Conn
	ctx     context.Context // ends with the session
	stop    context.CancelFunc
	wg      sync.WaitGroup
	started chan struct{} // closed when ref is known
	ref     string        // of the process
	input   chan []byte   // nil: the end of the input
	rest    []byte        // of the piece of input that is being read
	buffer  []byte
}

func (s *session) serve() {
	s.conn.SetReadLimit(maxMessage)
	spec, err := s.open()
	if err != nil {
		s.refuse(err)
		return
	}
	s.wg.Go(s.read)
	s.wg.Go(s.feed)
	s.wg.Go(s.ping)
	exit, err := s.Engine.RunProcess(s.ctx, s.who.Project, s.sandbox, spec, s, true)
	switch {
	case err == nil:
		s.finish(map[string]any{"exit_code": exit.ExitCode, "finished": true})
	case s.r.Context().Err() != nil: // the server ends
		_ = s.conn.Close(websocket.StatusGoingAway, reason(message(context.Cause(s.r.Context()))))
	case s.ctx.Err() != nil: // the client left, and the process was killed
	default:
		s.refuse(err)
	}
}

// open reads the first message.
func (s *session) open() (spec ringfence.ProcessSpec, err error) {
	ctx, cancel := context.WithTimeout(s.ctx, openPatience)
	defer cancel()
	kind, raw, err := s.conn.Read(ctx)
	if err != nil {
		return spec, ringfence.Errorf(ringfence.CodeInvalidArgument, "the first message did not come").WithCause(err)
	}
	var in execBody
	if err := json.Unmarshal(raw, &in); err != nil || kind != websocket.MessageText {
		return spec, ringfence.Errorf(ringfence.CodeInvalidArgument, "the first message is no JSON object that names a command")
	}
	if spec, err = in.spec(0); err == nil {
		spec.KeepStdin = true
	}
	return spec, err
}

// refuse ends a session that has no result. What is known is one all the same: a sandbox
// that was killed under its command, and a command that was never started.
func (s *session) refuse(err error) {
	s.Fault(s.w, err)
	code := failureOf(err).code
	switch {
	case killed(err):
		s.finish(map[string]any{"error": message(err), "code": code, "exit_code": exitKilled, "finished": true})
	case s.ref == "" && ringfence.CodeOf(err) == ringfence.CodeInvalidArgument:
		s.finish(map[string]any{"error": message(err), "code": code, "exit_code": 126, "finished": true})
	default:
		_ = s.conn.Close(websocket.StatusInternalError, reason(message(err)))
	}
}

// reason is a text as the close of a WebSocket can carry it.
func reason(text string) string {
	const most = 120
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "")
	}
	return text
}

// finish says the last word and closes, which the clients leave to the server.
func (s *session) finish(body map[string]any) {
	raw, err := json.Marshal(body)
	if err != nil {
		return
	}
	if s.conn.Write(context.WithoutCancel(s.ctx), websocket.MessageText, raw) == nil {
		_ = s.conn.Close(websocket.StatusNormalClosure, "") // all was said
	}
}

// read takes what the client says. When it leaves, the session is over.
func (s *session) read() {
	defer s.stop()
	for {
		kind, raw, err := s.conn.Read(context.WithoutCancel(s.ctx))
		if err != nil {
			return
		}
		if kind == websocket.MessageBinary {
			if len(raw) > 1 && raw[0] == channelStdin && !s.give(raw[1:]) {
				return
			}
			continue
		}
		var m struct {
			Type string `json:"type"`
			Name string `json:"name"`
		}
		if json.Unmarshal(raw, &m) != nil {
			continue
		}
		switch m.Type {
		case "stdin_close":
			if !s.give(nil) {
				return
			}
		case "signal":
			s.signal(m.Name)
		}
	}
}

// give queues a piece of input; a process that takes none holds the client back.
func (s *session) give(piece []byte) bool {
	select {
	case s.input <- piece:
		return true
	case <-s.ctx.Done():
		return false
	}
}

// signal sends a signal to all that the process has started. One that there is not is ignored.
func (s *session) signal(name string) {
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	number := unix.SignalNum(name)
	if number == 0 {
		return
	}
	select {
	case <-s.started:
	case <-s.ctx.Done():
		return
	}
	if err := s.Engine.SignalProcess(s.ctx, s.who.Project, s.sandbox, s.ref, int(number), true); err != nil {
		s.Log.Debug("cannot send a signal", "sandbox", s.sandbox, "process", s.ref, "error", err) // it may just have ended
	}
}

// feed writes the client's input to the process until one of them has enough.
func (s *session) feed() {
	select {
	case <-s.started:
	case <-s.ctx.Done():
		return
	}
	_, err := s.Engine.WriteStdin(s.ctx, s.who.Project, s.sandbox, s.ref, s, true)
	if err != nil && s.ctx.Err() == nil {
		s.Log.Debug("a process takes no more input", "sandbox", s.sandbox, "process", s.ref, "error", err)
	}
	for { // what comes after the end is thrown away
		select {
		case <-s.input:
		case <-s.ctx.Done():
			return
		}
	}
}

// Read implements io.Reader over the client's input.
func (s *session) Read(p []byte) (int, error) {
	if len(s.rest) == 0 {
		select {
		case s.rest = <-s.input:
		case <-s.ctx.Done():
			return 0, errors.New("the session is over")
		}
		if s.rest == nil {
			return 0, io.EOF
		}
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// ping keeps a quiet connection alive. A client that does not answer may just stand
// still; one that is gone is noticed by TCP.
func (s *session) ping() {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
		}
		if s.conn.Ping(context.WithoutCancel(s.ctx)) != nil { // it ends with the connection
			return
		}
	}
}

// Started, Output and Lost are what the process says.
func (s *session) Started(p ringfence.Process, _ uint64) error {
	s.ref = p.ID
	close(s.started)
	return nil
}

func (s *session) Output(stream ringfence.Stream, _ uint64, data []byte) error {
	channel := byte(channelStdout)
	if stream == ringfence.Stderr {
		channel = channelStderr
	}
	for len(data) > 0 {
		n := min(len(data), largestWrite)
		s.buffer = append(append(s.buffer[:0], channel), data[:n]...)
		if err := s.conn.Write(s.ctx, websocket.MessageBinary, s.buffer); err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

func (s *session) Lost(uint64, uint64) error { return nil }
