package faults

import (
	"context"
	"errors"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/client"
)

// The sandbox's process dies in the middle of a command: its caller gets an error
// that says so, and never exit code 0; its neighbours do not notice.
func TestSandboxKilled(t *testing.T) {
	for _, stream := range []bool{false, true} {
		w := newWorld(t)
		w.start()
		neighbour := w.create(client.CreateOptions{})
		before := map[int]bool{}
		for _, pid := range w.processes() {
			before[pid] = true
		}
		sb := w.create(client.CreateOptions{})
		result := make(chan error, 1)
		begun := make(chan struct{})
		cmd := client.Command{Shell: "touch /tmp/begun; sleep 60"}
		if stream {
			cmd.Stdout = io.Discard
		}
		go func() {
			r, err := sb.Run(context.Background(), cmd)
			if err == nil || r.ExitCode == 0 {
				err = errors.Join(errors.New("no error"), err)
			}
			result <- err
		}()
		go func() {
			waitFor(t, "the command to begin", func() bool {
				ok, err := sb.Files().Exists(context.Background(), "/tmp/begun")
				return err == nil && ok
			})
			close(begun)
		}()
		<-begun
		for _, pid := range w.processes() {
			if !before[pid] {
				syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		select {
		case err := <-result:
			var e *ringfence.Error
			if !errors.As(err, &e) || e.Code != ringfence.CodeSandboxEnded || !strings.Contains(e.Message, "crashed") || e.RequestID == "" {
				t.Errorf("the caller gets %v", err)
			}
		case <-time.After(time.Minute):
			t.Error("the caller waits on")
		}
		w.ended(sb.ID(), ringfence.StateFailed, ringfence.ReasonCrashed)
		w.shell(neighbour, "true")
		waitFor(t, "what is left of it to go", func() bool { return len(w.leftovers()) == 1 })
		if err := sb.Kill(context.Background()); err != nil {
			t.Errorf("killing it afterwards: %v", err)
		}
	}
}

// The sandbox dies while no daemon is there.
func TestSandboxKilledWhileDaemonIsDown(t *testing.T) {
	w := newWorld(t)
	w.start()
	sb := w.create(client.CreateOptions{})
	w.stop(syscall.SIGKILL)
	for _, pid := range w.processes() {
		syscall.Kill(pid, syscall.SIGKILL)
	}
	w.start()
	w.ended(sb.ID(), ringfence.StateFailed, ringfence.ReasonCrashed)
	waitFor(t, "what is left of it to go", func() bool { return len(w.leftovers()) == 0 })
}

// Whatever root inside does to the agent and its pipes, no caller is told of success.
func TestAgentUnderAttack(t *testing.T) {
	w := newWorld(t)
	w.start()
	for _, attack := range []string{
		"kill -9 1; kill -STOP 1; kill -SEGV 1; sleep 1; echo attacked; exit 7",
		"for fd in 0 1 2; do head -c 1000000 /dev/urandom > /proc/1/fd/$fd; done 2>/dev/null; sleep 1; echo attacked; exit 7",
		"kill -9 -1; echo attacked; exit 7",
	} {
		sb := w.create(client.CreateOptions{})
		r, err := sb.Run(context.Background(), client.Command{Shell: attack, Timeout: 20 * time.Second})
		if err == nil && r.ExitCode == 0 {
			t.Errorf("%s: it is said to have gone well: %+v", attack, r)
		}
		r, err = sb.Run(context.Background(), client.Command{Shell: "echo ok"})
		switch {
		case err == nil && string(r.Stdout) == "ok\n": // it withstood
		case ringfence.CodeOf(err) == ringfence.CodeSandboxEnded: // it took itself down, and nothing else
			t.Logf("%s: %v", attack, err)
		default:
			t.Errorf("%s: afterwards %+v %v", attack, r, err)
		}
		if err := sb.Kill(context.Background()); err != nil {
			t.Error(err)
		}
	}
}
