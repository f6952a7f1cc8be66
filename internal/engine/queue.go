package engine

import (
	"context"
	"sync/atomic"
	"time"

	"ringfence.dev/ringfence"
)

// maxQueue bounds how many creates and resumes wait for memory; one more is refused at once.
const maxQueue = 100

// queuePoll is how often the first of the queue looks whether there is room.
const queuePoll = 50 * time.Millisecond

// queue is the creates and resumes that wait for memory of the host, first come, first served.
type queue struct {
	waiting atomic.Int32
	turn    chan struct{} // holds the token of the first
}

func (q *queue) init() { q.turn = make(chan struct{}, 1) }

// awaitRoom is reserve for a caller who waits for QueueFor at most. Sandboxes of the pool
// make room meanwhile.
func (e *Engine) awaitRoom(ctx context.Context, size ringfence.Size) (done func(), err error) {
	full := func(err error) bool { return ringfence.CodeOf(err) == ringfence.CodeResourceExhausted }
	q := &e.queue
	if q.waiting.Load() == 0 {
		if done, err = e.reserve(size); !full(err) || e.QueueFor <= 0 {
			return done, err
		}
	}
	if q.waiting.Add(1) > maxQueue {
		q.waiting.Add(-1)
		return e.reserve(size)
	}
	defer q.waiting.Add(-1)
	patience := time.NewTimer(e.QueueFor)
	defer patience.Stop()
	poll := time.NewTicker(queuePoll)
	defer poll.Stop()
	turn, mine := q.turn, false
	for {
		select {
		case turn <- struct{}{}:
			turn, mine = nil, true
			defer func() { <-q.turn }()
		case <-poll.C:
			if !mine {
				continue
			}
		case <-patience.C:
			return e.reserve(size)
		case <-ctx.Done():
			return nil, ringfence.Errorf(ringfence.CodeOf(ctx.Err()), "the host has no room, and the caller did not wait for it").WithCause(context.Cause(ctx))
		case <-e.ctx.Done():
			return nil, errClosing
		}
		if done, err = e.reserve(size); !full(err) {
			return done, err
		}
		e.evictOne()
	}
}
