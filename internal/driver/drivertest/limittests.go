package drivertest

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/guestproto"
)

// limits needs an image with dd, df, free, seq and nproc.
func (s suite) limits(t *testing.T) {
	t.Run("Totals", s.limitTotals)
	t.Run("CPU", s.limitCPU)
	t.Run("Disk", s.limitDisk)
	t.Run("FilesAreNotMemory", s.limitFiles)
	t.Run("Tmp", s.limitTmp)
	t.Run("Shm", s.limitShm)
	t.Run("Processes", s.limitProcesses)
	t.Run("HugeAllocation", s.limitHuge)
	t.Run("GrowingForEver", s.limitGrowing)
	t.Run("ManySmall", s.limitManySmall)
	t.Run("HardLimit", s.limitHard)
}

func number(t *testing.T, text string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil {
		t.Fatalf("%q is not a number", text)
	}
	return n
}

func (s suite) limitTotals(t *testing.T) {
	spec := s.h.Spec(t)
	c := Attach(t, s.create(t, s.h.Open(t), spec), spec)
	total := number(t, Shell(t, c, "grep MemTotal /proc/meminfo | tr -dc 0-9").Stdout)
	if total != spec.Size.MemoryMiB<<10 {
		t.Errorf("the guest has %d KiB in all, want %d", total, spec.Size.MemoryMiB<<10)
	}
	disk := number(t, Shell(t, c, "df -k / | tail -n 1 | tr -s ' ' | cut -d ' ' -f 2").Stdout)
	if disk != spec.Size.DiskMiB<<10 {
		t.Errorf("the disk has %d KiB in all, want %d", disk, spec.Size.DiskMiB<<10)
	}
}

