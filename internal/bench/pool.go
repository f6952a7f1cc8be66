package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/client"
)

// createExecPool measures create → first command done, each time from a full pool.
func (r *run) createExecPool(ctx context.Context, row *Row) error {
	row.Note = "of a second daemon, with a pool of 4"
	return r.withPool(ctx, 4, func(pooled *run, full func() error) error {
		for i := range r.samples(20) + 1 {
			if err := full(); err != nil {
				return err
			}
			took, err := pooled.createAndRun(ctx)
			if err != nil {
				return err
			}
			if i > 0 {
				row.addTime(took)
			}
		}
		return nil
	})
}

// burst measures 100 creates at once, each with its first command, from a pool of 100.
func (r *run) burst(ctx context.Context, row *Row) error {
	const many = 100
	row.Note = "of a second daemon, with a pool of 100"
	return r.withPool(ctx, many, func(pooled *run, full func() error) error {
		for range r.samples(3) {
			if err := full(); err != nil {
				return err
			}
			took, err := pooled.createMany(ctx, many)
			if err != nil {
				return err
			}
			row.addTime(took)
		}
		return nil
	})
}

// createMany makes sandboxes at once, runs true in each, and ends them; that is not timed.
func (r *run) createMany(ctx context.Context, many int) (took time.Duration, err error) {
	var wg sync.WaitGroup
	errs := make([]error, many)
	made := make([]*client.Sandbox, many)
	began := time.Now()
	for i := range many {
		wg.Go(func() {
			s, err := r.create(ctx)
			if err == nil {
				made[i] = s
				_, err = s.Run(ctx, client.Command{Shell: "true"})
			}
			errs[i] = err
		})
	}
	wg.Wait()
	took = time.Since(began)
	for _, s := range made {
		if s != nil {
			errs = append(errs, r.kill(ctx, s))
		}
	}
	return took, errors.Join(errs...)
}

// withPool calls do with a daemon of its own in whose pool so many sandboxes wait. full
// returns when all are there, again after some were taken.
func (r *run) withPool(ctx context.Context, size int, do func(pooled *run, full func() error) error) error {
	if os.Getenv("RINGFENCE_TEMPLATE_DIR") == "" {
		return skipped("a daemon with a pool needs RINGFENCE_TEMPLATE_DIR")
	}
	dir, err := r.daemonDir()
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	name := r.o.Template
	if name == "" {
		name = "code-interpreter"
	}
	flags := []string{"--data-dir", filepath.Join(dir, "data"), "--pool", fmt.Sprintf("%s=%d", name, size)}
	return r.withDaemon(ctx, dir, flags, func(c *client.Client, _ time.Duration) (err error) {
		o := r.o
		o.Client = c
		times := 0
		full := func() error {
			times++
			for end := time.Now().Add(10 * time.Minute); ; {
				log, err := os.ReadFile(filepath.Join(dir, "log"))
				if err != nil {
					return err
				}
				// Said each time that the last one that was missing is there.
				if bytes.Count(log, []byte("the pool is full")) >= times {
					return nil
				}
				if time.Now().After(end) {
					return fmt.Errorf("the pool is not full after 10 minutes: %s", lastLine(log))
				}
				if err := wait(ctx, 50*time.Millisecond); err != nil {
					return err
				}
			}
		}
		return do(&run{o: o, kept: map[string]bool{}}, full)
	})
}

// daemonDir makes a directory for a daemon of the bench's own, where one can be started.
func (r *run) daemonDir() (string, error) {
	if r.o.Binary == "" {
		return "", skipped("the program that runs the bench cannot start a server")
	}
	if os.Geteuid() != 0 {
		return "", skipped("only root can start a server that isolates")
	}
	return os.MkdirTemp("", "ringfence-bench-")
}

// newKey is a key for a daemon that starts with it in its environment.
func newKey() (key string, environment []string) {
	key = ringfence.NewAPIKey()
	return key, append(os.Environ(), "RINGFENCE_API_KEY="+key)
}
