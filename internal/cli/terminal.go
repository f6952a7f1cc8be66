package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/client"
)

func (a *App) shellCommand() *cobra.Command {
	var user, dir, tag string
	var env []string
	c := &cobra.Command{
		Use:   "shell ID [flags] [-- PROGRAM [ARG…]]",
		Short: "Work in a sandbox with this terminal",
		Long: "Open a terminal in a sandbox and connect it with this one: the user's login shell, or PROGRAM. All\n" +
			"keys go there, Ctrl-C, Ctrl-D and Ctrl-Z too, but Ctrl-], which lets go of the program and leaves it\n" +
			"running; `ringfence attach` goes back to it. When the connection breaks it is opened again.\n\n" +
			"The program can do with this terminal what any program can: draw, change colours, set the title.",
		Example:           "  ringfence shell $id\n  ringfence shell $id -u root -- vim /etc/hosts",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.completeIDs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			vars, err := pairs("env", env, os.LookupEnv)
			if err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			o := client.ProcessOptions{Args: args[1:], WorkDir: dir, User: user, Env: vars, Tag: tag}
			return a.onTerminal(cmd.Context(), c.Open(args[0]), o)
		},
	}
	flags := c.Flags()
	flags.StringVarP(&dir, "cwd", "w", "", "working directory (default: the sandbox's)")
	flags.StringVarP(&user, "user", "u", "", "who it is (default: the sandbox's user)")
	flags.StringArrayVarP(&env, "env", "e", nil, "KEY=VALUE; KEY alone takes the value from here")
	flags.StringVar(&tag, "tag", "", "a name for it, by which attach finds it as tag:NAME")
	return c
}

// onTerminal starts a process on a terminal and connects it with the local one.
func (a *App) onTerminal(ctx context.Context, s *client.Sandbox, o client.ProcessOptions) error {
	t, err := a.terminal()
	if err != nil {
		return err
	}
	o.Terminal = t.size()
	session, err := lasting(ctx, func(ctx context.Context) (*client.Session, error) {
		return s.StartSession(ctx, o, client.SessionOptions{})
	})
	if err != nil {
		return err
	}
	return a.converse(ctx, session, t)
}

// lasting opens a session that the end of ctx does not end, once it is there: there may
// be something to say yet.
func lasting(ctx context.Context, open func(context.Context) (*client.Session, error)) (*client.Session, error) {
	life, end := context.WithCancelCause(context.WithoutCancel(ctx))
	unhook := context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })
	s, err := open(life)
	if !unhook() && err == nil {
		s.Close()
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		end(err)
	}
	return s, err
}

// localTerminal is the terminal that this program runs on.
type localTerminal struct {
	in, out *os.File
	modes   modes
}

// terminal returns the local terminal; there has to be one.
func (a *App) terminal() (*localTerminal, error) {
	in, ok := a.in.(*os.File)
	out, ok2 := a.out.(*os.File)
	if !ok || !ok2 || !term.IsTerminal(int(in.Fd())) || !term.IsTerminal(int(out.Fd())) {
		return nil, usage("stdin and stdout are not both a terminal").WithHint("`ringfence exec` runs a command without one")
	}
	return &localTerminal{in: in, out: out}, nil
}

// knownTerms are the kinds of terminal that a minimal system knows.
var knownTerms = regexp.MustCompile(`^(xterm|screen|tmux|rxvt|linux|ansi|vt100|vt102|vt220)(-256color|-color|-unicode|-unicode-256color)?$`)

func (t *localTerminal) size() *client.TerminalSize {
	size := &client.TerminalSize{}
	if cols, rows, err := term.GetSize(int(t.out.Fd())); err == nil {
		size.Cols, size.Rows = min(cols, ringfence.MaxTerminalSize), min(rows, ringfence.MaxTerminalSize)
	}
	if name := os.Getenv("TERM"); knownTerms.MatchString(name) {
		size.Term = name
	}
	return size
}

const detachKey = 0x1d // Ctrl-]

var errDetach = errors.New("detach")

