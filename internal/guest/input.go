package guest

import (
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"ringfence.dev/ringfence/internal/guestproto"
)

// input is what a process reads: the far end of a pipe, or a terminal. Whoever wants to
// may write to it. One goroutine does the writing, so that a piece stays whole and whoever
// gives up waiting leaves no more than a piece behind.
type input struct {
	file *os.File
	tty  bool // the file is the terminal's, and not ours to close
	free freelist
	jobs chan inputJob

	once sync.Once
	done chan struct{} // closed when nothing more is taken
}

// inputJob is a piece of input. The input owns data from the moment that it has the job.
type inputJob struct {
	data []byte
	end  bool
	took chan int
}

func newInput(file *os.File, tty bool, free freelist) *input {
	in := &input{file: file, tty: tty, free: free, jobs: make(chan inputJob), done: make(chan struct{})}
	go in.loop()
	return in
}

func (in *input) loop() {
	for {
		select {
		case <-in.done:
			return
		case j := <-in.jobs:
			n := 0
			if len(j.data) > 0 {
				var err error
				if n, err = in.file.Write(j.data); err != nil {
					in.close() // it wants no more
				}
				in.free.put(j.data)
			}
			if j.end {
				in.end()
			}
			j.took <- n
		}
	}
}

// end tells the process that there is no more. A terminal goes on taking input.
func (in *input) end() {
	if !in.tty {
		in.close()
		return
	}
	eof := byte(4)
	if conn, err := in.file.SyscallConn(); err == nil {
		_ = conn.Control(func(fd uintptr) {
			if t, err := unix.IoctlGetTermios(int(fd), unix.TCGETS); err == nil && t.Cc[unix.VEOF] != 0 {
				eof = t.Cc[unix.VEOF]
			}
		})
	}
	if _, err := in.file.Write([]byte{eof}); err != nil {
		in.close()
	}
}

// close lets nothing more in. A write that waits for a pipe returns.
func (in *input) close() {
	in.once.Do(func() {
		close(in.done)
		if !in.tty {
			in.file.Close()
		}
	})
}

func (in *input) closed() bool {
	select {
	case <-in.done:
		return true
	default:
		return false
	}
}

// write gives data to the process, and returns how much of it was taken. It owns data.
func (in *input) write(ch *channel, data []byte, end bool) (int, error) {
	j := inputJob{data: data, end: end, took: make(chan int, 1)}
	select {
	case in.jobs <- j:
	case <-in.done:
		in.free.put(data)
		return 0, errInputClosed
	case <-ch.done:
		in.free.put(data)
		return 0, errGone
	}
	select {
	case n := <-j.took:
		if n < len(data) {
			return n, errInputClosed
		}
		return n, nil
	case <-ch.done:
		return 0, errGone
	}
}

var errInputClosed = fail(codeStdinClosed, "", "the process's input is closed")

// feed passes the data of the channel that follows the process on to it.
func (p *process) feed(ch *channel) {
	for {
		data, err := ch.receive()
		if err != nil {
			return // the host left; the process may be joined again
		}
		if data == nil {
			if p.input != nil {
				_, _ = p.input.write(ch, nil, true) // it may be closed already
			}
			return
		}
		n := len(data)
		if p.input == nil {
			ch.link.free.put(data)
		} else if _, err := p.input.write(ch, data, false); errors.Is(err, errGone) {
			return
		} // else it wants no more; what comes is thrown away
		if ch.consume(n) != nil {
			return
		}
	}
}

// inputProcess writes what comes on a channel of its own.
func inputProcess(a *agent, ch *channel, req guestproto.ProcessInput) (any, error) {
	p, err := a.procs.find(req.ID)
	if err != nil {
		return nil, err
	}
	switch {
	case p.hasEnded():
		return nil, errProcessEnded(p.id)
	case p.input == nil || p.input.closed():
		return nil, errInputClosed
	}
	var written guestproto.ProcessWritten
	closed, late := p.input.done, (<-chan time.Time)(nil)
	for {
		data, end, err := ch.tryReceive()
		if err != nil {
			return nil, err
		}
		if end {
			break
		}
		if data == nil {
			select {
			case <-ch.arrived:
			case <-closed:
				// All that came so far was taken, and may well be what ended the
				// process: "exit" in a shell. The end of it may be on its way.
				closed, late = nil, time.After(endArrivesWithin)
			case <-late: // nobody has to write first to be told
				return nil, p.inputError(errInputClosed)
			}
			continue
		}
		n := len(data)
		took, err := p.input.write(ch, data, false)
		written.Bytes += int64(took)
		if err != nil {
			return nil, p.inputError(err)
		}
		if err := ch.consume(n); err != nil {
			return nil, err
		}
	}
	if req.Close && closed != nil {
		// A process that took everything may have ended, and its input with it.
		if _, err := p.input.write(ch, nil, true); err != nil && !errors.Is(err, errInputClosed) {
			return nil, err
		}
	}
	return written, nil
}

// endArrivesWithin is the time in which the end of what was sent is expected to be here,
// once the process has closed its input.
const endArrivesWithin = 3 * time.Second

// endsWithin is the time in which a process is expected to end whose pipe broke with it.
const endsWithin = 200 * time.Millisecond

// inputError says why input was not taken.
func (p *process) inputError(err error) error {
	if !errors.Is(err, errInputClosed) {
		return err
	}
	// A pipe breaks a moment before the process that had it is known to have ended.
	select {
	case <-p.ended:
		return errProcessEnded(p.id)
	case <-time.After(endsWithin):
		return err
	}
}

func errProcessEnded(id string) error {
	return fail(codeProcessEnded, "", "the process %q has ended", id)
}
