package engine

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/guestlink"
	"ringfence.dev/ringfence/internal/guestproto"
)

// killGrace is how long the agent may take to end a command's tree.
const killGrace = 15 * time.Second

// RunProcess starts a process and follows it to its end. The process is held back while
// the sink does not return: it loses nothing. When ctx ends, or the sink fails, the process
// is killed with all that it started if kill says so, and goes on without anybody otherwise.
//
// Errors: as StartProcess, canceled, and unavailable (its outcome is not known).
func (e *Engine) RunProcess(ctx context.Context, project, id string, spec ringfence.ProcessSpec, sink ProcessSink, kill bool) (ringfence.CommandExit, error) {
	if err := validProcess(spec); err != nil {
		return ringfence.CommandExit{}, err
	}
	b, err := e.reach(ctx, project, id)
	if err != nil {
		return ringfence.CommandExit{}, err
	}
	defer b.use()()
	r := &run{follower: newFollower(b, newProcessID(), sink), spec: spec, leave: !kill, startedAt: now()}
	if spec.Timeout > 0 {
		r.deadlineAt = r.startedAt.Add(spec.Timeout)
	}
	b.commands.Store(r.id, nil)
	defer b.commands.Delete(r.id)
	exit, err := r.run(ctx)
	r.letSinkGo()
	switch {
	case r.known && r.end != nil:
		b.processEnded(r.id, *r.end)
	case r.known:
		b.watchEnd(r.id) // it was left, or is being killed
	}
	return exit, b.explain(err)
}

func newProcessID() string {
	var random [8]byte
	rand.Read(random[:]) // never fails since Go 1.24
	return "cmd_" + hex.EncodeToString(random[:])
}

// run is a process in progress whose starter is there.
type run struct {
	follower
	spec                  ringfence.ProcessSpec
	leave                 bool // it goes on when its starter goes
	startedAt, deadlineAt time.Time
	expired               bool // the deadline has passed
	known                 bool // its start is on record
	end                   *ringfence.ProcessEnd
}

// message is the spec as the agent takes it.
func message(id string, spec ringfence.ProcessSpec, startedAt, deadlineAt time.Time) guestproto.ProcessStart {
	m := guestproto.ProcessStart{
		ID: id, Shell: spec.Shell, Args: spec.Args, Env: spec.Env, WorkDir: spec.WorkDir, User: spec.User,
		Stdin: spec.Stdin != nil || spec.KeepStdin, Tag: spec.Tag, LogBytes: spec.LogBytes, StartedAt: startedAt.UnixMicro(),
	}
	if !deadlineAt.IsZero() {
		m.DeadlineAt = deadlineAt.UnixMicro()
	}
	if spec.PTY != nil {
		m.PTY = &guestproto.Terminal{Cols: spec.PTY.Cols, Rows: spec.PTY.Rows, Term: spec.PTY.Term}
	}
	return m
}

func (r *run) run(ctx context.Context) (ringfence.CommandExit, error) {
	exit := ringfence.CommandExit{ID: r.id, StartedAt: r.startedAt}
	began := time.Now()
	var deadline <-chan time.Time
	if r.spec.Timeout > 0 {
		timer := time.NewTimer(r.spec.Timeout)
		defer timer.Stop()
		deadline = timer.C
	}
	conn, err := r.b.link(ctx)
	if err != nil {
		return exit, err
	}
	if r.spec.PTY != nil && !conn.HasProcesses() {
		return exit, errOldAgent
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
			err = r.ended(end.Position)
			exit.Duration = time.Since(began)
			how := endOf(end)
			r.end = &how
			exit.ExitCode, exit.Signal, exit.Reason, exit.Lost = how.ExitCode, how.Signal, how.Reason, r.lost
			return exit, err
		}
		if ctx.Err() != nil || !isClosed(conn.Done()) {
			return exit, err
		}
		// The link broke, and the process may well go on: follow it from where we were.
		if conn, err = r.b.link(ctx); err != nil {
			if ctx.Err() != nil {
				r.abandon(conn, nil)
			}
			return exit, err
		}
		if proc, err = conn.Join(ctx, guestproto.ProcessAttach{ID: r.id, From: r.next, Hold: true}, r.output); err != nil {
			if ctx.Err() != nil {
				r.abandon(conn, nil)
			}
			return exit, ringfence.Errorf(ringfence.CodeUnavailable, "the link to the sandbox broke during the command; its outcome is not known").WithCause(err)
		}
	}
}

