package api

import (
	"context"
	"io"
	"sync"

	"ringfence.dev/ringfence"
)

// input holds what a client has sent for a process's stdin and the process has not
// taken yet, at most sessionWindow bytes. One goroutine reads.
type input struct {
	ctx   context.Context
	grant func(position uint64) // tells the client what it may have sent

	mu       sync.Mutex
	pieces   [][]byte      // nil: the end of the input; guarded by mu
	wake     chan struct{} // holds a token when there may be something to read
	received uint64        // guarded by mu
	taken    uint64        // guarded by mu
	granted  uint64        // guarded by mu
	dropped  bool          // nobody reads any more; guarded by mu
}

func newInput(ctx context.Context, grant func(uint64)) *input {
	return &input{ctx: ctx, grant: grant, wake: make(chan struct{}, 1), granted: sessionWindow}
}

// add takes a piece, which is the input's from then on.
func (i *input) add(data []byte) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.received += uint64(len(data))
	switch {
	case i.dropped || len(data) == 0:
		return nil
	case i.received > i.granted:
		return ringfence.Errorf(ringfence.CodeTooLarge, "%d bytes of stdin were sent where there was room for %d", i.received, i.granted).
			WithHint("wait for stdin_window, which says how many bytes may have been sent")
	case len(i.pieces) >= 4096:
		// Small pieces cost more memory than what is in them.
		last := len(i.pieces) - 1
		if i.pieces[last] == nil {
			return ringfence.Errorf(ringfence.CodeResourceExhausted, "the process's input was closed too often")
		}
		i.pieces[last] = append(i.pieces[last], data...)
	default:
		i.pieces = append(i.pieces, data)
	}
	i.poke()
	return nil
}

// close ends the input; what comes after it begins another.
func (i *input) close() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if n := len(i.pieces); !i.dropped && (n == 0 || i.pieces[n-1] != nil) {
		i.pieces = append(i.pieces, nil)
		i.poke()
	}
}

// drop throws away what is there and what comes.
func (i *input) drop() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.dropped, i.pieces = true, nil
}

func (i *input) poke() {
	select {
	case i.wake <- struct{}{}:
	default:
	}
}

// wait waits until there is something to read. false: the session is over.
func (i *input) wait() bool {
	for {
		i.mu.Lock()
		n := len(i.pieces)
		i.mu.Unlock()
		if n > 0 {
			return true
		}
		select {
		case <-i.wake:
		case <-i.ctx.Done():
			return false
		}
	}
}

// Read implements io.Reader. The end of the session is an error, and not the end of
// the input.
func (i *input) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if !i.wait() {
		return 0, context.Cause(i.ctx)
	}
	i.mu.Lock()
	piece := i.pieces[0]
	if piece == nil {
		i.pieces = i.pieces[1:]
		i.mu.Unlock()
		return 0, io.EOF
	}
	n := copy(p, piece)
	if i.pieces[0] = piece[n:]; n == len(piece) {
		i.pieces = i.pieces[1:]
	}
	i.taken += uint64(n)
	grant := i.taken + sessionWindow
	due := grant-i.granted >= sessionWindow/4
	if due {
		i.granted = grant
	}
	i.mu.Unlock()
	if due {
		i.grant(grant)
	}
	return n, nil
}
