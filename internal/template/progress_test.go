package template

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestProgressOnAPipe(t *testing.T) {
	var out bytes.Buffer
	p := newProgress(&out)
	p.every = 20 * time.Millisecond
	err := p.step(1, 2, "first", func(line func(string)) error {
		line("working")
		time.Sleep(70 * time.Millisecond)
		return nil
	})
	failed := errors.New("no")
	if err2 := p.step(2, 2, "second", func(func(string)) error { return failed }); err != nil || !errors.Is(err2, failed) {
		t.Errorf("got %v and %v", err, err2)
	}
	p.say("the end")
	got := out.String()
	for _, want := range []string{"[1/2] first\n", "[1/2] first  0 s  working\n", "[1/2] first: done in 0.", "[2/2] second: FAILED after 0.", "\nthe end\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in:\n%s", want, got)
		}
	}
	if strings.ContainsAny(got, "\r\x1b") {
		t.Errorf("control bytes outside of a terminal: %q", got)
	}
}

func TestProgressOnATerminal(t *testing.T) {
	var out bytes.Buffer
	p := newProgress(&out)
	p.tty, p.width, p.every = true, 30, 10*time.Millisecond
	p.step(1, 1, "long", func(line func(string)) error {
		line(strings.Repeat("é", 100))
		time.Sleep(50 * time.Millisecond)
		return nil
	})
	parts := strings.Split(out.String(), "\r\x1b[K")
	for _, s := range parts[:len(parts)-1] {
		if n := len([]rune(s)); n > 29 {
			t.Errorf("%d columns on a terminal of 30: %q", n, s)
		}
	}
	if last := parts[len(parts)-1]; !strings.HasPrefix(last, "[1/1] long: done in ") || !strings.HasSuffix(last, " s\n") {
		t.Errorf("the last line is %q", last)
	}
}

func TestOutputIsCleaned(t *testing.T) {
	var got []string
	w := &lineWriter{line: func(s string) { got = append(got, s) }}
	w.Write([]byte("one\ntw"))
	w.Write([]byte("o\r\x1b[31mred\x1b[0m\x07\n\x1b]0;title\x07after\n\xff\u202etrick\n\n" + strings.Repeat("x", 10000) + "\nend"))
	w.flush()
	want := []string{"one", "two", "red", "after", "?trick", strings.Repeat("x", 4096), "end"}
	if strings.Join(got, "|") != strings.Join(want, "|") {
		t.Errorf("got %q", got)
	}
	for range 100 {
		w.Write([]byte("more\n"))
	}
	if n := strings.Count(w.tail(), "\n"); n != tailLines-1 {
		t.Errorf("the tail has %d lines", n+1)
	}
}
