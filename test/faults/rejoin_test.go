package faults

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/client"
)

// The daemon is killed outright while processes talk. They go on, what they said and say
// is joined again with every byte that the log holds, and the next daemon keeps their deadlines.
func TestDaemonKilledDuringProcesses(t *testing.T) {
	w := newWorld(t)
	w.start()
	sb := w.create(client.CreateOptions{Template: "base", MemoryMiB: 512})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	const lines = 30000
	counter, err := sb.StartProcess(ctx, client.ProcessOptions{
		Shell: fmt.Sprintf("i=0; while [ $i -lt %d ]; do echo line $i; i=$((i+1)); done; read x; echo got $x; exit 5", lines), Stdin: true, Tag: "counter",
	})
	if err != nil {
		t.Fatal(err)
	}
	noisy, err := sb.StartProcess(ctx, client.ProcessOptions{Shell: "head -c 3000000 /dev/zero; sleep 1", LogBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	late, err := sb.StartProcess(ctx, client.ProcessOptions{Shell: "echo says; sleep 1000", Timeout: 4 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	foreground := make(chan error, 1)
	go func() {
		_, err := sb.Run(ctx, client.Command{Shell: "echo front; sleep 1000", Timeout: 3500 * time.Millisecond, Tag: "front"})
		foreground <- err
	}()
	// One who follows across the death of the daemon.
	var followed bytes.Buffer
	joined := make(chan struct{}, 10)
	follow := make(chan error, 1)
	go func() {
		result, err := counter.Follow(ctx, client.FollowOptions{Stdout: &followed, Joined: func(client.Started, uint64) { joined <- struct{}{} }})
		if err == nil && (result.ExitCode != 5 || result.Lost != 0) {
			err = fmt.Errorf("it ended with %+v", result)
		}
		follow <- err
	}()
	<-joined
	waitFor(t, "the foreground command", func() bool {
		all, err := sb.Processes(ctx, client.ProcessFilter{Tag: "front"})
		return err == nil && len(all) == 1
	})
	w.stop(syscall.SIGKILL)
	if err := <-foreground; ringfence.CodeOf(err) != ringfence.CodeUnavailable {
		t.Errorf("the caller of the first daemon got %v", err)
	}
	w.start()

	if _, err := sb.Process("tag:counter").WriteStdin(ctx, strings.NewReader("word\n")); err != nil {
		t.Fatal(err)
	}
	if err := <-follow; err != nil {
		t.Error(err)
	}
	var want bytes.Buffer
	for i := range lines {
		fmt.Fprintln(&want, "line", i)
	}
	want.WriteString("got word\n")
	if !bytes.Equal(followed.Bytes(), want.Bytes()) {
		t.Errorf("the follower got %d bytes of %d", followed.Len(), want.Len())
	}
	var again bytes.Buffer
	if r, err := sb.Process(counter.ID()).Follow(ctx, client.FollowOptions{Stdout: &again}); err != nil || r.ExitCode != 5 || !bytes.Equal(again.Bytes(), want.Bytes()) {
		t.Errorf("got %d bytes, %+v, %v", again.Len(), r, err)
	}
	// What is lost is said, and all else is there.
	var rest bytes.Buffer
	r, err := noisy.Follow(ctx, client.FollowOptions{Stdout: &rest})
	if err != nil || r.Lost == 0 || r.Lost+uint64(rest.Len()) != 3000000 || rest.Len() < 500_000 {
		t.Errorf("got %d bytes, %+v, %v", rest.Len(), r, err)
	}
	for _, p := range []*client.Process{late, sb.Process("tag:front")} {
		info, err := p.Wait(ctx)
		if err != nil || info.End == nil || info.End.ExitCode != 124 || info.End.Reason != "deadline" {
			t.Fatalf("got %+v, %+v, %v", info, info.End, err)
		}
		if after := info.End.EndedAt.Sub(info.DeadlineAt); after < 0 || after > 3*time.Second || info.DeadlineAt.Before(began.Add(3*time.Second)) {
			t.Errorf("the deadline %v was kept %v late", info.DeadlineAt, after)
		}
	}
}
