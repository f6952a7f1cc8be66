package engine_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/driver/fake"
	"ringfence.dev/ringfence/internal/engine"
)

func (m *machine) pause(d *daemon, id string) *ringfence.Sandbox {
	m.t.Helper()
	sb, err := d.Pause(context.Background(), project, id)
	if err != nil {
		m.t.Fatal(err)
	}
	if sb.State != ringfence.StatePaused || sb.PausedAt.IsZero() || !sb.ExpiresAt.IsZero() {
		m.t.Errorf("a paused sandbox: %+v", sb)
	}
	return sb
}

func (m *machine) says(d *daemon, id, command, want string) {
	m.t.Helper()
	if out, _, err := shell(d, id, command); err != nil || out != want {
		m.t.Errorf("%s: %q %v, want %q", command, out, err, want)
	}
}

// A paused sandbox is not on the host, and comes back with its files, its token and a
// running period of its own.
func TestPauseAndResume(t *testing.T) {
	m := newMachine(t)
	d := m.start(fake.Options{})
	sb := m.create(d, engine.CreateRequest{Env: map[string]string{"A": "b"}, Deadlines: ringfence.Deadlines{Timeout: time.Hour, NoAutoResume: true}})
	for i := range 20 {
		m.says(d, sb.ID, fmt.Sprintf("echo %d > /f; cat /f; echo $A", i), fmt.Sprintf("%d\nb\n", i))
		m.pause(d, sb.ID)
		m.pause(d, sb.ID) // again is no error
		if n := m.onHost(); n != 0 {
			t.Fatalf("%d sandboxes are on the host", n)
		}
		if _, _, err := shell(d, sb.ID, "true"); ringfence.CodeOf(err) != ringfence.CodeSandboxPaused {
			t.Fatalf("a command on it: %v", err)
		}
		if _, err := d.Authenticate(t.Context(), "00"); err == nil {
			t.Error("any token is accepted")
		}
		for range 2 {
			got, err := d.Resume(t.Context(), project, sb.ID)
			if err != nil || got.State != ringfence.StateRunning || time.Until(got.ExpiresAt) < 59*time.Minute || got.TokenHash != sb.TokenHash || got.Object != "" {
				t.Fatalf("resumed: %+v %v", got, err)
			}
		}
		m.says(d, sb.ID, "cat /f; hostname", fmt.Sprintf("%d\n%s\n", i, sb.ID))
	}
	m.pause(d, sb.ID)
	if err := d.Kill(t.Context(), project, sb.ID); err != nil {
		t.Error(err)
	}
	m.mustEnd(d, sb.ID, ringfence.StateDeleted, ringfence.ReasonKilled)
	for end := time.Now().Add(5 * time.Second); len(d.Snapshots.Objects()) > 0 && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
	if left := d.Snapshots.Objects(); len(left) > 0 {
		t.Errorf("what it was saved in is left: %v", left)
	}
	if _, err := d.Resume(t.Context(), project, sb.ID); ringfence.CodeOf(err) != ringfence.CodeSandboxEnded {
		t.Errorf("a resume after the end: %v", err)
	}
}

// A save that fails costs nothing; the sandbox runs on.
func TestPauseFails(t *testing.T) {
	m := newMachine(t)
	d := m.start(fake.Options{})
	sb := m.create(d, engine.CreateRequest{})
	m.says(d, sb.ID, "echo kept > /f", "")
	m.host.FailCheckpoints(errors.New("no space left on device"))
	if _, err := d.Pause(t.Context(), project, sb.ID); err == nil {
		t.Error("it was paused")
	}
	if _, err := d.Snapshot(t.Context(), project, sb.ID, ""); err == nil {
		t.Error("it was saved")
	}
	m.says(d, sb.ID, "cat /f", "kept\n")
	m.host.FailCheckpoints(nil)
	m.pause(d, sb.ID)
	m.says(d, sb.ID, "cat /f", "kept\n") // and it wakes
}

