package guest_test

import (
	"strings"
	"testing"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/guestproto"
)

// Three ways to take all memory. Each ends with the command that did it, and nothing
// else: not the other command, not the agent, not the sandbox.
func TestRunaways(t *testing.T) {
	b := gvisorBed(t, ringfence.Size{VCPU: 2, MemoryMiB: 512, DiskMiB: 512})
	b.start(t, guestproto.ProcessStart{ID: "bystander", Shell: "echo up; exec sleep 3000"}, nil)
	for _, c := range []struct{ name, script string }{
		{"OneHugeAllocation", `exec perl -e 'my $x = "x" x (3 << 30); sleep 100'`},
		{"BlocksForEver", `exec perl -e 'my @a; while (1) { push @a, "x" x (100 << 20) }'`},
		{"BlocksInAChild", `perl -e 'my @a; while (1) { push @a, "x" x (100 << 20) }'; exit $?`},
		{"ManySmallProcesses", `for i in $(seq 190); do perl -e 'my $x = "x" x (12 << 20); sleep 100' & done; wait; sleep 100`},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := b.run(t, guestproto.ProcessStart{Shell: c.script})
			t.Logf("%+v after %v", r.exit, r.took)
			if r.exit.ExitCode != 137 || r.exit.Reason != "oom" {
				t.Errorf("got %+v, want 137 for memory (stderr %q)", r.exit, r.stderr)
			}
			if r.took > 30*time.Second {
				t.Errorf("it took %v", r.took)
			}
			if r := b.sh(t, "echo fine"); r.stdout != "fine\n" {
				t.Errorf("afterwards: got %+v", r)
			}
			list, err := b.conn.Processes(testContext(t))
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range list {
				if p.ID == "bystander" && p.Exit != nil {
					t.Fatalf("the bystander ended: %+v", p.Exit)
				}
			}
		})
	}
	t.Run("MostOfIt", func(t *testing.T) {
		r := b.sh(t, `exec perl -e 'my $x = "x" x (180 << 20); print length $x'`)
		if r.exit.ExitCode != 0 || !strings.HasPrefix(r.stdout, "188743680") {
			t.Errorf("got %+v", r)
		}
	})
	t.Run("KilledByItself", func(t *testing.T) {
		if r := b.sh(t, `kill -9 $$`); r.exit.ExitCode != 137 || r.exit.Reason != "" {
			t.Errorf("got %+v", r.exit)
		}
	})
}
