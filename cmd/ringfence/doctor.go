package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/internal/cli"
	"ringfence.dev/ringfence/internal/doctor"
)

func doctorCommand(app *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look whether this host can run sandboxes, and say how to mend what is in the way",
		Long: "Look whether this host can run sandboxes, and say how to mend what is in the way. It\n" +
			"changes nothing. It fails when something keeps sandboxes from running; a warning does not.",
		GroupID: "server",
		Args:    cobra.NoArgs,
	}
	load := configFlags(cmd, "data_dir")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := load()
		if err != nil {
			return err
		}
		found := doctor.Check(doctor.Host{DataDir: c.DataDir})
		failed := 0
		for _, f := range found {
			if f.Level == doctor.Failure {
				failed++
			}
			if app.JSON() {
				continue
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%-8s %-20s %s\n", f.Level, f.Check, cli.Escape(f.Detail))
			if f.Fix != "" {
				fmt.Fprintf(cmd.OutOrStdout(), "%-8s %-20s → %s\n", "", "", f.Fix)
			}
		}
		if app.JSON() {
			if err := app.PrintJSON(map[string]any{"findings": found}); err != nil {
				return err
			}
		}
		if failed > 0 {
			return ringfence.Errorf(ringfence.CodeFailedPrecondition, "%d of %d checks failed", failed, len(found)).
				WithHint("mend what is marked as failure, and run it again")
		}
		return nil
	}
	return cmd
}
