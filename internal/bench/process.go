package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"ringfence.dev/ringfence/client"
)

// ptyEcho measures a key that is typed into a shell on a terminal until its echo is there.
func (r *run) ptyEcho(ctx context.Context, row *Row) error {
	s, err := r.sandbox(ctx)
	if err != nil {
		return err
	}
	session, err := s.StartSession(ctx, client.ProcessOptions{
		Args: []string{"bash", "--norc", "--noprofile"}, Env: map[string]string{"PS1": "> "}, Terminal: &client.TerminalSize{Cols: 200, Rows: 24},
	}, client.SessionOptions{Kill: true})
	if err != nil {
		return err
	}
	defer session.Close()
	// see waits for the output to end in some byte.
	see := func(want byte) error {
		for {
			out, err := session.Next()
			if err != nil {
				return fmt.Errorf("the shell ended: %w", err)
			}
			if n := len(out.Data); n > 0 && out.Data[n-1] == want {
				return nil
			}
		}
	}
	if err := see(' '); err != nil { // the prompt
		return err
	}
	const warm, line = 20, 100
	for i := range r.samples(300) + warm {
		key := byte('a' + i%26)
		began := time.Now()
		if _, err := session.Write([]byte{key}); err != nil {
			return err
		}
		if err := see(key); err != nil {
			return err
		}
		if i >= warm {
			row.addTime(time.Since(began))
		}
		if i%line == line-1 { // Ctrl-U: an empty line again, as a full one is drawn anew
			if _, err := session.Write([]byte{0x15}); err != nil {
				return err
			}
			if _, err := session.Next(); err != nil {
				return fmt.Errorf("the shell ended: %w", err)
			}
			time.Sleep(20 * time.Millisecond) // the rest of it
			if _, err := session.Write([]byte{'#'}); err != nil {
				return err
			}
			if err := see('#'); err != nil {
				return err
			}
		}
	}
	return nil
}

// commands64 measures 64 commands that start at once in one sandbox, until the last is done.
func (r *run) commands64(ctx context.Context, row *Row) error {
	s, err := r.sandbox(ctx)
	if err != nil {
		return err
	}
	row.Note = "all of them; an error fails the row"
	return r.atOnce(ctx, row, 10, repeat(s, 64))
}

// commands500 measures 500 commands that start at once in 20 sandboxes, until the last is done.
func (r *run) commands500(ctx context.Context, row *Row) (err error) {
	const boxes, each = 20, 25
	row.Note = "all of them, 25 in each of 20 sandboxes; an error fails the row"
	var made []*client.Sandbox
	defer func() {
		for _, s := range made {
			err = errors.Join(err, r.kill(ctx, s))
		}
	}()
	var all []*client.Sandbox
	for range boxes {
		s, err := r.create(ctx)
		if err != nil {
			return err
		}
		made = append(made, s)
		all = append(all, repeat(s, each)...)
	}
	return r.atOnce(ctx, row, 3, all)
}

// atOnce runs a command in each of some sandboxes at once, a number of times.
func (r *run) atOnce(ctx context.Context, row *Row, times int, boxes []*client.Sandbox) error {
	for i := range r.samples(times) + 1 {
		errs := make([]error, len(boxes))
		var wg sync.WaitGroup
		began := time.Now()
		for n, s := range boxes {
			wg.Go(func() {
				want := fmt.Sprintf("%d.%d", i, n)
				result, err := s.Run(ctx, client.Command{Shell: "echo " + want, Timeout: 2 * time.Minute})
				if err == nil {
					err = result.Err()
				}
				if err == nil && string(result.Stdout) != want+"\n" {
					err = fmt.Errorf("a command printed %q where %q was due", result.Stdout, want)
				}
				errs[n] = err
			})
		}
		wg.Wait()
		took := time.Since(began)
		for _, err := range errs {
			if err != nil {
				return err
			}
		}
		if i > 0 { // the first one opens the connections
			row.addTime(took)
		}
	}
	return nil
}

// busySandbox keeps all cores of a sandbox busy and 95 percent of its memory used, says so,
// and stays.
const busySandbox = `
import os, time
def meminfo():
    return {line.split(":")[0]: int(line.split()[1]) << 10 for line in open("/proc/meminfo")}
for _ in range(2 * os.cpu_count()):
    if os.fork() == 0:
        while True: pass
m = meminfo()
kept = b"x" * (m["MemAvailable"] - m["MemTotal"] // 20)
m = meminfo()
print("used", 100 - 100 * m["MemAvailable"] / m["MemTotal"], flush=True)
time.sleep(3600)
`

// busyExec measures the smallest command where everything is busy with other ones.
func (r *run) busyExec(ctx context.Context, row *Row) (err error) {
	s, err := r.create(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.kill(ctx, s)) }()
	p, err := s.StartProcess(ctx, client.ProcessOptions{Args: []string{"python3", "-c", busySandbox}})
	if err != nil {
		return err
	}
	begun := time.Now()
	for {
		out, err := p.Output(ctx, 0)
		if err != nil {
			return err
		}
		var used float64
		if n, _ := fmt.Sscanf(string(out.Stdout), "used %f\n", &used); n == 1 {
			row.Note = fmt.Sprintf("%.1f %% of the memory used", used)
			break
		}
		if out.Exit != nil || time.Since(begun) > time.Minute {
			return fmt.Errorf("what makes the load does not: %s%s", out.Stdout, lastLine(out.Stderr))
		}
		if err := wait(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
	for range r.samples(50) {
		began := time.Now()
		result, err := s.Run(ctx, client.Command{Shell: "true"})
		if err == nil {
			err = result.Err()
		}
		if err != nil {
			return err
		}
		row.addTime(time.Since(began))
	}
	return nil
}
