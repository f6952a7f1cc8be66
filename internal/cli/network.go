package cli

import (
	"fmt"
	"net"
	"strconv"

	"github.com/spf13/cobra"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/client"
)

func (a *App) networkCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "network",
		Short: "What may leave a sandbox, and what did",
		Args:  cobra.NoArgs,
	}
	c.AddCommand(a.networkGetCommand(), a.networkSetCommand(), a.networkLogCommand())
	return c
}

type policyJSON struct {
	AllowOut            []string `json:"allow_out"`
	DenyOut             []string `json:"deny_out"`
	AllowInternetAccess *bool    `json:"allow_internet_access"`
	ClosedPorts         bool     `json:"closed_ports,omitempty"`
}

func policyOf(p ringfence.NetworkPolicy) policyJSON {
	return policyJSON{append([]string{}, p.AllowOut...), append([]string{}, p.DenyOut...), p.AllowInternetAccess, p.ClosedPorts}
}

func (a *App) printPolicy(p ringfence.NetworkPolicy) error {
	if a.json {
		return a.PrintJSON(policyOf(p))
	}
	for _, list := range []struct {
		word    string
		entries []string
	}{{"allow", p.AllowOut}, {"deny", p.DenyOut}} {
		for _, entry := range list.entries {
			if _, err := fmt.Fprintf(a.out, "%s\t%s\n", list.word, Escape(entry)); err != nil {
				return err
			}
		}
	}
	rest := "allow\tthe public internet"
	if len(p.AllowOut) > 0 || p.AllowInternetAccess != nil && !*p.AllowInternetAccess {
		rest = "deny\teverything else"
	}
	_, err := fmt.Fprintln(a.out, rest)
	return err
}

func (a *App) networkGetCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "get ID",
		Short: "Show the policy that is in force",
		Args:  cobra.ExactArgs(1), ValidArgsFunction: a.completeIDs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			p, err := c.Open(args[0]).Network(cmd.Context())
			if err != nil {
				return err
			}
			return a.printPolicy(p)
		},
	}
}

// policyFlags are the flags of a policy.
type policyFlags struct {
	allowOut, denyOut []string
	noInternet        bool
}

func (f *policyFlags) add(c *cobra.Command) {
	flags := c.Flags()
	flags.StringArrayVar(&f.allowOut, "allow-out", nil, "address, network, name, *.suffix or ~expression that it may reach, with an optional :port; then nothing else")
	flags.StringArrayVar(&f.denyOut, "deny-out", nil, "the same, for what it may not reach")
	flags.BoolVar(&f.noInternet, "no-internet", false, "let it reach nothing but what --allow-out says")
}

func (f *policyFlags) policy() *ringfence.NetworkPolicy {
	if len(f.allowOut) == 0 && len(f.denyOut) == 0 && !f.noInternet {
		return nil
	}
	p := &ringfence.NetworkPolicy{AllowOut: f.allowOut, DenyOut: f.denyOut}
	if f.noInternet {
		no := false
		p.AllowInternetAccess = &no
	}
	return p
}

func (a *App) networkSetCommand() *cobra.Command {
	var f policyFlags
	c := &cobra.Command{
		Use:   "set ID",
		Short: "Replace the policy of a running sandbox",
		Long: "Replace the whole policy of a running sandbox; without flags, by the default, the public\n" +
			"internet. It holds for new connections at once, and open ones that it denies are cut.",
		Example: "  ringfence network set ID --allow-out packages.example.org --allow-out '*.files.example.org'",
		Args:    cobra.ExactArgs(1), ValidArgsFunction: a.completeIDs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			p := f.policy()
			if p == nil {
				p = &ringfence.NetworkPolicy{}
			}
			if err := c.Open(args[0]).UpdateNetwork(cmd.Context(), *p); err != nil {
				return err
			}
			return a.printPolicy(*p)
		},
	}
	f.add(c)
	return c
}

type flowJSON struct {
	ID              int64    `json:"id"`
	At              string   `json:"at"`
	Name            *string  `json:"name"`
	Address         *string  `json:"address"`
	Port            *uint16  `json:"port"`
	Protocol        string   `json:"protocol"`
	Verdict         string   `json:"verdict"`
	Reason          string   `json:"reason"`
	Rule            *string  `json:"rule"`
	BytesSent       int64    `json:"bytes_sent"`
	BytesReceived   int64    `json:"bytes_received"`
	DurationSeconds *float64 `json:"duration_seconds"`
	Count           int64    `json:"count"`
}

func (a *App) printFlow(f ringfence.NetworkFlow) error {
	address := ""
	if f.Address.IsValid() {
		address = f.Address.String()
	}
	var took *float64
	if !f.EndedAt.IsZero() {
		seconds := f.EndedAt.Sub(f.At).Seconds()
		took = &seconds
	}
	if a.json {
		var port *uint16
		if f.Port != 0 {
			port = &f.Port
		}
		return a.PrintJSON(flowJSON{f.ID, ringfence.FormatTime(f.At), null(f.Name), null(address), port, f.Protocol, string(f.Verdict), f.Reason, null(f.Rule),
			f.BytesSent, f.BytesReceived, took, f.Count})
	}
	where := f.Name
	if address != "" && f.Port != 0 {
		address = net.JoinHostPort(address, strconv.Itoa(int(f.Port)))
	}
	switch {
	case where == "":
		where = address
	case address != "":
		where += " " + address
	}
	why := f.Reason
	if f.Rule != "" {
		why += " (" + f.Rule + ")"
	}
	line := fmt.Sprintf("%s\t%s\t%s\t%s\t%s", f.At.Local().Format("15:04:05.000"), f.Verdict, f.Protocol, Escape(where), Escape(why))
	switch {
	case took == nil:
		line += "\topen"
	case f.Verdict == ringfence.VerdictAllowed || f.BytesSent+f.BytesReceived > 0:
		line += fmt.Sprintf("\t%d out, %d in, %.1fs", f.BytesSent, f.BytesReceived, *took)
	}
	if f.Count > 1 {
		line += fmt.Sprintf("\t%d times", f.Count)
	}
	_, err := fmt.Fprintln(a.out, line)
	return err
}

func (a *App) networkLogCommand() *cobra.Command {
	var verdict string
	var follow bool
	c := &cobra.Command{
		Use:   "log ID",
		Short: "Show where a sandbox connected, and where it may not",
		Long: "Show the sandbox's flows, the oldest first: time, verdict, protocol, destination, the reason\n" +
			"with the entry of the policy that decided, and bytes. The newest 1000 are kept. With --follow\n" +
			"it goes on, and shows a flow when it begins and again when it has ended.",
		Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeIDs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			o := client.NetworkLogOptions{Verdict: ringfence.Verdict(verdict)}
			for f, err := range c.Open(args[0]).NetworkFlows(cmd.Context(), o, follow) {
				if err == nil {
					err = a.printFlow(f)
				}
				if err != nil {
					return err
				}
			}
			return nil
		},
	}
	c.Flags().StringVar(&verdict, "verdict", "", "only those: allowed, denied or failed")
	c.Flags().BoolVarP(&follow, "follow", "f", false, "wait for more")
	return c
}
