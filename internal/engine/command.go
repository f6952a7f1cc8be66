package engine

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/guestlink"
	"ringfence.dev/ringfence/internal/guestproto"
)

// Sink takes what a command says while it runs. Its methods are called one after
// the other, and never after Run has returned. An error ends the command.
type Sink interface {
	Started(id string, pid int) error
	// Output is a piece of one stream. position counts the bytes of both streams
	// that came before it. data is valid until Output returns, and while it does
	// not, the command is held back.
	Output(stream ringfence.Stream, position uint64, data []byte) error
}

// killGrace is how long the agent may take to end a command's tree.
const killGrace = 15 * time.Second

// Run runs a command until it has ended, and returns how. Its own failure is no
// error. When its deadline passes, or ctx ends, or the sink fails, its whole tree is killed.
//
// Errors: invalid_argument (with the field), not_found, sandbox_ended (before or
// during the command), canceled, unavailable (its outcome is not known).
func (e *Engine) Run(ctx context.Context, project, id string, cmd ringfence.Command, sink Sink) (ringfence.CommandExit, error) {
	if err := validCommand(cmd); err != nil {
		return ringfence.CommandExit{}, err
	}
	b, err := e.reach(ctx, project, id)
	if err != nil {
		return ringfence.CommandExit{}, err
	}
	b.calls.Add(1)
	defer b.calls.Add(-1)
	var random [8]byte
	rand.Read(random[:]) // never fails since Go 1.24
	r := &run{b: b, id: "cmd_" + hex.EncodeToString(random[:]), cmd: cmd, sink: sink}
	b.commands.Store(r.id, nil)
	defer b.commands.Delete(r.id)
	exit, err := r.run(ctx)
	r.letSinkGo()
	return exit, b.explain(err)
}

// run is a command in progress.
type run struct {
	b        *box
	id       string
	cmd      ringfence.Command
	sink     Sink
	next     uint64       // position of the next byte of output
	lost     uint64       // bytes of output that were skipped
	expired  bool         // the deadline has passed
	activity atomic.Int64 // grows when the sink is entered or left; odd while it is in there

	sinkMu sync.Mutex // held while the sink is called
	over   bool       // the sink is not to be called any more; guarded by sinkMu
}

var errRunOver = errors.New("the run is over")

// letSinkGo waits for the call of the sink that is under way; it is the last one. The
// goroutine that follows the process may outlive the run, when the run was given up.
func (r *run) letSinkGo() {
	r.sinkMu.Lock()
	r.over = true
	r.sinkMu.Unlock()
}

func (r *run) run(ctx context.Context) (ringfence.CommandExit, error) {
	exit := ringfence.CommandExit{ID: r.id, StartedAt: now()}
	began := time.Now()
	var deadline <-chan time.Time
	if r.cmd.Timeout > 0 {
		timer := time.NewTimer(r.cmd.Timeout)
		defer timer.Stop()
		deadline = timer.C
	}
	conn, err := r.b.link(ctx)
	if err != nil {
		return exit, err
	}
	proc, err := r.start(ctx, conn)
	if err != nil {
		return exit, err
	}
	for {
		if r.expired {
			passed := make(chan time.Time)
			close(passed)
			deadline = passed
		}
		end, err := r.follow(ctx, conn, proc, deadline)
		if err == nil {
			exit.Duration = time.Since(began)
			exit.ExitCode, exit.Signal, exit.Lost = end.ExitCode, end.Signal, r.lost
			switch {
			case end.Reason == string(ringfence.CommandDeadline):
				exit.ExitCode, exit.Reason, exit.Signal = 124, ringfence.CommandDeadline, 0
			case end.Reason == string(ringfence.CommandOOM):
				exit.Reason = ringfence.CommandOOM
			case end.Signal != 0:
				exit.Reason = ringfence.CommandSignal
			}
			return exit, nil
		}
		if ctx.Err() != nil || !isClosed(conn.Done()) {
			return exit, err
		}
		// The link broke, and the process may well go on: follow it from where we were.
		if conn, err = r.b.link(ctx); err != nil {
			return exit, err
		}
		if proc, err = conn.Rejoin(ctx, r.id, r.next, r.output); err != nil {
			return exit, ringfence.Errorf(ringfence.CodeUnavailable, "the link to the sandbox broke during the command; its outcome is not known").WithCause(err)
		}
	}
}

// start starts the process, and its input.
func (r *run) start(ctx context.Context, conn *guestlink.Conn) (*guestlink.Process, error) {
	proc, err := conn.Start(ctx, guestproto.ProcessStart{
		ID: r.id, Shell: r.cmd.Shell, Args: r.cmd.Args, Env: r.cmd.Env, WorkDir: r.cmd.WorkDir, User: r.cmd.User,
		Stdin: r.cmd.Stdin != nil, Tag: r.cmd.Tag,
	}, r.output)
	if err != nil {
		if ctx.Err() != nil {
			r.kill(conn, "") // it may have started all the same
		}
		return nil, err
	}
	if err := r.sink.Started(r.id, proc.PID()); err != nil {
		r.kill(conn, "")
		return nil, err
	}
	if r.cmd.Stdin != nil {
		go func() {
			// The call's end ends this too. A command may end without having read it all.
			if _, err := proc.WriteStdin(context.Background(), r.cmd.Stdin); err == nil {
				proc.CloseStdin(context.Background()) // likewise
			}
		}()
	}
	return proc, nil
}

