package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"ringfence.dev/ringfence/client"
)

// Machine is where the bench ran.
type Machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Memory int64  `json:"memory"` // bytes
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
}

func thisMachine() Machine {
	m := Machine{CPU: "unknown CPU", Cores: runtime.NumCPU(), Kernel: "unknown", Go: runtime.Version()}
	if v := lineOf("/proc/cpuinfo", "model name"); v != "" {
		m.CPU = v
	}
	m.Memory = kilobytes(lineOf("/proc/meminfo", "MemTotal"))
	if b, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = strings.TrimSpace(string(b))
	}
	return m
}

// lineOf returns the value of the first "name: value" in a file of /proc.
func lineOf(file, name string) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	s := bufio.NewScanner(bytes.NewReader(b))
	for s.Scan() {
		if key, value, ok := strings.Cut(s.Text(), ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// kilobytes reads "123 kB" as bytes.
func kilobytes(s string) int64 {
	n, _ := strconv.ParseInt(strings.TrimSuffix(s, " kB"), 10, 64)
	return n << 10
}

// hostView looks at the processes of a server on this host.
type hostView struct{ pid int }

// findHost finds the process that listens where base points to.
func findHost(base string) (*hostView, error) {
	u, err := url.Parse(base)
	if err != nil {
		return nil, err
	}
	if ip := net.ParseIP(u.Hostname()); u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return nil, fmt.Errorf("%s is not this host", u.Host)
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	inodes := map[string]bool{}
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		b, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			// sl local_address rem_address st … inode: proc(5)
			f := strings.Fields(line)
			if len(f) < 10 || f[3] != "0A" { // 0A: listening
				continue
			}
			_, hex, _ := strings.Cut(f[1], ":")
			if n, err := strconv.ParseUint(hex, 16, 16); err == nil && strconv.FormatUint(n, 10) == port {
				inodes["socket:["+f[9]+"]"] = true
			}
		}
	}
	for _, pid := range processes() {
		dir := fmt.Sprintf("/proc/%d/fd", pid)
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, e := range entries {
			if target, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil && inodes[target] {
				return &hostView{pid: pid}, nil
			}
		}
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("only root may look at the server's process")
	}
	return nil, fmt.Errorf("no process here listens on port %s", port)
}

func (r *run) elsewhere() error {
	return skipped("the server's processes cannot be seen: " + r.remote.Error())
}

func processes() []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

func (h *hostView) daemonRSS() (int64, error) {
	rss := kilobytes(lineOf(fmt.Sprintf("/proc/%d/status", h.pid), "VmRSS"))
	if rss == 0 {
		return 0, fmt.Errorf("the server's process %d is gone", h.pid)
	}
	return rss, nil
}

// sandboxProcesses returns the processes of a sandbox: those that have its id in
// their arguments, and all that descend from them. The daemon is none of them.
func (h *hostView) sandboxProcesses(id string) []int {
	parent := map[int]int{}
	own := map[int]bool{}
	for _, pid := range processes() {
		if pid == h.pid || pid == os.Getpid() {
			continue
		}
		stat, ok := readStat(pid)
		if !ok {
			continue
		}
		parent[pid] = stat.parent
		args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil && bytes.Contains(args, []byte(id)) {
			own[pid] = true
		}
	}
	var pids []int
	for pid := range parent {
		for p, depth := pid, 0; p > 1 && depth < 64; p, depth = parent[p], depth+1 {
			if own[p] {
				pids = append(pids, pid)
				break
			}
		}
	}
	return pids
}

type procStat struct {
	parent int
	cpu    time.Duration // user and system, of all threads
}

// userHZ is the unit of times in /proc, the same on every Linux that Go runs on.
const userHZ = 100

// readStat reads /proc/PID/stat, see proc(5). The name in it may hold anything.
func readStat(pid int) (procStat, bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return procStat{}, false
	}
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) < 13 {
		return procStat{}, false
	}
	parent, _ := strconv.Atoi(f[1])
	user, _ := strconv.ParseInt(f[11], 10, 64)
	system, _ := strconv.ParseInt(f[12], 10, 64)
	return procStat{parent: parent, cpu: time.Duration(user+system) * time.Second / userHZ}, true
}

