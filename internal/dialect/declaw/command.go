package declaw

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/dialect"
	"ringfence.dev/ringfence/internal/output"
)

const (
	defaultUser           = "user"
	defaultCommandTimeout = 60 * time.Second

	// The tags by which the processes of one kind are found again.
	backgroundTag = "declaw.background"
	terminalTag   = "declaw.pty"
	stdioTag      = "declaw.stdio"

	minQuiet = 50 * time.Millisecond // between the signs of life of a stream

	killedExit = 137 // of a command whose sandbox was killed
	otherExit  = 1   // of one whose end nobody saw
)

type commandBody struct {
	Cmd        string            `json:"cmd"`
	Background bool              `json:"background"`
	User       string            `json:"user"`
	Timeout    *float64          `json:"timeout"`
	Envs       map[string]string `json:"envs"`
	Cwd        string            `json:"cwd"`
}

type resultBody struct {
	Stdout   string `json:"stdout"`
	Stderr   string `json:"stderr"`
	ExitCode int    `json:"exit_code"`
}

// spec is the command in the engine's words.
func (c *call) spec(in commandBody) (ringfence.ProcessSpec, error) {
	if in.Cmd == "" {
		return ringfence.ProcessSpec{}, invalid("cmd", "cmd is needed")
	}
	timeout := defaultCommandTimeout
	if in.Timeout != nil {
		var err error
		if timeout, err = seconds("timeout", *in.Timeout); err != nil {
			return ringfence.ProcessSpec{}, err
		}
	}
	return ringfence.ProcessSpec{Command: ringfence.Command{
		Shell: in.Cmd, User: orUser(in.User), WorkDir: in.Cwd, Env: c.environment(in.Envs), Timeout: timeout,
	}}, nil
}

func orUser(name string) string {
	if name == "" {
		return defaultUser
	}
	return name
}

// environment is a command's own environment, which knows where it is.
func (c *call) environment(own map[string]string) map[string]string {
	env := map[string]string{"DECLAW_SANDBOX": "true", "DECLAW_SANDBOX_ID": c.id()}
	for name, value := range own {
		env[name] = value
	}
	return env
}

// tails keeps the ends of both outputs of a process.
type tails struct {
	started        atomic.Bool
	stdout, stderr output.Tail
}

func newTails() *tails {
	return &tails{stdout: output.Tail{Limit: ringfence.DefaultOutputLimit}, stderr: output.Tail{Limit: ringfence.DefaultOutputLimit}}
}

func (t *tails) Started(ringfence.Process, uint64) error {
	t.started.Store(true)
	return nil
}

func (t *tails) Output(stream ringfence.Stream, _ uint64, data []byte) error {
	if stream == ringfence.Stderr {
		t.stderr.Add(data)
	} else {
		t.stdout.Add(data)
	}
	return nil
}

func (*tails) Lost(uint64, uint64) error { return nil }

// result is what there is of both outputs, with a note at the end of stderr.
func (t *tails) result(exitCode int, note string) resultBody {
	out := resultBody{clean(t.stdout.Bytes()), clean(t.stderr.Bytes()), exitCode}
	if note != "" {
		if out.Stderr != "" && !strings.HasSuffix(out.Stderr, "\n") {
			out.Stderr += "\n"
		}
		out.Stderr += note
	}
	return out
}

func clean(b []byte) string { return strings.ToValidUTF8(string(b), "\uFFFD") }

func (c *call) run() error {
	var in commandBody
	if err := c.decode(&in); err != nil {
		return err
	}
	spec, err := c.spec(in)
	if err != nil {
		return err
	}
	if in.Background {
		// It keeps its input open: the TypeScript SDK never says that it will write.
		spec.KeepStdin, spec.Tag = true, backgroundTag
		p, err := c.Engine.StartProcess(c.ctx(), c.who.Project, c.id(), spec)
		if err != nil {
			return notAgain(err)
		}
		return c.reply(http.StatusOK, map[string]int{"pid": p.PID})
	}
	out := newTails()
	return c.answerLate(out, true, func() (ringfence.CommandExit, error) {
		return c.Engine.RunProcess(c.ctx(), c.who.Project, c.id(), spec, out, true)
	})
}

func (c *call) wait() error {
	pid, err := c.pid()
	if err != nil {
		return err
	}
	out := newTails()
	return c.answerLate(out, false, func() (ringfence.CommandExit, error) {
		exit, _, err := c.Engine.FollowProcess(c.ctx(), c.who.Project, c.id(), pid, 0, true, out)
		if ringfence.CodeOf(err) == ringfence.CodeProcessNotFound {
			out.stderr.Add([]byte("process not found"))
			return ringfence.CommandExit{ExitCode: otherExit}, nil
		}
		return exit, err
	})
}

