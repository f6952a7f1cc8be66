package bench

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"ringfence.dev/ringfence/client"
)

// pattern is the content of every file here: random, the same in every run, and of a
// length that no buffer's is a multiple of, so that a byte out of place is seen.
var pattern = sync.OnceValue(func() []byte {
	b := make([]byte, 1<<20+7)
	source := rand.NewChaCha8([32]byte{1})
	_, _ = source.Read(b)
	return b
})

// endless reads as the pattern again and again.
type endless struct{}

func (endless) ReadAt(p []byte, at int64) (int, error) {
	b := pattern()
	for n := 0; n < len(p); {
		n += copy(p[n:], b[int((at+int64(n))%int64(len(b))):])
	}
	return len(p), nil
}

// content returns n bytes of the pattern.
func content(n int64) io.Reader { return io.NewSectionReader(endless{}, 0, n) }

// checker compares what is written to it with the pattern, which starts again after
// period bytes if that is not 0.
type checker struct {
	n      int64
	period int64
	bad    int64 // 1 + the first position that differs; 0: none
}

func (c *checker) Write(p []byte) (int, error) {
	b := pattern()
	total := len(p)
	for len(p) > 0 {
		at, left := c.n, int64(len(p))
		if c.period > 0 {
			at %= c.period
			left = min(left, c.period-at)
		}
		offset := int(at % int64(len(b)))
		n := int(min(left, int64(len(b)-offset)))
		if c.bad == 0 && !bytes.Equal(p[:n], b[offset:offset+n]) {
			i := 0
			for p[i] == b[offset+i] {
				i++
			}
			c.bad = c.n + int64(i) + 1
		}
		c.n += int64(n)
		p = p[n:]
	}
	return total, nil
}

// complete reports whether want bytes came, each of them right.
func (c *checker) complete(want int64) error {
	switch {
	case c.bad > 0:
		return fmt.Errorf("byte %d is not the one that was sent", c.bad-1)
	case c.n != want:
		return fmt.Errorf("%d bytes came, not %d", c.n, want)
	}
	return nil
}

func (r *run) path(size string) string { return "/tmp/bench-" + size }

func (r *run) bytes(size int64) int64 {
	if size == 0 {
		return r.o.LargeBytes
	}
	return size
}

// ensure puts a file of that size into the shared sandbox, if it is not there.
func (r *run) ensure(ctx context.Context, label string, size int64) error {
	if r.kept[label] {
		return nil
	}
	return r.put(ctx, label, size)
}

func (r *run) put(ctx context.Context, label string, size int64) error {
	s, err := r.sandbox(ctx)
	if err != nil {
		return err
	}
	info, err := s.Files().Write(ctx, r.path(label), content(size), client.WriteOptions{})
	if err == nil && info.Size != size {
		err = fmt.Errorf("the file has %d bytes, not %d", info.Size, size)
	}
	r.kept[label] = err == nil
	return err
}

func (r *run) get(ctx context.Context, label string, size int64) error {
	s, err := r.sandbox(ctx)
	if err != nil {
		return err
	}
	body, err := s.Files().Read(ctx, r.path(label))
	if err != nil {
		return err
	}
	defer body.Close()
	check := &checker{}
	if _, err := io.Copy(check, body); err != nil {
		return err
	}
	return check.complete(size)
}

// up measures writing a file of a size; 0 is the large one.
func up(label string, size int64, n int) func(*run, context.Context, *Row) error {
	return func(r *run, ctx context.Context, row *Row) error {
		return r.transfer(ctx, row, r.bytes(size), n, func() error { return r.put(ctx, label, r.bytes(size)) })
	}
}

// down measures reading one; every byte is compared.
func down(label string, size int64, n int) func(*run, context.Context, *Row) error {
	return func(r *run, ctx context.Context, row *Row) error {
		if err := r.ensure(ctx, label, r.bytes(size)); err != nil {
			return err
		}
		return r.transfer(ctx, row, r.bytes(size), n, func() error { return r.get(ctx, label, r.bytes(size)) })
	}
}

func (r *run) transfer(ctx context.Context, row *Row, size int64, n int, once func() error) error {
	if row.Unit == unitMS {
		n = r.samples(n)
	}
	if _, err := r.sandbox(ctx); err != nil {
		return err
	}
	for i := range n + 1 {
		began := time.Now()
		if err := once(); err != nil {
			return err
		}
		took := time.Since(began)
		switch {
		case i == 0: // warm-up
		case row.Unit == unitMS:
			row.addTime(took)
		default:
			row.addRate(size, took)
		}
	}
	return nil
}

// upRSS measures how much the daemon grows while a large file is written.
func (r *run) upRSS(ctx context.Context, row *Row) error {
	return r.growth(ctx, row, func() error { return r.put(ctx, "1g", r.o.LargeBytes) })
}

// downRSS measures how much the daemon grows while a large file is read.
func (r *run) downRSS(ctx context.Context, row *Row) error {
	return r.growth(ctx, row, func() error { return r.get(ctx, "1g", r.o.LargeBytes) })
}

func (r *run) growth(ctx context.Context, row *Row, once func() error) error {
	if r.host == nil {
		return r.elsewhere()
	}
	if err := r.ensure(ctx, "1g", r.o.LargeBytes); err != nil {
		return err
	}
	before, err := r.host.daemonRSS()
	if err != nil {
		return err
	}
	stop, done := make(chan struct{}), make(chan struct{})
	peak := before
	go func() {
		defer close(done)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				if rss, err := r.host.daemonRSS(); err == nil {
					peak = max(peak, rss)
				}
			}
		}
	}()
	err = once()
	close(stop)
	<-done
	row.add(float64(peak-before) / 1e6)
	row.Note = fmt.Sprintf("from %.0f MB before", float64(before)/1e6)
	return err
}
