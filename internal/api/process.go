package api

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/engine"
)

type startBody struct {
	Command        string            `json:"command"`
	Args           []string          `json:"args"`
	Cwd            string            `json:"cwd"`
	Env            map[string]string `json:"env"`
	User           string            `json:"user"`
	Tag            string            `json:"tag"`
	Stdin          bool              `json:"stdin"`
	PTY            *terminalBody     `json:"pty"`
	TimeoutSeconds json.RawMessage   `json:"timeout_seconds"`
	LogBytes       *int64            `json:"log_bytes"`
}

type terminalBody struct {
	Cols *int   `json:"cols"`
	Rows *int   `json:"rows"`
	Term string `json:"term"`
}

type processBody struct {
	ID         string                 `json:"id"`
	PID        int                    `json:"pid"`
	Tag        *string                `json:"tag"`
	Command    string                 `json:"command"`
	Args       []string               `json:"args"`
	Cwd        string                 `json:"cwd"`
	User       string                 `json:"user"`
	PTY        bool                   `json:"pty"`
	Stdin      bool                   `json:"stdin"`
	StartedAt  *string                `json:"started_at"`
	State      ringfence.ProcessState `json:"state"`
	DeadlineAt *string                `json:"deadline_at"`
	Exit       *endBody               `json:"exit"`
	Log        logBody                `json:"log"`
}

type endBody struct {
	ExitCode int                      `json:"exit_code"`
	Signal   *int                     `json:"signal"`
	Reason   *ringfence.CommandReason `json:"reason"`
	EndedAt  *string                  `json:"ended_at"`
}

type logBody struct {
	Start uint64 `json:"start"`
	End   uint64 `json:"end"`
}

func processWire(p ringfence.Process) processBody {
	out := processBody{
		ID: p.ID, PID: p.PID, Tag: null(p.Tag), PTY: p.PTY, Stdin: p.StdinOpen, StartedAt: wireTime(p.StartedAt), State: p.State(),
		DeadlineAt: wireTime(p.DeadlineAt), Log: logBody{p.LogStart, p.LogEnd},
	}
	// The guest says these, and JSON carries nothing but UTF-8.
	out.Command, _ = text([]byte(p.Command))
	out.Cwd, _ = text([]byte(p.WorkDir))
	out.User, _ = text([]byte(p.User))
	for _, arg := range p.Args {
		clean, _ := text([]byte(arg))
		out.Args = append(out.Args, clean)
	}
	if e := p.Exit; e != nil {
		out.Exit = &endBody{ExitCode: e.ExitCode, Signal: null(e.Signal), Reason: null(e.Reason), EndedAt: wireTime(e.EndedAt)}
	}
	return out
}

// spec makes a specification of what a caller asked for.
func (b *startBody) spec() (ringfence.ProcessSpec, error) {
	spec := ringfence.ProcessSpec{
		Command:   ringfence.Command{Shell: b.Command, Args: b.Args, WorkDir: b.Cwd, User: b.User, Env: b.Env, Tag: b.Tag},
		KeepStdin: b.Stdin,
	}
	var err error
	if spec.Timeout, err = deadline("timeout_seconds", b.TimeoutSeconds, 0); err != nil {
		return spec, err
	}
	if b.PTY != nil {
		size := ringfence.TerminalSize{Cols: ringfence.DefaultCols, Rows: ringfence.DefaultRows, Term: b.PTY.Term}
		if size.Cols, err = cells("pty.cols", b.PTY.Cols, size.Cols); err == nil {
			size.Rows, err = cells("pty.rows", b.PTY.Rows, size.Rows)
		}
		if err != nil {
			return spec, err
		}
		spec.PTY = &size
	}
	if b.LogBytes != nil {
		if spec.LogBytes = *b.LogBytes; spec.LogBytes < ringfence.MinLogBytes || spec.LogBytes > ringfence.MaxLogBytes {
			return spec, invalid("log_bytes", "log_bytes has to be from %d to %d", ringfence.MinLogBytes, ringfence.MaxLogBytes)
		}
	}
	return spec, nil
}

// cells reads a side of a terminal. nil: def.
func cells(field string, n *int, def uint16) (uint16, error) {
	if n == nil {
		return def, nil
	}
	if *n < 1 || *n > ringfence.MaxTerminalSize {
		return 0, invalid(field, "%s has to be from 1 to %d", field, ringfence.MaxTerminalSize)
	}
	return uint16(*n), nil
}

// deadline reads a number of seconds of which 0 and null mean none. Absent: def.
func deadline(field string, raw json.RawMessage, def time.Duration) (time.Duration, error) {
	var n float64
	if len(raw) > 0 && json.Unmarshal(raw, &n) == nil && n == 0 {
		return 0, nil
	}
	return seconds(field, raw, def)
}

func (c *call) startProcess() error {
	var in startBody
	if err := c.decode(&in); err != nil {
		return err
	}
	spec, err := in.spec()
	if err != nil {
		return err
	}
	p, err := c.Engine.StartProcess(c.r.Context(), c.who.Project, c.r.PathValue("id"), spec)
	if err != nil {
		return err
	}
	return c.reply(http.StatusCreated, processWire(p))
}

