package cli

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"ringfence.dev/ringfence"
	"ringfence.dev/ringfence/client"
)

// sandboxesCommand makes a command that does one thing to each sandbox that is named.
func (a *App) sandboxesCommand(use, short string, do func(*cobra.Command, *client.Sandbox) (client.Info, error)) *cobra.Command {
	return &cobra.Command{
		Use: use + " ID…", Short: short, Args: cobra.MinimumNArgs(1), ValidArgsFunction: a.completeIDs(-1),
		RunE: func(cmd *cobra.Command, ids []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			list := []sandboxJSON{}
			for _, id := range ids {
				info, err := do(cmd, c.Open(id))
				if err != nil {
					return fmt.Errorf("%s: %w", id, err)
				}
				list = append(list, sandboxOf(info))
			}
			if a.json {
				return a.PrintJSON(map[string]any{"sandboxes": list})
			}
			return nil
		},
	}
}

func (a *App) pauseCommand() *cobra.Command {
	return a.sandboxesCommand("pause", "Save sandboxes with what runs in them, and take them off the host",
		func(cmd *cobra.Command, s *client.Sandbox) (client.Info, error) { return s.Pause(cmd.Context()) })
}

func (a *App) resumeCommand() *cobra.Command {
	return a.sandboxesCommand("resume", "Bring paused sandboxes back as they were",
		func(cmd *cobra.Command, s *client.Sandbox) (client.Info, error) { return s.Resume(cmd.Context()) })
}

func (a *App) restoreCommand() *cobra.Command {
	return &cobra.Command{
		Use: "restore ID SNAPSHOT", Short: "Make a sandbox what it was in a snapshot; what it was until now is lost",
		Args: cobra.ExactArgs(2), ValidArgsFunction: a.completeSnapshots(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			info, err := c.Open(args[0]).Restore(cmd.Context(), args[1])
			if err != nil || !a.json {
				return err
			}
			return a.PrintJSON(sandboxOf(info))
		},
	}
}

func (a *App) forkCommand() *cobra.Command {
	var count int
	c := &cobra.Command{
		Use: "fork ID", Short: "Copy a sandbox with what runs in it, and print the ids of the copies",
		Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeIDs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			forks, err := c.Open(args[0]).Fork(cmd.Context(), count)
			if err != nil {
				return err
			}
			list := []sandboxJSON{}
			for _, s := range forks {
				j := sandboxOf(s.Info())
				j.AccessToken = string(s.AccessToken())
				list = append(list, j)
				if !a.json {
					fmt.Fprintln(a.out, Escape(s.ID()))
				}
			}
			if a.json {
				return a.PrintJSON(map[string]any{"sandboxes": list})
			}
			return nil
		},
	}
	c.Flags().IntVarP(&count, "count", "n", 1, "how many copies, 1 to 100")
	return c
}

type snapshotJSON struct {
	ID        string  `json:"id"`
	Name      string  `json:"name"`
	SandboxID string  `json:"sandbox_id"`
	Template  string  `json:"template"`
	VCPU      int     `json:"vcpu"`
	MemoryMiB int64   `json:"memory_mib"`
	DiskMiB   int64   `json:"disk_mib"`
	Bytes     int64   `json:"bytes"`
	CreatedAt *string `json:"created_at"`
}

func snapshotOf(s client.Snapshot) snapshotJSON {
	return snapshotJSON{ID: s.ID, Name: s.Name, SandboxID: s.SandboxID, Template: s.Template, VCPU: s.VCPU, MemoryMiB: s.MemoryMiB,
		DiskMiB: s.DiskMiB, Bytes: s.Bytes, CreatedAt: timeJSON(s.CreatedAt)}
}

func (a *App) snapshotCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "snapshot", Short: "Keep what a sandbox is at one instant, to start others from it or to go back",
		Example: "  snap=$(ringfence snapshot create $id --name before)\n  ringfence create --snapshot $snap\n  ringfence restore $id $snap",
	}
	c.AddCommand(a.snapshotCreateCommand(), a.snapshotListCommand(), a.snapshotGetCommand(), a.snapshotRemoveCommand())
	return c
}

