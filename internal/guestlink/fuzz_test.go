package guestlink_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"ringfence.dev/ringfence/internal/guestlink"
	"ringfence.dev/ringfence/internal/guestproto"
)

var errEnough = errors.New("enough")

// FuzzGuest: whatever valid frames a guest sends, in whatever order, every call ends,
// and nothing panics. Frames are made from the input, so that they pass the checksum.
func FuzzGuest(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0}, `{"value":{}}`)
	f.Add([]byte{20, 1, 0, 0, 23, 1, 0, 9, 24, 1, 9, 9, 21, 1, 0, 0}, `{"id":"p","pid":3,"path":"/a","type":"file"}`)
	f.Add([]byte{20, 2, 0, 0, 17, 2, 0, 9, 21, 2, 0, 0, 18, 3, 255, 0}, `{"error":{"code":"disk_full","message":"x"}}`)
	f.Add([]byte{17, 5, 0, 0, 17, 6, 0, 0, 21, 5, 0, 0}, "{\"id\":\"p\",\"pid\":3,\"command\":\"x\",\"process\":{\"id\":\"p\"}}\n")
	types := []guestproto.Type{2, 4, 17, 18, 20, 21, 23, 24}
	f.Fuzz(func(t *testing.T, script []byte, text string) {
		if len(text) > 4096 || len(script) > 400 {
			return
		}
		g, rwc := newGuest(t)
		defer g.close()
		var wg sync.WaitGroup
		calls := make(chan struct{})
		wg.Go(func() {
			if g.acknowledge(nil) != nil {
				return
			}
			wg.Go(func() {
				for {
					if _, _, err := g.next(); err != nil {
						return
					}
				}
			})
			<-calls
			for ; len(script) >= 4; script = script[4:] {
				h := guestproto.Header{Type: types[int(script[0])%len(types)], Channel: uint32(script[1] % 12), Position: uint64(script[2])}
				if script[2] > 250 {
					h.Position <<= 56
				}
				payload := []byte(text)
				if script[3] < 200 {
					payload = []byte(strings.Repeat(text, 1+int(script[3])%3))
				}
				if h.Type == guestproto.TypeWindow {
					payload = nil
				}
				if g.send(h, payload) != nil {
					return
				}
			}
			g.close()
		})
		conn, err := guestlink.Attach(t.Context(), rwc)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		var users sync.WaitGroup
		users.Go(func() {
			p, err := conn.Start(ctx, guestproto.ProcessStart{ID: "p", Shell: "x"}, func(c guestlink.Chunk) error { return nil })
			if err == nil {
				p.Wait(ctx)
			}
		})
		users.Go(func() {
			if _, r, err := conn.ReadFile(ctx, guestproto.FileRead{}); err == nil {
				io.Copy(io.Discard, r)
				r.Close()
			}
		})
		users.Go(func() {
			n := 0
			conn.ListFiles(ctx, guestproto.FileList{}, func(guestproto.FileInfo) error {
				if n++; n > 10 {
					return errEnough
				}
				return nil
			})
		})
		users.Go(func() { conn.WriteFile(ctx, guestproto.FileWrite{}, strings.NewReader(text)) })
		users.Go(func() { conn.Stats(ctx) })
		users.Go(func() { conn.Processes(ctx) })
		users.Go(func() { conn.Query(ctx, guestproto.ProcessQuery{}) })
		users.Go(func() { conn.Inspect(ctx, guestproto.ProcessRef{PID: 1}) })
		users.Go(func() { conn.WriteInput(ctx, guestproto.ProcessInput{ID: "p"}, strings.NewReader(text)) })
		users.Go(func() { conn.Watch(ctx, func(guestproto.ProcessNotice) error { return nil }) })
		users.Go(func() { conn.Ping(ctx) })
		close(calls)
		users.Wait()
		if ctx.Err() != nil {
			t.Fatal("a call did not end with its link")
		}
		conn.Close()
		g.close()
		conn.Wait()
		wg.Wait()
	})
}

// FuzzProcess: whatever a guest says about a process is refused or within its bounds, and
// nothing that is accepted could not be spelled again.
func FuzzProcess(f *testing.F) {
	f.Add(`{"id":"p","pid":3,"command":"x","args":["a","b"],"user":"u","started_at":1,"exit":{"exit_code":1}}`)
	f.Add(`{"id":"p","pid":-1}`)
	f.Add(`{"id":"p","started_at":9223372036854775807,"log_start":5,"log_end":4}`)
	f.Fuzz(func(t *testing.T, text string) {
		g, rwc := newGuest(t)
		defer g.close()
		go func() {
			if g.acknowledge(nil) != nil {
				return
			}
			if h, _, err := g.next(); err == nil {
				g.send(guestproto.Header{Type: guestproto.TypeData, Channel: h.Channel}, []byte(strings.ReplaceAll(text, "\n", " ")+"\n"))
				g.send(guestproto.Header{Type: guestproto.TypeResult, Channel: h.Channel}, []byte(`{"value":{}}`))
			}
		}()
		if len(text) > 100_000 {
			return
		}
		conn, err := guestlink.Attach(t.Context(), rwc)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		list, err := conn.Query(t.Context(), guestproto.ProcessQuery{})
		if err != nil {
			return
		}
		for _, p := range list {
			start := time.UnixMicro(p.StartedAt).UTC()
			if p.ID == "" || p.PID < 0 || p.LogStart > p.LogEnd || start.Year() < 1970 || start.Year() > 9999 || len(p.Command) > 64<<10 ||
				!utf8.ValidString(p.Command+p.WorkDir+p.User+p.Tag+strings.Join(p.Args, "")) || p.Exit != nil && (p.Exit.ExitCode < 0 || p.Exit.ExitCode > 255) {
				t.Errorf("accepted %+v", p)
			}
		}
	})
}
