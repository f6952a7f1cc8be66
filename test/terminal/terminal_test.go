package terminal

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/client"
	"ringfence.dev/ringfence/internal/testenv"
)

// world is a server with one sandbox.
type world struct {
	url, key, dir string
	box           *client.Sandbox
	server        *exec.Cmd
	log           bytes.Buffer // of all servers, one after the other
}

// serve starts a server.
func (w *world) serve(t *testing.T) {
	t.Helper()
	w.server = exec.Command(testenv.RequireBinary(t), "serve", "--listen", strings.TrimPrefix(w.url, "http://"),
		"--data-dir", w.dir, "--template-dir", testenv.TemplateDir())
	w.server.Env = []string{"PATH=" + os.Getenv("PATH"), "RINGFENCE_API_KEY=" + w.key}
	w.server.Stdout, w.server.Stderr = &w.log, &w.log
	if err := w.server.Start(); err != nil {
		t.Fatal(err)
	}
}

func newWorld(t *testing.T) *world {
	t.Helper()
	testenv.RequireRoot(t)
	testenv.RequireTemplate(t, "code-interpreter")
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{url: "http://" + free.Addr().String(), key: ringfence.NewAPIKey()}
	free.Close()
	w.dir = filepath.Join(t.TempDir(), "data")
	w.serve(t)
	t.Cleanup(func() {
		_ = w.server.Process.Signal(syscall.SIGTERM)
		_ = w.server.Wait()
		if t.Failed() {
			lines := strings.Split(w.log.String(), "\n")
			t.Logf("the server's log:\n%s", strings.Join(lines[max(0, len(lines)-30):], "\n"))
		}
	})
	c, err := client.New(client.Options{BaseURL: w.url, APIKey: w.key})
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if _, err := c.Health(t.Context()); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the server does not answer")
		}
	}
	if w.box, err = c.Create(t.Context(), client.CreateOptions{Template: "code-interpreter", Env: map[string]string{"PS1": `$? \w> `}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.box.Kill(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return w
}

// run runs a command in the sandbox, beside the terminal.
func (w *world) run(t *testing.T, command string) string {
	t.Helper()
	r, err := w.box.Run(t.Context(), client.Command{Shell: command})
	if err != nil {
		t.Fatal(err)
	}
	return string(r.Stdout) + string(r.Stderr)
}

// terminal is `ringfence` on a terminal, and whoever sits before it.
type terminal struct {
	t      *testing.T
	cmd    *exec.Cmd
	file   *os.File // the other end of the terminal
	before unix.Termios

	mu   sync.Mutex
	out  bytes.Buffer // what has come; guarded by mu
	mark int          // what was looked at; guarded by mu
	done chan struct{}
}

func (w *world) open(t *testing.T, args ...string) *terminal {
	t.Helper()
	file, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	x := &terminal{t: t, file: file, done: make(chan struct{})}
	x.size(80, 24)
	x.before = *x.modes()
	x.cmd = exec.Command(testenv.RequireBinary(t), args...)
	x.cmd.Stdin, x.cmd.Stdout, x.cmd.Stderr = tty, tty, tty
	x.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	x.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "TERM=xterm-256color", "RINGFENCE_URL=" + w.url, "RINGFENCE_API_KEY=" + w.key}
	if err := x.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(x.done)
		buf := make([]byte, 32<<10)
		for {
			n, err := file.Read(buf)
			x.mu.Lock()
			x.out.Write(buf[:n])
			x.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		if x.cmd.ProcessState == nil {
			_ = x.cmd.Process.Kill()
			_ = x.cmd.Wait()
		}
		file.Close()
		<-x.done
	})
	return x
}

func (x *terminal) size(cols, rows uint16) {
	x.t.Helper()
	if err := pty.Setsize(x.file, &pty.Winsize{Cols: cols, Rows: rows}); err != nil {
		x.t.Fatal(err)
	}
}

func (x *terminal) modes() *unix.Termios {
	x.t.Helper()
	modes, err := unix.IoctlGetTermios(int(x.file.Fd()), unix.TCGETS)
	if err != nil {
		x.t.Fatal(err)
	}
	return modes
}

func (x *terminal) keys(s string) {
	x.t.Helper()
	if _, err := x.file.WriteString(s); err != nil {
		x.t.Fatal(err)
	}
}