func (a *App) snapshotCreateCommand() *cobra.Command {
	var name string
	c := &cobra.Command{
		Use: "create ID", Short: "Keep a sandbox's memory and disk of this instant, and print the snapshot's id",
		Long: "Keep a sandbox's memory and written disk of this instant, and print the snapshot's id. The\n" +
			"sandbox goes on; a paused one is not woken. What starts from the snapshot gets none of the\n" +
			"sandbox's --env, but all that is in the memory and the files of its programs.",
		Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeIDs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			sn, err := c.Open(args[0]).Snapshot(cmd.Context(), name)
			if err != nil {
				return err
			}
			if a.json {
				return a.PrintJSON(snapshotOf(sn))
			}
			_, err = fmt.Fprintln(a.out, Escape(sn.ID))
			return err
		},
	}
	c.Flags().StringVar(&name, "name", "", "what it is for, at most 128 bytes")
	return c
}

func (a *App) snapshotListCommand() *cobra.Command {
	var sandbox string
	c := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List snapshots, the newest first", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			list := []snapshotJSON{}
			var rows [][]string
			for sn, err := range c.Snapshots(cmd.Context(), sandbox) {
				if err != nil {
					return err
				}
				list = append(list, snapshotOf(sn))
				rows = append(rows, []string{sn.ID, sn.Name, sn.SandboxID, sn.Template, fmt.Sprintf("%.1f MiB", float64(sn.Bytes)/(1<<20)), age(sn.CreatedAt)})
			}
			if a.json {
				return a.PrintJSON(map[string]any{"snapshots": list})
			}
			return a.table([]string{"ID", "NAME", "SANDBOX", "TEMPLATE", "SIZE", "AGE"}, rows)
		},
	}
	c.Flags().StringVar(&sandbox, "sandbox", "", "only those of this sandbox, which may have ended")
	return c
}

func (a *App) snapshotGetCommand() *cobra.Command {
	return &cobra.Command{
		Use: "get SNAPSHOT", Short: "Print what is known about a snapshot, as JSON",
		Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeSnapshots(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			sn, err := c.GetSnapshot(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.PrintJSON(snapshotOf(sn))
		},
	}
}

func (a *App) snapshotRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use: "rm SNAPSHOT…", Aliases: []string{"delete"}, Short: "Delete snapshots; sandboxes that started from them go on",
		Args: cobra.MinimumNArgs(1), ValidArgsFunction: a.completeSnapshots(0, -1),
		RunE: func(cmd *cobra.Command, ids []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			for _, id := range ids {
				if err := c.DeleteSnapshot(cmd.Context(), id); err != nil {
					return fmt.Errorf("%s: %w", id, err)
				}
			}
			if a.json {
				return a.PrintJSON(map[string]any{"removed": ids})
			}
			return nil
		},
	}
}

// completeSnapshots completes the ids of snapshots for the arguments from the first to
// before the end; −1 for all that follow.
func (a *App) completeSnapshots(first, end int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) < first {
			return a.completeIDs(first)(cmd, args, prefix)
		}
		if end >= 0 && len(args) >= end {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		c, err := a.client()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var found []cobra.Completion
		for sn, err := range c.Snapshots(cmd.Context(), "") {
			if err != nil || len(found) == 100 {
				break
			}
			if strings.HasPrefix(sn.ID, prefix) && ringfence.ValidSnapshotID(sn.ID) {
				found = append(found, cobra.CompletionWithDesc(sn.ID, Escape(sn.Name)))
			}
		}
		return found, cobra.ShellCompDirectiveNoFileComp
	}
}

// spanFlag is a time after which something happens; "none" is never.
type spanFlag struct {
	given bool
	none  bool
	d     time.Duration
}

// Set implements pflag.Value.
func (f *spanFlag) Set(s string) error {
	f.given, f.none = true, s == "none"
	if f.none {
		return nil
	}
	var err error
	if f.d, err = time.ParseDuration(s); err != nil || f.d < 0 {
		return errors.New("give a duration such as 90s or 10m, or none")
	}
	return nil
}

// Type implements pflag.Value.
func (f *spanFlag) Type() string { return "duration" }

// String implements pflag.Value.
func (f *spanFlag) String() string {
	switch {
	case !f.given:
		return ""
	case f.none:
		return "none"
	}
	return f.d.String()
}

// change returns what the client takes, of which none stands for never; nil when the
// flag was not given.
func (f *spanFlag) change(none time.Duration) *time.Duration {
	switch {
	case !f.given:
		return nil
	case f.none:
		return &none
	}
	return &f.d
}

