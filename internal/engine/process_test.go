package engine_test

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/driver/fake"
	"ringfence.dev/ringfence/internal/engine"
)

// gathered is a sink that keeps what it is given.
type gathered struct {
	process  ringfence.Process
	from     uint64
	out, err bytes.Buffer
	lost     uint64
}

func (g *gathered) Started(p ringfence.Process, position uint64) error {
	g.process, g.from = p, position
	return nil
}

func (g *gathered) Output(stream ringfence.Stream, _ uint64, data []byte) error {
	if stream == ringfence.Stderr {
		g.err.Write(data)
	} else {
		g.out.Write(data)
	}
	return nil
}

func (g *gathered) Lost(bytes, _ uint64) error {
	g.lost += bytes
	return nil
}

// A process of its own: found by its names, written to, looked at, signalled, waited for.
func TestProcess(t *testing.T) {
	m := newMachine(t)
	d := m.start(fake.Options{})
	sb := m.create(d, engine.CreateRequest{})
	ctx := t.Context()
	start := func(spec ringfence.ProcessSpec) ringfence.Process {
		t.Helper()
		p, err := d.StartProcess(ctx, project, sb.ID, spec)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	cat := start(ringfence.ProcessSpec{Command: ringfence.Command{Args: []string{"cat"}, Tag: "one"}, KeepStdin: true})
	if cat.Exit != nil || cat.State() != ringfence.ProcessRunning || !cat.StdinOpen || cat.Tag != "one" || time.Since(cat.StartedAt) > time.Minute || !cat.DeadlineAt.IsZero() {
		t.Errorf("got %+v", cat)
	}
	for _, ref := range []string{cat.ID, strconv.Itoa(cat.PID), "tag:one"} {
		if p, err := d.GetProcess(ctx, project, sb.ID, ref); err != nil || p.ID != cat.ID {
			t.Errorf("%s: got %+v, %v", ref, p, err)
		}
	}
	for _, ref := range []string{"", "no", "tag:", "tag:two", "99999", "cmd_0123456789abcdef", strings.Repeat("x", 500)} {
		if _, err := d.GetProcess(ctx, project, sb.ID, ref); ringfence.CodeOf(err) != ringfence.CodeProcessNotFound {
			t.Errorf("%q: got %v", ref, err)
		}
	}
	if n, err := d.WriteStdin(ctx, project, sb.ID, "tag:one", strings.NewReader("hello"), false); err != nil || n != 5 {
		t.Errorf("wrote %d, %v", n, err)
	}
	if p, err := d.WaitProcess(ctx, project, sb.ID, cat.ID, 100*time.Millisecond); err != nil || p.Exit != nil {
		t.Errorf("got %+v, %v", p, err)
	}
	if n, err := d.WriteStdin(ctx, project, sb.ID, cat.ID, strings.NewReader(" world"), true); err != nil || n != 6 {
		t.Errorf("wrote %d, %v", n, err)
	}
	if p, err := d.WaitProcess(ctx, project, sb.ID, "tag:one", time.Minute); err != nil || p.Exit == nil || p.Exit.ExitCode != 0 || p.LogEnd != 11 {
		t.Errorf("got %+v, %v", p, err)
	}
	var got gathered
	exit, ended, err := d.FollowProcess(ctx, project, sb.ID, cat.ID, 6, false, &got)
	if err != nil || !ended || got.out.String() != "world" || got.from != 6 || got.lost != 0 || exit.ID != cat.ID || exit.Duration <= 0 {
		t.Errorf("got %+v, %+v, %v, %v", &got, exit, ended, err)
	}
	got = gathered{}
	if _, _, err := d.FollowProcess(ctx, project, sb.ID, cat.ID, engine.FromEnd, true, &got); err != nil || got.out.Len() != 0 || got.from != 11 {
		t.Errorf("got %+v, %v", &got, err)
	}
	if _, err := d.WriteStdin(ctx, project, sb.ID, cat.ID, strings.NewReader("x"), false); ringfence.CodeOf(err) != ringfence.CodeProcessEnded {
		t.Errorf("got %v", err)
	}

	start(ringfence.ProcessSpec{Command: ringfence.Command{Shell: "sleep 1000", Tag: "two"}})
	twin := start(ringfence.ProcessSpec{Command: ringfence.Command{Shell: "sleep 1000", Tag: "two", Timeout: 24 * time.Hour}})
	if twin.DeadlineAt.Sub(twin.StartedAt) != 24*time.Hour {
		t.Errorf("got %+v", twin)
	}
	if err := d.SignalProcess(ctx, project, sb.ID, "tag:two", 15, false); ringfence.CodeOf(err) != ringfence.CodeFailedPrecondition {
		t.Errorf("got %v", err)
	}
	if err := d.SignalProcess(ctx, project, sb.ID, twin.ID, 15, false); err != nil {
		t.Error(err)
	}
	if p, err := d.WaitProcess(ctx, project, sb.ID, twin.ID, time.Minute); err != nil || p.Exit == nil || p.Exit.ExitCode != 143 || p.Exit.Reason != ringfence.CommandSignal {
		t.Errorf("got %+v, %v", p, err)
	}
	if err := d.SignalProcess(ctx, project, sb.ID, "tag:two", 9, true); err != nil { // one alone runs
		t.Error(err)
	}
	if list, err := d.ListProcesses(ctx, project, sb.ID, ringfence.ProcessFilter{Tag: "two", State: ringfence.ProcessEnded}); err != nil || len(list) != 2 {
		t.Errorf("got %+v, %v", list, err)
	}
	for _, bad := range []ringfence.ProcessSpec{
		{}, {Command: ringfence.Command{Shell: "x"}, LogBytes: 1}, {Command: ringfence.Command{Shell: "x"}, PTY: &ringfence.TerminalSize{Cols: 0, Rows: 1}},
		{PTY: &ringfence.TerminalSize{Cols: 1, Rows: 1001}}, {PTY: &ringfence.TerminalSize{Cols: 1, Rows: 1, Term: "a\x1b"}},
	} {
		if _, err := d.StartProcess(ctx, project, sb.ID, bad); ringfence.CodeOf(err) != ringfence.CodeInvalidArgument {
			t.Errorf("%+v: got %v", bad, err)
		}
	}
}

// The deadline of a process that nobody follows is kept, a fraction of a second too; and
// a starter that leaves takes the process with it or not, as it said.
func TestProcessesWithoutFollowers(t *testing.T) {
	m := newMachine(t)
	d := m.start(fake.Options{})
	sb := m.create(d, engine.CreateRequest{})
	p, err := d.StartProcess(t.Context(), project, sb.ID, ringfence.ProcessSpec{Command: ringfence.Command{Shell: "sleep 1000", Timeout: 250 * time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	p, err = d.WaitProcess(t.Context(), project, sb.ID, p.ID, 20*time.Second)
	if err != nil || p.Exit == nil || p.Exit.ExitCode != 124 || p.Exit.Reason != ringfence.CommandDeadline || p.Exit.EndedAt.Before(p.DeadlineAt) {
		t.Errorf("got %+v, %v", p, err)
	}
	for _, kill := range []bool{true, false} {
		ctx, leave := context.WithCancel(t.Context())
		tag := fmt.Sprint("kill-", kill)
		s := &leaver{leave: leave}
		_, err := d.RunProcess(ctx, project, sb.ID, ringfence.ProcessSpec{Command: ringfence.Command{Shell: "echo here; sleep 1000", Tag: tag, Timeout: 2 * time.Second}}, s, kill)
		if ringfence.CodeOf(err) != ringfence.CodeCanceled {
			t.Errorf("got %v", err)
		}
		p, err := d.GetProcess(t.Context(), project, sb.ID, "tag:"+tag)
		if err != nil || (p.Exit != nil) != kill {
			t.Errorf("kill %v: got %+v, %v", kill, p, err)
		}
		if p, err = d.WaitProcess(t.Context(), project, sb.ID, p.ID, 20*time.Second); err != nil || p.Exit == nil || (p.Exit.Reason == ringfence.CommandDeadline) == kill {
			t.Errorf("kill %v: got %+v, %v", kill, p, err)
		}
	}
}

// leaver goes away when it hears something.
type leaver struct {
	gathered
	leave func()
}

func (l *leaver) Output(ringfence.Stream, uint64, []byte) error {
	l.leave()
	return nil
}
