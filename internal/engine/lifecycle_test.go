package engine_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/driver"
	"ringfence.dev/ringfence/internal/driver/fake"
	"ringfence.dev/ringfence/internal/engine"
)

func TestLife(t *testing.T) {
	m := newMachine(t)
	d := m.start(fake.Options{})
	sb := m.create(d, engine.CreateRequest{Name: "n", Env: map[string]string{"FROM": "sandbox"}, Metadata: map[string]string{"a": "b"}})
	if !ringfence.ValidSandboxID(sb.ID) || sb.State != ringfence.StateRunning || sb.StartedAt.Before(sb.CreatedAt) || !sb.ExpiresAt.IsZero() || sb.Template != "code-interpreter" {
		t.Errorf("%+v", sb)
	}
	if out, _, err := shell(d, sb.ID, "echo $FROM $T"); err != nil || out != "sandbox 1\n" {
		t.Errorf("the environment: %q %v", out, err)
	}
	if list, err := d.List(t.Context(), ringfence.SandboxFilter{Project: project, Limit: 10}); err != nil || len(list) != 1 || list[0].ID != sb.ID {
		t.Errorf("list: %v %v", list, err)
	}
	if err := d.Kill(t.Context(), project, sb.ID); err != nil {
		t.Fatal(err)
	}
	m.mustEnd(d, sb.ID, ringfence.StateDeleted, ringfence.ReasonKilled)
	if m.onHost() != 0 {
		t.Error("it is still on the host")
	}
	if err := d.Kill(t.Context(), project, sb.ID); err != nil {
		t.Errorf("killing it again: %v", err)
	}
	if err := d.Kill(t.Context(), "other", sb.ID); ringfence.CodeOf(err) != ringfence.CodeNotFound {
		t.Errorf("another project kills it: %v", err)
	}
}

func TestAccessToken(t *testing.T) {
	m := newMachine(t)
	d := m.start(fake.Options{})
	sb := m.create(d, engine.CreateRequest{})
	token, err := d.AccessToken(t.Context(), project, sb.ID)
	if err != nil || !ringfence.ValidToken(token) {
		t.Fatal(token, err)
	}
	who := func(d *daemon) ringfence.Code {
		got, err := d.Authenticate(t.Context(), token)
		if err == nil && (got.SandboxID != sb.ID || got.Project != project) {
			t.Errorf("it is taken for %+v", got)
		}
		return ringfence.CodeOf(err)
	}
	if code := who(d); code != "" {
		t.Error(code)
	}
	if _, err := d.AccessToken(t.Context(), "another", sb.ID); ringfence.CodeOf(err) != ringfence.CodeNotFound {
		t.Errorf("of another project: %v", err)
	}
	m.stop(d)
	d = m.start(fake.Options{})
	if again, err := d.AccessToken(t.Context(), project, sb.ID); err != nil || again != token || who(d) != "" {
		t.Errorf("after a restart: %v", err)
	}
	if err := d.Kill(t.Context(), project, sb.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := d.AccessToken(t.Context(), project, sb.ID); ringfence.CodeOf(err) != ringfence.CodeSandboxEnded || who(d) != ringfence.CodeUnauthenticated {
		t.Errorf("after the end: %v", err)
	}
}

func TestKillAtOnce(t *testing.T) {
	m := newMachine(t)
	d := m.start(fake.Options{})
	sb := m.create(d, engine.CreateRequest{})
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if err := d.Kill(context.Background(), project, sb.ID); err != nil {
				t.Error(err)
			}
			if m.onHost() != 0 {
				t.Error("a kill returned while it was on the host")
			}
		})
	}
	wg.Wait()
	m.mustEnd(d, sb.ID, ringfence.StateDeleted, ringfence.ReasonKilled)
}

