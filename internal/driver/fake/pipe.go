package fake

import (
	"io"
	"os"
	"sync"
)

// pipeSize is how much a pipe holds, as a host FIFO does.
const pipeSize = 1 << 20

// pipe is one direction between host and guest. Like a FIFO it stays when either
// side leaves, with what was written and not yet read.
type pipe struct {
	mu     sync.Mutex
	wake   chan struct{} // closed and replaced at every change; guarded by mu
	buf    []byte        // buf[from:] is there to be read; guarded by mu
	from   int           // guarded by mu
	closed bool          // the sandbox has ended; guarded by mu
}

func newPipe() *pipe { return &pipe{wake: make(chan struct{})} }

// changedLocked wakes everybody who waits.
func (p *pipe) changedLocked() {
	close(p.wake)
	p.wake = make(chan struct{})
}

func (p *pipe) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.changedLocked()
}

// read waits for bytes, for the pipe's end, or for quit.
func (p *pipe) read(b []byte, quit <-chan struct{}) (int, error) {
	for {
		p.mu.Lock()
		if p.from < len(p.buf) {
			n := copy(b, p.buf[p.from:])
			if p.from += n; p.from == len(p.buf) {
				p.buf, p.from = p.buf[:0], 0
			}
			p.changedLocked()
			p.mu.Unlock()
			return n, nil
		}
		closed, wake := p.closed, p.wake
		p.mu.Unlock()
		if closed {
			return 0, io.EOF
		}
		select {
		case <-wake:
		case <-quit:
			return 0, os.ErrClosed
		}
	}
}

// write writes all of b unless the pipe ends or quit is closed.
func (p *pipe) write(b []byte, quit <-chan struct{}) (int, error) {
	done := 0
	for {
		p.mu.Lock()
		if p.closed {
			p.mu.Unlock()
			return done, io.ErrClosedPipe
		}
		if n := min(pipeSize-(len(p.buf)-p.from), len(b)-done); n > 0 {
			if len(p.buf)+n > 2*pipeSize {
				p.buf, p.from = append(p.buf[:0], p.buf[p.from:]...), 0
			}
			p.buf = append(p.buf, b[done:done+n]...)
			done += n
			p.changedLocked()
		}
		wake := p.wake
		p.mu.Unlock()
		if done == len(b) {
			return done, nil
		}
		select {
		case <-wake:
		case <-quit:
			return done, os.ErrClosed
		}
	}
}

// end is one side of a pipe as a reader and a writer that only the pipe's end stops.
type end struct{ p *pipe }

func (e end) Read(b []byte) (int, error)  { return e.p.read(b, nil) }
func (e end) Write(b []byte) (int, error) { return e.p.write(b, nil) }

// link is the host's end of both pipes.
type link struct {
	in, out *pipe
	once    sync.Once
	closed  chan struct{}
}

func (l *link) Read(b []byte) (int, error) {
	select {
	case <-l.closed:
		return 0, os.ErrClosed
	default:
	}
	return l.in.read(b, l.closed)
}

func (l *link) Write(b []byte) (int, error) {
	select {
	case <-l.closed:
		return 0, os.ErrClosed
	default:
	}
	return l.out.write(b, l.closed)
}

func (l *link) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// eof is an empty input.
type eof struct{}

func (eof) Read([]byte) (int, error) { return 0, io.EOF }

// limited keeps the first max bytes that are written to it.
type limited struct {
	mu  sync.Mutex
	max int
	buf []byte
}

func (l *limited) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf = append(l.buf, b[:min(len(b), l.max-len(l.buf))]...)
	return len(b), nil
}

func (l *limited) bytes() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]byte(nil), l.buf...)
}
