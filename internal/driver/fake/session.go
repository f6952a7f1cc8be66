package fake

import (
	"encoding/json"
	"errors"
	"io"
	"sync"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/guestproto"
)

// session is one host that attached.
type session struct {
	g    *guest
	done chan struct{}

	mu     sync.Mutex
	closed bool             // guarded by mu
	frozen bool             // guarded by mu
	calls  map[uint32]*call // guarded by mu
}

func newSession(g *guest) *session {
	return &session{g: g, done: make(chan struct{}), calls: make(map[uint32]*call)}
}

// close gives up every call of the session; processes go on.
func (s *session) close() {
	s.mu.Lock()
	calls := s.calls
	s.calls = nil
	if !s.closed {
		s.closed = true
		close(s.done)
	}
	s.mu.Unlock()
	for _, c := range calls {
		c.cancel()
	}
}

// send writes a frame, unless the session is over.
func (s *session) send(h guestproto.Header, payload []byte) {
	s.g.writeMu.Lock()
	defer s.g.writeMu.Unlock()
	s.mu.Lock()
	quiet := s.closed || s.frozen && h.Type != guestproto.TypeResult
	s.mu.Unlock()
	if !quiet && !s.g.hung.Load() {
		end{s.g.out}.Write(guestproto.AppendFrame(nil, h, payload))
	}
}

// open starts a call.
func (s *session) open(id uint32, payload []byte) {
	c := &call{
		s: s, id: id, done: make(chan struct{}), recvWake: make(chan struct{}, 1), sendWake: make(chan struct{}, 1),
		sendLimit: guestproto.InitialWindow, recvLimit: guestproto.InitialWindow,
	}
	s.mu.Lock()
	if s.closed || s.frozen {
		s.mu.Unlock()
		return
	}
	s.calls[id] = c
	s.mu.Unlock()
	var req guestproto.Open
	if err := json.Unmarshal(payload, &req); err != nil {
		c.result(nil, ringfence.Errorf(ringfence.CodeInvalidArgument, "cannot read the call"))
		return
	}
	go func() {
		value, err := c.serve(req)
		if errors.Is(err, errCanceled) {
			return
		}
		c.result(value, err)
	}()
}

// deliver hands a frame to its call.
func (s *session) deliver(h guestproto.Header, payload []byte) {
	s.mu.Lock()
	c := s.calls[h.Channel]
	s.mu.Unlock()
	if c == nil {
		return // of a call that is over
	}
	if h.Type == guestproto.TypeCancel {
		s.forget(c.id)
		c.cancel()
		return
	}
	c.deliver(h, payload)
}

func (s *session) forget(id uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.calls, id)
}

// errCanceled ends a call whose host no longer wants it.
var errCanceled = errors.New("the call was cancelled")

// call is the guest's end of a channel.
type call struct {
	s    *session
	id   uint32
	done chan struct{} // closed when it is cancelled
	// Each holds a token while its side may have something to do.
	recvWake, sendWake chan struct{}

	mu        sync.Mutex
	canceled  bool     // guarded by mu
	queue     [][]byte // data that came; guarded by mu
	ended     bool     // no more will come; guarded by mu
	sendLimit uint64   // guarded by mu
	sent      uint64   // guarded by mu

	recvLimit, consumed uint64 // of the one reader
}

func (c *call) cancel() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.canceled {
		c.canceled = true
		close(c.done)
	}
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (c *call) deliver(h guestproto.Header, payload []byte) {
	c.mu.Lock()
	switch h.Type {
	case guestproto.TypeData:
		if len(payload) > 0 {
			c.queue = append(c.queue, payload)
		}
	case guestproto.TypeEnd:
		c.ended = true
	case guestproto.TypeWindow:
		c.sendLimit = max(c.sendLimit, h.Position)
	}
	c.mu.Unlock()
	poke(c.recvWake)
	poke(c.sendWake)
}

// Read reads what the host sends, up to its End.
func (c *call) Read(b []byte) (int, error) {
	for {
		c.mu.Lock()
		if len(c.queue) > 0 {
			n := copy(b, c.queue[0])
			if c.queue[0] = c.queue[0][n:]; len(c.queue[0]) == 0 {
				c.queue = c.queue[1:]
			}
			c.mu.Unlock()
			if c.consumed += uint64(n); c.consumed >= guestproto.InitialWindow/4 {
				c.recvLimit += c.consumed
				c.consumed = 0
				c.s.send(guestproto.Header{Type: guestproto.TypeWindow, Channel: c.id, Position: c.recvLimit}, nil)
			}
			return n, nil
		}
		ended := c.ended
		c.mu.Unlock()
		if ended {
			return 0, io.EOF
		}
		select {
		case <-c.recvWake:
		case <-c.done:
			return 0, errCanceled
		}
	}
}

// data sends bytes as the host has room for them.
func (c *call) data(typ guestproto.Type, position uint64, b []byte) error {
	for len(b) > 0 {
		c.mu.Lock()
		n := min(len(b), guestproto.MaxPayload, int(c.sendLimit-c.sent))
		c.sent += uint64(n)
		c.mu.Unlock()
		select {
		case <-c.done:
			return errCanceled
		default:
		}
		if n == 0 {
			select {
			case <-c.sendWake:
			case <-c.done:
				return errCanceled
			}
			continue
		}
		c.s.send(guestproto.Header{Type: typ, Channel: c.id, Position: position}, b[:n])
		position += uint64(n)
		b = b[n:]
	}
	return nil
}

func (c *call) event(v any) {
	body, _ := json.Marshal(v) //nolint:errchkjson // plain data
	c.s.send(guestproto.Header{Type: guestproto.TypeEvent, Channel: c.id}, body)
}

// result ends the call.
func (c *call) result(v any, err error) {
	c.s.forget(c.id)
	var r guestproto.Result
	if err != nil {
		r.Error = &guestproto.Error{Code: string(ringfence.CodeOf(err)), Message: err.Error()}
		var e *ringfence.Error
		if errors.As(err, &e) {
			r.Error.Message, r.Error.Field = e.Message, e.Field
		}
	} else {
		if v == nil {
			v = struct{}{}
		}
		r.Value, _ = json.Marshal(v) //nolint:errchkjson // plain data
	}
	body, _ := json.Marshal(r) //nolint:errchkjson // plain data
	c.s.send(guestproto.Header{Type: guestproto.TypeResult, Channel: c.id}, body)
}
