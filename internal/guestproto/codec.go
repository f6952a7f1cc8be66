package guestproto

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// crcOffset is where the checksum stands in a header.
const crcOffset = HeaderSize - 4

// PutHeader writes the header of a frame into dst[:HeaderSize]. h.Length is
// ignored: the payload's length counts. It panics when the payload is longer than
// MaxPayload, which is the caller's mistake.
func PutHeader(dst []byte, h Header, payload []byte) {
	if len(payload) > MaxPayload {
		panic(fmt.Sprintf("guestproto: payload of %d bytes", len(payload)))
	}
	_ = dst[HeaderSize-1]
	dst[0], dst[1], dst[2], dst[3] = 'R', 'F', Version, byte(h.Type)
	binary.LittleEndian.PutUint32(dst[4:], uint32(len(payload)))
	binary.LittleEndian.PutUint32(dst[8:], h.Channel)
	binary.LittleEndian.PutUint64(dst[12:], h.Position)
	sum := crc32.Update(0, castagnoli, dst[:crcOffset])
	binary.LittleEndian.PutUint32(dst[crcOffset:], crc32.Update(sum, castagnoli, payload))
}

// AppendFrame appends a whole frame to dst.
func AppendFrame(dst []byte, h Header, payload []byte) []byte {
	n := len(dst)
	dst = append(dst, make([]byte, HeaderSize)...)
	PutHeader(dst[n:], h, payload)
	return append(dst, payload...)
}

// Preamble returns the zero bytes that go before Hello and HelloAck.
func Preamble() []byte { return make([]byte, PreambleSize) }

// ErrCorrupt is what a strict Reader returns for anything but a valid frame.
var ErrCorrupt = errors.New("not a valid frame")

// readAhead is how much a Reader asks for when it waits for a header. Small
// frames then come many to a read; a large payload goes past the buffer.
const readAhead = 32 << 10

// Reader decodes frames from a byte stream. It is not safe for concurrent use.
type Reader struct {
	// Strict makes Next fail with ErrCorrupt instead of searching for the next
	// valid frame. It may be changed between calls.
	Strict bool
	// Skipped counts the bytes that were thrown away while searching. Next fails with
	// ErrCorrupt when they are more than MaxSkipped, unless that is 0.
	Skipped, MaxSkipped int64

	r    io.Reader
	buf  [readAhead]byte
	from int // buf[from:to] is read and not yet used
	to   int
}

// NewReader returns a Reader that is not strict.
func NewReader(r io.Reader) *Reader { return &Reader{r: r} }

// Next returns the next valid frame. The payload is written into what alloc
// returns for its length, and belongs to the caller. alloc is called at most once
// for each header that looks valid, with at most MaxPayload; what it returned for a
// frame that turns out to be corrupt is passed to it no more, and is lost.
func (r *Reader) Next(alloc func(n int) []byte) (Header, []byte, error) {
	for {
		if err := r.fill(HeaderSize); err != nil {
			return Header{}, nil, err
		}
		h, ok := parseHeader(r.buf[r.from:r.to])
		if !ok {
			if r.Strict {
				return Header{}, nil, ErrCorrupt
			}
			r.skip()
			if r.MaxSkipped > 0 && r.Skipped > r.MaxSkipped {
				return Header{}, nil, ErrCorrupt
			}
			continue
		}
		var header [HeaderSize]byte
		copy(header[:], r.buf[r.from:])
		r.from += HeaderSize
		var payload []byte
		if h.Length > 0 {
			payload = alloc(int(h.Length))[:h.Length]
			n := copy(payload, r.buf[r.from:r.to])
			r.from += n
			if n < len(payload) {
				if _, err := io.ReadFull(r.r, payload[n:]); err != nil {
					return Header{}, nil, unexpected(err)
				}
			}
		}
		sum := crc32.Update(0, castagnoli, header[:crcOffset])
		sum = crc32.Update(sum, castagnoli, payload)
		if sum == binary.LittleEndian.Uint32(header[crcOffset:]) {
			return h, payload, nil
		}
		if r.Strict {
			return Header{}, nil, ErrCorrupt
		}
		r.Skipped += HeaderSize + int64(len(payload))
		if r.MaxSkipped > 0 && r.Skipped > r.MaxSkipped {
			return Header{}, nil, ErrCorrupt
		}
	}
}

// skip drops bytes up to the next place where a header may begin.
func (r *Reader) skip() {
	b := r.buf[r.from:r.to]
	i := 1
	for i < len(b) && b[i] != 'R' {
		i++
	}
	r.from += i
	r.Skipped += int64(i)
}

// fill makes at least n bytes available in the buffer.
func (r *Reader) fill(n int) error {
	if r.to-r.from >= n {
		return nil
	}
	copy(r.buf[:], r.buf[r.from:r.to])
	r.to -= r.from
	r.from = 0
	for r.to < n {
		m, err := r.r.Read(r.buf[r.to:])
		r.to += m
		if err != nil && r.to < n {
			if r.to > 0 {
				err = unexpected(err)
			}
			return err
		}
	}
	return nil
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// parseHeader reports whether b begins with a header that may be valid.
func parseHeader(b []byte) (Header, bool) {
	if b[0] != 'R' || b[1] != 'F' || b[2] != Version {
		return Header{}, false
	}
	h := Header{
		Type:     Type(b[3]),
		Length:   binary.LittleEndian.Uint32(b[4:]),
		Channel:  binary.LittleEndian.Uint32(b[8:]),
		Position: binary.LittleEndian.Uint64(b[12:]),
	}
	return h, h.Length <= MaxPayload && h.Type.Valid()
}

// Valid reports whether t is one of the types.
func (t Type) Valid() bool {
	return t >= TypeHello && t <= TypePong || t >= TypeOpen && t <= TypeStderr
}

// Negotiate returns the highest version in both lists, 0 when there is none.
func Negotiate(ours, theirs []int) int {
	best := 0
	for _, v := range ours {
		for _, w := range theirs {
			if v == w && v > best {
				best = v
			}
		}
	}
	return best
}
