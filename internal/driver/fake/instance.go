package fake

import (
	"context"
	"io"
	"os"
	"sync"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/driver"
)

// rescueOutputMax bounds what Rescue returns, in bytes.
const rescueOutputMax = 64 << 10

// instance is one sandbox in memory.
type instance struct {
	host  *Host
	id    string
	guest *guest
	done  chan struct{}

	mu   sync.Mutex
	link *link        // guarded by mu
	exit *driver.Exit // guarded by mu; nil while it lives
}

var _ driver.Instance = (*instance)(nil)

func newInstance(h *Host, spec driver.Spec) *instance {
	i := &instance{host: h, id: spec.ID, done: make(chan struct{})}
	i.guest = newGuest(spec, func(e driver.Exit) { i.die(e) })
	return i
}

// die ends the sandbox once.
func (i *instance) die(e driver.Exit) {
	i.mu.Lock()
	if i.exit != nil {
		i.mu.Unlock()
		return
	}
	i.exit = &e
	i.mu.Unlock()
	i.guest.stop()
	i.unlink()
	close(i.done)
}

// unlink closes the open link, if there is one.
func (i *instance) unlink() {
	i.mu.Lock()
	l := i.link
	i.link = nil
	i.mu.Unlock()
	if l != nil {
		l.Close()
	}
}

// Network returns CodeNotYetSupported: there is no guest that could send anything.
func (i *instance) Network(context.Context) (*os.File, error) { return nil, driver.NoNetwork(i.id) }

func (i *instance) ID() string            { return i.id }
func (i *instance) Done() <-chan struct{} { return i.done }

func (i *instance) Exit() driver.Exit {
	select {
	case <-i.done:
	default:
		return driver.Exit{}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	return *i.exit
}

func (i *instance) alive() error {
	select {
	case <-i.done:
		return ringfence.Errorf(ringfence.CodeSandboxEnded, "sandbox %s has ended", i.id)
	default:
		return nil
	}
}

func (i *instance) Link(ctx context.Context) (io.ReadWriteCloser, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := i.alive(); err != nil {
		return nil, err
	}
	i.unlink()
	l := &link{in: i.guest.out, out: i.guest.in, closed: make(chan struct{})}
	i.mu.Lock()
	i.link = l
	i.mu.Unlock()
	if err := i.alive(); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// Rescue runs argv beside the agent.
func (i *instance) Rescue(ctx context.Context, argv []string) (int, []byte, error) {
	if len(argv) == 0 {
		return 0, nil, ringfence.Errorf(ringfence.CodeInvalidArgument, "there is nothing to run")
	}
	if err := i.alive(); err != nil {
		return 0, nil, err
	}
	out := &limited{max: rescueOutputMax}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(i.guest.ctx, func() { cancel(errEnded) })
	defer stop()
	sh := i.guest.newShell(ctx, rootUser, "/", map[string]string{"HOME": "/root"})
	sh.tree = i.guest.ctx
	sh.stdin, sh.stdout, sh.stderr = eof{}, out, out
	status := sh.runArgs(argv)
	if err := i.alive(); err != nil {
		return 0, nil, err
	}
	return status, out.bytes(), ctx.Err()
}

// Kill ends the sandbox and forgets it.
func (i *instance) Kill(context.Context) error {
	i.die(driver.Exit{Reason: ringfence.ReasonKilled, Detail: "the sandbox was killed"})
	<-i.done
	i.host.mu.Lock()
	defer i.host.mu.Unlock()
	if i.host.instances[i.id] == i {
		delete(i.host.instances, i.id)
	}
	return nil
}

func (i *instance) Usage(context.Context) (driver.Usage, error) {
	if err := i.alive(); err != nil {
		return driver.Usage{}, err
	}
	return driver.Usage{DiskBytes: i.guest.files.used.Load()}, nil
}
