package engine

import (
	"context"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/driver"
)

const metaBootID = "host_boot_id"

// recover compares the rows with what the driver still holds, by these rules:
//
//   - running, and there: it goes on, its link is opened again, its life limit counts
//     from its creation as before; one that passed meanwhile ends it now
//   - running, and not there: failed, host_restarted if the host was, else crashed
//   - pausing, and there: its snapshot was not complete, so it goes on
//   - paused: it stays so, whatever happened to the host; what is left of its instance
//     is killed. Its snapshot is gone: failed
//   - resuming: nobody was told that it runs, so it is paused again
//   - starting: nobody was ever told of it, so it is ended
//   - there, and no row says that it lives: it is killed
//
// Only the first needs the guest, and nobody waits for that here.
func (e *Engine) recover(ctx context.Context) error {
	bootID, err := e.Host.BootID()
	if err != nil {
		return ringfence.Errorf(ringfence.CodeInternal, "cannot read the host's boot id: %w", err)
	}
	lastBoot, err := e.Store.Meta(ctx, metaBootID)
	if err != nil {
		return err
	}
	e.events.restarted = lastBoot != ""
	began := time.Now()
	instances, err := e.Driver.Recover(ctx)
	switch {
	case err == nil:
	case instances == nil:
		return ringfence.Errorf(ringfence.CodeInternal, "cannot find the sandboxes of the last run: %w", err)
	default:
		// Something could not be removed; that must not keep what runs from its owners.
		e.Log.Error("cannot remove all that the last run left", "error", err)
	}
	rows, err := e.Store.LiveSandboxes(ctx)
	if err != nil {
		return err
	}
	public, err := e.Store.PublicPorts(ctx)
	if err != nil {
		return err
	}
	there := make(map[string]driver.Instance, len(instances))
	for _, inst := range instances {
		there[inst.ID()] = inst
	}
	lost, lostDetail := ringfence.ReasonCrashed, "it was gone when the server came back"
	if lastBoot != "" && lastBoot != bootID {
		lost, lostDetail = ringfence.ReasonHostRestarted, "the host was restarted"
	}
	found, ended := 0, 0
	for _, row := range rows {
		b := e.admit(*row, nil)
		for port, wakes := range public[row.ID] {
			b.ports.set(port, true, wakes)
		}
		inst := there[row.ID]
		delete(there, row.ID)
		if row.Object != "" || row.State == ringfence.StatePaused || row.State == ringfence.StateResuming {
			paused, err := b.recoverPaused(inst)
			if err != nil {
				return err
			}
			if paused {
				found++
			} else {
				ended++
			}
			continue
		}
		b.inst = inst
		to, reason, detail := ringfence.StateFailed, ringfence.ReasonNone, ""
		switch {
		case row.State == ringfence.StateStarting:
			reason, detail = ringfence.ReasonStartFailed, "the server stopped while it started"
		case inst == nil || isClosed(inst.Done()):
			// Also when its life limit passed: nobody saw which came first.
			reason, detail = lost, lostDetail
			if inst != nil && inst.Exit().Reason != ringfence.ReasonNone {
				reason, detail = inst.Exit().Reason, inst.Exit().Detail
			}
		case !row.ExpiresAt.IsZero() && !now().Before(row.ExpiresAt) && row.Deadlines.OnTimeout != ringfence.OnTimeoutPause:
			to, reason, detail = ringfence.StateDeleted, ringfence.ReasonExpired, "its life limit passed while the server was down"
		}
		if reason == ringfence.ReasonNone {
			found++
			if err := b.reconnect(ctx, inst); err != nil {
				// It goes on without; nothing can leave it.
				e.Log.Error("cannot open the network of a sandbox again", "sandbox", row.ID, "error", err)
			}
			if row.State == ringfence.StatePausing {
				b.op <- struct{}{}
				e.wg.Go(func() {
					defer func() { <-b.op }()
					if err := b.goOn(inst, row.ExpiresAt); err != nil {
						e.Log.Error("cannot let a sandbox go on", "sandbox", b.id, "error", err)
					}
				})
				continue
			}
			b.arm()
			b.follow(inst)
			continue
		}
		ended++
		if err := b.record(to, reason, detail); err != nil {
			return err
		}
		e.wg.Go(b.release)
	}
	for _, inst := range there {
		ended++
		b := &box{e: e, id: inst.ID(), ctx: e.ctx}
		e.Log.Warn("killing a sandbox that no record knows", "sandbox", inst.ID())
		e.wg.Go(func() { b.destroy(inst) })
	}
	if found+ended > 0 {
		e.Log.Info("found the sandboxes of the last run", "running", found, "ended", ended, "took", time.Since(began).Round(time.Millisecond))
	}
	if lastBoot == bootID {
		return nil
	}
	return e.Store.SetMeta(ctx, metaBootID, bootID)
}

// recoverPaused brings a sandbox that has a snapshot to rest in it. false: the snapshot
// is gone, and so is the sandbox.
func (b *box) recoverPaused(inst driver.Instance) (bool, error) {
	row := b.sandbox()
	b.e.unloaded(b)
	if inst != nil {
		// Its id is free again once this has ended.
		b.inst = inst
		b.op <- struct{}{}
		b.e.wg.Go(func() {
			defer func() { <-b.op }()
			b.unload(inst)
		})
	}
	if b.e.Snapshots == nil || !b.e.Snapshots.Has(row.Object) {
		err := b.record(ringfence.StateFailed, ringfence.ReasonCrashed, "its snapshot is gone from the disk")
		b.e.wg.Go(b.release)
		return false, err
	}
	if row.State == ringfence.StateResuming {
		if err := b.step(ringfence.Move{To: ringfence.StatePaused}); err != nil {
			return false, err
		}
	}
	b.arm()
	return true, nil
}
