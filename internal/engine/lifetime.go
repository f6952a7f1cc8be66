package engine

import (
	"context"
	"time"

	"ringfence.dev/ringfence"
)

// pauseRetry is how long a sandbox runs on whose deadline wanted it paused and that
// could not be saved.
const pauseRetry = 30 * time.Second

// use notes that somebody does something with the sandbox until the returned function
// is called: it is not idle meanwhile.
func (b *box) use() (done func()) {
	b.calls.Add(1)
	return func() {
		b.active.Store(time.Now().UnixMicro())
		b.calls.Add(-1)
	}
}

// Instants are when things will happen to a sandbox by themselves; zero times: never.
type Instants struct {
	ExpiresAt time.Time // its running period ends
	IdleAt    time.Time // it has been idle for too long, unless somebody uses it before
	DeleteAt  time.Time // it is deleted, being paused
}

// Instants returns what a sandbox's deadlines lead to now. Of a sandbox that is in use,
// the idle deadline counts from now.
func (e *Engine) Instants(sb *ringfence.Sandbox) Instants {
	at := Instants{ExpiresAt: sb.ExpiresAt}
	if b := e.find(sb.Project, sb.ID); b != nil && sb.State == ringfence.StateRunning {
		at.IdleAt = b.idleAt(sb)
	}
	if sb.State == ringfence.StatePaused {
		// ExpiresAt of a paused one is what a change of its auto-delete set.
		fixed := sb.Deadlines.FixedTimeout
		if at.ExpiresAt, at.DeleteAt = (time.Time{}), sb.ExpiresAt; fixed && sb.Deadlines.OnTimeout == ringfence.OnTimeoutPause {
			at.DeleteAt = time.Time{} // it is what would have paused it
		}
		if sb.Deadlines.AutoDelete != nil && (at.DeleteAt.IsZero() || fixed) {
			if after := sb.PausedAt.Add(*sb.Deadlines.AutoDelete); at.DeleteAt.IsZero() || after.Before(at.DeleteAt) {
				at.DeleteAt = after
			}
		}
	}
	return at
}

// idleAt returns when a running sandbox will have been idle for too long.
func (b *box) idleAt(row *ringfence.Sandbox) time.Time {
	if row.Deadlines.IdleTimeout <= 0 {
		return time.Time{}
	}
	since := time.UnixMicro(b.active.Load()).UTC()
	if b.calls.Load() > 0 {
		since = now()
	}
	return since.Add(row.Deadlines.IdleTimeout)
}

