// Package engine is the lifecycle service, the only place where a sandbox's state
// changes. It knows its store and its driver by contract alone.
//
// A sandbox's row is changed by compare-and-set, and always before the world is: an end
// is recorded first and carried out then, so that whoever dies in between leaves
// something that the next start can finish. What lives is kept in memory too; no
// command and no file touches the database.
package engine

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/driver"
	"ringfence.dev/ringfence/internal/snapshot"
)

// Store keeps what has to survive the daemon. What a method has acknowledged is on
// the disk. Errors are *ringfence.Error.
type Store interface {
	Meta(ctx context.Context, name string) (string, error)
	SetMeta(ctx context.Context, name, value string) error

	EnsureProject(ctx context.Context, p ringfence.Project) error
	CreateKey(ctx context.Context, k ringfence.Key) error // already_exists
	Keys(ctx context.Context, project string) ([]ringfence.Key, error)
	CountKeys(ctx context.Context) (int, error)
	KeyByHash(ctx context.Context, hash [32]byte) (ringfence.Key, error) // not_found
	DeleteKey(ctx context.Context, project, id string) error             // not_found, failed_precondition
	TouchKeys(ctx context.Context, used map[string]time.Time) error

	CreateSandbox(ctx context.Context, sb *ringfence.Sandbox) error
	Sandbox(ctx context.Context, project, id string) (*ringfence.Sandbox, error)                  // not_found
	SandboxByToken(ctx context.Context, hash [32]byte) (*ringfence.Sandbox, error)                // not_found
	SandboxByIdempotencyKey(ctx context.Context, project, key string) (*ringfence.Sandbox, error) // not_found
	MoveSandbox(ctx context.Context, m ringfence.Move) (generation int64, err error)              // failed_precondition
	ListSandboxes(ctx context.Context, f ringfence.SandboxFilter) ([]*ringfence.Sandbox, error)   // newest first
	LiveSandboxes(ctx context.Context) ([]*ringfence.Sandbox, error)                              // of all projects
	SetNetwork(ctx context.Context, id string, p ringfence.NetworkPolicy) error                   // not_found, also when it has ended
	SetPublicPort(ctx context.Context, sandbox string, port int, public, wakes bool) error
	PublicPorts(ctx context.Context) (map[string]map[int]bool, error) // of those that live; whether each wakes its sandbox
	PurgeSandboxes(ctx context.Context, endedBefore time.Time) (int64, error)
	SetDeadlines(ctx context.Context, id string, d ringfence.Deadlines, expires time.Time) error
	SetMetadata(ctx context.Context, id string, metadata map[string]string) error // not_found, also when it has ended

	CreateSnapshot(ctx context.Context, sn *ringfence.Snapshot) error
	Snapshot(ctx context.Context, project, id string) (*ringfence.Snapshot, error)                // not_found
	ListSnapshots(ctx context.Context, f ringfence.SnapshotFilter) ([]*ringfence.Snapshot, error) // newest first
	DeleteSnapshot(ctx context.Context, project, id string) error                                 // not_found
	DeleteHiddenSnapshots(ctx context.Context) error
	CountSnapshots(ctx context.Context, project string) (int, error)
	SnapshotObjects(ctx context.Context) ([]string, error) // content in use
}

// Templates finds templates by name or alias.
type Templates interface {
	Lookup(name string) (ringfence.Template, error) // template_not_found with near names as its hint
	List() ([]ringfence.Template, error)
}

