package faults

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/client"
	"ringfence.dev/ringfence/internal/testenv"
)

// Another build of Ringfence, of another version of gVisor, takes over: what ran runs on,
// what was paused comes back, and snapshots start sandboxes, in the engine that made them. The copy
// of it goes with the last of them, and golden snapshots are made anew.
func TestUpgrade(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t)
	current := w.binary
	w.binary = testenv.RequireFaultBinary(t)
	w.start()
	engines := func() []string { return dirNames(t, filepath.Join(w.dir, "gvisor", "engines")) }
	made := func() bool { return strings.Contains(w.d.err.String(), "made a golden snapshot") }
	running := w.create(client.CreateOptions{})
	paused := w.create(client.CreateOptions{})
	waitFor(t, "the golden snapshot", made)
	lives := func(sb *client.Sandbox, when string) {
		t.Helper()
		if got := w.shell(sb, "cat /root/kept; kill -0 $(cat /root/pid) && echo lives"); got != "kept\nlives\n" {
			t.Errorf("%s: it says %q", when, got)
		}
	}
	for _, sb := range []*client.Sandbox{running, paused} {
		w.shell(sb, "echo kept > /root/kept; sleep 100000 >/dev/null 2>&1 & echo $! > /root/pid")
	}
	saved, err := running.Snapshot(ctx, "before")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := paused.Pause(ctx); err != nil {
		t.Fatal(err)
	}
	old := engines()
	if len(old) != 1 {
		t.Fatalf("the copies of engines are %v", old)
	}
	w.stop(syscall.SIGTERM)

	w.binary = current
	w.start()
	lives(running, "running through the upgrade")
	if _, err := paused.Resume(ctx); err != nil {
		t.Fatal(err)
	}
	lives(paused, "paused through the upgrade")
	for _, sb := range []*client.Sandbox{running, paused} { // in the engine that they are of
		if _, err := sb.Pause(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := sb.Resume(ctx); err != nil {
			t.Fatal(err)
		}
		lives(sb, "paused after the upgrade")
	}
	copied := w.create(client.CreateOptions{Snapshot: saved.ID})
	lives(copied, "from a snapshot of before")
	anew := w.create(client.CreateOptions{})
	waitFor(t, "the golden snapshot to be made anew", made)
	if all := engines(); len(all) != 2 {
		t.Errorf("the copies of engines are %v", all)
	}

	// Of another CPU.
	manifests, err := filepath.Glob(filepath.Join(w.dir, "snapshots", "objects", "*", "manifest.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range manifests {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var m map[string]any
		if err := json.Unmarshal(raw, &m); err != nil {
			t.Fatal(err)
		}
		m["CPU"] = append(m["CPU"].([]any), "warp")
		other, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, other, 0o600); err != nil {
			t.Fatal(err)
		}
		defer os.WriteFile(path, raw, 0o600)
	}
	_, err = w.c.Create(ctx, client.CreateOptions{Snapshot: saved.ID})
	if ringfence.CodeOf(err) != ringfence.CodeFailedPrecondition || !strings.Contains(err.Error(), "another CPU") || !strings.Contains(err.Error(), "warp") {
		t.Errorf("a snapshot of another CPU: %v", err)
	}

	// The copy is there as long as something needs it.
	past := time.Now().Add(-time.Hour)
	for _, sb := range []*client.Sandbox{running, paused, copied, anew} {
		if err := sb.Kill(ctx); err != nil {
			t.Error(err)
		}
	}
	if got := engines(); len(got) != 2 {
		t.Errorf("the copies of engines are %v although a snapshot is left", got)
	}
	for _, name := range engines() {
		if err := os.Chtimes(filepath.Join(w.dir, "gvisor", "engines", name), past, past); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.c.DeleteSnapshot(ctx, saved.ID); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the copy of the old engine to go", func() bool { all := engines(); return len(all) == 1 && all[0] != old[0] })
}

func dirNames(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