// Any number of calls wake a paused sandbox once, and all are served.
func TestAutoResume(t *testing.T) {
	m := newMachine(t)
	d := m.start(fake.Options{StartDelay: 50 * time.Millisecond})
	sb := m.create(d, engine.CreateRequest{})
	m.pause(d, sb.ID)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() { m.mustAnswer(d, sb.ID) })
	}
	wg.Wait()
	if n := strings.Count(m.log.String(), "sandbox resumed"); n != 1 {
		t.Errorf("it was resumed %d times", n)
	}
}

// A snapshot outlives its sandbox and starts others, which have nothing of its
// environment; forks have it, and all have tokens of their own.
func TestSnapshots(t *testing.T) {
	m := newMachine(t)
	d := m.start(fake.Options{})
	sb := m.create(d, engine.CreateRequest{Env: map[string]string{"SECRET": "s"}, Metadata: map[string]string{"k": "v"}})
	m.says(d, sb.ID, "echo one > /f", "")
	sn, err := d.Snapshot(t.Context(), project, sb.ID, "first")
	if err != nil {
		t.Fatal(err)
	}
	m.says(d, sb.ID, "echo two > /f", "")
	forks, err := d.Fork(t.Context(), project, sb.ID, 3)
	if err != nil || len(forks) != 3 {
		t.Fatalf("%d forks, %v", len(forks), err)
	}
	tokens := map[string]bool{}
	for _, f := range forks {
		m.says(d, f.Sandbox.ID, "cat /f; echo $SECRET; hostname", "two\ns\n"+f.Sandbox.ID+"\n")
		if tokens[f.Token] || ringfence.HashSecret(f.Token) == sb.TokenHash || f.Sandbox.Metadata["k"] != "v" {
			t.Errorf("a fork: %+v", f)
		}
		tokens[f.Token] = true
	}
	m.pause(d, sb.ID)
	again, err := d.Snapshot(t.Context(), project, sb.ID, "of the paused one")
	if err != nil || m.onHost() != 3 {
		t.Errorf("a snapshot of a paused sandbox: %v, %d on the host", err, m.onHost())
	}
	if got, err := d.RestoreInPlace(t.Context(), project, sb.ID, sn.ID); err != nil || got.TokenHash != sb.TokenHash {
		t.Fatal(got, err)
	}
	m.says(d, sb.ID, "cat /f; echo $SECRET", "one\ns\n")
	if _, err := d.RestoreInPlace(t.Context(), project, sb.ID, again.ID); err != nil {
		t.Fatal(err)
	}
	m.says(d, sb.ID, "cat /f", "two\n")
	if err := d.Kill(t.Context(), project, sb.ID); err != nil {
		t.Error(err)
	}
	list, err := d.ListSnapshots(t.Context(), ringfence.SnapshotFilter{Project: project, Limit: 10})
	if err != nil || len(list) != 2 || list[0].ID != again.ID || list[1].Name != "first" || list[1].Bytes == 0 {
		t.Errorf("the snapshots: %+v %v", list, err)
	}
	child := m.create(d, engine.CreateRequest{Snapshot: sn.ID, Env: map[string]string{"B": "c"}})
	m.says(d, child.ID, "cat /f; echo $SECRET$B; hostname", "one\nc\n"+child.ID+"\n")
	for _, id := range []string{sn.ID, again.ID} {
		if err := d.DeleteSnapshot(t.Context(), project, id); err != nil {
			t.Error(err)
		}
		if err := d.DeleteSnapshot(t.Context(), project, id); ringfence.CodeOf(err) != ringfence.CodeNotFound {
			t.Errorf("twice: %v", err)
		}
	}
	if left := d.Snapshots.Objects(); len(left) > 0 {
		t.Errorf("content is left: %v", left)
	}
	m.mustAnswer(d, child.ID)
	if _, err := d.GetSnapshot(t.Context(), "other", sn.ID); ringfence.CodeOf(err) != ringfence.CodeNotFound {
		t.Errorf("another project's: %v", err)
	}
}

