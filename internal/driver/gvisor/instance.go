package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/driver"
)

// instance is one sandbox. Its process is known by a pidfd, never by its number
// alone, and never asked whether it lives.
type instance struct {
	d     *Driver
	id    string
	dir   string
	size  ringfence.Size
	pid   int
	child bool     // of this process, which then has to reap it
	pidfd *os.File // for signals and for waiting

	done     chan struct{} // closed once the process has ended
	released chan struct{} // closed once the driver let go of the instance
	stderr   *stderrLog

	pausing sync.Mutex // held while the guest is stopped or let go

	mu      sync.Mutex
	link    *link
	tap     *os.File // of the network, until somebody takes it
	killed  bool     // by Kill
	freed   bool
	exit    driver.Exit
	removed *removal
}

// removal is the one clean-up of an instance, whoever waits for it.
type removal struct {
	done chan struct{}
	err  error
}

var _ driver.Instance = (*instance)(nil)

// adopt makes the instance of a live sentry and watches it.
func (d *Driver) adopt(st *state, s *sentry, child bool) (*instance, error) {
	if err := unix.SetNonblock(s.pidfd, true); err != nil {
		return nil, err
	}
	i := &instance{
		d: d, id: st.Spec.ID, dir: d.sandboxDir(st.Spec.ID), size: st.Spec.Size,
		pid: s.pid, child: child,
		done: make(chan struct{}), released: make(chan struct{}),
	}
	var err error
	if i.stderr, err = openStderrLog(i.dir); err != nil {
		return nil, err
	}
	i.pidfd = os.NewFile(uintptr(s.pidfd), "pidfd")
	d.mu.Lock()
	d.instances[i.id] = i
	d.mu.Unlock()
	go i.watch()
	return i, nil
}

// watch waits for the end of the process and says how it came.
func (i *instance) watch() {
	err := waitPidfd(i.pidfd)
	select {
	case <-i.released:
		return // the driver was closed: the sandbox goes on
	default:
	}
	if err != nil {
		i.d.log.Error("cannot wait for a sandbox", "sandbox", i.id, "error", err)
	}
	var ws unix.WaitStatus
	var known bool
	if i.child {
		ws, known = reap(i.pid)
	}
	i.mu.Lock()
	i.exit = i.explain(ws, known)
	if i.link != nil {
		i.link.Close()
	}
	i.mu.Unlock()
	i.stderr.Close()
	close(i.done)
}

// explain says how the sentry ended. The caller holds i.mu.
func (i *instance) explain(ws unix.WaitStatus, known bool) driver.Exit {
	if i.killed {
		return driver.Exit{Reason: ringfence.ReasonKilled, Detail: "the sandbox was killed"}
	}
	// A guest process that the kernel kills for memory is one stub, and the
	// sandbox goes on. When the sentry or PID 1 is the one, the sentry ends by
	// SIGKILL or with the status of a PID 1 that did.
	byKill := !known || ws.Signaled() && ws.Signal() == unix.SIGKILL || ws.Exited() && ws.ExitStatus() == 128+int(unix.SIGKILL)
	if byKill && i.d.cgroups.oomKills(i.id) > 0 {
		return driver.Exit{Reason: ringfence.ReasonOOM, Detail: fmt.Sprintf(
			"the sandbox used more than its %d MiB of memory and the host ended it", i.size.MemoryMiB)}
	}
	switch {
	case !known:
		return driver.Exit{Reason: ringfence.ReasonCrashed, Detail: "the sandbox's process ended"}
	case ws.Signaled():
		return driver.Exit{Reason: ringfence.ReasonCrashed, Detail: fmt.Sprintf("the sandbox's process ended by signal %d", ws.Signal())}
	}
	return driver.Exit{Reason: ringfence.ReasonCrashed, Detail: fmt.Sprintf("the sandbox's process ended with status %d", ws.ExitStatus())}
}

func (i *instance) ID() string            { return i.id }
func (i *instance) Done() <-chan struct{} { return i.done }

// Exit says how the instance ended; it is the zero value before Done is closed.
func (i *instance) Exit() driver.Exit {
	select {
	case <-i.done:
	default:
		return driver.Exit{}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.exit
}

// ended is the error of every call on a sandbox that is no more.
func (i *instance) ended() error {
	return ringfence.Errorf(ringfence.CodeSandboxEnded, "sandbox %s has ended", i.id)
}

// alive returns an error once the sandbox has ended.
func (i *instance) alive() error {
	select {
	case <-i.done:
		return i.ended()
	default:
		return nil
	}
}

// Link opens the pipes to the agent.
func (i *instance) Link(ctx context.Context) (io.ReadWriteCloser, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.killed || i.alive() != nil {
		return nil, i.ended()
	}
	if i.link != nil {
		i.link.Close()
	}
	l, err := openLink(i.dir)
	if err != nil {
		return nil, err
	}
	i.link = l
	return l, nil
}

// call makes a call to the sentry, and says that the sandbox has ended if that is
// why it failed.
func (i *instance) call(ctx context.Context, method string, arg, result any) error {
	if err := i.alive(); err != nil {
		return err
	}
	err := call(ctx, i.dir, method, arg, result)
	if err == nil {
		return nil
	}
	// The connection breaks a moment before the process is seen dead.
	if ctx.Err() == nil {
		select {
		case <-i.done:
			return i.ended()
		case <-time.After(50 * time.Millisecond):
		}
	}
	return fmt.Errorf("sandbox %s: %w", i.id, err)
}

// Kill ends the sandbox and removes all that it had.
func (i *instance) Kill(ctx context.Context) error {
	i.mu.Lock()
	r := i.removed
	if r == nil {
		r = &removal{done: make(chan struct{})}
		i.removed = r
		select {
		case <-i.done: // it ended before, in its own way
		default:
			i.killed = true
		}
		go i.end(r)
	}
	i.mu.Unlock()
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// end kills the process, waits for it and removes what it leaves. A removal that
// failed may be tried again.
func (i *instance) end(r *removal) {
	defer close(r.done)
	err := i.signal(unix.SIGKILL)
	if err != nil && !errors.Is(err, unix.ESRCH) {
		r.err = fmt.Errorf("cannot kill sandbox %s: %w", i.id, err)
	}
	select {
	case <-i.done:
	case <-i.released:
	case <-time.After(30 * time.Second):
		r.err = errors.Join(r.err, fmt.Errorf("sandbox %s does not die", i.id))
	}
	if r.err == nil {
		i.d.at("driver.dead")
		r.err = i.d.remove(i.id)
	}
	if r.err != nil {
		i.mu.Lock()
		i.removed = nil
		i.mu.Unlock()
		return
	}
	i.d.mu.Lock()
	delete(i.d.instances, i.id)
	i.d.mu.Unlock()
	i.release()
}

// signal sends a signal to the sentry's process, if it is still there.
func (i *instance) signal(sig unix.Signal) error {
	conn, err := i.pidfd.SyscallConn()
	if err != nil {
		return unix.ESRCH
	}
	var sent error
	if err := conn.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), sig, nil, 0) }); err != nil {
		return unix.ESRCH
	}
	return sent
}

// release lets go of what this process holds for the instance.
func (i *instance) release() {
	i.mu.Lock()
	if i.freed {
		i.mu.Unlock()
		return
	}
	i.freed = true
	l, tap := i.link, i.tap
	i.link, i.tap = nil, nil
	close(i.released)
	i.mu.Unlock()
	if tap != nil {
		tap.Close()
	}
	if l != nil {
		l.Close()
	}
	i.stderr.Close()
	i.pidfd.Close() // ends the wait
}
