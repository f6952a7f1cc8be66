package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"ringfence.dev/ringfence/client"
)

// daemonReady measures the start of a daemon until it answers: a second one, with a
// data directory of its own that a first start has filled.
func (r *run) daemonReady(ctx context.Context, row *Row) error {
	if r.o.Binary == "" {
		return skipped("the program that runs the bench cannot start a server")
	}
	if os.Geteuid() != 0 {
		return skipped("only root can start a server that isolates")
	}
	dir, err := os.MkdirTemp("", "ringfence-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	row.Note = "a second daemon, without sandboxes to find again"
	for i := range r.samples(10) + 1 {
		took, err := r.startDaemon(ctx, dir)
		if err != nil {
			return err
		}
		if i > 0 { // the first start fills the data directory
			row.addTime(took)
		}
	}
	return nil
}

// startDaemon starts a daemon, waits until it answers, and ends it.
func (r *run) startDaemon(ctx context.Context, dir string) (took time.Duration, err error) {
	address, err := freeAddress()
	if err != nil {
		return 0, err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return 0, err
	}
	defer log.Close()
	cmd := exec.Command(r.o.Binary, "serve", "--listen", address, "--data-dir", filepath.Join(dir, "data"), "--template-dir", filepath.Join(dir, "templates"))
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM} // Ctrl-C is ours to hand on
	c, err := client.New(client.Options{BaseURL: "http://" + address})
	if err != nil {
		return 0, err
	}
	defer c.CloseIdleConnections()
	runtime.LockOSThread() // the signal at our death is sent when the starting thread dies
	defer runtime.UnlockOSThread()
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	gone := false
	defer func() {
		if gone {
			return
		}
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			_ = cmd.Process.Kill()
			err = errors.Join(err, errors.New("the daemon did not end when it was told to"))
		}
	}()
	patience := time.After(30 * time.Second)
	for {
		// Connecting by hand: the client would wait between its own attempts.
		if conn, err := net.DialTimeout("tcp", address, time.Second); err == nil {
			conn.Close()
			if _, err := c.Health(ctx); err == nil {
				return time.Since(began), nil
			}
		}
		select {
		case <-time.After(time.Millisecond):
		case err := <-ended:
			gone = true
			text, _ := os.ReadFile(log.Name())
			return 0, fmt.Errorf("the daemon ended (%w): %s", cmp.Or(err, errors.New("exit status 0")), lastLine(text))
		case <-patience:
			return 0, errors.New("the daemon does not answer after 30 s")
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// freeAddress returns an address of this host that nobody listens on.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}
