package engine

import (
	"context"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/guestlink"
	"ringfence.dev/ringfence/internal/guestproto"
)

// deadlineRetry is when deadlines are looked at again that could not be kept.
const deadlineRetry = time.Second

// The deadline of a process that nobody follows is in the agent's list alone, so that the
// next daemon finds it, too. Here is only when to look at the list: the earliest of them.

// keepDeadline makes sure that the list is looked at by then. A zero time is none.
func (b *box) keepDeadline(at time.Time) {
	if at.IsZero() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.lookAt.IsZero() && !at.Before(b.lookAt) {
		return
	}
	b.lookAt = at
	if b.lookTimer != nil {
		b.lookTimer.Stop()
	}
	b.lookTimer = time.AfterFunc(time.Until(at), func() {
		select {
		case b.due <- struct{}{}:
		default:
		}
	})
}

// keepDeadlines kills the processes whose deadline has passed, and sets the time of the
// next look.
func (b *box) keepDeadlines() {
	b.mu.Lock()
	b.lookAt = time.Time{}
	conn := b.conn
	b.mu.Unlock()
	if conn == nil || isClosed(conn.Done()) || !conn.HasProcesses() {
		return // the next link is looked at anyway
	}
	ctx, cancel := context.WithTimeout(b.ctx, killGrace)
	defer cancel()
	list, err := conn.Query(ctx, guestproto.ProcessQuery{Running: true})
	if err != nil {
		if b.ctx.Err() == nil && !isClosed(conn.Done()) {
			b.e.Log.Warn("cannot look at the deadlines of a sandbox", "sandbox", b.id, "error", err)
			b.keepDeadline(time.Now().Add(deadlineRetry))
		}
		return
	}
	for _, p := range list {
		if _, followed := b.commands.Load(p.ID); !followed {
			b.watchEnd(p.ID) // a former daemon started it
		}
		if p.DeadlineAt == 0 {
			continue
		}
		at := time.UnixMicro(p.DeadlineAt)
		if _, followed := b.commands.Load(p.ID); followed && time.Since(at) < deadlineRetry {
			at = at.Add(deadlineRetry) // its follower does it first
		}
		if time.Until(at) > 0 {
			b.keepDeadline(at)
			continue
		}
		b.e.wg.Go(func() {
			if b.kill(conn, p.ID, string(ringfence.CommandDeadline)) != nil {
				b.keepDeadline(time.Now().Add(deadlineRetry))
			}
		})
	}
}

// resume takes up what a broken link or a former daemon left undone: kills that were
// meant, and deadlines.
func (b *box) resume(ctx context.Context, conn *guestlink.Conn) error {
	var failed error
	b.doomed.Range(func(id, reason any) bool {
		err := conn.Kill(ctx, guestproto.ProcessKill{ID: id.(string), Signal: sigkill, Tree: true, Reason: reason.(string)})
		switch ringfence.CodeOf(err) {
		case "", ringfence.CodeNotFound, ringfence.CodeProcessNotFound, ringfence.CodeProcessEnded:
			b.doomed.Delete(id)
			return true
		}
		failed = err
		return false
	})
	if failed != nil {
		return failed
	}
	if conn.HasProcesses() {
		b.keepDeadline(time.Now())
		return nil
	}
	return b.endAbandoned(ctx, conn)
}
