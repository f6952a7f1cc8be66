package engine

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/driver"
	"ringfence.dev/ringfence/internal/guestlink"
)

// box is a sandbox that lives, in memory.
type box struct {
	e       *Engine
	id      string
	project string
	size    ringfence.Size
	loaded  bool    // it takes memory and cores of the host; guarded by the engine's mu
	ticket  *ticket // that held its room until it lived
	// tokenHash is the row's, derivedHash that of the token that AccessToken gives out:
	// both are compared without a lock.
	tokenHash, derivedHash [32]byte

	// ctx ends when the end of the sandbox is on record; its cause is a sandbox_ended
	// error that says why.
	ctx     context.Context
	cancel  context.CancelCauseFunc
	gone    chan struct{} // closed when nothing of it is left on the host
	ports   ports
	watched sync.Map // ids of the processes whose end somebody waits for, to put it on record
	usage   usage
	history NetworkHistory // nil: sandboxes have no network
	// networkNew: the sandbox may still have connections from before its network.
	networkNew atomic.Bool
	calls      atomic.Int32 // calls on the data plane that are in progress
	active     atomic.Int64 // Unix microseconds of the last use
	inDue      atomic.Bool  // actOnDeadlines is at work
	ping       atomic.Bool  // a ping is in progress

	// op holds a token while the sandbox is being paused, resumed, saved or restored.
	op chan struct{}

	commands sync.Map      // ids of the commands that somebody waits for
	doomed   sync.Map      // ids of processes whose kill failed with the link → its reason
	due      chan struct{} // holds a token when deadlines are to be looked at

	// moveMu is held while the row changes, which takes a commit; never while a
	// driver or a guest is called.
	moveMu sync.Mutex

	mu       sync.Mutex
	row      ringfence.Sandbox // guarded by mu; changed with moveMu held
	inst     driver.Instance   // guarded by mu; nil until the driver has made it
	network  Network           // guarded by mu; nil while there is none
	conn     *guestlink.Conn   // guarded by mu; nil while there is none
	linked   chan struct{}     // guarded by mu; closed while conn is set
	creating bool              // guarded by mu; whoever starts its instance releases it
	watch    *watch            // guarded by mu; who follows the instance
	changed  chan struct{}     // guarded by mu; closed when the state changes
	released bool              // guarded by mu; somebody is releasing it
	timer    *time.Timer       // guarded by mu; its life limit
	// When the deadlines of processes are looked at next; guarded by mu.
	lookAt    time.Time
	lookTimer *time.Timer
}

// newBox makes the box of a sandbox that is not yet among those that live.
func (e *Engine) newBox(row ringfence.Sandbox) *box {
	b := &box{e: e, id: row.ID, project: row.Project, size: row.Size, loaded: row.State != ringfence.StatePaused, tokenHash: row.TokenHash,
		derivedHash: ringfence.HashSecret(derivedToken(row.ID, row.TokenHash)), row: row, gone: make(chan struct{}), linked: make(chan struct{}),
		changed: make(chan struct{}), op: make(chan struct{}, 1), due: make(chan struct{}, 1)}
	if e.networked() {
		b.history = e.Gateway.NewHistory()
	}
	b.active.Store(time.Now().UnixMicro())
	b.ctx, b.cancel = context.WithCancelCause(context.WithoutCancel(e.ctx))
	return b
}

// admit puts a sandbox among those that live.
func (e *Engine) admit(row ringfence.Sandbox, t *ticket) *box {
	b := e.newBox(row)
	b.ticket = t
	e.addLive(b)
	return b
}

func (e *Engine) addLive(b *box) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.live[b.id] = b
	delete(e.quotas.tickets, b.ticket)
}

// sandbox returns the sandbox as it is now.
func (b *box) sandbox() ringfence.Sandbox {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.row
}

// moveLocked changes the state in the store and then in memory. moveMu is held.
func (b *box) moveLocked(to ringfence.State, reason ringfence.Reason, detail string) error {
	return b.moveWith(ringfence.Move{To: to, Reason: reason, Detail: detail, ExpiresAt: b.sandbox().ExpiresAt})
}

// moveWith is moveLocked with more that changes.
func (b *box) moveWith(m ringfence.Move) error {
	row := b.sandbox()
	m.ID, m.Generation, m.From, m.At = b.id, row.Generation, row.State, now()
	generation, err := b.e.Store.MoveSandbox(context.WithoutCancel(b.ctx), m)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.row.State, b.row.Reason, b.row.Detail, b.row.Generation = m.To, m.Reason, m.Detail, generation
	if m.Object != "" {
		b.row.Object = m.Object
	}
	switch {
	case m.To.Ended():
		b.row.EndedAt, b.row.Env, b.row.Object = m.At, nil, ""
	case m.To == ringfence.StateRunning:
		b.row.ExpiresAt, b.row.PausedAt, b.row.Object = m.ExpiresAt, time.Time{}, ""
		if m.From == ringfence.StateStarting {
			b.row.StartedAt = m.At
		}
	case m.To == ringfence.StatePaused && m.From == ringfence.StatePausing:
		if b.row.PausedAt = m.At; !b.row.Deadlines.FixedTimeout {
			b.row.ExpiresAt = time.Time{}
		}
	}
	close(b.changed)
	b.changed = make(chan struct{})
	return nil
}

