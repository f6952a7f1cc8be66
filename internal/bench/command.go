package bench

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"ringfence.dev/ringfence/client"
)

// createExec measures create → first command done. Ending the sandbox is not timed.
func (r *run) createExec(ctx context.Context, row *Row) error {
	row.Note = "restored from the template's golden snapshot"
	for i := range r.samples(10) + 1 {
		began := time.Now()
		s, err := r.create(ctx)
		if err != nil {
			return err
		}
		result, err := s.Run(ctx, client.Command{Shell: "true"})
		took := time.Since(began)
		if err == nil {
			err = result.Err()
		}
		if kerr := r.kill(ctx, s); err == nil {
			err = kerr
		}
		if err != nil {
			return err
		}
		if i > 0 {
			row.addTime(took)
			continue
		}
		// The first one makes the server take the template's golden snapshot.
		if err := wait(ctx, 2*time.Second); err != nil {
			return err
		}
	}
	return nil
}

// execTrue measures the smallest command in a sandbox that has run some.
func (r *run) execTrue(ctx context.Context, row *Row) error {
	s, err := r.sandbox(ctx)
	if err != nil {
		return err
	}
	const warm = 10
	for i := range r.samples(200) + warm {
		began := time.Now()
		result, err := s.Run(ctx, client.Command{Shell: "true"})
		took := time.Since(began)
		if err == nil {
			err = result.Err()
		}
		if err != nil {
			return err
		}
		if i >= warm {
			row.addTime(took)
		}
	}
	return nil
}

const cell = `
import pandas as pd
df = pd.DataFrame({"x": [1, 2, 3, 4], "y": [2, 4, 6, 8]})
print(df.describe())
`

// cellPandas measures what a code interpreter does: write a cell, run it.
func (r *run) cellPandas(ctx context.Context, row *Row) error {
	s, err := r.sandbox(ctx)
	if err != nil {
		return err
	}
	row.Note = "a new python every time, which imports pandas anew"
	dir := s.Info().WorkDir
	const warm = 2
	for i := range r.samples(15) + warm {
		began := time.Now()
		if _, err := s.Files().Write(ctx, dir+"/cell.py", strings.NewReader(cell), client.WriteOptions{}); err != nil {
			return err
		}
		result, err := s.Run(ctx, client.Command{Shell: "python cell.py", Timeout: time.Minute})
		took := time.Since(began)
		if err == nil {
			err = result.Err()
		}
		if err != nil {
			if result != nil && len(result.Stderr) > 0 {
				err = fmt.Errorf("%w: %s", err, lastLine(result.Stderr))
			}
			return err
		}
		if !bytes.Contains(result.Stdout, []byte("2.581989")) {
			return fmt.Errorf("the cell printed %q", result.Stdout)
		}
		if i >= warm {
			row.addTime(took)
		}
	}
	return nil
}

func lastLine(b []byte) string {
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return lines[len(lines)-1]
}

// stdout measures a command's output on the binary stream, every byte compared.
func (r *run) stdout(ctx context.Context, row *Row) error {
	s, err := r.sandbox(ctx)
	if err != nil {
		return err
	}
	// The command is cat of a file of 10 MB, again and again: of the programs that every
	// image has it makes output fastest.
	const piece = 1e7
	if err := r.ensure(ctx, "10m", piece); err != nil {
		return err
	}
	times := max(r.o.LargeBytes/piece, 1)
	args := append([]string{"cat"}, repeat(r.path("10m"), int(times))...)
	for i := range 4 {
		check := &checker{period: piece}
		began := time.Now()
		result, err := s.Run(ctx, client.Command{Args: args, Stdout: check, Stderr: io.Discard, Timeout: 10 * time.Minute})
		took := time.Since(began)
		if err == nil {
			err = result.Err()
		}
		if err == nil {
			err = check.complete(times * piece)
		}
		if err != nil {
			return err
		}
		if i > 0 {
			row.addRate(times*piece, took)
		}
	}
	return nil
}

func repeat[T any](s T, n int) []T {
	list := make([]T, n)
	for i := range list {
		list[i] = s
	}
	return list
}
