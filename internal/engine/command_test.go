package engine_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/driver/fake"
	"ringfence.dev/ringfence/internal/engine"
)

func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		d := m.start(fake.Options{})
		sb := m.create(d, engine.CreateRequest{})
		out := newOutput()
		began := time.Now()
		exit, err := d.Run(t.Context(), project, sb.ID, ringfence.Command{Shell: "echo partial; sleep 600", Timeout: 20 * time.Second}, out)
		if err != nil || exit.ExitCode != 124 || exit.Reason != ringfence.CommandDeadline || out.stdout() != "partial\n" {
			t.Errorf("%+v %q %v", exit, out.stdout(), err)
		}
		if took := time.Since(began); took < 20*time.Second || took > 21*time.Second {
			t.Errorf("it took %v", took)
		}
		m.mustAnswer(d, sb.ID)
	})
}

// A reader that takes its time is waited for, and the deadline holds all the same.
func TestDeadlineWithSlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		d := m.start(fake.Options{})
		sb := m.create(d, engine.CreateRequest{})
		out := newOutput()
		out.block = make(chan struct{})
		time.AfterFunc(5*time.Minute, func() { close(out.block) })
		exit, err := d.Run(t.Context(), project, sb.ID, ringfence.Command{Shell: "echo one; sleep 600", Timeout: 20 * time.Second}, out)
		if err != nil || exit.ExitCode != 124 || out.stdout() != "one\n" {
			t.Errorf("%+v %q %v", exit, out.stdout(), err)
		}
	})
}

func TestCallerGone(t *testing.T) {
	m := newMachine(t)
	d := m.start(fake.Options{})
	sb := m.create(d, engine.CreateRequest{})
	ctx, cancel := context.WithCancel(t.Context())
	out := newOutput()
	go func() {
		<-out.started
		cancel()
	}()
	_, err := d.Run(ctx, project, sb.ID, ringfence.Command{Shell: "sleep 1; echo alive >/mark"}, out)
	if ringfence.CodeOf(err) != ringfence.CodeCanceled {
		t.Errorf("got %v", err)
	}
	time.Sleep(1500 * time.Millisecond)
	if out, _, _ := shell(d, sb.ID, "cat /mark"); out != "" {
		t.Error("the command went on")
	}
}

func TestSinkFails(t *testing.T) {
	m := newMachine(t)
	d := m.start(fake.Options{})
	sb := m.create(d, engine.CreateRequest{})
	out := newOutput()
	out.fail = errors.New("the reader is gone")
	_, err := d.Run(t.Context(), project, sb.ID, ringfence.Command{Shell: "echo x; sleep 1; echo alive >/mark"}, out)
	if !errors.Is(err, out.fail) {
		t.Errorf("got %v", err)
	}
	time.Sleep(1500 * time.Millisecond)
	if out, _, _ := shell(d, sb.ID, "cat /mark"); out != "" {
		t.Error("the command went on")
	}
}

// An agent that hangs is noticed while somebody waits for it; when it stays silent,
// the sandbox has failed, and whoever waits is told so.
func TestAgentLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		d := m.start(fake.Options{})
		sb := m.create(d, engine.CreateRequest{})
		began := time.Now()
		_, _, err := shell(d, sb.ID, "fake-hang; sleep 3600")
		if code := ringfence.CodeOf(err); code != ringfence.CodeSandboxEnded && code != ringfence.CodeUnavailable {
			t.Errorf("a command that waits: %v", err)
		}
		time.Sleep(2 * time.Minute)
		m.mustEnd(d, sb.ID, ringfence.StateFailed, ringfence.ReasonAgentLost)
		if time.Since(began) > 5*time.Minute {
			t.Errorf("it took %v", time.Since(began))
		}
		got, err := d.Get(t.Context(), project, sb.ID)
		if err != nil || !strings.Contains(got.Detail, "second way") {
			t.Errorf("the detail does not say what the second way showed: %+v %v", got, err)
		}
		if m.onHost() != 0 {
			t.Error("it is on the host")
		}
	})
}

// A command whose daemon died goes on. The next daemon keeps its deadline, and has its
// output for whoever asks.
func TestCommandOutlivesItsDaemon(t *testing.T) {
	m := newMachine(t)
	d := m.start(fake.Options{})
	sb := m.create(d, engine.CreateRequest{})
	results := make(chan error, 2)
	ids := make(chan string, 2)
	for _, cmd := range []ringfence.Command{
		{Shell: "sleep 4; echo alive >/mark; echo said", Timeout: time.Minute},
		{Shell: "echo forever; sleep 100; echo not reached >/late", Timeout: 5 * time.Second, Tag: "forever"},
	} {
		out := newOutput()
		go func() {
			_, err := d.Run(context.Background(), project, sb.ID, cmd, out)
			results <- err
		}()
		<-out.started
		ids <- out.id
	}
	m.stop(d)
	for range 2 {
		if err := <-results; ringfence.CodeOf(err) != ringfence.CodeUnavailable {
			t.Errorf("a caller of the first daemon gets %v", err)
		}
	}
	d = m.start(fake.Options{})
	for _, want := range []struct {
		output string
		end    ringfence.ProcessEnd
	}{{"said\n", ringfence.ProcessEnd{}}, {"forever\n", ringfence.ProcessEnd{ExitCode: 124, Reason: ringfence.CommandDeadline}}} {
		id := <-ids
		p, err := d.WaitProcess(t.Context(), project, sb.ID, id, time.Minute)
		if err != nil || p.Exit == nil || p.Exit.ExitCode != want.end.ExitCode || p.Exit.Reason != want.end.Reason {
			t.Fatalf("got %+v, %v", p, err)
		}
		var got gathered
		exit, ended, err := d.FollowProcess(t.Context(), project, sb.ID, id, 0, true, &got)
		if err != nil || !ended || exit.ExitCode != want.end.ExitCode || got.out.String() != want.output || exit.Lost != 0 {
			t.Errorf("got %q, %+v, %v, %v", got.out.String(), exit, ended, err)
		}
	}
	if out, _, _ := shell(d, sb.ID, "cat /mark"); out != "alive\n" {
		t.Error("the command did not go on")
	}
}

// lateSink complains when it is called after the run that it belongs to has returned.
type lateSink struct {
	t      *testing.T
	first  func()
	over   atomic.Bool
	called atomic.Int64
}

func (s *lateSink) Started(string, int) error { return nil }

func (s *lateSink) Output(ringfence.Stream, uint64, []byte) error {
	if s.called.Add(1) == 1 {
		s.first()
	}
	runtime.Gosched()
	if s.over.Load() {
		s.t.Error("the sink was called after Run had returned: an answer that was over would be written to")
	}
	return nil
}

func TestSinkIsLetGo(t *testing.T) {
	m := newMachine(t)
	d := m.start(fake.Options{})
	sb := m.create(d, engine.CreateRequest{})
	for range 50 {
		ctx, cancel := context.WithCancel(t.Context())
		s := &lateSink{t: t, first: cancel}
		_, err := d.Run(ctx, ringfence.DefaultProject, sb.ID, ringfence.Command{Shell: "yes"}, s)
		s.over.Store(true)
		cancel()
		if ringfence.CodeOf(err) != ringfence.CodeCanceled {
			t.Fatalf("got %v", err)
		}
	}
}
