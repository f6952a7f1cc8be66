package api

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/coder/websocket"

	"ringfence.dev/ringfence"
)

const (
	openPatience = 30 * time.Second // for the first message
	killPatience = 45 * time.Second // for the end of a process whose client left
	controlLimit = 64 << 10         // bytes of a text message
	largestWrite = 128 << 10        // bytes of output in one message
)

// Why a session is over before its process is.
var (
	errLeft     = ringfence.Errorf(ringfence.CodeCanceled, "the client left")
	errDetached = ringfence.Errorf(ringfence.CodeCanceled, "the client detached")
)

// session is a WebSocket between a client and a process.
type session struct {
	*call
	conn  *websocket.Conn
	ctx   context.Context // ends with the session, for one of the causes above or the client's fault
	end   context.CancelCauseFunc
	wg    sync.WaitGroup
	stdin *input
	tasks chan func(context.Context) error // what the client asks for beside input, in order
	run   chan struct{}                    // closed when ref is known

	ref string // of the process; set before run is closed

	mu   sync.Mutex
	room uint64        // output up to here may be sent; guarded by mu
	wake chan struct{} // closed and replaced when there is more room; guarded by mu

	sent   uint64 // bytes of output; of the sink, as those below
	next   uint64 // position of the next one
	lost   uint64
	buffer []byte
}

func (c *call) connect() error {
	conn, err := c.upgrade(sessionProtocol)
	if err != nil {
		return err
	}
	defer conn.CloseNow()
	s := &session{call: c, conn: conn, tasks: make(chan func(context.Context) error, 64), run: make(chan struct{}), room: sessionWindow, wake: make(chan struct{})}
	s.ctx, s.end = context.WithCancelCause(c.r.Context())
	s.stdin = newInput(s.ctx, s.giveRoom)
	err = s.serve()
	var fault *sessionError
	switch {
	case err == nil:
		_ = conn.Close(websocket.StatusNormalClosure, "") // all was said
	case errors.As(err, &fault):
		c.logFault(c.w, fault.err)
		if s.say(errorMessage{"error", c.w.wire(fault.err)}) == nil {
			_ = conn.Close(closeStatus(s.ctx))
		}
	}
	s.end(errLeft)
	_ = conn.CloseNow()
	s.wg.Wait()
	return nil
}

// closeStatus says how a WebSocket closes whose last message was said: for itself, or
// because the server ends.
func closeStatus(ctx context.Context) (websocket.StatusCode, string) {
	if errors.Is(context.Cause(ctx), ErrShutdown) {
		return websocket.StatusGoingAway, ErrShutdown.Message
	}
	return websocket.StatusNormalClosure, ""
}

// sessionError is an error that the client is told.
type sessionError struct{ err error }

func (e *sessionError) Error() string { return e.err.Error() }

// serve runs a session to its end. nil: all was said, or the client detached.
func (s *session) serve() error {
	first, err := s.open()
	if err != nil {
		return err
	}
	project, id := s.who.Project, s.r.PathValue("id")
	s.wg.Go(s.read)
	s.wg.Go(s.ping)
	s.wg.Go(s.work)
	s.wg.Go(s.feed)
	var exit ringfence.CommandExit
	if start := first.Start; start != nil {
		var spec ringfence.ProcessSpec
		if spec, err = start.spec(); err != nil {
			return &sessionError{err}
		}
		exit, err = s.Engine.RunProcess(s.ctx, project, id, spec, s, false)
		if err != nil && start.OnDisconnect == "kill" && s.ref != "" && !errors.Is(context.Cause(s.ctx), errDetached) {
			s.kill(project, id)
		}
	} else {
		from, ferr := attachPosition(first.Attach.From)
		if ferr != nil {
			return &sessionError{ferr}
		}
		exit, _, err = s.Engine.FollowProcess(s.ctx, project, id, first.Attach.Process, from, true, s)
	}
	cause := context.Cause(s.ctx)
	var fault *sessionError
	switch {
	case err == nil:
		return s.say(exitMessage{"exit", outcomeWire(exit, s.next, s.lost)})
	case cause == nil:
		return &sessionError{err}
	case errors.Is(cause, errDetached):
		return nil
	case errors.As(cause, &fault), errors.Is(cause, errLeft):
		return cause
	}
	return &sessionError{cause} // the server is closing
}