// next returns when something is to happen to the sandbox by itself.
func (b *box) next() time.Time {
	row := b.sandbox()
	at := b.e.Instants(&row)
	if row.State != ringfence.StateRunning && row.State != ringfence.StateStarting {
		at.ExpiresAt = time.Time{} // the end of the operation arms the timer again
	}
	var first time.Time
	for _, t := range []time.Time{at.ExpiresAt, at.IdleAt, at.DeleteAt} {
		if !t.IsZero() && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	return first
}

// arm sets the timer of what happens to the sandbox by itself next.
func (b *box) arm() { b.armAt(b.next()) }

func (b *box) armAt(at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.timer != nil {
		b.timer.Stop()
		b.timer = nil
	}
	if !at.IsZero() && b.ctx.Err() == nil {
		b.timer = time.AfterFunc(time.Until(at), func() {
			if b.e.ctx.Err() == nil {
				b.e.wg.Go(b.actOnDeadlines)
			}
		})
	}
}

// actOnDeadlines does what is due by now, and arms the timer for the rest. It may be called at any
// time.
func (b *box) actOnDeadlines() {
	if b.ctx.Err() != nil || b.e.ctx.Err() != nil || !b.inDue.CompareAndSwap(false, true) {
		return
	}
	b.actOnce()
	b.inDue.Store(false)
	// What the pause armed came due while this was at work: auto_delete_seconds 0.
	if at := b.next(); !at.IsZero() && !now().Before(at) && b.sandbox().State == ringfence.StatePaused {
		b.arm()
	}
}

func (b *box) actOnce() {
	row := b.sandbox()
	at, present := b.e.Instants(&row), now()
	passed := func(t time.Time) bool { return !t.IsZero() && !present.Before(t) }
	var why string
	switch {
	case passed(at.DeleteAt):
		why := "it was paused for its auto_delete_seconds"
		if row.Deadlines.FixedTimeout && passed(row.ExpiresAt) {
			why = "its life limit passed"
		}
		b.end(ringfence.StateDeleted, ringfence.ReasonExpired, why)
		return
	case passed(at.ExpiresAt) && row.State == ringfence.StateStarting:
		b.end(ringfence.StateDeleted, ringfence.ReasonExpired, "its life limit passed")
		return
	case passed(at.ExpiresAt) && row.State == ringfence.StateRunning:
		why = "its life limit passed"
	case passed(at.IdleAt):
		why = "nobody used it for its idle_timeout_seconds"
	default:
		b.arm()
		return
	}
	if row.Deadlines.OnTimeout != ringfence.OnTimeoutPause || !b.e.canSave() {
		b.end(ringfence.StateDeleted, ringfence.ReasonExpired, why)
		return
	}
	if err := b.pauseIfDue(); err != nil && b.ctx.Err() == nil && b.e.ctx.Err() == nil {
		b.e.Log.Warn("cannot pause a sandbox although it is due; it runs on", "sandbox", b.id, "why", why, "error", err, "again_in", pauseRetry)
		b.armAt(now().Add(pauseRetry))
	}
}

// pauseIfDue pauses the sandbox, unless its deadlines were changed or it was used while
// another operation had it.
func (b *box) pauseIfDue() error {
	ctx := context.WithoutCancel(b.ctx)
	if err := b.take(ctx); err != nil {
		return err
	}
	row := b.sandbox()
	if at := b.next(); row.State != ringfence.StateRunning || at.IsZero() || now().Before(at) {
		<-b.op
		b.arm()
		return nil
	}
	return b.finish(ctx, (*box).pause)
}

// DeadlinesChange says what to change; nil fields stay.
type DeadlinesChange struct {
	Timeout      *time.Duration // 0: none; counts from now
	OnTimeout    *ringfence.OnTimeout
	IdleTimeout  *time.Duration  // 0: none
	AutoDelete   **time.Duration // nil inside: none
	NoAutoResume *bool
}

// SetDeadlines changes what happens to a sandbox by itself, in whatever state it is. A
// new timeout counts from now, and so does a new auto-delete of one that is paused. Errors:
// not_found, sandbox_ended, invalid_argument.
func (e *Engine) SetDeadlines(ctx context.Context, project, id string, c DeadlinesChange) (*ringfence.Sandbox, error) {
	b, err := e.living(ctx, project, id)
	if err != nil {
		return nil, err
	}
	b.moveMu.Lock()
	defer b.moveMu.Unlock()
	if b.ctx.Err() != nil {
		return nil, context.Cause(b.ctx)
	}
	row := b.sandbox()
	d, expires := row.Deadlines, row.ExpiresAt
	if c.OnTimeout != nil {
		d.OnTimeout = *c.OnTimeout
	}
	if c.IdleTimeout != nil {
		d.IdleTimeout = *c.IdleTimeout
	}
	if c.AutoDelete != nil {
		d.AutoDelete = *c.AutoDelete
		if row.State == ringfence.StatePaused && !d.FixedTimeout {
			expires = time.Time{}
			if d.AutoDelete != nil {
				expires = now().Add(*d.AutoDelete)
			}
		}
	}
	if c.NoAutoResume != nil {
		d.NoAutoResume = *c.NoAutoResume
	}
	if c.Timeout != nil {
		d.Timeout = *c.Timeout
		if row.State != ringfence.StatePaused || d.FixedTimeout {
			expires = d.Expires(now())
		}
	}
	if err := e.validDeadlines(d); err != nil {
		return nil, err
	}
	if err := e.Store.SetDeadlines(ctx, id, d, expires); err != nil {
		return nil, err
	}
	b.mu.Lock()
	b.row.Deadlines, b.row.ExpiresAt = d, expires
	row = b.row
	b.mu.Unlock()
	b.arm()
	return &row, nil
}

// SetMetadata puts other metadata in place of a sandbox's own, in whatever state it is.
// Errors: not_found, sandbox_ended, invalid_argument.
func (e *Engine) SetMetadata(ctx context.Context, project, id string, metadata map[string]string) (*ringfence.Sandbox, error) {
	if err := ValidMetadata(metadata); err != nil {
		return nil, err
	}
	b, err := e.living(ctx, project, id)
	if err != nil {
		return nil, err
	}
	b.moveMu.Lock()
	defer b.moveMu.Unlock()
	if b.ctx.Err() != nil {
		return nil, context.Cause(b.ctx)
	}
	if err := e.Store.SetMetadata(ctx, id, metadata); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.row.Metadata = metadata
	row := b.row
	return &row, nil
}

func (e *Engine) validDeadlines(d ringfence.Deadlines) error {
	if err := validDeadlines(d); err != nil {
		return err
	}
	if d.OnTimeout == ringfence.OnTimeoutPause && !e.canSave() {
		return ringfence.Errorf(ringfence.CodeNotYetSupported, "the %s driver cannot pause sandboxes", e.Driver.Name()).WithField("on_timeout")
	}
	return nil
}
