package api

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/coder/websocket"
)

const (
	// tcpProtocol is the subprotocol of a forwarded connection. Every binary message is
	// bytes of it; an empty one says that the sender has said its last.
	tcpProtocol = "ringfence.tcp.v1"
	// tcpMessage is how much one message carries at most, in bytes.
	tcpMessage = 128 << 10
)

// forwarded is a TCP connection that a WebSocket carries.
type forwarded struct {
	conn        *websocket.Conn
	guest       net.Conn
	clientEnded chan struct{} // closed when the client has said its last
}

// forward carries a TCP connection to a port of the sandbox over a WebSocket.
func (c *call) forward() error {
	port, err := c.pathPort()
	if err != nil {
		return err
	}
	// Nothing listening is an ordinary answer, before there is a WebSocket.
	guest, err := c.Engine.DialPort(c.r.Context(), c.who.Project, c.r.PathValue("id"), port)
	if err != nil {
		return err
	}
	defer guest.Close() // what there was to say was said
	conn, err := c.upgrade(tcpProtocol)
	if err != nil {
		return err
	}
	defer conn.CloseNow()
	conn.SetReadLimit(tcpMessage)
	// Apart from the request's: a read whose context ends breaks the connection off.
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.r.Context()))
	defer cancel()
	defer context.AfterFunc(ctx, func() { guest.Close() })()
	defer context.AfterFunc(c.r.Context(), func() {
		if code, reason := closeStatus(c.r.Context()); code != websocket.StatusNormalClosure {
			_ = conn.Close(code, reason) // the client may have left
		}
		cancel()
	})()
	f := &forwarded{conn: conn, guest: guest, clientEnded: make(chan struct{})}
	var wg sync.WaitGroup
	wg.Go(func() { f.fromClient(ctx); cancel() })
	wg.Go(func() { f.ping(ctx, c.KeepAlive) })
	err = f.toClient(ctx)
	if err == nil {
		select {
		case <-f.clientEnded:
		case <-ctx.Done():
		}
		_ = conn.Close(websocket.StatusNormalClosure, "") // the client may have left
	} else if ctx.Err() == nil {
		c.logFault(c.w, err)
		_ = conn.Close(websocket.StatusInternalError, "the connection to the program broke")
	}
	cancel()
	_ = conn.CloseNow()
	wg.Wait()
	return nil
}

// toClient carries what the program says. nil: it has said its last.
func (f *forwarded) toClient(ctx context.Context) error {
	buf := make([]byte, tcpMessage)
	for {
		n, err := f.guest.Read(buf)
		if n > 0 {
			if werr := f.conn.Write(ctx, websocket.MessageBinary, buf[:n]); werr != nil {
				return werr
			}
		}
		if errors.Is(err, io.EOF) {
			return f.conn.Write(ctx, websocket.MessageBinary, nil)
		}
		if err != nil {
			return err
		}
	}
}

// fromClient carries what the client says, and returns when the client or the program
// has left.
func (f *forwarded) fromClient(ctx context.Context) {
	ended := false
	for {
		kind, r, err := f.conn.Reader(ctx)
		if err != nil {
			return
		}
		n, err := io.Copy(f.guest, r)
		switch {
		case kind != websocket.MessageBinary || n > 0 && ended:
			_ = f.conn.Close(websocket.StatusUnsupportedData, "only binary messages, and none after an empty one")
			return
		case n == 0 && err == nil && !ended:
			ended = true
			_ = f.guest.(interface{ CloseWrite() error }).CloseWrite() // if it is gone, reading tells
			close(f.clientEnded)
		case err != nil:
			// The program takes no more; what it still says goes on.
			if _, err := io.Copy(io.Discard, r); err != nil {
				return
			}
		}
	}
}

// ping notices a client that is gone without a word.
func (f *forwarded) ping(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if f.conn.Ping(ctx) != nil {
			return
		}
	}
}
