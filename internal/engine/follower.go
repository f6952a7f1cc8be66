package engine

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/guestlink"
	"ringfence.dev/ringfence/internal/guestproto"
)

// follower hands the output of one process on to a sink, over as many links as it takes.
type follower struct {
	b    *box
	id   string
	sink ProcessSink

	begun    chan struct{} // closed when the sink was told of the start
	next     uint64        // position of the next byte of output
	lost     uint64        // bytes of output that were skipped
	activity atomic.Int64  // grows when the sink is entered or left; odd while it is in there

	sinkMu sync.Mutex // held while the sink is called
	over   bool       // the sink is not to be called any more; guarded by sinkMu
}

func newFollower(b *box, id string, sink ProcessSink) follower {
	return follower{b: b, id: id, sink: sink, begun: make(chan struct{})}
}

var errRunOver = errors.New("the run is over")

// letSinkGo waits for the call of the sink that is under way; it is the last one. The
// goroutine that follows the process may outlive the run, when the run was given up.
func (f *follower) letSinkGo() {
	f.sinkMu.Lock()
	f.over = true
	f.sinkMu.Unlock()
	f.begin()
}

func (f *follower) begin() {
	select {
	case <-f.begun:
	default:
		close(f.begun)
	}
}

// started tells the sink where the output begins, which is asked for from a position on.
func (f *follower) started(p ringfence.Process, asked, from uint64) error {
	defer f.begin()
	if asked > from { // beyond the end, or FromEnd
		asked = from
	}
	f.next = from
	if err := f.sink.Started(p, asked); err != nil {
		return err
	}
	return f.miss(asked, from)
}

// miss tells the sink what is not there.
func (f *follower) miss(from, to uint64) error {
	if to <= from {
		return nil
	}
	f.lost += to - from
	return f.sink.Lost(to-from, to)
}

func (f *follower) output(c guestlink.Chunk) error {
	<-f.begun
	f.sinkMu.Lock()
	defer f.sinkMu.Unlock()
	if f.over {
		return errRunOver
	}
	f.activity.Add(1)
	defer f.activity.Add(1)
	if err := f.miss(f.next, c.Position); err != nil {
		return err
	}
	stream := ringfence.Stdout
	if c.Stream == guestlink.Stderr {
		stream = ringfence.Stderr
	}
	f.next = c.Position + uint64(len(c.Data))
	return f.sink.Output(stream, c.Position, c.Data)
}

// ended tells the sink what is missing at the end of the output.
func (f *follower) ended(position uint64) error {
	f.sinkMu.Lock()
	defer f.sinkMu.Unlock()
	if f.over {
		return errRunOver
	}
	err := f.miss(f.next, position)
	f.next = max(f.next, position)
	return err
}

// endOf says how a process ended, as callers see it.
func endOf(e guestproto.ProcessExit) ringfence.ProcessEnd {
	end := ringfence.ProcessEnd{ExitCode: e.ExitCode, Signal: e.Signal, EndedAt: time.UnixMicro(e.EndedAt).UTC()}
	switch {
	case e.Reason == string(ringfence.CommandDeadline):
		end.ExitCode, end.Reason, end.Signal = exitDeadline, ringfence.CommandDeadline, 0
	case e.Reason == string(ringfence.CommandOOM):
		end.Reason = ringfence.CommandOOM
	case e.Signal != 0:
		end.Reason = ringfence.CommandSignal
	}
	return end
}

const exitDeadline = 124

func processOf(i guestproto.ProcessInfo) ringfence.Process {
	p := ringfence.Process{
		ID: i.ID, PID: i.PID, Tag: i.Tag, Command: i.Command, Args: i.Args, WorkDir: i.WorkDir, User: i.User,
		PTY: i.PTY, StdinOpen: i.Stdin, StartedAt: time.UnixMicro(i.StartedAt).UTC(), LogStart: i.LogStart, LogEnd: i.LogEnd,
	}
	if i.DeadlineAt > 0 {
		p.DeadlineAt = time.UnixMicro(i.DeadlineAt).UTC()
	}
	if i.Exit != nil {
		end := endOf(*i.Exit)
		p.Exit = &end
	}
	return p
}
