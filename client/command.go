package client

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"time"
	"unicode/utf8"

	"ringfence.dev/ringfence"
)

// NoTimeout is a Command's Timeout that never passes.
const NoTimeout time.Duration = -1

// DefaultOutputLimit is how many bytes of each stream a Result keeps by default.
const DefaultOutputLimit = 10 << 20

// Command is what to run. Exactly one of Shell and Args is set.
type Command struct {
	Shell string   // run by the sandbox's shell …
	Args  []string // … or a program with its arguments, without a shell

	WorkDir string            // the sandbox's when empty
	Env     map[string]string // on top of the sandbox's
	User    string            // the sandbox's when empty
	// Stdin is read to its end before the command starts. nil: /dev/null.
	Stdin io.Reader
	// Timeout is the command's deadline, after which its whole tree is killed and the
	// exit code is 124. 0: the server's default, 30 s. NoTimeout: none.
	Timeout time.Duration
	// OutputLimit is how many bytes of each stream the Result keeps, the last ones: 1
	// to 64 MiB; DefaultOutputLimit when 0. The command goes on beyond it.
	OutputLimit int
	Tag         string // names the command in lists of processes

	// Stdout and Stderr get all bytes of their stream as they arrive, without a limit;
	// the Result does not hold that stream then. They are called from one goroutine.
	// A writer's error ends the command and is returned.
	Stdout, Stderr io.Writer
	// Started is called when the command runs, if it is streamed (Stdout, Stderr or
	// Started is set).
	Started func(Started)
}

// Started says which process a command became.
type Started struct {
	ID  string // of the command
	PID int    // in the sandbox
}

// WriterFunc makes a writer of a function, to get output by a callback. The bytes are
// valid during the call only.
type WriterFunc func(p []byte) error

