package egress

import "encoding/binary"

// What reading a message's beginning can come to.
type progress int

const (
	needMore progress = iota
	complete
	malformed
)

const (
	recordHandshake = 22
	recordHeader    = 5
	maxRecord       = 1<<14 + 256
	maxHello        = 48 << 10
	maxRecords      = 256 // that one hello is cut into
	helloType       = 1
	extServerName   = 0
)

// looksTLS reports whether b begins like a TLS record that holds a handshake.
func looksTLS(b []byte) progress {
	switch {
	case len(b) > 0 && b[0] != recordHandshake, len(b) > 1 && b[1] != 3:
		return malformed
	case len(b) < 2:
		return needMore
	}
	return complete
}

// serverName returns the name in the ClientHello that b begins with, "" when it
// announces none (RFC 8446 §4.1.2 and §5.1, RFC 6066 §3). The hello may be cut into
// records at any place. With needMore, want is how many bytes b has to have at least.
func serverName(b []byte) (name string, p progress, want int) {
	hello, p, want := handshake(b)
	if p != complete {
		return "", p, want
	}
	name, p = helloName(hello)
	return name, p, 0
}

func helloName(hello []byte) (string, progress) {
	r := reader{b: hello}
	r.skip(2 + 32)       // version, random
	r.skip(int(r.u8()))  // session
	r.skip(int(r.u16())) // cipher suites
	r.skip(int(r.u8()))  // compression
	if r.bad {
		return "", malformed
	}
	if len(r.b) == 0 { // no extensions
		return "", complete
	}
	ext := reader{b: r.take(int(r.u16()))}
	if r.bad || len(r.b) != 0 {
		return "", malformed
	}
	name, found := "", false
	for len(ext.b) > 0 {
		kind := ext.u16()
		body := ext.take(int(ext.u16()))
		if ext.bad {
			return "", malformed
		}
		if kind != extServerName {
			continue
		}
		if found { // whichever the server takes
			return "", malformed
		}
		found = true
		list := reader{b: body}
		names := reader{b: list.take(int(list.u16()))}
		if list.bad || len(list.b) != 0 || names.u8() != 0 {
			return "", malformed
		}
		host := names.take(int(names.u16()))
		if names.bad || len(names.b) != 0 || len(host) == 0 {
			return "", malformed
		}
		name = string(host)
	}
	return name, complete
}

// handshake returns the body of the ClientHello at the beginning of b.
func handshake(b []byte) (body []byte, p progress, want int) {
	var msg []byte
	rest := b
	for range maxRecords {
		if len(rest) < recordHeader {
			return nil, needMore, len(b) - len(rest) + recordHeader
		}
		size := int(binary.BigEndian.Uint16(rest[3:]))
		if rest[0] != recordHandshake || rest[1] != 3 || size == 0 || size > maxRecord {
			return nil, malformed, 0
		}
		rest = rest[recordHeader:]
		got := min(size, len(rest))
		msg = append(msg, rest[:got]...)
		if len(msg) >= 4 {
			length := int(msg[1])<<16 | int(msg[2])<<8 | int(msg[3])
			if msg[0] != helloType || length > maxHello {
				return nil, malformed, 0
			}
			if len(msg) >= 4+length {
				return msg[4 : 4+length], complete, 0
			}
		}
		if got < size {
			if len(msg) < 4 { // these say whether it is a hello at all
				return nil, needMore, len(b) + min(size-got, 4-len(msg))
			}
			return nil, needMore, len(b) + size - got
		}
		rest = rest[size:]
	}
	return nil, malformed, 0
}

// reader takes a message apart; bad says that it was too short.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) take(n int) []byte {
	if n > len(r.b) {
		r.bad, r.b = true, nil
		return nil
	}
	head := r.b[:n]
	r.b = r.b[n:]
	return head
}

func (r *reader) skip(n int) { r.take(n) }

func (r *reader) u8() byte {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) u16() uint16 {
	if b := r.take(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}
