package engine

import (
	"context"
	"math"
	"sync"
	"time"

	"ringfence.dev/ringfence"
)

// Quota is what one project may have; 0: no limit. What it has is the sum over its
// sandboxes that have not ended: paused ones count among Sandboxes and DiskMiB alone.
type Quota struct {
	Sandboxes int
	VCPU      int
	MemoryMiB int64
	DiskMiB   int64
	Snapshots int
	// Creates is how many creates a second, and as many in one burst; a fork counts as one.
	Creates int
}

// quotas is what counts against them.
type quotas struct {
	tickets   map[*ticket]bool // guarded by the engine's mu
	mu        sync.Mutex
	creates   map[string]*bucket // by project; guarded by mu
	snapshots sync.Mutex         // held from the count of a project's snapshots until one more is on record
}

// ticket holds room for a sandbox that is not among those that live yet.
type ticket struct {
	project string
	size    ringfence.Size
}

func (q *quotas) init() {
	q.tickets, q.creates = map[*ticket]bool{}, map[string]*bucket{}
}

// exceeded is the refusal of what would pass a quota. alone: what was asked for would
// not fit even if the project had nothing else.
func exceeded(key string, limit int64, alone bool, format string, args ...any) *ringfence.Error {
	code, hint := ringfence.CodeResourceExhausted, "end what is not needed"
	if alone {
		code, hint = ringfence.CodePermissionDenied, "ask for less"
	}
	return ringfence.Errorf(code, format, args...).WithField(key).
		WithHint("%s; the operator sets %s, which is %d", hint, key, limit)
}

// admitCreate counts one create of a project against its rate.
func (e *Engine) admitCreate(project string) error {
	rate := float64(e.Quota.Creates)
	if rate <= 0 {
		return nil
	}
	e.quotas.mu.Lock()
	b := e.quotas.creates[project]
	if b == nil {
		b = &bucket{}
		e.quotas.creates[project] = b
	}
	e.quotas.mu.Unlock()
	wait, ok := b.take(time.Now(), 1, rate, rate)
	if ok {
		return nil
	}
	err := exceeded("quota_creates_per_second", int64(e.Quota.Creates), false, "the project creates sandboxes faster than it may").
		WithHint("try again after the seconds of Retry-After; the operator sets quota_creates_per_second, which is %d", e.Quota.Creates)
	err.RetryAfterSeconds = int(math.Ceil(wait.Seconds()))
	return err
}

// quota holds room for a sandbox among what its project may have, until the sandbox is
// among those that live or the ticket is given back.
func (e *Engine) quota(project string, size ringfence.Size) (*ticket, error) {
	t := &ticket{project: project, size: size}
	if e.Quota == (Quota{}) {
		return t, nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.fitsLocked(project, size, true); err != nil {
		return nil, err
	}
	e.quotas.tickets[t] = true
	return t, nil
}

func (e *Engine) giveBack(t *ticket) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.quotas.tickets, t)
}

// fitsLocked says whether a project may have so much more. e.mu is held.
func (e *Engine) fitsLocked(project string, more ringfence.Size, anew bool) error {
	q := e.Quota
	var have ringfence.Size
	n := 0
	for t := range e.quotas.tickets {
		if t.project == project {
			n++
			have.VCPU, have.MemoryMiB, have.DiskMiB = have.VCPU+t.size.VCPU, have.MemoryMiB+t.size.MemoryMiB, have.DiskMiB+t.size.DiskMiB
		}
	}
	for _, b := range e.live {
		if b.project != project || b.ctx.Err() != nil {
			continue
		}
		n++
		have.DiskMiB += b.size.DiskMiB
		if b.loaded {
			have.VCPU, have.MemoryMiB = have.VCPU+b.size.VCPU, have.MemoryMiB+b.size.MemoryMiB
		}
	}
	for _, l := range []struct {
		key, what         string
		have, more, limit int64
		anew              bool // only a new sandbox adds to it
	}{
		{"quota_sandboxes", "sandboxes", int64(n), 1, int64(q.Sandboxes), true},
		{"quota_vcpu", "cores", int64(have.VCPU), int64(more.VCPU), int64(q.VCPU), false},
		{"quota_memory_mib", "MiB of memory", have.MemoryMiB, more.MemoryMiB, q.MemoryMiB, false},
		{"quota_disk_mib", "MiB of disk", have.DiskMiB, more.DiskMiB, q.DiskMiB, true},
	} {
		if l.limit <= 0 || l.anew && !anew || l.have+l.more <= l.limit {
			continue
		}
		return exceeded(l.key, l.limit, l.more > l.limit, "the project may have %d %s; it has %d and this needs %d more", l.limit, l.what, l.have, l.more)
	}
	return nil
}

// load counts a paused sandbox as one that runs again, if its project may have so much.
func (e *Engine) load(b *box) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !b.loaded {
		if err := e.fitsLocked(b.project, b.size, false); err != nil {
			return err
		}
	}
	b.loaded = true
	return nil
}

// unloaded counts a sandbox as one that is off the host.
func (e *Engine) unloaded(b *box) {
	e.mu.Lock()
	defer e.mu.Unlock()
	b.loaded = false
}

// roomForSnapshot refuses one more snapshot than the project may have.
func (e *Engine) roomForSnapshot(ctx context.Context, project string) error {
	limit := e.Quota.Snapshots
	if limit <= 0 {
		return nil
	}
	n, err := e.Store.CountSnapshots(ctx, project)
	if err != nil || n < limit {
		return err
	}
	return exceeded("quota_snapshots", int64(limit), false, "the project may have %d snapshots, and has %d", limit, n).
		WithHint("delete snapshots that are not needed; the operator sets quota_snapshots, which is %d", limit)
}

// keepSnapshot puts a snapshot on record unless the project has as many as it may.
func (e *Engine) keepSnapshot(ctx context.Context, sn *ringfence.Snapshot) error {
	if !sn.Hidden {
		e.quotas.snapshots.Lock()
		defer e.quotas.snapshots.Unlock()
		if err := e.roomForSnapshot(ctx, sn.Project); err != nil {
			return err
		}
	}
	return e.Store.CreateSnapshot(ctx, sn)
}
