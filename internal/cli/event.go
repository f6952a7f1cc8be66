package cli

import (
	"fmt"
	"iter"
	"sort"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/client"
)

func (a *App) eventsCommand() *cobra.Command {
	var o client.EventOptions
	c := &cobra.Command{
		Use:               "events [ID]",
		Short:             "Follow what happens to sandboxes, or to one",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeIDs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			var all iter.Seq2[ringfence.Event, error]
			if len(args) == 1 {
				all = c.Open(args[0]).Events(cmd.Context(), o)
			} else {
				all = c.Events(cmd.Context(), o)
			}
			for ev, err := range all {
				if err == nil {
					err = a.printEvent(ev)
				}
				if err != nil {
					return err
				}
			}
			return nil
		},
	}
	c.Flags().StringVar(&o.After, "after", "", "id of the last event that was seen, or now (default: from the oldest that the server keeps)")
	c.Flags().BoolVar(&o.Once, "once", false, "print what there is and end")
	return c
}

func (a *App) printEvent(ev ringfence.Event) error {
	if a.json {
		return a.PrintJSON(map[string]any{"id": ev.ID, "at": ringfence.FormatTime(ev.At), "type": ev.Type, "sandbox_id": ev.SandboxID, "data": ev.Data})
	}
	var data []string
	for k, v := range ev.Data {
		if text := fmt.Sprint(v); v != nil && text != "" {
			data = append(data, k+"="+text)
		}
	}
	sort.Strings(data)
	_, err := fmt.Fprintln(a.out, Escape(fmt.Sprintf("%s  %-20s  %-18s  %s", ev.At.Local().Format(time.TimeOnly), first(ev.SandboxID, "–"), ev.Type, strings.Join(data, " "))))
	return err
}

func (a *App) statsCommand() *cobra.Command {
	var past time.Duration
	c := &cobra.Command{
		Use:               "stats ID",
		Short:             "Show what a sandbox uses, now and over time",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeIDs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := lifetime("past", past); err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			from := time.Now()
			if past > 0 {
				from = from.Add(-past)
			}
			m, err := c.Open(args[0]).Metrics(cmd.Context(), from, time.Time{})
			if err != nil {
				return err
			}
			list := append(m.Samples, m.Now) //nolint:gocritic // samples are not used again
			if a.json {
				return a.PrintJSON(map[string]any{"samples": list})
			}
			rows := make([][]string, 0, len(list))
			for _, s := range list {
				rows = append(rows, []string{s.At.Local().Format(time.TimeOnly), fmt.Sprintf("%.1f %%", s.CPUPercent), fmt.Sprintf("%.1f s", s.CPUSeconds),
					mib(s.MemoryBytes) + " / " + mib(s.MemoryLimitBytes), mib(s.DiskBytes) + " / " + mib(s.DiskLimitBytes),
					mib(s.NetworkReceivedBytes) + " / " + mib(s.NetworkSentBytes), fmt.Sprint(s.NetworkDenied), fmt.Sprint(s.Processes)})
			}
			return a.table([]string{"TIME", "CPU", "CPU TIME", "MEMORY MIB", "DISK MIB", "NET IN / OUT MIB", "DENIED", "PROCESSES"}, rows)
		},
	}
	c.Flags().DurationVar(&past, "past", 0, "the samples of this long too, one each 5 s, up to 24h")
	return c
}

func mib(n int64) string { return fmt.Sprintf("%.1f", float64(n)/(1<<20)) }
