package gvisor

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/cgroup"

	"ringfence.dev/ringfence/internal/driver"
)

const (
	cpuPeriod = 100_000 // microseconds

	// overheadMiB is what the sentry needs for itself, on top of the guest's
	// memory and its /dev/shm: 15 MiB idle, more with many open files, and room
	// for the moment that the agent's guard takes to act. On a busy host that
	// moment is long: 128 MiB were used up before the guard had looked at 60
	// processes that all grew.
	overheadMiB = 256
	// procOverheadKiB is what a process in the guest costs the host beyond its
	// memory: its stub, page tables and what the sentry keeps about it. 470 KiB
	// measured for a process that sleeps.
	procOverheadKiB = 512
	// mapOverhead is the share of the guest's memory that mapping it may cost.
	mapOverhead = 1.0 / 32

	// defaultMaxProcs is used when a spec does not bound the processes.
	defaultMaxProcs = 1024
)

// controllersV1 are the version 1 hierarchies that a sandbox is placed in. With
// version 2 there is one, and clone places the process itself.
var controllersV1 = []string{"memory", "cpu", "cpuacct", "pids", "cpuset", "blkio"}

// cgroups makes and removes the control group of each sandbox, parent/<id>. Both
// versions of control groups go through gVisor's own package; this only reads
// what that does not: who was killed for memory, and who is in the group.
type cgroups struct {
	parent string
	v2     bool
}

func newCgroups(parent string) *cgroups {
	return &cgroups{parent: path.Clean("/" + parent), v2: cgroup.IsOnlyV2()}
}

func (c *cgroups) group(id string) (cgroup.Cgroup, error) {
	return cgroup.NewFromPath(path.Join(c.parent, id), false)
}

// create makes the group with its limits. The memory limit is hard, and above
// what the guest is told, so that the agent's guard acts first. There is no tight
// limit of host tasks: meeting it would kill the sentry and not the offender.
func (c *cgroups) create(spec driver.Spec) error {
	id, size := spec.ID, spec.Size
	g, err := c.group(id)
	if err != nil {
		return fmt.Errorf("cannot find the control groups: %w", err)
	}
	limit := hardLimit(spec)
	quota := int64(size.VCPU) * cpuPeriod
	period := uint64(cpuPeriod)
	resources := &specs.LinuxResources{
		Memory: &specs.LinuxMemory{Limit: &limit},
		CPU:    &specs.LinuxCPU{Quota: &quota, Period: &period},
	}
	err = g.Install(resources)
	if errors.Is(err, unix.ENOENT) { // another driver's removeParent came in between
		err = g.Install(resources)
	}
	if err != nil {
		c.remove(id)
		return fmt.Errorf("cannot make the sandbox's control group: %w", err)
	}
	c.forbidSwap(id, limit)
	return nil
}

// forbidSwap keeps the guest's memory out of the host's swap, where there is
// swap accounting. Without it the hard limit would only move memory to disk.
func (c *cgroups) forbidSwap(id string, limit int64) {
	if c.v2 {
		os.WriteFile(filepath.Join(c.dir("memory", id), "memory.swap.max"), []byte("0"), 0o600)
		return
	}
	os.WriteFile(filepath.Join(c.dir("memory", id), "memory.memsw.limit_in_bytes"), []byte(strconv.FormatInt(limit, 10)), 0o600)
}

// hardLimit is the host's memory limit for a sandbox, in bytes: what the guest may
// use, and what serving it may cost.
func hardLimit(s driver.Spec) int64 {
	procs := int64(s.MaxProcs)
	if procs == 0 {
		procs = defaultMaxProcs
	}
	memory := s.Size.MemoryMiB << 20
	return memory + int64(float64(memory)*mapOverhead) + (shmMiB+overheadMiB)<<20 + procs*procOverheadKiB<<10
}

// dir is the directory of a group in a version 1 hierarchy, or the only one.
func (c *cgroups) dir(controller, id string) string {
	g, err := c.group(id)
	if err != nil {
		return filepath.Join("/sys/fs/cgroup", controller, c.parent, id)
	}
	return g.MakePath(controller)
}

// cloneInto returns the directory into which clone can put a process right away,
// or nil where that does not exist and place has to be called.
func (c *cgroups) cloneInto(id string) (*os.File, error) {
	if !c.v2 {
		return nil, nil
	}
	g, err := c.group(id)
	if err != nil {
		return nil, err
	}
	f, err := g.CloneIntoCgroup()
	if err != nil {
		return nil, nil //nolint:nilerr // an old kernel: place does it
	}
	return f, nil
}

// place moves a process into the group.
func (c *cgroups) place(id string, pid int) error {
	controllers := controllersV1
	if c.v2 {
		controllers = []string{""}
	}
	for _, name := range controllers {
		err := os.WriteFile(filepath.Join(c.dir(name, id), "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o600)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("cannot place the sandbox in its control group: %w", err)
		}
	}
	return nil
}

// oomKills returns how many processes of the group the kernel killed for memory.
func (c *cgroups) oomKills(id string) int64 {
	name := "memory.oom_control"
	if c.v2 {
		name = "memory.events"
	}
	raw, err := os.ReadFile(filepath.Join(c.dir("memory", id), name))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(raw)) {
		if value, ok := strings.CutPrefix(line, "oom_kill "); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			return n
		}
	}
	return 0
}

// memoryBytes returns the memory that is charged to the group.
func (c *cgroups) memoryBytes(id string) int64 {
	name := "memory.usage_in_bytes"
	if c.v2 {
		name = "memory.current"
	}
	raw, err := os.ReadFile(filepath.Join(c.dir("memory", id), name))
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
	return n
}

// cpuNanos returns the CPU time that the group used.
func (c *cgroups) cpuNanos(id string) int64 {
	g, err := c.group(id)
	if err != nil {
		return 0
	}
	n, err := g.CPUUsage()
	if err != nil {
		return 0
	}
	return int64(n)
}

// pids returns the processes in the group.
func (c *cgroups) pids(id string) []int {
	raw, err := os.ReadFile(filepath.Join(c.dir("memory", id), "cgroup.procs"))
	if err != nil {
		return nil
	}
	var pids []int
	for _, field := range strings.Fields(string(raw)) {
		if pid, err := strconv.Atoi(field); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids
}

// all lists the hierarchies that may have groups of ours.
func (c *cgroups) all() []string {
	if c.v2 {
		return []string{""}
	}
	return append([]string{"devices", "net_cls", "net_prio", "hugetlb", "freezer", "perf_event", "systemd", "rdma"}, controllersV1...)
}

// removeParent removes the parent of all groups if no sandbox is left.
func (c *cgroups) removeParent() {
	for _, name := range c.all() {
		unix.Rmdir(c.dir(name, ""))
	}
}

// remove kills what is left in the group and removes it. It is no error if there
// is none.
func (c *cgroups) remove(id string) error {
	controllers := c.all()
	deadline := time.Now().Add(5 * time.Second)
	var last error
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		last = nil
		for _, name := range controllers {
			err := unix.Rmdir(c.dir(name, id))
			if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) {
				last = err
			}
		}
		if last == nil || time.Now().After(deadline) {
			break
		}
		for _, pid := range c.pids(id) {
			unix.Kill(pid, unix.SIGKILL)
		}
		time.Sleep(wait)
	}
	if last != nil {
		return fmt.Errorf("cannot remove the control group of sandbox %s: %w", id, last)
	}
	return nil
}
