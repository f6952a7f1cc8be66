package api

import (
	"encoding/binary"
	"encoding/json"
	"strings"

	"ringfence.dev/ringfence"
)

// The messages of a two-way session, on the WebSocket subprotocol "ringfence.v1".
// api/frames/README.md describes them, and holds examples that tests compare with.
const (
	sessionProtocol = "ringfence.v1"
	tokenProtocol   = "ringfence.token." // and a key or a token: the only header that a browser's WebSocket can set

	sessionWindow = 1 << 20 // bytes in each direction before the receiver has to give room
	channelStdin  = 0       // the first byte of a binary message of a client; a server's is the Stream
)

// What a client says, each within its bounds.
type (
	stdinMessage  []byte
	windowMessage struct {
		Type     string `json:"type"`
		Position uint64 `json:"position"`
	}
	signalMessage struct {
		number int
		tree   bool
	}
	resizeMessage     struct{ cols, rows uint16 }
	closeStdinMessage struct{}
	detachMessage     struct{}
)

// openMessage is a client's first message: exactly one of the two.
type openMessage struct {
	Start *struct {
		startBody
		OnDisconnect string `json:"on_disconnect"`
	} `json:"start"`
	Attach *struct {
		Process string          `json:"process"`
		From    json.RawMessage `json:"from"`
	} `json:"attach"`
}

// decodeOpen reads the first message of a session.
func decodeOpen(binary bool, raw []byte) (openMessage, error) {
	var m openMessage
	if binary {
		return m, invalid("start", "the first message has to be text").WithHint(`such as {"start":{"command":"bash","pty":{}}}`)
	}
	if err := decodeStrict(raw, &m); err != nil {
		return m, err
	}
	switch {
	case (m.Start == nil) == (m.Attach == nil):
		return m, invalid("start", "exactly one of start and attach is needed")
	case m.Start != nil && m.Start.OnDisconnect != "" && m.Start.OnDisconnect != "detach" && m.Start.OnDisconnect != "kill":
		return m, invalid("start.on_disconnect", "on_disconnect has to be detach or kill")
	case m.Attach != nil && m.Attach.Process == "":
		return m, invalid("attach.process", "process is needed")
	}
	return m, nil
}

// decodeMessage reads any message but the first. A field that its type has not is
// refused by name, as in bodies.
func decodeMessage(binary bool, raw []byte) (any, error) {
	if binary {
		if len(raw) == 0 || raw[0] != channelStdin {
			return nil, invalid("channel", "the first byte of a binary message has to be %d, for stdin", channelStdin)
		}
		return stdinMessage(raw[1:]), nil
	}
	var head struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		return nil, jsonError(err)
	}
	switch head.Type {
	case "window":
		var m windowMessage
		if err := decodeStrict(raw, &m); err != nil {
			return nil, err
		}
		return m, nil
	case "resize":
		var m struct {
			Type string `json:"type"`
			Cols *int   `json:"cols"`
			Rows *int   `json:"rows"`
		}
		if err := decodeStrict(raw, &m); err != nil {
			return nil, err
		}
		cols, rows, err := sizeBody{m.Cols, m.Rows}.size()
		if err != nil {
			return nil, err
		}
		return resizeMessage{cols, rows}, nil
	case "signal":
		var m struct {
			Type   string          `json:"type"`
			Signal json.RawMessage `json:"signal"`
			Tree   bool            `json:"tree"`
		}
		if err := decodeStrict(raw, &m); err != nil {
			return nil, err
		}
		number, err := signalNumber(m.Signal)
		if err != nil {
			return nil, err
		}
		return signalMessage{number, m.Tree}, nil
	case "close_stdin", "detach":
		var m struct {
			Type string `json:"type"`
		}
		if err := decodeStrict(raw, &m); err != nil {
			return nil, err
		}
		if head.Type == "detach" {
			return detachMessage{}, nil
		}
		return closeStdinMessage{}, nil
	}
	return nil, invalid("type", "there is no message of type %q", short(head.Type)).
		WithHint("there are window, close_stdin, resize, signal and detach")
}

// appendOutput appends a message of output: the channel, the position with its most
// significant byte first, and the bytes.
func appendOutput(buf []byte, stream ringfence.Stream, position uint64, data []byte) []byte {
	buf = append(buf, byte(stream))
	buf = binary.BigEndian.AppendUint64(buf, position)
	return append(buf, data...)
}

// What a server says.
type startedMessage struct {
	Type     string      `json:"type"`
	Process  processBody `json:"process"`
	Position uint64      `json:"position"`
}

type positionMessage struct { // stdin_window
	Type     string `json:"type"`
	Position uint64 `json:"position"`
}

type plainMessage struct { // stdin_closed
	Type string `json:"type"`
}

type lostMessage struct {
	Type     string `json:"type"`
	Bytes    uint64 `json:"bytes"`
	Position uint64 `json:"position"`
}

type exitMessage struct {
	Type string `json:"type"`
	outcomeBody
}

type errorMessage struct {
	Type string `json:"type"`
	errorBody
}

// encode spells a message or an event. It has no line end.
func encode(body any) ([]byte, error) {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(body); err != nil {
		return nil, err
	}
	return []byte(strings.TrimSuffix(b.String(), "\n")), nil
}
