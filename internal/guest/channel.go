package guest

import (
	"encoding/json"
	"sync"

	"ringfence.dev/ringfence/internal/guestproto"
)

// channel is the agent's end of one call.
type channel struct {
	link    *link
	session uint64
	id      uint32
	wake    chan struct{} // holds a token when the sender may have more to do
	arrived chan struct{} // holds a token when the receiver may have more to do
	done    chan struct{} // closed when nobody waits any more

	mu        sync.Mutex
	queue     [][]byte // data from the host; guarded by mu
	ended     bool     // no more data will come; guarded by mu
	cancelled bool     // nobody waits any more; guarded by mu
	received  uint64   // guarded by mu
	limit     uint64   // the host may send up to here; guarded by mu
	sendLimit uint64   // we may send up to here; guarded by mu

	sent     uint64 // used by the sending goroutine alone
	consumed uint64 // since the last Window; used by the receiving goroutine alone
}

func newChannel(l *link, session uint64, id uint32) *channel {
	return &channel{
		link: l, session: session, id: id,
		wake:      make(chan struct{}, 1),
		arrived:   make(chan struct{}, 1),
		done:      make(chan struct{}),
		limit:     guestproto.InitialWindow,
		sendLimit: guestproto.InitialWindow,
	}
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// data takes a payload from the host, and reports whether it kept it.
func (ch *channel) data(position uint64, payload []byte) bool {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.cancelled || ch.ended || len(payload) == 0 ||
		position != ch.received || position+uint64(len(payload)) > ch.limit {
		return false
	}
	ch.received += uint64(len(payload))
	ch.queue = append(ch.queue, payload)
	poke(ch.arrived)
	return true
}

func (ch *channel) window(position uint64) {
	ch.mu.Lock()
	ch.sendLimit = max(ch.sendLimit, position)
	ch.mu.Unlock()
	poke(ch.wake)
}

func (ch *channel) end() {
	ch.mu.Lock()
	ch.ended = true
	ch.mu.Unlock()
	poke(ch.arrived)
}

func (ch *channel) cancel() {
	ch.mu.Lock()
	if !ch.cancelled {
		ch.cancelled = true
		close(ch.done)
	}
	ch.mu.Unlock()
	poke(ch.wake)
	poke(ch.arrived)
}

func (ch *channel) gone() bool {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	return ch.cancelled
}

// finish takes the channel off the link.
func (ch *channel) finish() {
	ch.cancel()
	ch.link.mu.Lock()
	if ch.link.channels[ch.id] == ch {
		delete(ch.link.channels, ch.id)
	}
	ch.link.mu.Unlock()
	ch.mu.Lock()
	queue := ch.queue
	ch.queue = nil
	ch.mu.Unlock()
	for _, b := range queue {
		ch.link.free.put(b)
	}
}

// tryReceive returns data if there is some. end says that none will come any more.
func (ch *channel) tryReceive() (data []byte, end bool, err error) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	switch {
	case ch.cancelled:
		return nil, false, errGone
	case len(ch.queue) > 0:
		data = ch.queue[0]
		ch.queue[0] = nil
		ch.queue = ch.queue[1:]
		return data, false, nil
	}
	return nil, ch.ended, nil
}

// receive waits for data; nil at its end. The caller gives it back with release.
func (ch *channel) receive() ([]byte, error) {
	for {
		data, end, err := ch.tryReceive()
		if err != nil || data != nil || end {
			return data, err
		}
		<-ch.arrived
	}
}

// release gives data back and tells the host about the room.
func (ch *channel) release(data []byte) error {
	n := len(data)
	ch.link.free.put(data)
	return ch.consume(n)
}

// consume tells the host about the room that n bytes of data leave.
func (ch *channel) consume(n int) error {
	ch.consumed += uint64(n)
	if ch.consumed < guestproto.InitialWindow/4 {
		return nil
	}
	ch.mu.Lock()
	ch.limit += ch.consumed
	limit := ch.limit
	ch.mu.Unlock()
	ch.consumed = 0
	return ch.link.send(ch.session, guestproto.Header{Type: guestproto.TypeWindow, Channel: ch.id, Position: limit}, nil)
}

// room returns how much may be sent now, at most want.
func (ch *channel) room(want int) (int, error) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.cancelled {
		return 0, errGone
	}
	return int(min(uint64(want), ch.sendLimit-ch.sent)), nil
}

// put sends data that fits the window.
func (ch *channel) put(typ guestproto.Type, position uint64, data []byte) error {
	err := ch.link.send(ch.session, guestproto.Header{Type: typ, Channel: ch.id, Position: position}, data)
	ch.sent += uint64(len(data))
	return err
}

// send sends file bytes, and waits for room.
func (ch *channel) send(data []byte) error {
	for len(data) > 0 {
		n, err := ch.room(min(len(data), guestproto.MaxPayload))
		if err != nil {
			return err
		}
		if n == 0 {
			<-ch.wake
			continue
		}
		if err := ch.put(guestproto.TypeData, ch.sent, data[:n]); err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

func (ch *channel) event(value any) error {
	body, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return ch.link.send(ch.session, guestproto.Header{Type: guestproto.TypeEvent, Channel: ch.id}, body)
}

// result ends the call. A host that is gone does not hear it.
func (ch *channel) result(value any, err error) {
	var r guestproto.Result
	if err != nil {
		r.Error = wireError(err)
	} else if r.Value, err = json.Marshal(value); err != nil {
		r.Error = wireError(err)
	}
	body, err := json.Marshal(r)
	if err != nil || len(body) > guestproto.MaxJSON {
		body = []byte(`{"error":{"code":"internal","message":"the result does not fit a frame"}}`)
	}
	_ = ch.link.send(ch.session, guestproto.Header{Type: guestproto.TypeResult, Channel: ch.id}, body)
}