// starting returns the sandbox that is being created.
func starting(t *testing.T, d *daemon) *ringfence.Sandbox {
	t.Helper()
	for range 1000 {
		list, err := d.List(t.Context(), ringfence.SandboxFilter{Project: project, States: []ringfence.State{ringfence.StateStarting}, Limit: 2})
		if err != nil {
			t.Fatal(err)
		}
		if len(list) == 1 {
			return list[0]
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatal("nothing is being created")
	return nil
}

func TestEndsDuringCreate(t *testing.T) {
	for _, tc := range []struct {
		name   string
		end    func(*daemon, *ringfence.Sandbox, context.CancelFunc) error
		code   ringfence.Code
		state  ringfence.State
		reason ringfence.Reason
	}{
		{"Kill", func(d *daemon, sb *ringfence.Sandbox, _ context.CancelFunc) error {
			return d.Kill(context.Background(), project, sb.ID)
		}, ringfence.CodeSandboxEnded, ringfence.StateDeleted, ringfence.ReasonKilled},
		{"CallerGone", func(_ *daemon, _ *ringfence.Sandbox, cancel context.CancelFunc) error { cancel(); return nil },
			ringfence.CodeCanceled, ringfence.StateFailed, ringfence.ReasonStartFailed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newMachine(t)
			d := m.start(fake.Options{StartDelay: 20 * time.Second})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			result := make(chan error, 1)
			go func() {
				_, _, err := d.Create(ctx, engine.CreateRequest{Project: project})
				result <- err
			}()
			sb := starting(t, d)
			if err := tc.end(d, sb, cancel); err != nil {
				t.Errorf("the end: %v", err)
			}
			select {
			case err := <-result:
				if ringfence.CodeOf(err) != tc.code {
					t.Errorf("the creator gets %v", err)
				}
			case <-time.After(time.Minute):
				t.Fatal("the creator waits on")
			}
			m.mustEnd(d, sb.ID, tc.state, tc.reason)
			if m.onHost() != 0 {
				t.Error("it is on the host")
			}
		})
	}
}

func TestStartFails(t *testing.T) {
	m := newMachine(t)
	cause := errors.New("secret detail of the host")
	d := m.start(fake.Options{StartError: func(driver.Spec) error { return cause }})
	_, _, err := d.Create(t.Context(), engine.CreateRequest{Project: project})
	var e *ringfence.Error
	if !errors.As(err, &e) || e.Code != ringfence.CodeInternal || strings.Contains(e.Message+e.Hint, "secret") || !errors.Is(err, cause) {
		t.Errorf("got %v", err)
	}
	list, err := d.List(t.Context(), ringfence.SandboxFilter{Project: project, States: []ringfence.State{ringfence.StateFailed}, Limit: 2})
	if err != nil || len(list) != 1 || list[0].Reason != ringfence.ReasonStartFailed || strings.Contains(list[0].Detail, "secret") {
		t.Errorf("the record: %+v %v", list, err)
	}
}

// An agent that never answers fails the start at its deadline, and leaves nothing.
func TestStartStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		d := m.start(fake.Options{Stuck: true})
		began := time.Now()
		_, _, err := d.Create(t.Context(), engine.CreateRequest{Project: project})
		if ringfence.CodeOf(err) != ringfence.CodeUnavailable || time.Since(began) > time.Minute {
			t.Errorf("got %v after %v", err, time.Since(began))
		}
		if m.onHost() != 0 {
			t.Error("it is on the host")
		}
	})
}

func TestLifeLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		d := m.start(fake.Options{})
		began := time.Now()
		sb := m.create(d, engine.CreateRequest{Deadlines: ringfence.Deadlines{Timeout: 90 * time.Second}})
		if got := sb.ExpiresAt.Sub(sb.CreatedAt); got != 90*time.Second {
			t.Errorf("it expires after %v", got)
		}
		// It ends whatever it does.
		_, _, err := shell(d, sb.ID, "sleep 600")
		if ringfence.CodeOf(err) != ringfence.CodeSandboxEnded || time.Since(began) < 89*time.Second || time.Since(began) > 92*time.Second {
			t.Errorf("a command that was running: %v after %v", err, time.Since(began))
		}
		time.Sleep(time.Second)
		m.mustEnd(d, sb.ID, ringfence.StateDeleted, ringfence.ReasonExpired)
		if m.onHost() != 0 {
			t.Error("it is on the host")
		}
	})
}

func TestLifeLimitAcrossRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		d := m.start(fake.Options{})
		while := m.create(d, engine.CreateRequest{Deadlines: ringfence.Deadlines{Timeout: 60 * time.Second}})
		after := m.create(d, engine.CreateRequest{Deadlines: ringfence.Deadlines{Timeout: 120 * time.Second}})
		never := m.create(d, engine.CreateRequest{})
		m.stop(d)
		time.Sleep(70 * time.Second)
		d = m.start(fake.Options{})
		time.Sleep(time.Second)
		m.mustEnd(d, while.ID, ringfence.StateDeleted, ringfence.ReasonExpired)
		m.mustAnswer(d, after.ID)
		m.mustAnswer(d, never.ID)
		time.Sleep(50 * time.Second)
		m.mustEnd(d, after.ID, ringfence.StateDeleted, ringfence.ReasonExpired)
		m.mustAnswer(d, never.ID)
		if m.onHost() != 1 {
			t.Errorf("%d are on the host, want 1", m.onHost())
		}
	})
}

