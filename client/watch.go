package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
)

// What a Change's Type can be.
const (
	ChangeCreate     = "create"
	ChangeModify     = "modify"
	ChangeRemove     = "remove"
	ChangeRenameFrom = "rename_from"
	ChangeRenameTo   = "rename_to"
	ChangeAttrib     = "attrib"
	ChangeOverflow   = "overflow" // changes were lost: look at what is there
)

// Change is something that happened to a file.
type Change struct {
	Type   string `json:"type"`
	Path   string `json:"path"` // empty in an overflow
	IsDir  bool   `json:"is_dir"`
	Cookie uint32 `json:"cookie"` // the same in both halves of a rename
}

// WatchOptions says what is watched.
type WatchOptions struct {
	Recursive bool // also the directories in it, new ones too
	// Ready, when not nil, is called once what is watched is watched.
	Ready func()
}

// Watch calls each for every change in a directory, or of one file, which is watched by
// its name. It returns nil when the directory is gone, the error of each when that
// fails, and otherwise when ctx ends or the connection breaks: changes may then be lost.
// Errors: file_not_found, file_permission, unavailable.
func (f Files) Watch(ctx context.Context, path string, o WatchOptions, each func(Change) error) error {
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	query := f.query(path)
	if o.Recursive {
		query.Set("recursive", "true")
	}
	r := request{method: http.MethodGet, path: f.s.path("/files/watch"), query: query, accept: "text/event-stream", idempotent: true, what: "watch files"}
	resp, err := f.s.c.send(inner, r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	quiet := newQuietReader(resp.Body, func() { cancel(errSilent) })
	defer quiet.timer.Stop()
	requestID := resp.Header.Get("X-Request-Id")
	err = readEvents(quiet, func(name string, data []byte) error {
		switch name {
		case "ready":
			if o.Ready != nil {
				o.Ready()
			}
		case "change":
			var w struct {
				Type       string `json:"type"`
				Path       string `json:"path"`
				PathBase64 string `json:"path_base64"`
				IsDir      bool   `json:"is_dir"`
				Cookie     uint32 `json:"cookie"`
			}
			err := json.Unmarshal(data, &w)
			if err == nil {
				w.Path, err = pathBytes(w.Path, w.PathBase64)
			}
			if err != nil {
				return f.s.c.brokenAnswer(ctx, r, resp, err)
			}
			return each(Change{w.Type, w.Path, w.IsDir, w.Cookie})
		case "overflow":
			return each(Change{Type: ChangeOverflow})
		case "gone":
			return errGone
		case "error":
			var w struct {
				Error *wireError `json:"error"`
			}
			if json.Unmarshal(data, &w) == nil && w.Error != nil {
				return w.Error.domain()
			}
			return brokenStream(requestID, errors.New("an error that cannot be read"))
		}
		return nil
	})
	var broken errReading
	switch {
	case errors.Is(err, errGone):
		return nil
	case errors.As(err, &broken):
		if e := contextError(ctx, r); e != nil {
			return e
		}
		if context.Cause(inner) == errSilent { //nolint:errorlint // it is set above
			broken.error = errSilent
		}
		return brokenStream(requestID, broken.error)
	}
	return err
}

var errGone = errors.New("what was watched is gone")

// errReading is a failure of the connection, not of who takes the events.
type errReading struct{ error }

// readEvents calls each for every server-sent event until that fails or the stream
// ends, which is an error too.
func readEvents(r io.Reader, each func(name string, data []byte) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 8<<10), maxEventBytes)
	name, data := "", []byte(nil)
	for lines.Scan() {
		line := lines.Bytes()
		switch {
		case len(line) == 0:
			if name != "" {
				if err := each(name, data); err != nil {
					return err
				}
			}
			name, data = "", nil
		case bytes.HasPrefix(line, []byte("event: ")):
			name = string(line[len("event: "):])
		case bytes.HasPrefix(line, []byte("data: ")):
			data = bytes.Clone(line[len("data: "):])
		}
	}
	err := lines.Err()
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	return errReading{err}
}
