package guest_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/guestlink"
	"ringfence.dev/ringfence/internal/guestproto"
)

// A daemon that dies leaves half a frame in one pipe and half a frame in the other.
func TestAttachAgain(t *testing.T) {
	eachBed(t, func(t *testing.T, b *bed) {
		boot := b.conn.BootID()
		big := bytes.Repeat([]byte("RF\x01\x11"), guestproto.MaxPayload/4)
		frame := guestproto.AppendFrame(nil, guestproto.Header{Type: guestproto.TypeData, Channel: 1}, big)
		for i, cut := range []int{0, 1, 2, 23, 24, 25, 1000, len(frame) - 1, len(frame)} {
			id := fmt.Sprintf("writer%d", i)
			// Somebody who writes and whom nobody reads, so that the agent stops mid-frame.
			got := make(chan struct{})
			b.start(t, guestproto.ProcessStart{ID: id, Shell: "exec cat /dev/zero"}, func(guestlink.Chunk) error {
				select {
				case <-got:
				default:
					close(got)
				}
				return nil
			})
			<-got
			b.conn.Close()
			b.conn.Wait()
			raw := b.link()
			if _, err := raw.Write(frame[:cut]); err != nil {
				t.Fatal(err)
			}
			raw.Close()
			b.attach(t)
			if b.conn.BootID() != boot {
				t.Fatal("it is another agent")
			}
			if err := b.conn.Kill(testContext(t), guestproto.ProcessKill{ID: id, Signal: 9, Tree: true}); err != nil {
				t.Fatalf("after a cut at %d: %v", cut, err)
			}
			if r := b.sh(t, "echo again"); r.stdout != "again\n" {
				t.Fatalf("after a cut at %d: got %+v", cut, r)
			}
		}
	})
}

// One reader that does not read holds back its process alone.
func TestSlowReader(t *testing.T) {
	eachBed(t, func(t *testing.T, b *bed) {
		release := make(chan struct{})
		p := b.start(t, guestproto.ProcessStart{ID: "slow", Shell: "dd if=/dev/zero bs=1000000 count=30 status=none"}, func(guestlink.Chunk) error {
			<-release
			return nil
		})
		dir := b.place(t)
		for range 5 {
			if r := b.sh(t, "head -c 3000000 /dev/zero | wc -c"); r.stdout != "3000000\n" {
				t.Fatalf("got %+v", r)
			}
			b.write(t, guestproto.FileWrite{FilePath: at(dir + "/f")}, randomBytes(3<<20))
			if got, err := b.read(t, guestproto.FileRead{FilePath: at(dir + "/f")}); err != nil || len(got) != 3<<20 {
				t.Fatalf("got %d bytes, %v", len(got), err)
			}
		}
		select {
		case <-p.Done():
			t.Error("a process that is held back ended")
		default:
		}
		close(release)
		if exit, err := p.Wait(testContext(t)); err != nil || exit.Position != 30000000 || exit.Lost != 0 {
			t.Errorf("got %+v, %v", exit, err)
		}
	})
}

func TestOutputIsExact(t *testing.T) {
	eachBed(t, func(t *testing.T, b *bed) {
		p := b.place(t) + "/data"
		data := randomBytes(48 << 20)
		b.write(t, guestproto.FileWrite{FilePath: at(p)}, data)
		sums := []interface {
			io.Writer
			Sum([]byte) []byte
		}{sha256.New(), sha256.New()}
		var next uint64
		proc := b.start(t, guestproto.ProcessStart{Shell: "cat " + p + " & cat " + p + " >&2; wait"}, func(c guestlink.Chunk) error {
			if c.Position != next || c.Lost != 0 {
				t.Errorf("a chunk at %d with %d lost, want one at %d", c.Position, c.Lost, next)
			}
			next += uint64(len(c.Data))
			sums[c.Stream-guestlink.Stdout].Write(c.Data)
			return nil
		})
		exit, err := proc.Wait(testContext(t))
		if err != nil || exit.Position != uint64(2*len(data)) || next != exit.Position {
			t.Errorf("got %+v, %v, %d bytes", exit, err, next)
		}
		want := sha256.Sum256(data)
		for i, sum := range sums {
			if !bytes.Equal(sum.Sum(nil), want[:]) {
				t.Errorf("stream %d differs", i+1)
			}
		}
	})
}

// Small pieces are put together on the way; nothing is lost, and the last one comes.
func TestManySmallWrites(t *testing.T) {
	eachBed(t, func(t *testing.T, b *bed) {
		var want bytes.Buffer
		for i := range 20000 {
			fmt.Fprintf(&want, "%07d\n", i)
		}
		r := b.sh(t, `exec perl -e '$| = 1; select STDERR; $| = 1; for (0 .. 19999) { printf STDOUT "%07d\n", $_; print STDERR "." if $_ % 100 == 0 }'`)
		if r.stdout != want.String() || r.stderr != strings.Repeat(".", 200) || r.exit.ExitCode != 0 {
			t.Errorf("got %d and %d bytes, %+v", len(r.stdout), len(r.stderr), r.exit)
		}
	})
}

