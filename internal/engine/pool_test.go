package engine_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/driver/fake"
	"ringfence.dev/ringfence/internal/engine"
)

// A pool is filled in the background, what is claimed is its owner's alone, one that went
// bad is never handed out, and nothing of it is left when the server ends.
func TestPool(t *testing.T) {
	m := newMachine(t)
	m.golden, m.pool = true, map[string]int{"code-interpreter": 3}
	d := m.start(fake.Options{StartDelay: 5 * time.Millisecond})
	full := func() {
		t.Helper()
		for end := time.Now().Add(time.Minute); m.onHost() != 3; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("the pool has %d", m.onHost())
			}
		}
	}
	full()
	list, err := d.List(t.Context(), ringfence.SandboxFilter{Project: project, Limit: 10})
	if err != nil || len(list) != 0 {
		t.Errorf("what waits is listed: %v %v", list, err)
	}
	m.host.CrashAll() // all go bad at once
	var wg sync.WaitGroup
	var mu sync.Mutex
	ids := map[string]bool{}
	for i := range 6 {
		wg.Go(func() {
			sb, token, err := d.Create(context.Background(), engine.CreateRequest{Project: project, Env: map[string]string{"N": strings.Repeat("x", i)}})
			if err != nil {
				t.Error(err)
				return
			}
			m.says(d, sb.ID, "echo $N; hostname", strings.Repeat("x", i)+"\n"+sb.ID+"\n")
			who, err := d.Authenticate(context.Background(), token)
			if err != nil || who.SandboxID != sb.ID {
				t.Errorf("its token: %+v %v", who, err)
			}
			mu.Lock()
			defer mu.Unlock()
			ids[sb.ID] = true
		})
	}
	wg.Wait()
	if len(ids) != 6 {
		t.Errorf("%d sandboxes of 6", len(ids))
	}
	for id := range ids {
		if err := d.Kill(t.Context(), project, id); err != nil {
			t.Error(err)
		}
	}
	full()
	sb := m.create(d, engine.CreateRequest{})
	if !strings.Contains(m.log.String(), "from=pool") {
		t.Error("it did not come from the pool")
	}
	other := m.create(d, engine.CreateRequest{Size: ringfence.Size{VCPU: 1}}) // never of another size
	if other.Size.VCPU != 1 || strings.Count(m.log.String(), "from=pool") > 7 {
		t.Errorf("another size: %+v", other.Size)
	}
	if _, _, err := d.Create(t.Context(), engine.CreateRequest{Project: project, User: "nobody-there"}); ringfence.CodeOf(err) != ringfence.CodeInvalidArgument {
		t.Errorf("an unknown user: %v", err)
	}
	m.stop(d)
	if n := m.onHost(); n != 2 {
		t.Errorf("%d are on the host, want the two that have an owner", n)
	}
	d = m.start(fake.Options{})
	m.mustAnswer(d, sb.ID)
}
