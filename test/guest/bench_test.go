package guest_test

import (
	"fmt"
	"io"
	"testing"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/driver"
	"ringfence.dev/ringfence/internal/guestlink"
	"ringfence.dev/ringfence/internal/guestproto"
)

func benchBeds(b *testing.B, f func(b *testing.B, bed *bed)) {
	b.Run("host", func(b *testing.B) { f(b, hostBed(b)) })
	b.Run("gvisor", func(b *testing.B) { f(b, gvisorBed(b, ringfence.Size{VCPU: 2, MemoryMiB: 1024, DiskMiB: 2048})) })
}

func BenchmarkPing(b *testing.B) {
	benchBeds(b, func(b *testing.B, bed *bed) {
		for b.Loop() {
			if _, err := bed.conn.Ping(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkTrue(b *testing.B) {
	benchBeds(b, func(b *testing.B, bed *bed) {
		for b.Loop() {
			p, err := bed.conn.Start(b.Context(), guestproto.ProcessStart{ID: newID(), Shell: "true"}, nil)
			if err != nil {
				b.Fatal(err)
			}
			if exit, err := p.Wait(b.Context()); err != nil || exit.ExitCode != 0 {
				b.Fatal(exit, err)
			}
		}
	})
}

// zeros is what the throughput benchmarks move at a time, in bytes.
const zeros = 256 << 20

func BenchmarkStdout(b *testing.B) {
	benchBeds(b, func(b *testing.B, bed *bed) {
		b.SetBytes(zeros)
		for b.Loop() {
			n := 0
			p, err := bed.conn.Start(b.Context(), guestproto.ProcessStart{ID: newID(), Shell: fmt.Sprintf("exec dd if=/dev/zero bs=1M count=%d status=none", zeros>>20)},
				func(c guestlink.Chunk) error { n += len(c.Data); return nil })
			if err != nil {
				b.Fatal(err)
			}
			if exit, err := p.Wait(b.Context()); err != nil || exit.ExitCode != 0 || n != zeros {
				b.Fatal(exit, err, n)
			}
		}
	})
}

type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) { return len(p), nil }

func BenchmarkFileWrite(b *testing.B) {
	benchBeds(b, func(b *testing.B, bed *bed) {
		p := bed.place(b) + "/f"
		b.SetBytes(zeros)
		for b.Loop() {
			_, err := bed.conn.WriteFile(b.Context(), guestproto.FileWrite{FilePath: at(p)}, io.LimitReader(zeroReader{}, zeros))
			if err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkFileRead(b *testing.B) {
	benchBeds(b, func(b *testing.B, bed *bed) {
		p := bed.place(b) + "/f"
		if _, err := bed.conn.WriteFile(b.Context(), guestproto.FileWrite{FilePath: at(p)}, io.LimitReader(zeroReader{}, zeros)); err != nil {
			b.Fatal(err)
		}
		b.SetBytes(zeros)
		for b.Loop() {
			_, r, err := bed.conn.ReadFile(b.Context(), guestproto.FileRead{FilePath: at(p)})
			if err != nil {
				b.Fatal(err)
			}
			if n, err := io.Copy(io.Discard, r); err != nil || n != zeros {
				b.Fatal(n, err)
			}
		}
	})
}

// A sandbox that has run commands and has nothing to do uses no processor, and keeps
// no more memory than the output that can still be joined.
func TestIdle(t *testing.T) {
	b := gvisorBed(t, ringfence.Size{VCPU: 2, MemoryMiB: 512, DiskMiB: 512})
	for range 20 {
		b.sh(t, "true")
	}
	b.sh(t, "dd if=/dev/zero bs=1M count=50 status=none")
	time.Sleep(time.Second) // what the commands leave to do is done
	usage := func() driver.Usage {
		u, err := b.inst.Usage(testContext(t))
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	before, begin := usage(), time.Now()
	time.Sleep(2 * time.Second)
	after := usage()
	if share := float64(after.CPUNanos-before.CPUNanos) / float64(time.Since(begin)); share > 0.005 {
		t.Errorf("it uses %.2f%% of a processor", share*100)
	}
	s, err := b.conn.Stats(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	if used := s.MemTotalBytes - s.MemFreeBytes; used > 40e6 {
		t.Errorf("the guest uses %d bytes", used)
	}
}
