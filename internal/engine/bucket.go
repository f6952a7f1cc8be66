package engine

import (
	"sync"
	"time"
)

// bucket lets so many things happen a second, and as many at once.
type bucket struct {
	mu   sync.Mutex
	have float64   // guarded by mu
	last time.Time // guarded by mu
}

// take takes n from a bucket that fills with rate a second and holds burst. When there is
// not enough it takes nothing, and says after how long there will be.
func (b *bucket) take(at time.Time, n, rate, burst float64) (wait time.Duration, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.last.IsZero() {
		b.have = burst
	} else {
		b.have = min(burst, b.have+rate*max(at.Sub(b.last).Seconds(), 0))
	}
	b.last = at
	if b.have < n {
		return time.Duration((n - b.have) / rate * float64(time.Second)), false
	}
	b.have -= n
	return 0, true
}