func (a *App) updateCommand() *cobra.Command {
	var timeout, idle, autoDelete spanFlag
	var onTimeout string
	var resume, noResume bool
	var metadata []string
	c := a.sandboxesCommand("update", "Change when sandboxes are ended or paused, and their metadata",
		func(cmd *cobra.Command, s *client.Sandbox) (client.Info, error) {
			change := client.DeadlinesChange{
				Timeout: timeout.change(0), OnTimeout: ringfence.OnTimeout(onTimeout), IdleTimeout: idle.change(0), AutoDelete: autoDelete.change(-1),
			}
			if resume || noResume {
				change.AutoResume = &resume
			}
			if len(metadata) > 0 {
				var err error
				if change.Metadata, err = pairs("metadata", metadata, nil); err != nil {
					return client.Info{}, err
				}
			}
			return s.SetDeadlines(cmd.Context(), change)
		})
	c.Long = "Change when sandboxes are ended or paused by themselves, and their metadata, in whatever state\n" +
		"they are. What is not said stays. `ringfence info ID` shows the instants that this leads to."
	c.Example = "  ringfence update $id --timeout 1h --on-timeout pause\n  ringfence update $id --idle-timeout none"
	flags := c.Flags()
	flags.Var(&timeout, "timeout", "end it this long from now, and from each resume, such as 90s or 10m; none: never")
	flags.Var(&idle, "idle-timeout", "end it when nobody has used it for so long; none: never")
	flags.StringVar(&onTimeout, "on-timeout", "", "kill or pause it then")
	flags.Var(&autoDelete, "auto-delete", "delete it so long after it was paused; 0s: at once, none: never")
	flags.BoolVar(&resume, "auto-resume", false, "wake it for a call on it while it is paused")
	flags.BoolVar(&noResume, "no-auto-resume", false, "refuse calls on it while it is paused")
	flags.StringArrayVar(&metadata, "metadata", nil, "KEY=VALUE to list it by, in place of all that there is")
	c.MarkFlagsMutuallyExclusive("auto-resume", "no-auto-resume")
	c.MarkFlagsOneRequired("timeout", "idle-timeout", "on-timeout", "auto-delete", "auto-resume", "no-auto-resume", "metadata")
	return c
}

func (a *App) infoCommand() *cobra.Command {
	return &cobra.Command{
		Use: "info ID", Short: "Show what is known about a sandbox, also for 7 days after its end",
		Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeIDs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			s, err := c.Get(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if a.json {
				return a.PrintJSON(sandboxOf(s.Info()))
			}
			w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
			for _, line := range infoLines(s.Info()) {
				fmt.Fprintf(w, "%s\t%s\n", line[0], Escape(line[1]))
			}
			return w.Flush()
		},
	}
}

// infoLines says what there is to say about a sandbox: words and values.
func infoLines(i client.Info) [][2]string {
	state := string(i.State)
	if i.Reason != "" {
		state += " (" + string(i.Reason) + ")"
	}
	d := i.Deadlines
	lines := [][2]string{{"id", i.ID}, {"name", i.Name}, {"template", i.Template}, {"state", state}, {"detail", i.Detail},
		{"size", fmt.Sprintf("%d vCPU, %d MiB of memory, %d MiB of disk", i.VCPU, i.MemoryMiB, i.DiskMiB)}, {"user", i.User}, {"directory", i.WorkDir}}
	for _, key := range slices.Sorted(maps.Keys(i.Metadata)) {
		lines = append(lines, [2]string{"metadata", key + "=" + i.Metadata[key]})
	}
	at := func(word string, t time.Time, why string) {
		if !t.IsZero() {
			lines = append(lines, [2]string{word, t.Local().Format(time.DateTime) + why})
		}
	}
	after := func(d time.Duration) string { return fmt.Sprintf(" (%s, then %s)", d, i.Deadlines.OnTimeout) }
	at("created", i.CreatedAt, "")
	at("ended", i.EndedAt, "")
	at("paused", i.PausedAt, "")
	at("expires", i.ExpiresAt, after(d.Timeout))
	at("idle", i.IdleAt, after(d.IdleTimeout))
	at("deleted", i.DeleteAt, "")
	if d.NoAutoResume {
		lines = append(lines, [2]string{"auto-resume", "no: calls on it while it is paused are refused"})
	}
	return slices.DeleteFunc(lines, func(line [2]string) bool { return line[1] == "" })
}