// What was paused is paused after a restart of the daemon and of the host.
func TestPausedAcrossRestarts(t *testing.T) {
	m := newMachine(t)
	d := m.start(fake.Options{})
	paused, running := m.create(d, engine.CreateRequest{}), m.create(d, engine.CreateRequest{})
	m.says(d, paused.ID, "echo kept > /f", "")
	m.pause(d, paused.ID)
	sn, err := d.Snapshot(t.Context(), project, running.ID, "")
	if err != nil {
		t.Fatal(err)
	}
	m.stop(d)
	d = m.start(fake.Options{})
	if got, err := d.Get(t.Context(), project, paused.ID); err != nil || got.State != ringfence.StatePaused {
		t.Errorf("after a restart: %+v %v", got, err)
	}
	m.stop(d)
	m.boot, m.host = "boot-2", fake.NewHost()
	d = m.start(fake.Options{})
	m.mustEnd(d, running.ID, ringfence.StateFailed, ringfence.ReasonHostRestarted)
	m.says(d, paused.ID, "cat /f", "kept\n")
	m.mustAnswer(d, m.create(d, engine.CreateRequest{Snapshot: sn.ID}).ID)
}

// A daemon that dies in the middle of a pause or a resume leaves something that the next
// one finishes or undoes.
func TestHalfPaused(t *testing.T) {
	for state, moves := range map[string][]ringfence.State{
		"pausing":  {ringfence.StatePausing},
		"paused":   {ringfence.StatePausing, ringfence.StatePaused},
		"resuming": {ringfence.StatePausing, ringfence.StatePaused, ringfence.StateResuming},
	} {
		t.Run(state, func(t *testing.T) {
			m := newMachine(t)
			d := m.start(fake.Options{})
			sb := m.create(d, engine.CreateRequest{})
			m.says(d, sb.ID, "echo kept > /f", "")
			sn, err := d.Snapshot(t.Context(), project, sb.ID, "")
			if err != nil {
				t.Fatal(err)
			}
			row, err := d.Get(t.Context(), project, sb.ID)
			if err != nil {
				t.Fatal(err)
			}
			m.stop(d) // its instance goes on
			store := m.openStore()
			generation, from := row.Generation, row.State
			for _, to := range moves {
				if generation, err = store.MoveSandbox(t.Context(), ringfence.Move{ID: sb.ID, Generation: generation, From: from, To: to, Object: object(to, sn), At: time.Now()}); err != nil {
					t.Fatal(err)
				}
				from = to
			}
			if err := store.Close(); err != nil {
				t.Fatal(err)
			}
			d = m.start(fake.Options{})
			m.says(d, sb.ID, "cat /f", "kept\n")
			got, err := d.Get(t.Context(), project, sb.ID)
			if err != nil || got.State != ringfence.StateRunning || m.onHost() != 1 {
				t.Errorf("it is %+v, %v, with %d on the host", got, err, m.onHost())
			}
		})
	}
}

func object(to ringfence.State, sn *ringfence.Snapshot) string {
	if to == ringfence.StatePaused {
		return sn.Object
	}
	return ""
}