// Options is what an engine needs. Store, Driver, Templates and Log are required.
type Options struct {
	Store     Store
	Driver    driver.Driver
	Templates Templates
	Log       *slog.Logger
	// Snapshots keeps what sandboxes are restored from; nil: every sandbox boots.
	Snapshots *snapshot.Store
	// Gateway is what sandboxes' traffic goes through; nil: they have no network.
	Gateway Gateway
	// CABundle is certificates, in PEM, that sandboxes trust in place of the template's
	// own; empty: those stay.
	CABundle []byte
	// ColdBoot boots every new sandbox from its image, and makes no golden snapshots.
	ColdBoot bool

	// Pool is how many sandboxes of each template, in its own size, wait to be claimed.
	Pool map[string]int
	// PoolMax is up to how many wait of each template and size that was asked for lately.
	PoolMax int

	Max            ringfence.Size // the operator's maxima
	Quota          Quota          // of each project
	MaxProcs       int            // of one sandbox
	ReserveMiB     int64          // memory of the host that sandboxes never get
	QueueFor       time.Duration  // how long a create or resume waits for memory; 0: not at all
	MaxSnapshotMiB int64          // that all snapshots together may take on the disk; 0: no limit
	// At is called at each point of an operation at which the server or a sandbox may
	// die; for tests.
	At func(point string)
	// Host says what the host has; the real one when nil.
	Host Host
}

// Timings of the engine.
const (
	startDeadline  = 30 * time.Second // from the driver's start to the agent's first answer
	killDeadline   = 30 * time.Second
	linkWait       = 10 * time.Second // how long a call waits for a link that is being opened again
	agentLostAfter = 60 * time.Second // of silence, rescue included
	sweepEvery     = 5 * time.Second
	purgeEvery     = time.Hour
)

// Engine makes and ends sandboxes and runs things in them. All methods may be
// called concurrently. Errors are *ringfence.Error.
type Engine struct {
	Options
	access  access
	goldens goldens
	pool    pool
	once    once
	quotas  quotas
	queue   queue
	events  events
	opened  time.Time // when this process took over

	ctx    context.Context // ends with the engine
	cancel context.CancelCauseFunc
	wg     tasks

	mu       sync.Mutex
	live     map[string]*box // by id; guarded by mu
	starting int             // creates that have not finished; guarded by mu
}

var errClosing = ringfence.Errorf(ringfence.CodeUnavailable, "the server is shutting down").WithHint("try again in a moment")

// Open returns an engine that has found the sandboxes of a former process again.
// Their links open in the background; whoever needs one waits for it.
func Open(ctx context.Context, o Options) (*Engine, error) {
	if o.Host == nil {
		o.Host = linuxHost{}
	}
	e := &Engine{Options: o, live: map[string]*box{}}
	e.access.init()
	e.goldens.init()
	e.pool.init()
	e.quotas.init()
	e.queue.init()
	e.events.init()
	e.opened = now()
	e.ctx, e.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	err := o.Store.EnsureProject(ctx, ringfence.Project{ID: ringfence.DefaultProject, Name: ringfence.DefaultProject, CreatedAt: now()})
	if err != nil {
		return nil, err
	}
	if err := e.recover(ctx); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	if err := o.Store.DeleteHiddenSnapshots(ctx); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	e.collectSnapshots()
	e.wg.Go(e.sweep)
	if len(e.Pool) > 0 || e.PoolMax > 0 {
		e.wg.Go(e.keepPool)
	}
	e.wg.Go(e.sample)
	return e, nil
}

// Close lets go of all sandboxes, which go on, and of the driver. Calls that still
// wait end with unavailable.
func (e *Engine) Close() error {
	e.cancel(errClosing)
	e.mu.Lock()
	boxes := make([]*box, 0, len(e.live))
	for _, b := range e.live {
		boxes = append(boxes, b)
	}
	e.mu.Unlock()
	for _, b := range boxes {
		b.letGo()
	}
	e.wg.Wait()
	return errors.Join(e.flushKeyUse(), e.Driver.Close())
}

// now is the present as the wire and the store can hold it.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

