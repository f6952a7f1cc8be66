package guest

import (
	"errors"
	"io"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"ringfence.dev/ringfence/internal/guestproto"
)

const (
	// connectTimeout bounds a connection to a program whose queue is full.
	connectTimeout = 10 * time.Second
	// quietBuffer is what a connection that says little holds, in bytes.
	quietBuffer = 16 << 10
)

// dialPort connects to what listens on a port of this sandbox, and carries bytes both
// ways. It goes nowhere else: only to addresses of the sandbox itself.
func dialPort(_ *agent, ch *channel, p guestproto.PortDial) (any, error) {
	if p.Port < 1 || p.Port > 65535 {
		return nil, fail(codeInvalid, "port", "there is no port %d", p.Port)
	}
	conn, addr, err := connectLocal(uint16(p.Port))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := ch.event(guestproto.PortEvent{Address: addr.String()}); err != nil {
		return nil, err
	}
	wrote := make(chan error, 1)
	go func() { wrote <- toSocket(conn, ch) }()
	rerr := fromSocket(conn, ch)
	if rerr == nil {
		rerr = ch.event(guestproto.PortEvent{End: true})
	}
	if rerr != nil {
		// Nothing comes from there any more, so nothing is worth being sent there.
		ch.end()
		conn.Close()
	}
	werr := <-wrote
	switch {
	case errors.Is(rerr, errGone) || errors.Is(werr, errGone):
		return nil, errGone
	case rerr != nil:
		return nil, fail(codeUnavailable, "port", "the connection to port %d broke: %s", p.Port, errnoText(rerr))
	}
	return struct{}{}, nil
}

// toSocket carries what the host sends. It returns when there is nothing more to carry:
// after the end of the data, or at the first error. errGone closes the connection.
func toSocket(conn *os.File, ch *channel) error {
	for {
		data, err := ch.receive()
		if err != nil {
			conn.Close() // whoever reads from it stops
			return err
		}
		if data == nil {
			return shutdownWrite(conn)
		}
		_, werr := conn.Write(data)
		if err := ch.release(data); err != nil {
			conn.Close() // likewise
			return err
		}
		if werr != nil {
			// The program reads no more. What it still says goes on; the rest of the
			// data is thrown away until it has ended too.
			return dropData(conn, ch, werr)
		}
	}
}

// dropData takes data until the connection has ended.
func dropData(conn *os.File, ch *channel, why error) error {
	for {
		data, err := ch.receive()
		switch {
		case err != nil:
			conn.Close() // the host gave up
			return err
		case data == nil:
			return why
		}
		if err := ch.release(data); err != nil {
			conn.Close() // the host is gone
			return err
		}
	}
}

// fromSocket sends what the program says until its end; nil is an orderly one.
func fromSocket(conn *os.File, ch *channel) error {
	quiet := make([]byte, quietBuffer)
	buf := quiet
	defer func() { ch.link.free.put(buf) }()
	for {
		n, err := conn.Read(buf)
		if n > 0 {
			if err := ch.send(buf[:n]); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			if ch.gone() {
				return errGone
			}
			return err
		case n == len(buf) && len(buf) == quietBuffer:
			buf = ch.link.free.get(guestproto.MaxPayload)
		case n <= quietBuffer && len(buf) > quietBuffer:
			ch.link.free.put(buf)
			buf = quiet
		}
	}
}

func shutdownWrite(conn *os.File) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	err = raw.Control(func(fd uintptr) { serr = unix.Shutdown(int(fd), unix.SHUT_WR) })
	return errors.Join(err, serr)
}

// connectLocal connects to a port on 127.0.0.1, on ::1, or on whatever other address of
// this machine somebody listens.
func connectLocal(port uint16) (*os.File, netip.Addr, error) {
	var last error
	tried := map[netip.Addr]bool{}
	try := func(addr netip.Addr) *os.File {
		tried[addr] = true
		conn, err := connectTo(netip.AddrPortFrom(addr, port))
		if err != nil && (last == nil || errors.Is(last, unix.ECONNREFUSED)) {
			last = err
		}
		return conn
	}
	for _, addr := range []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()} {
		if conn := try(addr); conn != nil {
			return conn, addr, nil
		}
	}
	for _, l := range listeners() {
		if l.addr.Port() != port || l.addr.Addr().IsUnspecified() || tried[l.addr.Addr()] {
			continue
		}
		if conn := try(l.addr.Addr()); conn != nil {
			return conn, l.addr.Addr(), nil
		}
	}
	switch {
	case errors.Is(last, unix.ECONNREFUSED):
		return nil, netip.Addr{}, fail(codePortNotListening, "port", "nothing listens on port %d in the sandbox", port)
	case errors.Is(last, os.ErrDeadlineExceeded):
		return nil, netip.Addr{}, fail(codeUnavailable, "port", "the program on port %d did not accept a connection within %v", port, connectTimeout)
	case errors.Is(last, unix.EMFILE), errors.Is(last, unix.ENFILE), errors.Is(last, unix.ENOBUFS), errors.Is(last, unix.ENOMEM):
		return nil, netip.Addr{}, fail(codeExhausted, "port", "cannot connect to port %d: %s", port, errnoText(last))
	}
	return nil, netip.Addr{}, fail(codeUnavailable, "port", "cannot connect to port %d: %s", port, errnoText(last))
}

// connectTo returns a connection that waits in the runtime's poller, not on a thread.
func connectTo(to netip.AddrPort) (*os.File, error) {
	family, sa := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()})
	if to.Addr().Is4() {
		family, sa = unix.AF_INET, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		if err == unix.EAFNOSUPPORT { // nobody can listen there
			err = unix.ECONNREFUSED
		}
		return nil, err
	}
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1) // slower without, and no worse
	err = unix.Connect(fd, sa)
	conn := os.NewFile(uintptr(fd), "port")
	if err == unix.EADDRNOTAVAIL || err == unix.ENETUNREACH { // no such loopback
		err = unix.ECONNREFUSED
	}
	if err == nil || err != unix.EINPROGRESS {
		if err != nil {
			conn.Close()
			return nil, err
		}
		return conn, nil
	}
	if err := finishConnect(conn); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

func finishConnect(conn *os.File) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	if err := conn.SetWriteDeadline(time.Now().Add(connectTimeout)); err != nil {
		return err
	}
	var serr error
	err = raw.Write(func(fd uintptr) bool {
		code, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		if err == nil && code != 0 {
			err = syscall.Errno(code)
		}
		if err == nil {
			if _, perr := unix.Getpeername(int(fd)); perr == unix.ENOTCONN {
				return false
			}
		}
		serr = err
		return true
	})
	if err != nil {
		return err
	}
	if serr != nil {
		return serr
	}
	return conn.SetWriteDeadline(time.Time{})
}

func errnoText(err error) string {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno.Error()
	}
	return err.Error()
}