// Pauses and resumes that race end in one of the two states, with nothing lost.
func TestPauseAndResumeRace(t *testing.T) {
	m := newMachine(t)
	d := m.start(fake.Options{})
	sb := m.create(d, engine.CreateRequest{})
	m.says(d, sb.ID, "echo kept > /f", "")
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 50 {
				var err error
				if i%2 == 0 {
					_, err = d.Pause(context.Background(), project, sb.ID)
				} else {
					_, err = d.Resume(context.Background(), project, sb.ID)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	m.says(d, sb.ID, "cat /f", "kept\n")
	if n := m.onHost(); n != 1 {
		t.Errorf("%d on the host", n)
	}
}

// A kill works in every state and during every transition, and leaves nothing.
func TestKillDuringTransitions(t *testing.T) {
	m := newMachine(t)
	d := m.start(fake.Options{StartDelay: 3 * time.Millisecond})
	for i := range 40 {
		sb := m.create(d, engine.CreateRequest{})
		if i%2 == 1 {
			m.pause(d, sb.ID)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			if i%2 == 1 {
				d.Resume(context.Background(), project, sb.ID) // either wins
			} else {
				d.Pause(context.Background(), project, sb.ID) // either wins
			}
		})
		wg.Go(func() {
			time.Sleep(time.Duration(i%8) * time.Millisecond)
			for range 2 {
				if err := d.Kill(context.Background(), project, sb.ID); err != nil {
					t.Errorf("kill: %v", err)
				}
			}
		})
		wg.Wait()
		m.mustEnd(d, sb.ID, ringfence.StateDeleted, ringfence.ReasonKilled)
	}
	if n := m.onHost(); n != 0 {
		t.Errorf("%d on the host", n)
	}
}

// What deadlines lead to, and that they can be changed.
func TestDeadlines(t *testing.T) {
	m := newMachine(t)
	d := m.start(fake.Options{})
	state := func(id string) ringfence.State {
		sb, err := d.Get(context.Background(), project, id)
		if err != nil {
			t.Fatal(err)
		}
		return sb.State
	}
	until := func(id string, want ringfence.State) {
		t.Helper()
		for end := time.Now().Add(time.Minute); state(id) != want; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("it is %s and not %s", state(id), want)
			}
		}
	}
	atOnce, soon := time.Duration(0), 100*time.Millisecond

	t.Run("TimeoutPauses", func(t *testing.T) {
		sb := m.create(d, engine.CreateRequest{Deadlines: ringfence.Deadlines{Timeout: soon, OnTimeout: ringfence.OnTimeoutPause}})
		m.says(d, sb.ID, "echo unsynced > /f", "")
		until(sb.ID, ringfence.StatePaused)
		m.says(d, sb.ID, "cat /f", "unsynced\n") // wakes it for another period
		until(sb.ID, ringfence.StatePaused)
	})
	t.Run("Idle", func(t *testing.T) {
		sb := m.create(d, engine.CreateRequest{Deadlines: ringfence.Deadlines{IdleTimeout: 300 * time.Millisecond}})
		m.says(d, sb.ID, "sleep 1; echo still", "still\n") // what is under way counts
		if state(sb.ID) != ringfence.StateRunning {
			t.Error("it ended while it was used")
		}
		until(sb.ID, ringfence.StateDeleted)
		m.mustEnd(d, sb.ID, ringfence.StateDeleted, ringfence.ReasonExpired)
	})
	t.Run("AutoDelete", func(t *testing.T) {
		sb := m.create(d, engine.CreateRequest{Deadlines: ringfence.Deadlines{AutoDelete: &atOnce}})
		m.mustAnswer(d, sb.ID)
		if _, err := d.Pause(context.Background(), project, sb.ID); err != nil {
			t.Error(err)
		}
		until(sb.ID, ringfence.StateDeleted)
		kept := m.create(d, engine.CreateRequest{Deadlines: ringfence.Deadlines{AutoDelete: &soon}})
		m.pause(d, kept.ID)
		var none *time.Duration
		if _, err := d.SetDeadlines(t.Context(), project, kept.ID, engine.DeadlinesChange{AutoDelete: &none}); err != nil {
			t.Error(err)
		}
		time.Sleep(2 * soon)
		m.mustAnswer(d, kept.ID)
		late := m.create(d, engine.CreateRequest{})
		m.pause(d, late.ID)
		hour := time.Hour
		after := &hour
		began := time.Now()
		got, err := d.SetDeadlines(t.Context(), project, late.ID, engine.DeadlinesChange{AutoDelete: &after})
		if err != nil {
			t.Fatal(err)
		}
		if at := d.Instants(got); at.DeleteAt.Before(began.Add(hour).Truncate(time.Microsecond)) || !at.ExpiresAt.IsZero() {
			t.Errorf("a change counts from when it was made: %+v", at)
		}
		after = &soon
		if _, err := d.SetDeadlines(t.Context(), project, late.ID, engine.DeadlinesChange{AutoDelete: &after}); err != nil {
			t.Fatal(err)
		}
		until(late.ID, ringfence.StateDeleted)
	})
	t.Run("Change", func(t *testing.T) {
		sb := m.create(d, engine.CreateRequest{Deadlines: ringfence.Deadlines{Timeout: time.Hour}})
		got, err := d.SetDeadlines(t.Context(), project, sb.ID, engine.DeadlinesChange{Timeout: &soon})
		if err != nil || time.Until(got.ExpiresAt) > soon {
			t.Errorf("%+v %v", got, err)
		}
		until(sb.ID, ringfence.StateDeleted)
		if _, err := d.SetDeadlines(t.Context(), project, sb.ID, engine.DeadlinesChange{Timeout: &soon}); ringfence.CodeOf(err) != ringfence.CodeSandboxEnded {
			t.Errorf("after the end: %v", err)
		}
	})
}

