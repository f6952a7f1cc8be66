package superserve

import (
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/dialect"
)

const (
	// bufferedTimeout is what a command may take unless its caller says otherwise. The SDKs
	// give up after 30 s, and are to see what became of it.
	bufferedTimeout = 29 * time.Second
	streamTimeout   = 30 * time.Second
	// maxResult is the size of a buffered answer: the TypeScript SDK takes no larger one.
	maxResult  = 10<<20 - 4096
	exitKilled = 137
)

type execBody struct {
	Command string            `json:"command"`
	Args    []string          `json:"args"`
	Env     map[string]string `json:"env"`
	WorkDir string            `json:"working_dir"`
	Timeout *float64          `json:"timeout_s"`
}

// spec is the process that is asked for.
func (b *execBody) spec(def time.Duration) (ringfence.ProcessSpec, error) {
	s := ringfence.ProcessSpec{Command: ringfence.Command{Shell: b.Command, WorkDir: b.WorkDir, Env: b.Env, Timeout: def}}
	if b.Command == "" {
		return s, invalid("command", "command is empty")
	}
	if len(b.Args) > 0 {
		s.Shell, s.Args = "", append([]string{b.Command}, b.Args...)
	}
	if b.Timeout != nil && *b.Timeout != 0 {
		n := *b.Timeout
		if !(n > 0) || n > ringfence.MaxTimeoutSeconds {
			return s, invalid("timeout_s", "timeout_s has to be from 1 to %d", ringfence.MaxTimeoutSeconds)
		}
		s.Timeout = time.Duration(math.Ceil(n * float64(time.Second)))
	}
	return s, nil
}

// killed says of an error that the sandbox has ended, and the command with it.
func killed(err error) bool {
	code := ringfence.CodeOf(err)
	return code == ringfence.CodeSandboxEnded || code == ringfence.CodeNotFound
}

type resultBody struct {
	Stdout    string `json:"stdout"`
	Stderr    string `json:"stderr"`
	ExitCode  int    `json:"exit_code"`
	Truncated bool   `json:"truncated"`
}

// exec runs a command and answers with all that it said. For the first minutes it can
// still be refused; from then on the answer has begun, and is kept alive with spaces, which
// JSON may begin with.
func (c *call) exec() error {
	var in execBody
	if err := dialect.Decode(c.w, c.r, c.MaxBody, &in); err != nil {
		return err
	}
	spec, err := in.spec(bufferedTimeout)
	if err != nil {
		return err
	}
	var (
		out    heads
		mu     sync.Mutex
		begun  bool
		stop   = make(chan struct{})
		padder sync.WaitGroup
	)
	flush := http.NewResponseController(c.w)
	padder.Go(func() {
		timer := time.NewTimer(c.HoldHeaders)
		defer timer.Stop()
		for {
			select {
			case <-stop:
				return
			case <-timer.C:
			}
			mu.Lock()
			if !begun {
				c.w.Header().Set("Content-Type", "application/json")
				c.w.WriteHeader(http.StatusOK)
			}
			begun = true
			_, err := c.w.Write([]byte(" "))
			if err = errors.Join(err, flush.Flush()); err != nil {
				c.Log.Debug("cannot keep an answer alive", "error", err) // the end of the command sees it too
			}
			mu.Unlock()
			timer.Reset(c.KeepAlive)
		}
	})
	exit, err := c.Engine.RunProcess(c.r.Context(), c.who.Project, c.sandbox, spec, &out, true)
	close(stop)
	padder.Wait()
	if err != nil && !begun {
		return outcome{err}
	}
	body := resultBody{ExitCode: exit.ExitCode, Truncated: exit.Lost > 0}
	switch {
	case killed(err):
		body.ExitCode = exitKilled
		out.note(message(err))
	case err != nil:
		return outcome{err}
	case exit.Lost > 0:
		out.note(strconv.FormatUint(exit.Lost, 10) + " bytes of output were lost")
	}
	body.fill(&out)
	if !begun {
		return dialect.Reply(c.w, http.StatusOK, body)
	}
	raw, err := dialect.Marshal(body)
	if err == nil {
		_, err = c.w.Write(raw)
	}
	return err
}

// heads keeps the beginnings of both outputs, as the original does.
type heads struct {
	stdout, stderr []byte
	cut            bool
}

func (*heads) Started(ringfence.Process, uint64) error { return nil }
func (*heads) Lost(uint64, uint64) error               { return nil } // the exit says it

func (h *heads) Output(stream ringfence.Stream, _ uint64, data []byte) error {
	to := &h.stdout
	if stream == ringfence.Stderr {
		to = &h.stderr
	}
	if room := maxResult - len(*to); len(data) > room {
		data, h.cut = data[:room], true
	}
	*to = append(*to, data...)
	return nil
}

// note says something below what the command said on stderr.
func (h *heads) note(text string) {
	if n := len(h.stderr); n > 0 && h.stderr[n-1] != '\n' {
		h.stderr = append(h.stderr, '\n')
	}
	h.stderr = append(h.stderr, text+"\n"...)
}

// fill makes the answer, and leaves out what would make it too large.
func (b *resultBody) fill(h *heads) {
	const notice = "output was truncated: it is larger than one answer may be; stream it, or write it to a file"
	room := maxResult - 2*len(notice)
	stdout, stderr := strings.ToValidUTF8(string(h.stdout), "\uFFFD"), strings.ToValidUTF8(string(h.stderr), "\uFFFD")
	forStdout, forStderr := encoded(stdout), encoded(stderr)
	if forStdout+forStderr > room {
		h.cut = true
		forStderr = min(forStderr, max(room/2, room-forStdout))
		stdout, stderr = prefix(stdout, room-forStderr), prefix(stderr, forStderr)
	}
	if h.cut {
		b.Truncated = true
		if stderr != "" && !strings.HasSuffix(stderr, "\n") {
			stderr += "\n"
		}
		stderr += notice + "\n"
	}
	b.Stdout, b.Stderr = stdout, stderr
}

// cost is how many bytes JSON needs for a character of that many.
func cost(r rune, size int) int {
	switch {
	case r == '"', r == '\\', r == '\n', r == '\r', r == '\t', r == '\b', r == '\f':
		return 2
	case r < 0x20, r == 0x2028, r == 0x2029:
		return 6
	}
	return size
}

func encoded(s string) (n int) {
	for _, r := range s {
		n += cost(r, utf8.RuneLen(r))
	}
	return n
}

// prefix returns as much of a text as JSON can hold in so many bytes.
func prefix(s string, room int) string {
	for i, r := range s {
		if room -= cost(r, utf8.RuneLen(r)); room < 0 {
			return s[:i]
		}
	}
	return s
}
