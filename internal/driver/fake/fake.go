// Package fake is a driver whose guests live in this process's memory: a file tree,
// a small scripted shell and the guest protocol, with no isolation at all. It needs
// no root and runs anywhere, so that what is above the driver can be tested with
// real behaviour: bytes over a link, processes that live and die, sandboxes that
// crash in the middle of a command.
//
// # The shell
//
// It knows variables, quotes, ; && || | & > >> < 2>&1 >&2, and the commands: true
// false exit echo printf cat env export pwd cd sleep yes seq head wc tee ls mkdir
// touch rm test id whoami hostname sh bash. And these, to bring trouble about:
//
//	fake-bytes N         N bytes, the same each time and hardly ever UTF-8
//	fake-crash [SECONDS] the sandbox dies as if its host process had crashed
//	fake-oom             this command is killed for its memory (137, reason oom)
//	fake-oom-sandbox     the sandbox dies with reason oom
//	fake-hang            the agent answers nothing any more
//	fake-serve PORT      a web server that answers with what it was asked
package fake

import (
	"context"
	"errors"
	"sync"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/driver"
)

// Options configure a Driver. The zero value is a driver that always works.
type Options struct {
	// Host is where the sandboxes are. Drivers that share one see the same
	// sandboxes, as daemons that follow each other on one machine do; nil is a
	// host of its own, which nothing outlives.
	Host *Host
	// StartDelay is how long a Create or Restore takes.
	StartDelay time.Duration
	// StartError, when it returns an error, makes that Create fail with it.
	StartError func(driver.Spec) error
	// CrashAfter, when above 0, lets every sandbox crash that long after its start.
	CrashAfter time.Duration
	// Stuck makes agents that never answer.
	Stuck bool
}

// Host holds sandboxes beyond the life of a Driver.
type Host struct {
	mu        sync.Mutex
	instances map[string]*instance // guarded by mu

	failCheckpoint error // guarded by mu
}

// NewHost returns a host without sandboxes.
func NewHost() *Host { return &Host{instances: make(map[string]*instance)} }

// Driver makes sandboxes in memory.
type Driver struct {
	o       Options
	recover bool
}

var _ driver.Driver = (*Driver)(nil)

// New returns a driver.
func New(o Options) *Driver {
	d := &Driver{o: o, recover: o.Host != nil}
	if d.o.Host == nil {
		d.o.Host = NewHost()
	}
	return d
}

// Name returns "fake".
func (d *Driver) Name() string { return "fake" }

// Capabilities says what the driver can do.
func (d *Driver) Capabilities() driver.Capabilities {
	return driver.Capabilities{Isolation: "none", Checkpoint: true, Rescue: true, Recover: d.recover, Build: "fake"}
}

// Create starts a sandbox. The image is not looked at.
func (d *Driver) Create(ctx context.Context, spec driver.Spec) (driver.Instance, error) {
	return d.start(ctx, spec, func(*guest) {})
}

// start starts a sandbox whose guest prepare has seen before it does anything.
func (d *Driver) start(ctx context.Context, spec driver.Spec, prepare func(*guest)) (driver.Instance, error) {
	if !ringfence.ValidSandboxID(spec.ID) {
		return nil, ringfence.Errorf(ringfence.CodeInvalidArgument, "%q is not a sandbox id", spec.ID)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if d.o.StartError != nil {
		if err := d.o.StartError(spec); err != nil {
			return nil, err
		}
	}
	select {
	case <-time.After(d.o.StartDelay):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	h := d.o.Host
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.instances[spec.ID] != nil {
		return nil, ringfence.Errorf(ringfence.CodeAlreadyExists, "there is a sandbox %s already", spec.ID)
	}
	i := newInstance(h, spec)
	prepare(i.guest)
	go i.guest.serve()
	h.instances[spec.ID] = i
	if d.o.Stuck {
		i.guest.hang()
	}
	if d.o.CrashAfter > 0 {
		time.AfterFunc(d.o.CrashAfter, func() {
			i.die(driver.Exit{Reason: ringfence.ReasonCrashed, Detail: "the sandbox crashed as it was told to"})
		})
	}
	return i, nil
}

// Recover returns the sandboxes of the host that live, and forgets the others.
func (d *Driver) Recover(context.Context) ([]driver.Instance, error) {
	if !d.recover {
		return nil, nil
	}
	d.o.Host.mu.Lock()
	defer d.o.Host.mu.Unlock()
	var found []driver.Instance
	for id, i := range d.o.Host.instances {
		select {
		case <-i.done:
			delete(d.o.Host.instances, id)
		default:
			found = append(found, i)
		}
	}
	return found, nil
}

// Collect has nothing to remove.
func (d *Driver) Collect([]string) error { return nil }

// Close lets go of the sandboxes; they go on.
func (d *Driver) Close() error {
	d.o.Host.mu.Lock()
	defer d.o.Host.mu.Unlock()
	for _, i := range d.o.Host.instances {
		i.unlink()
	}
	return nil
}

// errEnded is the cause of everything that ends because its sandbox does.
var errEnded = errors.New("the sandbox has ended")
