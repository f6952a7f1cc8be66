package cli

import (
	"io"
	"os"

	"github.com/spf13/cobra"
	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/bench"
)

func (a *App) benchCommand() *cobra.Command {
	var only []string
	var template string
	var samples int
	var quiet bool
	c := &cobra.Command{
		Use:   "bench",
		Short: "Measure the running server",
		Long: "Measure the running server, one row after the other, and print a table. p95 and p99 are what 95 and 99 of\n" +
			"100 samples reach or do better than. A row that cannot be measured here is listed with the reason; a budget\n" +
			"that is missed is marked and is no error. Run it on the server's host, as root, to see its memory as well.",
		Example: "  ringfence bench\n  ringfence bench --only exec_true,cell_pandas --json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if samples < 0 {
				return usage("--samples %d is negative", samples)
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			o := bench.Options{Client: c, Template: template, Only: only, Samples: samples, Progress: a.err}
			if serve, _, err := a.root.Find([]string{"serve"}); err == nil && serve != a.root {
				if o.Binary, err = os.Executable(); err != nil {
					return err
				}
			}
			if quiet {
				o.Progress = io.Discard
			}
			report, err := bench.Run(cmd.Context(), o)
			if err != nil {
				return err
			}
			if a.json {
				err = a.PrintJSON(report)
			} else {
				err = report.WriteTable(a.out)
			}
			if err == nil && !report.OK() {
				err = exitStatus(ringfence.RowOf(ringfence.CodeInternal).Exit)
			}
			return err
		},
	}
	flags := c.Flags()
	flags.StringSliceVar(&only, "only", nil, "rows to measure, such as exec_true,cell_pandas")
	flags.StringVarP(&template, "template", "t", "", "template of the sandboxes (default code-interpreter)")
	flags.IntVar(&samples, "samples", 0, "samples of each row in ms (default: the row's own number)")
	flags.BoolVarP(&quiet, "quiet", "q", false, "no progress on stderr")
	_ = c.RegisterFlagCompletionFunc("only", cobra.FixedCompletions(bench.Names(), cobra.ShellCompDirectiveNoFileComp))
	return c
}
