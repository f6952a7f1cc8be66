package guestproto_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"ringfence.dev/ringfence/internal/guestproto"
)

var update = flag.Bool("update", false, "write the golden frames anew")

func mustJSON(t testing.TB, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The golden frames are what a host and an agent of other builds put on the wire. A
// change here is a change of the protocol's version.
func TestGoldenFrames(t *testing.T) {
	open := func(method string, params any) []byte {
		return mustJSON(t, guestproto.Open{Method: method, Params: mustJSON(t, params)})
	}
	result := func(v any) []byte { return mustJSON(t, guestproto.Result{Value: mustJSON(t, v)}) }
	path := guestproto.FilePath{Path: "/home/user/a b", User: "user"}
	for name, f := range map[string]struct {
		header  guestproto.Header
		payload []byte
	}{
		"hello":     {guestproto.Header{Type: guestproto.TypeHello}, mustJSON(t, guestproto.Hello{Nonce: "00112233445566778899aabbccddeeff", Versions: []int{1}})},
		"hello-ack": {guestproto.Header{Type: guestproto.TypeHelloAck}, mustJSON(t, guestproto.HelloAck{Nonce: "00112233445566778899aabbccddeeff", Version: 1, Versions: []int{1}, BootID: "ab"})},
		"ping":      {guestproto.Header{Type: guestproto.TypePing}, nil},
		"pong":      {guestproto.Header{Type: guestproto.TypePong}, []byte("echo")},
		"identity":  {guestproto.Header{Type: guestproto.TypeOpen, Channel: 1}, open(guestproto.MethodIdentity, guestproto.Identity{SandboxID: "abcdefghij0123456789", Hostname: "box", Env: map[string]string{"A": "b"}, User: "root", WorkDir: "/home/user", MaxProcs: 1024, MemoryBytes: 2 << 30, VCPU: 2})},
		"start":     {guestproto.Header{Type: guestproto.TypeOpen, Channel: 2}, open(guestproto.MethodProcessStart, guestproto.ProcessStart{ID: "p1", Shell: "echo hi", Env: map[string]string{"A": "b"}, WorkDir: "/", User: "user", Stdin: true, Tag: "t"})},
		"started":   {guestproto.Header{Type: guestproto.TypeEvent, Channel: 2}, mustJSON(t, guestproto.ProcessStarted{ID: "p1", PID: 7, From: 5})},
		"stdout":    {guestproto.Header{Type: guestproto.TypeStdout, Channel: 2, Position: 5}, []byte("hi\n")},
		"stderr":    {guestproto.Header{Type: guestproto.TypeStderr, Channel: 2, Position: 1 << 40}, []byte{0, 0xff}},
		"data":      {guestproto.Header{Type: guestproto.TypeData, Channel: 0xfffffffe, Position: 9}, bytes.Repeat([]byte("x"), 300)},
		"window":    {guestproto.Header{Type: guestproto.TypeWindow, Channel: 2, Position: 2 << 20}, nil},
		"end":       {guestproto.Header{Type: guestproto.TypeEnd, Channel: 2, Position: 3}, nil},
		"cancel":    {guestproto.Header{Type: guestproto.TypeCancel, Channel: 2}, nil},
		"exit":      {guestproto.Header{Type: guestproto.TypeResult, Channel: 2}, result(guestproto.ProcessExit{ExitCode: 137, Signal: 9, Reason: "deadline", Position: 8, Lost: 1})},
		"error":     {guestproto.Header{Type: guestproto.TypeResult, Channel: 3}, mustJSON(t, guestproto.Result{Error: &guestproto.Error{Code: "file_not_found", Message: "no", Field: "path"}})},
		"attach":    {guestproto.Header{Type: guestproto.TypeOpen, Channel: 4}, open(guestproto.MethodProcessAttach, guestproto.ProcessAttach{ID: "p1", From: 3})},
		"kill":      {guestproto.Header{Type: guestproto.TypeOpen, Channel: 5}, open(guestproto.MethodProcessKill, guestproto.ProcessKill{ID: "p1", Signal: 9, Tree: true, Reason: "deadline"})},
		"file-read": {guestproto.Header{Type: guestproto.TypeOpen, Channel: 6}, open(guestproto.MethodFileRead, guestproto.FileRead{FilePath: path, Offset: 1, Length: 2})},
		"file-write": {guestproto.Header{Type: guestproto.TypeOpen, Channel: 7}, open(guestproto.MethodFileWrite, guestproto.FileWrite{
			FilePath: guestproto.FilePath{Path: "?", PathBytes: []byte("/\xff")}, Owner: "user", Mode: 0o644, Sync: true})},
		"file-list":   {guestproto.Header{Type: guestproto.TypeOpen, Channel: 8}, open(guestproto.MethodFileList, guestproto.FileList{FilePath: path, Depth: 2})},
		"file-mkdir":  {guestproto.Header{Type: guestproto.TypeOpen, Channel: 9}, open(guestproto.MethodFileMkdir, guestproto.FileMkdir{FilePath: path, Owner: "user", Mode: 0o755})},
		"file-rename": {guestproto.Header{Type: guestproto.TypeOpen, Channel: 10}, open(guestproto.MethodFileRename, guestproto.FileRename{FilePath: path, To: "/b", ToBytes: []byte("/b")})},
		"file-remove": {guestproto.Header{Type: guestproto.TypeOpen, Channel: 11}, open(guestproto.MethodFileRemove, guestproto.FileRemove{FilePath: path, Recursive: true})},
		"file-info": {guestproto.Header{Type: guestproto.TypeResult, Channel: 7}, result(guestproto.FileInfo{
			Path: "/a", PathBytes: []byte("/a"), Type: "symlink", Size: 3, Mode: 0o777, UID: 1000, GID: 1000, Owner: "user", Group: "user", ModTime: 1, Target: "b", TargetBytes: []byte("b")})},
		"stats":     {guestproto.Header{Type: guestproto.TypeResult, Channel: 12}, result(guestproto.Stats{Processes: 1, MemTotalBytes: 2, MemFreeBytes: 3, DiskTotalBytes: 4, DiskFreeBytes: 5})},
		"processes": {guestproto.Header{Type: guestproto.TypeResult, Channel: 13}, result([]guestproto.ProcessInfo{{ID: "p1", PID: 7, Tag: "t", Command: "echo", User: "user", StartedAt: 1, Exit: &guestproto.ProcessExit{}}})},
		"start-pty": {guestproto.Header{Type: guestproto.TypeOpen, Channel: 14}, open(guestproto.MethodProcessSpawn, guestproto.ProcessStart{
			ID: "p2", Args: []string{"sh"}, PTY: &guestproto.Terminal{Cols: 80, Rows: 24, Term: "dumb"}, LogBytes: 1 << 20, StartedAt: 1, DeadlineAt: 2})},
		"query":   {guestproto.Header{Type: guestproto.TypeOpen, Channel: 15}, open(guestproto.MethodProcessQuery, guestproto.ProcessQuery{Tag: "t", Running: true})},
		"inspect": {guestproto.Header{Type: guestproto.TypeOpen, Channel: 16}, open(guestproto.MethodProcessInspect, guestproto.ProcessRef{PID: 7})},
		"input":   {guestproto.Header{Type: guestproto.TypeOpen, Channel: 17}, open(guestproto.MethodProcessInput, guestproto.ProcessInput{ID: "p1", Close: true})},
		"written": {guestproto.Header{Type: guestproto.TypeResult, Channel: 17}, result(guestproto.ProcessWritten{Bytes: 5})},
		"resize":  {guestproto.Header{Type: guestproto.TypeOpen, Channel: 18}, open(guestproto.MethodProcessResize, guestproto.ProcessResize{ID: "p1", Cols: 100, Rows: 30})},
		"look":    {guestproto.Header{Type: guestproto.TypeOpen, Channel: 19}, open(guestproto.MethodProcessAttach, guestproto.ProcessAttach{ID: "p1", From: 3, NoFollow: true, Hold: true})},
		"running": {guestproto.Header{Type: guestproto.TypeResult, Channel: 19}, result(guestproto.ProcessExit{Position: 8, Running: true})},
		"notice": {guestproto.Header{Type: guestproto.TypeData, Channel: 20}, append(mustJSON(t, guestproto.ProcessNotice{Missed: 1, Process: guestproto.ProcessInfo{
			ID: "p2", PID: 8, Command: "sh", Args: []string{"sh"}, WorkDir: "/", User: "root", PTY: true, Stdin: true, StartedAt: 1, DeadlineAt: 2, LogStart: 3, LogEnd: 4,
			Exit: &guestproto.ProcessExit{ExitCode: 1, Position: 4, EndedAt: 5}}}), '\n')},
	} {
		t.Run(name, func(t *testing.T) {
			frame := guestproto.AppendFrame(nil, f.header, f.payload)
			file := filepath.Join("testdata", "frames", name+".hex")
			if *update {
				if err := os.WriteFile(file, []byte(fold(hex.EncodeToString(frame))), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			golden, err := hex.DecodeString(strings.ReplaceAll(string(want), "\n", ""))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(frame, golden) {
				t.Errorf("the frame differs from %s:\n%x", file, frame)
			}
			r := guestproto.NewReader(bytes.NewReader(golden))
			r.Strict = true
			h, payload, err := r.Next(alloc)
			f.header.Length = uint32(len(f.payload))
			if err != nil || h != f.header || !bytes.Equal(payload, f.payload) {
				t.Errorf("got %+v %q, %v", h, payload, err)
			}
		})
	}
}

// fold breaks hex digits into lines.
func fold(s string) string {
	var b strings.Builder
	for len(s) > 64 {
		b.WriteString(s[:64] + "\n")
		s = s[64:]
	}
	return b.String() + s + "\n"
}

func alloc(n int) []byte { return make([]byte, n) }

func header(i int) guestproto.Header {
	return guestproto.Header{Type: guestproto.TypeData, Channel: uint32(i), Position: uint64(i) << 20}
}

// Whatever comes before it and however it is cut, a frame after a preamble is found.
func TestResync(t *testing.T) {
	payload := bytes.Repeat([]byte("RF\x01\x11\x00\x00\x04\x00"), 4096) // full of what looks like headers
	whole := guestproto.AppendFrame(nil, header(1), payload)
	long := guestproto.AppendFrame(nil, header(2), make([]byte, guestproto.MaxPayload))
	want := guestproto.AppendFrame(nil, header(3), []byte("found"))
	var garbage [][]byte
	for _, cut := range []int{0, 1, 2, 3, 23, 24, 25, 1000, len(whole) - 1} {
		garbage = append(garbage, whole[:cut], whole[cut:], long[:cut])
	}
	garbage = append(garbage, []byte("RF"), []byte("RFRFRF\x01"), bytes.Repeat([]byte{0xff}, 1<<20), long[:24], long[:len(long)-1])
	for i, g := range garbage {
		for _, in := range []io.Reader{
			bytes.NewReader(append(append(append([]byte{}, g...), guestproto.Preamble()...), want...)),
			iotest.HalfReader(bytes.NewReader(append(append(append([]byte{}, g...), guestproto.Preamble()...), want...))),
		} {
			r := guestproto.NewReader(in)
			for {
				h, got, err := r.Next(alloc)
				if err != nil {
					t.Errorf("garbage %d: %v", i, err)
					break
				}
				if h.Channel == 3 {
					if string(got) != "found" {
						t.Errorf("garbage %d: got %q", i, got)
					}
					break
				}
			}
		}
	}
}

func TestStrict(t *testing.T) {
	good := guestproto.AppendFrame(nil, header(1), []byte("payload"))
	for i := range good {
		bad := append([]byte{}, good...)
		bad[i] ^= 0x40
		r := guestproto.NewReader(bytes.NewReader(bad))
		r.Strict = true
		if h, _, err := r.Next(alloc); !errors.Is(err, guestproto.ErrCorrupt) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("byte %d: got %+v, %v", i, h, err)
		}
	}
	r := guestproto.NewReader(bytes.NewReader(good[:len(good)-1]))
	if _, _, err := r.Next(alloc); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got %v", err)
	}
	r = guestproto.NewReader(bytes.NewReader(nil))
	if _, _, err := r.Next(alloc); !errors.Is(err, io.EOF) {
		t.Errorf("got %v", err)
	}
}

func TestNegotiate(t *testing.T) {
	for _, c := range []struct {
		ours, theirs []int
		want         int
	}{{[]int{1}, []int{1}, 1}, {[]int{1, 2, 3}, []int{2, 1}, 2}, {[]int{1}, []int{2}, 0}, {nil, nil, 0}} {
		if got := guestproto.Negotiate(c.ours, c.theirs); got != c.want {
			t.Errorf("%v, %v: got %d", c.ours, c.theirs, got)
		}
	}
}

// FuzzReader: no bytes make the decoder panic, loop, allocate beyond a payload, or
// hand out a frame that does not encode to bytes of the input.
func FuzzReader(f *testing.F) {
	f.Add([]byte{}, false)
	f.Add(guestproto.AppendFrame(nil, header(1), []byte("x")), true)
	f.Add(append(guestproto.AppendFrame(nil, header(1), []byte("x"))[:20], guestproto.AppendFrame(make([]byte, 30), header(2), nil)...), false)
	f.Fuzz(func(t *testing.T, in []byte, strict bool) {
		r := guestproto.NewReader(bytes.NewReader(in))
		r.Strict = strict
		var total int64
		for {
			h, payload, err := r.Next(func(n int) []byte {
				if n <= 0 || n > guestproto.MaxPayload {
					t.Fatalf("asked for %d bytes", n)
				}
				return make([]byte, n)
			})
			if err != nil {
				break
			}
			frame := guestproto.AppendFrame(nil, h, payload)
			if !bytes.Contains(in, frame) {
				t.Fatalf("%+v is not in the input", h)
			}
			total += int64(len(frame))
		}
		if total+r.Skipped > int64(len(in)) {
			t.Fatalf("%d bytes of frames and %d skipped out of %d", total, r.Skipped, len(in))
		}
	})
}

func BenchmarkCodec(b *testing.B) {
	payload := make([]byte, guestproto.MaxPayload)
	frame := guestproto.AppendFrame(nil, header(1), payload)
	b.Run("Encode", func(b *testing.B) {
		b.SetBytes(int64(len(payload)))
		for b.Loop() {
			guestproto.PutHeader(frame, header(1), payload)
		}
	})
	b.Run("Decode", func(b *testing.B) {
		b.SetBytes(int64(len(payload)))
		src := bytes.NewReader(nil)
		r := guestproto.NewReader(src)
		for b.Loop() {
			src.Reset(frame)
			if _, _, err := r.Next(func(n int) []byte { return payload[:n] }); err != nil {
				b.Fatal(err)
			}
		}
	})
}
