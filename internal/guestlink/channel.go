package guestlink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"sync"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/guestproto"
)

const (
	// maxEvents bounds the events of one call.
	maxEvents = 16
	// maxLeftover is how much of a window may be consumed before the guest is told.
	maxLeftover = guestproto.InitialWindow / 4
	// chunkSize is the size of the memory that small payloads share.
	chunkSize = 4 << 10
)

// item is one frame that waits for the caller.
type item struct {
	typ      guestproto.Type
	position uint64
	lost     uint64 // bytes that were skipped before it
	data     []byte
	buf      *buffer // holds data; nil when data is garbage-collected memory
}

// channel is the host's end of one call.
type channel struct {
	conn *Conn
	id   uint32
	log  bool // positions are those of a process log

	mu       sync.Mutex
	queue    []item        // guarded by mu
	wake     chan struct{} // holds a token while queue may be non-empty
	chunk    []byte        // free memory for small payloads; guarded by mu
	next     uint64        // position of the next byte of data; guarded by mu
	received uint64        // bytes of data so far; guarded by mu
	limit    uint64        // the guest may send as many in all; guarded by mu
	events   int           // guarded by mu
	finished bool          // the result is in; guarded by mu
	err      error         // why there will be no result; guarded by mu

	sendLimit uint64        // we may send up to here; guarded by mu
	sendWake  chan struct{} // holds a token when sendLimit may have moved

	consumed uint64 // bytes since the last Window frame; used by the receiving goroutine alone

	sendMu sync.Mutex
	sent   uint64 // guarded by sendMu
}

// open starts a call.
func (c *Conn) open(ctx context.Context, method string, params any) (*channel, error) {
	if err := ctx.Err(); err != nil {
		return nil, contextError(ctx, "cannot call the guest agent")
	}
	body, err := json.Marshal(params)
	if err != nil {
		return nil, fmt.Errorf("cannot encode a call: %w", err)
	}
	payload := mustJSON(guestproto.Open{Method: method, Params: body})
	if len(payload) > guestproto.MaxJSON {
		return nil, ringfence.Errorf(ringfence.CodeTooLarge, "the call has %d bytes, at most %d fit", len(payload), guestproto.MaxJSON).
			WithHint("pass long input through stdin or a file")
	}
	ch := &channel{
		conn:      c,
		wake:      make(chan struct{}, 1),
		sendWake:  make(chan struct{}, 1),
		limit:     guestproto.InitialWindow,
		sendLimit: guestproto.InitialWindow,
		log:       method == guestproto.MethodProcessStart || method == guestproto.MethodProcessAttach,
	}
	c.mu.Lock()
	switch {
	case c.err != nil:
		c.mu.Unlock()
		return nil, c.Err()
	case c.frozen:
		c.mu.Unlock()
		return nil, errFrozen()
	case c.last == math.MaxUint32:
		c.mu.Unlock()
		return nil, ringfence.Errorf(ringfence.CodeUnavailable, "the link to the sandbox is worn out")
	}
	c.last++
	ch.id = c.last
	c.channels[ch.id] = ch
	if method == guestproto.MethodFreeze {
		c.frozen = true
	}
	c.mu.Unlock()
	frame := guestproto.AppendFrame(make([]byte, 0, guestproto.HeaderSize+len(payload)),
		guestproto.Header{Type: guestproto.TypeOpen, Channel: ch.id}, payload)
	if err := c.enqueue(ctx, outFrame{bytes: frame}); err != nil {
		ch.forget()
		return nil, err
	}
	return ch, nil
}