// kill ends a process whose client left, if it was started so.
func (s *session) kill(project, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), killPatience)
	defer cancel()
	err := s.Engine.SignalProcess(ctx, project, id, s.ref, 9, true)
	if code := ringfence.CodeOf(err); err != nil && code != ringfence.CodeProcessEnded && code != ringfence.CodeProcessNotFound && code != ringfence.CodeSandboxEnded {
		s.Log.Warn("cannot kill the process of a client that left", "sandbox", s.w.sandbox, "process", s.ref, "error", err)
	}
}

// open reads the first message.
func (s *session) open() (openMessage, error) {
	s.conn.SetReadLimit(s.MaxBody)
	ctx, cancel := context.WithTimeout(s.ctx, openPatience)
	defer cancel()
	kind, raw, err := s.conn.Read(ctx)
	if err != nil {
		return openMessage{}, errLeft
	}
	s.conn.SetReadLimit(sessionWindow + 1)
	m, err := decodeOpen(kind == websocket.MessageBinary, raw)
	if err != nil {
		err = &sessionError{err}
	}
	return m, err
}

// attachPosition reads where to begin: a number, "end", or nothing.
func attachPosition(raw json.RawMessage) (uint64, error) {
	var s string
	if len(raw) == 0 || string(raw) == "null" {
		return 0, nil
	}
	if json.Unmarshal(raw, &s) != nil {
		s = string(raw)
	}
	if s == "" {
		s = `""`
	}
	return position("attach.from", s)
}

// read takes what the client says. It never waits for the process, so that pings are
// answered and the client's going away is seen.
func (s *session) read() {
	for {
		kind, raw, err := s.conn.Read(context.WithoutCancel(s.ctx))
		if err == nil && kind == websocket.MessageText && len(raw) > controlLimit {
			s.end(&sessionError{ringfence.Errorf(ringfence.CodeTooLarge, "a message has more than %d bytes", controlLimit)})
			continue
		}
		var m any
		if err == nil {
			if m, err = decodeMessage(kind == websocket.MessageBinary, raw); err == nil {
				err = s.take(m)
			}
			if err != nil {
				s.end(&sessionError{err})
			}
			continue // what comes after a fault is thrown away
		}
		s.leave(errLeft)
		return
	}
}

// leave ends the session; a process that is being started is known first, so that it
// can be killed.
func (s *session) leave(cause error) {
	_ = s.conn.CloseNow()
	select {
	case <-s.run:
	case <-s.ctx.Done():
	}
	s.end(cause)
}

func (s *session) take(m any) error {
	switch m := m.(type) {
	case stdinMessage:
		return s.stdin.add(m)
	case closeStdinMessage:
		s.stdin.close()
	case windowMessage:
		s.mu.Lock()
		defer s.mu.Unlock()
		if m.Position > s.room {
			s.room = m.Position
			close(s.wake)
			s.wake = make(chan struct{})
		}
	case detachMessage:
		return s.task(func(context.Context) error { // after what was asked for before
			s.end(errDetached)
			return nil
		})
	case resizeMessage:
		return s.task(func(ctx context.Context) error {
			return s.Engine.ResizeProcess(ctx, s.who.Project, s.r.PathValue("id"), s.ref, m.cols, m.rows)
		})
	case signalMessage:
		return s.task(func(ctx context.Context) error {
			return s.Engine.SignalProcess(ctx, s.who.Project, s.r.PathValue("id"), s.ref, m.number, m.tree)
		})
	}
	return nil
}