// see waits until what came since the last look matches, and returns the match.
func (x *terminal) see(pattern string) string {
	x.t.Helper()
	re := regexp.MustCompile(pattern)
	for end := time.Now().Add(time.Minute); ; time.Sleep(2 * time.Millisecond) {
		x.mu.Lock()
		fresh := x.out.Bytes()[x.mark:]
		at := re.FindIndex(fresh)
		if at != nil {
			found := string(fresh[at[0]:at[1]])
			x.mark += at[1]
			x.mu.Unlock()
			return found
		}
		text := string(fresh)
		x.mu.Unlock()
		if time.Now().After(end) {
			x.t.Fatalf("did not see %q in %q", pattern, text)
		}
	}
}

// saw reports whether something came since the last look.
func (x *terminal) saw(text string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return bytes.Contains(x.out.Bytes()[x.mark:], []byte(text))
}

// ends waits for the end of the program, and looks whether the terminal is as it was.
func (x *terminal) ends(code int) {
	x.t.Helper()
	ended := make(chan struct{})
	go func() {
		_ = x.cmd.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		_ = x.cmd.Process.Kill()
		<-ended
		x.t.Error("it does not end")
	}
	if got := x.cmd.ProcessState.ExitCode(); got != code {
		x.t.Errorf("exit code %d, want %d", got, code)
	}
	if after := *x.modes(); after != x.before {
		x.t.Errorf("the terminal was %+v and is %+v", x.before, after)
	}
}

const prompt = `\d+ \S+> `

// shell opens a shell and waits for its prompt.
func (w *world) shell(t *testing.T, args ...string) *terminal {
	t.Helper()
	x := w.open(t, append([]string{"shell", w.box.ID()}, args...)...)
	x.see(prompt)
	return x
}

