package fake

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"time"

	"ringfence.dev/ringfence/internal/guestproto"
)

// logSize is how much of a process's output is kept, in bytes.
const logSize = 1 << 20

// piece is a part of a process's output.
type piece struct {
	typ      guestproto.Type
	position uint64
	data     []byte
}

// killedError is the cause of a process's end by a signal.
type killedError struct {
	signal int
	reason string
}

func (killedError) Error() string { return "killed" }

// process is a command and what it started.
type process struct {
	id, tag, command string
	pid              int
	user             string
	started          time.Time
	stdin            *stdinPipe
	gate             *gate // of the guest
	run              func()
	args             []string
	dir              string
	input            bool // it has one
	deadlineAt       int64

	main    context.Context // of the command itself
	endMain context.CancelCauseFunc
	tree    context.Context // of everything that it started
	endTree context.CancelCauseFunc

	mu     sync.Mutex
	wake   chan struct{}           // closed and replaced at every change; guarded by mu
	log    []piece                 // guarded by mu
	start  uint64                  // position of log[0]; guarded by mu
	end    uint64                  // guarded by mu
	held   bool                    // its starter reads; guarded by mu
	holder uint64                  // … and is there; guarded by mu
	exit   *guestproto.ProcessExit // guarded by mu
}

func newProcess(g *guest, req guestproto.ProcessStart, u user, pid int) *process {
	p := &process{
		id: req.ID, tag: req.Tag, command: first(req.Shell, strings.Join(req.Args, " ")),
		pid: pid, user: u.name, started: time.Now(), stdin: newStdinPipe(), gate: &g.gate, wake: make(chan struct{}),
		args: req.Args, input: req.Stdin, deadlineAt: req.DeadlineAt,
	}
	if req.StartedAt != 0 {
		p.started = time.UnixMicro(req.StartedAt)
	}
	p.tree, p.endTree = context.WithCancelCause(g.ctx)
	p.main, p.endMain = context.WithCancelCause(p.tree)
	return p
}

func (p *process) changedLocked() {
	close(p.wake)
	p.wake = make(chan struct{})
}

// hold says that the starter has read up to a position; it is waited for.
func (p *process) hold(position uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held, p.holder = true, position
	p.changedLocked()
}

func (p *process) unhold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = false
	p.changedLocked()
}

// writer returns one of the process's outputs.
func (p *process) writer(typ guestproto.Type) io.Writer { return outputWriter{p, typ} }

type outputWriter struct {
	p   *process
	typ guestproto.Type
}

func (w outputWriter) Write(b []byte) (int, error) {
	for n := 0; n < len(b); {
		m := min(len(b)-n, 64<<10)
		if err := w.p.append(w.typ, b[n:n+m]); err != nil {
			return n, err
		}
		n += m
	}
	return len(b), nil
}

// errGone is a write of a process that has ended.
var errGone = errors.New("the process has ended")

func (p *process) append(typ guestproto.Type, b []byte) error {
	p.gate.pass(p.tree)
	for {
		p.mu.Lock()
		if p.exit != nil {
			p.mu.Unlock()
			return errGone
		}
		if !p.held || p.end-p.holder < logSize {
			p.log = append(p.log, piece{typ, p.end, append([]byte(nil), b...)})
			p.end += uint64(len(b))
			for p.end-p.start > logSize && len(p.log) > 1 && (!p.held || p.start+uint64(len(p.log[0].data)) <= p.holder) {
				p.start += uint64(len(p.log[0].data))
				p.log = p.log[1:]
			}
			p.changedLocked()
			p.mu.Unlock()
			return nil
		}
		wake := p.wake
		p.mu.Unlock()
		select {
		case <-wake:
		case <-p.tree.Done():
			return context.Cause(p.tree)
		}
	}
}

// from returns where a reader that wants position can begin.
func (p *process) from(position uint64) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return min(max(position, p.start), p.end)
}

// next returns the output at position, or the exit when there is no more, or what
// to wait for.
func (p *process) next(position uint64) (piece, *guestproto.ProcessExit, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.log {
		end := l.position + uint64(len(l.data))
		if end <= position {
			continue
		}
		if l.position < position {
			l.data = l.data[position-l.position:]
			l.position = position
		}
		return l, nil, nil
	}
	return piece{}, p.exit, p.wake
}

// finish records the end of the command. What it left behind goes on.
func (p *process) finish(status int) {
	e := guestproto.ProcessExit{ExitCode: status}
	var k killedError
	if errors.As(context.Cause(p.main), &k) {
		e = guestproto.ProcessExit{ExitCode: 128 + k.signal, Signal: k.signal, Reason: k.reason}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.exit == nil {
		e.Position = p.end
		e.EndedAt = time.Now().UnixMicro()
		p.stdin.close()
		p.exit = &e
		p.changedLocked()
	}
}

func (p *process) exitStatus() *guestproto.ProcessExit {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.exit
}

// kill signals the command, or all of it. Every signal but 0 ends a scripted command.
func (p *process) kill(k guestproto.ProcessKill) {
	if k.Signal == 0 {
		return
	}
	cause := killedError{k.Signal, k.Reason}
	p.endMain(cause)
	if !k.Tree {
		return
	}
	p.endTree(cause)
	for p.exitStatus() == nil {
		p.mu.Lock()
		exit, wake := p.exit, p.wake
		p.mu.Unlock()
		if exit == nil {
			select {
			case <-wake:
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
}

func (p *process) info() guestproto.ProcessInfo {
	i := guestproto.ProcessInfo{
		ID: p.id, PID: p.pid, Tag: p.tag, Command: p.command, User: p.user, StartedAt: p.started.UnixMicro(),
		Args: p.args, WorkDir: p.dir, DeadlineAt: p.deadlineAt, Stdin: p.takesInput(),
	}
	p.mu.Lock()
	i.LogStart, i.LogEnd = p.start, p.end
	p.mu.Unlock()
	if e := p.exitStatus(); e != nil {
		exit := *e
		i.Exit = &exit
	}
	return i
}

func (p *process) takesInput() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.input && p.exit == nil
}

func (p *process) closeInput() {
	p.mu.Lock()
	p.input = false
	p.mu.Unlock()
	p.stdin.closeWrite()
}

// stdinPipe carries input to a process.
type stdinPipe struct {
	*pipe
}

func newStdinPipe() *stdinPipe { return &stdinPipe{newPipe()} }

func (s *stdinPipe) Read(b []byte) (int, error)  { return s.read(b, nil) }
func (s *stdinPipe) Write(b []byte) (int, error) { return s.write(b, nil) }
func (s *stdinPipe) closeWrite()                 { s.close() }
