package engine_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/driver"
	"ringfence.dev/ringfence/internal/driver/fake"
	"ringfence.dev/ringfence/internal/engine"
)

// stopper holds a daemon at a point of an operation.
type stopper struct {
	mu      sync.Mutex
	point   string   // guarded by mu; where to stop, once
	passed  []string // guarded by mu
	reached chan struct{}
	release chan struct{}
}

func newStopper(point string) *stopper {
	return &stopper{point: point, reached: make(chan struct{}), release: make(chan struct{})}
}

func (s *stopper) at(point string) {
	s.mu.Lock()
	s.passed = append(s.passed, point)
	stop := point == s.point
	if stop {
		s.point = ""
	}
	s.mu.Unlock()
	if stop {
		close(s.reached)
		<-s.release
	}
}

type faultOp struct {
	name string
	do   func(d *daemon, running, paused, snapshot string) error
	ends bool // it ends the running sandbox
}

// faultOps are the operations in the middle of which something dies. Each gets a running
// sandbox, a paused one and a snapshot of the first.
var faultOps = []faultOp{
	{"create", func(d *daemon, _, _, _ string) error {
		_, _, err := d.Create(context.Background(), engine.CreateRequest{Project: project})
		return err
	}, false},
	{"create from a snapshot", func(d *daemon, _, _, snapshot string) error {
		_, _, err := d.Create(context.Background(), engine.CreateRequest{Project: project, Snapshot: snapshot})
		return err
	}, false},
	{"pause", func(d *daemon, running, _, _ string) error {
		_, err := d.Pause(context.Background(), project, running)
		return err
	}, false},
	{"resume", func(d *daemon, _, paused, _ string) error {
		_, err := d.Resume(context.Background(), project, paused)
		return err
	}, false},
	{"snapshot", func(d *daemon, running, _, _ string) error {
		_, err := d.Snapshot(context.Background(), project, running, "more")
		return err
	}, false},
	{"fork", func(d *daemon, running, _, _ string) error {
		_, err := d.Fork(context.Background(), project, running, 1)
		return err
	}, false},
	{"restore", func(d *daemon, running, _, snapshot string) error {
		_, err := d.RestoreInPlace(context.Background(), project, running, snapshot)
		return err
	}, false},
	{"kill", func(d *daemon, running, _, _ string) error { return d.Kill(context.Background(), project, running) }, true},
	{"delete a snapshot", func(d *daemon, _, _, snapshot string) error {
		return d.DeleteSnapshot(context.Background(), project, snapshot)
	}, false},
}

// The daemon, or a sandbox's process, dies at points of each operation, all of them in the
// soak. Afterwards the rows say what runs, what was there before is there with its files,
// and what nothing needs is gone.
func TestDeathAtEachPoint(t *testing.T) {
	all := os.Getenv("RINGFENCE_SOAK") != ""
	for n, op := range faultOps {
		t.Run(op.name, func(t *testing.T) {
			t.Parallel()
			for i, point := range op.points(t) {
				if all || (n+i)%3 == 0 {
					t.Run("daemon at "+point, func(t *testing.T) {
						t.Parallel()
						op.daemonDies(t, point)
					})
				}
				if all || (n+i)%3 == 1 {
					t.Run("sandbox at "+point, func(t *testing.T) {
						t.Parallel()
						op.sandboxDies(t, point)
					})
				}
			}
		})
	}
}

// points lists the points that the operation passes.
func (op faultOp) points(t *testing.T) []string {
	t.Helper()
	s := newStopper("")
	m, d, ids := faultMachine(t, s)
	if err := op.do(d, ids[0], ids[1], ids[2]); err != nil {
		t.Fatal(err)
	}
	m.setAt(nil)
	m.consistent(d, ids, func(sb *ringfence.Sandbox) bool { return op.ends && sb.ID == ids[0] })
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.passed) == 0 {
		t.Error("it passes no point")
	}
	return slices.Compact(slices.Sorted(slices.Values(s.passed)))
}

func (op faultOp) daemonDies(t *testing.T, point string) {
	s := newStopper(point)
	m, d, ids := faultMachine(t, s)
	done := m.stopAt(s, func() error { return op.do(d, ids[0], ids[1], ids[2]) })
	// What was written is on record; nothing more will be.
	if err := d.store.Close(); err != nil {
		t.Error(err)
	}
	d.closed = true
	closed := make(chan error, 1)
	go func() { closed <- d.Close() }()
	t.Cleanup(func() { // it comes back only to be cleared away
		close(s.release)
		<-done
		<-closed
	})
	m.setAt(nil)
	m.consistent(m.start(fake.Options{}), ids, func(sb *ringfence.Sandbox) bool {
		return op.ends && sb.ID == ids[0] || sb.ID != ids[0] && sb.ID != ids[1] && sb.Reason == ringfence.ReasonStartFailed
	})
}

