package engine_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/driver/fake"
	"ringfence.dev/ringfence/internal/engine"
)

// A create that finds the host full waits for room, and is refused when none comes.
func TestQueue(t *testing.T) {
	m := newMachine(t)
	var room, looked atomic.Int64
	room.Store(1 << 20)
	m.available = func() int64 { looked.Add(1); return room.Load() }
	m.queue = time.Minute
	d := m.start(fake.Options{})
	create := func(ctx context.Context) chan error {
		done := make(chan error, 1)
		go func() {
			_, _, err := d.Create(ctx, engine.CreateRequest{Project: project})
			done <- err
		}()
		return done
	}
	looks := func() { // until somebody waits
		t.Helper()
		m.await("a look for room", func() bool { return looked.Load() > 3 })
	}

	paused := m.create(d, engine.CreateRequest{})
	if _, err := d.Pause(t.Context(), project, paused.ID); err != nil {
		t.Fatal(err)
	}
	room.Store(0)
	looked.Store(0)
	first := create(context.Background())
	second := create(context.Background())
	woken := make(chan error, 1)
	go func() {
		_, err := d.Resume(context.Background(), project, paused.ID)
		woken <- err
	}()
	looks()
	gone, leave := context.WithCancel(context.Background())
	third := create(gone)
	leave()
	if err := <-third; ringfence.CodeOf(err) != ringfence.CodeCanceled {
		t.Errorf("who went away: %v", err)
	}
	for _, waiting := range []chan error{first, second, woken} {
		select {
		case err := <-waiting:
			t.Errorf("it did not wait: %v", err)
		default:
		}
	}
	room.Store(1 << 20)
	for _, waiting := range []chan error{first, second, woken} {
		if err := <-waiting; err != nil {
			t.Error(err)
		}
	}
	m.stop(d)

	m.queue = 50 * time.Millisecond
	room.Store(0)
	d = m.start(fake.Options{})
	_, _, err := d.Create(context.Background(), engine.CreateRequest{Project: project})
	var e *ringfence.Error
	if !errors.As(err, &e) || e.Code != ringfence.CodeResourceExhausted || e.RetryAfterSeconds == 0 {
		t.Errorf("nothing came: %v", err)
	}

	m.stop(d)
	m.queue = time.Hour
	d = m.start(fake.Options{})
	looked.Store(0)
	waiting := create(context.Background())
	looks()
	m.stop(d)
	if err := <-waiting; ringfence.CodeOf(err) != ringfence.CodeUnavailable {
		t.Errorf("the server ends: %v", err)
	}
}

// What waits in the pool makes room for what somebody waits for.
func TestQueueTakesFromThePool(t *testing.T) {
	m := newMachine(t)
	m.golden, m.pool = true, map[string]int{"code-interpreter": 2}
	var scarce atomic.Bool
	// Once scarce, there is room for one sandbox that is not of the pool when the pool is empty.
	m.available = func() int64 {
		if scarce.Load() {
			return 3200 - int64(m.onHost())*2048
		}
		return 1 << 20
	}
	m.queue = time.Minute
	d := m.start(fake.Options{})
	m.await("the pool", func() bool { return m.onHost() == 2 })
	scarce.Store(true)
	sb := m.create(d, engine.CreateRequest{Size: ringfence.Size{VCPU: 1}})
	m.mustAnswer(d, sb.ID)
}
