package guest

import (
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"ringfence.dev/ringfence/internal/guestproto"
)

// process is a command that was started, and stays one while its output is kept or
// something of it is left.
type process struct {
	id      string
	pid     int // in the agent's namespace; 0 when nothing could be executed
	inner   int // as programs in the sandbox see it
	tag     string
	command string
	args    []string
	dir     string
	user    string
	// Both are the host's, in Unix microseconds.
	startedAt, deadlineAt int64
	log                   *outlog
	streams               []*stream
	ended                 chan struct{} // closed with the result
	input                 *input        // nil: stdin is /dev/null
	logLimit              uint64        // of its log, unless the sandbox has too little for all
	roomy                 bool          // it has large pipes and buffers
	terminal              *os.File      // nil: pipes

	exited atomic.Bool // the main process ended

	mu     sync.Mutex
	killed string // reason of the kill that is meant for the whole command; guarded by mu
	signed bool   // we sent SIGKILL; guarded by mu
	exit   *guestproto.ProcessExit
	age    int // sweeps since the end; guarded by the table's mu
}

// stream is one output pipe of a process.
type stream struct {
	typ     guestproto.Type
	file    *os.File
	drained chan struct{} // closed when all that the main process wrote is in the log
	once    sync.Once
	tty     bool // a terminal: its end is that of the session leader
}

// pipeSize is what an output pipe holds, in bytes: few wake-ups for much output.
const pipeSize = 1 << 20

const (
	// roomyProcesses is how many processes at a time have large pipes and buffers. What is
	// in them is the sandbox's memory beside that of the logs: with a hundred writers, half
	// of a small sandbox's.
	roomyProcesses = 16
	// smallBuffer is what the others have, in bytes.
	smallBuffer = 64 << 10
	// firstBuffer is what all begin with: most streams say little or nothing.
	firstBuffer = 4 << 10
)

func (s *stream) done() { s.once.Do(func() { close(s.drained) }) }

// pump reads a stream until its last writer is gone, which may be long after the
// command has ended; nobody gets SIGPIPE for having been left behind.
func (p *process) pump(s *stream) {
	in := intake{p: p, s: s, buf: make([]byte, firstBuffer)}
	defer func() { p.log.free.put(in.buf) }()
	defer s.file.Close()
	defer s.done()
	for {
		p.log.wait(in.draining)
		if in.draining() {
			if !in.drain() {
				return
			}
			s.done()
			if s.tty {
				return // the kernel hangs up on who is left
			}
		}
		n, err := s.file.Read(in.buf)
		if n > 0 {
			in.take(in.gather(n))
		}
		if os.IsTimeout(err) { // the process ended
			if !in.draining() {
				_ = s.file.SetReadDeadline(time.Time{})
			}
		} else if err != nil {
			return
		}
	}
}

// intake is the buffer of a pump.
type intake struct {
	p     *process
	s     *stream
	buf   []byte
	last  time.Time // when the last output was taken
	burst int       // small reads in a row that hardly had to wait
	much  bool      // a buffer was filled: the next ones are larger
}

const (
	// gatherSize is how much output makes a frame worth sending at once, in bytes.
	gatherSize = 64 << 10
	// gatherAfter is how many small reads in a row make a burst.
	gatherAfter = 8
	// gatherGap is the longest wait between two reads of a burst.
	gatherGap = 5 * time.Millisecond
	// gatherTime is how long a burst is left to fill the pipe.
	gatherTime = 500 * time.Microsecond
)

// gather adds to the n bytes that were read what comes in a moment, if much is coming
// in small pieces: a program that writes 4 KiB at a time would otherwise cost a frame,
// and five switches between tasks, for each. A command that says something now and
// then is not kept waiting.
func (in *intake) gather(n int) int {
	defer func() { in.last = time.Now() }()
	if n >= gatherSize || time.Since(in.last) > gatherGap {
		in.burst = 0
		return n
	}
	if in.burst++; in.burst < gatherAfter {
		return n
	}
	time.Sleep(gatherTime)
	raw, err := in.s.file.SyscallConn()
	if err != nil {
		return n
	}
	_ = raw.Read(func(fd uintptr) bool {
		for n < len(in.buf) {
			m, err := syscall.Read(int(fd), in.buf[n:])
			if m > 0 {
				n += m
			}
			if m <= 0 && err != syscall.EINTR {
				break // nothing there now, or the end, which the next read sees
			}
		}
		return true
	}) // fails only when the process has just ended, and the drain comes next
	return n
}

func (in *intake) draining() bool {
	select {
	case <-in.s.drained:
		return false
	default:
		return in.p.exited.Load()
	}
}

func (in *intake) take(n int) {
	grow := !in.much && n == len(in.buf)
	in.much = in.much || grow
	if in.p.log.append(in.s.typ, in.buf[:n]) || grow {
		in.buf = in.buffer()
	}
}

func (in *intake) buffer() []byte {
	switch {
	case !in.much:
		return make([]byte, firstBuffer)
	case !in.p.roomy:
		return make([]byte, smallBuffer)
	}
	return in.p.log.free.get(guestproto.MaxPayload)
}

// drain reads what is in the pipe, and at most what fits into it: more can only have
// been written after the end. It reports whether the pipe is still open.
func (in *intake) drain() bool {
	raw, err := in.s.file.SyscallConn()
	if err != nil {
		return false
	}
	open := true
	err = raw.Control(func(fd uintptr) {
		left, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ)
		if in.s.tty {
			left, err = pipeSize, nil // what waits behind the terminal's buffer is not counted
		}
		if err != nil {
			left = pipeSize
		}
		// Read at least once: only that tells an empty pipe from a closed one.
		for {
			n, err := syscall.Read(int(fd), in.buf)
			switch {
			case err == syscall.EINTR:
				continue
			case err == syscall.EAGAIN:
				return
			case n <= 0:
				open = false
				return
			}
			in.take(n)
			if left -= n; left <= 0 {
				return
			}
		}
	})
	return open && err == nil
}

// end is told that the main process ended; it waits for its last output and reports.
func (p *process) end(t *processTable, exit guestproto.ProcessExit) {
	p.exited.Store(true)
	p.log.wakeAll()
	for _, s := range p.streams {
		_ = s.file.SetReadDeadline(time.Unix(1, 0)) // wakes the reader
	}
	for _, s := range p.streams {
		<-s.drained
	}
	p.closeInput()
	exit.EndedAt = time.Now().UnixMicro()
	exit = p.log.finish(exit)
	p.mu.Lock()
	p.exit = &exit
	p.mu.Unlock()
	close(p.ended)
	t.processEnded(p)
}

func (p *process) closeInput() {
	if p.input != nil {
		p.input.close()
	}
}

func (p *process) info() guestproto.ProcessInfo {
	i := guestproto.ProcessInfo{
		ID: p.id, PID: p.inner, Tag: p.tag, Command: p.command, Args: p.args, WorkDir: p.dir, User: p.user,
		PTY: p.terminal != nil, Stdin: p.input != nil && !p.input.closed() && !p.exited.Load(),
		StartedAt: p.startedAt, DeadlineAt: p.deadlineAt,
	}
	i.LogStart, i.LogEnd = p.log.bounds()
	p.mu.Lock()
	defer p.mu.Unlock()
	i.Exit = p.exit
	return i
}
