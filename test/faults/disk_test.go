package faults

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/client"
	"ringfence.dev/ringfence/internal/testenv"
)

// The disk under the data directory is full: what cannot be kept is refused, what
// runs runs on, and when there is room again all is well.
func TestDataDirectoryFull(t *testing.T) {
	testenv.RequireRoot(t)
	w := newWorld(t)
	if err := os.Mkdir(w.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", w.dir, "tmpfs", 0, "size=32m,mode=0700"); err != nil {
		t.Fatal(err)
	}
	// The world's own cleanup comes after this one, and needs the directory until then.
	t.Cleanup(func() {
		w.killAll()
		w.stop(syscall.SIGTERM)
		if err := syscall.Unmount(w.dir, 0); err != nil {
			t.Errorf("cannot unmount: %v", err)
		}
	})
	w.start()
	sb := w.create(client.CreateOptions{})
	filler := filepath.Join(w.dir, "filler")
	f, err := os.Create(filler)
	if err != nil {
		t.Fatal(err)
	}
	zeros := make([]byte, 4096)
	for err == nil {
		_, err = f.Write(zeros)
	}
	f.Close()
	failed := 0
	for range 50 {
		other, err := w.c.Create(context.Background(), client.CreateOptions{Template: "base", MemoryMiB: 256})
		if err == nil {
			if err := other.Kill(context.Background()); err == nil {
				continue
			}
		}
		failed++
		if code := ringfence.CodeOf(err); err != nil && code != ringfence.CodeResourceExhausted && code != ringfence.CodeInternal {
			t.Errorf("got %v", err)
		}
		if failed == 3 {
			break
		}
	}
	if failed == 0 {
		t.Error("a full disk was not noticed")
	}
	w.shell(sb, "echo fine")
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	again := w.create(client.CreateOptions{})
	w.shell(again, "true")
	if err := again.Kill(context.Background()); err != nil {
		t.Error(err)
	}
	w.shell(sb, "true")
	waitFor(t, "what failed to go", func() bool { return fmt.Sprint(w.leftovers()) == fmt.Sprint([]string{sb.ID()}) })
}
