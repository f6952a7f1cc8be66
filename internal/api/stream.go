package api

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"net/http"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/output"
)

// keepAlive is how long a stream is silent before it says that it lives.
const keepAlive = 15 * time.Second

// streamed is an answer that comes while a process runs.
type streamed interface {
	contentType() string
	started(id string, pid int) error
	joined(id string, pid int, position uint64) error // of an output that can be resumed
	output(stream ringfence.Stream, position uint64, data []byte) error
	lost(bytes, position uint64) error
	end(position uint64) error // of what was there, while the process runs
	exit(body any) error
	fail(errorBody) error
	alive() error
}

// stream runs a command whose output goes out as it comes.
func (c *call) stream(cmd ringfence.Command, to streamed) error {
	s := &liveStream{to: to, w: c.w, quiet: c.KeepAlive}
	return s.serve(c, func() (func() error, error) {
		exit, err := c.Engine.Run(c.r.Context(), c.who.Project, c.r.PathValue("id"), cmd, commandStream{s})
		return func() error { return to.exit(exitWire(exit)) }, err
	})
}

// serve keeps a stream alive while run fills it, and ends it with what run returns to
// be said last, or with its error.
func (s *liveStream) serve(c *call, run func() (func() error, error)) error {
	// A reader may stop for as long as it likes: it is what holds the process back.
	c.w.patient = true
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(s.quiet / 3)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				s.keepAlive()
			case <-stop:
				return
			}
		}
	})
	last, err := run()
	close(stop)
	wg.Wait()
	if err != nil {
		if !s.begun {
			return err // there is time for an ordinary error
		}
		c.logFault(c.w, err)
		err = s.to.fail(c.w.wire(err))
	} else {
		s.begin()
		err = last()
	}
	if err == nil {
		err = c.w.control.Flush()
	}
	return err
}

// liveStream serialises what goes into a stream, and flushes it.
type liveStream struct {
	mu    sync.Mutex
	to    streamed
	w     *answer
	quiet time.Duration // how long it may be silent
	begun bool          // guarded by mu while the command runs
	last  time.Time     // of the last write; guarded by mu
}

func (s *liveStream) begin() {
	if !s.begun {
		s.begun = true
		s.w.Header().Set("Content-Type", s.to.contentType())
		s.w.Header().Set("X-Accel-Buffering", "no") // a proxy that gathered events would defeat them
		s.w.WriteHeader(http.StatusOK)
	}
}

// unbuffered is a size from which net/http sends all of a write by itself; what is
// left to flush is the end of a chunk of HTTP, for which no client waits.
const unbuffered = 16 << 10

func (s *liveStream) send(size int, write func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begin()
	if err := write(); err != nil {
		return err
	}
	s.last = time.Now()
	if size >= unbuffered {
		return nil
	}
	return s.w.control.Flush()
}

// commandStream is the output of a command that the caller waits for.
type commandStream struct{ *liveStream }

func (s commandStream) Started(id string, pid int) error {
	return s.send(0, func() error { return s.to.started(id, pid) })
}

func (s *liveStream) Output(stream ringfence.Stream, position uint64, data []byte) error {
	return s.send(len(data), func() error { return s.to.output(stream, position, data) })
}

func (s *liveStream) keepAlive() {
	s.mu.Lock()
	due := s.begun && time.Since(s.last) >= s.quiet
	s.mu.Unlock()
	if due {
		s.send(0, s.to.alive) // the next output, or the server, sees it too
	}
}

// events is a stream of server-sent events.
type events struct {
	w    *answer
	buf  bytes.Buffer
	held [3]heldBytes // by stream: the beginning of a character whose rest is to come
	// resumable streams name the position after each event as its id. They hold
	// bytes of one stream at a time, since no position could name what is sent otherwise.
	resumable bool
	at        uint64
}

type heldBytes struct {
	position uint64
	bytes    []byte
}

func newEvents(w *answer) *events { return &events{w: w} }

func (e *events) contentType() string { return typeEvents }

func (e *events) event(name string, body any) error {
	e.buf.Reset()
	if e.resumable {
		// All before this position was sent, so that this is where to go on.
		e.buf.WriteString("id: " + strconv.FormatUint(e.at, 10) + "\n")
	}
	e.buf.WriteString("event: " + name + "\ndata: ")
	enc := json.NewEncoder(&e.buf) // ends with a newline and has no other
	enc.SetEscapeHTML(false)
	if err := enc.Encode(body); err != nil {
		return err
	}
	e.buf.WriteByte('\n')
	_, err := e.w.Write(e.buf.Bytes())
	return err
}

type startedBody struct {
	ID  string `json:"id"`
	PID int    `json:"pid"`
}

func (e *events) started(id string, pid int) error { return e.event("started", startedBody{id, pid}) }

type outputBody struct {
	Position uint64  `json:"position"`
	Text     *string `json:"text,omitempty"`
	Base64   *string `json:"base64,omitempty"`
}

