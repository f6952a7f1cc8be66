package client

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"ringfence.dev/ringfence"
)

// ProcessOptions is a process to start. Exactly one of Shell and Args is set; with a
// Terminal both may be empty, for the user's login shell.
type ProcessOptions struct {
	Shell string   // run by the sandbox's shell …
	Args  []string // … or a program with its arguments, without a shell

	WorkDir string            // the sandbox's when empty
	Env     map[string]string // on top of the sandbox's
	User    string            // the sandbox's when empty
	Tag     string            // the caller's name for it: "tag:" and it name the process
	// Timeout is the deadline, after which its whole tree is killed and the exit code is
	// 124. 0: none.
	Timeout time.Duration
	// Stdin keeps the input open for writes. Without it and without a Terminal, stdin is /dev/null.
	Stdin    bool
	Terminal *TerminalSize // nil: pipes
	// LogBytes is how much of the output is kept for those who join later: 64 KiB to 64
	// MiB, 8 MiB when 0. Then the oldest goes.
	LogBytes int64
}

// TerminalSize is a terminal's size and type.
type TerminalSize struct {
	Cols, Rows int    // 1 to 1000; 80 and 24 when 0
	Term       string // "xterm-256color" when empty
}

// ProcessInfo says what a process is and does.
type ProcessInfo struct {
	ID         string
	PID        int // in the sandbox
	Tag        string
	Command    string   // as text
	Args       []string // nil for a shell command
	WorkDir    string
	User       string
	Terminal   bool // whether it runs on one
	StdinOpen  bool // whether input can be written
	StartedAt  time.Time
	DeadlineAt time.Time   // zero: none
	End        *ProcessEnd // nil while it runs
	// The output log holds the bytes from LogStart to LogEnd, both streams together.
	LogStart, LogEnd uint64
}

// ProcessEnd says how a process ended.
type ProcessEnd struct {
	ExitCode int    // 124: deadline; 128+n: signal n
	Signal   int    // that ended it; 0 if none did
	Reason   string // "" when it ended by itself
	EndedAt  time.Time
}

// Process is a process of a sandbox. It goes on whatever becomes of this handle.
type Process struct {
	s    *Sandbox
	ref  string
	info ProcessInfo
}

// StartProcess starts a process that goes on when this program ends. It is never sent twice.
//
// Errors: invalid_argument (with the field: no such directory, user, …), not_found,
// sandbox_ended, unavailable (whether it started is not known). A program that is not
// there is a process that has ended, with exit code 127.
func (s *Sandbox) StartProcess(ctx context.Context, o ProcessOptions) (*Process, error) {
	var w wireProcess
	if err := s.c.call(ctx, request{method: http.MethodPost, path: s.path("/processes"), body: o.wire(), what: "start a process"}, &w); err != nil {
		return nil, err
	}
	return w.handle(s), nil
}

// Process returns a handle without asking the server. ref is a process's id, its PID
// in decimal, or "tag:" and a tag that one process alone has.
func (s *Sandbox) Process(ref string) *Process {
	return &Process{s: s, ref: ref, info: ProcessInfo{ID: ref}}
}

// ProcessFilter selects processes. Empty fields select all.
type ProcessFilter struct {
	Tag   string
	State ringfence.ProcessState
}

// Processes lists what runs, commands included, and what ended in the last ten minutes; the oldest first.
func (s *Sandbox) Processes(ctx context.Context, f ProcessFilter) ([]*Process, error) {
	query := url.Values{}
	if f.Tag != "" {
		query.Set("tag", f.Tag)
	}
	if f.State != "" {
		query.Set("state", string(f.State))
	}
	var w struct {
		Processes []wireProcess `json:"processes"`
	}
	if err := s.c.call(ctx, request{method: http.MethodGet, path: s.path("/processes"), query: query, idempotent: true}, &w); err != nil {
		return nil, err
	}
	all := make([]*Process, len(w.Processes))
	for i, p := range w.Processes {
		all[i] = p.handle(s)
	}
	return all, nil
}

// ID is the process's id, or what Sandbox.Process was given until Refresh.
func (p *Process) ID() string { return p.info.ID }

// Info is what the server said last.
func (p *Process) Info() ProcessInfo { return p.info }

