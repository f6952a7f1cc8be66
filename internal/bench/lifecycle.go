package bench

import (
	"context"
	"errors"
	"time"

	"ringfence.dev/ringfence/client"
)

// createAndRun makes a sandbox, runs true in it and ends it; the end is not timed.
func (r *run) createAndRun(ctx context.Context) (took time.Duration, err error) {
	began := time.Now()
	s, err := r.create(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, r.kill(ctx, s)) }()
	result, err := s.Run(ctx, client.Command{Shell: "true"})
	took = time.Since(began)
	if err == nil {
		err = result.Err()
	}
	return took, err
}

// holdMemory starts a program that has 50 MB, and writes 50 MB to the disk.
const holdMemory = `head -c 50000000 /dev/urandom > /tmp/written
nohup python3 -c 'import os, time
held = os.urandom(50_000_000)
open("/tmp/held", "w").close()
time.sleep(1e6)' >/dev/null 2>&1 &
until test -e /tmp/held; do sleep 0.05; done`

// pauseAndResume measures one of the two on a sandbox with 100 MB.
func pauseAndResume(resume bool) func(*run, context.Context, *Row) error {
	return func(r *run, ctx context.Context, row *Row) (err error) {
		row.Note = "50 MB of random memory and 50 MB of random file"
		s, err := r.create(ctx)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, r.kill(ctx, s)) }()
		if result, err := s.Run(ctx, client.Command{Shell: holdMemory}); err != nil || result.Err() != nil {
			return errors.Join(err, result.Err())
		}
		for i := range r.samples(10) + 1 {
			began := time.Now()
			if _, err := s.Pause(ctx); err != nil {
				return err
			}
			paused := time.Since(began)
			began = time.Now()
			if _, err := s.Resume(ctx); err != nil {
				return err
			}
			resumed := time.Since(began)
			if result, err := s.Run(ctx, client.Command{Shell: "pgrep -f urandom >/dev/null"}); err != nil || result.Err() != nil {
				return errors.Join(err, result.Err())
			}
			switch {
			case i == 0: // the first one warms up
			case resume:
				row.addTime(resumed)
			default:
				row.addTime(paused)
			}
		}
		return nil
	}
}

// forkPandas measures fork → first command in the fork of a sandbox in which a program
// has pandas loaded.
func (r *run) forkPandas(ctx context.Context, row *Row) (err error) {
	s, err := r.create(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.kill(ctx, s)) }()
	const load = `nohup python3 -c 'import pandas, time
open("/tmp/loaded", "w").close()
time.sleep(1e6)' >/dev/null 2>&1 &
until test -e /tmp/loaded; do sleep 0.05; done`
	if result, err := s.Run(ctx, client.Command{Shell: load}); err != nil || result.Err() != nil {
		return errors.Join(err, result.Err())
	}
	for i := range r.samples(10) + 1 {
		began := time.Now()
		forks, err := s.Fork(ctx, 1)
		if err != nil {
			return err
		}
		result, err := forks[0].Run(ctx, client.Command{Shell: "true"})
		took := time.Since(began)
		if err = errors.Join(err, result.Err(), r.kill(ctx, forks[0])); err != nil {
			return err
		}
		if i > 0 {
			row.addTime(took)
		}
	}
	return nil
}