// Write implements io.Writer.
func (f WriterFunc) Write(p []byte) (int, error) {
	if err := f(p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Why a command ended, if not by itself.
const (
	ReasonDeadline = "deadline" // its Timeout passed: exit code 124
	ReasonOOM      = "oom"      // it was killed for its memory: exit code 137
	ReasonSignal   = "signal"   // a signal ended it: exit code 128 + Signal
)

// Result is how a command ended.
type Result struct {
	ID       string
	ExitCode int    // 124: deadline; 128+n: signal n; 137 with ReasonOOM: out of memory. −1 beside an error
	Reason   string // "" when it ended by itself
	Signal   int    // that ended it; 0 if none did

	Stdout, Stderr                   []byte // the last bytes, up to the limit
	StdoutTruncated, StderrTruncated bool   // whether bytes are missing: before those kept, or of a stream

	Duration  time.Duration // to the millisecond
	StartedAt time.Time

	// Of a process that was followed or attached to: where its output ends, or where to go
	// on beside an error; and how many bytes this reader asked for and did not get.
	Position, Lost uint64
}

// Truncated reports whether bytes of either stream were dropped.
func (r *Result) Truncated() bool { return r.StdoutTruncated || r.StderrTruncated }

// Err returns nil for exit code 0 and an *ExitError otherwise.
func (r *Result) Err() error {
	if r.ExitCode == 0 {
		return nil
	}
	return &ExitError{Result: r}
}

// ExitError is a command's failure as an error.
type ExitError struct{ Result *Result }

func (e *ExitError) Error() string {
	s := fmt.Sprintf("the command ended with exit code %d", e.Result.ExitCode)
	switch e.Result.Reason {
	case ReasonDeadline:
		s += ": its deadline passed"
	case ReasonOOM:
		s += ": it ran out of memory"
	case ReasonSignal:
		s += fmt.Sprintf(": signal %d ended it", e.Result.Signal)
	}
	return s
}

// Run runs a command and waits for its end. The end of ctx, and a broken connection,
// kill the command with all that it started. It is never sent twice.
//
// The Result is never nil. Beside an error its exit code is −1 and it holds the
// output that came until then.
//
// Errors: invalid_argument (no such directory or user), not_found, sandbox_ended
// (before or during the command), unavailable (its outcome is not known).
func (s *Sandbox) Run(ctx context.Context, cmd Command) (*Result, error) {
	failed := &Result{ExitCode: -1}
	body := wireCommand{
		Command: cmd.Shell, Args: cmd.Args, Cwd: cmd.WorkDir, Env: cmd.Env, User: cmd.User, Tag: cmd.Tag,
		OutputLimitBytes: cmd.OutputLimit,
	}
	switch {
	case cmd.Timeout < 0:
		body.TimeoutSeconds = noTimeout{}
	case cmd.Timeout > 0:
		body.TimeoutSeconds = cmd.Timeout.Seconds()
	}
	if cmd.Stdin != nil {
		stdin, err := io.ReadAll(cmd.Stdin)
		if err != nil {
			return failed, ringfence.Errorf(ringfence.CodeInvalidArgument, "cannot read the command's stdin: %w", err)
		}
		if utf8.Valid(stdin) {
			text := string(stdin)
			body.Stdin = &text
		} else {
			text := base64.StdEncoding.EncodeToString(stdin)
			body.StdinBase64 = &text
		}
	}
	r := request{method: http.MethodPost, path: s.path("/commands"), body: body, what: "run a command"}
	if cmd.Stdout != nil || cmd.Stderr != nil || cmd.Started != nil {
		return s.runStream(ctx, r, cmd)
	}
	var w wireResult
	if err := s.c.call(ctx, r, &w); err != nil {
		return failed, err
	}
	result, err := w.result()
	if err != nil {
		return failed, err
	}
	return result, nil
}

// path returns the path of something of the sandbox.
func (s *Sandbox) path(suffix string) string { return "/v1/sandboxes/" + escape(s.id) + suffix }

type wireCommand struct {
	Command          string            `json:"command,omitempty"`
	Args             []string          `json:"args,omitempty"`
	Cwd              string            `json:"cwd,omitempty"`
	Env              map[string]string `json:"env,omitempty"`
	User             string            `json:"user,omitempty"`
	Stdin            *string           `json:"stdin,omitempty"`
	StdinBase64      *string           `json:"stdin_base64,omitempty"`
	TimeoutSeconds   any               `json:"timeout_seconds,omitempty"` // nil: left out; noTimeout: null
	OutputLimitBytes int               `json:"output_limit_bytes,omitempty"`
	Tag              string            `json:"tag,omitempty"`
}

// noTimeout is null on the wire, where a nil would be left out.
type noTimeout struct{}

// MarshalJSON implements json.Marshaler.
func (noTimeout) MarshalJSON() ([]byte, error) { return []byte("null"), nil }

type wireResult struct {
	ID              string   `json:"id"`
	ExitCode        *int     `json:"exit_code"` // a pointer: one that is missing is no success
	Reason          string   `json:"reason"`
	Signal          int      `json:"signal"`
	Stdout          string   `json:"stdout"`
	Stderr          string   `json:"stderr"`
	StdoutBase64    *string  `json:"stdout_base64"`
	StderrBase64    *string  `json:"stderr_base64"`
	StdoutTruncated bool     `json:"stdout_truncated"`
	StderrTruncated bool     `json:"stderr_truncated"`
	Truncated       bool     `json:"truncated"`
	DurationMS      float64  `json:"duration_ms"`
	StartedAt       wireTime `json:"started_at"`
	Position        uint64   `json:"position"`
	Lost            uint64   `json:"lost"`
}

func (w *wireResult) result() (*Result, error) {
	if w.ExitCode == nil {
		return nil, &ringfence.Error{Code: ringfence.CodeInternal, Message: "the server's answer holds no exit code",
			Hint: "do this program and the server have the same version?"}
	}
	r := &Result{
		ID: w.ID, ExitCode: *w.ExitCode, Reason: w.Reason, Signal: w.Signal,
		StdoutTruncated: w.StdoutTruncated, StderrTruncated: w.StderrTruncated,
		Duration: time.Duration(w.DurationMS * float64(time.Millisecond)), StartedAt: w.StartedAt.Time,
		Position: w.Position, Lost: w.Lost,
	}
	var err error
	if r.Stdout, err = outputBytes(w.Stdout, w.StdoutBase64); err == nil {
		r.Stderr, err = outputBytes(w.Stderr, w.StderrBase64)
	}
	if err != nil {
		return nil, &ringfence.Error{Code: ringfence.CodeInternal, Message: "the server's answer holds output that is not base64", Err: err}
	}
	return r, nil
}

// outputBytes returns the exact bytes of a stream: base64 is there when they are no text.
func outputBytes(text string, encoded *string) ([]byte, error) {
	if encoded == nil {
		return []byte(text), nil
	}
	return base64.StdEncoding.DecodeString(*encoded)
}
