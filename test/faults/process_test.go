package faults

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/client"
)

// numbers checks lines of "line N" that count up, whatever pieces they come in.
type numbers struct {
	rest []byte
	next int
}

func (n *numbers) Write(p []byte) (int, error) {
	n.rest = append(n.rest, p...)
	for {
		line, rest, ok := bytes.Cut(n.rest, []byte("\n"))
		if !ok {
			return len(p), nil
		}
		if want := fmt.Sprintf("line %d", n.next); string(line) != want {
			return 0, fmt.Errorf("got %q where %q was due", line, want)
		}
		n.rest = rest
		n.next++
	}
}

// The daemon is killed outright, three times, while a process writes. Who follows it
// through the client gets every byte once, and how it ended; so does who comes later.
func TestFollowAcrossDaemons(t *testing.T) {
	w := newWorld(t)
	w.start()
	sb := w.create(client.CreateOptions{})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const lines = 2000
	p, err := sb.StartProcess(ctx, client.ProcessOptions{
		Shell: fmt.Sprintf(`i=0; while [ $i -lt %d ]; do echo "line $i"; i=$((i+1)); [ $((i %% 5)) = 0 ] && sleep 0.005; done; echo done >&2; exit 9`, lines), Tag: "writer",
	})
	if err != nil {
		t.Fatal(err)
	}
	// A command that its caller waits for goes on too, and can be joined.
	lost := make(chan error, 1)
	go func() {
		r, err := sb.Run(ctx, client.Command{Shell: "echo begun; sleep 4; echo survived; exit 5", Tag: "command", Timeout: client.NoTimeout, Stdout: io.Discard})
		if err == nil || r.ExitCode >= 0 {
			err = fmt.Errorf("the command in flight is said to have ended with %+v, %w", r, err)
		} else {
			err = nil
		}
		lost <- err
	}()
	waitFor(t, "the command", func() bool {
		info, err := sb.Process("tag:command").Refresh(ctx)
		return err == nil && info.LogEnd > 0
	})
	var out numbers
	var errOut bytes.Buffer
	var joined []uint64
	type end struct {
		result *client.Result
		err    error
	}
	followed := make(chan end, 1)
	go func() {
		r, err := p.Follow(ctx, client.FollowOptions{Stdout: &out, Stderr: &errOut, Joined: func(_ client.Started, at uint64) { joined = append(joined, at) }})
		followed <- end{r, err}
	}()
	for range 3 {
		time.Sleep(400 * time.Millisecond)
		w.stop(syscall.SIGKILL)
		w.start()
	}
	got := <-followed
	if got.err != nil || got.result.ExitCode != 9 || got.result.Lost != 0 || out.next != lines || errOut.String() != "done\n" {
		t.Errorf("%+v %v: %d lines, %q", got.result, got.err, out.next, errOut.String())
	}
	if len(joined) < 2 || joined[0] != 0 || joined[len(joined)-1] == 0 {
		t.Errorf("joined at %v", joined)
	}
	if err := <-lost; err != nil {
		t.Error(err)
	}
	var later numbers
	if r, err := sb.Process("tag:writer").Follow(ctx, client.FollowOptions{Stdout: &later}); err != nil || r.ExitCode != 9 || later.next != lines {
		t.Errorf("later: %+v %v, %d lines", r, err, later.next)
	}
	var command bytes.Buffer
	if r, err := sb.Process("tag:command").Follow(ctx, client.FollowOptions{Stdout: &command}); err != nil || r.ExitCode != 5 || command.String() != "begun\nsurvived\n" {
		t.Errorf("the command: %+v %v %q", r, err, command.String())
	}
}

