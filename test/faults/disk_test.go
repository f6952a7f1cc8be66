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
)

// The disk under the data directory is full: what cannot be kept is refused, what
// runs runs on, and when there is room again all is well.
func TestDataDirectoryFull(t *testing.T) {
	w := newWorld(t)
	w.smallDisk(32)
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

// smallDisk puts the data directory on a file system of its own.
func (w *world) smallDisk(mib int) {
	w.t.Helper()
	if err := os.Mkdir(w.dir, 0o700); err != nil {
		w.t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", w.dir, "tmpfs", 0, fmt.Sprintf("size=%dm,mode=0700", mib)); err != nil {
		w.t.Fatal(err)
	}
	// The world's own cleanup comes after this one, and needs the directory until then.
	w.t.Cleanup(func() {
		w.killAll()
		w.stop(syscall.SIGTERM)
		if err := syscall.Unmount(w.dir, 0); err != nil {
			w.t.Errorf("cannot unmount: %v", err)
		}
	})
}

// A disk that becomes full while a snapshot is written loses that snapshot and nothing
// else: what was to be saved runs on, and what was saved before is whole.
func TestDiskFullDuringSnapshot(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t, "--max-snapshots-mib", "100000") // what is checked before is not to help
	w.smallDisk(420)
	w.start()
	sb := w.create(client.CreateOptions{})
	w.shell(sb, "echo kept > /root/kept; sleep 100000 >/dev/null 2>&1 & echo $! > /root/pid")
	before, err := sb.Snapshot(ctx, "before")
	if err != nil {
		t.Fatal(err)
	}
	w.shell(sb, "head -c 160M /dev/urandom > /root/big; md5sum < /root/big > /root/sum")
	objects := dirNames(t, filepath.Join(w.dir, "snapshots", "objects"))
	check := func(what string, err error) {
		t.Helper()
		if code := ringfence.CodeOf(err); code != ringfence.CodeInternal && code != ringfence.CodeResourceExhausted {
			t.Errorf("%s: %v", what, err)
		}
		if got := w.shell(sb, "cat /root/kept; kill -0 $(cat /root/pid) && md5sum < /root/big | cmp - /root/sum && echo whole"); got != "kept\nwhole\n" {
			t.Errorf("after %s it says %q", what, got)
		}
		if left := dirNames(t, filepath.Join(w.dir, "snapshots", "work")); len(left) > 0 {
			t.Errorf("after %s there is %v", what, left)
		}
		if now := dirNames(t, filepath.Join(w.dir, "snapshots", "objects")); fmt.Sprint(now) != fmt.Sprint(objects) {
			t.Errorf("after %s the snapshots are %v, before %v", what, now, objects)
		}
	}
	_, err = sb.Snapshot(ctx, "too large")
	check("a snapshot", err)
	_, err = sb.Pause(ctx)
	check("a pause", err)
	_, err = sb.Fork(ctx, 1)
	check("a fork", err)
	copied := w.create(client.CreateOptions{Snapshot: before.ID})
	if got := w.shell(copied, "cat /root/kept"); got != "kept\n" {
		t.Errorf("the snapshot of before says %q", got)
	}
	if err := copied.Kill(ctx); err != nil {
		t.Error(err)
	}
	if err := syscall.Mount("", w.dir, "", syscall.MS_REMOUNT, "size=1g,mode=0700"); err != nil {
		t.Fatal(err)
	}
	if _, err := sb.Pause(ctx); err != nil {
		t.Errorf("with room again: %v", err)
	}
	if got := w.shell(sb, "md5sum < /root/big | cmp - /root/sum && echo whole"); got != "whole\n" {
		t.Errorf("after a pause with room again it says %q", got)
	}
}
