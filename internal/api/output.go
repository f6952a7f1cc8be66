package api

import (
	"errors"
	"net/http"

	"ringfence.dev/ringfence"
)

// outcomeBody says how a process ended, at the end of its output.
type outcomeBody struct {
	exitBody
	Position uint64 `json:"position"` // of the output's end
	Lost     uint64 `json:"lost"`     // bytes that this reader asked for and did not get
}

func outcomeWire(e ringfence.CommandExit, position, lost uint64) outcomeBody {
	out := outcomeBody{exitWire(e), position, lost}
	out.Truncated = lost > 0
	return out
}

func (c *call) processOutput() error {
	from, err := position("from", c.query.Get("from"))
	if err != nil {
		return err
	}
	if last := c.r.Header.Get("Last-Event-Id"); last != "" {
		if from, err = position("Last-Event-ID", last); err != nil {
			return err
		}
	}
	kind := accepted(c.r.Header.Values("Accept"))
	follow, err := c.flag("follow", kind != typeJSON)
	if err != nil {
		return err
	}
	follow = follow && c.r.Method != http.MethodHead
	switch kind {
	case typeEvents:
		return c.follow(from, follow, newEvents(c.w))
	case typeFrames:
		return c.follow(from, follow, newFrames(c.w))
	}
	if follow {
		return invalid("follow", "JSON does not follow a process").
			WithHint("accept %s or %s, or wait for its end with …/wait", typeEvents, typeFrames)
	}
	return c.outputPiece(from)
}

// follow sends the output of a process as it comes.
func (c *call) follow(from uint64, wait bool, to streamed) error {
	s := &outputStream{liveStream: &liveStream{to: to, w: c.w, quiet: c.KeepAlive}}
	return s.serve(c, func() (func() error, error) {
		exit, ended, err := c.Engine.FollowProcess(c.r.Context(), c.who.Project, c.r.PathValue("id"), c.process(), from, wait, s)
		return func() error {
			if !ended {
				return to.end(s.next)
			}
			return to.exit(outcomeWire(exit, s.next, s.missing))
		}, err
	})
}

// outputStream is the output of a process from some position on.
type outputStream struct {
	*liveStream
	next    uint64 // position of the next byte
	missing uint64 // bytes that were lost
}

func (s *outputStream) Started(p ringfence.Process, position uint64) error {
	s.next = position
	return s.send(0, func() error { return s.to.joined(p.ID, p.PID, position) })
}

func (s *outputStream) Output(stream ringfence.Stream, position uint64, data []byte) error {
	s.next = position + uint64(len(data))
	return s.liveStream.Output(stream, position, data)
}

func (s *outputStream) Lost(bytes, position uint64) error {
	s.missing += bytes
	s.next = position
	return s.send(0, func() error { return s.to.lost(bytes, position) })
}

// maxPiece is how much output one JSON answer holds, in bytes.
const maxPiece = 8 << 20

type pieceBody struct {
	Start        uint64  `json:"start"` // the first position that the log holds
	End          uint64  `json:"end"`   // and its end
	Next         uint64  `json:"next"`  // where to go on
	Lost         uint64  `json:"lost"`  // bytes that were asked for and are gone
	Stdout       string  `json:"stdout"`
	Stderr       string  `json:"stderr"`
	StdoutBase64 *string `json:"stdout_base64,omitempty"`
	StderrBase64 *string `json:"stderr_base64,omitempty"`
	Truncated    bool    `json:"truncated"` // there is more from next on
	Exit         any     `json:"exit"`      // outcomeBody, null while it runs or when there is more
}

// outputPiece answers with what the log holds now.
func (c *call) outputPiece(from uint64) error {
	var p outputPiece
	exit, ended, err := c.Engine.FollowProcess(c.r.Context(), c.who.Project, c.r.PathValue("id"), c.process(), from, false, &p)
	if err != nil && !p.full {
		return err
	}
	out := pieceBody{Start: p.process.LogStart, End: max(p.process.LogEnd, p.next), Next: p.next, Lost: p.lost, Truncated: p.full}
	out.Stdout, out.StdoutBase64 = text(p.out[ringfence.Stdout])
	out.Stderr, out.StderrBase64 = text(p.out[ringfence.Stderr])
	if ended && !p.full {
		out.Exit = outcomeWire(exit, p.next, p.lost)
	}
	return c.reply(http.StatusOK, out)
}

// outputPiece takes output up to maxPiece.
type outputPiece struct {
	process ringfence.Process
	next    uint64
	lost    uint64
	out     [3][]byte // by stream
	full    bool
}

var errFull = errors.New("the answer is full")

func (p *outputPiece) Started(process ringfence.Process, position uint64) error {
	p.process, p.next = process, position
	return nil
}

func (p *outputPiece) Output(stream ringfence.Stream, position uint64, data []byte) error {
	room := maxPiece - len(p.out[ringfence.Stdout]) - len(p.out[ringfence.Stderr])
	if len(data) > room {
		data, p.full = data[:room], true
	}
	p.out[stream] = append(p.out[stream], data...)
	p.next = position + uint64(len(data))
	if p.full {
		return errFull
	}
	return nil
}

func (p *outputPiece) Lost(bytes, position uint64) error {
	p.lost += bytes
	p.next = position
	return nil
}
