package engine

import (
	"context"
	"errors"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/driver"
	"ringfence.dev/ringfence/internal/guestlink"
)

// Bounds of one pause, snapshot or resume. What is saved is the memory and all that was
// written, so a large sandbox on a slow disk takes long.
const (
	saveDeadline   = 10 * time.Minute
	resumeDeadline = 2 * time.Minute
)

// Pause saves a sandbox's memory and written disk and takes it off the host. It is
// idempotent. A caller that goes away does not stop it. When it fails the sandbox runs
// on, unless the error says that it ended.
//
// Errors: not_found, sandbox_ended, not_yet_supported (the driver cannot),
// resource_exhausted (no room for the snapshot), failed_precondition.
func (e *Engine) Pause(ctx context.Context, project, id string) (*ringfence.Sandbox, error) {
	return e.operate(ctx, project, id, (*box).pause)
}

// Resume brings a paused sandbox back as it was. It is idempotent. When it fails the
// sandbox is still paused.
//
// Errors: not_found, sandbox_ended, resource_exhausted, failed_precondition (its
// snapshot cannot be used here; the error says what to do).
func (e *Engine) Resume(ctx context.Context, project, id string) (*ringfence.Sandbox, error) {
	return e.operate(ctx, project, id, (*box).unpause)
}

// operate runs an operation that changes a sandbox's state, and returns the sandbox as
// it is then.
func (e *Engine) operate(ctx context.Context, project, id string, op func(*box, context.Context) error) (*ringfence.Sandbox, error) {
	b, err := e.exclusive(ctx, project, id)
	if err != nil {
		return nil, err
	}
	if err := b.finish(ctx, op); err != nil {
		return nil, err
	}
	sb := b.sandbox()
	return &sb, nil
}

// exclusive returns a living sandbox with its operation token taken.
func (e *Engine) exclusive(ctx context.Context, project, id string) (*box, error) {
	if !e.canSave() {
		return nil, ringfence.Errorf(ringfence.CodeNotYetSupported, "the %s driver cannot save sandboxes", e.Driver.Name())
	}
	b, err := e.living(ctx, project, id)
	if err != nil {
		return nil, err
	}
	return b, b.take(ctx)
}

func (e *Engine) canSave() bool { return e.Snapshots != nil && e.Driver.Capabilities().Checkpoint }

// take waits for the token of the sandbox's operations.
func (b *box) take(ctx context.Context) error {
	select {
	case b.op <- struct{}{}:
	case <-b.ctx.Done():
		return context.Cause(b.ctx)
	case <-b.e.ctx.Done():
		return errClosing
	case <-ctx.Done():
		return ringfence.Errorf(ringfence.CodeOf(ctx.Err()), "the sandbox is being paused, resumed or saved").WithCause(context.Cause(ctx))
	}
	// It may have ended at the same moment.
	if b.ctx.Err() != nil {
		<-b.op
		return context.Cause(b.ctx)
	}
	return nil
}

// finish runs an operation to its end although its caller may leave, and gives the token
// back. The engine's Close waits for it.
func (b *box) finish(ctx context.Context, op func(*box, context.Context) error) error {
	done := make(chan error, 1)
	b.e.wg.Go(func() {
		defer func() { <-b.op }()
		done <- op(b, context.WithoutCancel(ctx))
	})
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ringfence.Errorf(ringfence.CodeOf(ctx.Err()), "the caller went away; the operation goes on").WithCause(context.Cause(ctx))
	}
}

// step moves the sandbox to a state, unless it has ended meanwhile.
func (b *box) step(m ringfence.Move) error {
	b.moveMu.Lock()
	defer b.moveMu.Unlock()
	if b.ctx.Err() != nil {
		return context.Cause(b.ctx)
	}
	return b.moveWith(m)
}

// stateError is what an operation says that does not fit the state.
func (b *box) stateError(what string) error {
	return ringfence.Errorf(ringfence.CodeFailedPrecondition, "a sandbox that is %s cannot be %s", b.sandbox().State, what).
		WithHint("try again in a moment")
}

// pause does the work of Pause. The caller has the token.
func (b *box) pause(ctx context.Context) error {
	switch b.sandbox().State {
	case ringfence.StatePaused:
		return nil
	case ringfence.StateRunning:
	default:
		return b.stateError("paused")
	}
	inst, err := b.save(ctx, func(object string) error {
		return b.step(ringfence.Move{To: ringfence.StatePaused, Object: object})
	})
	if err != nil {
		return err
	}
	b.arm()
	b.disconnect() // the other sides of its flows are told
	b.emit(ringfence.EventPaused, nil)
	b.e.at("pause.recorded")
	b.unload(inst)
	b.e.at("pause.unloaded")
	row := b.sandbox()
	b.e.Log.Info("sandbox paused", "sandbox", b.id, "bytes", b.e.Snapshots.Objects()[row.Object])
	return nil
}

