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
	dir, err := r.daemonDir()
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	row.Note = "a second daemon, without sandboxes to find again"
	flags := []string{"--data-dir", filepath.Join(dir, "data"), "--template-dir", filepath.Join(dir, "templates")}
	for i := range r.samples(10) + 1 {
		var took time.Duration
		err := r.withDaemon(ctx, dir, flags, func(_ *client.Client, ready time.Duration) error {
			took = ready
			return nil
		})
		if err != nil {
			return err
		}
		if i > 0 { // the first start fills the data directory
			row.addTime(took)
		}
	}
	return nil
}

// withDaemon starts a daemon whose log is in dir, calls do when it answers, with how long
// that took, and ends it.
func (r *run) withDaemon(ctx context.Context, dir string, flags []string, do func(c *client.Client, ready time.Duration) error) (err error) {
	address, err := freeAddress()
	if err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(r.o.Binary, append([]string{"serve", "--listen", address}, flags...)...)
	key, environment := newKey()
	cmd.Env = environment
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM} // Ctrl-C is ours to hand on
	c, err := client.New(client.Options{BaseURL: "http://" + address, APIKey: key})
	if err != nil {
		return err
	}
	defer c.CloseIdleConnections()
	runtime.LockOSThread() // the signal at our death is sent when the starting thread dies
	defer runtime.UnlockOSThread()
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return err
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
		case <-time.After(time.Minute): // a pool is emptied first
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
				return do(c, time.Since(began))
			}
		}
		select {
		case <-time.After(time.Millisecond):
		case err := <-ended:
			gone = true
			text, _ := os.ReadFile(log.Name())
			return fmt.Errorf("the daemon ended (%w): %s", cmp.Or(err, errors.New("exit status 0")), lastLine(text))
		case <-patience:
			return errors.New("the daemon does not answer after 30 s")
		case <-ctx.Done():
			return ctx.Err()
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
