package guest

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"ringfence.dev/ringfence/internal/guestproto"
)

// link is the agent's end of the pipes to the host.
type link struct {
	agent *agent
	in    *os.File
	out   int
	free  freelist

	// wmu is held while a frame is written. A host that is gone lets the pipe run
	// full, and whoever holds wmu then waits until the next host reads.
	wmu    sync.Mutex
	header [guestproto.HeaderSize]byte // guarded by wmu

	mu       sync.Mutex
	session  uint64              // grows with every Hello; guarded by mu
	frozen   bool                // nothing is sent or obeyed until the next Hello; guarded by mu
	channels map[uint32]*channel // of this session; guarded by mu
}

func newLink(a *agent, in, out *os.File) *link {
	return &link{agent: a, in: in, out: int(out.Fd()), free: newFreelist(), channels: make(map[uint32]*channel), frozen: true}
}

// run reads frames until the input ends. It must never wait for the host to read.
func (l *link) run() error {
	// Read through the poller: a thread that waits in the kernel keeps the runtime's monitor
	// awake for 10 ms after every frame, with 60 naps that each cost more than a command's system calls.
	fd, err := unix.FcntlInt(l.in.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return err
	}
	in := os.NewFile(uintptr(fd), "link")
	defer in.Close()
	r := guestproto.NewReader(in)
	for {
		h, payload, err := r.Next(l.free.get)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if !l.dispatch(h, payload) {
			l.free.put(payload)
		}
	}
}

// dispatch handles a frame, and reports whether it kept the payload.
func (l *link) dispatch(h guestproto.Header, payload []byte) bool {
	if h.Type == guestproto.TypeHello {
		l.hello(payload)
		return false
	}
	l.mu.Lock()
	session, frozen, ch := l.session, l.frozen, l.channels[h.Channel]
	l.mu.Unlock()
	if frozen {
		// What was in the pipe when the sandbox was saved must not happen again in
		// every sandbox that is restored from it.
		return false
	}
	switch h.Type {
	case guestproto.TypePing:
		echo := append([]byte(nil), payload...)
		go l.send(session, guestproto.Header{Type: guestproto.TypePong}, echo)
	case guestproto.TypeOpen:
		if ch == nil && h.Channel != 0 {
			l.open(session, h.Channel, payload)
		}
	case guestproto.TypeData:
		return ch != nil && ch.data(h.Position, payload)
	case guestproto.TypeWindow:
		if ch != nil {
			ch.window(h.Position)
		}
	case guestproto.TypeEnd:
		if ch != nil {
			ch.end()
		}
	case guestproto.TypeCancel:
		if ch != nil {
			ch.cancel()
		}
	}
	return false
}

func (l *link) open(session uint64, id uint32, payload []byte) {
	var open guestproto.Open
	err := json.Unmarshal(payload, &open) // copies what it keeps
	ch := newChannel(l, session, id)
	l.mu.Lock()
	l.channels[id] = ch
	l.mu.Unlock()
	switch {
	case err != nil:
		go func() {
			defer ch.finish()
			ch.result(nil, fail(codeInvalid, "", "cannot decode the call: %v", err))
		}()
	case open.Method == guestproto.MethodFreeze:
		go l.freeze(ch)
	default:
		go l.agent.serve(ch, open)
	}
}

// hello starts a session. The reader goes on at once; the answer may have to wait
// for a frame of the former session that is half in the pipe.
func (l *link) hello(payload []byte) {
	var hello guestproto.Hello
	if json.Unmarshal(payload, &hello) != nil {
		return
	}
	ours := []int{guestproto.Version}
	ack := guestproto.HelloAck{
		Nonce:        hello.Nonce,
		Version:      guestproto.Negotiate(ours, hello.Versions),
		Versions:     ours,
		BootID:       l.agent.bootID,
		Capabilities: []string{guestproto.CapProcesses},
	}
	session := l.endSession(false)
	body, err := json.Marshal(ack)
	if err != nil {
		return
	}
	go l.withWriter(session, func() {
		writeAll(l.out, guestproto.Preamble())
		l.write(guestproto.Header{Type: guestproto.TypeHelloAck}, body)
	})
}

