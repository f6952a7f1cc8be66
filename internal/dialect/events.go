package dialect

import (
	"bytes"
	"net/http"
	"sync"
	"time"
)

// Events is an answer of server-sent events. Its methods may be called at once.
type Events struct {
	w     Answer
	quiet time.Duration
	stop  chan struct{}
	done  chan struct{}

	mu    sync.Mutex
	begun bool
	last  time.Time // of the last write
	buf   bytes.Buffer
}

// NewEvents returns a stream that says that it lives whenever it was silent for a while.
// Its client may stand still for as long as it likes. Close it.
func NewEvents(w Answer, quiet time.Duration) *Events {
	w.Patient()
	e := &Events{w: w, quiet: quiet, stop: make(chan struct{}), done: make(chan struct{})}
	go e.keepAlive()
	return e
}

// Begin sends the headers.
func (e *Events) Begin() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.write(http.StatusOK, nil)
}

// Send sends an event whose data is JSON.
func (e *Events) Send(name string, body any) error { return e.SendWith(http.StatusOK, name, body) }

// SendWith is Send; the status is that of an answer that has not begun.
func (e *Events) SendWith(status int, name string, body any) error {
	raw, err := Marshal(body) // one line, with its end
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.buf.Reset()
	e.buf.WriteString("event: " + name + "\ndata: ")
	e.buf.Write(raw)
	e.buf.WriteByte('\n')
	return e.write(status, e.buf.Bytes())
}

func (e *Events) write(status int, raw []byte) error {
	if !e.begun {
		e.begun = true
		h := e.w.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("X-Accel-Buffering", "no") // a proxy that gathered events would defeat them
		e.w.WriteHeader(status)
	}
	if _, err := e.w.Write(raw); err != nil {
		return err
	}
	e.last = time.Now()
	return http.NewResponseController(e.w).Flush()
}

func (e *Events) keepAlive() {
	defer close(e.done)
	tick := time.NewTicker(e.quiet / 3)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			e.mu.Lock()
			if e.begun && time.Since(e.last) >= e.quiet {
				_ = e.write(http.StatusOK, []byte(": keep-alive\n\n")) // the next event, or the server, sees it too
			}
			e.mu.Unlock()
		case <-e.stop:
			return
		}
	}
}

// Close ends the keep-alives; nothing is written after it.
func (e *Events) Close() {
	close(e.stop)
	<-e.done
}
