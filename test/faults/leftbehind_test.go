package faults

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"ringfence.dev/ringfence/client"
)

// After many creates, commands and kills, and many pauses and resumes, everything is where
// it began: few of them here, 2,000 and 200 in the soak.
func TestNothingIsLeftBehind(t *testing.T) {
	cycles, pauses := 40, 8
	if os.Getenv("RINGFENCE_SOAK") != "" {
		cycles, pauses = 2000, 200
	}
	ctx := context.Background()
	w := newWorld(t)
	w.start()
	pid := w.d.cmd.Process.Pid
	live := func(n int) string { // one sandbox, from its create to its kill
		sb, err := w.c.Create(ctx, client.CreateOptions{Template: "base", MemoryMiB: 512})
		if err != nil {
			t.Fatal(err)
		}
		if got := w.shell(sb, fmt.Sprintf("echo %d > /root/n; cat /root/n", n)); got != fmt.Sprintln(n) {
			t.Fatalf("sandbox %d says %q", n, got)
		}
		if err := sb.Kill(ctx); err != nil {
			t.Fatal(err)
		}
		return sb.ID()
	}
	pause := func(sb *client.Sandbox, n int) {
		w.shell(sb, fmt.Sprintf("echo %d >> /root/n", n))
		if _, err := sb.Pause(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := sb.Resume(ctx); err != nil {
			t.Fatal(err)
		}
	}
	for n := range 3 { // what is made once is made
		live(n)
	}
	waitFor(t, "the golden snapshot", func() bool { return strings.Contains(w.d.err.String(), "made a golden snapshot") })
	steady := w.create(client.CreateOptions{})
	pause(steady, 0)
	if err := steady.Kill(ctx); err != nil {
		t.Fatal(err)
	}
	w.settle()
	before := w.footprint(pid)

	ids := map[string]bool{}
	for n := range cycles {
		ids[live(n)] = true
	}
	sb := w.create(client.CreateOptions{})
	ids[sb.ID()] = true
	var lines strings.Builder
	for n := range pauses {
		pause(sb, n)
		fmt.Fprintln(&lines, n)
	}
	if got := w.shell(sb, "cat /root/n"); got != lines.String() {
		t.Errorf("after %d pauses its file says %q", pauses, got)
	}
	if err := sb.Kill(ctx); err != nil {
		t.Fatal(err)
	}

	var after footprint
	same := func() bool {
		after = w.footprint(pid)
		return slices.Equal(after.files, before.files) && after.descriptors <= before.descriptors && after.sockets <= before.sockets+4 &&
			after.processes == before.processes && after.bytes <= before.bytes+1<<20 && after.mounts == before.mounts
	}
	for end := time.Now().Add(time.Minute); !same(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("before: %+v\nafter: %+v", before, after)
		}
	}
	for id := range ids {
		if groups := cgroupsOf(id); len(groups) > 0 {
			t.Errorf("control groups are left: %v", groups)
		}
	}
	t.Logf("before: %+v", before)
	t.Logf("after %d lives and %d pauses: %+v", cycles, pauses, after)
	// Caches and what the collector has not come to yet stay within this, however many there were.
	if grown := after.residentMiB - before.residentMiB; grown > 40 {
		t.Errorf("the daemon's memory grew by %d MiB, from %d", grown, before.residentMiB)
	}
}

// footprint is what a server and its sandboxes take from the host.
type footprint struct {
	processes   int      // of sandboxes
	descriptors int      // of the daemon, without sockets: files, pipes, TAP devices, namespaces, processes
	sockets     int      // of the daemon
	threads     int      // of the daemon
	residentMiB int      // of the daemon
	mounts      int      // in the data directory
	files       []string // in the data directory
	bytes       int64    // of these, without the database, whose rows stay for 7 days
}

func (w *world) footprint(pid int) footprint {
	w.t.Helper()
	f := footprint{processes: len(w.processes()), threads: status(w.t, pid, "Threads"), residentMiB: status(w.t, pid, "VmRSS") >> 10}
	fds := fmt.Sprintf("/proc/%d/fd", pid)
	for _, name := range dirNames(w.t, fds) {
		target, err := os.Readlink(filepath.Join(fds, name))
		switch {
		case err != nil: // closed meanwhile
		case strings.HasPrefix(target, "socket:"):
			f.sockets++
		default:
			f.descriptors++
		}
	}
	mounts, err := os.ReadFile("/proc/mounts")
	if err != nil {
		w.t.Fatal(err)
	}
	f.mounts = strings.Count(string(mounts), w.dir)
	err = filepath.WalkDir(w.dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || strings.Contains(e.Name(), "ringfence.db") {
			return nil //nolint:nilerr // it is gone already
		}
		if info, err := e.Info(); err == nil {
			f.files = append(f.files, strings.TrimPrefix(path, w.dir))
			f.bytes += info.Size()
		}
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return f
}
