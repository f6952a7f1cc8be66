package guestlink

import (
	"context"
	"errors"
	"math"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/guestproto"
)

// Stream tells a process's two outputs apart.
type Stream int

// The streams.
const (
	Stdout Stream = 1
	Stderr Stream = 2
)

// Chunk is a piece of a process's output. Data is valid until the callback returns.
type Chunk struct {
	Stream   Stream
	Position uint64 // of Data in the process's log, stdout and stderr counted together
	Lost     uint64 // bytes before Data that the log no longer held; 0 for the one who started it
	Data     []byte
}

// Output receives a process's output, in order, on a goroutine of that process. While
// it does not return, the process is held back and nothing else is. An error gives the
// output up; the process goes on. A nil Output throws the output away.
type Output func(Chunk) error

// errDetached is the end of a Process that was let go.
var errDetached = ringfence.Errorf(ringfence.CodeCanceled, "the process was let go; it goes on")

// Process is a process in the guest, followed by one reader.
type Process struct {
	ch      *channel
	started guestproto.ProcessStarted
	done    chan struct{}

	// Valid once done is closed.
	exit guestproto.ProcessExit
	err  error
}

// Start starts a process and returns when it runs, or when it is known that it could
// not be executed (then Wait gives exit code 127 or 126). An unknown user or a missing
// working directory is invalid_argument with Field "user" or "cwd". When ctx ends
// before the answer, whether the process started is not known: kill it by its id.
func (c *Conn) Start(ctx context.Context, p guestproto.ProcessStart, out Output) (*Process, error) {
	return c.follow(ctx, guestproto.MethodProcessStart, p, out)
}

// Rejoin follows a process that was started before, from a position in its log. It is
// process_not_found when the agent no longer knows it.
func (c *Conn) Rejoin(ctx context.Context, id string, from uint64, out Output) (*Process, error) {
	return c.Join(ctx, guestproto.ProcessAttach{ID: id, From: from}, out)
}

// Join is Rejoin with all that a reader can ask for.
func (c *Conn) Join(ctx context.Context, at guestproto.ProcessAttach, out Output) (*Process, error) {
	return c.follow(ctx, guestproto.MethodProcessAttach, at, out)
}

func (c *Conn) follow(ctx context.Context, method string, params any, out Output) (*Process, error) {
	ch, err := c.open(ctx, method, params)
	if err != nil {
		return nil, err
	}
	it, err := ch.recv(ctx)
	if err != nil {
		ch.cancel(err)
		return nil, err
	}
	p := &Process{ch: ch, done: make(chan struct{})}
	switch it.typ {
	case guestproto.TypeEvent:
		if err = it.event(&p.started); err == nil {
			err = p.checkStart()
		}
	case guestproto.TypeResult:
		if err = it.result(nil); err == nil {
			err = badAnswer(errors.New("a result before the start"))
		}
	default:
		it.buf.release()
		err = badAnswer(errors.New("output before the start"))
	}
	if err != nil {
		ch.cancel(err)
		return nil, err
	}
	c.wg.Add(1)
	go func() {
		defer c.wg.Done()
		defer close(p.done)
		p.exit, p.err = p.pump(out)
		if p.err != nil {
			ch.cancel(p.err)
		}
	}()
	return p, nil
}

// pump hands the output on until the result.
func (p *Process) pump(out Output) (guestproto.ProcessExit, error) {
	ctx := context.Background() // a session that ends makes recv return
	for {
		it, err := p.ch.recv(ctx)
		if err != nil {
			return guestproto.ProcessExit{}, err
		}
		switch it.typ {
		case guestproto.TypeStdout, guestproto.TypeStderr:
			if out != nil {
				chunk := Chunk{Stream: Stdout, Position: it.position, Lost: it.lost, Data: it.data}
				if it.typ == guestproto.TypeStderr {
					chunk.Stream = Stderr
				}
				err = out(chunk)
			}
			if rerr := p.ch.release(ctx, it); err == nil {
				err = rerr
			}
			if err != nil {
				return guestproto.ProcessExit{}, err
			}
		case guestproto.TypeResult:
			var exit guestproto.ProcessExit
			err := it.result(&exit)
			if err == nil {
				err = checkExit(&exit)
			}
			return exit, err
		default:
			it.buf.release()
		}
	}
}

// ID is the process's id, chosen by the one who started it.
func (p *Process) ID() string { return p.started.ID }

// PID is its number in the sandbox; 0 when nothing could be executed.
func (p *Process) PID() int { return p.started.PID }

// Info describes the process as it was when this reader joined; only its id and PID are
// set by an agent that does not know more.
func (p *Process) Info() guestproto.ProcessInfo { return *p.started.Info }

func (p *Process) checkStart() error {
	s := &p.started
	if s.Info == nil {
		s.Info = &guestproto.ProcessInfo{ID: s.ID, PID: s.PID, LogEnd: s.From}
	}
	s.Info.ID, s.Info.PID = s.ID, s.PID
	if s.From > math.MaxInt64 {
		return badAnswer(errors.New("a position out of range"))
	}
	return checkProcess(s.Info)
}

// From is the position in the log at which this reader's output begins.
func (p *Process) From() uint64 { return p.started.From }

// Done is closed when Wait has something to say.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait returns how the process ended, after the last call of its Output has returned.
// A session that broke, or an Output that failed, is an error: the process may go on.
func (p *Process) Wait(ctx context.Context) (guestproto.ProcessExit, error) {
	select {
	case <-p.done:
		return p.exit, p.err
	case <-ctx.Done():
		return guestproto.ProcessExit{}, contextError(ctx, "cannot wait for the process")
	}
}

// Detach stops following the process, which goes on. Wait then returns an error.
func (p *Process) Detach() { p.ch.cancel(errDetached) }

// WriteStdin sends input, held back by the process. It is failed_precondition once
// the process has ended. Input that the process does not want any more is dropped.
func (p *Process) WriteStdin(ctx context.Context, data []byte) (int, error) {
	n := 0
	for n < len(data) {
		m, err := p.ch.sendData(ctx, data[n:])
		n += m
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// CloseStdin ends the input.
func (p *Process) CloseStdin(ctx context.Context) error { return p.ch.sendEnd(ctx) }

// errCallOver is sending into a call that has its result.
var errCallOver = ringfence.Errorf(ringfence.CodeFailedPrecondition, "the call has ended")