// limitCPU burns with more processes than the sandbox has cores.
func (s suite) limitCPU(t *testing.T) {
	spec := s.h.Spec(t)
	spec.Size.VCPU = 1
	i := s.create(t, s.h.Open(t), spec)
	c := Attach(t, i, spec)
	Start(t, c, guestproto.ProcessStart{ID: "burn", Shell: "for i in 1 2 3 4; do while :; do :; done & done; wait"})
	time.Sleep(300 * time.Millisecond)
	before, err := i.Usage(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	time.Sleep(2 * time.Second)
	after, err := i.Usage(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	used := float64(after.CPUNanos-before.CPUNanos) / float64(time.Since(begin).Nanoseconds())
	t.Logf("a sandbox with 1 core used %.2f", used)
	if used > 1.25 {
		t.Errorf("a sandbox with 1 core used %.2f cores", used)
	}
	if _, err := c.Ping(testContext(t)); err != nil {
		t.Errorf("the agent does not answer under load: %v", err)
	}
}

func (s suite) limitDisk(t *testing.T) {
	spec := s.h.Spec(t)
	spec.Size.DiskMiB = 64
	i := s.create(t, s.h.Open(t), spec)
	c := Attach(t, i, spec)
	r := Shell(t, c, "dd if=/dev/zero of=/root/big bs=1M count=200")
	if r.Exit.ExitCode == 0 || !strings.Contains(r.Stderr, "No space left on device") {
		t.Errorf("a write beyond the disk gave %+v", r)
	}
	wantOutput(t, c, "rm /root/big; dd if=/dev/zero of=/root/small bs=1M count=32 2> /dev/null; wc -c < /root/small", "33554432\n")
	wantAlive(t, i)
}

// limitFiles writes more than the sandbox has memory.
func (s suite) limitFiles(t *testing.T) {
	spec := s.h.Spec(t)
	spec.Size.MemoryMiB, spec.Size.DiskMiB = 256, 2048
	i := s.create(t, s.h.Open(t), spec)
	c := Attach(t, i, spec)
	begin := time.Now()
	r := Shell(t, c, "for i in 1 2 3; do dd if=/dev/zero of=/root/big$i bs=1M count=300 || exit 1; done")
	if r.Exit.ExitCode != 0 {
		t.Fatalf("900 MiB of files with 256 MiB of memory: %+v", r)
	}
	t.Logf("900 MiB in %v", time.Since(begin))
	r = Shell(t, c, "for i in 1 2 3; do dd if=/root/big$i of=/dev/null bs=1M || exit 1; done")
	if r.Exit.ExitCode != 0 || strings.Count(r.Stderr, "300+0 records out") != 3 {
		t.Errorf("reading it back: %+v", r)
	}
	wantAlive(t, i)
}

// limitTmp: /tmp is disk, and ends where the disk does.
func (s suite) limitTmp(t *testing.T) {
	spec := s.h.Spec(t)
	spec.Size.MemoryMiB, spec.Size.DiskMiB = 256, 512
	i := s.create(t, s.h.Open(t), spec)
	c := Attach(t, i, spec)
	r := Shell(t, c, "dd if=/dev/zero of=/tmp/big bs=1M count=600")
	if r.Exit.ExitCode == 0 || !strings.Contains(r.Stderr, "No space left on device") {
		t.Errorf("a write of more than the disk to /tmp gave %+v", r)
	}
	wantAlive(t, i)
	wantOutput(t, c, "rm /tmp/big; ls -ld /tmp | cut -c 1-10", "drwxrwxrwt\n")
}

func (s suite) limitShm(t *testing.T) {
	spec := s.h.Spec(t)
	i := s.create(t, s.h.Open(t), spec)
	c := Attach(t, i, spec)
	r := Shell(t, c, "dd if=/dev/zero of=/dev/shm/big bs=1M count=600")
	if r.Exit.ExitCode == 0 || !strings.Contains(r.Stderr, "No space left on device") {
		t.Errorf("a write of 600 MiB to /dev/shm gave %+v", r)
	}
	wantAlive(t, i)
	wantOutput(t, c, "echo alive", "alive\n")
}

// limitProcesses is a fork bomb of root.
func (s suite) limitProcesses(t *testing.T) {
	spec := s.h.Spec(t)
	spec.MaxProcs = 100
	i := s.create(t, s.h.Open(t), spec)
	c := Attach(t, i, spec)
	bomb := Start(t, c, guestproto.ProcessStart{ID: "bomb", Shell: "b() { b | b & }; b; while :; do sleep 100 & done"})
	time.Sleep(2 * time.Second)
	begin := time.Now()
	if _, err := c.Ping(testContext(t)); err != nil {
		t.Fatalf("the agent does not answer under a fork bomb: %v", err)
	}
	t.Logf("a ping under a fork bomb took %v", time.Since(begin))
	st, err := c.Stats(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("processes under a fork bomb: %d of %d", st.Processes, spec.MaxProcs)
	if st.Processes > spec.MaxProcs+10 {
		t.Errorf("there are %d processes, the limit is %d", st.Processes, spec.MaxProcs)
	}
	if err := c.Kill(testContext(t), guestproto.ProcessKill{ID: "bomb", Signal: 9, Tree: true}); err != nil {
		t.Fatalf("cannot kill the bomb: %v", err)
	}
	if _, err := bomb.Finish(testContext(t)); err != nil {
		t.Error(err)
	}
	wantOutput(t, c, "echo after the bomb", "after the bomb\n")
	wantAlive(t, i)
}

// Runaways: programs of the image that take memory. awk is the only one in a small
// image that holds on to what it is told to hold.
const (
	hugeAllocation = `awk 'BEGIN { s = "x"; for (i = 0; i < 40; i++) s = s s; print length(s) }'`
	growForEver    = `awk 'BEGIN { b = sprintf("%1000000s", ""); for (i = 0; ; i++) a[i] = b i }'`
	manySmall      = `for i in $(seq 1 60); do awk 'BEGIN { b = sprintf("%1000000s", ""); for (i = 0; i < 15; i++) a[i] = b i; while (1) system("sleep 1") }' & done; wait`
)

func (s suite) limitHuge(t *testing.T)    { s.runaway(t, hugeAllocation, true) }
func (s suite) limitGrowing(t *testing.T) { s.runaway(t, growForEver, true) }

// limitManySmall: no single process is to blame, and the sandbox has to survive it.
func (s suite) limitManySmall(t *testing.T) { s.runaway(t, manySmall, false) }

// runaway takes too much memory in one command, beside another one.
func (s suite) runaway(t *testing.T, script string, ends bool) {
	spec := s.h.Spec(t)
	spec.Size.MemoryMiB = 256
	i := s.create(t, s.h.Open(t), spec)
	c := Attach(t, i, spec)
	bystander := Start(t, c, guestproto.ProcessStart{ID: "bystander", Shell: "while true; do echo tick; sleep 0.1; done"})
	runaway := Start(t, c, guestproto.ProcessStart{ID: "runaway", Shell: script})
	select {
	case <-runaway.Done():
		r, err := runaway.Finish(testContext(t))
		if err != nil {
			t.Fatalf("the runaway: %v, sandbox %+v", err, wantDone(t, i))
		}
		t.Logf("the runaway ended with %+v %.200q", r.Exit, r.Stderr)
		if ends && (r.Exit.ExitCode != 137 || r.Exit.Reason != "oom") {
			t.Errorf("the runaway ended with %+v, want 137 and oom", r.Exit)
		}
	case <-time.After(20 * time.Second):
		if ends {
			t.Error("the runaway was not ended")
		}
	}
	wantAlive(t, i)
	if _, err := c.Ping(testContext(t)); err != nil {
		t.Fatalf("the agent does not answer: %v", err)
	}
	select {
	case <-bystander.Done():
		r, err := bystander.Finish(testContext(t))
		t.Errorf("the bystander ended: %+v, %v", r.Exit, err)
	default:
	}
	if err := c.Kill(testContext(t), guestproto.ProcessKill{ID: "runaway", Signal: 9, Tree: true}); err != nil &&
		ringfence.CodeOf(err) != ringfence.CodeProcessNotFound && ringfence.CodeOf(err) != ringfence.CodeProcessEnded {
		t.Error(err)
	}
	wantOutput(t, c, "echo after", "after\n")
}

// limitHard gets past the agent's guard: memory that belongs to no process. The host
// ends this sandbox, says why, and no other one is touched.
func (s suite) limitHard(t *testing.T) {
	d := s.h.Open(t)
	spec, other := s.h.Spec(t), s.h.Spec(t)
	spec.Size.MemoryMiB = 128
	i, neighbour := s.create(t, d, spec), s.create(t, d, other)
	Attach(t, i, spec).Close()
	nc := Attach(t, neighbour, other)
	go i.Rescue(testContext(t), []string{"/bin/sh", "-c", "mkdir -p /mnt; mount -t tmpfs none /mnt && dd if=/dev/zero of=/mnt/big bs=1M count=2000"})
	if e := wantDone(t, i); e.Reason != ringfence.ReasonOOM || e.Detail == "" {
		t.Errorf("the exit is %+v, want reason oom", e)
	}
	wantAlive(t, neighbour)
	wantOutput(t, nc, "echo untouched", "untouched\n")
	if err := i.Kill(testContext(t)); err != nil {
		t.Error(err)
	}
	s.wantNoTraces(t, spec.ID)
}
