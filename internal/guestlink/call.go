package guestlink

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/guestproto"
)

// Identity tells the agent who its sandbox is; after the first attach and after
// every restore.
func (c *Conn) Identity(ctx context.Context, id guestproto.Identity) error {
	return c.call(ctx, guestproto.MethodIdentity, id, nil)
}

// Freeze makes the agent stop sending, so that a checkpoint holds no half frame, and
// ends the session: attach again after the checkpoint or the restore.
func (c *Conn) Freeze(ctx context.Context) error {
	if err := c.call(ctx, guestproto.MethodFreeze, struct{}{}, nil); err != nil {
		return err
	}
	c.CloseWithError(errFrozen())
	c.Wait()
	return nil
}

// Stats returns what the agent knows about its sandbox. It is the guest's word.
func (c *Conn) Stats(ctx context.Context) (guestproto.Stats, error) {
	var s guestproto.Stats
	err := c.call(ctx, guestproto.MethodStats, struct{}{}, &s)
	return s, err
}

// Ping returns the time of one round trip to the agent.
func (c *Conn) Ping(ctx context.Context) (time.Duration, error) {
	pong := make(chan struct{})
	c.mu.Lock()
	if c.err != nil || c.frozen {
		c.mu.Unlock()
		if err := c.Err(); err != nil {
			return 0, err
		}
		return 0, errFrozen()
	}
	// Pongs are alike: which of two pings at once gets which does not matter.
	frame := outFrame{bytes: guestproto.AppendFrame(nil, guestproto.Header{Type: guestproto.TypePing}, nil)}
	c.pings = append(c.pings, pong)
	c.mu.Unlock()
	start := time.Now()
	if err := c.enqueue(ctx, frame); err != nil {
		return 0, err
	}
	select {
	case <-pong:
		return time.Since(start), nil
	case <-c.done:
		return 0, c.Err()
	case <-ctx.Done():
		return 0, contextError(ctx, "no answer from the guest agent")
	}
}

// Kill signals a process, or with Tree all that it started. With Tree and SIGKILL
// it returns when nothing of the command is left.
func (c *Conn) Kill(ctx context.Context, k guestproto.ProcessKill) error {
	return c.call(ctx, guestproto.MethodProcessKill, k, nil)
}

// Processes lists the processes that the agent knows: those that run and those whose
// output it still keeps.
func (c *Conn) Processes(ctx context.Context) ([]guestproto.ProcessInfo, error) {
	var list []guestproto.ProcessInfo
	err := c.call(ctx, guestproto.MethodProcessList, struct{}{}, &list)
	return list, err
}

// call makes a call that has nothing but a result. value may be nil.
func (c *Conn) call(ctx context.Context, method string, params, value any) error {
	ch, err := c.open(ctx, method, params)
	if err != nil {
		return err
	}
	for {
		it, err := ch.recv(ctx)
		if err != nil {
			ch.cancel(err)
			return err
		}
		if it.typ == guestproto.TypeResult {
			return it.result(value)
		}
		it.buf.release() // nothing else is expected; the window bounds it
	}
}

// result decodes a Result into value, which may be nil, and releases the item.
func (it item) result(value any) error {
	defer it.buf.release()
	var r guestproto.Result
	if err := json.Unmarshal(it.data, &r); err != nil {
		return badAnswer(err)
	}
	if r.Error != nil {
		return guestError(r.Error)
	}
	if value == nil {
		return nil
	}
	if err := json.Unmarshal(r.Value, value); err != nil {
		return badAnswer(err)
	}
	return nil
}

// event decodes an Event and releases the item.
func (it item) event(value any) error {
	defer it.buf.release()
	if err := json.Unmarshal(it.data, value); err != nil {
		return badAnswer(err)
	}
	return nil
}

func badAnswer(err error) error {
	return &ringfence.Error{Code: ringfence.CodeInternal, Message: "the guest agent sent an answer that cannot be read",
		Err: fmt.Errorf("guest: %w", err)}
}