type joinedBody struct {
	ID       string `json:"id"`
	PID      int    `json:"pid"`
	Position uint64 `json:"position"`
}

func (e *events) joined(id string, pid int, position uint64) error {
	e.resumable, e.at = true, position
	return e.event("started", joinedBody{id, pid, position})
}

type lostBody struct {
	Position uint64 `json:"position"`
	Bytes    uint64 `json:"bytes"`
}

func (e *events) lost(bytes, position uint64) error {
	if err := e.flush(); err != nil {
		return err
	}
	e.at = position
	return e.event("lost", lostBody{position, bytes})
}

type positionBody struct {
	Position uint64 `json:"position"`
}

func (e *events) end(position uint64) error {
	if err := e.flush(); err != nil {
		return err
	}
	return e.event("end", positionBody{position})
}

func (e *events) output(stream ringfence.Stream, position uint64, data []byte) error {
	if e.resumable && len(e.held[3-stream].bytes) > 0 {
		if err := e.flush(); err != nil {
			return err
		}
	}
	held := &e.held[stream]
	if len(held.bytes) > 0 {
		data = append(held.bytes, data...)
		position, held.bytes = held.position, nil
	}
	if n := output.SplitCharacter(data); n > 0 {
		held.position, held.bytes = position+uint64(len(data)-n), bytes.Clone(data[len(data)-n:])
		data = data[:len(data)-n]
	}
	return e.emit(stream, position, data)
}

func (e *events) emit(stream ringfence.Stream, position uint64, data []byte) error {
	if len(data) == 0 {
		return nil
	}
	out := outputBody{Position: position}
	e.at = position + uint64(len(data))
	if utf8.Valid(data) {
		s := string(data)
		out.Text = &s
	} else {
		out.Base64 = null(base64.StdEncoding.EncodeToString(data))
	}
	return e.event(map[ringfence.Stream]string{ringfence.Stdout: "stdout", ringfence.Stderr: "stderr"}[stream], out)
}

// flush sends what waited for the rest of a character that will not come.
func (e *events) flush() error {
	for _, stream := range []ringfence.Stream{ringfence.Stdout, ringfence.Stderr} {
		held := e.held[stream]
		e.held[stream] = heldBytes{}
		if err := e.emit(stream, held.position, held.bytes); err != nil {
			return err
		}
	}
	return nil
}

func (e *events) exit(body any) error {
	if err := e.flush(); err != nil {
		return err
	}
	return e.event("exit", body)
}

func (e *events) fail(body errorBody) error {
	if err := e.flush(); err != nil {
		return err
	}
	return e.event("error", body)
}

func (e *events) alive() error {
	_, err := e.w.Write([]byte(": keep-alive\n\n"))
	return err
}

// The kinds of binary frames: one byte of kind, four of big-endian length, payload.
const (
	frameStdout    = 1
	frameStderr    = 2
	frameStarted   = 3
	frameExit      = 4
	frameError     = 5
	frameKeepAlive = 6
	framePosition  = 7 // eight bytes: the position of the next output
	frameLost      = 8 // eight bytes: how many are missing here
	frameEnd       = 9 // eight bytes: the position at which the log ends, while the process runs
	frameHeader    = 5
)

// frames is a stream of binary frames.
type frames struct {
	w   *answer
	buf []byte
}

func newFrames(w *answer) *frames { return &frames{w: w} }

func (f *frames) contentType() string { return typeFrames }

// frame sends header and payload in one write, which for bulk is one system call.
func (f *frames) frame(kind byte, payload []byte) error {
	f.buf = binary.BigEndian.AppendUint32(append(f.buf[:0], kind), uint32(len(payload))) // a payload fits
	f.buf = append(f.buf, payload...)
	_, err := f.w.Write(f.buf)
	return err
}

func (f *frames) json(kind byte, body any) error {
	payload, err := encode(body)
	if err != nil {
		return err
	}
	return f.frame(kind, payload)
}

func (f *frames) number(kind byte, n uint64) error {
	return f.frame(kind, binary.BigEndian.AppendUint64(nil, n))
}

func (f *frames) joined(id string, pid int, position uint64) error {
	if err := f.started(id, pid); err != nil {
		return err
	}
	return f.number(framePosition, position)
}

func (f *frames) lost(bytes, position uint64) error {
	if err := f.number(frameLost, bytes); err != nil {
		return err
	}
	return f.number(framePosition, position)
}

func (f *frames) end(position uint64) error { return f.number(frameEnd, position) }

func (f *frames) started(id string, pid int) error {
	return f.json(frameStarted, startedBody{id, pid})
}

func (f *frames) output(stream ringfence.Stream, _ uint64, data []byte) error {
	return f.frame(byte(stream), data)
}

func (f *frames) exit(body any) error       { return f.json(frameExit, body) }
func (f *frames) fail(body errorBody) error { return f.json(frameError, body) }
func (f *frames) alive() error              { return f.frame(frameKeepAlive, nil) }
