package guestlink

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/guestproto"
)

const (
	// attachTimeout bounds Attach when its context has no earlier end.
	attachTimeout = 10 * time.Second
	// maxDiscard bounds what the host throws away before HelloAck: two full pipes, a
	// preamble and the frame that was being written.
	maxDiscard = 8 << 20
	// outQueue is how many frames may wait for the writer.
	outQueue = 4
)

// Conn is one session with a guest agent. All methods may be called concurrently.
type Conn struct {
	rwc  io.ReadWriteCloser
	ack  guestproto.HelloAck
	out  chan outFrame
	done chan struct{}
	wg   sync.WaitGroup

	mu       sync.Mutex
	channels map[uint32]*channel // guarded by mu
	last     uint32              // last channel number used; guarded by mu
	frozen   bool                // nothing may be sent any more; guarded by mu
	err      error               // why the session ended; guarded by mu
	pings    []chan struct{}     // guarded by mu
}

// outFrame is an encoded frame on its way to the writer.
type outFrame struct {
	bytes []byte
	buf   *buffer // to be released after the write; nil for a small frame
}

// Attach opens a session over rwc, which it owns from then on, also when it fails.
// It gives up after 10 seconds, or earlier when ctx ends. A session that was open
// before is over; processes in the guest go on.
func Attach(ctx context.Context, rwc io.ReadWriteCloser) (*Conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, attachTimeout,
		ringfence.Errorf(ringfence.CodeUnavailable, "the guest agent did not answer within %v", attachTimeout))
	defer cancel()
	c := &Conn{
		rwc:      rwc,
		out:      make(chan outFrame, outQueue),
		done:     make(chan struct{}),
		channels: make(map[uint32]*channel),
	}
	var nonce [16]byte
	rand.Read(nonce[:]) // never fails since Go 1.24
	hello := guestproto.Hello{Nonce: hex.EncodeToString(nonce[:]), Versions: []int{guestproto.Version}}

	// The reader runs before anything is written: an agent that hangs in a write to a
	// full pipe has to be let go before it can be expected to answer.
	acked := make(chan guestproto.HelloAck, 1)
	c.wg.Add(2)
	go c.readLoop(hello.Nonce, acked)
	go c.writeLoop()

	opening := guestproto.AppendFrame(guestproto.Preamble(), guestproto.Header{Type: guestproto.TypeHello}, mustJSON(hello))
	if err := c.enqueue(ctx, outFrame{bytes: opening}); err != nil {
		c.CloseWithError(err)
		return nil, err
	}
	select {
	case c.ack = <-acked:
	case <-c.done:
		return nil, c.Err()
	case <-ctx.Done():
		err := contextError(ctx, "cannot attach to the guest agent")
		c.CloseWithError(err)
		return nil, err
	}
	if c.ack.Version != guestproto.Version {
		err := ringfence.Errorf(ringfence.CodeUnavailable, "the guest agent speaks protocol versions %v, this server speaks %d",
			c.ack.Versions, guestproto.Version).WithHint("build the template again with this version of Ringfence")
		c.CloseWithError(err)
		return nil, err
	}
	return c, nil
}

// BootID is random and made when the agent started; it survives a restore.
func (c *Conn) BootID() string { return c.ack.BootID }

// Capabilities lists what the agent can do beyond the first version.
func (c *Conn) Capabilities() []string { return c.ack.Capabilities }

// Done is closed when the session has ended, for whatever reason.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err says why the session ended; nil while it lives.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close ends the session. Processes in the guest go on.
func (c *Conn) Close() error {
	c.CloseWithError(ringfence.Errorf(ringfence.CodeUnavailable, "the link to the sandbox was closed"))
	return nil
}

// CloseWithError ends the session; every call that waits on it ends with err. An
// engine that sees a sandbox end calls it with the reason: FIFOs do not tell. The
// first error stays.
func (c *Conn) CloseWithError(err error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err = err
	close(c.done)
	channels := c.channels
	c.channels = nil
	c.mu.Unlock()
	c.rwc.Close()
	for _, ch := range channels {
		ch.fail(err)
	}
}

// Wait waits until both goroutines of a closed session are gone.
func (c *Conn) Wait() { c.wg.Wait() }

