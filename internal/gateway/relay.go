package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/waiter"

	"ringfence.dev/ringfence/internal/egress"
)

const copyBuffer = 256 << 10

// buffers are taken when there is something to put into them, so that a flow that
// waits holds none.
var buffers = sync.Pool{New: func() any { b := make([]byte, copyBuffer); return &b }}

var errReset = errors.New("the other side reset the connection")

// relay moves bytes until both sides have ended, one has reset, or the flow is cut.
func (f *flow) relay(in *inside, out outside) {
	var wg sync.WaitGroup
	var failed atomic.Bool
	direction := func(how func() error) {
		if err := how(); err != nil && !failed.Swap(true) {
			in.ep.Abort()
			reset(out)
		}
		f.halfEnd.Store(true)
	}
	wg.Go(func() {
		direction(func() error {
			if err := f.upward(in, out); err != nil {
				return err
			}
			return out.CloseWrite()
		})
	})
	direction(func() error {
		if err := f.downward(in, out); err != nil {
			return err
		}
		return shutdown(in.ep, tcpip.ShutdownWrite)
	})
	wg.Wait()
	out.Close()
	in.ep.Close()
	f.finish(nil)
}

// relayAnswer moves what the outside sends, and nothing the other way.
func (f *flow) relayAnswer(in *inside, out outside) {
	err := f.downward(in, out)
	if err == nil {
		err = shutdown(in.ep, tcpip.ShutdownWrite)
	}
	if err != nil {
		in.ep.Abort()
	}
	out.Close()
	in.ep.Close()
	f.finish(nil)
}

func shutdown(ep tcpip.Endpoint, how tcpip.ShutdownFlags) error {
	if err := ep.Shutdown(how); err != nil {
		return &tcpipError{err}
	}
	return nil
}

// upward moves what the guest sends. Bytes that a guard has not passed are held back.
func (f *flow) upward(in *inside, out outside) error {
	var pending []byte // what the guard holds back
	for {
		buf, size, err := in.read(f.done)
		if err != nil {
			if !errors.Is(err, io.EOF) {
				return err
			}
			if len(pending) > 0 { // the rest of what it waits for does not come
				return f.refuse(in, egress.Decision{Reason: egress.ReasonNameUnreadable})
			}
			return nil
		}
		f.touch()
		data := (*buf)[:size]
		if f.guard == nil || len(pending) == 0 && f.guard.Open() {
			err = f.send(out, data)
			buffers.Put(buf)
			if err != nil {
				return err
			}
			continue
		}
		pending = append(pending, data...)
		buffers.Put(buf)
		if pending, err = f.guarded(in, out, pending); err != nil {
			return err
		}
	}
}

