package engine

import (
	"math/rand/v2"
	"testing"
	"time"

	"ringfence.dev/ringfence"
)

// What goes into a series comes out of it, in little memory, for a day.
func TestSeries(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var s series
	var all []raw
	var r raw
	r[rawAt] = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli() / 100
	const day = int(keepSamples / sampleEvery)
	idle := 0
	for i := range 2*day + 7 {
		if i == day {
			idle = s.bytes
		}
		r[rawAt] += 50
		if i >= day { // it works
			r[rawAt] += rng.Int64N(3) - 1
			r[rawCPU] += rng.Int64N(10_000)
			r[rawMemory] = rng.Int64N(1 << 19)
			r[rawDisk] += rng.Int64N(1000) - 400
			r[rawProcesses] = rng.Int64N(50)
		}
		if i == 2*day {
			r = raw{rawAt: r[rawAt], rawReceived: 1 << 62, rawSent: -1, rawCPU: -1 << 62} // whatever a fault may bring
		}
		all = append(all, r)
		s.add(r, 1<<20)
	}
	var got []raw
	s.each(func(before *raw, r raw) {
		if len(got) > 0 && *before != got[len(got)-1] || len(got) == 0 && before != nil {
			t.Fatalf("sample %d follows %v", len(got), before)
		}
		got = append(got, r)
	})
	if len(got) < day || len(got) > day+chunkSamples {
		t.Errorf("%d samples are kept, want a day's %d", len(got), day)
	}
	for i, r := range got {
		if want := all[len(all)-len(got)+i]; r != want {
			t.Fatalf("sample %d is %v, want %v", i, r, want)
		}
	}
	if idle > 30_000 || s.bytes > 260_000 {
		t.Errorf("a day of idling takes %d bytes, one of work %d", idle, s.bytes)
	}
	s.add(r, 10_000)
	if s.bytes > 10_000 {
		t.Errorf("%d bytes are kept of 10000", s.bytes)
	}
}

func TestSampleOf(t *testing.T) {
	size := ringfence.Size{MemoryMiB: 512, DiskMiB: 1024}
	before := raw{rawAt: 100, rawCPU: 1000}
	s := sampleOf(&before, raw{rawAt: 150, rawCPU: 8500, rawMemory: 3, rawDisk: 2, rawReceived: 5, rawSent: 6, rawProcesses: 7, rawDenied: 8}, size)
	want := ringfence.Sample{At: time.Unix(15, 0).UTC(), CPUSeconds: 8.5, CPUPercent: 150, MemoryBytes: 12288, MemoryLimitBytes: 512 << 20,
		DiskBytes: 8192, DiskLimitBytes: 1 << 30, NetworkReceivedBytes: 5, NetworkSentBytes: 6, NetworkDenied: 8, Processes: 7}
	if s != want {
		t.Errorf("got %+v", s)
	}
}
