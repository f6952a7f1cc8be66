package gvisor

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"ringfence.dev/ringfence/internal/driver"
)

// Usage reads what the sandbox uses from the host's side.
func (i *instance) Usage(context.Context) (driver.Usage, error) {
	if err := i.alive(); err != nil {
		return driver.Usage{}, err
	}
	u := driver.Usage{CPUNanos: i.d.cgroups.cpuNanos(i.id)}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(i.dir, diskFile), &st); err == nil {
		u.DiskBytes = st.Blocks * 512
	}
	var counted bool
	if u.MemoryBytes, counted = i.d.cgroups.anonymousBytes(i.id); counted {
		return u, nil
	}
	for _, pid := range i.d.cgroups.pids(i.id) {
		u.MemoryBytes += pss(pid)
	}
	return u, nil
}

// anonymousBytes returns what the group's processes have in memory that is no file's, and
// whether the kernel counts that. Reading it costs microseconds, where the walk over
// a process's pages costs milliseconds.
func (c *cgroups) anonymousBytes(id string) (int64, bool) {
	raw, err := os.ReadFile(filepath.Join(c.dir("memory", id), "memory.stat"))
	if err != nil {
		return 0, false
	}
	var total int64
	found := 0
	for line := range strings.Lines(string(raw)) {
		switch name, value, _ := strings.Cut(strings.TrimSpace(line), " "); name {
		case "rss", "anon", "shmem": // rss is what version 1 calls anon
			n, err := strconv.ParseInt(value, 10, 64)
			if err != nil {
				return 0, false
			}
			total += n
			found++
		}
	}
	return total, found == 2
}

// pss returns a process's proportional set size in bytes, 0 if it is gone.
func pss(pid int) int64 {
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), "Pss:"); ok {
			kib, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(value, "kB")), 10, 64)
			return kib << 10
		}
	}
	return 0
}
