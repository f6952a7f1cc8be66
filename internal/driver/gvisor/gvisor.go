// Package gvisor is the default driver: every sandbox is a gVisor sentry of its
// own, with an EROFS image as its root, a file as its writable layer and no other
// host process. gVisor is compiled in; see MaybeRunsc.
//
// Layout of Options.Dir:
//
//	agents/<sha256>.erofs   the guest agent, as an image
//	engines/<key>           copies of the builds of Ringfence that made checkpoints
//	sandboxes/<id>/         all that a sandbox has: state, pipes, socket, disk
//
// A sandbox has no other trace on the host than its directory, its process (with
// the namespaces that live and die with it) and its control group.
package gvisor

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/runsc/version"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/driver"
)

// bootTimeout bounds how long a sentry may take to boot, on a loaded machine.
const bootTimeout = 60 * time.Second

// Options configure a Driver.
type Options struct {
	// Dir holds everything of this driver. Snapshots name files in it, so it
	// should not move. Required, absolute.
	Dir string
	// Agent is the guest agent's binary, static and for this machine. Required.
	Agent []byte
	// CgroupParent is the control group under which each sandbox gets its own;
	// "/ringfence" when empty.
	CgroupParent string
	// Logger gets what is worth an operator's attention; slog.Default when nil.
	Logger *slog.Logger
	// At is called at each point of a start or end at which the server or the sandbox may
	// die; for tests.
	At func(point string)
}

// Driver starts gVisor sandboxes.
type Driver struct {
	dir     string
	agent   string // path of the agent's image
	cgroups *cgroups
	log     *slog.Logger
	at      func(point string)

	verified verified
	engines  engines

	mu        sync.Mutex
	instances map[string]*instance
}

var _ driver.Driver = (*Driver)(nil)

