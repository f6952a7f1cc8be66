package api

import (
	"encoding/base64"
	"encoding/json"
	"mime"
	"net/http"
	"strings"
	"unicode/utf8"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/output"
)

type commandBody struct {
	Command          string            `json:"command"`
	Args             []string          `json:"args"`
	Cwd              string            `json:"cwd"`
	Env              map[string]string `json:"env"`
	User             string            `json:"user"`
	Stdin            *string           `json:"stdin"`
	StdinBase64      *string           `json:"stdin_base64"`
	TimeoutSeconds   json.RawMessage   `json:"timeout_seconds"`
	OutputLimitBytes *int              `json:"output_limit_bytes"`
	Tag              string            `json:"tag"`
}

// exitBody is a CommandResult without output.
type exitBody struct {
	ID         string                   `json:"id"`
	ExitCode   int                      `json:"exit_code"`
	Reason     *ringfence.CommandReason `json:"reason"`
	Signal     *int                     `json:"signal"`
	DurationMS float64                  `json:"duration_ms"`
	StartedAt  *string                  `json:"started_at"`
	Truncated  bool                     `json:"truncated"`
}

type resultBody struct {
	exitBody
	Stdout          string  `json:"stdout"`
	Stderr          string  `json:"stderr"`
	StdoutBase64    *string `json:"stdout_base64,omitempty"`
	StderrBase64    *string `json:"stderr_base64,omitempty"`
	StdoutTruncated bool    `json:"stdout_truncated"`
	StderrTruncated bool    `json:"stderr_truncated"`
}

func exitWire(e ringfence.CommandExit) exitBody {
	return exitBody{
		ID: e.ID, ExitCode: e.ExitCode, Reason: null(e.Reason), Signal: null(e.Signal),
		DurationMS: float64(e.Duration.Microseconds()) / 1000, StartedAt: wireTime(e.StartedAt), Truncated: e.Lost > 0,
	}
}

// The three kinds of answers.
const (
	typeJSON   = "application/json"
	typeEvents = "text/event-stream"
	typeFrames = "application/vnd.ringfence.stream"
)

func (c *call) runCommand() error {
	var in commandBody
	if err := c.decode(&in); err != nil {
		return err
	}
	cmd := ringfence.Command{Shell: in.Command, Args: in.Args, WorkDir: in.Cwd, User: in.User, Env: in.Env, Tag: in.Tag}
	var err error
	if cmd.Timeout, err = deadline("timeout_seconds", in.TimeoutSeconds, ringfence.DefaultCommandTimeout); err != nil {
		return err
	}
	switch {
	case in.Stdin != nil && in.StdinBase64 != nil:
		return invalid("stdin_base64", "at most one of stdin and stdin_base64 fits")
	case in.Stdin != nil:
		cmd.Stdin = []byte(*in.Stdin)
	case in.StdinBase64 != nil:
		if cmd.Stdin, err = base64.StdEncoding.DecodeString(*in.StdinBase64); err != nil {
			return invalid("stdin_base64", "stdin_base64 is not base64")
		}
	}
	limit := ringfence.DefaultOutputLimit
	if in.OutputLimitBytes != nil {
		if limit = *in.OutputLimitBytes; limit < 1 || limit > ringfence.MaxOutputLimit {
			return invalid("output_limit_bytes", "output_limit_bytes has to be from 1 to %d", ringfence.MaxOutputLimit)
		}
	}
	switch accepted(c.r.Header.Values("Accept")) {
	case typeEvents:
		return c.stream(cmd, newEvents(c.w))
	case typeFrames:
		return c.stream(cmd, newFrames(c.w))
	}
	tails := &tails{stdout: output.Tail{Limit: limit}, stderr: output.Tail{Limit: limit}}
	exit, err := c.Engine.Run(c.r.Context(), c.who.Project, c.r.PathValue("id"), cmd, tails)
	if err != nil {
		return err
	}
	out := resultBody{exitBody: exitWire(exit), StdoutTruncated: tails.stdout.Cut || exit.Lost > 0, StderrTruncated: tails.stderr.Cut || exit.Lost > 0}
	out.Truncated = out.StdoutTruncated || out.StderrTruncated
	out.Stdout, out.StdoutBase64 = text(tails.stdout.Bytes())
	out.Stderr, out.StderrBase64 = text(tails.stderr.Bytes())
	return c.reply(http.StatusOK, out)
}

// accepted picks the kind of answer: the first of ours that the caller names, JSON
// when it names none.
func accepted(headers []string) string {
	for item := range strings.SplitSeq(strings.Join(headers, ","), ",") {
		kind, params, err := mime.ParseMediaType(strings.TrimSpace(item))
		if err == nil && params["q"] != "0" && (kind == typeJSON || kind == typeEvents || kind == typeFrames) {
			return kind
		}
	}
	return typeJSON
}

// text spells bytes as JSON can carry them: as they are when they are UTF-8, else
// with replacement characters and in base64 beside.
func text(b []byte) (string, *string) {
	if utf8.Valid(b) {
		return string(b), nil
	}
	return strings.ToValidUTF8(string(b), "\uFFFD"), null(base64.StdEncoding.EncodeToString(b))
}

// tails keeps the ends of both outputs.
type tails struct{ stdout, stderr output.Tail }

func (t *tails) Started(string, int) error { return nil }

func (t *tails) Output(stream ringfence.Stream, _ uint64, data []byte) error {
	if stream == ringfence.Stderr {
		t.stderr.Add(data)
	} else {
		t.stdout.Add(data)
	}
	return nil
}