// daemonRSS measures the daemon as it is found: start it anew for an idle figure.
func (r *run) daemonRSS(ctx context.Context, row *Row) error {
	if r.host == nil {
		return r.elsewhere()
	}
	rss, err := r.host.daemonRSS()
	if err != nil {
		return err
	}
	n := 0
	for _, err := range r.o.Client.List(ctx, client.ListOptions{}) {
		if err != nil {
			return err
		}
		n++
	}
	if n > 0 {
		row.Note = fmt.Sprintf("with %d sandboxes of others", n)
	}
	row.add(float64(rss) / 1e6)
	return nil
}

// idleSandboxes is how many are looked at: the program that each of them runs is in
// memory once, so that a single one would bear all of it.
const idleSandboxes = 10

// idle makes sandboxes, lets them settle, and calls measure with the processes of each.
func (r *run) idle(ctx context.Context, measure func(sandboxes [][]int) error) (err error) {
	if r.host == nil {
		return r.elsewhere()
	}
	var made []*client.Sandbox
	defer func() {
		for _, s := range made {
			err = errors.Join(err, r.kill(ctx, s))
		}
	}()
	for range idleSandboxes {
		s, err := r.create(ctx)
		if err != nil {
			return err
		}
		made = append(made, s)
		if _, err := s.Run(ctx, client.Command{Shell: "true"}); err != nil {
			return err
		}
	}
	if err := wait(ctx, 3*time.Second); err != nil {
		return err
	}
	var sandboxes [][]int
	for _, s := range made {
		pids := r.host.sandboxProcesses(s.ID())
		if len(pids) == 0 {
			return skipped("no process on this host has a sandbox's id in its arguments")
		}
		sandboxes = append(sandboxes, pids)
	}
	return measure(sandboxes)
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ownMemory leaves out the processes that share the memory of one before them, as
// some of gVisor's do: it would be counted again.
func ownMemory(pids []int) []int {
	const kcmpVM = 1 // KCMP_VM, see kcmp(2)
	var own []int
	for _, pid := range pids {
		if !slices.ContainsFunc(own, func(other int) bool {
			order, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(pid), uintptr(other), kcmpVM, 0, 0, 0)
			return errno == 0 && order == 0
		}) {
			own = append(own, pid)
		}
	}
	return own
}

func (r *run) idlePSS(ctx context.Context, row *Row) error {
	row.Note = fmt.Sprintf("of %d sandboxes", idleSandboxes)
	return r.idle(ctx, func(sandboxes [][]int) error {
		for _, pids := range sandboxes {
			var sum int64
			for _, pid := range ownMemory(pids) {
				file := fmt.Sprintf("/proc/%d/smaps_rollup", pid)
				if _, err := os.ReadFile(file); errors.Is(err, fs.ErrPermission) {
					return skipped("only root may see a process's share of memory")
				}
				sum += kilobytes(lineOf(file, "Pss"))
			}
			row.add(float64(sum) / 1e6)
		}
		return nil
	})
}

// idleCPU looks for long enough that one tick of the clock is a tenth of a percent.
func (r *run) idleCPU(ctx context.Context, row *Row) error {
	return r.idle(ctx, func(sandboxes [][]int) error {
		used := func(pids []int) (sum time.Duration) {
			for _, pid := range pids {
				stat, _ := readStat(pid)
				sum += stat.cpu
			}
			return sum
		}
		before := make([]time.Duration, len(sandboxes))
		for i, pids := range sandboxes {
			before[i] = used(pids)
		}
		began := time.Now()
		if err := wait(ctx, 10*time.Second); err != nil {
			return err
		}
		for i, pids := range sandboxes {
			row.add(100 * float64(used(pids)-before[i]) / float64(time.Since(began)))
		}
		return nil
	})
}
