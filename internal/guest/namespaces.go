package guest

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// InitArg is the argument that makes the agent's program the first process of the
// commands' namespaces; see RunInit.
const InitArg = "init"

// namespaces is the PID and the mount namespace in which commands live. Their first
// process is a second, idle copy of the agent's program: it collects orphans.
type namespaces struct {
	agent   *agent
	enabled bool
	spawner *thread
	files   chan func(*thread) // work for any file thread

	mu      sync.Mutex
	init    int    // PID of the first process, in the agent's namespace; guarded by mu
	version uint64 // grows when the namespaces are made anew; guarded by mu
	idle    int    // file threads that wait for work; guarded by mu
}

func newNamespaces(a *agent) (*namespaces, error) {
	n := &namespaces{agent: a, enabled: a.cfg.Namespaces, files: make(chan func(*thread))}
	if n.enabled {
		if err := n.create(); err != nil {
			return nil, err
		}
	}
	ready := make(chan error)
	n.spawner = &thread{ns: n, work: make(chan func(*thread))}
	go n.spawner.loop(ready, false)
	return n, <-ready
}

// create starts the first process of new namespaces and waits until /proc is there.
func (n *namespaces) create() error {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return err
	}
	defer unix.Close(pipe[0])
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		unix.Close(pipe[1])
		return err
	}
	defer unix.Close(null)
	pid, err := syscall.ForkExec("/proc/self/exe", []string{"ringfence-init", InitArg}, &syscall.ProcAttr{
		Env:   []string{"GOMAXPROCS=1", "GOGC=off"},
		Files: []uintptr{uintptr(null), uintptr(null), uintptr(null), uintptr(pipe[1])},
		Sys:   &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS, Setsid: true},
	})
	unix.Close(pipe[1])
	if err != nil {
		return fmt.Errorf("cannot start the commands' namespaces: %w", err)
	}
	// The first process writes one word when it is ready, or a sentence and ends.
	answer := make([]byte, 512)
	got, err := blockingReader(pipe[0]).Read(answer)
	if err != nil || string(answer[:got]) != initReady {
		_ = unix.Kill(pid, unix.SIGKILL)
		return fmt.Errorf("cannot set up the commands' namespaces: %s", answer[:got])
	}
	n.mu.Lock()
	n.init = pid
	n.version++
	n.mu.Unlock()
	return nil
}

// initEnded is told of every process that ended and that is no command.
func (n *namespaces) initEnded(pid int) {
	n.mu.Lock()
	mine := n.enabled && pid == n.init
	n.mu.Unlock()
	if !mine {
		return
	}
	// Every command died with it. The next one needs new namespaces.
	n.agent.log.Warn("The commands' first process ended; making a new one")
	if err := n.create(); err != nil {
		n.agent.log.Error("Cannot make the commands' namespaces", "error", err)
	}
}

// thread is an operating system thread in the commands' mount namespace; the spawner
// also starts its children in their PID namespace. Its user may be changed for a while.
type thread struct {
	ns      *namespaces
	work    chan func(*thread)
	version uint64
	broken  bool // it may not be used again
}

// loop runs work on a thread of its own until the thread breaks.
func (t *thread) loop(ready chan<- error, file bool) {
	runtime.LockOSThread() // never unlocked: the thread dies with this goroutine
	err := t.prepare(file)
	if ready != nil {
		ready <- err
	}
	if err != nil {
		t.ns.agent.log.Error("Cannot prepare a thread", "error", err)
		return
	}
	for !t.broken {
		f := <-t.work
		if err := t.enter(); err != nil {
			t.ns.agent.log.Error("Cannot enter the commands' namespaces", "error", err)
		}
		f(t)
	}
}

func (t *thread) prepare(file bool) error {
	// Its own umask, working directory and mount namespace.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("cannot have a working directory apart: %w", err)
	}
	if err := t.enter(); err != nil {
		return err
	}
	if file {
		unix.Umask(0)
		if t.ns.agent.cfg.OwnsMachine {
			return demoteThread()
		}
		return nil
	}
	unix.Umask(0o022)
	if t.ns.agent.cfg.OwnsMachine {
		return boundThread()
	}
	return nil
}

// enter puts the thread into the current namespaces.
func (t *thread) enter() error {
	t.ns.mu.Lock()
	pid, version := t.ns.init, t.ns.version
	t.ns.mu.Unlock()
	if !t.ns.enabled || version == t.version {
		return nil
	}
	for _, ns := range []struct {
		name string
		flag int
	}{{"pid", unix.CLONE_NEWPID}, {"mnt", unix.CLONE_NEWNS}} {
		if ns.flag == unix.CLONE_NEWPID && t != t.ns.spawner {
			continue
		}
		fd, err := t.ns.open(pid, ns.name)
		if err == nil {
			err = unix.Setns(fd, ns.flag)
			unix.Close(fd)
		}
		if err != nil {
			return fmt.Errorf("cannot enter the commands' %s namespace: %w", ns.name, err)
		}
	}
	t.version = version
	return nil
}

// open opens a namespace through the agent's own /proc, from a goroutine whose
// thread has not left it.
func (n *namespaces) open(pid int, name string) (int, error) {
	type result struct {
		fd  int
		err error
	}
	c := make(chan result)
	go func() {
		fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/ns/"+name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		c <- result{fd, err}
	}()
	r := <-c
	return r.fd, r.err
}

// spawn runs f on the spawner.
func (n *namespaces) spawn(f func() error) error {
	done := make(chan error)
	n.spawner.work <- func(*thread) { done <- f() }
	return <-done
}

// maxIdleThreads is how many file threads are kept for the next call.
const maxIdleThreads = 2

// onFileThread runs f on a thread that sees the files as commands do, as user u.
func (n *namespaces) onFileThread(u account, f func() error) error {
	done := make(chan error, 1)
	work := func(t *thread) { done <- t.as(u, f) }
	n.mu.Lock()
	fresh := n.idle == 0
	if !fresh {
		n.idle--
	}
	n.mu.Unlock()
	if fresh {
		t := &thread{ns: n, work: make(chan func(*thread), 1)}
		t.work <- work
		ready := make(chan error, 1)
		go t.fileLoop(ready)
		if err := <-ready; err != nil {
			return err
		}
	} else {
		n.files <- work
	}
	return <-done
}

// fileLoop serves one piece of work after the other, and ends when enough threads wait.
func (t *thread) fileLoop(ready chan<- error) {
	runtime.LockOSThread() // never unlocked: the thread dies with this goroutine
	err := t.prepare(true)
	ready <- err
	if err != nil {
		return
	}
	f := <-t.work
	for {
		err := t.enter()
		if err != nil {
			t.ns.agent.log.Error("Cannot enter the commands' namespaces", "error", err)
		}
		f(t)
		t.ns.mu.Lock()
		if t.broken || err != nil || t.ns.idle >= maxIdleThreads {
			t.ns.mu.Unlock()
			return
		}
		t.ns.idle++
		t.ns.mu.Unlock()
		f = <-t.ns.files
	}
}

// as runs f as user u. The kernel then checks permissions, with u's groups.
func (t *thread) as(u account, f func() error) error {
	if u.uid == 0 || os.Geteuid() != 0 {
		return f()
	}
	// The system calls change this thread alone, unlike those of package syscall, which
	// change all threads.
	if err := threadUser(u.groups, u.gid, u.uid); err != nil {
		t.broken = true
		return fmt.Errorf("cannot become user %q: %w", u.name, err)
	}
	err := f()
	if back := threadUser(nil, 0, 0); back != nil {
		t.broken = true
	}
	return err
}
