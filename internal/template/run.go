package template

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
)

// toolPath is where the host's tools are looked for. It is not the caller's PATH,
// which may name directories that others can write. Only a test changes it.
var toolPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// StepError says that a program of the build failed.
type StepError struct {
	Step   string // its title
	Status int    // exit status; -1 when a signal ended it
	Tail   string // the end of its output, without control bytes
	Err    error
}

// Error leaves Tail out: it has many lines, and Build has told them to its Progress.
func (e *StepError) Error() string { return fmt.Sprintf("step %q failed: %v", e.Step, e.Err) }

func (e *StepError) Unwrap() error { return e.Err }

// tailLines is how much of a failed step's output is shown.
const tailLines = 30

// run runs j to its end and hands each line of its output to line.
func (j jail) run(ctx context.Context, title string, line func(string)) error {
	out := &lineWriter{line: line}
	cmd, err := j.command()
	if err != nil {
		return err
	}
	defer cmd.ExtraFiles[0].Close()
	cmd.Stdout, cmd.Stderr = out, out

	done := make(chan error, 1)
	started := make(chan error, 1)
	go func() {
		// The process dies with this thread (Pdeathsig), so the thread has to last as
		// long, and ends with the goroutine as it is never unlocked.
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			done <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		if errors.Is(err, syscall.EPERM) {
			err = fmt.Errorf("%w (a build needs root with the capability to make namespaces)", err)
		}
		return &StepError{Step: title, Status: -1, Err: err}
	}
	select {
	case err = <-done:
	case <-ctx.Done():
		cmd.Process.Kill() // the first process of its pid namespace takes the others along
		<-done
		return context.Cause(ctx)
	}
	out.flush()
	if err == nil {
		return nil
	}
	status := -1
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		status = exit.ExitCode()
	}
	return &StepError{Step: title, Status: status, Tail: out.tail(), Err: err}
}

// lineWriter cuts output into lines, cleans them, hands them on and keeps the last.
type lineWriter struct {
	line func(string)

	mu   sync.Mutex
	part []byte
	last []string
}

func (w *lineWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, b := range p {
		switch {
		case b == '\n' || b == '\r':
			w.emitLocked()
		case len(w.part) < 4096:
			w.part = append(w.part, b)
		}
	}
	return len(p), nil
}

func (w *lineWriter) emitLocked() {
	s := clean(string(w.part))
	w.part = w.part[:0]
	if s == "" {
		return
	}
	if len(w.last) >= tailLines {
		w.last = w.last[1:]
	}
	w.last = append(w.last, s)
	w.line(s)
}

func (w *lineWriter) flush() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.emitLocked()
}

func (w *lineWriter) tail() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.last, "\n")
}

// escapes are a terminal's control sequences.
var escapes = regexp.MustCompile(`\x1b(\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?)`)

// clean takes out what could steer a terminal: what a step prints may come from
// the packages that it installs.
func clean(s string) string {
	s = escapes.ReplaceAllString(strings.ToValidUTF8(s, "?"), "")
	return strings.TrimRight(strings.Map(func(r rune) rune {
		switch {
		case r == '\t':
			return ' '
		case r < 0x20, r >= 0x7f && r < 0xa0, r == 0x2028, r == 0x2029, r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069:
			return -1
		}
		return r
	}, s), " ")
}

// needTools reports which of the host's programs are missing.
func needTools(names ...string) (missing []string) {
	for _, name := range names {
		if _, err := lookPath(name, []string{"PATH=" + toolPath}); err != nil {
			missing = append(missing, name)
		}
	}
	return missing
}
