package guest

import (
	"bytes"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// reasonOOM is why a process ended that took too much memory.
const reasonOOM = "oom"

const (
	// fillRate is how fast memory can be filled at worst, in bytes per second.
	fillRate = 4 << 30
	// minPoll and maxPoll bound the time between two looks at the memory.
	minPoll = 2 * time.Millisecond
	maxPoll = 250 * time.Millisecond
	// slowPoll is maxPoll when only left-over background processes are alive.
	slowPoll = time.Second
	// minVictim is the smallest command worth killing, in bytes: below, it is not
	// processes that use the memory.
	minVictim = 8 << 20
)

// guard kills the command that uses the most memory before the sandbox's memory is
// used up. The host's hard limit comes after it and ends the whole sandbox.
type guard struct {
	agent *agent

	mu      sync.Mutex
	running bool          // guarded by mu
	low     [2]int64      // lowest headroom of this second and the one before; guarded by mu
	slept   time.Duration // in this second; guarded by mu
}

// plenty is a headroom that nobody ever gets near.
const plenty = 1 << 62

func newGuard(a *agent) *guard {
	return &guard{agent: a}
}

// watch makes sure that the guard runs; it ends by itself when nothing does.
func (g *guard) watch() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.running {
		g.running = true
		g.forgetLocked()
		go g.run()
	}
}

func (g *guard) run() {
	for {
		headroom, reserve := g.headroom()
		if headroom < reserve {
			g.act()
			continue
		}
		longest, more := g.pace()
		if !more {
			return
		}
		pause := time.Duration(float64(headroom-reserve) / fillRate * float64(time.Second))
		pause = min(max(pause, minPoll), longest)
		g.note(headroom, pause)
		time.Sleep(pause)
	}
}

// note remembers how near the end was lately. A second here is one of looking, not
// one of the clock.
func (g *guard) note(headroom int64, pause time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.low[0] = min(g.low[0], headroom)
	if g.slept += pause; g.slept >= time.Second {
		g.low = [2]int64{plenty, g.low[0]}
		g.slept = 0
	}
}

func (g *guard) forgetLocked() { g.low, g.slept = [2]int64{plenty, plenty}, 0 }

// pace says how long the guard may sleep at most, and whether there is anything to
// guard at all.
func (g *guard) pace() (longest time.Duration, more bool) {
	// Under the lock: a command that starts is in the table before watch is called.
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.agent.procs.running() > 0 {
		return maxPoll, true
	}
	g.running = g.agent.groups.enabled && g.agent.groups.threads() > 0
	return slowPoll, g.running
}

// headroom is what is left of the sandbox's memory, and what the guard keeps of it.
func (g *guard) headroom() (headroom, reserve int64) {
	total, free := g.agent.memory()
	if total == 0 {
		return plenty, 0
	}
	limit := g.agent.currentIdentity().MemoryBytes
	if limit <= 0 || limit > total {
		limit = total
	}
	reserve = min(max(limit/32, 24<<20), 128<<20)
	return limit - (total - free), reserve
}

// crowd is how many processes of one command are stopped before they are measured:
// while the guard looks at them one by one, and competes with them for the processors,
// they would fill what is left up to the host's hard limit.
const crowd = 8

// act kills the biggest command, and waits for its memory.
func (g *guard) act() {
	var victim *process
	var most int64
	stopped := map[*process][]int{}
	for _, p := range g.agent.procs.all() {
		tree := g.agent.treeOf(p)
		if len(tree) >= crowd {
			for _, pid := range tree {
				_ = unix.Kill(pid, unix.SIGSTOP) // it may be gone
			}
			stopped[p] = tree
		}
		var size int64
		for _, pid := range tree {
			size += residentSize(pid)
		}
		if size > most {
			victim, most = p, size
		}
	}
	defer func() {
		for p, tree := range stopped {
			if p == victim && most >= minVictim {
				continue
			}
			for _, pid := range tree {
				_ = unix.Kill(pid, unix.SIGCONT)
			}
		}
	}()
	if victim == nil || most < minVictim {
		time.Sleep(maxPoll)
		return
	}
	g.agent.log.Info("Killing the command that uses the most memory", "id", victim.id, "bytes", most)
	if err := g.agent.killTree(victim, reasonOOM); err != nil {
		g.agent.log.Error("Cannot kill a command for its memory", "error", err)
	}
	// The memory comes back a moment after the process is gone.
	for range 100 {
		if headroom, reserve := g.headroom(); headroom > 2*reserve {
			break
		}
		time.Sleep(minPoll)
	}
	// What is killed from now on is not killed for this.
	g.mu.Lock()
	g.forgetLocked()
	g.mu.Unlock()
}

// killedByKernel says whether a SIGKILL that nobody sent was for memory: the host
// kills the biggest process when the hard limit is reached before the guard acts.
func (g *guard) killedByKernel(usage unix.Rusage) bool {
	headroom, reserve := g.headroom()
	limit := g.agent.currentIdentity().MemoryBytes
	g.mu.Lock()
	headroom = min(headroom, g.low[0], g.low[1])
	g.mu.Unlock()
	return headroom < 2*reserve || limit > 0 && usage.Maxrss<<10 > limit-limit/8
}

// memory returns the total and the available memory, in bytes. In a sandbox one
// system call knows both, and costs nothing; reading /proc/meminfo there makes the
// sentry ask the host about every page. On an ordinary kernel that call does not
// count what caches would give back.
func (a *agent) memory() (total, free int64) {
	if a.cfg.OwnsMachine {
		var info unix.Sysinfo_t
		if unix.Sysinfo(&info) != nil {
			return 0, 0
		}
		return int64(info.Totalram) * int64(info.Unit), int64(info.Freeram) * int64(info.Unit)
	}
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, 0
	}
	return kibibytes(b, "MemTotal:"), kibibytes(b, "MemAvailable:")
}

func kibibytes(b []byte, key string) int64 {
	_, rest, ok := bytes.Cut(b, []byte(key))
	if !ok {
		return 0
	}
	f := bytes.Fields(rest[:min(len(rest), 64)])
	if len(f) == 0 {
		return 0
	}
	n, err := strconv.ParseInt(string(f[0]), 10, 64)
	if err != nil {
		return 0
	}
	return n << 10
}

// residentSize is the memory of a process, in bytes.
func residentSize(pid int) int64 {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/statm")
	if err != nil {
		return 0
	}
	f := bytes.Fields(b)
	if len(f) < 2 {
		return 0
	}
	pages, err := strconv.ParseInt(string(f[1]), 10, 64)
	if err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}
