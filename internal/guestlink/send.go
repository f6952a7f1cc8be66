package guestlink

import (
	"context"
	"io"

	"ringfence.dev/ringfence/internal/guestproto"
)

// room waits until the guest takes more data and returns how much, at most want.
// The caller holds sendMu.
func (ch *channel) room(ctx context.Context, want int) (int, error) {
	for {
		ch.mu.Lock()
		free, finished, err := ch.sendLimit-ch.sent, ch.finished, ch.err
		ch.mu.Unlock()
		switch {
		case finished:
			return 0, errCallOver
		case err != nil:
			return 0, err
		case free > 0:
			return int(min(uint64(want), free)), nil
		}
		select {
		case <-ch.sendWake:
		case <-ch.conn.done:
			return 0, ch.conn.Err()
		case <-ctx.Done():
			return 0, contextError(ctx, "the guest takes no more data")
		}
	}
}

// sendData sends a piece of data and returns its length.
func (ch *channel) sendData(ctx context.Context, data []byte) (int, error) {
	ch.sendMu.Lock()
	defer ch.sendMu.Unlock()
	n, err := ch.room(ctx, min(len(data), guestproto.MaxPayload))
	if err != nil {
		return 0, err
	}
	h := guestproto.Header{Type: guestproto.TypeData, Channel: ch.id, Position: ch.sent}
	if err := ch.conn.send(ctx, h, data[:n]); err != nil {
		return 0, err
	}
	ch.sent += uint64(n)
	return n, nil
}

// sendFrom sends one frame read from r, straight into the frame's memory. It returns
// io.EOF when r has no more; a readError wraps any other error of r.
func (ch *channel) sendFrom(ctx context.Context, r io.Reader) error {
	ch.sendMu.Lock()
	defer ch.sendMu.Unlock()
	n, err := ch.room(ctx, guestproto.MaxPayload)
	if err != nil {
		return err
	}
	buf := newBuffer(guestproto.HeaderSize + n)
	n, rerr := fill(r, buf.bytes[guestproto.HeaderSize:guestproto.HeaderSize+n])
	if n > 0 {
		frame := buf.bytes[:guestproto.HeaderSize+n]
		guestproto.PutHeader(frame, guestproto.Header{Type: guestproto.TypeData, Channel: ch.id, Position: ch.sent},
			frame[guestproto.HeaderSize:])
		if err := ch.conn.enqueue(ctx, outFrame{bytes: frame, buf: buf}); err != nil {
			return err
		}
		ch.sent += uint64(n)
	} else {
		buf.release()
	}
	if rerr == nil || rerr == io.EOF { //nolint:errorlint // an error that wraps it is a failure
		return rerr
	}
	return readError{rerr}
}

// sendSome is sendFrom, but sends what one read gives: for data that somebody types. The
// guest's room is asked for when there is something to send.
func (ch *channel) sendSome(ctx context.Context, r io.Reader) error {
	buf := newBuffer(guestproto.HeaderSize + guestproto.MaxPayload)
	n, rerr := r.Read(buf.bytes[guestproto.HeaderSize : guestproto.HeaderSize+guestproto.MaxPayload])
	data := buf.bytes[guestproto.HeaderSize : guestproto.HeaderSize+n]
	if n > 0 {
		ch.sendMu.Lock()
		room, err := ch.room(ctx, n)
		if err == nil && room == n {
			guestproto.PutHeader(buf.bytes, guestproto.Header{Type: guestproto.TypeData, Channel: ch.id, Position: ch.sent}, data)
			if err = ch.conn.enqueue(ctx, outFrame{bytes: buf.bytes[:guestproto.HeaderSize+n], buf: buf}); err == nil {
				ch.sent += uint64(n)
			}
			ch.sendMu.Unlock()
			if err != nil {
				return err
			}
			return readResult(rerr)
		}
		ch.sendMu.Unlock()
		for err == nil && len(data) > 0 { // the room is for a part of it
			var sent int
			sent, err = ch.sendData(ctx, data)
			data = data[sent:]
		}
		buf.release()
		if err != nil {
			return err
		}
		return readResult(rerr)
	}
	buf.release()
	return readResult(rerr)
}

// readResult tells the end of the data and failures of the reader apart.
func readResult(err error) error {
	if err == nil || err == io.EOF { //nolint:errorlint // an error that wraps it is a failure
		return err
	}
	return readError{err}
}

// fill reads until p is full. It is not io.ReadFull, which cannot tell the end of the
// data from a reader that fails with io.ErrUnexpectedEOF, as an HTTP body does whose
// sender went away: half of a file would take the place of the whole.
func fill(r io.Reader, p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var m int
		m, err = r.Read(p[n:])
		n += m
	}
	if n == len(p) {
		return n, nil // what else there is to say, the next read says again
	}
	return n, err
}

// readError is an error of the caller's reader.
type readError struct{ error }

func (e readError) Unwrap() error { return e.error }

// sendEnd says that no more data will come.
func (ch *channel) sendEnd(ctx context.Context) error {
	ch.sendMu.Lock()
	defer ch.sendMu.Unlock()
	ch.mu.Lock()
	finished, err := ch.finished, ch.err
	ch.mu.Unlock()
	if finished || err != nil {
		return err
	}
	return ch.conn.send(ctx, guestproto.Header{Type: guestproto.TypeEnd, Channel: ch.id, Position: ch.sent}, nil)
}

// sendCopy sends a piece of data in recycled memory, and returns its length.
func (ch *channel) sendCopy(ctx context.Context, data []byte) (int, error) {
	ch.sendMu.Lock()
	defer ch.sendMu.Unlock()
	n, err := ch.room(ctx, min(len(data), guestproto.MaxPayload))
	if err != nil {
		return 0, err
	}
	ch.conn.mu.Lock()
	frozen := ch.conn.frozen
	ch.conn.mu.Unlock()
	if frozen {
		return 0, errFrozen()
	}
	buf := newBuffer(guestproto.HeaderSize + n)
	frame := buf.bytes[:guestproto.HeaderSize+n]
	payload := frame[guestproto.HeaderSize:]
	copy(payload, data)
	guestproto.PutHeader(frame, guestproto.Header{Type: guestproto.TypeData, Channel: ch.id, Position: ch.sent}, payload)
	if err := ch.conn.enqueue(ctx, outFrame{bytes: frame, buf: buf}); err != nil {
		return 0, err
	}
	ch.sent += uint64(n)
	return n, nil
}
