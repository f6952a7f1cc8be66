package guestlink_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/guestlink"
	"ringfence.dev/ringfence/internal/guestproto"
)

// duplex is one end of two pipes.
type duplex struct {
	io.Reader
	io.Writer
	close func()
}

func (d duplex) Close() error { d.close(); return nil }

// guest plays the agent, as badly as a test wants.
type guest struct {
	t      testing.TB
	frames *guestproto.Reader
	w      io.Writer
	close  func()
}

// newGuest returns a guest and the host's end of the link to it.
func newGuest(t testing.TB) (*guest, io.ReadWriteCloser) {
	hostR, guestW := io.Pipe()
	guestR, hostW := io.Pipe()
	shut := func() {
		for _, c := range []io.Closer{hostR, guestW, guestR, hostW} {
			c.Close()
		}
	}
	return &guest{t: t, frames: guestproto.NewReader(guestR), w: guestW, close: shut}, duplex{hostR, hostW, shut}
}

func (g *guest) next() (guestproto.Header, []byte, error) {
	return g.frames.Next(func(n int) []byte { return make([]byte, n) })
}

func (g *guest) send(h guestproto.Header, payload []byte) error {
	_, err := g.w.Write(guestproto.AppendFrame(nil, h, payload))
	return err
}

// acknowledge answers the Hello.
func (g *guest) acknowledge(change func(*guestproto.HelloAck)) error {
	for {
		h, payload, err := g.next()
		if err != nil {
			return err
		}
		if h.Type != guestproto.TypeHello {
			continue
		}
		var hello guestproto.Hello
		if err := json.Unmarshal(payload, &hello); err != nil {
			return err
		}
		ack := guestproto.HelloAck{Nonce: hello.Nonce, Version: 1, Versions: []int{1}, BootID: "boot"}
		if change != nil {
			change(&ack)
		}
		body, err := json.Marshal(ack)
		if err != nil {
			return err
		}
		return g.send(guestproto.Header{Type: guestproto.TypeHelloAck}, body)
	}
}

// attach returns a session with a guest that runs script once it is attached; the
// guest reads on until the link is closed.
func attach(t testing.TB, script func(g *guest)) *guestlink.Conn {
	t.Helper()
	g, rwc := newGuest(t)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := g.acknowledge(nil); err != nil {
			return
		}
		script(g)
		for {
			if _, _, err := g.next(); err != nil {
				return
			}
		}
	})
	conn, err := guestlink.Attach(t.Context(), rwc)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(); g.close(); wg.Wait(); conn.Wait() })
	return conn
}

// waitOpen returns the channel of the next call.
func (g *guest) waitOpen() uint32 {
	for {
		h, _, err := g.next()
		if err != nil {
			return 0
		}
		if h.Type == guestproto.TypeOpen {
			return h.Channel
		}
	}
}

func event(ch uint32, v any) (guestproto.Header, []byte) {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return guestproto.Header{Type: guestproto.TypeEvent, Channel: ch}, b
}

func result(ch uint32, r string) (guestproto.Header, []byte) {
	return guestproto.Header{Type: guestproto.TypeResult, Channel: ch}, []byte(r)
}

