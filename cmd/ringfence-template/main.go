// Command ringfence-template builds one template, as "ringfence template build" does.
// It is no part of what is installed: it compiles in seconds, so that scripts/demo can
// build a template on a fresh machine while the rest is still being compiled.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"ringfence.dev/ringfence/internal/datadir"
	"ringfence.dev/ringfence/internal/template"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: ringfence-template NAME TEMPLATE-DIRECTORY")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := build(ctx, os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "ringfence-template:", err)
		os.Exit(1)
	}
}

func build(ctx context.Context, recipe, dir string) error {
	if dataDir := filepath.Dir(dir); filepath.Base(dir) == "templates" && dataDir == "/var/lib/ringfence" {
		if err := datadir.Prepare(dataDir); err != nil {
			return err
		}
	}
	_, err := template.Build(ctx, template.Options{Recipe: recipe, Dir: dir, Progress: os.Stdout})
	return err
}
