package engine_test

import (
	"strings"
	"testing"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/driver/fake"
	"ringfence.dev/ringfence/internal/engine"
)

func types(events []ringfence.Event) string {
	var names []string
	for _, ev := range events {
		names = append(names, string(ev.Type))
	}
	return strings.Join(names, " ")
}

func (m *machine) events(d *daemon, f engine.EventFilter) engine.EventPage {
	m.t.Helper()
	f.Project = project
	page, err := d.Events(m.t.Context(), f)
	if err != nil {
		m.t.Fatal(err)
	}
	return page
}

func TestEvents(t *testing.T) {
	m := newMachine(t)
	d := m.start(fake.Options{})
	none := m.events(d, engine.EventFilter{})
	if len(none.Events) != 0 {
		t.Errorf("a first start has %s", types(none.Events))
	}
	a, b := m.create(d, engine.CreateRequest{}), m.create(d, engine.CreateRequest{})
	select {
	case <-none.More:
	default:
		t.Error("nobody was told of the events")
	}
	if err := d.Kill(t.Context(), project, a.ID); err != nil {
		t.Fatal(err)
	}
	all := m.events(d, engine.EventFilter{After: none.Next})
	if got := types(all.Events); got != "created started created started ended" {
		t.Errorf("the project has %s", got)
	}
	if end := all.Events[4]; end.SandboxID != a.ID || end.Data["reason"] != string(ringfence.ReasonKilled) || end.At.IsZero() {
		t.Errorf("the end is %+v", end)
	}
	if got := types(m.events(d, engine.EventFilter{Sandbox: b.ID}).Events); got != "created started" {
		t.Errorf("the other has %s", got)
	}
	if _, _, err := shell(d, b.ID, "exit 3"); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Mkdir(t.Context(), engine.FileRef{Project: project, Sandbox: b.ID, Path: "/new"}, "", 0); err != nil {
		t.Fatal(err)
	}
	did := m.events(d, engine.EventFilter{Sandbox: b.ID, After: all.Next})
	if got := types(did.Events); got != "process_started process_ended directory_made" || did.Events[1].Data["exit_code"] != 3 || did.Events[2].Data["path"] != "/new" {
		t.Errorf("the other did %s: %+v", got, did.Events)
	}
	all = m.events(d, engine.EventFilter{After: none.Next})
	first := m.events(d, engine.EventFilter{Limit: 2})
	if rest := m.events(d, engine.EventFilter{After: first.Next}); !strings.HasPrefix(types(rest.Events), "created started ended") || rest.Next != all.Next {
		t.Errorf("after two there is %s, next %s", types(rest.Events), rest.Next)
	}
	if now := m.events(d, engine.EventFilter{After: "now"}); len(now.Events) != 0 || now.Next != all.Next {
		t.Errorf("now has %s, next %s", types(now.Events), now.Next)
	}
	for _, bad := range []string{"x", "-1", "a-", "a-x", strings.Repeat("a", 100) + "-1"} {
		if _, err := d.Events(t.Context(), engine.EventFilter{Project: project, After: bad}); ringfence.CodeOf(err) != ringfence.CodeInvalidArgument {
			t.Errorf("after %s: %v", bad, err)
		}
	}
	if _, err := d.Events(t.Context(), engine.EventFilter{Project: "another", Sandbox: b.ID}); ringfence.CodeOf(err) != ringfence.CodeNotFound {
		t.Errorf("another project sees the events: %v", err)
	}

	// The next process has lost them, and says so, once.
	m.stop(d)
	d = m.start(fake.Options{})
	for name, f := range map[string]engine.EventFilter{
		"from where it was": {After: all.Next}, "from the oldest": {}, "of the sandbox": {Sandbox: b.ID, After: all.Next}, "of it from the oldest": {Sandbox: b.ID},
	} {
		page := m.events(d, f)
		if types(page.Events) != "gap" || page.Events[0].Data["reason"] != ringfence.GapDaemonRestarted || page.Events[0].SandboxID != f.Sandbox {
			t.Errorf("%s: %+v", name, page.Events)
		}
		f.After = page.Events[0].ID
		if again := m.events(d, f); len(again.Events) != 0 {
			t.Errorf("%s: and then %s", name, types(again.Events))
		}
	}
	c := m.create(d, engine.CreateRequest{})
	if got := types(m.events(d, engine.EventFilter{Sandbox: c.ID}).Events); got != "created started" {
		t.Errorf("a sandbox of this process has %s", got)
	}
}

func TestEventOverflow(t *testing.T) {
	m := newMachine(t)
	d := m.start(fake.Options{})
	sb := m.create(d, engine.CreateRequest{})
	start := m.events(d, engine.EventFilter{}).Next
	for range 10_050 {
		d.EmitForTest(project, sb.ID, ringfence.EventFileWritten, map[string]any{"path": "/x"})
	}
	page := m.events(d, engine.EventFilter{After: start})
	if page.Events[0].Type != ringfence.EventGap || page.Events[0].Data["reason"] != ringfence.GapOverflow {
		t.Errorf("it begins with %+v", page.Events[0])
	}
	n := 0
	for len(page.Events) > 0 {
		n += len(page.Events)
		page = m.events(d, engine.EventFilter{After: page.Next})
	}
	if n != 10_001 {
		t.Errorf("%d events, want the last 10000 and a gap", n)
	}
	for range 5000 {
		d.EmitForTest(project, sb.ID, ringfence.EventFileWritten, map[string]any{"path": strings.Repeat("x", 4096)})
	}
	if page := m.events(d, engine.EventFilter{After: start, Limit: 1}); page.Events[0].Type != ringfence.EventGap {
		t.Errorf("it begins with %+v", page.Events[0])
	}
	if n := d.EventBytesForTest(project); n > 9<<20 {
		t.Errorf("%d bytes are kept", n)
	}
}
