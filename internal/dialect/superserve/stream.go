package superserve

import (
	"bytes"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/dialect"
	"ringfence.dev/ringfence/internal/output"
)

// maxChunk is how much output one event holds, in bytes.
const maxChunk = 32 << 10

// stream runs a command whose output goes out as events.
func (c *call) stream() error {
	var in execBody
	if err := dialect.Decode(c.w, c.r, c.MaxBody, &in); err != nil {
		return err
	}
	spec, err := in.spec(streamTimeout)
	if err != nil {
		return err
	}
	c.w.Patient() // a reader that stops holds the command back
	e := &events{w: c.w, flush: http.NewResponseController(c.w).Flush}
	stop := make(chan struct{})
	var keeper sync.WaitGroup
	keeper.Go(func() {
		tick := time.NewTicker(c.KeepAlive)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				e.keepAlive()
			}
		}
	})
	exit, err := c.Engine.RunProcess(c.r.Context(), c.who.Project, c.sandbox, spec, e, true)
	close(stop)
	keeper.Wait()
	switch {
	case err == nil:
		return e.finish("exit_code", exit.ExitCode)
	case !e.begun:
		return outcome{err}
	case killed(err):
		c.Fault(c.w, err)
		return e.finish("error", message(err), "exit_code", exitKilled)
	}
	// What became of the command is not known. An event that says so would be a result to
	// the SDKs; that the stream ends without one is an error to them.
	return err
}

// events is a stream of events, each on one line.
type events struct {
	w     dialect.Answer
	flush func() error

	mu    sync.Mutex
	begun bool      // guarded by mu while the command runs
	held  [3][]byte // by stream: the beginning of a character whose rest is to come
	buf   bytes.Buffer
}

func (e *events) Started(ringfence.Process, uint64) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.begin()
}

func (e *events) begin() error {
	if e.begun {
		return nil
	}
	e.begun = true
	h := e.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no")
	e.w.WriteHeader(http.StatusOK)
	return e.flush()
}

func (e *events) Output(stream ringfence.Stream, _ uint64, data []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if held := e.held[stream]; len(held) > 0 {
		data, e.held[stream] = append(held, data...), nil
	}
	for len(data) > 0 {
		piece := data[:min(len(data), maxChunk)]
		if n := output.SplitCharacter(piece); n > 0 {
			piece = piece[:len(piece)-n]
			if len(data) <= maxChunk {
				e.held[stream] = bytes.Clone(data[len(piece):])
				data = data[:len(piece)]
			}
		}
		if err := e.text(stream, piece); err != nil {
			return err
		}
		data = data[len(piece):]
	}
	return e.flush()
}

func (e *events) Lost(bytes, _ uint64) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.text(ringfence.Stderr, fmt.Appendf(nil, "%d bytes of output were lost here\n", bytes)); err != nil {
		return err
	}
	return e.flush()
}

func (e *events) text(stream ringfence.Stream, data []byte) error {
	if len(data) == 0 {
		return nil
	}
	name := "stdout"
	if stream == ringfence.Stderr {
		name = "stderr"
	}
	return e.event(name, string(data))
}

// event writes names and values on one line.
func (e *events) event(pairs ...any) error {
	e.buf.Reset()
	e.buf.WriteString(`data: {"timestamp":"` + ringfence.FormatTime(time.Now()) + `"`)
	for i := 0; i < len(pairs); i += 2 {
		e.buf.WriteString(`,"` + pairs[i].(string) + `":`)
		switch v := pairs[i+1].(type) {
		case string:
			appendASCII(&e.buf, v)
		case int:
			e.buf.WriteString(strconv.Itoa(v))
		case bool:
			e.buf.WriteString(strconv.FormatBool(v))
		}
	}
	e.buf.WriteString("}\n\n")
	_, err := e.w.Write(e.buf.Bytes())
	return err
}

// finish ends the stream, after what waited for the rest of a character.
func (e *events) finish(pairs ...any) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.begin(); err != nil {
		return err
	}
	for _, stream := range []ringfence.Stream{ringfence.Stdout, ringfence.Stderr} {
		if err := e.text(stream, e.held[stream]); err != nil {
			return err
		}
	}
	if err := e.event(append(pairs, "finished", true)...); err != nil {
		return err
	}
	return e.flush()
}

func (e *events) keepAlive() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.begun {
		e.w.Write([]byte(": keepalive\n\n")) // the next output, or the server, sees it too
		e.flush()                            // likewise
	}
}

const hexDigits = "0123456789abcdef"

// appendASCII writes a text as JSON in ASCII alone: readers that split lines at other
// characters than a newline would tear it apart.
func appendASCII(b *bytes.Buffer, s string) {
	unit := func(u rune) {
		b.WriteString(`\u`)
		for shift := 12; shift >= 0; shift -= 4 {
			b.WriteByte(hexDigits[u>>shift&0xf])
		}
	}
	b.WriteByte('"')
	from := 0 // of what is written as it is
	for i := 0; i < len(s); {
		if ch := s[i]; ch >= 0x20 && ch < 0x7f && ch != '"' && ch != '\\' {
			i++
			continue
		}
		b.WriteString(s[from:i])
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteByte(byte(r))
		case r == '\n':
			b.WriteString(`\n`)
		case r > 0xffff:
			unit(0xd800 + (r-0x10000)>>10)
			unit(0xdc00 + (r-0x10000)&0x3ff)
		default:
			unit(r)
		}
		i += size
		from = i
	}
	b.WriteString(s[from:])
	b.WriteByte('"')
}