// A fixed timeout ends a sandbox where it would have ended without a pause.
func TestFixedTimeout(t *testing.T) {
	m := newMachine(t)
	d := m.start(fake.Options{})
	const life = time.Hour
	create := func(on ringfence.OnTimeout) *ringfence.Sandbox {
		return m.create(d, engine.CreateRequest{Deadlines: ringfence.Deadlines{Timeout: life, OnTimeout: on, FixedTimeout: true}})
	}
	get := func(id string) *ringfence.Sandbox {
		t.Helper()
		sb, err := d.Get(t.Context(), project, id)
		if err != nil {
			t.Fatal(err)
		}
		return sb
	}
	pause := func(id string) {
		t.Helper()
		if _, err := d.Pause(t.Context(), project, id); err != nil {
			t.Fatal(err)
		}
	}
	sb := create(ringfence.OnTimeoutKill)
	end := sb.ExpiresAt
	if end.IsZero() {
		t.Fatal("it has no end")
	}
	pause(sb.ID)
	if paused := get(sb.ID); !paused.ExpiresAt.Equal(end) || !d.Instants(paused).DeleteAt.Equal(end) {
		t.Errorf("paused, it ends at %v, and %+v", paused.ExpiresAt, d.Instants(paused))
	}
	m.stop(d)
	d = m.start(fake.Options{})
	if paused := get(sb.ID); !paused.ExpiresAt.Equal(end) || !paused.Deadlines.FixedTimeout {
		t.Errorf("after a restart it ends at %v: %+v", paused.ExpiresAt, paused.Deadlines)
	}
	if _, err := d.Resume(t.Context(), project, sb.ID); err != nil {
		t.Fatal(err)
	}
	if resumed := get(sb.ID); !resumed.ExpiresAt.Equal(end) {
		t.Errorf("resumed, it ends at %v, not %v", resumed.ExpiresAt, end)
	}
	// Set anew while it is paused, the end comes also then.
	pause(sb.ID)
	soon := 50 * time.Millisecond
	if _, err := d.SetDeadlines(t.Context(), project, sb.ID, engine.DeadlinesChange{Timeout: &soon}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the end", func() bool { return get(sb.ID).State == ringfence.StateDeleted })
	m.mustEnd(d, sb.ID, ringfence.StateDeleted, ringfence.ReasonExpired)

	// One that is paused at its end stays paused, and has another life when it is resumed.
	sb = create(ringfence.OnTimeoutPause)
	if _, err := d.SetDeadlines(t.Context(), project, sb.ID, engine.DeadlinesChange{Timeout: &soon}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the pause", func() bool { return get(sb.ID).State == ringfence.StatePaused })
	if at := d.Instants(get(sb.ID)); !at.DeleteAt.IsZero() {
		t.Errorf("it is to be deleted at %v", at.DeleteAt)
	}
	long := life
	if _, err := d.SetDeadlines(t.Context(), project, sb.ID, engine.DeadlinesChange{Timeout: &long}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Resume(t.Context(), project, sb.ID); err != nil {
		t.Fatal(err)
	}
	if left := time.Until(get(sb.ID).ExpiresAt); left < life/2 || left > life {
		t.Errorf("it has %v left", left)
	}
}

// A start that takes longer than the time that a sandbox may run does not end it when what
// comes then is a pause.
func TestTimeoutBeginsWithTheRun(t *testing.T) {
	m := newMachine(t)
	d := m.start(fake.Options{StartDelay: 300 * time.Millisecond})
	sb := m.create(d, engine.CreateRequest{Deadlines: ringfence.Deadlines{Timeout: 100 * time.Millisecond, OnTimeout: ringfence.OnTimeoutPause}})
	if !sb.ExpiresAt.After(sb.StartedAt) {
		t.Errorf("it began at %v and ends at %v", sb.StartedAt, sb.ExpiresAt)
	}
}
