package guest_test

import (
	"fmt"
	"testing"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/guestlink"
	"ringfence.dev/ringfence/internal/guestproto"
)

// used returns how much of the sandbox's memory is in use, in bytes.
func (b *bed) used(t *testing.T) int64 {
	t.Helper()
	s, err := b.conn.Stats(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	return s.MemTotalBytes - s.MemFreeBytes
}

// With every core busy and 95 percent of the memory used the agent still answers, and starts
// commands. How fast is a row of the bench; here it only has to be no matter of minutes.
func TestFullLoad(t *testing.T) {
	const (
		bound    = 20 * time.Second
		memory   = 1 << 30
		wanted   = memory / 100 * 95
		spinners = 8
	)
	b := gvisorBed(t, ringfence.Size{VCPU: 2, MemoryMiB: memory >> 20, DiskMiB: 512})
	const piece = 1 << 20
	filler := fmt.Sprintf(`my @a; for (1..%d) { push @a, "x" x %d } sleep 3000`, (wanted-b.used(t))/piece, piece)
	b.start(t, guestproto.ProcessStart{Args: []string{"perl", "-e", filler}}, nil)
	for range spinners {
		b.start(t, guestproto.ProcessStart{Args: []string{"perl", "-e", "while (1) {}"}}, nil)
	}
	waitFor(t, func() bool { return b.used(t) >= wanted })
	var slowest time.Duration
	for range 20 {
		begin := time.Now()
		if _, err := b.conn.Ping(testContext(t)); err != nil {
			t.Fatal(err)
		}
		if r := b.sh(t, "echo fine"); r.stdout != "fine\n" {
			t.Fatalf("got %+v", r)
		}
		slowest = max(slowest, time.Since(begin))
	}
	t.Logf("the slowest of 20 answers with a command each took %v", slowest)
	if slowest > bound {
		t.Errorf("an answer and a command took %v", slowest)
	}
	list, err := b.conn.Processes(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	running := 0
	for _, p := range list {
		if p.Exit == nil {
			running++
		} else if p.Exit.Reason != "" {
			t.Errorf("a process ended: %+v", p)
		}
	}
	if running != spinners+1 {
		t.Errorf("%d of the %d processes that make the load are left", running, spinners+1)
	}
}

// The output of many processes has a bound together, also where their readers hold all of
// it back and stand still: a small sandbox keeps its memory however much they write.
func TestOutputFlood(t *testing.T) {
	const writers, each, bound = 120, 1 << 20, 176 << 20
	b := gvisorBed(t, ringfence.Size{VCPU: 2, MemoryMiB: 512, DiskMiB: 512})
	before := b.used(t)
	stopped := make(chan struct{})
	defer close(stopped)
	for range writers {
		ps := guestproto.ProcessStart{ID: newID(), Args: []string{"cat", "/dev/zero"}}
		b.start(t, ps, func(guestlink.Chunk) error { <-stopped; return nil })
	}
	var most int64
	waitFor(t, func() bool {
		most = max(most, b.used(t)-before)
		list, err := b.conn.Processes(testContext(t))
		if err != nil {
			t.Fatal(err)
		}
		written := 0
		for _, p := range list {
			if p.Exit != nil {
				t.Fatalf("a writer ended: %+v", p)
			}
			if p.LogEnd >= each {
				written++
			}
		}
		return written == writers
	})
	t.Logf("%d writers took %d MiB at most", writers, most>>20)
	if most > bound {
		t.Errorf("%d writers took %d MiB at most", writers, most>>20)
	}
}
