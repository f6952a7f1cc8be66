package declaw

import (
	"bytes"
	"encoding/base64"
	"net/http"
	"strconv"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/dialect"
)

const defaultTerminalTimeout = time.Hour

type sizeBody struct {
	Cols uint16 `json:"cols"`
	Rows uint16 `json:"rows"`
}

func (c *call) openTerminal() error {
	var in struct {
		Size    *sizeBody         `json:"size"`
		User    string            `json:"user"`
		Timeout *float64          `json:"timeout"`
		Cwd     string            `json:"cwd"`
		Envs    map[string]string `json:"envs"`
	}
	if err := c.decode(&in); err != nil {
		return err
	}
	timeout := defaultTerminalTimeout
	if in.Timeout != nil {
		var err error
		if timeout, err = seconds("timeout", *in.Timeout); err != nil {
			return err
		}
	}
	size := ringfence.TerminalSize{Cols: ringfence.DefaultCols, Rows: ringfence.DefaultRows}
	if in.Size != nil {
		size.Cols, size.Rows = in.Size.Cols, in.Size.Rows
	}
	p, err := c.Engine.StartProcess(c.ctx(), c.who.Project, c.id(), ringfence.ProcessSpec{
		Command: ringfence.Command{
			Args: []string{"bash", "-l"}, User: orUser(in.User), WorkDir: in.Cwd, Env: c.environment(in.Envs), Timeout: timeout, Tag: terminalTag,
		},
		PTY: &size,
	})
	if err != nil {
		return notAgain(err)
	}
	return c.reply(http.StatusOK, map[string]int{"pid": p.PID})
}

func (c *call) resizeTerminal() error {
	var in struct {
		Size sizeBody `json:"size"`
	}
	if err := c.decode(&in); err != nil {
		return err
	}
	pid, err := c.pid()
	if err != nil {
		return err
	}
	if err := c.Engine.ResizeProcess(c.ctx(), c.who.Project, c.id(), pid, in.Size.Cols, in.Size.Rows); err != nil {
		return err
	}
	return c.nothing()
}

// binaryEvents sends output in base64. Entries are numbered by the position at which they
// end, so that a stream can go on after any of them, with any server.
type binaryEvents struct {
	*dialect.Events
	terminal bool
	started  bool
}

type dataBody struct {
	Data    string `json:"data"`
	EntryID uint64 `json:"entry_id,omitempty"`
}

func (e *binaryEvents) Started(ringfence.Process, uint64) error {
	e.started = true
	return e.Begin()
}

func (e *binaryEvents) Output(stream ringfence.Stream, position uint64, data []byte) error {
	body := dataBody{Data: base64.StdEncoding.EncodeToString(data)}
	if e.terminal {
		return e.Send("data", body)
	}
	body.EntryID = position + uint64(len(data))
	return e.Send(streamNames[stream], body)
}

func (*binaryEvents) Lost(uint64, uint64) error { return nil }

// stream sends a process's output from a position on, and how it ended.
func (c *call) stream(ref string, from uint64, terminal bool) error {
	events := &binaryEvents{Events: dialect.NewEvents(c.w, c.KeepAlive), terminal: terminal}
	defer events.Close()
	exit, _, err := c.Engine.FollowProcess(c.ctx(), c.who.Project, c.id(), ref, from, true, events)
	switch {
	case err == nil:
		return events.Send("exit", exitBody{exit.ExitCode})
	case !events.started:
		return err
	case ringfence.CodeOf(err) == ringfence.CodeSandboxEnded:
		return events.Send("exit", exitBody{killedExit})
	}
	return err // it goes on, and can be joined again
}

func (c *call) terminalStream() error {
	pid, err := c.pid()
	if err != nil {
		return err
	}
	return c.stream(pid, 0, true)
}

func (c *call) startStdio() error {
	var in commandBody
	if err := c.decode(&in); err != nil {
		return err
	}
	spec, err := c.spec(in)
	if err != nil {
		return err
	}
	spec.Timeout, spec.KeepStdin, spec.Tag = 0, true, stdioTag
	p, err := c.Engine.StartProcess(c.ctx(), c.who.Project, c.id(), spec)
	if err != nil {
		return notAgain(err)
	}
	return c.reply(http.StatusOK, map[string]string{"cmd_id": p.ID})
}

func (c *call) process() string { return c.r.PathValue("process") }

func (c *call) killStdio() error { return c.killRef(c.process()) }

func (c *call) binaryInput() error {
	var in struct {
		Data string `json:"data"`
	}
	if err := c.decode(&in); err != nil {
		return err
	}
	raw, err := base64.StdEncoding.DecodeString(in.Data)
	if err != nil {
		return invalid("data", "data has to be base64")
	}
	return c.input(raw, false)
}

func (c *call) closeInput() error { return c.input(nil, true) }

func (c *call) input(raw []byte, end bool) error {
	if _, err := c.Engine.WriteStdin(c.ctx(), c.who.Project, c.id(), c.process(), bytes.NewReader(raw), end); err != nil {
		return notAgain(err)
	}
	return c.nothing()
}

func (c *call) stdioStream() error {
	var from uint64
	if text := c.r.URL.Query().Get("last_entry_id"); text != "" {
		var err error
		if from, err = strconv.ParseUint(text, 10, 63); err != nil {
			return invalid("last_entry_id", "last_entry_id has to be the number of an entry, or 0")
		}
	}
	return c.stream(c.process(), from, false)
}