func (op faultOp) sandboxDies(t *testing.T, point string) {
	s := newStopper(point)
	m, d, ids := faultMachine(t, s)
	done := m.stopAt(s, func() error { return op.do(d, ids[0], ids[1], ids[2]) })
	m.host.CrashAll()
	close(s.release)
	<-done // whatever it says
	m.consistent(d, ids, func(*ringfence.Sandbox) bool { return true })
	m.stop(d)
	m.consistent(m.start(fake.Options{}), ids, func(*ringfence.Sandbox) bool { return true })
}

// staysOpen is a driver whose Close does not close the links of a daemon that came after it.
type staysOpen struct{ driver.Driver }

func (staysOpen) Close() error { return nil }

// faultMachine has a running sandbox, a paused one and a snapshot of the first, whose
// file says what it says in all of them.
func faultMachine(t *testing.T, s *stopper) (m *machine, d *daemon, ids [3]string) {
	t.Helper()
	m = newMachine(t)
	m.wrap = func(d driver.Driver) driver.Driver { return staysOpen{d} }
	d = m.start(fake.Options{})
	for i := range 2 {
		sb := m.create(d, engine.CreateRequest{})
		m.says(d, sb.ID, "echo kept > /f; cat /f", "kept\n")
		ids[i] = sb.ID
	}
	if _, err := d.Pause(t.Context(), project, ids[1]); err != nil {
		t.Fatal(err)
	}
	sn, err := d.Snapshot(t.Context(), project, ids[0], "first")
	if err != nil {
		t.Fatal(err)
	}
	ids[2] = sn.ID
	m.setAt(s.at)
	return m, d, ids
}

// stopAt returns when an operation has come to its point. The channel has its end.
func (m *machine) stopAt(s *stopper, op func() error) chan error {
	m.t.Helper()
	done := make(chan error, 1)
	go func() { done <- op() }()
	select {
	case <-s.reached:
	case err := <-done:
		m.t.Fatalf("it did not come to the point: %v", err)
	}
	return done
}

// consistent checks that rows, host and disk agree, and that all ends. mayEnd says
// whether a sandbox may have ended by itself.
func (m *machine) consistent(d *daemon, ids [3]string, mayEnd func(*ringfence.Sandbox) bool) {
	t := m.t
	t.Helper()
	ctx := context.Background()
	list := func(states ...ringfence.State) []*ringfence.Sandbox {
		rows, err := d.List(ctx, ringfence.SandboxFilter{Project: project, States: states, Limit: 100})
		if err != nil {
			t.Fatal(err)
		}
		return rows
	}
	m.await("rows and host to agree", func() bool {
		running := len(list(ringfence.StateRunning))
		return len(list(ringfence.StateStarting, ringfence.StatePausing, ringfence.StateResuming)) == 0 && m.onHost() == running
	})
	for _, sb := range list(ringfence.StateFailed, ringfence.StateDeleted) {
		if !mayEnd(sb) {
			t.Errorf("%s ended: %s %s", sb.ID, sb.Reason, sb.Detail)
		}
	}
	snapshots, err := d.ListSnapshots(ctx, ringfence.SnapshotFilter{Project: project, Limit: 100})
	if err != nil {
		t.Fatal(err)
	}
	wanted := map[string]bool{}
	for _, sn := range snapshots {
		wanted[sn.Object] = true
	}
	for _, sb := range list(ringfence.StatePaused) {
		wanted[sb.Object] = true
	}
	m.await("what nothing needs to go from the disk", func() bool {
		return len(m.entries("objects")) == len(wanted) && len(m.entries("work")) == 0
	})
	for _, sn := range snapshots {
		sb := m.create(d, engine.CreateRequest{Snapshot: sn.ID})
		m.says(d, sb.ID, "cat /f", "kept\n")
		if err := d.Kill(ctx, project, sb.ID); err != nil {
			t.Error(err)
		}
	}
	for _, sb := range list(ringfence.StateRunning, ringfence.StatePaused) {
		out, _, err := shell(d, sb.ID, "cat /f")
		anew := out == "" && sb.ID != ids[0] && sb.ID != ids[1] // the operation may have made it
		if err != nil || out != "kept\n" && !anew {
			t.Errorf("%s says %q, %v", sb.ID, out, err)
		}
	}
}

// entries lists a directory of the snapshots.
func (m *machine) entries(dir string) []string {
	m.t.Helper()
	found, err := os.ReadDir(filepath.Join(filepath.Dir(m.path), "snapshots", dir))
	if err != nil {
		m.t.Fatal(err)
	}
	var names []string
	for _, e := range found {
		names = append(names, e.Name())
	}
	return names
}