// pid reads the path's process as Declaw names it.
func (c *call) pid() (string, error) {
	text := c.r.PathValue("process")
	if n, err := strconv.ParseUint(text, 10, 31); err != nil || n == 0 {
		return "", invalid("pid", "a pid has to be a whole number above 0")
	}
	return text, nil
}

// answerLate answers with the result of a process that may take long. Headers are held
// back for a while, so that an error can have a status; after that the result has to say
// it, and until it comes a space says now and then that it will. With strict, a deadline
// that passes while headers are held is an error too.
func (c *call) answerLate(out *tails, strict bool, run func() (ringfence.CommandExit, error)) error {
	type outcome struct {
		exit ringfence.CommandExit
		err  error
	}
	done := make(chan outcome, 1)
	go func() {
		exit, err := run()
		done <- outcome{exit, err}
	}()
	held := time.NewTimer(c.hold)
	defer held.Stop()
	select {
	case o := <-done:
		switch {
		case o.err != nil:
			return endedMeanwhile(out, notAgain(o.err))
		case strict && o.exit.Reason == ringfence.CommandDeadline:
			return ringfence.Errorf(ringfence.CodeDeadlineExceeded, "the command was killed: its timeout passed").
				WithHint("give it more time with timeout, in seconds; 0 is none")
		}
		return c.reply(http.StatusOK, out.result(o.exit.ExitCode, exitNote(o.exit)))
	case <-held.C:
	}
	c.w.Patient()
	c.w.Header().Set("Content-Type", "application/json")
	c.w.WriteHeader(http.StatusOK)
	tick := time.NewTicker(c.KeepAlive)
	defer tick.Stop()
	control := http.NewResponseController(c.w)
	for {
		// A client that left is seen by what runs for it.
		_, _ = c.w.Write([]byte(" "))
		_ = control.Flush()
		select {
		case o := <-done:
			var body resultBody
			if o.err != nil {
				body = out.result(lateExit(o.err))
			} else {
				body = out.result(o.exit.ExitCode, exitNote(o.exit))
			}
			raw, err := dialect.Marshal(body)
			if err == nil {
				_, err = c.w.Write(raw)
			}
			return err
		case <-tick.C:
		}
	}
}

// exitNote says what the exit code of a process alone does not.
func exitNote(exit ringfence.CommandExit) string {
	switch exit.Reason {
	case ringfence.CommandDeadline:
		return "the command was killed: its timeout passed"
	case ringfence.CommandOOM:
		return "the command was killed: it took too much memory"
	}
	return ""
}

// lateExit is the exit code, and the reason, of a process whose end nobody saw.
func lateExit(err error) (int, string) {
	if ringfence.CodeOf(err) == ringfence.CodeSandboxEnded {
		return killedExit, messageOf(err)
	}
	return otherExit, messageOf(err)
}

// endedMeanwhile makes of a sandbox that ended under a command what it is for the SDKs:
// not there. Of one that had ended before, they have no class.
func endedMeanwhile(out *tails, err error) error {
	var e *ringfence.Error
	if out.started.Load() && errors.As(err, &e) && e.Code == ringfence.CodeSandboxEnded {
		return ringfence.Errorf(ringfence.CodeNotFound, "%s, while the command ran", e.Message).WithHint("%s", e.Hint)
	}
	return err
}

// notAgain makes an error that the SDKs do not answer by sending the request again: what
// it asked for may have been done.
func notAgain(err error) error {
	switch code := ringfence.CodeOf(err); code {
	case ringfence.CodeUnavailable, ringfence.CodeInternal:
		return ringfence.Errorf(ringfence.CodeFailedPrecondition, "%s", messageOf(err)).WithCause(err).
			WithHint("whether it was done is not known: look before you try again")
	}
	return err
}

type streamBody struct {
	Type   string `json:"type"`
	Stream string `json:"stream"`
	Data   string `json:"data"`
}

type exitBody struct {
	ExitCode int `json:"exit_code"`
}

// textEvents sends output as text. The beginning of a character waits for its rest.
type textEvents struct {
	*dialect.Events
	started bool
	held    [3][]byte // by stream
}

var streamNames = map[ringfence.Stream]string{ringfence.Stdout: "stdout", ringfence.Stderr: "stderr"}

