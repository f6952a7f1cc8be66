package engine

import (
	"context"
	"io"
	"math"
	"time"

	"ringfence.dev/ringfence"
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
	return ringfence.Process{}, errNoProcesses
}

// RunProcess starts a process and follows it to its end. The process is held back while
// the sink does not return: it loses nothing. When ctx ends, or the sink fails, the process
// is killed with all that it started if kill says so, and goes on without anybody otherwise.
//
// Errors: as StartProcess, canceled, and unavailable (its outcome is not known).
func (e *Engine) RunProcess(ctx context.Context, project, id string, spec ringfence.ProcessSpec, sink ProcessSink, kill bool) (ringfence.CommandExit, error) {
	return ringfence.CommandExit{}, errNoProcesses
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
	return ringfence.CommandExit{}, false, errNoProcesses
}

// ListProcesses lists what runs, and what ended in the last KeepProcesses, oldest first.
func (e *Engine) ListProcesses(ctx context.Context, project, id string, f ringfence.ProcessFilter) ([]ringfence.Process, error) {
	return nil, errNoProcesses
}

// GetProcess returns one process. Errors: process_not_found, failed_precondition, and those of ListProcesses.
func (e *Engine) GetProcess(ctx context.Context, project, id, ref string) (ringfence.Process, error) {
	return ringfence.Process{}, errNoProcesses
}

// WaitProcess waits for the end of a process, at most for a while, and returns the process
// as it is then; a timeout of 0 only looks.
func (e *Engine) WaitProcess(ctx context.Context, project, id, ref string, timeout time.Duration) (ringfence.Process, error) {
	return ringfence.Process{}, errNoProcesses
}

// SignalProcess sends a signal, from 1 to 64, to a process, or with tree to all that it started.
// One of which nothing is left: process_ended.
func (e *Engine) SignalProcess(ctx context.Context, project, id, ref string, signal int, tree bool) error {
	return errNoProcesses
}

// WriteStdin writes what r gives to the process's input as it comes, held back by the
// process, and with end closes the input after r's end; a terminal gets its end-of-file character
// then. It returns how many bytes the process's pipe or terminal took. Several may write at once;
// pieces of at most 256 KiB stay whole. Errors: stdin_closed, process_ended.
func (e *Engine) WriteStdin(ctx context.Context, project, id, ref string, r io.Reader, end bool) (int64, error) {
	return 0, errNoProcesses
}

// ResizeProcess changes the size of a process's terminal. One without: failed_precondition.
func (e *Engine) ResizeProcess(ctx context.Context, project, id, ref string, cols, rows uint16) error {
	return errNoProcesses
}

var errNoProcesses = ringfence.Errorf(ringfence.CodeNotYetSupported, "processes cannot be used yet")
