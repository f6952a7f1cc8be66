package client

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"ringfence.dev/ringfence"
)

// FromEnd is a position that stands for the end of a process's output, wherever that is.
const FromEnd = ^uint64(0)

// FollowOptions says where the output of a process goes. Its functions and writers are
// called from one goroutine.
type FollowOptions struct {
	// From is the position at which to begin; FromEnd for what is to come.
	From uint64
	// Stdout and Stderr get the bytes as they come; nil throws them away. A terminal's
	// output is Stdout. A writer's error ends the call and is returned.
	Stdout, Stderr io.Writer
	// Joined is called when the output begins, and each time that it goes on after the
	// connection broke.
	Joined func(Started, uint64)
	// Lost is called where bytes are missing, which the log no longer held when they were
	// asked for; position is where the output goes on.
	Lost func(bytes, position uint64)
}

// Follow hands on the output of a process until its end. When the connection breaks, or
// the server is started again, it goes on where it was: no byte comes twice, and none is
// missing that the log still holds. It does not hold the process back.
//
// Result has no output; Lost counts the bytes that are missing. Beside an error its exit
// code is −1, and Position is where to go on. The end of ctx leaves the process alone.
func (p *Process) Follow(ctx context.Context, o FollowOptions) (*Result, error) {
	f := &follower{o: o, next: o.From}
	r := newRetry()
	for {
		result, err := f.once(ctx, p)
		if err == nil {
			result.Position, result.Lost = f.next, f.lost
			return result, nil
		}
		if f.moved {
			r, f.moved = newRetry(), false
		}
		if !r.again(ctx, err) {
			var sink *sinkError
			if errors.As(err, &sink) {
				err = sink.err
			}
			return &Result{ID: p.info.ID, ExitCode: -1, Position: f.next, Lost: f.lost}, err
		}
	}
}

// Retries of what may be asked again at any time. A server that is started again
// answers within seconds; while somebody upgrades it, it may take longer.
const (
	retryFor  = 60 * time.Second
	retryWait = 2 * time.Second
)

// retry says whether and when to try again.
type retry struct {
	until time.Time
	wait  time.Duration
}

func newRetry() *retry { return &retry{until: time.Now().Add(retryFor), wait: retryBase} }

// again waits, and reports whether another try may help.
func (r *retry) again(ctx context.Context, err error) bool {
	var sink *sinkError
	if ringfence.CodeOf(err) != ringfence.CodeUnavailable || errors.As(err, &sink) || ctx.Err() != nil || time.Now().After(r.until) {
		return false
	}
	select {
	case <-time.After(r.wait):
	case <-ctx.Done():
		return false
	}
	r.wait = min(2*r.wait, retryWait)
	return true
}

// follower reads a process's output over several connections.
type follower struct {
	o     FollowOptions
	next  uint64 // position of the next byte; FromEnd until it is known
	lost  uint64
	moved bool // something came
}

// once follows until the end of the process or of the connection.
func (f *follower) once(ctx context.Context, p *Process) (*Result, error) {
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	from := "end"
	if f.next != FromEnd {
		from = strconv.FormatUint(f.next, 10)
	}
	r := request{method: http.MethodGet, path: p.path("/output"), query: url.Values{"from": {from}}, accept: streamType, what: "follow a process"}
	resp, err := p.s.c.send(inner, r)
	if err != nil {
		if e := contextError(ctx, r); e != nil {
			err = e
		}
		return nil, err
	}
	defer resp.Body.Close()
	requestID := resp.Header.Get("X-Request-Id")
	if got := resp.Header.Get("Content-Type"); got != streamType {
		return nil, notStream(got, requestID)
	}
	br := readers.Get().(*bufio.Reader)
	quiet := newQuietReader(resp.Body, func() { cancel(errSilent) })
	br.Reset(quiet)
	defer func() {
		br.Reset(nil)
		readers.Put(br)
	}()
	result, err := f.read(br, p)
	quiet.timer.Stop()
	var own *ringfence.Error
	var sink *sinkError
	switch {
	case err == nil:
		return result, nil
	case errors.As(err, &sink):
	case errors.As(err, &own):
		own.RequestID = first(own.RequestID, requestID)
	case contextError(ctx, r) != nil:
		err = contextError(ctx, r)
	default:
		if cause := context.Cause(inner); cause != nil {
			err = cause
		}
		e := brokenStream(requestID, err)
		e.Message = "the connection broke while the process ran"
		e.Hint = "its outcome is not known; follow it again"
		err = e
	}
	return nil, err
}

// read reads frames up to the one that says how the process ended.
func (f *follower) read(br *bufio.Reader, p *Process) (*Result, error) {
	stdout, stderr := counted{f.o.Stdout, f}, counted{f.o.Stderr, f}
	var started Started
	for {
		head, err := br.Peek(frameHeaderBytes)
		if err != nil {
			return nil, unexpected(err)
		}
		kind, size := head[0], int(binary.BigEndian.Uint32(head[1:]))
		_, _ = br.Discard(frameHeaderBytes)
		switch kind {
		case frameStdout:
			err = copyFrame(br, stdout, size)
		case frameStderr:
			err = copyFrame(br, stderr, size)
		case frameStarted:
			if err = readEvent(br, size, &started); err == nil {
				p.ref, p.info.ID, p.info.PID = started.ID, started.ID, started.PID
			}
		case framePosition:
			var at uint64
			if at, err = readNumber(br, size); err == nil {
				f.next = at
				if started.ID != "" && f.o.Joined != nil {
					f.o.Joined(started, at)
				}
				started = Started{}
			}
		case frameLost:
			var lost uint64
			if lost, err = readNumber(br, size); err == nil {
				f.lost += lost
				if f.o.Lost != nil {
					f.o.Lost(lost, f.next+lost)
				}
			}
		case frameExit, frameError:
			return readEnd(br, kind, size)
		default: // keep-alives, and kinds that a newer server may send
			err = copyFrame(br, io.Discard, size)
		}
		if err != nil {
			return nil, err
		}
		f.moved = true
	}
}

// counted is a writer that keeps count of where the output is.
type counted struct {
	w io.Writer
	f *follower
}

func (c counted) Write(b []byte) (int, error) {
	n := len(b)
	var err error
	if c.w != nil {
		n, err = c.w.Write(b)
	}
	c.f.next += uint64(max(n, 0))
	return n, err
}

// readNumber reads a frame of eight bytes.
func readNumber(br *bufio.Reader, size int) (uint64, error) {
	if size != 8 {
		return 0, &ringfence.Error{Code: ringfence.CodeInternal, Message: "the server sent an event that is not what the API promises"}
	}
	var b [8]byte
	if _, err := io.ReadFull(br, b[:]); err != nil {
		return 0, unexpected(err)
	}
	return binary.BigEndian.Uint64(b[:]), nil
}
