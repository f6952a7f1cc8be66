package guest_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/guestproto"
)

func (b *bed) spawn(t testing.TB, ps guestproto.ProcessStart) guestproto.ProcessInfo {
	t.Helper()
	info, err := b.conn.Spawn(testContext(t), ps)
	if err != nil {
		t.Fatalf("cannot start %q %q: %v", ps.Shell, ps.Args, err)
	}
	return info
}

func (b *bed) waitFor(t testing.TB, id string) guestproto.ProcessInfo {
	t.Helper()
	info, err := b.conn.WaitFor(testContext(t), guestproto.ProcessRef{ID: id})
	if err != nil {
		t.Fatalf("cannot wait for %s: %v", id, err)
	}
	return info
}

func (b *bed) input(t testing.TB, id string, close bool, r io.Reader) int64 {
	t.Helper()
	n, err := b.conn.WriteInput(testContext(t), guestproto.ProcessInput{ID: id, Close: close}, r)
	if err != nil {
		t.Fatalf("cannot write to %s: %v", id, err)
	}
	return n
}

// log returns what a process's log holds.
func (b *bed) log(t testing.TB, id string, from uint64, follow bool) (string, guestproto.ProcessExit) {
	t.Helper()
	var out bytes.Buffer
	p, err := b.conn.Join(testContext(t), guestproto.ProcessAttach{ID: id, From: from, NoFollow: !follow}, collect(&out, &out))
	if err != nil {
		t.Fatal(err)
	}
	exit, err := p.Wait(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	return out.String(), exit
}

// A process in the background: found by all of its names, with what it was started with.
func TestBackgroundProcess(t *testing.T) {
	eachBed(t, func(t *testing.T, b *bed) {
		ctx := testContext(t)
		dir := "/tmp"
		info := b.spawn(t, guestproto.ProcessStart{
			ID: "bg", Args: []string{"sh", "-c", "echo early; read x; echo got $x; exit 4"}, WorkDir: dir, Tag: "mine", Stdin: true,
			StartedAt: 1700000000000001, DeadlineAt: 1700000099000001, LogBytes: 100_000,
		})
		if info.ID != "bg" || info.PID <= 0 || info.Tag != "mine" || info.Command != "sh -c 'echo early; read x; echo got $x; exit 4'" || len(info.Args) != 3 ||
			info.WorkDir != dir || info.User != "root" || info.PTY || !info.Stdin || info.StartedAt != 1700000000000001 || info.DeadlineAt != 1700000099000001 || info.Exit != nil {
			t.Errorf("got %+v", info)
		}
		for _, ref := range []guestproto.ProcessRef{{ID: "bg"}, {PID: info.PID}, {Tag: "mine"}} {
			if got, err := b.conn.Inspect(ctx, ref); err != nil || got.ID != "bg" {
				t.Errorf("%+v: got %+v, %v", ref, got, err)
			}
		}
		for _, ref := range []guestproto.ProcessRef{{ID: "no"}, {PID: 99999999}, {Tag: "yours"}} {
			_, err := b.conn.Inspect(ctx, ref)
			wantCode(t, err, ringfence.CodeProcessNotFound, "")
		}
		b.spawn(t, guestproto.ProcessStart{ID: "short", Shell: "exit 9", Tag: "other"})
		b.waitFor(t, "short")
		for _, c := range []struct {
			q    guestproto.ProcessQuery
			want string
		}{
			{guestproto.ProcessQuery{}, "[bg short]"}, {guestproto.ProcessQuery{Running: true}, "[bg]"}, {guestproto.ProcessQuery{Ended: true}, "[short]"},
			{guestproto.ProcessQuery{Tag: "other"}, "[short]"}, {guestproto.ProcessQuery{Tag: "mine", Ended: true}, "[]"},
		} {
			list, err := b.conn.Query(ctx, c.q)
			ids := []string{}
			for _, p := range list {
				ids = append(ids, p.ID)
			}
			if err != nil || fmt.Sprint(ids) != c.want {
				t.Errorf("%+v: got %v, %v", c.q, ids, err)
			}
		}
		// Nobody had joined, and nothing is lost; a look does not wait.
		for out := ""; out != "early\n"; {
			var exit guestproto.ProcessExit
			if out, exit = b.log(t, "bg", 0, false); !exit.Running {
				t.Fatalf("got %+v", exit)
			}
		}
		if n := b.input(t, "bg", false, strings.NewReader("this\n")); n != 5 {
			t.Errorf("wrote %d bytes", n)
		}
		if info = b.waitFor(t, "bg"); info.Exit == nil || info.Exit.ExitCode != 4 || info.LogEnd != 15 || info.Stdin || info.Exit.EndedAt < time.Now().Add(-time.Hour).UnixMicro() {
			t.Errorf("got %+v, %+v", info, info.Exit)
		}
		if out, exit := b.log(t, "bg", 6, true); out != "got this\n" || exit.ExitCode != 4 || exit.Running {
			t.Errorf("got %q, %+v", out, exit)
		}
		if out, _ := b.log(t, "bg", ^uint64(0), true); out != "" {
			t.Errorf("from the end on came %q", out)
		}
		_, err := b.conn.WriteInput(ctx, guestproto.ProcessInput{ID: "bg"}, strings.NewReader("x"))
		wantCode(t, err, ringfence.CodeProcessEnded, "")
		wantCode(t, b.conn.Kill(ctx, guestproto.ProcessKill{ID: "bg", Signal: 15}), ringfence.CodeProcessEnded, "")
		wantCode(t, b.conn.Resize(ctx, guestproto.ProcessResize{ID: "short", Cols: 1, Rows: 1}), ringfence.CodeFailedPrecondition, "")
	})
}

// What cannot be started says why.
func TestProcessThatCannotStart(t *testing.T) {
	eachBed(t, func(t *testing.T, b *bed) {
		ctx := testContext(t)
		for _, c := range []struct {
			start guestproto.ProcessStart
			field string
			words string
		}{
			{guestproto.ProcessStart{ID: "a", Shell: "true", WorkDir: "/no/such/dir"}, "cwd", "no such file"},
			{guestproto.ProcessStart{ID: "a", Shell: "true", WorkDir: "/etc/passwd"}, "cwd", "not a directory"},
			{guestproto.ProcessStart{ID: "a", Shell: "true", User: "nobody-there"}, "user", "no user"},
			{guestproto.ProcessStart{ID: "a"}, "command", ""},
			{guestproto.ProcessStart{ID: "a", Shell: "true", PTY: &guestproto.Terminal{}}, "pty", "column"},
		} {
			_, err := b.conn.Spawn(ctx, c.start)
			wantCode(t, err, ringfence.CodeInvalidArgument, c.field)
			if err == nil || !strings.Contains(err.Error(), c.words) {
				t.Errorf("got %v", err)
			}
		}
		b.spawn(t, guestproto.ProcessStart{ID: "b", Args: []string{"no-such-program"}})
		if info := b.waitFor(t, "b"); info.PID != 0 || info.Exit.ExitCode != 127 {
			t.Errorf("got %+v", info)
		}
		if out, _ := b.log(t, "b", 0, true); out != "no-such-program: command not found\n" {
			t.Errorf("got %q", out)
		}
		_, err := b.conn.Spawn(ctx, guestproto.ProcessStart{ID: "b", Shell: "true"})
		wantCode(t, err, ringfence.CodeAlreadyExists, "id")
	})
}

// Input comes from whoever sends it, at any time, as bytes, and is held back.
func TestInput(t *testing.T) {
	eachBed(t, func(t *testing.T, b *bed) {
		ctx := testContext(t)
		every := make([]byte, 256)
		for i := range every {
			every[i] = byte(i)
		}
		b.spawn(t, guestproto.ProcessStart{ID: "cat", Args: []string{"cat"}, Stdin: true})
		b.input(t, "cat", false, bytes.NewReader(every[:100]))
		if n := b.input(t, "cat", true, bytes.NewReader(every[100:])); n != 156 {
			t.Errorf("wrote %d bytes", n)
		}
		if out, exit := b.log(t, "cat", 0, true); out != string(every) || exit.ExitCode != 0 {
			t.Errorf("got %q, %+v", out, exit)
		}

		big := randomBytes(4 << 20)
		b.spawn(t, guestproto.ProcessStart{ID: "big", Args: []string{"cat"}, Stdin: true})
		if n := b.input(t, "big", true, bytes.NewReader(big)); n != int64(len(big)) {
			t.Errorf("wrote %d bytes", n)
		}
		if out, exit := b.log(t, "big", 0, true); out != string(big) || exit.Lost != 0 {
			t.Errorf("got %d bytes, %+v", len(out), exit)
		}
		line := strings.Repeat("x", 1<<20)
		if r := b.sh(t, "head -c 1048576 /dev/zero | tr '\\0' x"); r.stdout != line {
			t.Errorf("got %d bytes", len(r.stdout))
		}

		// A process that does not read holds the writer back, who can leave; and its end says so.
		b.spawn(t, guestproto.ProcessStart{ID: "deaf", Args: []string{"sleep", "1000"}, Stdin: true})
		short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		_, err := b.conn.WriteInput(short, guestproto.ProcessInput{ID: "deaf"}, bytes.NewReader(big))
		cancel()
		wantCode(t, err, ringfence.CodeDeadlineExceeded, "")
		waits := make(chan error, 2)
		r, w := io.Pipe() // somebody who types nothing
		defer w.Close()
		for _, in := range []io.Reader{bytes.NewReader(big), r} {
			go func() {
				_, err := b.conn.WriteInput(ctx, guestproto.ProcessInput{ID: "deaf"}, in)
				waits <- err
			}()
		}
		time.Sleep(50 * time.Millisecond)
		if err := b.conn.Kill(ctx, guestproto.ProcessKill{ID: "deaf", Signal: 15}); err != nil {
			t.Error(err)
		}
		for range 2 {
			// A pipe breaks a moment before its process is known to have ended.
			if err := <-waits; ringfence.CodeOf(err) != ringfence.CodeProcessEnded && ringfence.CodeOf(err) != ringfence.CodeStdinClosed {
				t.Errorf("got %v", err)
			}
		}
		if info := b.waitFor(t, "deaf"); info.Exit.Signal != 15 || info.Exit.ExitCode != 143 {
			t.Errorf("got %+v", info.Exit)
		}

		b.spawn(t, guestproto.ProcessStart{ID: "closed", Shell: "exec <&-; sleep 1000", Stdin: true})
		for {
			_, err := b.conn.WriteInput(ctx, guestproto.ProcessInput{ID: "closed"}, strings.NewReader("x"))
			if err != nil {
				wantCode(t, err, ringfence.CodeStdinClosed, "")
				break
			}
		}
		b.spawn(t, guestproto.ProcessStart{ID: "none", Shell: "sleep 1000"})
		_, err = b.conn.WriteInput(ctx, guestproto.ProcessInput{ID: "none"}, strings.NewReader("x"))
		wantCode(t, err, ringfence.CodeStdinClosed, "")
		for _, id := range []string{"closed", "none"} {
			if err := b.conn.Kill(ctx, guestproto.ProcessKill{ID: id, Signal: 9, Tree: true}); err != nil {
				t.Error(err)
			}
		}
	})
}

// Every signal goes to the process, or to all that it started. (The shells wait instead of
// looping over short commands: dash loses a signal that comes while it starts one.)
func TestSignals(t *testing.T) {
	eachBed(t, func(t *testing.T, b *bed) {
		ctx := testContext(t)
		b.spawn(t, guestproto.ProcessStart{ID: "trap", Shell: `trap 'echo usr1' USR1; trap 'echo int' INT; echo up; sleep 1000 & while :; do wait; done`})
		said := func(want string) {
			t.Helper()
			waitUntil(t, want, func() bool { out, _ := b.log(t, "trap", 0, false); return strings.HasSuffix(out, want) })
		}
		said("up\n")
		for _, s := range []struct {
			signal int
			want   string
		}{{10, "usr1\n"}, {2, "int\n"}} {
			if err := b.conn.Kill(ctx, guestproto.ProcessKill{ID: "trap", Signal: s.signal}); err != nil {
				t.Fatal(err)
			}
			said(s.want)
		}
		if err := b.conn.Kill(ctx, guestproto.ProcessKill{ID: "trap", Signal: 1}); err != nil {
			t.Fatal(err)
		}
		if info := b.waitFor(t, "trap"); info.Exit.Signal != 1 || info.Exit.ExitCode != 129 || info.Exit.Reason != "" {
			t.Errorf("got %+v", info.Exit)
		}
		// A tree whose root has ended is still one.
		b.spawn(t, guestproto.ProcessStart{ID: "tree", Shell: `(trap 'echo child; exit' TERM; echo up; sleep 1000 & wait) & read x`, Stdin: true})
		waitUntil(t, "the child", func() bool { out, _ := b.log(t, "tree", 0, false); return out == "up\n" })
		if _, err := b.conn.WriteInput(ctx, guestproto.ProcessInput{ID: "tree"}, strings.NewReader("go\n")); err != nil {
			t.Fatal(err)
		}
		b.waitFor(t, "tree")
		if err := b.conn.Kill(ctx, guestproto.ProcessKill{ID: "tree", Signal: 15, Tree: true}); err != nil {
			t.Fatal(err)
		}
		waitUntil(t, "the child's last word", func() bool { out, _ := b.log(t, "tree", 0, false); return strings.HasSuffix(out, "child\n") })
		waitUntil(t, "an end of the tree", func() bool {
			return ringfence.CodeOf(b.conn.Kill(ctx, guestproto.ProcessKill{ID: "tree", Signal: 15, Tree: true})) == ringfence.CodeProcessEnded
		})
		wantCode(t, b.conn.Kill(ctx, guestproto.ProcessKill{ID: "tree", Signal: 65}), ringfence.CodeInvalidArgument, "signal")
	})
}

func waitUntil(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %q", what)
		}
	}
}

