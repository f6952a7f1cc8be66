package gvisor

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/boot"

	"ringfence.dev/ringfence"
)

// rescueOutputMax bounds what Rescue returns, in bytes.
const rescueOutputMax = 64 << 10

// Rescue runs argv as root inside through the sentry's control socket, which
// works however stuck the agent is. Its stdio are pipes, as a snapshot taken
// while a socket is in the guest could not be restored.
func (i *instance) Rescue(ctx context.Context, argv []string) (int, []byte, error) {
	if len(argv) == 0 {
		return 0, nil, ringfence.Errorf(ringfence.CodeInvalidArgument, "there is nothing to run")
	}
	if err := i.alive(); err != nil {
		return 0, nil, err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDONLY, 0)
	if err != nil {
		return 0, nil, err
	}
	defer null.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return 0, nil, err
	}
	defer r.Close()
	// The sentry writes to it as nobody.
	w.Chown(nobody, nobody)
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"}
	pid, err := execute(ctx, i.dir, i.id, argv, env, map[int]*os.File{0: null, 1: w, 2: w})
	w.Close()
	if err != nil {
		return 0, nil, fmt.Errorf("cannot run %q in sandbox %s: %w", argv[0], i.id, err)
	}
	output := make(chan []byte, 1)
	go func() {
		out, _ := io.ReadAll(io.LimitReader(r, rescueOutputMax))
		io.Copy(io.Discard, r)
		output <- out
	}()
	ws, err := waitPID(ctx, i.dir, i.id, pid)
	if err != nil {
		i.abandon(ctx, pid)
		return 0, nil, fmt.Errorf("cannot wait for %q in sandbox %s: %w", argv[0], i.id, err)
	}
	status := ws.ExitStatus()
	if ws.Signaled() {
		status = 128 + int(ws.Signal())
	}
	// A child that argv left behind may hold the pipe open for ever.
	r.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	return status, <-output, nil
}

// abandon kills a process of a rescue that nobody waits for any more.
func (i *instance) abandon(ctx context.Context, pid int32) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	args := &boot.SignalArgs{CID: i.id, Signo: int32(unix.SIGKILL), PID: pid, Mode: boot.DeliverToProcess}
	if err := call(ctx, i.dir, boot.ContMgrSignal, args, nil); err != nil && i.alive() == nil {
		i.d.log.Warn("cannot end a rescue", "sandbox", i.id, "error", err)
	}
}