// A deadline is kept by the daemon that is there when it passes.
func TestDeadlineAcrossDaemons(t *testing.T) {
	w := newWorld(t)
	w.start()
	sb := w.create(client.CreateOptions{})
	p, err := sb.StartProcess(t.Context(), client.ProcessOptions{Args: []string{"sleep", "1000"}, Timeout: 2500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	w.stop(syscall.SIGKILL)
	w.start()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	info, err := p.Wait(ctx)
	if err != nil || info.End == nil || info.End.ExitCode != 124 || info.End.Reason != client.ReasonDeadline {
		t.Fatalf("%+v %v", info.End, err)
	}
	if took := info.End.EndedAt.Sub(info.StartedAt); took < 2400*time.Millisecond {
		t.Errorf("it was ended after %v", took)
	}
}

// 60 streams at once, five times over, each with its own bytes: not one error.
func TestParallelStreams(t *testing.T) {
	w := newWorld(t)
	w.start()
	boxes := []*client.Sandbox{w.create(client.CreateOptions{}), w.create(client.CreateOptions{})}
	for round := range 5 {
		var wg sync.WaitGroup
		errs := make(chan error, 60)
		for i := range 60 {
			wg.Go(func() {
				sb := boxes[i%2]
				const lines = 200
				shell := fmt.Sprintf(`i=0; while [ $i -lt %d ]; do echo "%d.%d.$i"; i=$((i+1)); done; exit %d`, lines, round, i, i)
				var want strings.Builder
				for n := range lines {
					fmt.Fprintf(&want, "%d.%d.%d\n", round, i, n)
				}
				var out bytes.Buffer
				var r *client.Result
				var err error
				switch i % 3 {
				case 0:
					r, err = sb.Run(t.Context(), client.Command{Shell: shell, Stdout: &out, Timeout: time.Minute})
				case 1:
					var s *client.Session
					if s, err = sb.StartSession(t.Context(), client.ProcessOptions{Shell: shell}, client.SessionOptions{}); err == nil {
						r, err = s.Copy(&out, nil)
						s.Close()
					}
				default:
					var p *client.Process
					if p, err = sb.StartProcess(t.Context(), client.ProcessOptions{Shell: shell}); err == nil {
						r, err = p.Follow(t.Context(), client.FollowOptions{Stdout: &out})
					}
				}
				if err != nil || r.ExitCode != i || out.String() != want.String() {
					errs <- fmt.Errorf("stream %d of round %d: %+v, %w; %d bytes of %d", i, round, r, err, out.Len(), want.Len())
				}
			})
		}
		wg.Wait()
		close(errs)
		for err := range errs {
			t.Error(err)
		}
	}
}

// What goes in comes out, whatever it is and however much.
func TestBytesThroughProcesses(t *testing.T) {
	w := newWorld(t)
	w.start()
	sb := w.create(client.CreateOptions{})
	ctx := t.Context()
	var every []byte
	for i := range 256 {
		every = append(every, byte(i))
	}
	// All byte values, 4 MiB in one call, through a session …
	large := bytes.Repeat(every, 4<<20/256)
	s, err := sb.StartSession(ctx, client.ProcessOptions{Args: []string{"cat"}, Stdin: true}, client.SessionOptions{Kill: true})
	if err != nil {
		t.Fatal(err)
	}
	wrote := make(chan error, 1)
	go func() {
		n, err := s.Write(large)
		if err == nil && n != len(large) {
			err = io.ErrShortWrite
		}
		wrote <- errors.Join(err, s.CloseStdin())
	}()
	var out bytes.Buffer
	r, err := s.Copy(&out, nil)
	s.Close()
	if err := <-wrote; err != nil {
		t.Error(err)
	}
	if err != nil || r.ExitCode != 0 || !bytes.Equal(out.Bytes(), large) {
		t.Errorf("session: %+v %v, %d bytes", r, err, out.Len())
	}
	// … and in one request.
	p, err := sb.StartProcess(ctx, client.ProcessOptions{Shell: "sha256sum; exit 3", Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := p.WriteStdin(ctx, bytes.NewReader(large)); err != nil || n != int64(len(large)) {
		t.Errorf("wrote %d, %v", n, err)
	}
	if err := p.CloseStdin(ctx); err != nil {
		t.Error(err)
	}
	if info, err := p.Wait(ctx); err != nil || info.End == nil || info.End.ExitCode != 3 {
		t.Errorf("%+v %v", info, err)
	}
	if got, err := p.Output(ctx, 0); err != nil || string(got.Stdout) != fmt.Sprintf("%x  -\n", sha256.Sum256(large)) {
		t.Errorf("%q %v", got.Stdout, err)
	}
	// Whoever leaves ends no input: the next one goes on with it.
	first, err := sb.StartSession(ctx, client.ProcessOptions{Args: []string{"cat"}, Stdin: true}, client.SessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := first.Write([]byte("first\n")); err != nil {
		t.Error(err)
	}
	if got, err := first.Next(); err != nil || string(got.Data) != "first\n" {
		t.Errorf("%+v %v", got, err)
	}
	first.Close()
	time.Sleep(100 * time.Millisecond)
	second, err := first.Process().Attach(ctx, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := second.Write([]byte("second\n")); err != nil {
		t.Error(err)
	}
	if err := second.CloseStdin(); err != nil {
		t.Error(err)
	}
	var both bytes.Buffer
	if r, err := second.Copy(&both, nil); err != nil || r.ExitCode != 0 || both.String() != "first\nsecond\n" {
		t.Errorf("joined again: %+v %v %q", r, err, both.String())
	}
	second.Close()
	// A line of 1 MiB without its end.
	line := strings.Repeat("x", 1<<20)
	for _, stream := range []bool{false, true} {
		var out bytes.Buffer
		cmd := client.Command{Shell: "head -c 1048576 /dev/zero | tr '\\0' x"}
		if stream {
			cmd.Stdout = &out
		}
		r, err := sb.Run(ctx, cmd)
		if err != nil || string(r.Stdout)+out.String() != line {
			t.Errorf("a line of 1 MiB: %v, %d bytes", err, len(r.Stdout)+out.Len())
		}
	}
}

// What a shell makes of odd commands, and what is said of wrong ones.
func TestOddCommands(t *testing.T) {
	w := newWorld(t)
	w.start()
	sb := w.create(client.CreateOptions{Env: map[string]string{"A": "sandbox", "B": "sandbox"}})
	ctx := t.Context()
	for _, tt := range []struct {
		shell, stdout, stderr string
		code                  int
	}{
		{"cat <<'EOF'\n$A \"quoted\" 'x'\nEOF", "$A \"quoted\" 'x'\n", "", 0},
		{"cat <<EOF\n$A\nEOF\necho after", "sandbox\nafter\n", "", 0},
		{"echo 'unbalanced", "", "unexpected EOF", 2},
		{"set -e; echo a; false; echo b", "a\n", "", 1},
		{"exit 1", "", "", 1},
		{"echo $A $B $C", "sandbox command command\n", "", 0},
		{"no-such-program", "", "not found", 127},
	} {
		r, err := sb.Run(ctx, client.Command{Shell: tt.shell, Env: map[string]string{"B": "command", "C": "command"}})
		if err != nil || r.ExitCode != tt.code || string(r.Stdout) != tt.stdout || !strings.Contains(string(r.Stderr), tt.stderr) {
			t.Errorf("%q: %d %q %q %v", tt.shell, r.ExitCode, r.Stdout, r.Stderr, err)
		}
	}
	for field, o := range map[string]client.ProcessOptions{
		"cwd": {Shell: "true", WorkDir: "/none"}, "user": {Shell: "true", User: "nobody-has-this"},
	} {
		_, err := sb.StartProcess(ctx, o)
		var e *ringfence.Error
		if !errors.As(err, &e) || e.Code != ringfence.CodeInvalidArgument || e.Field != field || e.Message == "" {
			t.Errorf("%s: %v", field, err)
		}
		_, err = sb.StartSession(ctx, o, client.SessionOptions{})
		if !errors.As(err, &e) || e.Code != ringfence.CodeInvalidArgument || e.Field != field || e.RequestID == "" {
			t.Errorf("%s in a session: %v", field, err)
		}
	}
	p, err := sb.StartProcess(ctx, client.ProcessOptions{Args: []string{"no-such-program"}})
	if err != nil {
		t.Fatal(err)
	}
	if out, err := p.Output(ctx, 0); err != nil || out.Exit == nil || out.Exit.ExitCode != 127 || !strings.Contains(string(out.Stderr), "no-such-program") {
		t.Errorf("a program that is not there: %+v %v", out, err)
	}
	// Deadlines: a fraction; none; and one beyond the sandbox's life.
	if r, err := sb.Run(ctx, client.Command{Shell: "sleep 100", Timeout: 250 * time.Millisecond}); err != nil || r.ExitCode != 124 || r.Reason != client.ReasonDeadline {
		t.Errorf("a fraction: %+v %v", r, err)
	}
	if r, err := sb.Run(ctx, client.Command{Shell: "sleep 0.2", Timeout: client.NoTimeout}); err != nil || r.ExitCode != 0 {
		t.Errorf("none: %+v %v", r, err)
	}
	if status, _, body := w.request("POST", "/v1/sandboxes/"+sb.ID()+"/commands", `{"command":"sleep 0.1; echo x","timeout_seconds":0}`); status != 200 || !strings.Contains(body, `"exit_code":0`) {
		t.Errorf("0: %d %s", status, body)
	}
	short := w.create(client.CreateOptions{Timeout: 2 * time.Second})
	for _, follow := range []bool{false, true} {
		if follow {
			short = w.create(client.CreateOptions{Timeout: 2 * time.Second})
		}
		var err error
		var r *client.Result
		if follow {
			var p *client.Process
			if p, err = short.StartProcess(ctx, client.ProcessOptions{Shell: "sleep 1000", Timeout: time.Hour}); err != nil {
				t.Fatal(err)
			}
			r, err = p.Follow(ctx, client.FollowOptions{})
		} else {
			r, err = short.Run(ctx, client.Command{Shell: "sleep 1000", Timeout: time.Hour})
		}
		if ringfence.CodeOf(err) != ringfence.CodeSandboxEnded || r.ExitCode != -1 {
			t.Errorf("beyond the sandbox's life, follow %v: %+v %v", follow, r, err)
		}
	}
}

// A reader that stops holds back the process that it started, and nobody else; the
// daemon keeps little of what waits.
func TestSlowSession(t *testing.T) {
	w := newWorld(t)
	d := w.start()
	sb := w.create(client.CreateOptions{})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const total = 40_000_000
	var slow []*client.Session
	for range 4 {
		s, err := sb.StartSession(ctx, client.ProcessOptions{Shell: fmt.Sprintf("head -c %d /dev/zero", total), LogBytes: 1 << 20}, client.SessionOptions{Kill: true})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		slow = append(slow, s)
	}
	time.Sleep(300 * time.Millisecond)
	before := status(t, d.cmd.Process.Pid, "VmRSS")
	for range 10 {
		w.shell(sb, "true")
	}
	for _, s := range slow {
		info, err := s.Process().Refresh(ctx)
		if err != nil || info.End != nil || info.LogEnd > 16<<20 {
			t.Errorf("a process that nobody reads: %+v %v", info, err)
		}
	}
	for _, s := range slow[:2] {
		n := int64(0)
		r, err := s.Copy(client.WriterFunc(func(p []byte) error { n += int64(len(p)); return nil }), nil)
		if err != nil || r.ExitCode != 0 || r.Lost != 0 || n != total {
			t.Errorf("%+v %v, %d bytes", r, err, n)
		}
	}
	if after := status(t, d.cmd.Process.Pid, "VmRSS"); after > before+64<<10 {
		t.Errorf("the daemon grew from %d to %d KiB", before, after)
	}
}