// deliver takes a frame from the reader. It must not block.
func (ch *channel) deliver(h guestproto.Header, payload []byte, buf *buffer) error {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	it := item{typ: h.Type, position: h.Position, data: payload, buf: buf}
	if ch.finished {
		buf.release()
		return errors.New("a frame after the result")
	}
	switch h.Type {
	case guestproto.TypeWindow:
		buf.release()
		if h.Position > ch.sendLimit {
			ch.sendLimit = h.Position
			poke(ch.sendWake)
		}
		return nil
	case guestproto.TypeEvent:
		if ch.events++; ch.events > maxEvents {
			buf.release()
			return errors.New("too many events")
		}
	case guestproto.TypeResult:
		ch.finished = true
		poke(ch.sendWake) // who still sends may stop
	default:
		lost, err := ch.accountLocked(h, len(payload))
		if err != nil {
			buf.release()
			return err
		}
		it.lost = lost
	}
	if buf == nil && len(payload) > 0 {
		if cap(ch.chunk)-len(ch.chunk) < len(payload) {
			ch.chunk = make([]byte, 0, chunkSize)
		}
		n := len(ch.chunk)
		ch.chunk = append(ch.chunk, payload...)
		it.data = ch.chunk[n:len(ch.chunk):len(ch.chunk)]
	}
	ch.queue = append(ch.queue, it)
	poke(ch.wake)
	return nil
}

// accountLocked checks position and window of a data frame, and returns how many
// bytes of a log were skipped before it.
func (ch *channel) accountLocked(h guestproto.Header, n int) (lost uint64, err error) {
	isLog := h.Type != guestproto.TypeData
	switch {
	case isLog != ch.log:
		return 0, fmt.Errorf("a data frame of type %d in a call of another kind", h.Type)
	case n == 0:
		return 0, errors.New("an empty data frame")
	case h.Position < ch.next || h.Position > math.MaxInt64 || h.Position > ch.next && !ch.log:
		return 0, fmt.Errorf("data at position %d, expected at %d", h.Position, ch.next)
	}
	if ch.received > 0 || !ch.log {
		lost = h.Position - ch.next
	}
	ch.next = h.Position + uint64(n)
	if ch.received += uint64(n); ch.received > ch.limit {
		return 0, fmt.Errorf("%d bytes of data, the window ends at %d", ch.received, ch.limit)
	}
	return lost, nil
}

// recv returns the next frame, in order. Only one goroutine may call it.
func (ch *channel) recv(ctx context.Context) (item, error) {
	for {
		ch.mu.Lock()
		if len(ch.queue) > 0 {
			it := ch.queue[0]
			ch.queue[0] = item{}
			if ch.queue = ch.queue[1:]; len(ch.queue) == 0 {
				ch.queue = nil
			}
			ch.mu.Unlock()
			return it, nil
		}
		err := ch.err
		ch.mu.Unlock()
		if err != nil {
			return item{}, err
		}
		select {
		case <-ch.wake:
		case <-ctx.Done():
			return item{}, contextError(ctx, "no answer from the guest agent")
		}
	}
}

// release gives a data item back and tells the guest about the room.
func (ch *channel) release(ctx context.Context, it item) error {
	it.buf.release()
	if ch.consumed += uint64(len(it.data)); ch.consumed < maxLeftover {
		return nil
	}
	ch.mu.Lock()
	ch.limit += ch.consumed
	limit, finished := ch.limit, ch.finished
	ch.mu.Unlock()
	ch.consumed = 0
	if finished {
		return nil
	}
	return ch.conn.send(ctx, guestproto.Header{Type: guestproto.TypeWindow, Channel: ch.id, Position: limit}, nil)
}

// fail ends the call without a result.
func (ch *channel) fail(err error) {
	ch.mu.Lock()
	if ch.err == nil {
		ch.err = err
	}
	ch.mu.Unlock()
	poke(ch.wake)
	poke(ch.sendWake)
}

// forget takes the channel off the connection; late frames for it are dropped.
func (ch *channel) forget() {
	ch.conn.mu.Lock()
	delete(ch.conn.channels, ch.id)
	ch.conn.mu.Unlock()
}

// cancel gives the call up.
func (ch *channel) cancel(err error) {
	ch.mu.Lock()
	over := ch.finished || ch.err != nil
	ch.mu.Unlock()
	if over {
		return
	}
	ch.forget()
	ch.fail(err)
	ch.conn.sendLater(guestproto.Header{Type: guestproto.TypeCancel, Channel: ch.id})
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
