package guest

import (
	"errors"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"ringfence.dev/ringfence/internal/guestproto"
)

const (
	// sweepInterval is how often finished processes are looked at, while there are any.
	sweepInterval = 30 * time.Second
	// keepSweeps is how many sweeps the output of a finished process is kept: 10 minutes
	// of a running sandbox. A clock would count the time that a sandbox was saved for.
	keepSweeps = 20
	// maxFinished bounds the finished processes that are kept.
	maxFinished = 1000
	// maxEarlyKills is how many kills of ids that nobody has started yet are remembered.
	maxEarlyKills = 64
)

// processTable holds the processes that were started.
type processTable struct {
	agent *agent

	// startMu keeps the end of a process from being handled before its start was.
	startMu sync.Mutex

	logs logMemory

	mu       sync.Mutex
	byID     map[string]*process      // guarded by mu
	order    []*process               // in the order of their start; guarded by mu
	finished int                      // how many of them have ended; guarded by mu
	wanted   uint64                   // log limits of those that run; guarded by mu
	tight    bool                     // their logs get less; guarded by mu
	byPID    map[int]*process         // that run; guarded by mu
	starting map[string]chan struct{} // ids that are being started, closed when they are; guarded by mu
	early    []string                 // ids that were killed before their start came; guarded by mu
	watchers map[*watcher]struct{}    // guarded by mu
	sweeping bool                     // guarded by mu
}

func newProcessTable(a *agent) *processTable {
	return &processTable{
		agent:    a,
		byID:     make(map[string]*process),
		byPID:    make(map[int]*process),
		starting: make(map[string]chan struct{}),
		watchers: make(map[*watcher]struct{}),
	}
}

// reap collects children for ever. It does not wait in the kernel: a thread that does keeps
// the runtime's monitor awake for 10 ms, which in a sandbox costs more than the signal.
func (t *processTable) reap() {
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	for {
		// Looked at, and not yet collected: its number stays taken, and /proc has it,
		// until the one who started it has let go of startMu.
		info := siginfo{}
		err := waitAny(&info)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || info.pid == 0 {
			<-children
			continue
		}
		t.startMu.Lock()
		var status unix.WaitStatus
		var usage unix.Rusage
		pid, err := unix.Wait4(int(info.pid), &status, unix.WNOHANG, &usage)
		if err != nil || pid <= 0 || !status.Exited() && !status.Signaled() {
			t.startMu.Unlock()
			continue
		}
		t.mu.Lock()
		p := t.byPID[pid]
		delete(t.byPID, pid)
		t.mu.Unlock()
		t.startMu.Unlock()
		if p == nil {
			t.agent.ns.initEnded(pid)
			continue
		}
		go p.end(t, t.exitOf(p, status, usage))
	}
}

// exitOf says how a process ended and why.
func (t *processTable) exitOf(p *process, status unix.WaitStatus, usage unix.Rusage) guestproto.ProcessExit {
	exit := guestproto.ProcessExit{ExitCode: status.ExitStatus()}
	if status.Signaled() {
		exit.Signal = int(status.Signal())
		exit.ExitCode = 128 + exit.Signal
	}
	p.mu.Lock()
	killed, signed := p.killed, p.signed
	p.mu.Unlock()
	switch {
	case exit.ExitCode != 128+int(unix.SIGKILL):
	case killed != "":
		exit.Reason = killed
	case !signed && t.agent.guard.killedByKernel(usage):
		exit.Reason = reasonOOM
	}
	return exit
}

// find returns a process, or an error for the host. It waits for one that is being started.
func (t *processTable) find(id string) (*process, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.starting[id] != nil {
		c := t.starting[id]
		t.mu.Unlock()
		<-c
		t.mu.Lock()
	}
	if p := t.byID[id]; p != nil {
		return p, nil
	}
	return nil, fail(codeProcessNotFound, "", "there is no process %q in the sandbox, or it is not kept any more", id)
}

// killEarly remembers a kill whose process was not found: the call that starts it may
// have been sent before, and still be on its way.
func (t *processTable) killEarly(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.early) == maxEarlyKills {
		t.early = t.early[1:]
	}
	t.early = append(t.early, id)
}