// A kill that overtakes its start is not lost.
func TestKillBeforeStart(t *testing.T) {
	b := hostBed(t)
	ctx := testContext(t)
	wantCode(t, b.conn.Kill(ctx, guestproto.ProcessKill{ID: "early", Signal: 9, Tree: true}), ringfence.CodeProcessNotFound, "")
	_, err := b.conn.Spawn(ctx, guestproto.ProcessStart{ID: "early", Shell: "sleep 1000"})
	wantCode(t, err, ringfence.CodeFailedPrecondition, "id")
}

// One who watches is told of what runs, what starts and what ends.
func TestWatch(t *testing.T) {
	eachBed(t, func(t *testing.T, b *bed) {
		ctx, cancel := context.WithCancel(testContext(t))
		defer cancel()
		b.spawn(t, guestproto.ProcessStart{ID: "before", Shell: "sleep 1000"})
		told := make(chan string, 100)
		ended := make(chan error, 1)
		go func() {
			ended <- b.conn.Watch(ctx, func(n guestproto.ProcessNotice) error {
				what := n.Process.ID + " runs"
				if n.Process.Exit != nil {
					what = fmt.Sprint(n.Process.ID, " ended ", n.Process.Exit.ExitCode)
				}
				told <- what
				return nil
			})
		}()
		if got := <-told; got != "before runs" {
			t.Errorf("got %q", got)
		}
		b.spawn(t, guestproto.ProcessStart{ID: "then", Shell: "exit 3"})
		for _, want := range []string{"then runs", "then ended 3"} {
			if got := <-told; got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		}
		if err := b.conn.Kill(ctx, guestproto.ProcessKill{ID: "before", Signal: 9, Tree: true, Reason: "deadline"}); err != nil {
			t.Error(err)
		}
		if got := <-told; got != "before ended 137" {
			t.Errorf("got %q", got)
		}
		cancel()
		wantCode(t, <-ended, ringfence.CodeCanceled, "")
	})
}