// record puts the end of the sandbox on record, with its first reason; a second
// end is no error and changes nothing. From then on no call reaches it.
func (b *box) record(to ringfence.State, reason ringfence.Reason, detail string) error {
	b.moveMu.Lock()
	defer b.moveMu.Unlock()
	if b.ctx.Err() != nil {
		return nil
	}
	saved := b.sandbox().Object != ""
	if err := b.moveLocked(to, reason, detail); err != nil {
		return err
	}
	if saved {
		b.e.wg.Go(b.e.collectSnapshots)
	}
	b.mu.Lock()
	row, conn := b.row, b.conn
	b.stopTimersLocked()
	b.mu.Unlock()
	end := endedError(row)
	b.cancel(end)
	if conn != nil {
		conn.CloseWithError(end)
	}
	b.emit(ringfence.EventEnded, map[string]any{"state": string(to), "reason": string(reason), "detail": detail})
	b.e.Log.Info("sandbox ended", "sandbox", b.id, "state", to, "reason", reason, "detail", detail,
		"lived", row.EndedAt.Sub(row.CreatedAt).Round(time.Millisecond))
	return nil
}

// end records an end that nobody asked for over the API and carries it out. When the
// store fails, sweep comes back to it.
func (b *box) end(to ringfence.State, reason ringfence.Reason, detail string) {
	if err := b.record(to, reason, detail); err != nil {
		b.e.Log.Error("cannot record the end of a sandbox", "sandbox", b.id, "reason", reason, "error", err)
		return
	}
	b.release()
}

// release carries out an end that is on record: it removes the sandbox from the
// host, again and again until that works. While the sandbox is created, its
// creator does it.
func (b *box) release() {
	b.mu.Lock()
	if b.creating || b.released {
		b.mu.Unlock()
		return
	}
	b.released = true
	inst := b.inst
	b.mu.Unlock()
	b.disconnect()
	b.e.at("release.disconnected")
	if inst != nil && !b.destroy(inst) {
		return
	}
	b.e.at("release.destroyed")
	b.e.mu.Lock()
	delete(b.e.live, b.id)
	b.e.mu.Unlock()
	close(b.gone)
}

// destroy kills an instance. false: the engine closes, and the next start will see
// an instance that no living row owns.
func (b *box) destroy(inst driver.Instance) bool {
	for wait := time.Second; ; wait = min(2*wait, time.Minute) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(b.ctx), killDeadline)
		err := inst.Kill(ctx)
		cancel()
		if err == nil {
			return true
		}
		b.e.Log.Error("cannot remove a sandbox from the host; trying again", "sandbox", b.id, "after", wait, "error", err)
		select {
		case <-time.After(wait):
		case <-b.e.ctx.Done():
			return false
		}
	}
}

// letGo closes what this process holds of a sandbox that goes on.
func (b *box) letGo() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopTimersLocked()
	if b.conn != nil {
		b.conn.CloseWithError(errClosing)
	}
}

func (b *box) stopTimersLocked() {
	for _, t := range []*time.Timer{b.timer, b.lookTimer} {
		if t != nil {
			t.Stop()
		}
	}
}

// check is what sweep does with each sandbox.
func (b *box) check() {
	b.mu.Lock()
	row, inst, conn := b.row, b.inst, b.conn
	b.mu.Unlock()
	switch {
	case b.ctx.Err() != nil:
	case row.State == ringfence.StatePausing || row.State == ringfence.StateResuming:
		b.e.wg.Go(b.mend)
	case inst != nil && row.State == ringfence.StateRunning && isClosed(inst.Done()):
		b.e.wg.Go(func() { b.died(inst.Exit()) })
	case !b.next().IsZero() && !now().Before(b.next()) && now().Sub(row.CreatedAt) > sweepEvery:
		b.e.wg.Go(b.actOnDeadlines) // the clock was set, or a timer came too early
	case conn != nil && b.calls.Load() > 0 && b.ping.CompareAndSwap(false, true):
		b.e.wg.Go(func() { b.probe(conn) })
	}
}

// died ends a sandbox whose host process has ended by itself.
func (b *box) died(exit driver.Exit) {
	reason, detail := exit.Reason, exit.Detail
	if reason == ringfence.ReasonNone {
		reason = ringfence.ReasonCrashed
	}
	if detail == "" {
		detail = "its process on the host ended"
	}
	b.end(ringfence.StateFailed, reason, detail)
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// endedError is what a call on an ended sandbox gets.
func endedError(sb ringfence.Sandbox) *ringfence.Error {
	why := map[ringfence.Reason]string{
		ringfence.ReasonKilled:        "it was killed",
		ringfence.ReasonExpired:       "its life limit passed",
		ringfence.ReasonOOM:           "it ran out of memory",
		ringfence.ReasonCrashed:       "it crashed",
		ringfence.ReasonStartFailed:   "it did not start",
		ringfence.ReasonHostRestarted: "the host was restarted",
		ringfence.ReasonAgentLost:     "its agent stopped answering",
	}[sb.Reason]
	if why == "" {
		why = string(sb.Reason)
	}
	return ringfence.Errorf(ringfence.CodeSandboxEnded, "the sandbox %s has ended: %s", sb.ID, why).WithHint("create another one")
}

// explain turns the error of a call into what the caller should know: when the
// sandbox has ended, or is about to be seen ending, that is the reason.
func (b *box) explain(err error) error {
	var e *ringfence.Error
	if err == nil || (errors.As(err, &e) && e.Code != ringfence.CodeUnavailable && e.Code != ringfence.CodeInternal) {
		return err
	}
	b.mu.Lock()
	inst := b.inst
	b.mu.Unlock()
	if inst != nil && isClosed(inst.Done()) {
		// The link may break a moment before the end is on record.
		select {
		case <-b.ctx.Done():
		case <-time.After(2 * time.Second):
		}
	}
	if b.ctx.Err() != nil {
		return context.Cause(b.ctx)
	}
	if state := b.sandbox().State; state == ringfence.StatePausing || state == ringfence.StatePaused {
		return pausedError(b.id)
	}
	return err
}
