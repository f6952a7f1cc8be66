package faults

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"ringfence.dev/ringfence/client"
)

// lasting returns how long a test of long times runs, which only the soak asks for.
func lasting(t *testing.T, variable string) time.Duration {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		t.Skipf("it takes long, and runs in `make soak`, which sets %s", variable)
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return d
}

// Silence of RINGFENCE_SOAK_SILENCE, then a word and the end: on a command's events, on a
// session, and on a follower, nothing breaks and nothing is lost.
func TestLongSilence(t *testing.T) {
	silence := lasting(t, "RINGFENCE_SOAK_SILENCE")
	w := newWorld(t)
	w.start()
	sb := w.create(client.CreateOptions{Timeout: silence + time.Hour})
	shell := fmt.Sprintf("echo begin; sleep %.1f; echo end; exit 3", silence.Seconds())
	want := "begin\nend\n"
	ctx := t.Context()
	check := func(way string, out string, r *client.Result, err error) {
		if err != nil || r.ExitCode != 3 || r.Lost != 0 || out != want {
			t.Errorf("%s: %q, %+v, %v", way, out, r, err)
		}
	}
	began := time.Now()
	var ways sync.WaitGroup
	ways.Go(func() {
		var out bytes.Buffer
		r, err := sb.Run(ctx, client.Command{Shell: shell, Stdout: &out, Timeout: client.NoTimeout})
		check("a command", out.String(), r, err)
	})
	ways.Go(func() {
		session, err := sb.StartSession(ctx, client.ProcessOptions{Shell: shell}, client.SessionOptions{})
		if err != nil {
			t.Error(err)
			return
		}
		defer session.Close()
		var out bytes.Buffer
		r, err := session.Copy(&out, nil)
		check("a session", out.String(), r, err)
	})
	ways.Go(func() {
		p, err := sb.StartProcess(ctx, client.ProcessOptions{Shell: shell})
		if err != nil {
			t.Error(err)
			return
		}
		var out bytes.Buffer
		r, err := p.Follow(ctx, client.FollowOptions{Stdout: &out})
		check("a follower", out.String(), r, err)
	})
	ways.Wait()
	if took := time.Since(began); took < silence {
		t.Errorf("it took %v", took)
	}
}

// A command of RINGFENCE_SOAK_COMMAND that says a line each second: it ends as it should,
// with every line once.
func TestLongCommand(t *testing.T) {
	length := lasting(t, "RINGFENCE_SOAK_COMMAND")
	w := newWorld(t)
	w.start()
	sb := w.create(client.CreateOptions{Timeout: length + time.Hour})
	n := int(length.Seconds())
	var out, want bytes.Buffer
	began := time.Now()
	r, err := sb.Run(context.Background(), client.Command{
		Shell: fmt.Sprintf("i=0; while [ $i -lt %d ]; do echo line $i; i=$((i+1)); sleep 1; done", n), Stdout: &out, Timeout: client.NoTimeout,
	})
	for i := range n {
		fmt.Fprintln(&want, "line", i)
	}
	if err != nil || r.ExitCode != 0 || r.Lost != 0 || !bytes.Equal(out.Bytes(), want.Bytes()) {
		t.Errorf("%d bytes of %d, %+v, %v", out.Len(), want.Len(), r, err)
	}
	if took := time.Since(began); took < length {
		t.Errorf("it took %v", took)
	}
}
