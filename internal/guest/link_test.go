package guest

import (
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"sync"
	"testing"

	"ringfence.dev/ringfence/internal/guestproto"
)

// FuzzLink: no frame of a host makes the agent panic or hang, and a session can be
// opened after whatever came before. The calls are harmless ones.
func FuzzLink(f *testing.F) {
	f.Add([]byte{16, 1, 0, 17, 1, 0, 19, 1, 0})
	f.Add([]byte{16, 1, 0, 22, 1, 0, 16, 1, 0, 18, 1, 255, 3, 0, 0})
	saved := methods
	f.Cleanup(func() { methods = saved })
	methods = map[string]method{
		"echo": func(_ *agent, ch *channel, _ json.RawMessage) (any, error) {
			for {
				data, err := ch.receive()
				if err != nil || data == nil {
					return struct{}{}, err
				}
				if err := ch.send(data); err != nil {
					return nil, err
				}
				if err := ch.release(data); err != nil {
					return nil, err
				}
			}
		},
	}
	open, err := json.Marshal(guestproto.Open{Method: "echo"})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) > 600 {
			return
		}
		inR, inW, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		outR, outW, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		l := newLink(&agent{log: slog.New(slog.DiscardHandler)}, inR, outW)
		var wg sync.WaitGroup
		wg.Go(func() { _ = l.run() })
		nonces := make(chan string, 16)
		wg.Go(func() {
			r := guestproto.NewReader(outR)
			for {
				h, payload, err := r.Next(func(n int) []byte { return make([]byte, n) })
				if err != nil {
					return
				}
				var ack guestproto.HelloAck
				if h.Type == guestproto.TypeHelloAck && json.Unmarshal(payload, &ack) == nil {
					nonces <- ack.Nonce
				}
			}
		})
		hello := func(nonce string) {
			body, _ := json.Marshal(guestproto.Hello{Nonce: nonce, Versions: []int{1}})
			inW.Write(guestproto.AppendFrame(guestproto.Preamble(), guestproto.Header{Type: guestproto.TypeHello}, body))
			for got := range nonces {
				if got == nonce {
					return
				}
			}
		}
		hello("first")
		for ; len(script) >= 3; script = script[3:] {
			h := guestproto.Header{Type: guestproto.Type(script[0]), Channel: uint32(script[1] % 4), Position: uint64(script[2])}
			payload := open
			if h.Type != guestproto.TypeOpen {
				payload = script[:min(len(script), int(script[2]))]
			}
			if h.Type == guestproto.TypeHello {
				continue
			}
			frame := guestproto.AppendFrame(nil, h, payload)
			if script[1] > 250 {
				frame = frame[:len(frame)/2]
			}
			inW.Write(frame)
		}
		hello("second")
		inW.Close()
		l.endSession(true)
		outW.Close()
		wg.Wait()
		inR.Close()
		outR.Close()
	})
}

func TestFrozenObeysNothing(t *testing.T) {
	l := newLink(&agent{log: slog.New(slog.DiscardHandler)}, os.Stdin, os.Stdout)
	l.frozen = true
	l.dispatch(guestproto.Header{Type: guestproto.TypeOpen, Channel: 1}, []byte(`{"method":"process.start"}`))
	if len(l.channels) != 0 {
		t.Error("a frozen agent took a call")
	}
	if err := l.send(l.session, guestproto.Header{Type: guestproto.TypePong}, nil); !errors.Is(err, errGone) {
		t.Errorf("got %v", err)
	}
}
