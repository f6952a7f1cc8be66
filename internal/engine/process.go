package engine

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/guestlink"
	"ringfence.dev/ringfence/internal/guestproto"
)

// ProcessSink takes what a process says. Its methods are called one after the other, and
// never after the call that it was given to has returned. An error ends that call.
type ProcessSink interface {
	// Started is called first, with the position at which the output begins.
	Started(p ringfence.Process, position uint64) error
	// Output is a piece of one stream; a terminal's is Stdout. position counts the bytes of
	// both streams that came before it. data is valid until Output returns.
	Output(stream ringfence.Stream, position uint64, data []byte) error
	// Lost says that bytes are missing before position, where the output goes on.
	Lost(bytes, position uint64) error
}

// FromEnd is a position that stands for the end of a log, wherever that is.
const FromEnd = uint64(math.MaxUint64)

// StartProcess starts a process that depends on nobody, and returns when it runs. A
// program that cannot be executed is one that has ended with 127 or 126.
//
// Errors: invalid_argument (with the field: command, args, cwd, user, env, …), not_found,
// sandbox_ended, resource_exhausted, unavailable (whether it started is not known).
func (e *Engine) StartProcess(ctx context.Context, project, id string, spec ringfence.ProcessSpec) (ringfence.Process, error) {
	if err := validProcess(spec); err != nil {
		return ringfence.Process{}, err
	}
	startedAt, deadlineAt := now(), time.Time{}
	if spec.Timeout > 0 {
		deadlineAt = startedAt.Add(spec.Timeout)
	}
	m := message(newProcessID(), spec, startedAt, deadlineAt)
	var p ringfence.Process
	err := e.withProcesses(ctx, project, id, func(b *box, conn *guestlink.Conn) error {
		info, err := conn.Spawn(ctx, m)
		if err != nil {
			if ctx.Err() != nil {
				b.e.wg.Go(func() { b.kill(conn, m.ID, "") }) // it may have started, and nobody knows its id
			}
			return err
		}
		p = processOf(info)
		b.processStarted(p)
		b.watchEnd(p.ID)
		b.keepDeadline(deadlineAt)
		if spec.Stdin != nil {
			b.e.wg.Go(func() {
				// It may end, or close its input, without having read it all.
				_, _ = conn.WriteInput(b.ctx, guestproto.ProcessInput{ID: m.ID, Close: !spec.KeepStdin}, bytes.NewReader(spec.Stdin))
			})
		}
		return nil
	})
	return p, err
}

// FollowProcess hands on a process's output from a position on, FromEnd for what is to come.
// It holds nobody back: what the log does not hold any more is told to the sink as lost. With
// follow it returns at the end of the process, with ended true; without, when all that the
// log holds now was handed on, and ended says whether the process has ended.
//
// A ref is a process's id, its PID in decimal, or "tag:" and a tag that one process alone has;
// one that runs goes before those that ended.
//
// Errors: not_found, process_not_found, failed_precondition (several have the tag),
// sandbox_ended, canceled, unavailable.
func (e *Engine) FollowProcess(ctx context.Context, project, id, ref string, from uint64, follow bool, sink ProcessSink) (exit ringfence.CommandExit, ended bool, err error) {
	err = e.withProcesses(ctx, project, id, func(b *box, conn *guestlink.Conn) error {
		defer b.use()()
		process, err := resolve(ctx, conn, ref)
		if err != nil {
			return err
		}
		f := newFollower(b, process, sink)
		exit, ended, err = f.followTo(ctx, conn, from, follow)
		f.letSinkGo()
		return err
	})
	return exit, ended, err
}

// ListProcesses lists what runs, and what ended in the last KeepProcesses, oldest first.
func (e *Engine) ListProcesses(ctx context.Context, project, id string, f ringfence.ProcessFilter) ([]ringfence.Process, error) {
	q := guestproto.ProcessQuery{Tag: f.Tag, Running: f.State == ringfence.ProcessRunning, Ended: f.State == ringfence.ProcessEnded}
	list := []ringfence.Process{}
	err := e.withProcesses(ctx, project, id, func(_ *box, conn *guestlink.Conn) error {
		infos, err := conn.Query(ctx, q)
		for _, info := range infos {
			list = append(list, processOf(info))
		}
		return err
	})
	return list, err
}