// guarded sends what the guard passes, and waits while it waits for an answer.
func (f *flow) guarded(in *inside, out outside, pending []byte) ([]byte, error) {
	for {
		answered := isClosed(f.guard.Ready())
		passed, d, ok := f.guard.Pass(pending)
		if passed > 0 {
			if err := f.send(out, pending[:passed]); err != nil {
				return nil, err
			}
			pending = pending[passed:]
		}
		switch {
		case !ok:
			return nil, f.refuse(in, d)
		case len(pending) == 0:
			return nil, nil
		case !answered && isClosed(f.guard.Ready()): // meanwhile
			continue
		case !f.guard.Waiting():
			return append([]byte(nil), pending...), nil // the passed part can go
		}
		select { // until the server has answered a request to change the protocol
		case <-f.guard.Ready():
		case <-f.done:
			return nil, errReset
		}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (f *flow) send(out outside, data []byte) error {
	if err := wait(f, f.n.up, len(data)); err != nil {
		return err
	}
	size, err := out.Write(data)
	f.sent.Add(int64(size))
	f.n.sent.Add(int64(size))
	f.touch()
	return err
}

func wait(f *flow, l *rate.Limiter, size int) error {
	if l == nil {
		return nil
	}
	return l.WaitN(f.n.ctx, min(size, l.Burst()))
}

// downward moves what the outside sends.
func (f *flow) downward(in *inside, out outside) error {
	next, err := reads(out)
	if err != nil {
		return err
	}
	answers := f.guard != nil
	for {
		data, free, err := next()
		if len(data) == 0 {
			return err
		}
		if answers {
			answers = f.guard.Answered(data)
		}
		size := len(data)
		err = wait(f, f.n.down, size)
		if err == nil {
			err = in.write(data, f.done)
		}
		free()
		if err != nil {
			return err
		}
		f.recv.Add(int64(size))
		f.n.received.Add(int64(size))
		f.touch()
	}
}

// reads returns what waits for the next bytes of a connection. They are valid until
// free is called; none is the end, or an error.
func reads(out outside) (next func() (data []byte, free func(), err error), err error) {
	tcp, ok := out.(*net.TCPConn)
	if !ok {
		own := make([]byte, 16<<10) // the most that TLS has at a time
		return func() ([]byte, func(), error) {
			size, err := out.Read(own)
			// Many proxies end without saying so in TLS; nor does TCP say so in a way that
			// nobody could forge.
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				err = nil
			}
			return own[:size], func() {}, err
		}, nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil, err
	}
	var buf *[]byte
	free := func() { buffers.Put(buf) }
	return func() ([]byte, func(), error) {
		var size int
		var rerr error
		err := raw.Read(func(fd uintptr) bool {
			buf = buffers.Get().(*[]byte)
			size, rerr = ignoreEINTR(func() (int, error) { return unix.Read(int(fd), *buf) })
			if size > 0 {
				return true
			}
			free()
			return !errors.Is(rerr, unix.EAGAIN)
		})
		if err != nil || rerr != nil || size == 0 {
			return nil, nil, errors.Join(err, rerr)
		}
		return (*buf)[:size], free, nil
	}, nil
}

func ignoreEINTR(how func() (int, error)) (int, error) {
	for {
		if n, err := how(); !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// read waits until the guest has sent something, and then takes a buffer for it.
func (in *inside) read(done <-chan struct{}) (buf *[]byte, size int, err error) {
	entry, ready := waiter.NewChannelEntry(waiter.ReadableEvents | waiter.EventHUp | waiter.EventErr)
	registered := false
	for {
		buf := buffers.Get().(*[]byte)
		w := tcpip.SliceWriter(*buf)
		res, terr := in.ep.Read(&w, tcpip.ReadOptions{})
		if terr == nil && res.Count > 0 {
			return buf, res.Count, nil
		}
		buffers.Put(buf)
		switch terr.(type) {
		case nil:
		case *tcpip.ErrClosedForReceive:
			return nil, 0, io.EOF
		case *tcpip.ErrWouldBlock:
		default:
			return nil, 0, &tcpipError{terr}
		}
		if !registered {
			in.wq.EventRegister(&entry)
			defer in.wq.EventUnregister(&entry)
			registered = true
			continue
		}
		select {
		case <-ready:
		case <-done:
			return nil, 0, errReset
		}
	}
}

// write sends all of data to the guest.
func (in *inside) write(data []byte, done <-chan struct{}) error {
	entry, ready := waiter.NewChannelEntry(waiter.WritableEvents | waiter.EventHUp | waiter.EventErr)
	registered := false
	var r bytes.Reader
	for len(data) > 0 {
		r.Reset(data)
		size, terr := in.ep.Write(&r, tcpip.WriteOptions{})
		data = data[size:]
		switch terr.(type) {
		case nil:
			continue
		case *tcpip.ErrWouldBlock:
		default:
			return &tcpipError{terr}
		}
		if !registered {
			in.wq.EventRegister(&entry)
			defer in.wq.EventUnregister(&entry)
			registered = true
			continue
		}
		select {
		case <-ready:
		case <-done:
			return errReset
		}
	}
	return nil
}

// refuse ends a flow whose client announced what is not allowed, with an answer in
// its own protocol where that is possible.
func (f *flow) refuse(in *inside, d egress.Decision) error {
	name, kind := f.guard.Name()
	var answer []byte
	switch {
	case f.recv.Load() > 0: // in the middle of something
	case kind == "tls":
		answer = []byte{21, 3, 3, 0, 2, 2, 49} // fatal, access_denied: RFC 8446 §6
	case kind == "http":
		rule := d.Rule
		if rule == "" {
			rule = string(d.Reason)
		}
		body := fmt.Sprintf("ringfence: the network policy of this sandbox does not allow %q here (%s: %s)\n", name, d.Reason, rule)
		answer = fmt.Appendf(nil, "HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\nX-Ringfence-Reason: %s\r\n\r\n%s", len(body), d.Reason, body)
	}
	if answer != nil && in.write(answer, f.done) == nil && shutdown(in.ep, tcpip.ShutdownWrite) == nil {
		// A reset now could overtake the answer: let the client read it and close.
		gone := make(chan struct{})
		timer := time.AfterFunc(time.Second, func() { close(gone) })
		for {
			buf, _, err := in.read(gone)
			if err != nil {
				break
			}
			buffers.Put(buf)
		}
		timer.Stop()
	}
	f.cut(d)
	return errReset
}
