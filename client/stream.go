package client

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"ringfence.dev/ringfence"
)

// The binary stream of a command: frames of one byte kind, four bytes length, most
// significant first, and so many bytes.
const (
	streamType = "application/vnd.ringfence.stream"

	frameStdout    = 1
	frameStderr    = 2
	frameStarted   = 3 // JSON
	frameExit      = 4 // JSON, a result without output
	frameError     = 5 // JSON, {"error":…}
	frameKeepAlive = 6 // empty
	framePosition  = 7 // eight bytes: where the next output is
	frameLost      = 8 // eight bytes: how many are missing here

	frameHeaderBytes = 5
	maxEventBytes    = 1 << 20 // of a frame that is JSON
)

// silenceLimit is how long a stream may be silent: the server says that it lives
// every 15 seconds. A variable for tests.
var silenceLimit = 60 * time.Second

var errSilent = errors.New("the server was silent for too long")

// readers holds the buffers of streams; at 256 KiB each they are worth keeping.
var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, bufferBytes) }}

// runStream runs a command and hands its output on as it comes.
func (s *Sandbox) runStream(ctx context.Context, r request, cmd Command) (*Result, error) {
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil) // also tells the server that we left, which kills a command that still runs
	r.accept = streamType
	failed := &Result{ExitCode: -1}
	resp, err := s.c.send(inner, r)
	if err != nil {
		if e := contextError(ctx, r); e != nil {
			err = e
		}
		return failed, err
	}
	defer resp.Body.Close()
	requestID := resp.Header.Get("X-Request-Id")
	if got := resp.Header.Get("Content-Type"); got != streamType {
		return failed, notStream(got, requestID)
	}
	limit := cmd.OutputLimit
	if limit <= 0 {
		limit = DefaultOutputLimit
	}
	stdout, stderr := &tail{limit: limit}, &tail{limit: limit}
	sinks := streamSinks{stdout: stdout, stderr: stderr, started: cmd.Started}
	if cmd.Stdout != nil {
		sinks.stdout = cmd.Stdout
	}
	if cmd.Stderr != nil {
		sinks.stderr = cmd.Stderr
	}
	br := readers.Get().(*bufio.Reader)
	quiet := newQuietReader(resp.Body, func() { cancel(errSilent) })
	br.Reset(quiet)
	defer func() {
		br.Reset(nil)
		readers.Put(br)
	}()
	result, err := readStream(br, &sinks)
	quiet.timer.Stop()
	if err != nil {
		result = failed
		var own *ringfence.Error
		var sink *sinkError
		switch {
		case errors.As(err, &own):
			own.RequestID = first(own.RequestID, requestID)
			err = own
		case errors.As(err, &sink):
			err = sink.err
		case contextError(ctx, r) != nil:
			err = contextError(ctx, r)
		default:
			if cause := context.Cause(inner); cause != nil {
				err = cause
			}
			e := brokenStream(requestID, err)
			e.Message = "the connection broke while the command ran"
			e.Hint = "its outcome is not known"
			err = e
		}
	}
	if cmd.Stdout == nil {
		result.Stdout, result.StdoutTruncated = stdout.bytes(), stdout.dropped || result.StdoutTruncated
	}
	if cmd.Stderr == nil {
		result.Stderr, result.StderrTruncated = stderr.bytes(), stderr.dropped || result.StderrTruncated
	}
	return result, err
}

// streamSinks is where the parts of a stream go.
type streamSinks struct {
	stdout, stderr io.Writer
	started        func(Started)
}

// sinkError is an error of the caller's own writer.
type sinkError struct{ err error }

func (e *sinkError) Error() string { return e.err.Error() }

// readStream reads frames up to the one that says how the command ended. A stream
// that ends without one is an error.
func readStream(br *bufio.Reader, sinks *streamSinks) (*Result, error) {
	for {
		head, err := br.Peek(frameHeaderBytes)
		if err != nil {
			return nil, unexpected(err)
		}
		kind, size := head[0], int(binary.BigEndian.Uint32(head[1:]))
		_, _ = br.Discard(frameHeaderBytes)
		switch kind {
		case frameStdout:
			err = copyFrame(br, sinks.stdout, size)
		case frameStderr:
			err = copyFrame(br, sinks.stderr, size)
		case frameStarted:
			var w Started
			if err = readEvent(br, size, &w); err == nil && sinks.started != nil {
				sinks.started(w)
			}
		case frameExit, frameError:
			return readEnd(br, kind, size)
		default: // keep-alives, and kinds that a newer server may send
			err = copyFrame(br, io.Discard, size)
		}
		if err != nil {
			return nil, err
		}
	}
}