// unload takes the instance of a sandbox that does not run any more off the host.
func (b *box) unload(inst driver.Instance) {
	if !b.destroy(inst) {
		return // the engine closes, and the next start finds an instance of a paused sandbox
	}
	b.mu.Lock()
	if b.inst == inst {
		b.inst = nil
	}
	b.mu.Unlock()
	b.e.unloaded(b)
}

// save saves a running sandbox in state pausing and calls keep, which puts the content
// on record. Without an error the instance is left paused, with nobody who follows it;
// else it runs on, if it has not ended.
func (b *box) save(ctx context.Context, keep func(object string) error) (driver.Instance, error) {
	e := b.e
	ctx, cancel := context.WithTimeout(ctx, saveDeadline)
	defer cancel()
	defer context.AfterFunc(b.ctx, cancel)() // whoever ends the sandbox interrupts it
	if err := b.roomToSave(ctx); err != nil {
		return nil, err
	}
	expires := b.sandbox().ExpiresAt
	if err := b.step(ringfence.Move{To: ringfence.StatePausing}); err != nil {
		return nil, err
	}
	e.at("save.begun")
	inst, conn, err := b.takeSession(ctx)
	if err == nil {
		err = e.save(ctx, conn, inst, keep)
	}
	if err == nil {
		return inst, nil
	}
	if conn != nil {
		conn.Close() // Freeze has closed it, unless it failed
	}
	switch {
	case b.ctx.Err() != nil:
		return nil, context.Cause(b.ctx)
	case isClosed(inst.Done()):
		b.died(inst.Exit())
		return nil, endedError(b.sandbox())
	}
	e.Log.Warn("cannot save a sandbox; it runs on", "sandbox", b.id, "error", err)
	if rerr := b.goOn(inst, expires); rerr != nil {
		return nil, errors.Join(err, rerr)
	}
	return nil, saveError(err)
}

// saveError says what a caller should know of a save that failed.
func saveError(err error) error {
	var own *ringfence.Error
	if errors.As(err, &own) {
		return err
	}
	return ringfence.Errorf(ringfence.CodeInternal, "the sandbox could not be saved, and runs on").
		WithHint("is the server's disk full? its log says more").WithCause(err)
}

// goOn lets a sandbox run whose instance is paused.
func (b *box) goOn(inst driver.Instance, expires time.Time) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.ctx), startDeadline)
	defer cancel()
	err := inst.Resume(ctx)
	if err != nil && isClosed(inst.Done()) {
		b.died(inst.Exit())
		return endedError(b.sandbox())
	}
	if err != nil { // it was not paused, or does not answer: the link will tell
		b.e.Log.Warn("cannot let a sandbox go on", "sandbox", b.id, "error", err)
	}
	b.e.at("goon.resumed")
	if conn, err := attach(ctx, inst); err == nil {
		if err = b.resume(ctx, conn); err != nil {
			conn.Close() // the link is opened again
		} else {
			b.setConn(conn)
		}
	}
	b.e.at("goon.attached")
	if err := b.step(ringfence.Move{To: ringfence.StateRunning, ExpiresAt: expires}); err != nil {
		return err
	}
	b.e.at("goon.recorded")
	b.follow(inst)
	b.arm()
	return nil
}

// mend brings a sandbox to rest whose operation could not put its end on record.
func (b *box) mend() {
	select {
	case b.op <- struct{}{}:
	default:
		return // the operation is under way
	}
	defer func() { <-b.op }()
	b.mu.Lock()
	row, inst := b.row, b.inst
	b.mu.Unlock()
	var err error
	switch {
	case b.ctx.Err() != nil:
	case row.State == ringfence.StatePausing && inst != nil:
		err = b.goOn(inst, row.ExpiresAt)
	case row.State == ringfence.StateResuming:
		if inst != nil {
			b.unload(inst)
		}
		err = b.step(ringfence.Move{To: ringfence.StatePaused})
	}
	if err != nil {
		b.e.Log.Warn("cannot bring a sandbox to rest", "sandbox", b.id, "state", row.State, "error", err)
	}
}

// takeSession takes the instance and the session away from whoever follows them.
func (b *box) takeSession(ctx context.Context) (driver.Instance, *guestlink.Conn, error) {
	b.unfollow()
	b.mu.Lock()
	inst, conn := b.inst, b.conn
	if conn != nil {
		b.conn, b.linked = nil, make(chan struct{})
	}
	b.mu.Unlock()
	if conn != nil && !isClosed(conn.Done()) {
		return inst, conn, nil
	}
	conn, err := attach(ctx, inst)
	return inst, conn, err
}

// watch is somebody who follows an instance.
type watch struct{ quit, done chan struct{} }

