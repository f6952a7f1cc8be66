package engine_test

import (
	"context"
	"strings"
	"testing"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/driver/fake"
	"ringfence.dev/ringfence/internal/engine"
)

// The ready command of a template has run once in every sandbox of it, whether it booted
// or comes from the golden snapshot, and before its creator gets it.
func TestReadyCommand(t *testing.T) {
	m := newMachine(t)
	m.golden, m.ready = true, "echo $FROM >> /ready"
	d := m.start(fake.Options{})
	m.says(d, m.create(d, engine.CreateRequest{Env: map[string]string{"FROM": "creator"}}).ID, "cat /ready", "template\n")
	m.await("the golden snapshot", func() bool { return strings.Contains(m.log.String(), "made a golden snapshot") })
	restored := m.create(d, engine.CreateRequest{})
	m.says(d, restored.ID, "cat /ready", "template\n")
	sn, err := d.Snapshot(t.Context(), project, restored.ID, "")
	if err != nil {
		t.Fatal(err)
	}
	m.says(d, m.create(d, engine.CreateRequest{Snapshot: sn.ID}).ID, "cat /ready", "template\n")
	m.stop(d)

	// Another command makes another golden snapshot.
	m.ready = "echo other > /ready"
	d = m.start(fake.Options{})
	m.says(d, m.create(d, engine.CreateRequest{}).ID, "cat /ready", "other\n")
	m.stop(d)

	m.ready = "echo no such thing; exit 3"
	d = m.start(fake.Options{})
	before := m.onHost()
	_, _, err = d.Create(context.Background(), engine.CreateRequest{Project: project})
	if ringfence.CodeOf(err) != ringfence.CodeFailedPrecondition || !strings.Contains(err.Error(), "no such thing") {
		t.Errorf("a ready command that fails: %v", err)
	}
	if n := m.onHost(); n != before {
		t.Errorf("%d are on the host, there were %d", n, before)
	}
}