func (e *textEvents) Started(ringfence.Process, uint64) error {
	e.started = true
	return e.Begin()
}

func (e *textEvents) Output(stream ringfence.Stream, _ uint64, data []byte) error {
	data = append(e.held[stream], data...)
	n := len(data) - output.SplitCharacter(data)
	e.held[stream] = append([]byte(nil), data[n:]...)
	return e.say(stream, clean(data[:n]))
}

func (e *textEvents) say(stream ringfence.Stream, text string) error {
	if text == "" {
		return nil
	}
	name := streamNames[stream]
	return e.Send(name, streamBody{name, name, text})
}

func (*textEvents) Lost(uint64, uint64) error { return nil }

// end sends what is left, a note, and the exit code.
func (e *textEvents) end(exitCode int, note string) error {
	err := errors.Join(e.say(ringfence.Stdout, clean(e.held[ringfence.Stdout])), e.say(ringfence.Stderr, clean(e.held[ringfence.Stderr])), e.say(ringfence.Stderr, note))
	return errors.Join(err, e.Send("exit", exitBody{exitCode}))
}

func (c *call) runStream() error {
	var in commandBody
	err := c.decode(&in)
	var spec ringfence.ProcessSpec
	if err == nil {
		spec, err = c.spec(in)
	}
	// The Python SDK waits for a sign of life for no longer than the command's timeout.
	quiet := c.KeepAlive
	if spec.Timeout > 0 {
		quiet = min(quiet, max(spec.Timeout/4, minQuiet))
	}
	events := &textEvents{Events: dialect.NewEvents(c.w, quiet)}
	defer events.Close()
	var exit ringfence.CommandExit
	if err == nil {
		exit, err = c.Engine.RunProcess(c.ctx(), c.who.Project, c.id(), spec, events, true)
	}
	switch {
	case err == nil:
		return events.end(exit.ExitCode, exitNote(exit))
	case events.started:
		c.Fault(c.w, err)
		return events.end(lateExit(err))
	case c.blind():
		// The Python SDK would take an error for a command that said nothing and succeeded.
		c.Fault(c.w, err)
		_, status, body := wireError(notAgain(err))
		if err := events.SendWith(status, "stderr", streamBody{"stderr", "stderr", body.Message}); err != nil {
			return err
		}
		return events.Send("exit", exitBody{otherExit})
	}
	return notAgain(err)
}

// blind reports whether a stream is the Python SDK's, which does not look at the status:
// it alone sends no bearer token.
func (c *call) blind() bool {
	return strings.HasPrefix(c.r.UserAgent(), "python-httpx/") && c.r.Header.Get("Authorization") == ""
}

type processBody struct {
	PID   int               `json:"pid"`
	Cmd   string            `json:"cmd"`
	IsPTY bool              `json:"is_pty"`
	Envs  map[string]string `json:"envs"`
}

func (c *call) listCommands() error {
	found, err := c.Engine.ListProcesses(c.ctx(), c.who.Project, c.id(), ringfence.ProcessFilter{Tag: backgroundTag, State: ringfence.ProcessRunning})
	if err != nil {
		return err
	}
	out := []processBody{}
	for _, p := range found {
		out = append(out, processBody{PID: p.PID, Cmd: clean([]byte(p.Command)), Envs: map[string]string{}})
	}
	return c.reply(http.StatusOK, out)
}

// killPID kills a process with all that it started. One that is not there is no error.
func (c *call) killPID() error {
	pid, err := c.pid()
	if err != nil {
		return err
	}
	return c.killRef(pid)
}

func (c *call) killRef(ref string) error {
	const sigkill = 9
	err := c.Engine.SignalProcess(c.ctx(), c.who.Project, c.id(), ref, sigkill, true)
	switch ringfence.CodeOf(err) {
	case "":
		return c.reply(http.StatusOK, map[string]bool{"killed": true})
	case ringfence.CodeProcessNotFound, ringfence.CodeProcessEnded:
		return c.reply(http.StatusOK, map[string]bool{"killed": false})
	}
	return err
}

// textInput writes text to a process, which for a terminal is what was typed.
func (c *call) textInput() error {
	var in struct {
		Data string `json:"data"`
	}
	if err := c.decode(&in); err != nil {
		return err
	}
	pid, err := c.pid()
	if err != nil {
		return err
	}
	if _, err := c.Engine.WriteStdin(c.ctx(), c.who.Project, c.id(), pid, strings.NewReader(in.Data), false); err != nil {
		return notAgain(err)
	}
	return c.nothing()
}
