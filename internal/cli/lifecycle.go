package cli

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

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
		Args: cobra.ExactArgs(2), ValidArgsFunction: a.completeIDs(1),
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
	var name string
	c := &cobra.Command{
		Use: "snapshot ID", Short: "Keep a sandbox's memory and disk of this instant, and print the snapshot's id",
		Example: "  snap=$(ringfence snapshot $id --name before)\n  ringfence create --snapshot $snap",
		Args:    cobra.ExactArgs(1), ValidArgsFunction: a.completeIDs(1),
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

func (a *App) snapshotsCommand() *cobra.Command {
	var sandbox string
	c := &cobra.Command{
		Use: "snapshots", Short: "List snapshots, the newest first", Args: cobra.NoArgs,
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
				rows = append(rows, []string{sn.ID, sn.Name, sn.SandboxID, sn.Template, strconv.FormatInt(sn.Bytes>>20, 10) + " MiB", age(sn.CreatedAt)})
			}
			if a.json {
				return a.PrintJSON(map[string]any{"snapshots": list})
			}
			return a.table([]string{"ID", "NAME", "SANDBOX", "TEMPLATE", "SIZE", "AGE"}, rows)
		},
	}
	c.Flags().StringVar(&sandbox, "sandbox", "", "only those of this sandbox")
	c.AddCommand(&cobra.Command{
		Use: "rm SNAPSHOT…", Short: "Delete snapshots; sandboxes that started from them go on", Args: cobra.MinimumNArgs(1),
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
			return nil
		},
	})
	return c
}
