package engine

import (
	"context"
	"regexp"
	"time"

	"ringfence.dev/ringfence"
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

// Run runs a command until it has ended, and returns how. Its own failure is no
// error. When its deadline passes, or ctx ends, or the sink fails, its whole tree is killed.
//
// Errors: invalid_argument (with the field), not_found, sandbox_ended (before or
// during the command), canceled, unavailable (its outcome is not known).
func (e *Engine) Run(ctx context.Context, project, id string, cmd ringfence.Command, sink Sink) (ringfence.CommandExit, error) {
	return e.RunProcess(ctx, project, id, ringfence.ProcessSpec{Command: cmd}, commandSink{sink}, true)
}

// commandSink makes a Sink of a command one of a process. What is lost is in the result.
type commandSink struct{ Sink }

func (s commandSink) Started(p ringfence.Process, _ uint64) error { return s.Sink.Started(p.ID, p.PID) }

func (commandSink) Lost(uint64, uint64) error { return nil }

// validProcess checks what a caller wants to start.
func validProcess(s ringfence.ProcessSpec) error {
	if s.PTY != nil {
		switch {
		case s.PTY.Cols < 1 || s.PTY.Cols > ringfence.MaxTerminalSize:
			return invalid("pty.cols", "pty.cols has to be from 1 to %d", ringfence.MaxTerminalSize)
		case s.PTY.Rows < 1 || s.PTY.Rows > ringfence.MaxTerminalSize:
			return invalid("pty.rows", "pty.rows has to be from 1 to %d", ringfence.MaxTerminalSize)
		case s.PTY.Term != "" && !termRule.MatchString(s.PTY.Term):
			return invalid("pty.term", "pty.term is no terminal type's name")
		}
	}
	if s.LogBytes != 0 && (s.LogBytes < ringfence.MinLogBytes || s.LogBytes > ringfence.MaxLogBytes) {
		return invalid("log_bytes", "log_bytes has to be from %d to %d", ringfence.MinLogBytes, ringfence.MaxLogBytes)
	}
	if s.PTY != nil && s.Shell == "" && len(s.Args) == 0 {
		s.Shell = "login" // the user's shell
	}
	return validCommand(s.Command)
}

var termRule = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$`)

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
