package guest_test

import (
	"bytes"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/guestproto"
)

// killBound is when a kill has to be done. It is meant to be within a second; these
// tests may run on a machine that is busy with others.
const killBound = 5 * time.Second

// escapees start, beside the command itself, what a plain kill misses: a process in
// another session, one that forked twice, and one that holds the pipes.
const escapees = `
setsid sh -c 'sleep 3011' &
( ( exec setsid sleep 3012 >/dev/null 2>&1 </dev/null & ) & )
sleep 3013 &
trap '' TERM INT HUP
echo ready
while :; do sleep 3014; done
`

func TestKillTree(t *testing.T) {
	eachBed(t, func(t *testing.T, b *bed) {
		var stdout, stderr bytes.Buffer
		ready := make(chan struct{})
		var once sync.Once
		out := collect(&stdout, &stderr)
		p := b.start(t, guestproto.ProcessStart{ID: "tree", Shell: escapees}, func(c chunk) error {
			defer func() {
				if stdout.String() == "ready\n" {
					once.Do(func() { close(ready) })
				}
			}()
			return out(c)
		})
		<-ready
		waitFor(t, func() bool { return countSleeps(t, b) >= 4 })
		begin := time.Now()
		if err := b.conn.Kill(testContext(t), guestproto.ProcessKill{ID: "tree", Signal: 9, Tree: true, Reason: "deadline"}); err != nil {
			t.Fatal(err)
		}
		exit, err := p.Wait(testContext(t))
		if err != nil || exit.ExitCode != 137 || exit.Signal != 9 || exit.Reason != "deadline" {
			t.Errorf("got %+v, %v", exit, err)
		}
		if took := time.Since(begin); took > killBound {
			t.Errorf("the kill took %v", took)
		}
		if n := countSleeps(t, b); n != 0 {
			t.Errorf("%d processes are left", n)
		}
		// Again: it says that there is nothing left.
		err = b.conn.Kill(testContext(t), guestproto.ProcessKill{ID: "tree", Signal: 9, Tree: true})
		wantCode(t, err, ringfence.CodeProcessEnded, "")
		err = b.conn.Kill(testContext(t), guestproto.ProcessKill{ID: "unknown", Signal: 9})
		wantCode(t, err, ringfence.CodeProcessNotFound, "")
	})
}

// countSleeps counts the processes of escapees, seen by another command.
func countSleeps(t *testing.T, b *bed) int {
	r := b.sh(t, `cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' '\n' | grep -c -x '301[1-4]'`)
	n, err := strconv.Atoi(strings.TrimSpace(r.stdout))
	if err != nil {
		t.Fatalf("got %+v", r)
	}
	return n
}

func waitFor(t testing.TB, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !condition(); {
		if time.Now().After(deadline) {
			t.Fatal("it did not happen within 20 seconds")
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func TestKillMain(t *testing.T) {
	eachBed(t, func(t *testing.T, b *bed) {
		p := b.start(t, guestproto.ProcessStart{ID: "main", Shell: "exec sleep 3000"}, nil)
		if err := b.conn.Kill(testContext(t), guestproto.ProcessKill{ID: "main", Signal: 15}); err != nil {
			t.Fatal(err)
		}
		if exit, err := p.Wait(testContext(t)); err != nil || exit.ExitCode != 143 {
			t.Errorf("got %+v, %v", exit, err)
		}
		p = b.start(t, guestproto.ProcessStart{ID: "main2", Shell: "exec sleep 3000"}, nil)
		if err := b.conn.Kill(testContext(t), guestproto.ProcessKill{ID: "main2", Signal: 9}); err != nil {
			t.Fatal(err)
		}
		if exit, err := p.Wait(testContext(t)); err != nil || exit.ExitCode != 137 || exit.Reason != "" {
			t.Errorf("got %+v, %v", exit, err)
		}
	})
}

// A command whose output nobody takes is killed within a second all the same, and its
// output can still be taken afterwards, without a hole.
func TestKillHeldBack(t *testing.T) {
	eachBed(t, func(t *testing.T, b *bed) {
		release := make(chan struct{})
		var got int
		p := b.start(t, guestproto.ProcessStart{ID: "held", Shell: "exec cat /dev/zero"}, func(c chunk) error {
			<-release
			if c.Lost != 0 || c.Position != uint64(got) {
				t.Errorf("a chunk at %d with %d lost, want one at %d", c.Position, c.Lost, got)
			}
			got += len(c.Data)
			return nil
		})
		time.Sleep(300 * time.Millisecond) // until everything is full
		begin := time.Now()
		if err := b.conn.Kill(testContext(t), guestproto.ProcessKill{ID: "held", Signal: 9, Tree: true, Reason: "deadline"}); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took > killBound {
			t.Errorf("the kill took %v", took)
		}
		close(release)
		exit, err := p.Wait(testContext(t))
		if err != nil || exit.Reason != "deadline" || exit.Position != uint64(got) || exit.Lost != 0 {
			t.Errorf("got %+v, %v after %d bytes", exit, err, got)
		}
		if got <= 1<<20 {
			t.Errorf("got %d bytes, expected more than a window", got)
		}
	})
}

func TestForkBomb(t *testing.T) {
	b := gvisorBed(t, ringfence.Size{VCPU: 2, MemoryMiB: 1024, DiskMiB: 1024})
	for _, user := range []string{"root", "user"} {
		t.Run(user, func(t *testing.T) {
			id := "bomb-" + user
			p := b.start(t, guestproto.ProcessStart{ID: id, User: user, Shell: `f() { f 2>/dev/null & f 2>/dev/null & wait; sleep 100; }; f 2>/dev/null`, WorkDir: "/"}, nil)
			waitFor(t, func() bool {
				s, err := b.conn.Stats(testContext(t))
				if err != nil {
					t.Fatal(err)
				}
				if s.Processes > 216 {
					t.Errorf("%d processes, beyond the limit of 200", s.Processes)
				}
				return s.Processes >= 195
			})
			if d, err := b.conn.Ping(testContext(t)); err != nil || d > killBound {
				t.Errorf("the agent answered after %v, %v", d, err)
			}
			// A command gets in to look, and the bomb does not get out by it.
			r := b.run(t, guestproto.ProcessStart{Args: []string{"echo", "in"}})
			if r.stdout != "in\n" || r.exit.ExitCode != 0 {
				t.Errorf("got %+v", r)
			}
			if s, err := b.conn.Stats(testContext(t)); err != nil || s.Processes > 217 {
				t.Errorf("got %+v, %v", s, err)
			}
			begin := time.Now()
			if err := b.conn.Kill(testContext(t), guestproto.ProcessKill{ID: id, Signal: 9, Tree: true}); err != nil {
				t.Fatal(err)
			}
			if _, err := p.Wait(testContext(t)); err != nil {
				t.Error(err)
			}
			t.Logf("killed in %v", time.Since(begin))
			waitFor(t, func() bool {
				s, err := b.conn.Stats(testContext(t))
				return err == nil && s.Processes == 0
			})
		})
	}
}
