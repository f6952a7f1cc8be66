package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/client"
)

func (a *App) portsCommand() *cobra.Command {
	var publish, unpublish []int
	var wake bool
	var link int
	var path string
	var expires time.Duration
	c := &cobra.Command{
		Use:   "ports ID",
		Short: "List what listens in a sandbox, publish a port, or make a link to one",
		Example: "  ringfence ports $id\n" +
			"  ringfence ports $id --link 8888 --path /lab --expires 10m\n  ringfence ports $id --publish 8000",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeIDs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			ports := c.Open(args[0]).Ports()
			for i, list := range [][]int{publish, unpublish} {
				for _, port := range list {
					change := ports.Publish
					switch {
					case i == 0 && wake:
						change = ports.PublishWaking
					case i == 1:
						change = ports.Unpublish
					}
					if _, err := change(cmd.Context(), port); err != nil {
						return err
					}
				}
			}
			if link != 0 {
				url, until, err := ports.Link(cmd.Context(), link, client.LinkOptions{Path: path, ExpiresIn: expires})
				if err != nil {
					return err
				}
				if a.json {
					return a.PrintJSON(map[string]any{"url": url, "expires_at": ringfence.FormatTime(until)})
				}
				_, err = fmt.Fprintln(a.out, Escape(url))
				return err
			}
			list, err := ports.List(cmd.Context())
			if err != nil {
				return err
			}
			if a.json {
				return a.PrintJSON(map[string]any{"ports": portsJSON(list)})
			}
			rows := make([][]string, 0, len(list))
			for _, p := range list {
				who, pid := "private", ""
				if p.Public {
					who = "public"
				}
				if p.PID != 0 {
					pid = strconv.Itoa(p.PID)
				}
				rows = append(rows, []string{strconv.Itoa(p.Port.Port), first(p.Address, "–"), who, pid, p.Command})
			}
			return a.table([]string{"PORT", "ADDRESS", "WHO", "PID", "COMMAND"}, rows)
		},
	}
	flags := c.Flags()
	flags.IntSliceVar(&publish, "publish", nil, "let everybody reach this port")
	flags.BoolVar(&wake, "wake", false, "with --publish: who comes without a credential wakes the sandbox when it is paused")
	flags.IntSliceVar(&unpublish, "unpublish", nil, "let only those with a credential reach this port")
	flags.IntVar(&link, "link", 0, "print a link that opens this port without a credential")
	flags.StringVar(&path, "path", "/", "where the link leads")
	flags.DurationVar(&expires, "expires", time.Hour, "how long the link works, up to 168h")
	return c
}

func portsJSON(list []client.Port) []map[string]any {
	out := make([]map[string]any, 0, len(list))
	for _, p := range list {
		row := map[string]any{"port": p.Port.Port, "address": nil, "public": p.Public, "wakes": p.Wakes, "pid": nil, "command": nil, "url": p.URL}
		if p.Address != "" {
			row["address"] = p.Address
		}
		if p.PID != 0 {
			row["pid"] = p.PID
		}
		if p.Command != "" {
			row["command"] = p.Command
		}
		out = append(out, row)
	}
	return out
}

func (a *App) forwardCommand() *cobra.Command {
	var address string
	c := &cobra.Command{
		Use:   "forward ID [LOCAL:]PORT…",
		Short: "Make ports of a sandbox reachable on this machine",
		Long: "Listens on LOCAL here, or on the same number, and carries each connection to PORT in the\n" +
			"sandbox, where listening on 127.0.0.1 is enough. LOCAL 0 is any port that is free. It goes on until\n" +
			"it is interrupted.",
		Example: "  ringfence forward $id 8000\n  ringfence forward $id 9000:8000 5432",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 2 {
				return usage("which port of which sandbox?").WithHint("such as `ringfence forward ID 8000`, or 9000:8000 for another port here")
			}
			return nil
		},
		ValidArgsFunction: a.completeIDs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, spec := range args[1:] {
				if _, _, err := parseForward(spec); err != nil {
					return err
				}
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			return a.forward(cmd.Context(), c.Open(args[0]), address, args[1:])
		},
	}
	c.Flags().StringVar(&address, "address", "127.0.0.1", "address of this machine to listen on; beyond loopback everybody there reaches the sandbox")
	return c
}

func (a *App) forward(ctx context.Context, sb *client.Sandbox, address string, specs []string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	if _, err := sb.Refresh(ctx); err != nil && ringfence.CodeOf(err) != ringfence.CodePermissionDenied {
		return err // a sandbox's token may not ask
	}
	for _, spec := range specs {
		local, remote, err := parseForward(spec)
		if err != nil {
			return err
		}
		listener, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(local)))
		if err != nil {
			return ringfence.Errorf(ringfence.CodeFailedPrecondition, "cannot listen here: %w", err).WithHint("choose another port, as %d:%d, or 0:%d for any", (remote+10000)%65536, remote, remote)
		}
		stop := context.AfterFunc(ctx, func() { listener.Close() })
		defer stop()
		if a.json {
			if err := a.PrintJSON(map[string]any{"listening": listener.Addr().String(), "port": remote}); err != nil {
				return err
			}
		} else {
			fmt.Fprintf(a.out, "%s → port %d of %s\n", listener.Addr(), remote, Escape(sb.ID()))
		}
		wg.Go(func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				wg.Go(func() { a.carry(ctx, sb, remote, conn) })
			}
		})
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

// parseForward reads [LOCAL:]PORT.
func parseForward(spec string) (local, remote int, err error) {
	here, there, two := strings.Cut(spec, ":")
	if !two {
		there = here
	}
	remote, err = strconv.Atoi(there)
	if err == nil {
		local, err = strconv.Atoi(here)
	}
	if err != nil || remote < 1 || remote > 65535 || local < 0 || local > 65535 {
		return 0, 0, usage("%q is not [LOCAL:]PORT", spec).WithHint("ports are numbers from 1 to 65535; LOCAL may be 0 for any that is free")
	}
	return local, remote, nil
}

// carry connects one connection to the sandbox, each half until its own end.
func (a *App) carry(ctx context.Context, sb *client.Sandbox, port int, local net.Conn) {
	defer local.Close()
	remote, err := sb.Ports().Dial(ctx, port)
	if err != nil {
		if ctx.Err() == nil {
			a.note("ringfence: %s", Escape(err.Error()))
		}
		return
	}
	defer remote.Close()
	defer context.AfterFunc(ctx, func() { local.Close(); remote.Close() })()
	done := make(chan error, 2)
	go func() { done <- half(remote, local) }()
	go func() { done <- half(local, remote) }()
	if err := <-done; err == nil {
		<-done
	}
}

type halfCloser interface{ CloseWrite() error }

func half(to, from net.Conn) error {
	_, err := io.Copy(to, from)
	if closer, ok := to.(halfCloser); ok && err == nil {
		err = closer.CloseWrite()
	}
	if err != nil {
		return errors.Join(err, to.Close(), from.Close()) // the other half ends too
	}
	return nil
}
