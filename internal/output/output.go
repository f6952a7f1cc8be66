// Package output holds what a command says until it can be sent: the ends of it, and the
// beginnings of characters.
package output

import "unicode/utf8"

// Tail keeps the last Limit bytes of what it is given. The memory grows with the
// output, up to the limit.
type Tail struct {
	Limit int
	Cut   bool // bytes were dropped
	buf   []byte
	start int // of the oldest byte, once buf is full
}

// Add takes more bytes.
func (t *Tail) Add(data []byte) {
	if len(data) > t.Limit {
		data, t.Cut = data[len(data)-t.Limit:], true
	}
	if room := t.Limit - len(t.buf); room > 0 {
		n := min(room, len(data))
		t.buf, data = append(t.buf, data[:n]...), data[n:]
	}
	for len(data) > 0 {
		t.Cut = true
		n := copy(t.buf[t.start:], data)
		data = data[n:]
		t.start = (t.start + n) % t.Limit
	}
}

// Bytes returns what was kept. A character that the cut split is dropped whole, so
// that text stays text.
func (t *Tail) Bytes() []byte {
	b := t.buf
	if t.start > 0 {
		b = append(append(make([]byte, 0, len(t.buf)), t.buf[t.start:]...), t.buf[:t.start]...)
	}
	if t.Cut {
		for i := 0; i < utf8.UTFMax-1 && len(b) > 0 && !utf8.RuneStart(b[0]); i++ {
			b = b[1:]
		}
	}
	return b
}

// SplitCharacter returns how many bytes at the end are the beginning of a character
// of UTF-8 whose rest may come.
func SplitCharacter(b []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(b); n++ {
		tail := b[len(b)-n:]
		if utf8.RuneStart(tail[0]) {
			if !utf8.FullRune(tail) {
				return n
			}
			return 0
		}
	}
	return 0
}
