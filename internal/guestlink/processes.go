package guestlink

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"regexp"
	"slices"
	"strings"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/guestproto"
)

const (
	// maxProcesses bounds a list of processes. An agent keeps some thousand at most.
	maxProcesses = 50_000
	// maxCommand bounds a process's command, as text or in all its arguments, in bytes.
	maxCommand = 16 << 10
	// maxMicros is the end of the year 9999, the last that a time on the wire can have.
	maxMicros = 253402300799999999
)

// HasProcesses says whether the agent knows the calls in this file, terminals, and more of
// a process than its id; one from before does not.
func (c *Conn) HasProcesses() bool {
	return slices.Contains(c.ack.Capabilities, guestproto.CapProcesses)
}

// Spawn starts a process that nobody follows. It is as Start otherwise.
func (c *Conn) Spawn(ctx context.Context, p guestproto.ProcessStart) (guestproto.ProcessInfo, error) {
	return c.processCall(ctx, guestproto.MethodProcessSpawn, p)
}

// Inspect describes a process.
func (c *Conn) Inspect(ctx context.Context, ref guestproto.ProcessRef) (guestproto.ProcessInfo, error) {
	return c.processCall(ctx, guestproto.MethodProcessInspect, ref)
}

// WaitFor waits for the end of a process and describes it.
func (c *Conn) WaitFor(ctx context.Context, ref guestproto.ProcessRef) (guestproto.ProcessInfo, error) {
	return c.processCall(ctx, guestproto.MethodProcessWait, ref)
}

func (c *Conn) processCall(ctx context.Context, method string, params any) (guestproto.ProcessInfo, error) {
	var info guestproto.ProcessInfo
	if err := c.call(ctx, method, params, &info); err != nil {
		return guestproto.ProcessInfo{}, err
	}
	return info, checkProcess(&info)
}

// Resize changes the size of a process's terminal.
func (c *Conn) Resize(ctx context.Context, r guestproto.ProcessResize) error {
	return c.call(ctx, guestproto.MethodProcessResize, r, nil)
}

// Query lists processes in the order of their start.
func (c *Conn) Query(ctx context.Context, q guestproto.ProcessQuery) ([]guestproto.ProcessInfo, error) {
	var list []guestproto.ProcessInfo
	err := c.lines(ctx, guestproto.MethodProcessQuery, q, func(line []byte) error {
		var info guestproto.ProcessInfo
		if err := json.Unmarshal(line, &info); err != nil {
			return badAnswer(err)
		}
		if err := checkProcess(&info); err != nil {
			return err
		}
		if len(list) == maxProcesses {
			return badAnswer(errors.New("too many processes"))
		}
		list = append(list, info)
		return nil
	})
	return list, err
}

// Watch calls each for every process that runs, and then for each that starts or ends, until
// ctx or the session ends or each fails. While each does not return, notices may be missed.
func (c *Conn) Watch(ctx context.Context, each func(guestproto.ProcessNotice) error) error {
	return c.lines(ctx, guestproto.MethodProcessWatch, struct{}{}, func(line []byte) error {
		var notice guestproto.ProcessNotice
		if err := json.Unmarshal(line, &notice); err != nil {
			return badAnswer(err)
		}
		if err := checkProcess(&notice.Process); err != nil {
			return err
		}
		notice.Missed = max(notice.Missed, 0)
		return each(notice)
	})
}

// WriteInput writes what r gives to a process's stdin, as it comes, and returns how much
// the process's pipe or terminal took. r is read by a goroutine that outlives the call
// when r blocks: closing r ends it. process_ended and stdin_closed say why it is not taken.
func (c *Conn) WriteInput(ctx context.Context, in guestproto.ProcessInput, r io.Reader) (int64, error) {
	ch, err := c.open(ctx, guestproto.MethodProcessInput, in)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	sent := make(chan error, 1)
	go func() {
		var err error
		for err == nil {
			err = ch.sendSome(ctx, r)
		}
		if err == io.EOF { //nolint:errorlint // an error that wraps it is no end of the caller's data
			err = ch.sendEnd(ctx)
		}
		if err != nil && !errors.Is(err, errCallOver) {
			cancel(err)
		}
		sent <- err
	}()
	defer cancel(errCallOver)
	for {
		it, err := ch.recv(ctx)
		if err != nil {
			ch.cancel(err)
			select {
			case serr := <-sent: // it says more
				var re readError
				if errors.As(serr, &re) {
					return 0, re.error
				}
			default:
			}
			return 0, err
		}
		if it.typ != guestproto.TypeResult {
			it.buf.release()
			continue
		}
		var written guestproto.ProcessWritten
		if err := it.result(&written); err != nil {
			return 0, err
		}
		if written.Bytes < 0 {
			return 0, badAnswer(errors.New("a number below 0"))
		}
		return written.Bytes, nil
	}
}

// lines makes a call whose data are lines.
func (c *Conn) lines(ctx context.Context, method string, params any, each func([]byte) error) error {
	return c.linesAnd(ctx, method, params, nil, nil, each)
}

// cutLines hands on the whole lines of partial and data, and returns what is left.
func cutLines(partial, data []byte, each func([]byte) error) ([]byte, error) {
	for {
		i := bytes.IndexByte(data, '\n')
		if len(partial)+max(i, 0) > maxLine || i < 0 && len(partial)+len(data) > maxLine {
			return nil, badAnswer(errors.New("a line of a list is too long"))
		}
		if i < 0 {
			return append(partial, data...), nil
		}
		line := data[:i]
		if len(partial) > 0 {
			line = append(partial, line...)
			partial = nil
		}
		data = data[i+1:]
		if err := each(line); err != nil {
			return nil, err
		}
	}
}

var processID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// checkProcess checks what a guest says about a process. Command and arguments may hold
// any text; all else is cleaned.
func checkProcess(i *guestproto.ProcessInfo) error {
	args := 0
	for k, arg := range i.Args {
		args += len(arg) + 16
		i.Args[k] = strings.ToValidUTF8(arg, "\uFFFD")
	}
	ok := processID.MatchString(i.ID) && i.PID >= 0 && i.PID <= math.MaxInt32 &&
		len(i.Command) <= maxCommand && args <= maxCommand &&
		len(i.WorkDir) <= ringfence.MaxPathBytes && len(i.User) <= 256 && len(i.Tag) <= ringfence.MaxTagLength &&
		i.StartedAt >= 0 && i.StartedAt <= maxMicros && i.DeadlineAt >= 0 && i.DeadlineAt <= maxMicros &&
		i.LogStart <= i.LogEnd && i.LogEnd <= math.MaxInt64
	if !ok {
		return badAnswer(errors.New("a description of a process that is out of bounds"))
	}
	i.Command = strings.ToValidUTF8(i.Command, "\uFFFD")
	i.WorkDir, i.User, i.Tag = strings.ToValidUTF8(i.WorkDir, "\uFFFD"), cleanText(i.User), cleanText(i.Tag)
	if i.Exit != nil {
		return checkExit(i.Exit)
	}
	return nil
}

func checkExit(e *guestproto.ProcessExit) error {
	if e.ExitCode < 0 || e.ExitCode > 255 || e.Signal < 0 || e.Signal > 64 || e.Position > math.MaxInt64 ||
		e.EndedAt < 0 || e.EndedAt > maxMicros {
		return badAnswer(errors.New("an exit status out of range"))
	}
	e.Reason = cleanText(e.Reason)
	return nil
}