// notStream says that the answer is of another kind than was asked for.
func notStream(kind, requestID string) error {
	return &ringfence.Error{Code: ringfence.CodeInternal, Message: fmt.Sprintf("the server answered %q where a stream was asked for", kind),
		Hint: "do this program and the server have the same version?", RequestID: requestID}
}

// readEnd reads the frame that ends a stream: a result, or an error.
func readEnd(br *bufio.Reader, kind byte, size int) (*Result, error) {
	var w struct {
		wireResult
		Error *wireError `json:"error"`
	}
	if err := readEvent(br, size, &w); err != nil {
		return nil, err
	}
	if kind == frameError {
		return nil, w.Error.orUnnamed()
	}
	// Nothing is cut from a stream: bytes that it says are missing were lost.
	w.StdoutTruncated, w.StderrTruncated = w.Truncated, w.Truncated
	return w.result()
}

// orUnnamed returns the error that ends a stream, also if it says nothing.
func (w *wireError) orUnnamed() error {
	if w == nil {
		w = &wireError{Code: ringfence.CodeInternal, Message: "the server ended the stream with an error that it did not name"}
	}
	return w.domain()
}

// copyFrame hands the next size bytes to w out of br's own buffer, without a copy.
func copyFrame(br *bufio.Reader, w io.Writer, size int) error {
	for size > 0 {
		if br.Buffered() == 0 {
			if _, err := br.Peek(1); err != nil {
				return unexpected(err)
			}
		}
		part, _ := br.Peek(min(size, br.Buffered()))
		n, err := w.Write(part)
		if err == nil && n < len(part) {
			err = io.ErrShortWrite
		}
		if err != nil {
			return &sinkError{err}
		}
		_, _ = br.Discard(len(part))
		size -= len(part)
	}
	return nil
}

// readEvent decodes a frame that is JSON.
func readEvent(br *bufio.Reader, size int, out any) error {
	if size > maxEventBytes {
		return &ringfence.Error{Code: ringfence.CodeInternal, Message: "the server sent an event larger than any can be"}
	}
	text := make([]byte, size)
	if _, err := io.ReadFull(br, text); err != nil {
		return unexpected(err)
	}
	if err := json.Unmarshal(text, out); err != nil {
		return &ringfence.Error{Code: ringfence.CodeInternal, Message: "the server sent an event that is not what the API promises",
			Hint: "do this program and the server have the same version?", Err: err}
	}
	return nil
}

// unexpected turns a clean end in the middle into the error that it is.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// quietReader calls off a read that waits longer than silenceLimit. Time that the
// caller spends between reads does not count.
type quietReader struct {
	r     io.Reader
	timer *time.Timer
	limit time.Duration
}

func newQuietReader(r io.Reader, silent func()) *quietReader {
	return &quietReader{r: r, timer: time.AfterFunc(silenceLimit, silent), limit: silenceLimit}
}

func (q *quietReader) Read(p []byte) (int, error) {
	q.timer.Reset(q.limit)
	n, err := q.r.Read(p)
	q.timer.Stop()
	return n, err
}

// tail keeps the last limit bytes written to it.
type tail struct {
	limit   int
	buf     []byte
	dropped bool
}

func (t *tail) Write(p []byte) (int, error) {
	n := len(p)
	if len(p) > t.limit {
		t.dropped = true
		p = p[len(p)-t.limit:]
	}
	// Twice the limit is kept before moving, so that each byte is moved about once.
	if len(t.buf)+len(p) > 2*t.limit {
		keep := min(len(t.buf), t.limit)
		t.dropped = true
		copy(t.buf, t.buf[len(t.buf)-keep:])
		t.buf = t.buf[:keep]
	}
	t.buf = append(t.buf, p...)
	if len(t.buf) > t.limit {
		t.dropped = true
	}
	return n, nil
}

func (t *tail) bytes() []byte {
	if len(t.buf) > t.limit {
		return t.buf[len(t.buf)-t.limit:]
	}
	return t.buf
}
