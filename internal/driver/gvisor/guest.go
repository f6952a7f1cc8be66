package gvisor

import (
	"context"
	"os"

	"gvisor.dev/gvisor/runsc/boot"
)

// startGuest runs the agent in a sentry that booted.
func startGuest(ctx context.Context, dir, id string, link *os.File) error {
	if err := setNetwork(ctx, dir, link, false); err != nil {
		return err
	}
	return call(ctx, dir, boot.ContMgrRootContainerStart, &id, nil)
}
