package engine

import (
	"sync/atomic"
	"testing"
)

// What begins while, and after, it is waited for is no race, and is waited for as long
// as something else is under way.
func TestTasks(t *testing.T) {
	var all tasks
	var ran atomic.Int64
	var grow func(int)
	grow = func(n int) {
		ran.Add(1)
		for range min(n, 2) {
			all.Go(func() { grow(n - 1) })
		}
	}
	const want = 3<<8 - 1 // f(n) = 1+2f(n-1), f(1) = 2
	all.Go(func() { grow(9) })
	waited := make(chan struct{}, 3)
	for range cap(waited) {
		go func() { all.Wait(); waited <- struct{}{} }()
	}
	for range cap(waited) {
		<-waited
	}
	all.Wait()
	if n := ran.Load(); n != want {
		t.Errorf("%d ran, want %d", n, want)
	}
	again := make(chan struct{})
	go all.Wait()
	all.Go(func() { close(again) })
	<-again
	all.Wait()
}
