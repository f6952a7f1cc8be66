package guestlink

import (
	"math/bits"
	"sync"

	"ringfence.dev/ringfence/internal/guestproto"
)

// smallFrame is the largest payload that is copied into a channel's chunk instead
// of getting a buffer of its own.
const smallFrame = 2 << 10

// buffer is a recycled piece of memory. A nil *buffer may be released.
type buffer struct {
	bytes []byte
	class int
}

// Buffers come in powers of two from 4 KiB on, with room for a header before the
// payload: a guest that sends frames of an awkward size makes the host keep at most
// twice what its window allows.
const minBufferBits = 12

var pools [20 - minBufferBits]sync.Pool

// newBuffer returns a buffer of at least n bytes; n is at most a whole frame.
func newBuffer(n int) *buffer {
	class := max(bits.Len(uint(n-1))-minBufferBits, 0)
	size := 1 << (class + minBufferBits)
	if n > guestproto.MaxPayload {
		size = guestproto.HeaderSize + guestproto.MaxPayload
	}
	if b, ok := pools[class].Get().(*buffer); ok {
		return b
	}
	return &buffer{bytes: make([]byte, size), class: class}
}

func (b *buffer) release() {
	if b != nil {
		pools[b.class].Put(b)
	}
}

// inbox gives the reader the memory for one payload at a time.
type inbox struct {
	small [smallFrame]byte
	large *buffer
}

func (in *inbox) alloc(n int) []byte {
	if n <= len(in.small) {
		in.large = nil
		return in.small[:n]
	}
	in.large = newBuffer(n)
	return in.large.bytes[:n]
}

// take returns the buffer of the last payload; nil when it was a small one.
func (in *inbox) take() *buffer {
	b := in.large
	in.large = nil
	return b
}
