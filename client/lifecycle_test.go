package client_test

import (
	"slices"
	"testing"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/client"
)

func TestServerLifecycle(t *testing.T) {
	c, ctx := connect(t), t.Context()
	s := create(t, c, client.CreateOptions{NoAutoResume: true, OnTimeout: ringfence.OnTimeoutPause})
	info, err := s.Pause(ctx)
	if err != nil || info.State != ringfence.StatePaused || info.PausedAt.IsZero() || !info.Deadlines.NoAutoResume {
		t.Fatalf("paused: %+v, %v", info, err)
	}
	_, err = s.Run(ctx, client.Command{Shell: "true"})
	wantCode(t, "a command on a paused sandbox", err, ringfence.CodeSandboxPaused)

	hour, never, atOnce, resume := time.Hour, time.Duration(-1), time.Duration(0), true
	info, err = s.SetDeadlines(ctx, client.DeadlinesChange{Timeout: &hour, IdleTimeout: &hour, AutoDelete: &hour, AutoResume: &resume})
	if err != nil || info.Deadlines.Timeout != hour || info.Deadlines.IdleTimeout != hour || *info.Deadlines.AutoDelete != hour || info.Deadlines.NoAutoResume || info.DeleteAt.IsZero() {
		t.Errorf("changed: %+v, %v", info, err)
	}
	info, err = s.SetDeadlines(ctx, client.DeadlinesChange{Timeout: &atOnce, IdleTimeout: &atOnce, AutoDelete: &never, OnTimeout: ringfence.OnTimeoutKill})
	if err != nil || info.Deadlines.Timeout != 0 || info.Deadlines.IdleTimeout != 0 || info.Deadlines.AutoDelete != nil || info.Deadlines.OnTimeout != ringfence.OnTimeoutKill {
		t.Errorf("none of them: %+v, %v", info, err)
	}

	snap, err := s.Snapshot(ctx, "of a paused one")
	if err != nil || !ringfence.ValidSnapshotID(snap.ID) || snap.SandboxID != s.ID() || snap.Bytes == 0 {
		t.Fatalf("snapshot: %+v, %v", snap, err)
	}
	if same, err := c.GetSnapshot(ctx, snap.ID); err != nil || same != snap {
		t.Errorf("the same again: %+v, %v", same, err)
	}
	if r, err := s.Run(ctx, client.Command{Shell: "echo $A"}); err != nil || r.ExitCode != 0 { // which wakes it
		t.Errorf("a command on a paused sandbox that is to wake: %+v, %v", r, err)
	}
	if info, err = s.Resume(ctx); err != nil || info.State != ringfence.StateRunning {
		t.Errorf("resumed: %+v, %v", info, err)
	}
	forks, err := s.Fork(ctx, 2)
	if err != nil || len(forks) != 2 || forks[0].ID() == forks[1].ID() || forks[0].AccessToken() == "" {
		t.Fatalf("fork: %v, %v", forks, err)
	}
	for _, f := range forks {
		if err := f.Kill(ctx); err != nil {
			t.Error(err)
		}
	}
	if info, err = s.Restore(ctx, snap.ID); err != nil || info.State != ringfence.StateRunning {
		t.Errorf("restored: %+v, %v", info, err)
	}
	var ids []string
	for sn, err := range c.Snapshots(ctx, s.ID()) {
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, sn.ID)
	}
	if !slices.Equal(ids, []string{snap.ID}) {
		t.Errorf("listed: %v", ids)
	}
	if err := c.DeleteSnapshot(ctx, snap.ID); err != nil {
		t.Error(err)
	}
	_, err = c.Create(ctx, client.CreateOptions{Snapshot: snap.ID})
	wantCode(t, "from a deleted snapshot", err, ringfence.CodeNotFound)

	first := create(t, c, client.CreateOptions{Name: "once", IdempotencyKey: "job 42"})
	if again := create(t, c, client.CreateOptions{Name: "once", IdempotencyKey: "job 42"}); again.ID() != first.ID() || again.AccessToken() != first.AccessToken() {
		t.Errorf("of one key: %s and %s", first.ID(), again.ID())
	}
	_, err = c.Create(ctx, client.CreateOptions{Name: "twice", IdempotencyKey: "job 42"})
	wantCode(t, "another create of the same key", err, ringfence.CodeFailedPrecondition)
	if _, err = c.Create(ctx, client.CreateOptions{IdempotencyKey: "a\nb"}); ringfence.CodeOf(err) != ringfence.CodeInvalidArgument {
		t.Errorf("a key that no header carries: %v", err)
	}
}
