package guest

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"ringfence.dev/ringfence/internal/guestproto"
)

// killAttempts bounds the passes of a kill, killPause is the time between two: a
// process that was sent SIGKILL needs a moment to be gone. It is no deadline.
const (
	killAttempts = 1000
	killPause    = 2 * time.Millisecond
)

func killProcess(a *agent, _ *channel, k guestproto.ProcessKill) (any, error) {
	p, err := a.procs.find(k.ID)
	if err != nil {
		if k.Signal == int(syscall.SIGKILL) {
			a.procs.killEarly(k.ID)
		}
		return nil, err
	}
	if k.Signal <= 0 || k.Signal > 64 {
		return nil, fail(codeInvalid, "signal", "there is no signal %d", k.Signal)
	}
	signal := syscall.Signal(k.Signal)
	ended := p.exited.Load() || p.pid == 0
	if k.Tree {
		tree := a.treeOf(p)
		if ended && len(tree) == 0 {
			return nil, errProcessEnded(p.id)
		}
		if signal == syscall.SIGKILL {
			return struct{}{}, a.killTree(p, k.Reason)
		}
		for _, pid := range tree {
			_ = unix.Kill(pid, signal) // it may have ended
		}
		return struct{}{}, nil
	}
	if ended {
		return nil, errProcessEnded(p.id)
	}
	if signal == syscall.SIGKILL {
		p.mu.Lock()
		p.signed = true
		p.mu.Unlock()
	}
	if !a.procs.signalMain(p, signal) {
		return nil, errProcessEnded(p.id)
	}
	return struct{}{}, nil
}

// signalMain signals the main process unless it has been collected: its number may
// be another's by then.
func (t *processTable) signalMain(p *process, signal syscall.Signal) bool {
	t.startMu.Lock()
	defer t.startMu.Unlock()
	t.mu.Lock()
	running := t.byPID[p.pid] == p
	t.mu.Unlock()
	return running && unix.Kill(p.pid, signal) == nil
}

// killTree kills all that a command started, and returns when nothing is left.
func (a *agent) killTree(p *process, reason string) error {
	p.mu.Lock()
	p.signed = true
	if p.killed == "" {
		p.killed = reason
	}
	p.mu.Unlock()
	for range killAttempts {
		pids := a.treeOf(p)
		if len(pids) == 0 {
			a.groups.remove(p.id)
			return nil
		}
		if a.groups.enabled {
			a.groups.kill(p.id)
		} else {
			for _, pid := range pids {
				_ = unix.Kill(pid, unix.SIGKILL) // it may have ended
			}
		}
		time.Sleep(killPause)
	}
	return fail(codeInternal, "", "cannot kill the process: something of it is left")
}

// treeOf lists the processes of a command.
func (a *agent) treeOf(p *process) []int {
	if a.groups.enabled {
		return a.groups.members(p.id)
	}
	return markedProcesses(p)
}

// markedProcesses finds a command's processes in /proc: its descendants, and those
// that carry its mark. It is for machines without control groups, and a program that
// tries can get past it.
func markedProcesses(p *process) []int {
	if p.pid == 0 {
		return nil
	}
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil
	}
	parents := make(map[int]int)
	mine := map[int]bool{}
	mark := []byte("\x00" + markVariable + "=" + p.id + "\x00")
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + name + "/stat")
		if err != nil {
			continue
		}
		// pid (name) state parent …: the name may hold anything.
		f := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if len(f) < 2 || string(f[0]) == "Z" || string(f[0]) == "X" {
			continue
		}
		parents[pid], _ = strconv.Atoi(string(f[1]))
		if pid == p.pid && !p.exited.Load() {
			mine[pid] = true
			continue
		}
		env, err := os.ReadFile("/proc/" + name + "/environ")
		if err == nil && bytes.Contains(append([]byte{0}, env...), mark) {
			mine[pid] = true
		}
	}
	for grown := true; grown; {
		grown = false
		for pid, parent := range parents {
			if mine[parent] && !mine[pid] {
				mine[pid], grown = true, true
			}
		}
	}
	pids := make([]int, 0, len(mine))
	for pid := range mine {
		pids = append(pids, pid)
	}
	return pids
}