func (p *Process) path(suffix string) string {
	return p.s.path("/processes/" + escape(p.ref) + suffix)
}

// Refresh asks the server again.
func (p *Process) Refresh(ctx context.Context) (ProcessInfo, error) {
	return p.get(ctx, "", nil)
}

func (p *Process) get(ctx context.Context, suffix string, query url.Values) (ProcessInfo, error) {
	var w wireProcess
	if err := p.s.c.call(ctx, request{method: http.MethodGet, path: p.path(suffix), query: query, idempotent: true}, &w); err != nil {
		return p.info, err
	}
	p.info = w.info()
	p.ref = p.info.ID // what a PID or a tag names may change
	return p.info, nil
}

// waitPiece is how long one request waits: what lies between may cut a silent one.
const waitPiece = 50 * time.Second

// Wait waits for the end of the process, over restarts of the server. Its own failure
// is no error: End holds it.
func (p *Process) Wait(ctx context.Context) (ProcessInfo, error) {
	r := newRetry()
	for {
		began := time.Now()
		info, err := p.get(ctx, "/wait", url.Values{"timeout_seconds": {strconv.Itoa(int(waitPiece.Seconds()))}})
		if time.Since(began) > time.Second {
			r = newRetry() // it did answer for a while
		}
		if err != nil {
			if !r.again(ctx, err) {
				return info, err
			}
			continue
		}
		if info.End != nil {
			return info, nil
		}
		r = newRetry()
	}
}

// Signal sends a signal by name or number, such as "SIGINT", "INT" or "2", to the
// process or with tree to all that it started. Errors: process_not_found, process_ended.
func (p *Process) Signal(ctx context.Context, signal string, tree bool) error {
	body := map[string]any{"signal": signalOf(signal), "tree": tree}
	return p.s.c.call(ctx, request{method: http.MethodPost, path: p.path("/signal"), body: body, what: "signal a process"}, nil)
}

func signalOf(signal string) any {
	if n, err := strconv.Atoi(signal); err == nil {
		return n
	}
	return signal
}

// Kill ends the process with all that it started. One that has ended is no error.
func (p *Process) Kill(ctx context.Context) error {
	err := p.Signal(ctx, "SIGKILL", true)
	if ringfence.CodeOf(err) == ringfence.CodeProcessEnded {
		return nil
	}
	return err
}

// WriteStdin writes what r gives, as the process takes it, and returns how many bytes
// that were. Errors: stdin_closed, process_ended.
func (p *Process) WriteStdin(ctx context.Context, r io.Reader) (int64, error) {
	return p.stdin(ctx, r, false)
}

// CloseStdin ends the input. A terminal gets its end-of-file character.
func (p *Process) CloseStdin(ctx context.Context) error {
	_, err := p.stdin(ctx, nil, true)
	return err
}

func (p *Process) stdin(ctx context.Context, r io.Reader, end bool) (int64, error) {
	var w struct {
		Written int64 `json:"written"`
	}
	req := request{method: http.MethodPost, path: p.path("/stdin"), stream: r, size: sizeOf(r), what: "write a process's stdin"}
	if end {
		req.query = url.Values{"close": {"true"}}
	}
	err := p.s.c.call(ctx, req, &w)
	return w.Written, err
}

// Resize changes the size of the process's terminal.
func (p *Process) Resize(ctx context.Context, cols, rows int) error {
	body := map[string]int{"cols": cols, "rows": rows}
	return p.s.c.call(ctx, request{method: http.MethodPost, path: p.path("/resize"), body: body, idempotent: true}, nil)
}

// Output is a piece of a process's output.
type Output struct {
	Stdout, Stderr []byte
	Start, End     uint64  // of the log
	Next           uint64  // where to go on
	Lost           uint64  // bytes that were asked for and that the log does not hold any more
	More           bool    // there is more from Next on already
	Exit           *Result // without output; nil while the process runs, and while there is More
}

