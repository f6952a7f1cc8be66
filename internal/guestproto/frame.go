package guestproto

// Version is the protocol's version, in every frame.
const Version = 1

// Sizes of the protocol, in bytes.
const (
	HeaderSize    = 24
	MaxPayload    = 256 << 10
	InitialWindow = 1 << 20

	// PreambleSize is the number of zero bytes that complete a half-written frame.
	PreambleSize = HeaderSize + MaxPayload

	// MaxJSON bounds the JSON payload of Open, Event, Result, Hello and HelloAck.
	MaxJSON = MaxPayload
)

// Type is a frame's type. Numbers are never reused.
type Type byte

// The frame types.
const (
	TypeHello    Type = 1  // host → guest, channel 0, payload Hello
	TypeHelloAck Type = 2  // guest → host, channel 0, payload HelloAck
	TypePing     Type = 3  // either way, channel 0; payload is echoed in a Pong
	TypePong     Type = 4  //
	TypeOpen     Type = 16 // host → guest
	TypeData     Type = 17 // both; file bytes, stdin
	TypeWindow   Type = 18 // both
	TypeEnd      Type = 19 // host → guest
	TypeEvent    Type = 20 // guest → host
	TypeResult   Type = 21 // guest → host
	TypeCancel   Type = 22 // host → guest
	TypeStdout   Type = 23 // guest → host; output of a process, position in its log
	TypeStderr   Type = 24 // guest → host; likewise
)

// Header is a frame's header without magic, version and checksum.
type Header struct {
	Type     Type
	Channel  uint32
	Position uint64
	Length   uint32
}