// Every way of breaking the protocol ends the link, and the call with an error.
func TestBrokenProtocol(t *testing.T) {
	big := make([]byte, guestproto.MaxPayload)
	out := func(ch uint32, pos uint64, data []byte) (guestproto.Header, []byte) {
		return guestproto.Header{Type: guestproto.TypeStdout, Channel: ch, Position: pos}, data
	}
	for name, script := range map[string]func(g *guest, ch uint32){
		"Garbage":         func(g *guest, ch uint32) { g.w.Write([]byte("not a frame at all, and longer than a header")) },
		"UnknownChannel":  func(g *guest, ch uint32) { g.send(out(ch+1, 0, []byte("x"))) },
		"ChannelZero":     func(g *guest, ch uint32) { g.send(out(0, 0, []byte("x"))) },
		"HostsType":       func(g *guest, ch uint32) { g.send(guestproto.Header{Type: guestproto.TypeOpen, Channel: ch}, nil) },
		"SecondHelloAck":  func(g *guest, ch uint32) { g.send(guestproto.Header{Type: guestproto.TypeHelloAck}, []byte("{}")) },
		"UnaskedPong":     func(g *guest, ch uint32) { g.send(guestproto.Header{Type: guestproto.TypePong}, nil) },
		"PositionBack":    func(g *guest, ch uint32) { g.send(out(ch, 10, []byte("xx"))); g.send(out(ch, 11, []byte("x"))) },
		"PositionTooHigh": func(g *guest, ch uint32) { g.send(out(ch, math.MaxUint64-1, []byte("x"))) },
		"EmptyData":       func(g *guest, ch uint32) { g.send(out(ch, 0, nil)) },
		"WrongKind": func(g *guest, ch uint32) {
			g.send(guestproto.Header{Type: guestproto.TypeData, Channel: ch}, []byte("x"))
		},
		"BeyondTheWindow": func(g *guest, ch uint32) {
			for i := range uint64(5) {
				g.send(out(ch, i*uint64(len(big)), big))
			}
		},
		"EndlessEvents": func(g *guest, ch uint32) {
			for range 100 {
				g.send(event(ch, guestproto.ProcessStarted{}))
			}
		},
		"AfterTheResult": func(g *guest, ch uint32) {
			// The channel is gone with its result, so this is a late frame; the next one is not.
			g.send(result(ch, `{"value":{}}`))
			g.send(out(ch, 0, []byte("x")))
			g.send(out(ch+100, 0, []byte("x")))
		},
		"LinkEnds": func(g *guest, ch uint32) { g.close() },
		"EndsInAFrame": func(g *guest, ch uint32) {
			g.w.Write(guestproto.AppendFrame(nil, guestproto.Header{Type: guestproto.TypePong}, nil)[:10])
			g.close()
		},
		"CutChecksum": func(g *guest, ch uint32) {
			f := guestproto.AppendFrame(nil, guestproto.Header{Type: guestproto.TypePong}, []byte("x"))
			f[24]++
			g.w.Write(f)
		},
	} {
		t.Run(name, func(t *testing.T) {
			blocked := make(chan struct{})
			defer close(blocked)
			conn := attach(t, func(g *guest) {
				ch := g.waitOpen()
				g.send(event(ch, guestproto.ProcessStarted{ID: "p", PID: 1}))
				script(g, ch)
			})
			p, err := conn.Start(t.Context(), guestproto.ProcessStart{ID: "p", Shell: "x"}, func(guestlink.Chunk) error { <-blocked; return nil })
			if err == nil {
				select {
				case <-conn.Done():
				case <-p.Done():
					<-conn.Done()
				case <-time.After(time.Minute):
					t.Fatal("the link goes on")
				}
				_ = p
			}
			if code := ringfence.CodeOf(conn.Err()); code != ringfence.CodeUnavailable {
				t.Errorf("the link ended with %v (%s)", conn.Err(), code)
			}
			if _, err := conn.Ping(t.Context()); ringfence.CodeOf(err) != ringfence.CodeUnavailable {
				t.Errorf("got %v", err)
			}
		})
	}
}

