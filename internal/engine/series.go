package engine

import (
	"encoding/binary"
	"time"

	"ringfence.dev/ringfence"
)

const (
	// keepSamples is how long samples are kept.
	keepSamples = 24 * time.Hour
	// chunkSamples is how many samples are dropped at a time: half an hour of them.
	chunkSamples = 360
	// sampleStep is the unit of a sample's time.
	sampleStep = 100 * time.Millisecond
	pageBytes  = 4 << 10 // the unit of memory and disk
)

// The fields of a raw sample.
const (
	rawAt       = iota // steps since 1970
	rawCPU             // milliseconds
	rawMemory          // pages
	rawDisk            // pages
	rawReceived        // bytes
	rawSent            // bytes
	rawProcesses
	rawDenied // flows and lookups
	rawFields
)

// raw is a sample in whole numbers of small units.
type raw [rawFields]int64

// series holds the samples of a sandbox, the oldest first. Each but the first of a chunk
// is one byte that says which fields changed, and the changes: 1 to 3 bytes for a
// sandbox that idles, 10 or so for one that works.
type series struct {
	chunks []chunk
	bytes  int
}

type chunk struct {
	first, last raw
	n           int
	changes     []byte
}

// chunkOverhead is what a chunk takes beside its changes, roughly.
const chunkOverhead = 160

// add appends a sample, and drops the oldest chunks while they are older than
// keepSamples or all take more than limit bytes.
func (s *series) add(r raw, limit int) {
	n := len(s.chunks)
	if n == 0 || s.chunks[n-1].n == chunkSamples {
		if n > 0 { // the last one grows no more
			c := &s.chunks[n-1]
			c.changes = append(make([]byte, 0, len(c.changes)), c.changes...)
		}
		s.chunks = append(s.chunks, chunk{first: r, last: r, n: 1})
		s.bytes += chunkOverhead
	} else {
		c := &s.chunks[n-1]
		before := len(c.changes)
		c.changes = appendChange(c.changes, c.last, r)
		s.bytes += len(c.changes) - before
		c.last = r
		c.n++
	}
	oldest := r[rawAt] - int64(keepSamples/sampleStep)
	for len(s.chunks) > 1 && (s.chunks[0].last[rawAt] < oldest || s.bytes > limit) {
		s.bytes -= chunkOverhead + len(s.chunks[0].changes)
		s.chunks = append([]chunk(nil), s.chunks[1:]...)
	}
}

// expected is what a sample looks like when nothing happened in the usual time.
func expected(last raw) raw {
	last[rawAt] += int64(sampleEvery / sampleStep)
	return last
}

func appendChange(b []byte, last, r raw) []byte {
	at := len(b)
	b = append(b, 0)
	for i, want := range expected(last) {
		if r[i] != want {
			b[at] |= 1 << i
			b = binary.AppendVarint(b, r[i]-want)
		}
	}
	return b
}

// each calls f with every sample, in order, and the one before it.
func (s *series) each(f func(before *raw, r raw)) {
	var before *raw
	for _, c := range s.chunks {
		r := c.first
		b := c.changes
		for i := 0; ; i++ {
			f(before, r)
			last := r
			before = &last
			if i+1 == c.n {
				break
			}
			mask := b[0]
			b = b[1:]
			r = expected(r)
			for field := range r {
				if mask&(1<<field) != 0 {
					d, n := binary.Varint(b)
					r[field] += d
					b = b[n:]
				}
			}
		}
	}
}

// sampleOf makes a sample of a raw one.
func sampleOf(before *raw, r raw, size ringfence.Size) ringfence.Sample {
	s := ringfence.Sample{
		At: time.UnixMilli(r[rawAt] * sampleStep.Milliseconds()).UTC(), CPUSeconds: float64(r[rawCPU]) / 1000,
		MemoryBytes: r[rawMemory] * pageBytes, MemoryLimitBytes: size.MemoryMiB << 20,
		DiskBytes: r[rawDisk] * pageBytes, DiskLimitBytes: size.DiskMiB << 20,
		NetworkReceivedBytes: r[rawReceived], NetworkSentBytes: r[rawSent], Processes: int(r[rawProcesses]), NetworkDenied: r[rawDenied],
	}
	if before != nil {
		if wall := (r[rawAt] - before[rawAt]) * sampleStep.Milliseconds(); wall > 0 {
			s.CPUPercent = max(float64(r[rawCPU]-before[rawCPU])/float64(wall)*100, 0)
		}
	}
	return s
}
