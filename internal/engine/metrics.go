package engine

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/driver"
)

const (
	sampleEvery = 5 * time.Second
	// maxSeriesBytes is what the samples of all sandboxes may take together.
	maxSeriesBytes = 64 << 20
	// busyCPU is the CPU time between two samples from which on a sandbox's agent is
	// asked too: asking costs time itself, and one that idles is to be left alone.
	busyCPU = 25 * time.Millisecond
	// statsTimeout is how long the agent may take to say how many processes there are.
	statsTimeout = 2 * time.Second
)

// usage is what a sandbox used, over time.
type usage struct {
	asking    atomic.Bool // the agent is being asked
	processes atomic.Int64

	mu     sync.Mutex
	series series // guarded by mu
}

// sample samples all sandboxes until the engine closes.
func (e *Engine) sample() {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		select {
		case at := <-tick.C:
			e.sampleAll(at)
		case <-e.ctx.Done():
			return
		}
	}
}

func (e *Engine) sampleAll(at time.Time) {
	e.mu.Lock()
	boxes := make([]*box, 0, len(e.live))
	for _, b := range e.live {
		boxes = append(boxes, b)
	}
	e.mu.Unlock()
	limit := maxSeriesBytes / max(len(boxes), 1)
	for _, b := range boxes {
		r, err := b.measure(e.ctx, at)
		if err != nil {
			continue // it starts or ends
		}
		b.usage.mu.Lock()
		s := &b.usage.series
		var busy bool
		if n := len(s.chunks); n == 0 || r[rawCPU]-s.chunks[n-1].last[rawCPU] > busyCPU.Milliseconds() {
			busy = true
		}
		s.add(r, limit)
		b.usage.mu.Unlock()
		if busy && b.usage.asking.CompareAndSwap(false, true) {
			e.wg.Go(func() {
				defer b.usage.asking.Store(false)
				b.countProcesses(b.ctx)
			})
		}
	}
}

// measure looks at a sandbox from the host's side.
func (b *box) measure(ctx context.Context, at time.Time) (raw, error) {
	b.mu.Lock()
	inst, running := b.inst, b.row.State == ringfence.StateRunning
	b.mu.Unlock()
	if inst == nil || !running {
		return raw{}, ringfence.Errorf(ringfence.CodeUnavailable, "the sandbox does not run yet")
	}
	u, err := inst.Usage(ctx)
	if err != nil {
		return raw{}, err
	}
	return b.raw(at, u), nil
}

func (b *box) raw(at time.Time, u driver.Usage) raw {
	pages := func(n int64) int64 { return (n + pageBytes - 1) / pageBytes }
	received, sent := b.ports.received.Load(), b.ports.sent.Load()
	var denied int64
	if b.history != nil {
		var out, in int64
		out, in, denied = b.history.Counters()
		received, sent = received+in, sent+out
	}
	return raw{
		rawAt: at.UnixMilli() / sampleStep.Milliseconds(), rawCPU: u.CPUNanos / int64(time.Millisecond),
		rawMemory: pages(u.MemoryBytes), rawDisk: pages(u.DiskBytes),
		rawReceived: received, rawSent: sent, rawProcesses: b.usage.processes.Load(), rawDenied: denied,
	}
}

// countProcesses asks the agent. What it does not answer in time stays as it was.
func (b *box) countProcesses(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, statsTimeout)
	defer cancel()
	conn, err := b.link(ctx)
	if err != nil {
		return
	}
	if stats, err := conn.Stats(ctx); err == nil && stats.Processes >= 0 {
		b.usage.processes.Store(int64(min(stats.Processes, 1<<20)))
	}
}

// Metrics returns what a sandbox uses now, and the samples between two times, the
// oldest first; a zero time is no bound. The processes are the sandbox's own word, and
// at most 5 s old in a sample of one that works.
func (e *Engine) Metrics(ctx context.Context, project, id string, from, to time.Time) (now ringfence.Sample, samples []ringfence.Sample, err error) {
	b, err := e.reach(ctx, project, id)
	if err != nil {
		return now, nil, err
	}
	b.countProcesses(ctx)
	at := time.Now()
	r, err := b.measure(ctx, at)
	if err != nil {
		return now, nil, b.explain(err)
	}
	size := b.sandbox().Size
	b.usage.mu.Lock()
	defer b.usage.mu.Unlock()
	samples = []ringfence.Sample{}
	var last, beforeLast *raw
	b.usage.series.each(func(before *raw, r raw) {
		beforeLast, last = before, &r
		s := sampleOf(before, r, size)
		if !s.At.Before(from) && (to.IsZero() || !s.At.After(to)) {
			samples = append(samples, s)
		}
	})
	if last != nil && r[rawAt]-last[rawAt] < int64(500*time.Millisecond/sampleStep) {
		last = beforeLast // too near for a share of time
	}
	return sampleOf(last, r, size), samples, nil
}