// GetProcess returns one process. Errors: process_not_found, failed_precondition, and those of ListProcesses.
func (e *Engine) GetProcess(ctx context.Context, project, id, ref string) (ringfence.Process, error) {
	var p ringfence.Process
	err := e.withProcesses(ctx, project, id, func(_ *box, conn *guestlink.Conn) error {
		info, err := inspect(ctx, conn, ref)
		p = processOf(info)
		return err
	})
	return p, err
}

// WaitProcess waits for the end of a process, at most for a while, and returns the process
// as it is then; a timeout of 0 only looks.
func (e *Engine) WaitProcess(ctx context.Context, project, id, ref string, timeout time.Duration) (ringfence.Process, error) {
	p, err := e.GetProcess(ctx, project, id, ref)
	if err != nil || p.Exit != nil || timeout <= 0 {
		return p, err
	}
	waiting, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		var broken bool
		err := e.withProcesses(waiting, project, id, func(_ *box, conn *guestlink.Conn) error {
			info, err := conn.WaitFor(waiting, guestproto.ProcessRef{ID: p.ID})
			if broken = err != nil && isClosed(conn.Done()); err == nil {
				p = processOf(info)
			}
			return err
		})
		switch {
		case err == nil:
			return p, nil
		case ctx.Err() == nil && waiting.Err() != nil:
			return e.GetProcess(ctx, project, id, p.ID)
		case ctx.Err() != nil || !broken || ringfence.CodeOf(err) == ringfence.CodeSandboxEnded:
			return ringfence.Process{}, err
		}
	}
}

// SignalProcess sends a signal, from 1 to 64, to a process, or with tree to all that it started.
// One of which nothing is left: process_ended.
func (e *Engine) SignalProcess(ctx context.Context, project, id, ref string, signal int, tree bool) error {
	if signal < 1 || signal > maxSignal {
		return invalid("signal", "there is no signal %d; they are from 1 to %d", signal, maxSignal)
	}
	return e.withProcesses(ctx, project, id, func(_ *box, conn *guestlink.Conn) error {
		process, err := resolve(ctx, conn, ref)
		if err != nil {
			return err
		}
		return conn.Kill(ctx, guestproto.ProcessKill{ID: process, Signal: signal, Tree: tree})
	})
}

// WriteStdin writes what r gives to the process's input as it comes, held back by the
// process, and with end closes the input after r's end; a terminal gets its end-of-file character
// then. It returns how many bytes the process's pipe or terminal took. Several may write at once;
// pieces of at most 256 KiB stay whole. Errors: stdin_closed, process_ended.
func (e *Engine) WriteStdin(ctx context.Context, project, id, ref string, r io.Reader, end bool) (int64, error) {
	var n int64
	err := e.withProcesses(ctx, project, id, func(b *box, conn *guestlink.Conn) error {
		defer b.use()()
		process, err := resolve(ctx, conn, ref)
		if err != nil {
			return err
		}
		n, err = conn.WriteInput(ctx, guestproto.ProcessInput{ID: process, Close: end}, r)
		return err
	})
	return n, err
}

// ResizeProcess changes the size of a process's terminal. One without: failed_precondition.
func (e *Engine) ResizeProcess(ctx context.Context, project, id, ref string, cols, rows uint16) error {
	for field, n := range map[string]uint16{"cols": cols, "rows": rows} {
		if n < 1 || n > ringfence.MaxTerminalSize {
			return invalid(field, "%s has to be from 1 to %d", field, ringfence.MaxTerminalSize)
		}
	}
	return e.withProcesses(ctx, project, id, func(_ *box, conn *guestlink.Conn) error {
		process, err := resolve(ctx, conn, ref)
		if err != nil {
			return err
		}
		return conn.Resize(ctx, guestproto.ProcessResize{ID: process, Cols: cols, Rows: rows})
	})
}