// follow notices what happens to an instance until unfollow.
func (b *box) follow(inst driver.Instance) {
	w := &watch{quit: make(chan struct{}), done: make(chan struct{})}
	b.mu.Lock()
	b.watch = w
	b.mu.Unlock()
	b.e.wg.Go(func() {
		defer close(w.done)
		b.supervise(inst, w.quit)
	})
}

// unfollow returns when nobody follows the instance any more, or the sandbox has ended.
func (b *box) unfollow() {
	b.mu.Lock()
	w := b.watch
	b.watch = nil
	b.mu.Unlock()
	if w == nil {
		return
	}
	close(w.quit)
	select {
	case <-w.done:
	case <-b.ctx.Done():
	}
}

// unpause does the work of Resume. The caller has the token.
func (b *box) unpause(ctx context.Context) error {
	switch b.sandbox().State {
	case ringfence.StateRunning:
		return nil
	case ringfence.StatePaused:
	default:
		return b.stateError("resumed")
	}
	return b.load(ctx, "")
}

// load restores a paused sandbox from an object, "" for the one that it is in.
func (b *box) load(ctx context.Context, object string) error {
	e := b.e
	row := b.sandbox()
	done, err := e.awaitRoom(ctx, row.Size)
	if err != nil {
		return err
	}
	defer done()
	if err := e.load(b); err != nil {
		return err
	}
	b.mu.Lock()
	b.creating = true // whoever ends it now leaves its instance to us
	b.mu.Unlock()
	err = b.step(ringfence.Move{To: ringfence.StateResuming, Object: object})
	if err == nil {
		e.at("resume.begun")
		if err = b.bringBack(ctx); err != nil && b.ctx.Err() == nil {
			e.Log.Warn("cannot resume a sandbox; it stays paused", "sandbox", b.id, "error", err)
			err = resumeError(err)
			if serr := b.step(ringfence.Move{To: ringfence.StatePaused}); serr != nil {
				err = errors.Join(err, serr)
			}
		}
	}
	b.mu.Lock()
	b.creating = false
	inst := b.inst
	b.mu.Unlock()
	if b.ctx.Err() != nil {
		b.release()
		return context.Cause(b.ctx)
	}
	b.active.Store(time.Now().UnixMicro())
	b.arm()
	if err != nil {
		e.unloaded(b)
		return err
	}
	b.follow(inst)
	b.emit(ringfence.EventResumed, nil)
	e.Log.Info("sandbox resumed", "sandbox", b.id, "paused", now().Sub(row.PausedAt).Round(time.Millisecond))
	e.wg.Go(e.collectSnapshots)
	return nil
}

func resumeError(err error) error {
	var own *ringfence.Error
	if errors.As(err, &own) {
		return err
	}
	return ringfence.Errorf(ringfence.CodeInternal, "the sandbox could not be resumed, and is still paused").
		WithHint("the server's log says more").WithCause(err)
}

// bringBack restores the instance of a sandbox that is resuming, and moves it to running.
func (b *box) bringBack(ctx context.Context) (err error) {
	e := b.e
	ctx, cancel := context.WithTimeout(ctx, resumeDeadline)
	defer cancel()
	defer context.AfterFunc(b.ctx, cancel)()
	row := b.sandbox()
	template := origin(row)
	inst, err := e.Driver.Restore(ctx, e.spec(b.id, template, row.Size), e.Snapshots.Path(row.Object))
	if err != nil {
		return err
	}
	b.mu.Lock()
	b.inst = inst
	b.mu.Unlock()
	e.at("resume.started")
	var conn *guestlink.Conn
	defer func() {
		if err == nil {
			return
		}
		if conn != nil {
			conn.Close() // the first error counts
		}
		if b.ctx.Err() == nil {
			b.disconnect()
			b.unload(inst)
		}
	}()
	if conn, err = attach(ctx, inst); err != nil {
		return err
	}
	e.at("resume.attached")
	if err = b.reconnect(ctx, inst); err != nil {
		return err
	}
	if err = conn.Identity(ctx, e.identity(row, template)); err != nil {
		return err
	}
	if err = b.resume(ctx, conn); err != nil {
		return err
	}
	e.at("resume.identified")
	if err = b.step(ringfence.Move{To: ringfence.StateRunning, ExpiresAt: row.Deadlines.ExpiresAgain(now(), row.ExpiresAt)}); err != nil {
		return err
	}
	e.at("resume.recorded")
	b.setConn(conn)
	return nil
}

// origin is the template that a sandbox was made of, as it was then.
func origin(row ringfence.Sandbox) ringfence.Template {
	return ringfence.Template{Name: row.Template, ImagePath: row.ImagePath, Env: row.BaseEnv, User: row.User, WorkDir: row.WorkDir, Size: row.Size}
}
