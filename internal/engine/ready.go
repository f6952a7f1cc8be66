package engine

import (
	"context"
	"time"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/guestlink"
	"ringfence.dev/ringfence/internal/guestproto"
)

// readyDeadline is how long a template's ready command may take.
const readyDeadline = 60 * time.Second

// maxReadyOutput is how much of the end of its output is told when it fails, in bytes.
const maxReadyOutput = 512

// makeReady runs the ready command of a template in a sandbox that booted. What it leaves
// running is in the sandbox from then on, and in the snapshots of it.
func makeReady(ctx context.Context, conn *guestlink.Conn, template ringfence.Template) error {
	if template.Ready == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, readyDeadline)
	defer cancel()
	var said []byte
	proc, err := conn.Start(ctx, guestproto.ProcessStart{
		ID: ringfence.NewSandboxID(), Shell: template.Ready, Env: template.Env, User: template.User, WorkDir: template.WorkDir, Tag: "ready",
	}, func(c guestlink.Chunk) error {
		said = append(said, c.Data...)
		said = said[max(0, len(said)-maxReadyOutput):]
		return nil
	})
	if err != nil {
		return err
	}
	end, err := proc.Wait(ctx)
	if err == nil && end.ExitCode == 0 {
		return nil
	}
	return ringfence.Errorf(ringfence.CodeFailedPrecondition, "the ready command of the template %s did not succeed in %v", template.Name, readyDeadline).
		WithHint("it ended with %d and said %q; build the template again with one that works", end.ExitCode, said).WithCause(err)
}