const maxSignal = 64

var errOldAgent = ringfence.Errorf(ringfence.CodeNotYetSupported, "the sandbox was started by an older version of the server, and its agent does not know this").
	WithHint("create another sandbox")

// withProcesses calls f with a link to an agent that knows processes.
func (e *Engine) withProcesses(ctx context.Context, project, id string, f func(*box, *guestlink.Conn) error) error {
	b, err := e.reach(ctx, project, id)
	if err != nil {
		return err
	}
	conn, err := b.link(ctx)
	if err == nil {
		if !conn.HasProcesses() {
			return errOldAgent
		}
		err = f(b, conn)
	}
	return b.explain(err)
}

// inspect finds a process by what a caller calls it.
func inspect(ctx context.Context, conn *guestlink.Conn, ref string) (guestproto.ProcessInfo, error) {
	r := guestproto.ProcessRef{ID: ref}
	if tag, ok := strings.CutPrefix(ref, "tag:"); ok {
		r = guestproto.ProcessRef{Tag: tag}
	} else if pid, err := strconv.ParseUint(ref, 10, 31); err == nil {
		r = guestproto.ProcessRef{PID: int(pid)}
	}
	if len(ref) > ringfence.MaxTagLength+len("tag:") || r == (guestproto.ProcessRef{}) {
		return guestproto.ProcessInfo{}, noProcess(ref)
	}
	info, err := conn.Inspect(ctx, r)
	var e *ringfence.Error
	switch {
	case ringfence.CodeOf(err) == ringfence.CodeProcessNotFound:
		return info, noProcess(ref)
	case ringfence.CodeOf(err) == ringfence.CodeFailedPrecondition && errors.As(err, &e):
		return info, e.WithHint("name the process by its id; list the processes to see them")
	}
	return info, err
}

func noProcess(ref string) error {
	return ringfence.Errorf(ringfence.CodeProcessNotFound, "there is no process %s in the sandbox", quoteShort(ref)).
		WithHint("list the processes to see what there is; one that ended is kept for 10 minutes")
}

// resolve returns a process's id. An id needs no question.
func resolve(ctx context.Context, conn *guestlink.Conn, ref string) (string, error) {
	if processIDRule.MatchString(ref) {
		return ref, nil
	}
	info, err := inspect(ctx, conn, ref)
	return info.ID, err
}

var processIDRule = regexp.MustCompile(`^cmd_[0-9a-f]{16}$`)

// followTo hands on the output from a position on, over as many links as it takes.
func (f *follower) followTo(ctx context.Context, conn *guestlink.Conn, from uint64, follow bool) (ringfence.CommandExit, bool, error) {
	exit := ringfence.CommandExit{ID: f.id}
	first := true
	for {
		proc, err := conn.Join(ctx, guestproto.ProcessAttach{ID: f.id, From: from, NoFollow: !follow}, f.output)
		if err == nil && first {
			first = false
			p := processOf(proc.Info())
			exit.StartedAt = p.StartedAt
			if err = f.started(p, from, proc.From()); err != nil {
				proc.Detach()
				return exit, false, err
			}
		}
		var end guestproto.ProcessExit
		if err == nil {
			if end, err = proc.Wait(ctx); err == nil {
				err = f.ended(end.Position)
				how := endOf(end)
				exit.ExitCode, exit.Signal, exit.Reason, exit.Lost = how.ExitCode, how.Signal, how.Reason, f.lost
				if !end.Running {
					exit.Duration = max(how.EndedAt.Sub(exit.StartedAt), 0)
				}
				return exit, !end.Running, err
			}
			proc.Detach()
		}
		if ctx.Err() != nil || !isClosed(conn.Done()) {
			return exit, false, err
		}
		if conn, err = f.b.link(ctx); err != nil {
			return exit, false, err
		}
		if !first {
			from = f.next
		}
	}
}
