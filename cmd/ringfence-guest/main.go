// Command ringfence-guest is the agent inside every sandbox. It is PID 1 there and
// speaks with the host over its standard input and output; see package guest.
package main

import (
	"flag"
	"fmt"
	"log/slog"
	"os"

	"golang.org/x/sys/unix"

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
	if cfg.In, cfg.Out, err = takeLink(); err != nil {
		return err
	}
	return guest.Run(cfg)
}

// takeLink moves the link off the numbers 0 and 1, so that nothing that prints by
// mistake can end up between its frames.
func takeLink() (in, out *os.File, err error) {
	var fds [2]int
	for i := range fds {
		if fds[i], err = unix.FcntlInt(uintptr(i), unix.F_DUPFD_CLOEXEC, 10); err != nil {
			return nil, nil, fmt.Errorf("cannot use the link: %w", err)
		}
	}
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot use the link: %w", err)
	}
	defer unix.Close(null)
	for i := range fds {
		if err := unix.Dup3(null, i, 0); err != nil {
			return nil, nil, fmt.Errorf("cannot use the link: %w", err)
		}
	}
	return os.NewFile(uintptr(fds[0]), "link-in"), os.NewFile(uintptr(fds[1]), "link-out"), nil
}