// endSession ends all calls and returns the number of the next session.
func (l *link) endSession(frozen bool) uint64 {
	l.mu.Lock()
	l.session++
	l.frozen = frozen
	session, channels := l.session, l.channels
	l.channels = make(map[uint32]*channel)
	l.mu.Unlock()
	for _, ch := range channels {
		ch.cancel()
	}
	return session
}

// freeze answers, and then nothing is in the pipes and nothing more will be.
func (l *link) freeze(ch *channel) {
	body, err := json.Marshal(guestproto.Result{Value: json.RawMessage("{}")})
	if err != nil {
		return
	}
	l.withWriter(ch.session, func() {
		l.endSession(true)
		l.write(guestproto.Header{Type: guestproto.TypeResult, Channel: ch.id}, body)
	})
}

// send writes a frame of a session, or drops it when the session is over.
func (l *link) send(session uint64, h guestproto.Header, payload []byte) error {
	err := errGone
	l.withWriter(session, func() { err = l.write(h, payload) })
	return err
}

// withWriter runs f with the output to itself, unless the session is over by then.
func (l *link) withWriter(session uint64, f func()) {
	l.wmu.Lock()
	defer l.wmu.Unlock()
	l.mu.Lock()
	live := l.session == session && !l.frozen
	l.mu.Unlock()
	if live {
		f()
	}
}

// write writes a frame without copying its payload. The caller holds wmu.
func (l *link) write(h guestproto.Header, payload []byte) error {
	guestproto.PutHeader(l.header[:], h, payload)
	if len(payload) == 0 {
		return writeAll(l.out, l.header[:])
	}
	iov := [2]unix.Iovec{{Base: &l.header[0]}, {Base: &payload[0]}}
	iov[0].SetLen(len(l.header))
	iov[1].SetLen(len(payload))
	n, _, errno := unix.Syscall(unix.SYS_WRITEV, uintptr(l.out), uintptr(unsafe.Pointer(&iov[0])), uintptr(len(iov)))
	sent := int(n)
	switch {
	case errno == unix.EINTR:
		sent = 0
	case errno != 0:
		return errno
	}
	if sent < len(l.header) {
		if err := writeAll(l.out, l.header[sent:]); err != nil {
			return err
		}
		sent = len(l.header)
	}
	return writeAll(l.out, payload[sent-len(l.header):])
}

// writeAll writes to a pipe whose reader may be slow or, for a while, nobody.
func writeAll(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := syscall.Write(fd, b)
		if n > 0 {
			b = b[n:]
		}
		if err != nil && err != syscall.EINTR {
			return err
		}
	}
	return nil
}

// blockingReader reads with plain system calls.
type blockingReader uintptr

func (r blockingReader) Read(p []byte) (int, error) {
	for {
		n, err := syscall.Read(int(r), p)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return 0, err
		case n == 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}

// freelist keeps a few frame-sized buffers: fresh memory costs a page fault for
// every 4 KiB, and a page fault in a sandbox costs more than copying a page.
type freelist struct{ c chan []byte }

// smallPayload is the size up to which a payload is ordinary memory.
const smallPayload = 8 << 10

func newFreelist() freelist { return freelist{c: make(chan []byte, 8)} }

func (f freelist) get(n int) []byte {
	if n <= smallPayload {
		return make([]byte, n)
	}
	select {
	case b := <-f.c:
		return b[:n]
	default:
		return make([]byte, n, guestproto.MaxPayload)
	}
}

func (f freelist) put(b []byte) {
	if cap(b) < guestproto.MaxPayload {
		return
	}
	select {
	case f.c <- b:
	default:
	}
}