// Many commands at once, round after round, each with its own output.
func TestManyStreams(t *testing.T) {
	b := gvisorBed(t, ringfence.Size{VCPU: 2, MemoryMiB: 1024, DiskMiB: 1024})
	for range 5 {
		var wg sync.WaitGroup
		for i := range 64 {
			wg.Go(func() {
				var out, errs bytes.Buffer
				p, err := b.conn.Start(testContext(t), guestproto.ProcessStart{ID: newID(), Shell: fmt.Sprintf("seq -f '%d.%%g' 300; echo %d >&2", i, i)}, collect(&out, &errs))
				if err != nil {
					t.Error(err)
					return
				}
				exit, err := p.Wait(testContext(t))
				lines := strings.Fields(out.String())
				if err != nil || exit.ExitCode != 0 || len(lines) != 300 || lines[299] != fmt.Sprintf("%d.300", i) || errs.String() != fmt.Sprintln(i) {
					t.Errorf("%d: got %d lines, %q, %+v, %v", i, len(lines), errs.String(), exit, err)
				}
			})
		}
		wg.Wait()
	}
	if err := b.conn.Err(); err != nil {
		t.Error(err)
	}
}

// Many ended processes are kept, and not more than that; none of it is big.
func TestEndedProcessesAreBounded(t *testing.T) {
	b := hostBed(t)
	for range 1100 {
		b.run(t, guestproto.ProcessStart{Args: []string{"true"}})
	}
	list, err := b.conn.Query(testContext(t), guestproto.ProcessQuery{})
	if err != nil || len(list) < 1000 || len(list) > 1001 {
		t.Errorf("%d processes are kept, %v", len(list), err)
	}
}
