package gvisor

import (
	"context"

	"gvisor.dev/gvisor/runsc/boot"
)

// startGuest runs the agent in a sentry that booted.
func startGuest(ctx context.Context, dir, id string) error {
	if err := setNetwork(ctx, dir, false); err != nil {
		return err
	}
	return call(ctx, dir, boot.ContMgrRootContainerStart, &id, nil)
}
