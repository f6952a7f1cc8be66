package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/control/client"
	"gvisor.dev/gvisor/pkg/sentry/control"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"
	"gvisor.dev/gvisor/runsc/specutils"
)

// controlSocket is the sentry's control socket in a sandbox's directory.
const controlSocket = "control.sock"

// call makes one call to a sentry. The sentry's answer cannot be cancelled, so a
// call whose context ends is left behind on its connection, which then closes.
func call(ctx context.Context, dir, method string, arg, result any) error {
	conn, err := dial(dir)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() {
		defer conn.Close()
		done <- withoutTrace(conn.Call(method, arg, result))
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("the sentry did not answer %s: %w", method, ctx.Err())
	}
}

func dial(dir string) (*urpc.Client, error) {
	path := filepath.Join(dir, controlSocket)
	if len(path) >= 108 { // sizeof sun_path: reach it through its directory
		fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		defer unix.Close(fd)
		path = fmt.Sprintf("/proc/self/fd/%d", fd)
	}
	conn, err := client.ConnectTo(path)
	if err != nil {
		return nil, fmt.Errorf("cannot reach the sentry: %w", err)
	}
	return conn, nil
}

// execute starts a process inside, with the rights of PID 1, and returns its number there.
func execute(ctx context.Context, dir, id string, argv, env []string, files map[int]*os.File) (int32, error) {
	// Without a list it would get every capability there is.
	caps, err := specutils.Capabilities(false, capabilitySets())
	if err != nil {
		return 0, err
	}
	args := &control.ExecArgs{
		Argv:             argv,
		Capabilities:     caps,
		Envv:             env,
		WorkingDirectory: "/",
		ContainerID:      id,
		FilePayload:      control.NewFilePayload(files, nil),
	}
	var pid int32
	err = call(ctx, dir, boot.ContMgrExecuteAsync, args, &pid)
	return pid, err
}

// waitPID waits for a process that execute started.
func waitPID(ctx context.Context, dir, id string, pid int32) (unix.WaitStatus, error) {
	var status uint32
	err := call(ctx, dir, boot.ContMgrWaitPID, &boot.WaitPIDArgs{PID: pid, CID: id}, &status)
	return unix.WaitStatus(status), err
}

// withoutTrace cuts the stacks off that a panic in the sentry adds to its error.
func withoutTrace(err error) error {
	if err == nil {
		return nil
	}
	if what, _, found := strings.Cut(err.Error(), "\ngoroutine "); found {
		return errors.New(strings.TrimSuffix(what, ":"))
	}
	return err
}
