package engine_test

import (
	"context"
	"sync"
	"testing"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/driver/fake"
	"ringfence.dev/ringfence/internal/engine"
)

// Creates of one name make one sandbox, also at once and across a restart, and all get
// its token; another request of that name is refused.
func TestIdempotencyKey(t *testing.T) {
	m := newMachine(t)
	d := m.start(fake.Options{})
	req := engine.CreateRequest{Project: project, IdempotencyKey: "job-7", Secret: "rf_key", Env: map[string]string{"A": "b"}}
	var wg sync.WaitGroup
	var mu sync.Mutex
	seen := map[string]string{}
	create := func() {
		sb, token, err := d.Create(context.Background(), req)
		if err != nil {
			t.Error(err)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		seen[sb.ID] = token
	}
	for range 10 {
		wg.Go(create)
	}
	wg.Wait()
	m.stop(d)
	d = m.start(fake.Options{})
	create()
	if len(seen) != 1 || m.onHost() != 1 {
		t.Fatalf("%d sandboxes, %d on the host", len(seen), m.onHost())
	}
	for id, token := range seen {
		if who, err := d.Authenticate(t.Context(), token); err != nil || who.SandboxID != id {
			t.Errorf("its token: %+v %v", who, err)
		}
	}
	for _, other := range []engine.CreateRequest{
		{Project: project, IdempotencyKey: "job-7", Secret: "rf_key"},
		{Project: project, IdempotencyKey: "job-7", Secret: "rf_other", Env: req.Env},
	} {
		if _, _, err := d.Create(t.Context(), other); ringfence.CodeOf(err) != ringfence.CodeFailedPrecondition {
			t.Errorf("another request: %v", err)
		}
	}
	if _, _, err := d.Create(t.Context(), engine.CreateRequest{Project: project, IdempotencyKey: "job-8", User: "nobody-there"}); err == nil {
		t.Error("a create that cannot work worked")
	}
	m.create(d, engine.CreateRequest{IdempotencyKey: "job-8"}) // it failed, so the name is free
}
