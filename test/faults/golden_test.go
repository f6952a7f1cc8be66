package faults

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"ringfence.dev/ringfence/client"
)

// goldens lists the golden snapshots of the data directory.
func (w *world) goldens() []string {
	w.t.Helper()
	found, err := filepath.Glob(filepath.Join(w.dir, "snapshots", "golden", "*.json"))
	if err != nil {
		w.t.Fatal(err)
	}
	return found
}

// A second sandbox of a template is restored from what the first use left, and has
// nothing of another sandbox: its own name, environment, user, time and random numbers.
func TestGoldenSnapshot(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.create(client.CreateOptions{Env: map[string]string{"SECRET": "of-the-first"}})
	waitFor(t, "the golden snapshot", func() bool { return len(w.goldens()) == 1 })
	w.stop(syscall.SIGKILL) // it outlives the daemon
	d := w.start()
	time.Sleep(1100 * time.Millisecond) // the guest's clock stood still for so long
	const ask = `hostname; cat /etc/hostname /etc/hosts; id -un; echo "$A"; env; head -c 16 /dev/urandom | od -An -tx1; cat /run/ringfence/generation`
	seen := map[string]bool{}
	for range 2 {
		sb := w.create(client.CreateOptions{Env: map[string]string{"A": "mine"}, User: "user"})
		out := w.shell(sb, ask)
		lines := strings.Split(strings.TrimSpace(out), "\n")
		if lines[0] != sb.ID() || !strings.Contains(out, "127.0.1.1\t"+sb.ID()+"\n") || strings.Count(out, "127.0.1.1") != 1 {
			t.Errorf("its name is not its own: %q", out)
		}
		if !strings.Contains(out, "\nuser\nmine\n") || strings.Contains(out, "of-the-first") {
			t.Errorf("its user or environment: %q", out)
		}
		for _, line := range lines[len(lines)-2:] {
			if len(line) < 32 || seen[line] {
				t.Errorf("random numbers came twice: %q", line)
			}
			seen[line] = true
		}
		before := time.Now().Add(-time.Second)
		if at, err := time.Parse(time.RFC3339, strings.TrimSpace(w.shell(sb, "date -u +%Y-%m-%dT%H:%M:%SZ"))); err != nil || at.Before(before) || at.After(time.Now().Add(time.Second)) {
			t.Errorf("its clock says %v at %v: %v", at, time.Now(), err)
		}
	}
	if strings.Contains(d.err.String(), "golden") {
		t.Errorf("the log: %s", d.err)
	}
}

// A golden snapshot that is damaged is not used, which costs a create nothing but time.
func TestGoldenSnapshotDamaged(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.create(client.CreateOptions{})
	waitFor(t, "the golden snapshot", func() bool { return len(w.goldens()) == 1 })
	images, err := filepath.Glob(filepath.Join(w.dir, "snapshots", "objects", "*", "checkpoint.img"))
	if err != nil || len(images) != 1 {
		t.Fatalf("the snapshots are %v, %v", images, err)
	}
	f, err := os.OpenFile(images[0], os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("no such bytes were here"), 5000); err != nil {
		t.Fatal(err)
	}
	f.Close()
	sb, err := w.c.Create(context.Background(), client.CreateOptions{Template: "base", MemoryMiB: 512})
	if err != nil {
		t.Fatal(err)
	}
	w.shell(sb, "true")
	if !strings.Contains(w.d.err.String(), "cannot restore a golden snapshot") {
		t.Errorf("the log does not tell: %s", w.d.err)
	}
}

// Sandboxes of the pool are nobody's: they are in no list, a create takes one, and after
// a SIGKILL of the daemon nothing of them is left but a new pool.
func TestPool(t *testing.T) {
	w := newWorld(t, "--pool", "base=2")
	w.start()
	full := func() {
		waitFor(t, "the pool", func() bool { return strings.Contains(w.d.err.String(), "the pool is full") && len(w.leftovers()) == 2 })
	}
	full()
	sb, err := w.c.Create(context.Background(), client.CreateOptions{Template: "base", Env: map[string]string{"A": "mine"}, User: "user"})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(w.d.err.String(), "from=pool") {
		t.Error("it did not come from the pool")
	}
	if out := w.shell(sb, "hostname; id -un; echo $A"); out != sb.ID()+"\nuser\nmine\n" {
		t.Errorf("it says %q", out)
	}
	before := w.leftovers()
	w.stop(syscall.SIGKILL)
	w.start()
	waitFor(t, "a new pool in place of the former", func() bool {
		now := w.leftovers()
		return len(now) == 3 && !slices.ContainsFunc(now, func(id string) bool { return id != sb.ID() && slices.Contains(before, id) })
	})
	w.shell(sb, "true")
	if err := sb.Kill(context.Background()); err != nil {
		t.Error(err)
	}
	w.stop(syscall.SIGTERM)
	if left := w.processes(); len(left) > 0 {
		t.Errorf("after the end of the daemon there are %v", left)
	}
	w.start()
}
