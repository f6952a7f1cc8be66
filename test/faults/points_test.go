package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/client"
	"ringfence.dev/ringfence/internal/sqlite"
	"ringfence.dev/ringfence/internal/testenv"
)

// stage is a world whose daemon stops at the points of its operations.
type stage struct {
	*world
	points  string // directory; see cmd/ringfence, point_faults.go
	running *client.Sandbox
	paused  *client.Sandbox
	saved   client.Snapshot
	store   *sqlite.Store // the daemon's, read beside it
}

// faultOps are the operations in the middle of which something dies.
var faultOps = []struct {
	name string
	do   func(ctx context.Context, s *stage) error
}{
	{"create", func(ctx context.Context, s *stage) error {
		_, err := s.c.Create(ctx, client.CreateOptions{Template: "base", MemoryMiB: 512})
		return err
	}},
	{"pause", func(ctx context.Context, s *stage) error {
		_, err := s.running.Pause(ctx)
		return err
	}},
	{"resume", func(ctx context.Context, s *stage) error {
		_, err := s.paused.Resume(ctx)
		return err
	}},
	{"snapshot", func(ctx context.Context, s *stage) error {
		_, err := s.running.Snapshot(ctx, "more")
		return err
	}},
	{"fork", func(ctx context.Context, s *stage) error {
		_, err := s.running.Fork(ctx, 1)
		return err
	}},
	{"restore", func(ctx context.Context, s *stage) error {
		_, err := s.running.Restore(ctx, s.saved.ID)
		return err
	}},
	{"kill", func(ctx context.Context, s *stage) error { return s.running.Kill(ctx) }},
}

// The daemon, the sandboxes' processes or their agents are killed at points of each
// operation: at some here, at all of them in the soak. Afterwards the rows say what runs,
// and of the rest nothing is left.
func TestDeathAtPoints(t *testing.T) {
	s := &stage{world: newWorld(t), points: t.TempDir()}
	s.binary = testenv.RequireFaultBinary(t)
	s.env = append(s.env, "RINGFENCE_FAULT_DIR="+s.points)
	s.start()
	var err error
	if s.store, err = sqlite.Open(t.Context(), filepath.Join(s.dir, "ringfence.db")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.store.Close() })
	type fault struct {
		op     int
		point  string
		victim string
	}
	var faults []fault
	for i, op := range faultOps {
		s.prepare()
		passed := filepath.Join(s.points, "passed")
		os.Remove(passed) // of what came before
		if err := op.do(context.Background(), s); err != nil {
			t.Fatal(err)
		}
		s.consistent()
		raw, err := os.ReadFile(passed)
		if err != nil {
			t.Fatal(err)
		}
		points := strings.Fields(string(raw))
		slices.Sort(points)
		for _, point := range slices.Compact(points) {
			for _, victim := range []string{"daemon", "sandbox", "agent"} {
				faults = append(faults, fault{i, point, victim})
			}
		}
	}
	step := 1
	if os.Getenv("RINGFENCE_SOAK") == "" {
		step = max(1, len(faults)/9)
		if step%3 == 0 { // each victim has its turns
			step++
		}
	}
	t.Logf("%d faults, of which each %d. is tried", len(faults), step)
	for n := 0; n < len(faults); n += step {
		f := faults[n]
		name := fmt.Sprintf("%s: %s at %s", faultOps[f.op].name, f.victim, f.point)
		t.Log(name)
		s.prepare()
		if err := os.WriteFile(filepath.Join(s.points, "stop-"+f.point), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		go func() { done <- faultOps[f.op].do(ctx, s) }()
		reached := filepath.Join(s.points, "reached")
		ended := false
		waitFor(t, name, func() bool {
			select {
			case err := <-done:
				t.Errorf("%s: it ended before: %v", name, err)
				ended = true
			default:
			}
			_, err := os.Stat(reached)
			return err == nil || ended
		})
		switch {
		case ended:
		case f.victim == "daemon":
			s.stop(syscall.SIGKILL)
			cancel() // or the client asks the next one
		case f.victim == "sandbox":
			for _, pid := range s.processes() {
				unix.Kill(pid, unix.SIGKILL) // it may be gone
			}
		default:
			s.killAgents()
		}
		os.Remove(reached)
		if !ended {
			if err := <-done; f.victim == "daemon" && err == nil {
				t.Errorf("%s: it is said to have gone well", name)
			}
		}
		cancel()
		if f.victim == "daemon" {
			s.start()
		}
		s.consistent()
		if f.victim == "daemon" && faultOps[f.op].name != "kill" {
			for _, sb := range []*client.Sandbox{s.running, s.paused} {
				if got := s.shell(sb, "cat /root/kept; kill -0 $(cat /root/pid) && echo lives"); got != "kept\nlives\n" {
					t.Errorf("%s: what was there before says %q", name, got)
				}
			}
		}
		if t.Failed() {
			t.Fatalf("after %s", name)
		}
	}
}