func (c *Conn) writeLoop() {
	defer c.wg.Done()
	for {
		select {
		case <-c.done:
			return
		case f := <-c.out:
			_, err := c.rwc.Write(f.bytes)
			f.buf.release()
			if err != nil {
				c.CloseWithError(linkError("cannot write to the guest agent", err))
				return
			}
		}
	}
}

// enqueue hands a frame to the writer. The frame belongs to it from then on.
func (c *Conn) enqueue(ctx context.Context, f outFrame) error {
	select {
	case <-c.done:
		f.buf.release()
		return c.Err()
	default:
	}
	select {
	case c.out <- f:
		return nil
	case <-c.done:
		f.buf.release()
		return c.Err()
	case <-ctx.Done():
		f.buf.release()
		return contextError(ctx, "cannot reach the guest agent")
	}
}

// send sends a frame whose payload is small and is copied.
func (c *Conn) send(ctx context.Context, h guestproto.Header, payload []byte) error {
	c.mu.Lock()
	frozen := c.frozen
	c.mu.Unlock()
	if frozen {
		return errFrozen()
	}
	return c.enqueue(ctx, outFrame{bytes: guestproto.AppendFrame(make([]byte, 0, guestproto.HeaderSize+len(payload)), h, payload)})
}

// sendLater sends a frame that nobody waits for.
func (c *Conn) sendLater(h guestproto.Header) {
	c.wg.Add(1)
	go func() {
		defer c.wg.Done()
		_ = c.send(context.Background(), h, nil) // a session that ended needs it no more
	}()
}

func (c *Conn) readLoop(nonce string, acked chan<- guestproto.HelloAck) {
	defer c.wg.Done()
	r := guestproto.NewReader(c.rwc)
	if err := awaitAck(r, nonce, acked); err != nil {
		c.CloseWithError(err)
		return
	}
	r.Strict = true
	var in inbox
	for {
		h, payload, err := r.Next(in.alloc)
		if err == nil {
			err = c.dispatch(h, payload, in.take())
		}
		if err != nil {
			c.CloseWithError(linkError("the link to the guest agent broke", err))
			return
		}
	}
}

// awaitAck throws away all that comes before the HelloAck with our nonce.
func awaitAck(r *guestproto.Reader, nonce string, acked chan<- guestproto.HelloAck) error {
	scratch := make([]byte, guestproto.MaxPayload)
	r.MaxSkipped = maxDiscard
	var discarded int64
	for discarded <= maxDiscard {
		h, payload, err := r.Next(func(n int) []byte { return scratch[:n] })
		if err != nil {
			return linkError("cannot read from the guest agent", err)
		}
		discarded += guestproto.HeaderSize + int64(len(payload))
		if h.Type != guestproto.TypeHelloAck {
			continue
		}
		var ack guestproto.HelloAck
		if json.Unmarshal(payload, &ack) == nil && ack.Nonce == nonce {
			acked <- ack
			return nil
		}
	}
	return linkError("cannot attach to the guest agent", fmt.Errorf("no answer in %d bytes", maxDiscard))
}

// dispatch hands a frame to its channel. It never blocks. buf holds the payload, or
// is nil when the payload has to be copied.
func (c *Conn) dispatch(h guestproto.Header, payload []byte, buf *buffer) error {
	switch h.Type {
	case guestproto.TypePong:
		buf.release()
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.pings) == 0 {
			return errors.New("a pong that nobody asked for")
		}
		close(c.pings[0])
		c.pings = c.pings[1:]
		return nil
	case guestproto.TypeData, guestproto.TypeStdout, guestproto.TypeStderr,
		guestproto.TypeWindow, guestproto.TypeEvent, guestproto.TypeResult:
	default:
		buf.release()
		return fmt.Errorf("a frame of type %d from the guest", h.Type)
	}
	c.mu.Lock()
	ch := c.channels[h.Channel]
	known := h.Channel != 0 && h.Channel <= c.last
	if ch != nil && h.Type == guestproto.TypeResult {
		delete(c.channels, h.Channel)
	}
	c.mu.Unlock()
	if ch == nil {
		buf.release()
		if !known {
			return fmt.Errorf("a frame for channel %d, which was never opened", h.Channel)
		}
		return nil // late, of a call that we gave up
	}
	return ch.deliver(h, payload, buf)
}

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // every message is plain data
	}
	return b
}
