package template

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/term"
)

// progress tells how a build goes. On a terminal the last line is redrawn while a
// step runs; elsewhere each step is a line when it starts and one when it ends.
type progress struct {
	w     io.Writer
	tty   bool
	width int
	every time.Duration // between signs of life of a running step

	mu    sync.Mutex
	label string // of the running step; empty: none
	since time.Time
	last  string // its last line of output
	stop  chan struct{}
	ended chan struct{}
}

func newProgress(w io.Writer) *progress {
	p := &progress{w: w, width: 120, every: 10 * time.Second}
	if w == nil {
		p.w = io.Discard
	}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.tty, p.every = true, 200*time.Millisecond
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 20 {
			p.width = width
		}
	}
	return p
}

// say prints a line of its own.
func (p *progress) say(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.eraseLocked()
	fmt.Fprintf(p.w, format+"\n", args...)
}

// step runs f as step i of n and shows how it goes and how it ended.
func (p *progress) step(i, n int, title string, f func(line func(string)) error) error {
	p.begin(fmt.Sprintf("[%d/%d] %s", i, n, title))
	err := f(p.line)
	p.end(err)
	return err
}

func (p *progress) line(s string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = s
}

func (p *progress) begin(label string) {
	p.mu.Lock()
	p.label, p.since, p.last = label, time.Now(), ""
	p.stop, p.ended = make(chan struct{}), make(chan struct{})
	if !p.tty {
		fmt.Fprintf(p.w, "%s\n", label)
	}
	p.mu.Unlock()
	go func(stop, ended chan struct{}) {
		defer close(ended)
		tick := time.NewTicker(p.every)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				p.draw()
			}
		}
	}(p.stop, p.ended)
}

func (p *progress) end(err error) {
	close(p.stop)
	<-p.ended
	p.mu.Lock()
	defer p.mu.Unlock()
	p.eraseLocked()
	how := "done in"
	if err != nil {
		how = "FAILED after"
	}
	fmt.Fprintf(p.w, "%s: %s %.1f s\n", p.label, how, time.Since(p.since).Seconds())
	var failed *StepError
	if errors.As(err, &failed) && failed.Tail != "" {
		fmt.Fprintf(p.w, "    | %s\n", strings.ReplaceAll(failed.Tail, "\n", "\n    | "))
	}
	p.label = ""
}

func (p *progress) draw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := fmt.Sprintf("%s  %.0f s  %s", p.label, time.Since(p.since).Seconds(), p.last)
	for utf8.RuneCountInString(s) > p.width-1 {
		_, size := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-size]
	}
	if p.tty {
		fmt.Fprintf(p.w, "\r\x1b[K%s", s)
	} else {
		fmt.Fprintf(p.w, "%s\n", s)
	}
}

func (p *progress) eraseLocked() {
	if p.tty && p.label != "" {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