// prepare makes a running sandbox, a paused one and a snapshot, where they are missing,
// and ends all others.
func (s *stage) prepare() {
	s.t.Helper()
	ctx := context.Background()
	for sb, err := range s.c.List(ctx, client.ListOptions{}) {
		if err != nil {
			s.t.Fatal(err)
		}
		if (s.running == nil || sb.ID() != s.running.ID()) && (s.paused == nil || sb.ID() != s.paused.ID()) {
			if err := sb.Kill(ctx); err != nil {
				s.t.Fatal(err)
			}
		}
	}
	for sn, err := range s.c.Snapshots(ctx, "") {
		if err == nil && sn.ID != s.saved.ID {
			err = s.c.DeleteSnapshot(ctx, sn.ID)
		}
		if err != nil {
			s.t.Fatal(err)
		}
	}
	lives := func(sb *client.Sandbox) bool {
		if sb == nil {
			return false
		}
		info, err := sb.Refresh(ctx)
		if err != nil {
			s.t.Fatal(err)
		}
		return !info.State.Ended()
	}
	for _, sb := range []**client.Sandbox{&s.running, &s.paused} {
		if !lives(*sb) {
			*sb = s.create(client.CreateOptions{})
			s.shell(*sb, "echo kept > /root/kept; sleep 100000 >/dev/null 2>&1 & echo $! > /root/pid")
		}
	}
	if _, err := s.running.Resume(ctx); err != nil {
		s.t.Fatal(err)
	}
	if s.saved.ID == "" {
		sn, err := s.running.Snapshot(ctx, "first")
		if err != nil {
			s.t.Fatal(err)
		}
		s.saved = sn
	}
	if _, err := s.paused.Pause(ctx); err != nil {
		s.t.Fatal(err)
	}
}

// killAgents kills PID 1 of each sandbox, from outside: inside, nobody can.
func (s *stage) killAgents() {
	s.t.Helper()
	for _, id := range s.leftovers() {
		dir, err := os.Open(filepath.Join(s.dir, "gvisor", "sandboxes", id))
		if err != nil {
			continue // it is gone
		}
		// Through the directory: a socket's path may not be long.
		conn, err := net.Dial("unix", fmt.Sprintf("/proc/self/fd/%d/control.sock", dir.Fd()))
		dir.Close()
		if err != nil {
			continue // it has no process yet, or no more
		}
		conn.SetDeadline(time.Now().Add(10 * time.Second))
		call := map[string]any{"method": "containerManager.Signal", "arg": map[string]any{"CID": id, "Signo": int(unix.SIGKILL)}}
		if err := json.NewEncoder(conn).Encode(call); err == nil {
			var answer any
			json.NewDecoder(conn).Decode(&answer) // the sentry may end before it answers
		}
		conn.Close()
	}
}

// consistent waits until the rows say what is on the host, and looks for what is left of
// the rest: processes, directories with their sockets, control groups, mounts, snapshots.
func (s *stage) consistent() {
	s.t.Helper()
	ctx := context.Background()
	var last string
	agree := func() bool {
		running := []string{}
		ended := map[string]bool{}
		for sb, err := range s.c.List(ctx, client.ListOptions{States: []ringfence.State{
			ringfence.StateStarting, ringfence.StateRunning, ringfence.StatePausing, ringfence.StatePaused, ringfence.StateResuming, ringfence.StateFailed, ringfence.StateDeleted,
		}}) {
			if err != nil {
				s.t.Fatal(err)
			}
			switch state := sb.Info().State; state {
			case ringfence.StateRunning:
				running = append(running, sb.ID())
			case ringfence.StatePaused:
			case ringfence.StateFailed, ringfence.StateDeleted:
				ended[sb.ID()] = true
			default:
				last = fmt.Sprintf("%s is %s", sb.ID(), state)
				return false
			}
		}
		slices.Sort(running)
		if there := s.leftovers(); !slices.Equal(there, running) {
			last = fmt.Sprintf("%v run, the host has %v", running, there)
			return false
		}
		for _, pid := range s.processes() {
			line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			if err == nil && !slices.ContainsFunc(running, func(id string) bool { return strings.Contains(string(line), id) }) {
				last = fmt.Sprintf("process %d: %q", pid, line)
				return false
			}
		}
		for id := range ended {
			for _, group := range cgroupsOf(id) {
				last = "control group " + group
				return false
			}
		}
		if mounts, err := os.ReadFile("/proc/mounts"); err != nil || strings.Contains(string(mounts), s.dir) {
			last = fmt.Sprintf("mounts in %s, %v", s.dir, err)
			return false
		}
		needed, err := s.store.SnapshotObjects(ctx)
		if err != nil {
			s.t.Fatal(err)
		}
		count := func(dir string) int {
			entries, err := os.ReadDir(filepath.Join(s.dir, "snapshots", dir))
			if err != nil {
				s.t.Fatal(err)
			}
			return len(entries)
		}
		if objects, goldens, work := count("objects"), count("golden"), count("work"); objects != len(needed)+goldens || work != 0 {
			last = fmt.Sprintf("%d objects and %d in the making; %d are needed, and %d golden ones", objects, work, len(needed), goldens)
			return false
		}
		return true
	}
	for end := time.Now().Add(time.Minute); !agree(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("rows and host do not agree: %s", last)
		}
	}
}

// cgroupsOf lists the control groups of a sandbox, of both versions.
func cgroupsOf(id string) []string {
	var found []string
	for _, pattern := range []string{"/sys/fs/cgroup/ringfence/*", "/sys/fs/cgroup/*/ringfence/*"} {
		paths, err := filepath.Glob(pattern)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			continue
		}
		for _, path := range paths {
			if strings.Contains(filepath.Base(path), id) {
				found = append(found, path)
			}
		}
	}
	return found
}