// sweep does what no event announces: life limits when the clock was set, links
// that are silent, ends that could not be recorded, and old rows.
func (e *Engine) sweep() {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	var purged time.Time
	for {
		e.mu.Lock()
		boxes := make([]*box, 0, len(e.live))
		for _, b := range e.live {
			boxes = append(boxes, b)
		}
		e.mu.Unlock()
		for _, b := range boxes {
			b.check()
		}
		if err := e.flushKeyUse(); err != nil {
			e.Log.Warn("cannot note the use of keys", "error", err)
		}
		if time.Since(purged) > purgeEvery {
			purged = time.Now()
			if n, err := e.Store.PurgeSandboxes(e.ctx, now().Add(-ringfence.KeepEnded)); err != nil {
				e.Log.Warn("cannot purge ended sandboxes", "error", err)
			} else if n > 0 {
				e.Log.Info("purged ended sandboxes", "count", n)
			}
		}
		select {
		case <-tick.C:
		case <-e.ctx.Done():
			return
		}
	}
}

func (e *Engine) at(point string) {
	if e.At != nil {
		e.At(point)
	}
}

// find returns a project's sandbox that lives.
func (e *Engine) find(project, id string) *box {
	e.mu.Lock()
	defer e.mu.Unlock()
	if b := e.live[id]; b != nil && b.project == project {
		return b
	}
	return nil
}

// reach returns a project's sandbox that can be used, and wakes it when it is paused.
// Errors: those of living and of the wake.
func (e *Engine) reach(ctx context.Context, project, id string) (*box, error) {
	b, err := e.living(ctx, project, id)
	if err != nil {
		return nil, err
	}
	return b, b.wake(ctx)
}

// living returns a project's sandbox that has not ended. Unknown or another project's:
// not_found; ended: sandbox_ended.
func (e *Engine) living(ctx context.Context, project, id string) (*box, error) {
	if b := e.find(project, id); b != nil {
		return b, nil
	}
	sb, err := e.Get(ctx, project, id)
	if err != nil {
		return nil, err
	}
	return nil, endedError(*sb)
}

// Get returns a project's sandbox, an ended one too. Unknown, or another project's: not_found.
func (e *Engine) Get(ctx context.Context, project, id string) (*ringfence.Sandbox, error) {
	if b := e.find(project, id); b != nil {
		sb := b.sandbox()
		return &sb, nil
	}
	if ringfence.ValidSandboxID(id) {
		sb, err := e.Store.Sandbox(ctx, project, id)
		if ringfence.CodeOf(err) != ringfence.CodeNotFound {
			return sb, err
		}
	}
	return nil, NoSandbox(id)
}

// NoSandbox is what everybody gets who asks for a sandbox that does not exist or is
// not theirs: nothing tells the two apart.
func NoSandbox(id string) error {
	return ringfence.Errorf(ringfence.CodeNotFound, "there is no sandbox %s", quoteShort(id)).
		WithHint("list the sandboxes to see what there is; the record of one that ended is kept for 7 days")
}

// List returns what the filter selects, newest first.
func (e *Engine) List(ctx context.Context, f ringfence.SandboxFilter) ([]*ringfence.Sandbox, error) {
	return e.Store.ListSandboxes(ctx, f)
}

// Kill ends a sandbox and returns when nothing of it is left on the host. It is
// idempotent: one that has ended, or is being ended, is no error.
func (e *Engine) Kill(ctx context.Context, project, id string) error {
	b := e.find(project, id)
	if b == nil {
		_, err := e.Get(ctx, project, id)
		return err
	}
	if err := b.record(ringfence.StateDeleted, ringfence.ReasonKilled, "a caller killed it"); err != nil {
		return err
	}
	e.at("kill.recorded")
	e.wg.Go(b.release)
	select {
	case <-b.gone:
		return nil
	case <-ctx.Done():
		return ringfence.Errorf(ringfence.CodeOf(ctx.Err()), "the sandbox is being killed; the caller did not wait for its end").WithCause(context.Cause(ctx))
	}
}

// Template finds a template by its name or an alias.
func (e *Engine) Template(name string) (ringfence.Template, error) {
	if name == "" || len(name) > maxTemplateName || !printable(name) {
		return ringfence.Template{}, ringfence.Errorf(ringfence.CodeTemplateNotFound, "there is no template %s", quoteShort(name))
	}
	return e.Templates.Lookup(name)
}

const maxTemplateName = 256
