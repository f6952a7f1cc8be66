package guest_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/guestlink"
	"ringfence.dev/ringfence/internal/guestproto"
)

// screen gathers what a terminal says, for tests that wait for something on it.
type screen struct {
	mu   sync.Mutex
	text strings.Builder
	seen int // what was waited for ends here
	more chan struct{}
}

func newScreen() *screen { return &screen{more: make(chan struct{}, 1)} }

func (s *screen) output(c guestlink.Chunk) error {
	s.mu.Lock()
	s.text.Write(c.Data)
	s.mu.Unlock()
	select {
	case s.more <- struct{}{}:
	default:
	}
	return nil
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// wait waits until the terminal has said something since the last wait for it.
func (s *screen) wait(t *testing.T, want string) {
	t.Helper()
	deadline := time.After(time.Minute)
	for {
		text := s.String()
		if i := strings.Index(text[s.seen:], want); i >= 0 {
			s.seen += i + len(want)
			return
		}
		select {
		case <-s.more:
		case <-deadline:
			t.Fatalf("the terminal never said %q but %q", want, text[s.seen:])
		}
	}
}

func (b *bed) terminal(t *testing.T, ps guestproto.ProcessStart) (*guestlink.Process, *screen) {
	t.Helper()
	if ps.PTY == nil {
		ps.PTY = &guestproto.Terminal{Cols: 90, Rows: 30}
	}
	s := newScreen()
	return b.start(t, ps, s.output), s
}

func (b *bed) typeIn(t *testing.T, p *guestlink.Process, keys string) {
	t.Helper()
	if _, err := p.WriteStdin(testContext(t), []byte(keys)); err != nil {
		t.Fatal(err)
	}
}

// A command on a terminal has one in every way that programs look for.
func TestTerminal(t *testing.T) {
	eachBed(t, func(t *testing.T, b *bed) {
		p, s := b.terminal(t, guestproto.ProcessStart{
			Shell: `test -t 0 && test -t 1 && test -t 2 && echo all three; tty; stty size; echo "$TERM"; echo to the terminal >/dev/tty; ps -o sid= -p $$ | grep -qw $$ && echo leads; exit 3`,
		})
		exit, err := p.Wait(testContext(t))
		if err != nil || exit.ExitCode != 3 {
			t.Errorf("got %+v, %v", exit, err)
		}
		for _, want := range []string{"all three\r\n/dev/pts/", "\r\n30 90\r\n", "\r\nxterm-256color\r\n", "to the terminal\r\n", "leads\r\n"} {
			if !strings.Contains(s.String(), want) {
				t.Errorf("%q is not in %q", want, s)
			}
		}
		if !p.Info().PTY {
			t.Errorf("got %+v", p.Info())
		}
		p, s = b.terminal(t, guestproto.ProcessStart{Args: []string{"sh", "-c", "echo $TERM"}, PTY: &guestproto.Terminal{Cols: 1, Rows: 1, Term: "dumb"}})
		if exit, err := p.Wait(testContext(t)); err != nil || exit.ExitCode != 0 || s.String() != "dumb\r\n" {
			t.Errorf("got %q, %+v, %v", s, exit, err)
		}
		p, s = b.terminal(t, guestproto.ProcessStart{Args: []string{"/no/such/program"}})
		if exit, err := p.Wait(testContext(t)); err != nil || exit.ExitCode != 127 || !strings.Contains(s.String(), "not found") {
			t.Errorf("got %q, %+v, %v", s, exit, err)
		}
	})
}

// Somebody works at a shell: Ctrl-C, Ctrl-Z, fg, a resize, Ctrl-D.
func TestTerminalIsWorkedAt(t *testing.T) {
	eachBed(t, func(t *testing.T, b *bed) {
		p, s := b.terminal(t, guestproto.ProcessStart{ID: "shell", Args: []string{"bash", "--norc", "--noprofile", "-i"}, Env: map[string]string{"PS1": "ready> "}})
		s.wait(t, "ready> ")
		b.typeIn(t, p, "cat\rechoed")
		s.wait(t, "echoed") // by the terminal itself
		b.typeIn(t, p, "\x03")
		s.wait(t, "ready> ")
		b.typeIn(t, p, "echo status $?\r")
		s.wait(t, "status 130\r\n")
		b.typeIn(t, p, `bash -c 'trap "echo on $((2+2))" CONT; echo up $((1+1)); while :; do sleep 0.05; done'`+"\r")
		s.wait(t, "up 2\r\n")
		b.typeIn(t, p, "\x1a")
		s.wait(t, "Stopped")
		s.wait(t, "ready> ")
		b.typeIn(t, p, "fg\r")
		s.wait(t, "on 4\r\n")
		b.typeIn(t, p, "\x03")
		s.wait(t, "ready> ")
		b.typeIn(t, p, "echo interrupted $?\r")
		s.wait(t, "interrupted 130\r\n")
		b.typeIn(t, p, "trap 'echo told of $(tput cols)x$(tput lines)' WINCH; echo armed $((1+1))\r")
		s.wait(t, "armed 2\r\n")
		if err := b.conn.Resize(testContext(t), guestproto.ProcessResize{ID: "shell", Cols: 123, Rows: 45}); err != nil {
			t.Fatal(err)
		}
		b.typeIn(t, p, "\r")
		s.wait(t, "told of 123x45\r\n")
		b.typeIn(t, p, "echo $(tput cols) cols\r")
		s.wait(t, "123 cols\r\n")
		s.wait(t, "ready> ") // the end of the input is a key; while a command runs it is that command's
		b.typeIn(t, p, "\x04")
		exit, err := p.Wait(testContext(t))
		if err != nil || exit.ExitCode != 0 && exit.ExitCode != 130 {
			t.Errorf("got %+v, %v, %q", exit, err, s)
		}
		wantCode(t, b.conn.Resize(testContext(t), guestproto.ProcessResize{ID: "shell", Cols: 1, Rows: 1}), ringfence.CodeProcessEnded, "")
	})
}

// Without a command it is the user's login shell, which the end of the input ends; the
// terminal is the user's, and commands can make terminals of their own.
func TestLoginShell(t *testing.T) {
	b := gvisorBed(t, ringfence.Size{VCPU: 2, MemoryMiB: 512, DiskMiB: 1024})
	p, s := b.terminal(t, guestproto.ProcessStart{ID: "login", User: "user"})
	b.typeIn(t, p, "echo I am $(id -un) of $0 in $(stat -c %U $(tty))\r")
	s.wait(t, "I am user of -bash in user\r\n")
	b.typeIn(t, p, `python3 -c 'import pty, os; pty.spawn(["sh", "-c", "tty; stty size"])' 2>&1 || script -qc tty /dev/null`+"\r")
	s.wait(t, "/dev/pts/1\r\n")
	s.wait(t, "$ ") // what is typed before may be thrown away
	if n, err := b.conn.WriteInput(testContext(t), guestproto.ProcessInput{ID: "login"}, strings.NewReader("echo last words\r")); err != nil || n != 16 {
		t.Errorf("got %d, %v", n, err)
	}
	// The end of the input is a key. While a command runs it would be another's.
	s.wait(t, "\rlast words\r\n")
	s.wait(t, "$ ")
	if n, err := b.conn.WriteInput(testContext(t), guestproto.ProcessInput{ID: "login", Close: true}, strings.NewReader("")); err != nil || n != 0 {
		t.Errorf("got %d, %v", n, err)
	}
	if exit, err := p.Wait(testContext(t)); err != nil || exit.ExitCode != 0 {
		t.Errorf("got %+v, %v", exit, err)
	}
	if !strings.Contains(s.String(), "last words\r\n") {
		t.Errorf("got %q", s)
	}
}

// What a terminal's session leaves behind does not keep it from ending.
func TestTerminalEndsWithItsShell(t *testing.T) {
	eachBed(t, func(t *testing.T, b *bed) {
		begin := time.Now()
		p, s := b.terminal(t, guestproto.ProcessStart{ID: "left", Shell: "trap '' HUP; (sleep 5; echo late) & echo out; exit 7"})
		exit, err := p.Wait(testContext(t))
		if err != nil || exit.ExitCode != 7 || !strings.Contains(s.String(), "out\r\n") {
			t.Errorf("got %q, %+v, %v", s, exit, err)
		}
		if took := time.Since(begin); took > 3*time.Second {
			t.Errorf("it took %v", took)
		}
		_, err = b.conn.WriteInput(testContext(t), guestproto.ProcessInput{ID: "left"}, strings.NewReader("x"))
		wantCode(t, err, ringfence.CodeProcessEnded, "")
	})
}
