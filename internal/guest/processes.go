package guest

import (
	"errors"
	"runtime/debug"
	"sort"
	"strings"
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
	maxFinished = 256
)

// processTable holds the processes that were started.
type processTable struct {
	agent *agent

	// startMu keeps the end of a process from being handled before its start was.
	startMu sync.Mutex
	started chan struct{} // holds a token when there may be a child to wait for

	mu       sync.Mutex
	byID     map[string]*process // guarded by mu
	byPID    map[int]*process    // that run; guarded by mu
	starting map[string]bool     // ids that are being started; guarded by mu
	sweeping bool                // guarded by mu
}

func newProcessTable(a *agent) *processTable {
	return &processTable{
		agent:    a,
		started:  make(chan struct{}, 1),
		byID:     make(map[string]*process),
		byPID:    make(map[int]*process),
		starting: make(map[string]bool),
	}
}

// reap collects children for ever. It waits in the kernel: no signal handler stands
// between the end of a process and its result.
func (t *processTable) reap() {
	for {
		// Looked at, and not yet collected: its number stays taken, and /proc has it,
		// until the one who started it has let go of startMu.
		var info siginfo
		err := waitAny(&info)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			<-t.started // no children at all
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

// find returns a process, or an error for the host.
func (t *processTable) find(id string) (*process, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.byID[id]; p != nil {
		return p, nil
	}
	return nil, fail(codeNotFound, "id", "there is no process %q in the sandbox, or its output is not kept any more", id)
}

// reserve takes an id for a start.
func (t *processTable) reserve(id string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byID[id] != nil || t.starting[id] {
		return fail(codeExists, "id", "there is a process %q already", id)
	}
	t.starting[id] = true
	return nil
}

// add makes a process known, or with nil gives a reserved id back.
func (t *processTable) add(id string, p *process) {
	t.mu.Lock()
	delete(t.starting, id)
	if p != nil {
		t.byID[id] = p
		if p.pid != 0 {
			t.byPID[p.pid] = p
		}
	}
	t.mu.Unlock()
	if p != nil {
		t.share()
		poke(t.started)
	}
}

// running lists the commands of which something may be left.
func (t *processTable) all() []*process {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := make([]*process, 0, len(t.byID))
	for _, p := range t.byID {
		list = append(list, p)
	}
	sort.Slice(list, func(i, j int) bool { return list[i].started.Before(list[j].started) })
	return list
}

// processEnded is told when a process has its result.
func (t *processTable) processEnded(p *process) {
	t.agent.groups.remove(p.id) // fails while something of it is left
	t.share()
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
		var old []*process
		t.mu.Lock()
		finished := 0
		for _, p := range t.byID {
			if !p.hasEnded() {
				continue
			}
			if p.age++; p.age > keepSweeps && t.agent.groups.remove(p.id) {
				old = append(old, p)
			} else {
				finished++
			}
		}
		for _, p := range old {
			delete(t.byID, p.id)
		}
		t.sweeping = finished > 0
		again := t.sweeping
		t.mu.Unlock()
		for _, p := range old {
			p.log.setLimit(0)
		}
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

// share divides the memory for output: the oldest finished processes lose theirs
// first, then everyone keeps less.
func (t *processTable) share() {
	list := t.all()
	budget := uint64(logTotal)
	if m := t.agent.currentIdentity().MemoryBytes; m > 0 {
		budget = min(budget, uint64(m)/16)
	}
	var total uint64
	finished, live := 0, 0
	for _, p := range list {
		total += p.log.size()
		if p.hasEnded() {
			finished++
		} else {
			live++
		}
	}
	for _, p := range list {
		if !p.hasEnded() || total <= budget/2 && finished <= maxFinished {
			continue
		}
		total -= p.log.size()
		p.log.setLimit(0)
		if finished > maxFinished && t.agent.groups.remove(p.id) {
			t.mu.Lock()
			delete(t.byID, p.id)
			t.mu.Unlock()
		}
		finished--
	}
	limit := uint64(logLimit)
	if live > 0 {
		limit = max(logMin, min(logLimit, budget/uint64(live)))
	}
	for _, p := range list {
		if !p.hasEnded() {
			p.log.setLimit(limit)
		}
	}
}

func listProcesses(a *agent, _ *channel, _ struct{}) (any, error) {
	infos := []guestproto.ProcessInfo{}
	size := 0
	for _, p := range a.procs.all() {
		info := p.info()
		if size += len(info.Command) + len(info.Tag) + 256; size > guestproto.MaxJSON/2 {
			break
		}
		infos = append(infos, info)
	}
	return infos, nil
}

// shorten cuts a command for a list.
func shorten(s string) string {
	const most = 256
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
