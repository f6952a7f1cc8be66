package faults

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/client"
)

// A real sandbox is paused and resumed again and again: its processes go on, what was
// written and not synced is there, and it is gone from the host meanwhile.
func TestPauseAndResume(t *testing.T) {
	w := newWorld(t)
	d := w.start()
	sb := w.create(client.CreateOptions{Env: map[string]string{"A": "kept"}, NoAutoResume: true})
	// A counter, and a process that reads a pipe. (It opens the pipe anew for each line, and
	// finds no line when the last writer has not closed it yet.)
	w.shell(sb, `nohup sh -c 'n=0; while true; do n=$((n+1)); echo $n > /tmp/count.new; mv /tmp/count.new /tmp/count; sleep 0.05; done' >/dev/null 2>&1 &
mkfifo /tmp/fifo; nohup sh -c 'while :; do read line < /tmp/fifo && echo "got $line" >> /tmp/answers; done' >/dev/null 2>&1 &
echo tmpfs > /dev/shm/kept; ls -d /tmp/fifo >/dev/null`)
	// Somebody follows a command when the pause comes.
	followed := make(chan error, 1)
	begun := make(chan struct{})
	go func() {
		_, err := sb.Run(context.Background(), client.Command{Shell: "echo begun; sleep 2; echo done > /tmp/followed", Stdout: io.Discard,
			Started: func(client.Started) { close(begun) }, Timeout: client.NoTimeout})
		followed <- err
	}()
	<-begun
	var last int
	for i := range 20 {
		w.shell(sb, fmt.Sprintf("echo %d >> /tmp/unsynced; echo %d > /tmp/fifo", i, i))
		if _, err := sb.Pause(context.Background()); err != nil {
			t.Fatal(err)
		}
		if left := w.processes(); len(left) > 0 && i < 2 {
			t.Errorf("processes of a paused sandbox: %v", left)
		}
		if i == 0 {
			if err := <-followed; ringfence.CodeOf(err) != ringfence.CodeSandboxPaused {
				t.Errorf("who followed the command got %v", err)
			}
			if _, err := sb.Run(context.Background(), client.Command{Shell: "true"}); ringfence.CodeOf(err) != ringfence.CodeSandboxPaused {
				t.Errorf("a command on a paused sandbox: %v", err)
			}
		}
		if i == 10 { // it outlives the daemon
			w.stop(syscall.SIGKILL)
			d = w.start()
		}
		if info, err := sb.Resume(context.Background()); err != nil || info.State != ringfence.StateRunning {
			t.Fatal(info, err)
		}
		n, err := strconv.Atoi(strings.TrimSpace(w.shell(sb, "sleep 0.1; cat /tmp/count")))
		if err != nil || n <= last {
			t.Errorf("the counter is at %d and was at %d: %v", n, last, err)
		}
		last = n
	}
	lines := strings.Fields(w.shell(sb, "cat /tmp/unsynced"))
	answers := strings.Count(w.shell(sb, "cat /tmp/answers"), "got")
	if len(lines) != 20 || answers != 20 {
		t.Errorf("%d lines and %d answers of 20 are there", len(lines), answers)
	}
	if got := w.shell(sb, "cat /dev/shm/kept /tmp/followed; echo $A; hostname"); got != "tmpfs\ndone\nkept\n"+sb.ID()+"\n" {
		t.Errorf("it says %q", got)
	}
	at, err := time.Parse(time.RFC3339, strings.TrimSpace(w.shell(sb, "date -u +%Y-%m-%dT%H:%M:%SZ")))
	if off := time.Since(at); err != nil || off < -time.Second || off > 3*time.Second {
		t.Errorf("its clock is off by %v, %v", off, err)
	}
	if log := unhappy(d.err.String()); strings.Contains(log, "cannot") {
		t.Errorf("the log: %s", log)
	}
	if err := sb.Kill(context.Background()); err != nil {
		t.Error(err)
	}
	waitFor(t, "the content to go", func() bool { return len(w.objects()) == len(w.goldens()) })
}