// New returns a driver. It fails where gVisor cannot run, and says what is missing.
func New(o Options) (*Driver, error) {
	if !filepath.IsAbs(o.Dir) {
		return nil, fmt.Errorf("cannot use %q for the gVisor driver: the directory has to be absolute", o.Dir)
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("cannot run gVisor sandboxes: Ringfence has to run as root")
	}
	if err := linkedStatically("/proc/self/exe"); err != nil {
		return nil, err
	}
	if o.CgroupParent == "" {
		o.CgroupParent = "/ringfence"
	}
	if o.At == nil {
		o.At = func(string) {}
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	// gVisor's packages log to stderr unless told otherwise.
	log.SetTarget(quiet{})
	if err := os.MkdirAll(filepath.Join(o.Dir, "sandboxes"), 0o700); err != nil {
		return nil, fmt.Errorf("cannot make the driver's directory: %w", err)
	}
	agent, err := agentImage(filepath.Join(o.Dir, "agents"), o.Agent)
	if err != nil {
		return nil, err
	}
	return &Driver{
		dir:       o.Dir,
		agent:     agent,
		cgroups:   newCgroups(o.CgroupParent),
		log:       o.Logger,
		at:        o.At,
		engines:   engines{dir: filepath.Join(o.Dir, "engines")},
		instances: make(map[string]*instance),
	}, nil
}

// linkedStatically refuses a program that needs a dynamic linker: a sandbox starts the
// same program again where there is no file but itself, and would fail with "no such file".
func linkedStatically(program string) error {
	f, err := elf.Open(program)
	if err != nil {
		return fmt.Errorf("cannot look at the program itself: %w", err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return errors.New("cannot run gVisor sandboxes: this program is linked dynamically, and none can start from it; build it with make build, or with CGO_ENABLED=0")
		}
	}
	return nil
}

// quiet drops the log of gVisor's packages: what goes wrong comes back as errors.
type quiet struct{}

func (quiet) Emit(int, log.Level, time.Time, string, ...any) {}

// Name returns "gvisor".
func (d *Driver) Name() string { return "gvisor" }

// Capabilities says that this driver does everything of the contract.
func (d *Driver) Capabilities() driver.Capabilities {
	return driver.Capabilities{
		Isolation: "gvisor", Checkpoint: true, Processes: true, Limits: true, Rescue: true, Recover: true, Network: true,
		// What is saved of the network is part of it.
		Build: version.Version() + "/" + guestLink + "/" + strings.Join(sentryFlags, " ") + "/" + filepath.Base(d.agent),
	}
}

// Create starts a sandbox from its image.
func (d *Driver) Create(ctx context.Context, spec driver.Spec) (driver.Instance, error) {
	return d.start(ctx, spec, d.agent, thisEngine(), "/proc/self/exe", func(dir string, link *os.File) error { return startGuest(ctx, dir, spec.ID, link) })
}

// Restore starts a sandbox from a checkpoint.
func (d *Driver) Restore(ctx context.Context, spec driver.Spec, from string) (driver.Instance, error) {
	m, err := d.checkManifest(from, spec)
	if err != nil {
		return nil, err
	}
	program, done, err := d.engines.open(m.Built)
	if err != nil {
		return nil, err
	}
	defer done()
	return d.start(ctx, spec, m.Agent, m.Built, program, func(dir string, link *os.File) error { return restoreGuest(ctx, dir, from, m, link) })
}

// start makes all that a sandbox has, boots its sentry and calls run, which makes
// the guest go. If anything fails nothing is left.
func (d *Driver) start(ctx context.Context, spec driver.Spec, agent string, eng engine, program string, run func(dir string, link *os.File) error) (_ driver.Instance, err error) {
	if err := checkSpec(spec); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	dir := d.sandboxDir(spec.ID)
	if err := os.Mkdir(dir, 0o700); err != nil {
		if errors.Is(err, os.ErrExist) {
			return nil, ringfence.Errorf(ringfence.CodeAlreadyExists, "there is a sandbox %s already", spec.ID)
		}
		return nil, fmt.Errorf("cannot make the sandbox's directory: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.remove(spec.ID))
		}
	}()
	d.at("driver.directory")
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	st := &state{Spec: spec, Agent: agent, Engine: eng, BootID: boot, CreatedAt: time.Now()}
	if err := st.save(dir); err != nil {
		return nil, err
	}
	if err := d.cgroups.create(spec); err != nil {
		return nil, err
	}
	d.at("driver.cgroup")
	if err := makeFifos(dir); err != nil {
		return nil, err
	}
	if err := makeDisk(dir); err != nil {
		return nil, err
	}
	d.at("driver.files")
	oci := ociSpec(spec, agent, filepath.Join(d.dir, "sandboxes"))
	s, err := d.boot(ctx, dir, spec, oci, program, eng.Flags, func(pid int) error {
		st.Pid = pid
		if st.StartTime, err = startTime(pid); err != nil {
			return err
		}
		return st.save(dir)
	})
	if err != nil {
		return nil, err
	}
	inst, err := d.adopt(st, s, true)
	if err != nil {
		s.kill()
		unix.Close(s.pidfd)
		return nil, err
	}
	d.at("driver.booted")
	tap, link, err := makeLink(s.pid)
	if err == nil {
		inst.keepTap(tap)
		d.at("driver.network")
		err = run(dir, link)
		link.Close() // the sentry has its own
	}
	if err != nil {
		detail := lastLines(filepath.Join(dir, sentryLog))
		inst.Kill(context.WithoutCancel(ctx))
		return nil, fmt.Errorf("cannot start the guest: %w: %s", err, detail)
	}
	d.at("driver.started")
	st.Running = true
	if err := st.save(dir); err != nil {
		inst.Kill(context.WithoutCancel(ctx))
		return nil, err
	}
	return inst, nil
}

func checkSpec(s driver.Spec) error {
	switch {
	case !ringfence.ValidSandboxID(s.ID):
		return ringfence.Errorf(ringfence.CodeInvalidArgument, "%q is not a sandbox id", s.ID)
	case !filepath.IsAbs(s.ImagePath):
		return ringfence.Errorf(ringfence.CodeInvalidArgument, "the image path %q is not absolute", s.ImagePath)
	case s.Size.VCPU < 1, s.Size.MemoryMiB < ringfence.MinMemoryMiB, s.Size.DiskMiB < ringfence.MinDiskMiB:
		return ringfence.Errorf(ringfence.CodeInvalidArgument, "the size of the sandbox is below the smallest one")
	}
	return nil
}

// makeDisk makes the file of the writable layer. It is empty and grows as the
// guest writes; the sentry holds it to its size.
func makeDisk(dir string) error {
	f, err := os.OpenFile(filepath.Join(dir, diskFile), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("cannot make the sandbox's disk: %w", err)
	}
	return f.Close()
}

func (d *Driver) sandboxDir(id string) string { return filepath.Join(d.dir, "sandboxes", id) }

// remove takes away what a dead sandbox had. It is no error if nothing is there.
func (d *Driver) remove(id string) error {
	// The directory goes last: while it is there, a later Recover tries again.
	if err := d.cgroups.remove(id); err != nil {
		return err
	}
	d.at("driver.uncontrolled")
	return os.RemoveAll(d.sandboxDir(id))
}

// Close lets go of the instances in this process; they go on.
func (d *Driver) Close() error {
	d.mu.Lock()
	instances := d.instances
	d.instances = make(map[string]*instance)
	d.mu.Unlock()
	for _, i := range instances {
		i.release()
	}
	d.cgroups.removeParent()
	return nil
}