// converse connects the terminal with a process until that ends, the user detaches, or
// ctx ends. It puts the terminal back as it was in every case.
func (a *App) converse(ctx context.Context, session *client.Session, t *localTerminal) error {
	old, err := term.MakeRaw(int(t.in.Fd()))
	if err != nil {
		session.Close()
		return fmt.Errorf("cannot make the terminal raw: %w", err)
	}
	restore := sync.OnceFunc(func() {
		_, _ = t.out.Write(t.modes.reset())
		_ = term.Restore(int(t.in.Fd()), old)
	})
	defer a.atExit(restore)()
	defer restore()

	// What may change while the connection is opened again.
	var mu sync.Mutex
	current := session
	now := func() *client.Session {
		mu.Lock()
		defer mu.Unlock()
		return current
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() { // left behind: a read of a terminal cannot be called off
		buf := make([]byte, 32<<10)
		for {
			n, err := t.in.Read(buf)
			keys := buf[:n]
			at := bytes.IndexByte(keys, detachKey)
			if at >= 0 {
				keys = keys[:at]
			}
			if len(keys) > 0 {
				_, _ = now().Write(keys) // Copy says what is wrong
			}
			switch {
			case at >= 0:
				stop(errDetach)
				return
			case err != nil:
				_ = now().CloseStdin()
				return
			}
		}
	}()
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGWINCH, syscall.SIGCONT)
	defer signal.Stop(signals)
	go func() {
		for {
			select {
			case s := <-signals:
				if s == syscall.SIGCONT { // whoever stopped us has changed it
					_, _ = term.MakeRaw(int(t.in.Fd()))
				}
				size := t.size()
				_ = now().Resize(size.Cols, size.Rows)
			case <-ctx.Done():
				return
			}
		}
	}()
	screen := io.MultiWriter(t.out, &t.modes)
	for {
		s := now()
		gone := make(chan struct{})
		unhook := context.AfterFunc(ctx, func() {
			defer close(gone)
			a.letGo(ctx, s)
		})
		result, err := s.Copy(screen, screen)
		ended := !unhook()
		if ended {
			<-gone
		}
		if err == nil {
			s.Close()
			restore()
			return a.ended(result)
		}
		switch {
		case errors.Is(context.Cause(ctx), errDetach):
			restore()
			id := s.Process().ID()
			a.note("\nringfence: left %s running; `ringfence attach SANDBOX %s` goes back to it", Escape(id), Escape(id))
			return nil
		case ended || ctx.Err() != nil:
			restore()
			return context.Cause(ctx)
		case ringfence.CodeOf(err) != ringfence.CodeUnavailable:
			restore()
			return err
		}
		s.Close()
		again, jerr := rejoin(ctx, s.Process(), result.Position)
		if jerr != nil {
			restore()
			return errors.Join(err, jerr)
		}
		mu.Lock()
		current = again
		mu.Unlock()
	}
}

// letGo ends a session: the user detached, or this program is to end, as when its
// terminal is closed; then the program there is told the same.
func (a *App) letGo(ctx context.Context, s *client.Session) {
	if !errors.Is(context.Cause(ctx), errDetach) {
		_ = s.Signal("SIGHUP", true) // the end of the session follows in any case
	}
	_ = s.Detach()
}

// attach opens a session with a process.
func attach(ctx context.Context, p *client.Process, from uint64) (*client.Session, error) {
	return lasting(ctx, func(ctx context.Context) (*client.Session, error) { return p.Attach(ctx, from) })
}

// rejoin opens a session again after its connection broke.
func rejoin(ctx context.Context, p *client.Process, from uint64) (*client.Session, error) {
	const patience = time.Minute
	end := time.Now().Add(patience)
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		s, err := attach(ctx, p, from)
		if err == nil || ringfence.CodeOf(err) != ringfence.CodeUnavailable || time.Now().After(end) {
			return s, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// ended returns a process's exit code as an error, and says what is not in it.
func (a *App) ended(r *client.Result) error {
	switch r.Reason {
	case client.ReasonDeadline:
		a.note("ringfence: the command's deadline passed; it was killed")
	case client.ReasonOOM:
		a.note("ringfence: the command ran out of memory; it was killed")
	}
	if r.Lost > 0 {
		a.note("ringfence: %d bytes of output are missing", r.Lost)
	}
	if r.ExitCode != 0 {
		return exitStatus(r.ExitCode)
	}
	return nil
}

// modes remembers which modes of the terminal a program has set, to take them back
// when it cannot any more. It reads "ESC [ ? numbers h" and "… l".
type modes struct {
	state   int // bytes of the introducer that were seen
	numbers []byte
	set     map[string]bool
}

const introducer = "\x1b[?"

// undoable modes: the cursor's keys, the cursor, mouse reports, focus, paste, and the other screen.
var undoable = []string{"1", "25", "1000", "1002", "1003", "1004", "1005", "1006", "1015", "2004", "47", "1047", "1049"}

// Write implements io.Writer.
func (m *modes) Write(p []byte) (int, error) {
	for _, b := range p {
		switch {
		case m.state < len(introducer):
			if b == introducer[m.state] {
				m.state++
			} else if m.state = 0; b == introducer[0] {
				m.state = 1
			}
			m.numbers = m.numbers[:0]
		case (b >= '0' && b <= '9' || b == ';') && len(m.numbers) < 64:
			m.numbers = append(m.numbers, b)
		default:
			m.state = 0
			if b == 'h' || b == 'l' {
				if m.set == nil {
					m.set = map[string]bool{}
				}
				for number := range bytes.SplitSeq(m.numbers, []byte(";")) {
					if slices.Contains(undoable, string(number)) {
						m.set[string(number)] = b == 'h'
					}
				}
			}
		}
	}
	return len(p), nil
}

// reset returns what brings the terminal back. The cursor is on and all else off.
func (m *modes) reset() []byte {
	var out []byte
	for _, number := range undoable {
		on, known := m.set[number]
		switch {
		case number == "25" && known && !on:
			out = append(out, introducer+"25h"...)
		case number != "25" && on:
			out = append(out, introducer+number+"l"...)
		}
	}
	if len(out) > 0 {
		out = append(out, "\x1b[0m"...)
	}
	return out
}