func TestRejoin(t *testing.T) {
	eachBed(t, func(t *testing.T, b *bed) {
		ctx := testContext(t)
		_, err := b.conn.Rejoin(ctx, "nobody", 0, nil)
		wantCode(t, err, ringfence.CodeProcessNotFound, "")

		// While it runs, from two positions; the first reader left.
		p := b.start(t, guestproto.ProcessStart{ID: "joined", Shell: "printf 0123456789; read x; printf abc; exit 5", Stdin: true}, nil)
		p.Detach()
		if _, err := p.Wait(ctx); ringfence.CodeOf(err) != ringfence.CodeCanceled {
			t.Errorf("got %v", err)
		}
		read := func(from uint64) (string, *guestlink.Process, *bytes.Buffer) {
			var out, errs bytes.Buffer
			q, err := b.conn.Rejoin(ctx, "joined", from, collect(&out, &errs))
			if err != nil {
				t.Fatal(err)
			}
			return "", q, &out
		}
		_, q1, out1 := read(0)
		_, q2, out2 := read(7)
		if _, err := q1.WriteStdin(ctx, []byte("go\n")); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			p    *guestlink.Process
			out  *bytes.Buffer
			want string
			from uint64
		}{{q1, out1, "0123456789abc", 0}, {q2, out2, "789abc", 7}} {
			exit, err := c.p.Wait(ctx)
			if err != nil || exit.ExitCode != 5 || exit.Position != 13 || exit.Lost != 0 || c.out.String() != c.want || c.p.From() != c.from {
				t.Errorf("got %q from %d, %+v, %v", c.out, c.p.From(), exit, err)
			}
		}
		// After its end.
		_, q3, out3 := read(10)
		if exit, err := q3.Wait(ctx); err != nil || exit.ExitCode != 5 || out3.String() != "abc" {
			t.Errorf("got %q, %+v, %v", out3, exit, err)
		}

		// What the log does not hold any more is told.
		p = b.start(t, guestproto.ProcessStart{ID: "noisy", Shell: "read x; dd if=/dev/zero bs=1000000 count=20 status=none; echo end", Stdin: true}, nil)
		p.Detach()
		var out, errs bytes.Buffer
		if q, err := b.conn.Rejoin(ctx, "noisy", 0, nil); err != nil {
			t.Fatal(err)
		} else if _, err := q.WriteStdin(ctx, []byte("go\n")); err != nil {
			t.Fatal(err)
		} else if _, err := q.Wait(ctx); err != nil {
			t.Fatal(err)
		}
		var lost uint64
		keep := collect(&out, &errs)
		q, err := b.conn.Rejoin(ctx, "noisy", 0, func(c guestlink.Chunk) error { lost += c.Lost; return keep(c) })
		if err != nil {
			t.Fatal(err)
		}
		exit, err := q.Wait(ctx)
		if err != nil || exit.Lost == 0 || exit.Lost+uint64(out.Len()) != exit.Position || exit.Position != 20000004 || q.From() != exit.Lost {
			t.Errorf("got %d bytes from %d, %+v, %v", out.Len(), q.From(), exit, err)
		}
		if out.Len() < 7<<20 || !bytes.HasSuffix(out.Bytes(), []byte("\x00end\n")) {
			t.Errorf("the log held %d bytes", out.Len())
		}
	})
}

// A session that ends ends its calls with an error, and no process.
func TestSessionEnds(t *testing.T) {
	eachBed(t, func(t *testing.T, b *bed) {
		var out bytes.Buffer
		started := make(chan struct{})
		var once sync.Once
		p := b.start(t, guestproto.ProcessStart{ID: "survivor", Shell: "echo one; sleep 0.5; echo two"}, func(c guestlink.Chunk) error {
			once.Do(func() { close(started) })
			return nil
		})
		<-started
		_, r, err := b.conn.ReadFile(testContext(t), guestproto.FileRead{FilePath: at("/etc/passwd")})
		if err != nil {
			t.Fatal(err)
		}
		why := ringfence.Errorf(ringfence.CodeSandboxEnded, "the sandbox ended")
		b.conn.CloseWithError(why)
		if _, err := p.Wait(testContext(t)); !errors.Is(err, why) {
			t.Errorf("got %v", err)
		}
		if _, err := io.ReadAll(r); err != nil && !errors.Is(err, why) {
			t.Errorf("got %v", err)
		}
		if _, err := b.conn.Ping(testContext(t)); !errors.Is(err, why) {
			t.Errorf("got %v", err)
		}
		if err := b.conn.Identity(testContext(t), guestproto.Identity{}); !errors.Is(err, why) {
			t.Errorf("got %v", err)
		}
		b.attach(t)
		q, err := b.conn.Rejoin(testContext(t), "survivor", 0, collect(&out, &out))
		if err != nil {
			t.Fatal(err)
		}
		if exit, err := q.Wait(testContext(t)); err != nil || exit.ExitCode != 0 || out.String() != "one\ntwo\n" {
			t.Errorf("got %q, %+v, %v", out.String(), exit, err)
		}
	})
}

