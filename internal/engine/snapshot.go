package engine

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"ringfence.dev/ringfence"
)

// MaxFork bounds how many forks one call makes.
const MaxFork = 100

// Snapshot keeps a sandbox's memory and written disk under a new id; the sandbox goes on.
// A paused sandbox is not woken. Errors are those of Pause.
func (e *Engine) Snapshot(ctx context.Context, project, id, name string) (*ringfence.Snapshot, error) {
	if len(name) > ringfence.MaxNameLength || !printable(name) {
		return nil, invalid("name", "name has to be text of at most %d bytes without control characters", ringfence.MaxNameLength)
	}
	return e.snapshot(ctx, project, id, name, false)
}

func (e *Engine) snapshot(ctx context.Context, project, id, name string, hidden bool) (*ringfence.Snapshot, error) {
	b, err := e.exclusive(ctx, project, id)
	if err != nil {
		return nil, err
	}
	if !hidden {
		if err := e.roomForSnapshot(ctx, project); err != nil {
			<-b.op
			return nil, err
		}
	}
	row := b.sandbox()
	sn := &ringfence.Snapshot{
		ID: ringfence.NewSnapshotID(), Project: project, Name: name, SandboxID: id, Template: row.Template, ImagePath: row.ImagePath,
		BaseEnv: row.BaseEnv, Size: row.Size, User: row.User, WorkDir: row.WorkDir, Hidden: hidden,
	}
	err = b.finish(ctx, func(b *box, ctx context.Context) error { return b.snapshot(ctx, sn) })
	if err != nil {
		return nil, err
	}
	if !hidden {
		b.emit(ringfence.EventSnapshotted, map[string]any{"snapshot": sn.ID, "name": sn.Name})
		e.Log.Info("made a snapshot", "sandbox", id, "snapshot", sn.ID, "bytes", sn.Bytes)
	}
	return sn, nil
}

func (b *box) snapshot(ctx context.Context, sn *ringfence.Snapshot) error {
	e := b.e
	keep := func(object string) error {
		sn.Object, sn.Bytes, sn.CreatedAt = object, e.Snapshots.Objects()[object], now()
		return e.keepSnapshot(ctx, sn)
	}
	switch row := b.sandbox(); row.State {
	case ringfence.StatePaused:
		e.goldens.objects.RLock()
		defer e.goldens.objects.RUnlock()
		return keep(row.Object)
	case ringfence.StateRunning:
		inst, err := b.save(ctx, keep)
		if err != nil {
			return err
		}
		return b.goOn(inst, row.ExpiresAt)
	}
	return b.stateError("saved")
}

// GetSnapshot returns one of a project's snapshots. Unknown, or another project's: not_found.
func (e *Engine) GetSnapshot(ctx context.Context, project, id string) (*ringfence.Snapshot, error) {
	if ringfence.ValidSnapshotID(id) {
		sn, err := e.Store.Snapshot(ctx, project, id)
		if ringfence.CodeOf(err) != ringfence.CodeNotFound {
			return sn, err
		}
	}
	return nil, ringfence.Errorf(ringfence.CodeNotFound, "there is no snapshot %s", quoteShort(id)).WithHint("list the snapshots to see what there is")
}

// ListSnapshots returns what the filter selects, newest first.
func (e *Engine) ListSnapshots(ctx context.Context, f ringfence.SnapshotFilter) ([]*ringfence.Snapshot, error) {
	return e.Store.ListSnapshots(ctx, f)
}

// DeleteSnapshot forgets a snapshot; its content goes when nothing else is of it.
// Sandboxes that started from it go on.
func (e *Engine) DeleteSnapshot(ctx context.Context, project, id string) error {
	if _, err := e.GetSnapshot(ctx, project, id); err != nil {
		return err
	}
	if err := e.Store.DeleteSnapshot(ctx, project, id); err != nil {
		return err
	}
	e.at("snapshot.forgotten")
	e.collectSnapshots()
	return nil
}

// Restored is a sandbox that was just made, with its access token.
type Restored struct {
	Sandbox *ringfence.Sandbox
	Token   string
}

