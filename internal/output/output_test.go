package output

import (
	"strings"
	"testing"
)

func TestTail(t *testing.T) {
	for _, limit := range []int{1, 3, 7, 64} {
		for _, pieces := range [][]string{{""}, {"abc"}, {"abcdef", "gh"}, {"a", "b", "c", "d", "e"}, {"ab", "cdefghij", "k"}} {
			tail, all := &Tail{Limit: limit}, strings.Join(pieces, "")
			for _, p := range pieces {
				tail.Add([]byte(p))
			}
			if want := all[max(0, len(all)-limit):]; string(tail.Bytes()) != want || tail.Cut != (len(all) > limit) {
				t.Errorf("%q with %d: %q %t, want %q", pieces, limit, tail.Bytes(), tail.Cut, want)
			}
		}
	}
	tail := &Tail{Limit: 4}
	tail.Add([]byte("é€")) // five bytes; the cut goes through the first character
	if got := string(tail.Bytes()); got != "€" {
		t.Errorf("a character that was cut: %q", got)
	}
}

func TestSplitCharacter(t *testing.T) {
	for text, want := range map[string]int{"": 0, "a": 0, "a\xc3": 1, "aé": 0, "\xe2\x82": 2, "€": 0, "\xf0\x9f\x98": 3, "\x80": 0, "a\xff": 0} {
		if got := SplitCharacter([]byte(text)); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}
