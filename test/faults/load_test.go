package faults

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"

	"ringfence.dev/ringfence/client"
)

// Many sandboxes are created, used and killed at once; the daemon holds nothing of
// them afterwards.
func TestManyAtOnce(t *testing.T) {
	w := newWorld(t)
	d := w.start()
	round := func(n int) {
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				ctx := context.Background()
				sb, err := w.c.Create(ctx, client.CreateOptions{Template: "base", MemoryMiB: 256})
				if err != nil {
					t.Error(err)
					return
				}
				want := fmt.Sprintln("number", i)
				if r, err := sb.Run(ctx, client.Command{Shell: fmt.Sprint("echo number ", i)}); err != nil || string(r.Stdout) != want {
					t.Errorf("%+v %v", r, err)
				}
				if err := sb.Kill(ctx); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		w.c.CloseIdleConnections()
	}
	round(4)
	open := func() int {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	var before int
	waitFor(t, "connections to close", func() bool { before = open(); return before < 40 })
	round(20)
	waitFor(t, "files of dead sandboxes to be closed", func() bool { return open() <= before+3 })
	if left := append(w.leftovers(), fmt.Sprint(w.processes())); fmt.Sprint(left) != "[[]]" {
		t.Errorf("left: %v", left)
	}
	if rss := status(t, d.cmd.Process.Pid, "VmRSS"); rss > 80<<10 {
		t.Errorf("the daemon has %d MiB", rss>>10)
	}
}