// A link that ends within a file is no end of the file.
func TestLinkEndsInAFile(t *testing.T) {
	for name, read := range map[string]func(io.Reader) error{
		"Read":    func(r io.Reader) error { _, err := io.ReadAll(struct{ io.Reader }{r}); return err },
		"WriteTo": func(r io.Reader) error { _, err := io.Copy(io.Discard, r); return err },
	} {
		t.Run(name, func(t *testing.T) {
			conn := attach(t, func(g *guest) {
				ch := g.waitOpen()
				g.send(event(ch, guestproto.FileInfo{Path: "/a", Type: "file", Size: 10}))
				g.send(guestproto.Header{Type: guestproto.TypeData, Channel: ch}, []byte("12345"))
				g.close()
			})
			_, r, err := conn.ReadFile(t.Context(), guestproto.FileRead{FilePath: guestproto.FilePath{Path: "/a"}})
			if err == nil {
				err = read(r)
			}
			if ringfence.CodeOf(err) != ringfence.CodeUnavailable || errors.Is(err, io.EOF) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// Results that are frames, and no results.
func TestBadResults(t *testing.T) {
	long := strings.Repeat("long\x1b[31m\u202e", 1000)
	for name, c := range map[string]struct {
		result string
		want   ringfence.Code
	}{
		"NoJSON":        {`{`, ringfence.CodeInternal},
		"Neither":       {`{}`, ringfence.CodeInternal},
		"WrongShape":    {`{"value":[1]}`, ringfence.CodeInternal},
		"ExitRange":     {`{"value":{"exit_code":-1}}`, ringfence.CodeInternal},
		"SignalRange":   {`{"value":{"exit_code":1,"signal":999}}`, ringfence.CodeInternal},
		"CodeOfTheHost": {`{"error":{"code":"unauthenticated","message":"x"}}`, ringfence.CodeInternal},
		"UnknownCode":   {`{"error":{"code":"other","message":"x"}}`, ringfence.CodeInternal},
		"LongMessage":   {`{"error":{"code":"disk_full","message":` + string(must(json.Marshal(long))) + `,"field":"evil"}}`, ringfence.CodeDiskFull},
	} {
		t.Run(name, func(t *testing.T) {
			conn := attach(t, func(g *guest) {
				ch := g.waitOpen()
				g.send(event(ch, guestproto.ProcessStarted{ID: "p", PID: 1}))
				g.send(result(ch, c.result))
			})
			p, err := conn.Start(t.Context(), guestproto.ProcessStart{ID: "p", Shell: "x"}, nil)
			if err != nil {
				t.Fatal(err)
			}
			exit, err := p.Wait(t.Context())
			if ringfence.CodeOf(err) != c.want {
				t.Errorf("got %+v, %v, want %s", exit, err, c.want)
			}
			var e *ringfence.Error
			if errors.As(err, &e) && (len(e.Message) > 8<<10 || strings.ContainsAny(e.Message, "\x1b\u202e") || e.Field != "") {
				t.Errorf("the guest's text comes through: %q, field %q", e.Message, e.Field)
			}
		})
	}
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}

func TestBadDescriptions(t *testing.T) {
	for name, info := range map[string]string{
		"NegativeSize": `{"path":"/a","type":"file","size":-1}`,
		"NoType":       `{"path":"/a"}`,
		"Mode":         `{"path":"/a","type":"file","mode":65535}`,
		"LongOwner":    `{"path":"/a","type":"file","owner":"` + strings.Repeat("x", 300) + `"}`,
		"LongPath":     `{"path":"/` + strings.Repeat("x", 9000) + `","type":"file"}`,
		"NoJSON":       `null,`,
	} {
		t.Run(name, func(t *testing.T) {
			conn := attach(t, func(g *guest) {
				g.send(result(g.waitOpen(), `{"value":`+info+`}`))
				ch := g.waitOpen()
				g.send(guestproto.Header{Type: guestproto.TypeData, Channel: ch}, []byte(info+"\n"))
				g.send(result(ch, `{"value":{}}`))
			})
			if got, err := conn.StatFile(t.Context(), guestproto.FilePath{Path: "/a"}); err == nil {
				t.Errorf("got %+v", got)
			}
			err := conn.ListFiles(t.Context(), guestproto.FileList{FilePath: guestproto.FilePath{Path: "/"}}, func(i guestproto.FileInfo) error {
				t.Errorf("got %+v", i)
				return nil
			})
			if err == nil {
				t.Error("the listing succeeded")
			}
		})
	}
	t.Run("EndlessLine", func(t *testing.T) {
		conn := attach(t, func(g *guest) {
			ch := g.waitOpen()
			for i := range uint64(4) {
				if g.send(guestproto.Header{Type: guestproto.TypeData, Channel: ch, Position: i * 100000}, bytes.Repeat([]byte("x"), 100000)) != nil {
					return
				}
			}
		})
		err := conn.ListFiles(t.Context(), guestproto.FileList{FilePath: guestproto.FilePath{Path: "/"}}, nil)
		if ringfence.CodeOf(err) != ringfence.CodeInternal {
			t.Errorf("got %v", err)
		}
	})
	t.Run("EndsInALine", func(t *testing.T) {
		conn := attach(t, func(g *guest) {
			ch := g.waitOpen()
			g.send(guestproto.Header{Type: guestproto.TypeData, Channel: ch}, []byte(`{"path":"/a"`))
			g.send(result(ch, `{"value":{}}`))
		})
		err := conn.ListFiles(t.Context(), guestproto.FileList{FilePath: guestproto.FilePath{Path: "/"}}, nil)
		if ringfence.CodeOf(err) != ringfence.CodeInternal {
			t.Errorf("got %v", err)
		}
	})
}

func TestAttachFails(t *testing.T) {
	t.Run("Silence", func(t *testing.T) {
		g, rwc := newGuest(t)
		defer g.close()
		go io.Copy(io.Discard, readerOf(g))
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := guestlink.Attach(ctx, rwc); ringfence.CodeOf(err) != ringfence.CodeDeadlineExceeded {
			t.Errorf("got %v", err)
		}
	})
	t.Run("NobodyReads", func(t *testing.T) {
		g, rwc := newGuest(t)
		defer g.close()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := guestlink.Attach(ctx, rwc); ringfence.CodeOf(err) != ringfence.CodeDeadlineExceeded {
			t.Errorf("got %v", err)
		}
	})
	t.Run("OtherNonce", func(t *testing.T) {
		g, rwc := newGuest(t)
		defer g.close()
		go func() {
			g.acknowledge(func(a *guestproto.HelloAck) { a.Nonce = "ffffffffffffffffffffffffffffffff" })
			g.close()
		}()
		if _, err := guestlink.Attach(t.Context(), rwc); ringfence.CodeOf(err) != ringfence.CodeUnavailable {
			t.Errorf("got %v", err)
		}
	})
	t.Run("EndlessGarbage", func(t *testing.T) {
		g, rwc := newGuest(t)
		defer g.close()
		go io.Copy(io.Discard, readerOf(g))
		go func() {
			for {
				if _, err := g.w.Write(bytes.Repeat([]byte("RF\x01\x02"), 10000)); err != nil {
					return
				}
			}
		}()
		if _, err := guestlink.Attach(t.Context(), rwc); ringfence.CodeOf(err) != ringfence.CodeUnavailable {
			t.Errorf("got %v", err)
		}
	})
	t.Run("OtherVersion", func(t *testing.T) {
		g, rwc := newGuest(t)
		defer g.close()
		go g.acknowledge(func(a *guestproto.HelloAck) { a.Version, a.Versions = 0, []int{7} })
		_, err := guestlink.Attach(t.Context(), rwc)
		if ringfence.CodeOf(err) != ringfence.CodeUnavailable || !strings.Contains(err.Error(), "[7]") {
			t.Errorf("got %v", err)
		}
	})
}

// readerOf lets a test take what the host writes without decoding it.
func readerOf(g *guest) io.Reader {
	return readerFunc(func(p []byte) (int, error) {
		_, payload, err := g.next()
		return copy(p, payload), err
	})
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
