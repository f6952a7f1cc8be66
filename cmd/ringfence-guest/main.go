// Command ringfence-guest is the agent inside every sandbox. It is PID 1 there and
// speaks with the host over its standard input and output; see package guest.
package main

import (
	"flag"
	"fmt"
	"log/slog"
	"os"

	"ringfence.dev/ringfence/internal/guest"
)

func main() {
	if len(os.Args) == 2 && guest.IsInit(os.Args[1]) {
		if err := guest.RunInit(os.Args[1]); err != nil {
			os.Exit(1)
		}
		return
	}
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "ringfence-guest: %v\n", err)
		os.Exit(1)
	}
}

func run() error {
	plain := flag.Bool("plain", false, "leave the machine alone: no namespaces, no control groups, no changes to it")
	namespaces := flag.Bool("namespaces", false, "with -plain: give commands namespaces of their own all the same")
	cgroups := flag.String("cgroups", "", "with -plain: track commands in the control groups mounted here")
	flag.Parse()
	cfg := guest.Config{
		Log:         slog.New(slog.NewTextHandler(os.Stderr, nil)),
		Namespaces:  !*plain || *namespaces,
		CgroupRoot:  *cgroups,
		OwnsMachine: !*plain,
	}
	if !*plain {
		cfg.CgroupRoot = guest.CgroupMount
	}
	var err error
	if cfg.In, cfg.Out, err = guest.TakeLink(); err != nil {
		return err
	}
	return guest.Run(cfg)
}