// Fork makes copies of a sandbox, which goes on: each has its memory, files, environment,
// metadata and deadlines, and an id and a token of its own. All or none.
func (e *Engine) Fork(ctx context.Context, project, id string, count int) (forks []Restored, err error) {
	if count < 1 || count > MaxFork {
		return nil, invalid("count", "count has to be from 1 to %d", MaxFork)
	}
	if err := e.admitCreate(project); err != nil {
		return nil, err
	}
	sn, err := e.snapshot(ctx, project, id, "", true)
	if err != nil {
		return nil, err
	}
	defer func() {
		err = errors.Join(err, e.Store.DeleteSnapshot(context.WithoutCancel(ctx), project, sn.ID))
		e.collectSnapshots()
	}()
	e.at("fork.saved")
	source, err := e.Get(ctx, project, id)
	if err != nil {
		return nil, err
	}
	forks = make([]Restored, count)
	var group errgroup.Group
	group.SetLimit(4)
	for i := range forks {
		group.Go(func() error {
			sb, token, err := e.Create(ctx, CreateRequest{
				Project: project, Name: source.Name, Snapshot: sn.ID, Env: source.Env, Metadata: source.Metadata,
				Deadlines: source.Deadlines, Network: source.Network, forked: true,
			})
			forks[i] = Restored{sb, token}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		for _, f := range forks {
			if f.Sandbox != nil {
				err = errors.Join(err, e.Kill(context.WithoutCancel(ctx), project, f.Sandbox.ID))
			}
		}
		return nil, err
	}
	e.at("fork.made")
	return forks, nil
}

// RestoreInPlace makes a sandbox what it was, or another one was, in a snapshot; what it
// was until now is lost. It keeps its id, token, name and environment, and runs then.
// When it fails the sandbox is paused in the snapshot.
func (e *Engine) RestoreInPlace(ctx context.Context, project, id, snapshot string) (*ringfence.Sandbox, error) {
	sn, err := e.GetSnapshot(ctx, project, snapshot)
	if err != nil {
		return nil, err
	}
	return e.operate(ctx, project, id, func(b *box, ctx context.Context) error { return b.restore(ctx, sn) })
}

func (b *box) restore(ctx context.Context, sn *ringfence.Snapshot) error {
	row := b.sandbox()
	if row.Size != sn.Size || row.ImagePath != sn.ImagePath {
		return ringfence.Errorf(ringfence.CodeFailedPrecondition, "the snapshot %s is of another template or size than the sandbox", sn.ID).
			WithHint("create a sandbox from the snapshot instead").WithField("snapshot")
	}
	// The snapshot may be deleted meanwhile: its content has a user from here on.
	b.e.goldens.objects.RLock()
	defer b.e.goldens.objects.RUnlock()
	if _, err := b.e.GetSnapshot(ctx, sn.Project, sn.ID); err != nil {
		return err
	}
	switch row.State {
	case ringfence.StatePaused:
	case ringfence.StateRunning:
		if err := b.step(ringfence.Move{To: ringfence.StatePausing}); err != nil {
			return err
		}
		b.e.at("restore.begun")
		b.unfollow()
		b.mu.Lock()
		inst, conn := b.inst, b.conn
		if conn != nil {
			b.conn, b.linked = nil, make(chan struct{})
		}
		b.mu.Unlock()
		if conn != nil {
			conn.CloseWithError(ringfence.Errorf(ringfence.CodeUnavailable, "the sandbox was restored to a snapshot"))
		}
		if err := b.step(ringfence.Move{To: ringfence.StatePaused, Object: sn.Object}); err != nil {
			return err
		}
		b.e.at("restore.recorded")
		b.disconnect()
		b.unload(inst)
		b.e.at("restore.unloaded")
	default:
		return b.stateError("restored")
	}
	return b.load(ctx, sn.Object)
}

// roomToSave refuses a save for which there is no room.
func (b *box) roomToSave(ctx context.Context) error {
	if b.e.MaxSnapshotMiB <= 0 {
		return nil
	}
	var have int64
	for _, bytes := range b.e.Snapshots.Objects() {
		have += bytes
	}
	b.mu.Lock()
	inst := b.inst
	b.mu.Unlock()
	if u, err := inst.Usage(ctx); err == nil {
		have += u.MemoryBytes + u.DiskBytes
	}
	if limit := b.e.MaxSnapshotMiB << 20; have > limit {
		return ringfence.Errorf(ringfence.CodeResourceExhausted, "there is no room for a snapshot: all of them may take %d MiB", b.e.MaxSnapshotMiB).
			WithHint("delete snapshots or paused sandboxes that are not needed; the operator sets the limit, as max_snapshots_mib")
	}
	return nil
}

// pausedError is what a call on a paused sandbox gets.
func pausedError(id string) *ringfence.Error {
	return ringfence.Errorf(ringfence.CodeSandboxPaused, "the sandbox %s is paused", id).
		WithHint("resume it; what ran in it goes on then and can be joined again")
}

// wake resumes a paused sandbox for a call, if it lets itself be woken. Any number of
// calls wake it once.
func (b *box) wake(ctx context.Context) error {
	row := b.sandbox()
	switch row.State {
	case ringfence.StateRunning, ringfence.StateStarting:
		return nil
	case ringfence.StatePaused, ringfence.StatePausing:
		if row.Deadlines.NoAutoResume {
			return pausedError(b.id)
		}
	}
	if err := b.take(ctx); err != nil {
		return err
	}
	if b.sandbox().State == ringfence.StateRunning { // another call was first
		<-b.op
		return nil
	}
	err := b.finish(ctx, (*box).unpause)
	if ringfence.CodeOf(err) == ringfence.CodeFailedPrecondition {
		return fmt.Errorf("cannot wake the sandbox %s: %w", b.id, err)
	}
	return err
}