func TestTerminal(t *testing.T) {
	w := newWorld(t)
	bash := []string{"--", "bash", "--norc", "--noprofile"}

	t.Run("login shell", func(t *testing.T) {
		x := w.open(t, "shell", w.box.ID())
		x.keys("echo me:$(id -un):$0:$(tty)\r")
		x.see(`me:\w+:-?\S*sh:/dev/\S+`)
		x.keys("exit 3\r")
		x.ends(3)
	})

	t.Run("keys and job control", func(t *testing.T) {
		x := w.shell(t, bash...)
		x.keys("ls --color=always -d /tmp\r")
		x.see(`\x1b\[[0-9;]*m/tmp\x1b\[`)
		x.see(prompt)
		// Ctrl-C ends the command, not the shell.
		x.keys("sleep 100\r")
		x.see("sleep 100\r\n")
		waitFor(t, func() bool { return w.run(t, "pgrep -cx sleep") == "1\n" })
		x.keys("\x03")
		x.see(`130 \S+> `)
		// Ctrl-Z stops it, fg goes on with it.
		x.keys("sleep 5 && echo slept-$((6*7))\r")
		waitFor(t, func() bool { return w.run(t, "pgrep -cx sleep") == "1\n" })
		x.keys("\x1a")
		x.see(`Stopped`)
		x.see(prompt)
		x.keys("jobs -l\r")
		x.see(`Stopped.*sleep 5`)
		x.see(prompt)
		x.keys("cat\r")
		x.see("cat\r\n")
		x.keys("typed\r")
		x.see("typed\r\ntyped\r\n")
		x.keys("\x1a")
		x.see("Stopped")
		x.see(prompt)
		x.keys("fg\r")
		x.see("cat\r\n")
		x.keys("again\r")
		x.see("again\r\nagain\r\n")
		// Ctrl-D is the end of cat's input, and then of the shell's.
		x.keys("\x04")
		x.see("0 " + `\S+> `)
		x.keys("kill %1; wait; echo gone\r")
		x.see(`gone\r\n`)
		x.see(prompt)
		x.keys("\x04")
		x.see("exit")
		x.ends(0)
	})

	t.Run("size", func(t *testing.T) {
		x := w.shell(t, bash...)
		x.keys("echo $(tput cols)x$(tput lines)\r")
		x.see("80x24")
		x.see(prompt)
		for _, size := range [][2]uint16{{132, 43}, {61, 17}} {
			x.size(size[0], size[1])
			want := strings.Replace("CxR", "C", itoa(size[0]), 1)
			want = strings.Replace(want, "R", itoa(size[1]), 1)
			// The signal takes its way beside the keys.
			waitFor(t, func() bool {
				x.keys("echo =$(tput cols)x$(tput lines)=\r")
				return strings.Contains(x.see(`=\d+x\d+=`), want)
			})
		}
		// A program in the foreground is told.
		x.keys("bash -c \"trap 'tput cols; exit' WINCH; echo ready; while :; do sleep 0.1; done\"\r")
		x.see("ready\r\n")
		x.size(99, 30)
		x.see("99\r\n")
		x.see(prompt)
		x.keys("exit\r")
		x.ends(0)
	})

	t.Run("vim", func(t *testing.T) {
		x := w.shell(t, append(bash[:2:2], "--norc", "--noprofile")...)
		x.keys("vim -u NONE /tmp/from-vim\r")
		x.see(`\x1b\[\?1049h`)
		x.see(`from-vim`)
		x.keys("ihéllo from vim\x1b:wq\r")
		x.see(`\x1b\[\?1049l`)
		x.see(prompt)
		x.keys("exit\r")
		x.ends(0)
		if got := w.run(t, "cat /tmp/from-vim"); got != "héllo from vim\n" {
			t.Errorf("the file holds %q", got)
		}
	})

	t.Run("top", func(t *testing.T) {
		x := w.open(t, "shell", w.box.ID(), "--", "top", "-d", "0.3")
		x.see(`PID[ ]+\x1b?[^\n]*USER`)
		x.see(`ringfence-gue|top`)
		x.see(`PID[ ]+\x1b?[^\n]*USER|\x1b\[H`) // it draws again
		x.keys("q")
		x.ends(0)
	})

	t.Run("tmux", func(t *testing.T) {
		x := w.open(t, "shell", w.box.ID(), "--", "tmux", "-f", "/dev/null", "-L", "t", "new", "-s", "s", "bash --norc --noprofile")
		x.see(`bash\S*# `)
		x.keys("\x02\"") // prefix, split
		waitFor(t, func() bool { return strings.Count(w.run(t, "tmux -L t list-panes -t s"), "\n") == 2 })
		x.see(`bash\S*# `)
		x.keys("echo pane-$((40+2))\r")
		x.see("pane-42")
		x.size(100, 30)
		waitFor(t, func() bool {
			return strings.HasPrefix(w.run(t, "tmux -L t display -p -t s '#{window_width}x#{window_height}'"), "100x")
		})
		x.keys("\x02d") // prefix, detach
		x.see("detached")
		x.ends(0)
		w.run(t, "tmux -L t kill-server")
	})

	t.Run("detach and attach", func(t *testing.T) {
		x := w.shell(t, append([]string{"--tag", "kept"}, bash...)...)
		x.keys("printf '\\033[?1049h'; kept=42\r")
		x.see(`\x1b\[\?1049h`)
		x.see(prompt)
		x.keys("\x1d")
		x.see(`\x1b\[\?1049l`) // the screen is put back
		x.see("running")
		x.ends(0)
		x = w.open(t, "attach", w.box.ID(), "tag:kept")
		x.keys("\recho kept-$kept; exit 7\r")
		x.see("kept-42")
		x.ends(7)
	})

	t.Run("the server is killed and started again", func(t *testing.T) {
		x := w.shell(t, bash...)
		x.keys("kept=42\r")
		x.see(prompt)
		_ = w.server.Process.Kill()
		_ = w.server.Wait()
		w.serve(t)
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("on the screen: %q", x.out.String())
			}
		})
		// Keys that are typed in between are lost, as on any broken line.
		waitFor(t, func() bool { _, err := w.box.Processes(t.Context(), client.ProcessFilter{}); return err == nil })
		waitFor(t, func() bool {
			x.keys("\recho kept-$kept\r")
			time.Sleep(300 * time.Millisecond)
			return x.saw("kept-42")
		})
		x.keys("exit 6\r")
		x.ends(6)
	})

	t.Run("the sandbox's process is killed", func(t *testing.T) {
		x := w.shell(t, append([]string{"--tag", "victim"}, bash...)...)
		if err := w.box.Process("tag:victim").Signal(t.Context(), "KILL", true); err != nil {
			t.Fatal(err)
		}
		x.ends(137)
	})

	t.Run("the local program is told to end", func(t *testing.T) {
		x := w.shell(t, append([]string{"--tag", "closed"}, bash...)...)
		if err := x.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		x.ends(128 + int(syscall.SIGTERM))
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
		defer cancel()
		info, err := w.box.Process("tag:closed").Wait(ctx)
		if err != nil || info.End == nil || info.End.Signal != int(syscall.SIGHUP) {
			t.Errorf("the shell goes on without its terminal: %+v %v", info.End, err)
		}
	})
}

// waitFor waits for a condition.
func waitFor(t *testing.T, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("waited in vain")
		}
	}
}

func itoa(n uint16) string {
	var b []byte
	for ; n > 0 || len(b) == 0; n /= 10 {
		b = append([]byte{byte('0' + n%10)}, b...)
	}
	return string(b)
}
