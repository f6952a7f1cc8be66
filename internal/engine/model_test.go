package engine_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/driver/fake"
	"ringfence.dev/ringfence/internal/engine"
)

// model is what a sandbox should be.
type model struct {
	id      string
	state   ringfence.State // running, paused, or an end
	content string          // of /f
}

// Whatever is done in whatever order, with daemons that come and go, saves that fail and
// instances that crash: a sandbox is in the state that the calls and the state table lead
// to, its file holds what was written last, and the host holds what runs and nothing else.
func TestStateTable(t *testing.T) {
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue {
		if err := f.Value.Set("25"); err != nil {
			t.Fatal(err)
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		m := newMachine(t)
		d := m.start(fake.Options{})
		defer func() { m.stop(d) }()
		var boxes []*model
		saved := map[string]string{} // content by snapshot
		pick := func() *model {
			if len(boxes) == 0 {
				rt.Skip("there is none")
			}
			return boxes[rapid.IntRange(0, len(boxes)-1).Draw(rt, "sandbox")]
		}
		check := func(err error, b *model, allowed ...ringfence.Code) bool {
			if b.state.Ended() {
				allowed = []ringfence.Code{ringfence.CodeSandboxEnded}
			}
			code := ringfence.CodeOf(err)
			if err == nil {
				if b.state.Ended() {
					rt.Fatalf("a call on an ended sandbox worked")
				}
				return true
			}
			for _, c := range allowed {
				if c == code {
					return false
				}
			}
			rt.Fatalf("%s (%s): %v", b.id, b.state, err)
			return false
		}
		n := 0
		ctx := context.Background()
		rt.Repeat(map[string]func(*rapid.T){
			"create": func(*rapid.T) {
				if len(boxes) < 4 {
					boxes = append(boxes, &model{id: m.create(d, engine.CreateRequest{}).ID, state: ringfence.StateRunning})
				}
			},
			"write": func(*rapid.T) {
				b := pick()
				n++
				_, _, err := shell(d, b.id, fmt.Sprintf("echo %d > /f", n))
				if check(err, b) {
					b.content, b.state = fmt.Sprintf("%d\n", n), ringfence.StateRunning // it wakes
				}
			},
			"pause": func(*rapid.T) {
				b := pick()
				if _, err := d.Pause(ctx, project, b.id); check(err, b) {
					b.state = ringfence.StatePaused
				}
			},
			"pauseFails": func(*rapid.T) {
				b := pick()
				m.host.FailCheckpoints(errors.New("no space left on device"))
				_, err := d.Pause(ctx, project, b.id)
				m.host.FailCheckpoints(nil)
				if b.state == ringfence.StateRunning && err == nil {
					rt.Fatalf("a pause without room worked")
				}
				check(err, b, ringfence.CodeInternal)
			},
			"resume": func(*rapid.T) {
				b := pick()
				if _, err := d.Resume(ctx, project, b.id); check(err, b) {
					b.state = ringfence.StateRunning
				}
			},
			"snapshot": func(*rapid.T) {
				b := pick()
				if sn, err := d.Snapshot(ctx, project, b.id, ""); check(err, b) {
					saved[sn.ID] = b.content
				}
			},
			"restore": func(*rapid.T) {
				b := pick()
				for id, content := range saved {
					if _, err := d.RestoreInPlace(ctx, project, b.id, id); check(err, b) {
						b.state, b.content = ringfence.StateRunning, content
					}
					break
				}
			},
			"fork": func(*rapid.T) {
				b := pick()
				if len(boxes) < 4 {
					if forks, err := d.Fork(ctx, project, b.id, 1); check(err, b) {
						boxes = append(boxes, &model{id: forks[0].Sandbox.ID, state: ringfence.StateRunning, content: b.content})
					}
				}
			},
			"kill": func(*rapid.T) {
				b := pick()
				if err := d.Kill(ctx, project, b.id); err != nil {
					rt.Fatalf("kill: %v", err)
				}
				if !b.state.Ended() {
					b.state = ringfence.StateDeleted
				}
			},
			"restart": func(*rapid.T) {
				m.stop(d)
				d = m.start(fake.Options{})
			},
			"": func(*rapid.T) {
				running := 0
				for _, b := range boxes {
					got, err := d.Get(ctx, project, b.id)
					if err != nil || got.State != b.state {
						rt.Fatalf("%s is %+v, %v; want %s", b.id, got, err, b.state)
					}
					if (got.Object != "") != (b.state == ringfence.StatePaused) || got.EndedAt.IsZero() == b.state.Ended() {
						rt.Fatalf("%s: %+v", b.id, got)
					}
					if b.state == ringfence.StateRunning {
						running++
						if out, _, err := shell(d, b.id, "cat /f 2>/dev/null || true"); err != nil || out != b.content {
							rt.Fatalf("%s holds %q, %v; want %q", b.id, out, err, b.content)
						}
					}
				}
				if on := m.onHost(); on != running {
					rt.Fatalf("%d are on the host, %d run", on, running)
				}
			},
		})
	})
}
