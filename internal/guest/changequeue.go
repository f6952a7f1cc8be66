package guest

import (
	"encoding/json"
	"sync"

	"ringfence.dev/ringfence/internal/guestproto"
)

// maxQueued is how much of the changes may wait for a slow host, in bytes. The kernel's
// own queue would grow in the sandbox's kernel instead, and there without a bound.
const maxQueued = 1 << 20

// changeQueue holds changes, as lines, between the kernel and the host.
type changeQueue struct {
	filled chan struct{} // holds a token while there may be something to take

	mu    sync.Mutex
	lines []byte                // guarded by mu
	last  guestproto.FileChange // in lines; guarded by mu
	full  bool                  // changes are dropped until lines is taken; guarded by mu
	ended bool                  // guarded by mu
}

func newChangeQueue() *changeQueue { return &changeQueue{filled: make(chan struct{}, 1)} }

// put adds a change. One that only repeats the one before is left out: a program that
// writes a file bit by bit would fill the queue.
func (q *changeQueue) put(c guestproto.FileChange) {
	line, err := json.Marshal(encodeChange(c))
	if err != nil {
		return // every change is plain data
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	repeated := len(q.lines) > 0 && c.Type == q.last.Type && c.Path == q.last.Path &&
		(c.Type == guestproto.ChangeModify || c.Type == guestproto.ChangeAttrib || c.Type == guestproto.ChangeOverflow)
	switch {
	case q.full || repeated:
		return
	case len(q.lines)+len(line) > maxQueued:
		q.full = true
		line = []byte(`{"type":"` + guestproto.ChangeOverflow + `","path":""}`)
	}
	q.lines, q.last = append(append(q.lines, line...), '\n'), c
	poke(q.filled)
}

func (q *changeQueue) overflow() { q.put(guestproto.FileChange{Type: guestproto.ChangeOverflow}) }

func (q *changeQueue) end() {
	q.mu.Lock()
	q.ended = true
	q.mu.Unlock()
	poke(q.filled)
}

// take returns all that waits. end: nothing will come any more.
func (q *changeQueue) take() (lines []byte, end bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	lines, q.lines, q.full = q.lines, nil, false
	return lines, q.ended
}