// objects lists the snapshots' content on disk.
func (w *world) objects() []string {
	w.t.Helper()
	found, err := filepath.Glob(filepath.Join(w.dir, "snapshots", "objects", "*"))
	if err != nil {
		w.t.Fatal(err)
	}
	return found
}

// Forks and sandboxes that start from a snapshot have what the source had, and nothing
// that tells them apart from each other but what is theirs.
func TestForkAndSnapshot(t *testing.T) {
	w := newWorld(t)
	w.start()
	sb := w.create(client.CreateOptions{Env: map[string]string{"SECRET": "of-the-source"}})
	w.shell(sb, "echo content > /home/user/file; (sleep 1000 & echo $! > /tmp/pid) >/dev/null 2>&1; kill -0 $(cat /tmp/pid)")
	sn, err := sb.Snapshot(context.Background(), "before")
	if err != nil {
		t.Fatal(err)
	}
	w.shell(sb, "echo changed > /home/user/file")
	forks, err := sb.Fork(context.Background(), 2)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, f := range forks {
		out := w.shell(f, "cat /home/user/file; echo $SECRET; hostname; kill -0 $(cat /tmp/pid) && echo alive; head -c 16 /dev/urandom | od -An -tx1; cat /run/ringfence/generation")
		if !strings.HasPrefix(out, "changed\nof-the-source\n"+f.ID()+"\nalive\n") {
			t.Errorf("a fork says %q", out)
		}
		for _, line := range strings.Split(strings.TrimSpace(out), "\n")[4:] {
			if seen[line] {
				t.Errorf("a random number came twice: %s", line)
			}
			seen[line] = true
		}
	}
	if err := sb.Kill(context.Background()); err != nil {
		t.Error(err)
	}
	child := w.create(client.CreateOptions{Snapshot: sn.ID})
	if out := w.shell(child, "cat /home/user/file; echo $SECRET; kill -0 $(cat /tmp/pid) && echo alive"); out != "content\n\nalive\n" {
		t.Errorf("what started from the snapshot says %q", out)
	}
	w.shell(child, "echo other > /home/user/file")
	if _, err := child.Restore(context.Background(), sn.ID); err != nil {
		t.Fatal(err)
	}
	if out := w.shell(child, "cat /home/user/file; hostname"); out != "content\n"+child.ID()+"\n" {
		t.Errorf("restored in place it says %q", out)
	}
	// A snapshot that is damaged is refused, and says what to do.
	for _, dir := range w.objects() {
		path := filepath.Join(dir, "checkpoint.img")
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte("damage"), 4096); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	_, err = w.c.Create(context.Background(), client.CreateOptions{Snapshot: sn.ID})
	var e *ringfence.Error
	if !errors.As(err, &e) || e.Code != ringfence.CodeFailedPrecondition || e.Hint == "" {
		t.Errorf("from a damaged snapshot: %v", err)
	}
	if err := w.c.DeleteSnapshot(context.Background(), sn.ID); err != nil {
		t.Error(err)
	}
}

// A call wakes a paused sandbox; calls that come together wake it once. Deadlines pause.
func TestAutoResume(t *testing.T) {
	w := newWorld(t)
	w.start()
	sb := w.create(client.CreateOptions{Timeout: time.Hour, OnTimeout: ringfence.OnTimeoutPause})
	w.shell(sb, "echo unsynced > /tmp/file")
	soon := 300 * time.Millisecond
	if _, err := sb.SetDeadlines(context.Background(), client.DeadlinesChange{Timeout: &soon}); err != nil {
		t.Fatal(err)
	}
	paused := func() bool {
		info, err := sb.Refresh(context.Background())
		return err == nil && info.State == ringfence.StatePaused
	}
	waitFor(t, "its timeout to pause it", paused)
	long := time.Hour
	if _, err := sb.SetDeadlines(context.Background(), client.DeadlinesChange{Timeout: &long}); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			if got, err := sb.Files().ReadFile(context.Background(), "/tmp/file"); err != nil || string(got) != "unsynced\n" {
				t.Errorf("%q %v", got, err)
			}
		})
	}
	wg.Wait()
	if n := strings.Count(w.d.err.String(), "sandbox resumed"); n != 1 {
		t.Errorf("it was resumed %d times", n)
	}
}