func TestRestart(t *testing.T) {
	m := newMachine(t)
	d := m.start(fake.Options{})
	runs := m.create(d, engine.CreateRequest{})
	dies := m.create(d, engine.CreateRequest{})
	m.stop(d)
	// One dies while no daemon is there, and one appears that no record knows.
	killOnHost(t, m, dies.ID)
	if _, err := fake.New(fake.Options{Host: m.host}).Create(t.Context(), driver.Spec{ID: ringfence.NewSandboxID()}); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	d = m.start(fake.Options{})
	m.mustAnswer(d, runs.ID)
	if time.Since(began) > 10*time.Second { // test/faults holds the real one to a second
		t.Errorf("it answered after %v", time.Since(began))
	}
	m.mustEnd(d, dies.ID, ringfence.StateFailed, ringfence.ReasonCrashed)
	waitFor(t, "the unknown one to be killed", func() bool { return m.onHost() == 1 })
}

func TestHostRestart(t *testing.T) {
	m := newMachine(t)
	d := m.start(fake.Options{})
	sb := m.create(d, engine.CreateRequest{})
	m.stop(d)
	m.boot, m.host = "boot-2", fake.NewHost()
	d = m.start(fake.Options{})
	m.mustEnd(d, sb.ID, ringfence.StateFailed, ringfence.ReasonHostRestarted)
}

// A daemon that died while it created a sandbox told nobody of it.
func TestRestartDuringCreate(t *testing.T) {
	m := newMachine(t)
	d := m.start(fake.Options{})
	row := &ringfence.Sandbox{ID: ringfence.NewSandboxID(), Project: project, State: ringfence.StateStarting, CreatedAt: time.Now(), Generation: 1}
	if err := d.store.CreateSandbox(t.Context(), row); err != nil {
		t.Fatal(err)
	}
	if _, err := fake.New(fake.Options{Host: m.host}).Create(t.Context(), driver.Spec{ID: row.ID}); err != nil {
		t.Fatal(err)
	}
	m.stop(d)
	d = m.start(fake.Options{})
	m.mustEnd(d, row.ID, ringfence.StateFailed, ringfence.ReasonStartFailed)
	waitFor(t, "it to leave the host", func() bool { return m.onHost() == 0 })
}

func TestPurge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		d := m.start(fake.Options{})
		sb := m.create(d, engine.CreateRequest{})
		if err := d.Kill(t.Context(), project, sb.ID); err != nil {
			t.Fatal(err)
		}
		m.stop(d)
		time.Sleep(ringfence.KeepEnded - time.Hour)
		d = m.start(fake.Options{})
		m.mustEnd(d, sb.ID, ringfence.StateDeleted, ringfence.ReasonKilled)
		time.Sleep(3 * time.Hour)
		if _, err := d.Get(t.Context(), project, sb.ID); ringfence.CodeOf(err) != ringfence.CodeNotFound {
			t.Errorf("after eight days: %v", err)
		}
	})
}

func TestCrash(t *testing.T) {
	m := newMachine(t)
	d := m.start(fake.Options{CrashAfter: 300 * time.Millisecond})
	sb := m.create(d, engine.CreateRequest{})
	_, exit, err := shell(d, sb.ID, "sleep 60")
	if ringfence.CodeOf(err) != ringfence.CodeSandboxEnded {
		t.Errorf("a command during which it crashed: %+v %v", exit, err)
	}
	m.mustEnd(d, sb.ID, ringfence.StateFailed, ringfence.ReasonCrashed)
	waitFor(t, "it to leave the host", func() bool { return m.onHost() == 0 })
}

func killOnHost(t *testing.T, m *machine, id string) {
	t.Helper()
	found, err := fake.New(fake.Options{Host: m.host}).Recover(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, inst := range found {
		if inst.ID() == id {
			if err := inst.Kill(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func waitFor(t *testing.T, what string, is func() bool) {
	t.Helper()
	for range 1000 {
		if is() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("waited in vain for %s", what)
}