// reserve takes an id for a start.
func (t *processTable) reserve(id string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byID[id] != nil || t.starting[id] != nil {
		return fail(codeExists, "id", "there is a process %q already", id)
	}
	if slices.Contains(t.early, id) {
		return fail(codePrecondition, "id", "the process %q was killed before it started", id)
	}
	t.starting[id] = make(chan struct{})
	return nil
}

// add makes a process known, or with nil gives a reserved id back.
func (t *processTable) add(id string, p *process) {
	t.mu.Lock()
	close(t.starting[id])
	delete(t.starting, id)
	if p != nil {
		t.byID[id] = p
		t.order = append(t.order, p)
		t.wanted += p.logLimit
		if p.pid != 0 {
			t.byPID[p.pid] = p
		}
	}
	t.mu.Unlock()
	if p != nil {
		t.share()
		t.tell(p)
	}
}

// running returns how many processes have not ended.
func (t *processTable) running() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.byPID)
}

// all lists the processes in the order of their start.
func (t *processTable) all() []*process {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.order)
}

// processEnded is told when a process has its result.
func (t *processTable) processEnded(p *process) {
	t.agent.groups.remove(p.id) // fails while something of it is left
	t.mu.Lock()
	t.finished++
	t.wanted -= p.logLimit
	t.mu.Unlock()
	t.share()
	t.tell(p)
	t.mu.Lock()
	start := !t.sweeping
	t.sweeping = true
	t.mu.Unlock()
	if start {
		go t.sweep()
	}
}

// sweep forgets finished processes when their time has come, and ends when none are
// left to look at, so that an idle sandbox has no timer.
func (t *processTable) sweep() {
	for {
		time.Sleep(sweepInterval)
		t.mu.Lock()
		for _, p := range slices.Clone(t.order) {
			if !p.hasEnded() {
				continue
			}
			if p.age++; p.age > keepSweeps && t.forgetLocked(p) {
				p.log.setLimit(0)
			}
		}
		t.sweeping = t.finished > 0
		again := t.sweeping
		t.mu.Unlock()
		debug.FreeOSMemory() // what was needed for much output is the commands' again
		if !again {
			return
		}
	}
}

func (p *process) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// logBudget is what all logs may have together in a sandbox of so much memory, in bytes.
func logBudget(memory int64) uint64 {
	if memory <= 0 {
		return logTotal
	}
	return min(logTotal, uint64(memory)/16)
}

// share divides the memory for output: the oldest finished processes lose theirs
// first, then everyone keeps less.
func (t *processTable) share() {
	budget := logBudget(t.agent.currentIdentity().MemoryBytes)
	t.logs.budget.Store(int64(budget))
	t.mu.Lock()
	var forget []*process
	over := max(t.finished-maxFinished, 0)
	for _, p := range t.order {
		if over == 0 && uint64(t.logs.used.Load()) <= budget/2 {
			break
		}
		if !p.hasEnded() {
			continue
		}
		p.log.setLimit(0)
		if over > 0 {
			over--
			forget = append(forget, p)
		}
	}
	for _, p := range forget {
		t.forgetLocked(p)
	}
	tight := t.wanted > budget
	if tight || t.tight {
		limit := budget / max(uint64(len(t.order)-t.finished), 1)
		for _, p := range t.order {
			switch {
			case p.hasEnded():
			case tight:
				p.log.setLimit(min(p.logLimit, max(logMin, limit)))
			default:
				p.log.setLimit(p.logLimit)
			}
		}
	}
	t.tight = tight
	t.mu.Unlock()
}

// forgetLocked takes a process that has ended out of the table, unless something of it is
// left, which a kill has to find.
func (t *processTable) forgetLocked(p *process) bool {
	if !t.agent.groups.remove(p.id) {
		return false
	}
	delete(t.byID, p.id)
	if i := slices.Index(t.order, p); i >= 0 {
		t.order = slices.Delete(t.order, i, i+1)
	}
	t.finished--
	return true
}