// Output returns what the log holds from a position on, at most 8 MiB.
func (p *Process) Output(ctx context.Context, from uint64) (Output, error) {
	var w struct {
		Start        uint64      `json:"start"`
		End          uint64      `json:"end"`
		Next         uint64      `json:"next"`
		Lost         uint64      `json:"lost"`
		Stdout       string      `json:"stdout"`
		Stderr       string      `json:"stderr"`
		StdoutBase64 *string     `json:"stdout_base64"`
		StderrBase64 *string     `json:"stderr_base64"`
		Truncated    bool        `json:"truncated"`
		Exit         *wireResult `json:"exit"`
	}
	query := url.Values{"from": {strconv.FormatUint(from, 10)}, "follow": {"false"}}
	if err := p.s.c.call(ctx, request{method: http.MethodGet, path: p.path("/output"), query: query, idempotent: true}, &w); err != nil {
		return Output{}, err
	}
	out := Output{Start: w.Start, End: w.End, Next: w.Next, Lost: w.Lost, More: w.Truncated}
	var err error
	if out.Stdout, err = outputBytes(w.Stdout, w.StdoutBase64); err == nil {
		out.Stderr, err = outputBytes(w.Stderr, w.StderrBase64)
	}
	if err != nil {
		return out, &ringfence.Error{Code: ringfence.CodeInternal, Message: "the server's answer holds output that is not base64", Err: err}
	}
	if w.Exit != nil {
		out.Exit, err = w.Exit.result()
	}
	return out, err
}

type wireStart struct {
	Command        string            `json:"command,omitempty"`
	Args           []string          `json:"args,omitempty"`
	Cwd            string            `json:"cwd,omitempty"`
	Env            map[string]string `json:"env,omitempty"`
	User           string            `json:"user,omitempty"`
	Tag            string            `json:"tag,omitempty"`
	Stdin          bool              `json:"stdin,omitempty"`
	PTY            *wireTerminal     `json:"pty,omitempty"`
	TimeoutSeconds float64           `json:"timeout_seconds,omitempty"`
	LogBytes       int64             `json:"log_bytes,omitempty"`
	OnDisconnect   string            `json:"on_disconnect,omitempty"` // of sessions
}

type wireTerminal struct {
	Cols int    `json:"cols,omitempty"`
	Rows int    `json:"rows,omitempty"`
	Term string `json:"term,omitempty"`
}

func (o ProcessOptions) wire() wireStart {
	w := wireStart{
		Command: o.Shell, Args: o.Args, Cwd: o.WorkDir, Env: o.Env, User: o.User, Tag: o.Tag, Stdin: o.Stdin,
		TimeoutSeconds: o.Timeout.Seconds(), LogBytes: o.LogBytes,
	}
	if t := o.Terminal; t != nil {
		w.PTY = &wireTerminal{t.Cols, t.Rows, t.Term}
	}
	return w
}

type wireProcess struct {
	ID         string   `json:"id"`
	PID        int      `json:"pid"`
	Tag        string   `json:"tag"`
	Command    string   `json:"command"`
	Args       []string `json:"args"`
	Cwd        string   `json:"cwd"`
	User       string   `json:"user"`
	PTY        bool     `json:"pty"`
	Stdin      bool     `json:"stdin"`
	StartedAt  wireTime `json:"started_at"`
	DeadlineAt wireTime `json:"deadline_at"`
	Exit       *struct {
		ExitCode int      `json:"exit_code"`
		Signal   int      `json:"signal"`
		Reason   string   `json:"reason"`
		EndedAt  wireTime `json:"ended_at"`
	} `json:"exit"`
	Log struct {
		Start uint64 `json:"start"`
		End   uint64 `json:"end"`
	} `json:"log"`
}

func (w wireProcess) info() ProcessInfo {
	info := ProcessInfo{
		ID: w.ID, PID: w.PID, Tag: w.Tag, Command: w.Command, Args: w.Args, WorkDir: w.Cwd, User: w.User, Terminal: w.PTY, StdinOpen: w.Stdin,
		StartedAt: w.StartedAt.Time, DeadlineAt: w.DeadlineAt.Time, LogStart: w.Log.Start, LogEnd: w.Log.End,
	}
	if e := w.Exit; e != nil {
		info.End = &ProcessEnd{ExitCode: e.ExitCode, Signal: e.Signal, Reason: e.Reason, EndedAt: e.EndedAt.Time}
	}
	return info
}

func (w wireProcess) handle(s *Sandbox) *Process {
	return &Process{s: s, ref: w.ID, info: w.info()}
}