func TestContextEnds(t *testing.T) {
	eachBed(t, func(t *testing.T, b *bed) {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		p := b.start(t, guestproto.ProcessStart{ID: "long", Shell: "sleep 3000"}, nil)
		_, err := p.Wait(ctx)
		wantCode(t, err, ringfence.CodeDeadlineExceeded, "")
		if _, err := b.conn.Start(ctx, guestproto.ProcessStart{ID: "never", Shell: "true"}, nil); ringfence.CodeOf(err) != ringfence.CodeDeadlineExceeded {
			t.Errorf("got %v", err)
		}
		if err := b.conn.Kill(testContext(t), guestproto.ProcessKill{ID: "long", Signal: 9, Tree: true}); err != nil {
			t.Error(err)
		}
		if exit, err := p.Wait(testContext(t)); err != nil || exit.ExitCode != 137 {
			t.Errorf("got %+v, %v", exit, err)
		}
	})
}

// The sandbox is saved, and goes on as another one: the link answers, a process that
// ran goes on, and its output can be joined.
func TestCheckpointAndRestore(t *testing.T) {
	b := gvisorBed(t, ringfence.Size{VCPU: 2, MemoryMiB: 512, DiskMiB: 512})
	ctx := testContext(t)
	b.start(t, guestproto.ProcessStart{ID: "counter", Shell: "i=0; while read x; do i=$((i+1)); echo $i; done", Stdin: true}, nil)
	p := b.start(t, guestproto.ProcessStart{ID: "sleeper", Shell: "setsid sleep 3000 & exec sleep 3000"}, nil)
	b.write(t, guestproto.FileWrite{FilePath: at("/srv/kept")}, []byte("kept"))
	boot := b.conn.BootID()

	if err := b.conn.Freeze(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(ctx); err == nil {
		t.Error("a frozen session has a result")
	}
	dir, err := os.MkdirTemp("", "rfc-") //nolint:usetesting // the sandbox's user has to reach it
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := b.inst.Pause(ctx); err != nil {
		t.Fatal(err)
	}
	if err := b.inst.Checkpoint(ctx, dir); err != nil {
		t.Fatal(err)
	}
	if err := b.inst.Resume(ctx); err != nil {
		t.Fatal(err)
	}
	check := func(t *testing.T, b *bed, host string) {
		b.attach(t)
		if b.conn.BootID() != boot {
			t.Error("it is another agent")
		}
		b.identify(t, guestproto.Identity{SandboxID: b.spec.ID, Hostname: host, User: "root", WorkDir: "/", MaxProcs: 100, MemoryBytes: 512 << 20})
		var out bytes.Buffer
		q, err := b.conn.Rejoin(testContext(t), "counter", 0, collect(&out, &out))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := q.WriteStdin(testContext(t), []byte("\n\n")); err != nil {
			t.Fatal(err)
		}
		if err := q.CloseStdin(testContext(t)); err != nil {
			t.Fatal(err)
		}
		if exit, err := q.Wait(testContext(t)); err != nil || exit.ExitCode != 0 || out.String() != "1\n2\n" {
			t.Errorf("got %q, %+v, %v", out.String(), exit, err)
		}
		if r := b.sh(t, "hostname; cat /srv/kept; grep -c -w "+host+" /etc/hosts; ulimit -u"); r.stdout != host+"\nkept1\n164\n" {
			t.Errorf("got %+v", r)
		}
		if err := b.conn.Kill(testContext(t), guestproto.ProcessKill{ID: "sleeper", Signal: 9, Tree: true}); err != nil {
			t.Error(err)
		}
		if r := b.sh(t, "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep [3]000'"); r.stdout != "0\n" {
			t.Errorf("got %+v", r)
		}
	}
	t.Run("Original", func(t *testing.T) { check(t, b, "first") })
	t.Run("Restored", func(t *testing.T) {
		c := &bed{name: "restored", gvisor: true, drv: b.drv, spec: b.spec}
		c.spec.ID, c.spec.Hostname = ringfence.NewSandboxID(), "second"
		inst, err := b.drv.Restore(testContext(t), c.spec, dir)
		if err != nil {
			t.Fatal(err)
		}
		c.use(t, inst)
		check(t, c, "second")
	})
}