func (r *run) output(c guestlink.Chunk) error {
	r.sinkMu.Lock()
	defer r.sinkMu.Unlock()
	if r.over {
		return errRunOver
	}
	r.activity.Add(1)
	defer r.activity.Add(1)
	stream := ringfence.Stdout
	if c.Stream == guestlink.Stderr {
		stream = ringfence.Stderr
	}
	r.lost += c.Lost
	r.next = c.Position + uint64(len(c.Data))
	return r.sink.Output(stream, c.Position, c.Data)
}

// follow waits for the end of the process, and brings it about when it is due.
func (r *run) follow(ctx context.Context, conn *guestlink.Conn, proc *guestlink.Process, deadline <-chan time.Time) (guestproto.ProcessExit, error) {
	select {
	case <-proc.Done():
		end, err := proc.Wait(context.Background())
		if err != nil && !isClosed(conn.Done()) {
			r.kill(conn, "") // the sink failed
		}
		return end, err
	case <-ctx.Done():
		r.kill(conn, "")
		return guestproto.ProcessExit{}, ringfence.Errorf(ringfence.CodeCanceled, "the command was killed: its caller went away").WithCause(context.Cause(ctx))
	case <-deadline:
		r.expired = true
	}
	if err := r.kill(conn, string(ringfence.CommandDeadline)); err != nil {
		return guestproto.ProcessExit{}, err
	}
	// Its result follows its output, which a slow reader may hold back; a guest that
	// keeps the result to itself must not hold anybody.
	for seen := r.activity.Load(); ; {
		select {
		case <-proc.Done():
			return proc.Wait(context.Background())
		case <-ctx.Done():
			return guestproto.ProcessExit{}, ringfence.Errorf(ringfence.CodeCanceled, "the command was killed: its caller went away").WithCause(context.Cause(ctx))
		case <-time.After(killGrace):
		}
		if at := r.activity.Load(); at == seen && at%2 == 0 {
			return guestproto.ProcessExit{}, ringfence.Errorf(ringfence.CodeUnavailable,
				"the command's deadline passed, and the sandbox's agent does not say how it ended")
		} else {
			seen = at
		}
	}
}

// kill ends the command with all that it started, and returns when nothing is left
// of it. It does not depend on the caller, who may be gone.
func (r *run) kill(conn *guestlink.Conn, reason string) error {
	ctx, cancel := context.WithTimeout(r.b.ctx, killGrace)
	defer cancel()
	err := conn.Kill(ctx, guestproto.ProcessKill{ID: r.id, Signal: sigkill, Tree: true, Reason: reason})
	switch {
	case err == nil, ringfence.CodeOf(err) == ringfence.CodeNotFound: // it had ended
		return nil
	case r.b.ctx.Err() == nil:
		r.b.e.Log.Warn("cannot kill a command", "sandbox", r.b.id, "command", r.id, "error", err)
	}
	return ringfence.Errorf(ringfence.CodeUnavailable, "the sandbox's agent did not end the command in time; its outcome is not known").WithCause(err)
}

func validCommand(c ringfence.Command) error {
	switch {
	case (c.Shell == "") == (len(c.Args) == 0):
		return invalid("command", "exactly one of command and args is needed")
	case len(c.Args) > 0 && c.Args[0] == "":
		return invalid("args", "the first of args names the program and is empty")
	case c.Timeout < 0 || c.Timeout > ringfence.MaxTimeoutSeconds*time.Second:
		return invalid("timeout_seconds", "timeout_seconds has to be above 0 and at most %d", ringfence.MaxTimeoutSeconds)
	case c.WorkDir != "" && c.WorkDir[0] != '/':
		return invalid("cwd", "cwd has to be an absolute path")
	case len(c.WorkDir) > ringfence.MaxPathBytes:
		return invalid("cwd", "cwd has %d bytes, at most %d fit", len(c.WorkDir), ringfence.MaxPathBytes)
	case c.User != "" && !userRule.MatchString(c.User):
		return invalid("user", "user is neither a user's name nor a number")
	case len(c.Tag) > ringfence.MaxTagLength || !printable(c.Tag):
		return invalid("tag", "tag has to be text of at most %d bytes without control characters", ringfence.MaxTagLength)
	}
	if err := noZero("command", c.Shell, c.WorkDir); err != nil {
		return err
	}
	if err := noZero("args", c.Args...); err != nil {
		return err
	}
	return validEnv("env", c.Env)
}

func noZero(field string, values ...string) error {
	for _, v := range values {
		for i := range len(v) {
			if v[i] == 0 {
				return invalid(field, "%s holds a zero byte", field)
			}
		}
	}
	return nil
}