func (c *call) listProcesses() error {
	filter := ringfence.ProcessFilter{Tag: c.query.Get("tag"), State: ringfence.ProcessState(c.query.Get("state"))}
	if !slices.Contains([]ringfence.ProcessState{"", ringfence.ProcessRunning, ringfence.ProcessEnded}, filter.State) {
		return invalid("state", "state is %q, and has to be running or ended", short(string(filter.State)))
	}
	all, err := c.Engine.ListProcesses(c.r.Context(), c.who.Project, c.r.PathValue("id"), filter)
	if err != nil {
		return err
	}
	out := make([]processBody, len(all))
	for i, p := range all {
		out[i] = processWire(p)
	}
	return c.reply(http.StatusOK, map[string]any{"processes": out})
}

// process names the process in the request's path.
func (c *call) process() string { return c.r.PathValue("process") }

func (c *call) getProcess() error {
	p, err := c.Engine.GetProcess(c.r.Context(), c.who.Project, c.r.PathValue("id"), c.process())
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, processWire(p))
}

// maxWait is how long one request waits for the end of a process, in seconds.
const maxWait = 3600

func (c *call) waitProcess() error {
	wait := float64(maxWait)
	if s := c.query.Get("timeout_seconds"); s != "" {
		var err error
		if wait, err = strconv.ParseFloat(s, 64); err != nil || !(wait >= 0) || wait > maxWait { // NaN is refused too
			return invalid("timeout_seconds", "timeout_seconds has to be from 0 to %d", maxWait).WithHint("ask again when the wait is over")
		}
	}
	p, err := c.Engine.WaitProcess(c.r.Context(), c.who.Project, c.r.PathValue("id"), c.process(), time.Duration(wait*float64(time.Second)))
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, processWire(p))
}

type signalBody struct {
	Signal json.RawMessage `json:"signal"`
	Tree   bool            `json:"tree"`
}

func (c *call) signalProcess() error {
	var in signalBody
	if err := c.decode(&in); err != nil {
		return err
	}
	number, err := signalNumber(in.Signal)
	if err != nil {
		return err
	}
	if err := c.Engine.SignalProcess(c.r.Context(), c.who.Project, c.r.PathValue("id"), c.process(), number, in.Tree); err != nil {
		return err
	}
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

// signalNumber reads a signal by number or by name, with or without SIG.
func signalNumber(raw json.RawMessage) (int, error) {
	var number int
	var name string
	switch {
	case len(raw) == 0:
		return 0, invalid("signal", "signal is needed").WithHint(`such as "SIGTERM" or 15`)
	case json.Unmarshal(raw, &number) == nil && number >= 1 && number <= 64:
		return number, nil
	case json.Unmarshal(raw, &name) == nil:
		name = strings.ToUpper(name)
		if !strings.HasPrefix(name, "SIG") {
			name = "SIG" + name
		}
		if number := unix.SignalNum(name); number != 0 {
			return int(number), nil
		}
	}
	return 0, invalid("signal", "%s is no signal", short(string(raw))).WithHint(`give a name such as "SIGTERM" or "INT", or a number from 1 to 64`)
}

func (c *call) writeStdin() error {
	end, err := c.flag("close", false)
	if err != nil {
		return err
	}
	body := c.body(c.r.Body)
	n, err := c.Engine.WriteStdin(c.r.Context(), c.who.Project, c.r.PathValue("id"), c.process(), body, end)
	body.done()
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, map[string]any{"written": n})
}

// flag reads a query parameter that is true or false. Absent: def.
func (c *call) flag(name string, def bool) (bool, error) {
	switch s := c.query.Get(name); s {
	case "":
		return def, nil
	case "true":
		return true, nil
	case "false":
		return false, nil
	default:
		return false, invalid(name, "%s is %q, and has to be true or false", name, short(s))
	}
}

type sizeBody struct {
	Cols *int `json:"cols"`
	Rows *int `json:"rows"`
}

func (b sizeBody) size() (cols, rows uint16, err error) {
	if b.Cols == nil || b.Rows == nil {
		return 0, 0, invalid("cols", "cols and rows are needed")
	}
	if cols, err = cells("cols", b.Cols, 0); err == nil {
		rows, err = cells("rows", b.Rows, 0)
	}
	return cols, rows, err
}

func (c *call) resizeProcess() error {
	var in sizeBody
	if err := c.decode(&in); err != nil {
		return err
	}
	cols, rows, err := in.size()
	if err != nil {
		return err
	}
	if err := c.Engine.ResizeProcess(c.r.Context(), c.who.Project, c.r.PathValue("id"), c.process(), cols, rows); err != nil {
		return err
	}
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

// position reads where in a process's output to begin; engine.FromEnd is its end.
func position(field, s string) (uint64, error) {
	switch s {
	case "":
		return 0, nil
	case "end":
		return engine.FromEnd, nil
	}
	n, err := strconv.ParseUint(s, 10, 63)
	if err != nil {
		return 0, invalid(field, `%s is %q, and has to be a position, which is a whole number, or "end"`, field, short(s))
	}
	return n, nil
}