// start starts the process, and its input.
func (r *run) start(ctx context.Context, conn *guestlink.Conn) (*guestlink.Process, error) {
	proc, err := conn.Start(ctx, message(r.id, r.spec, r.startedAt, r.deadlineAt), r.output)
	if err != nil {
		if ctx.Err() != nil {
			r.kill(conn, "") // it may have started all the same, and nobody knows its id
		}
		return nil, err
	}
	p := processOf(proc.Info())
	if !conn.HasProcesses() { // it said no more than the id
		p.Tag, p.Command, p.Args, p.WorkDir, p.User = r.spec.Tag, r.spec.Shell, r.spec.Args, r.spec.WorkDir, r.spec.User
		p.StartedAt, p.DeadlineAt = r.startedAt, r.deadlineAt
	}
	r.known = true
	r.b.processStarted(p)
	if err := r.started(p, 0, proc.From()); err != nil {
		r.abandon(conn, proc)
		return nil, err
	}
	if r.spec.Stdin != nil {
		go func() {
			// The call's end ends this too. A command may end without having read it all.
			if _, err := proc.WriteStdin(context.Background(), r.spec.Stdin); err == nil && !r.spec.KeepStdin {
				proc.CloseStdin(context.Background()) // likewise
			}
		}()
	}
	return proc, nil
}

// abandon does what the caller wants to be done with the process when it goes.
func (r *run) abandon(conn *guestlink.Conn, proc *guestlink.Process) {
	if !r.leave {
		r.kill(conn, "") // a failure is logged, and tried again
		return
	}
	if proc != nil {
		proc.Detach()
	}
	r.b.keepDeadline(r.deadlineAt)
}

// gone is what a caller gets that went away, whoever hears it.
func (r *run) gone(ctx context.Context) error {
	what := "the command was killed: its caller went away"
	if r.leave {
		what = "the caller went away; the process goes on"
	}
	return ringfence.Errorf(ringfence.CodeCanceled, "%s", what).WithCause(context.Cause(ctx))
}

// follow waits for the end of the process, and brings it about when it is due.
func (r *run) follow(ctx context.Context, conn *guestlink.Conn, proc *guestlink.Process, deadline <-chan time.Time) (guestproto.ProcessExit, error) {
	select {
	case <-proc.Done():
		end, err := proc.Wait(context.Background())
		if err != nil && !isClosed(conn.Done()) {
			r.abandon(conn, proc) // the sink failed
		}
		return end, err
	case <-ctx.Done():
		r.abandon(conn, proc)
		return guestproto.ProcessExit{}, r.gone(ctx)
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
			return guestproto.ProcessExit{}, r.gone(ctx)
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
	err := r.b.kill(conn, r.id, reason)
	if err == nil {
		return nil
	}
	return ringfence.Errorf(ringfence.CodeUnavailable, "the sandbox's agent did not end the command in time; its outcome is not known").WithCause(err)
}

// kill ends a process with all that it started. When the link breaks meanwhile, it is
// done over the next one. conn is nil when there is none.
func (b *box) kill(conn *guestlink.Conn, id, reason string) error {
	ctx, cancel := context.WithTimeout(b.ctx, killGrace)
	defer cancel()
	err := error(errClosing)
	if conn != nil {
		err = conn.Kill(ctx, guestproto.ProcessKill{ID: id, Signal: sigkill, Tree: true, Reason: reason})
	}
	switch ringfence.CodeOf(err) {
	case "", ringfence.CodeNotFound, ringfence.CodeProcessNotFound, ringfence.CodeProcessEnded: // it had ended
		return nil
	}
	if b.ctx.Err() == nil {
		b.doomed.Store(id, reason)
		b.e.Log.Warn("cannot kill a command", "sandbox", b.id, "command", id, "error", err)
	}
	return err
}