func (s *session) task(f func(context.Context) error) error {
	select {
	case s.tasks <- f:
		return nil
	default:
		return ringfence.Errorf(ringfence.CodeResourceExhausted, "%d messages wait to be carried out", cap(s.tasks))
	}
}

// work carries out what the client asks for once the process is there, and all that it
// asked for before it left.
func (s *session) work() {
	select {
	case <-s.run:
	case <-s.ctx.Done():
		return
	}
	for {
		select {
		case <-s.ctx.Done():
			ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), killPatience)
			defer cancel()
			for {
				select {
				case f := <-s.tasks:
					if f(ctx) != nil {
						return
					}
				default:
					return
				}
			}
		case f := <-s.tasks:
			if err := f(s.ctx); err != nil && !over(err) && s.ctx.Err() == nil {
				s.end(&sessionError{err})
			}
		}
	}
}

// over reports that a process has ended, which the session is about to say.
func over(err error) bool {
	code := ringfence.CodeOf(err)
	return code == ringfence.CodeProcessEnded || code == ringfence.CodeProcessNotFound
}

// feed writes the client's input to the process.
func (s *session) feed() {
	select {
	case <-s.run:
	case <-s.ctx.Done():
		return
	}
	for s.stdin.wait() {
		_, err := s.Engine.WriteStdin(s.ctx, s.who.Project, s.r.PathValue("id"), s.ref, s.stdin, true)
		switch {
		case err == nil: // a terminal can have more after its end-of-file character
		case s.ctx.Err() != nil:
			return
		case ringfence.CodeOf(err) == ringfence.CodeStdinClosed || over(err):
			s.stdin.drop()
			_ = s.say(plainMessage{"stdin_closed"}) // the next read or write sees it too
			return
		default:
			s.end(&sessionError{err})
			return
		}
	}
}

// giveRoom tells the client how much input it may have sent since the session's begin.
func (s *session) giveRoom(position uint64) {
	_ = s.say(positionMessage{"stdin_window", position}) // the next read or write sees it too
}

// ping keeps a quiet connection alive. A client that does not answer may just stand
// still; one that is gone is noticed by TCP.
func (s *session) ping() {
	tick := time.NewTicker(s.KeepAlive)
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

// say sends a text message.
func (s *session) say(body any) error {
	raw, err := encode(body)
	if err != nil {
		return err
	}
	return s.conn.Write(context.WithoutCancel(s.ctx), websocket.MessageText, raw)
}

// Started, Output and Lost are what the process says.
func (s *session) Started(p ringfence.Process, position uint64) error {
	s.ref, s.next = p.ID, position
	close(s.run)
	return s.say(startedMessage{"started", processWire(p), position})
}

func (s *session) Output(stream ringfence.Stream, position uint64, data []byte) error {
	for len(data) > 0 {
		n, err := s.wait(min(len(data), largestWrite))
		if err != nil {
			return err
		}
		s.buffer = appendOutput(s.buffer[:0], stream, position, data[:n])
		if err := s.conn.Write(context.WithoutCancel(s.ctx), websocket.MessageBinary, s.buffer); err != nil {
			return err
		}
		s.sent += uint64(n)
		position += uint64(n)
		data = data[n:]
	}
	s.next = position
	return nil
}

// wait waits until the client has room, and returns for how many of n bytes.
func (s *session) wait(n int) (int, error) {
	for {
		s.mu.Lock()
		room, wake := s.room, s.wake
		s.mu.Unlock()
		if room > s.sent {
			return int(min(uint64(n), room-s.sent)), nil
		}
		select {
		case <-wake:
		case <-s.ctx.Done():
			return 0, context.Cause(s.ctx)
		}
	}
}

func (s *session) Lost(bytes, position uint64) error {
	s.lost += bytes
	s.next = position
	return s.say(lostMessage{"lost", bytes, position})
}
