package engine

import "sync"

// tasks are the goroutines that Close waits for. Other than a sync.WaitGroup it may grow
// while it is waited for, and afterwards: a call that Close ends can leave something to
// do. What begins after Wait has returned is not waited for.
type tasks struct {
	mu   sync.Mutex
	n    int           // guarded by mu
	none chan struct{} // closed when n is 0 again; nil while nobody waits; guarded by mu
}

func (t *tasks) Go(f func()) {
	t.mu.Lock()
	t.n++
	t.mu.Unlock()
	go func() {
		defer t.done()
		f()
	}()
}

func (t *tasks) done() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n--; t.n == 0 && t.none != nil {
		close(t.none)
		t.none = nil
	}
}

// Wait returns when none is under way.
func (t *tasks) Wait() {
	t.mu.Lock()
	if t.n == 0 {
		t.mu.Unlock()
		return
	}
	if t.none == nil {
		t.none = make(chan struct{})
	}
	none := t.none
	t.mu.Unlock()
	<-none
}
